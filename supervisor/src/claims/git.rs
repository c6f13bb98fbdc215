//! Runs the `git` program: arguments only, a clean environment, its own process group, a deadline, capped output.
//!
//! Git itself does the network because credential helpers, ssh configuration and proxies then work as the operator
//! set them up.
#![expect(
    clippy::disallowed_methods,
    reason = "the one place that starts git: with a deadline, a clean environment and its own process group"
)]

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{process::Command, sync::OnceCell, time::timeout};

use super::{
    child::{Group, StreamError, Streams},
    environment::{self, Environment},
    failure::{FailureClass, GitError},
};

/// Oldest git that can fetch without writing `FETCH_HEAD`.
const OLDEST: (u32, u32) = (2, 29);
/// Settings of the operator that must not act on our scratch repositories.
const SETTINGS: &[&str] = &[
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "fetch.prune=false",
    "fetch.writeCommitGraph=false",
    "fetch.recurseSubmodules=false",
    "push.gpgSign=false",
    "push.followTags=false",
    "push.recurseSubmodules=no",
];

/// A token for an https remote.
#[derive(Debug, Clone)]
pub struct HttpsToken {
    /// The remote; the token is offered to its scheme, host and port only, and only if the scheme is https.
    pub url: String,
    /// Its first line is the token. Read by git's helper at each use, so that a rotated token works at once.
    pub file: PathBuf,
}

/// How `git` is run.
#[derive(Debug, Clone)]
pub struct GitOptions {
    /// The time of one call.
    pub deadline: Duration,
    /// The key for ssh remotes; otherwise ssh's own configuration decides.
    pub ssh_key_file: Option<PathBuf>,
    /// The known hosts for ssh remotes.
    pub known_hosts_file: Option<PathBuf>,
    /// The token for an https remote; replaces the operator's credential helpers for it.
    pub https_token: Option<HttpsToken>,
    /// Bytes of standard output that one call may write.
    pub stdout_limit: usize,
    /// Bytes of any one file that git may write, such as a fetched pack.
    pub file_limit: u64,
}

impl Default for GitOptions {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(20),
            ssh_key_file: None,
            known_hosts_file: None,
            https_token: None,
            stdout_limit: 16 * 1024 * 1024,
            file_limit: 64 * 1024 * 1024,
        }
    }
}

/// What a `git` wrote and how it ended.
#[derive(Debug)]
pub struct GitOutput {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// How it ended.
    pub status: ExitStatus,
    /// The end of standard error: to be judged, never to be shown.
    pub(super) stderr: Vec<u8>,
}

/// The `git` program as this daemon uses it.
#[derive(Debug)]
pub struct Git {
    options: GitOptions,
    environment: Environment,
    /// Whether the operator's git configuration names an ssh command.
    ssh_configured: OnceCell<bool>,
    version: OnceCell<(u32, u32)>,
}

impl Git {
    /// Takes the environment of this process, once.
    #[must_use]
    pub fn new(options: GitOptions) -> Self {
        Self::with_environment(options, std::env::vars_os())
    }

    /// As [`Git::new`], with an environment given as values. The allow-list applies to it as well.
    #[must_use]
    pub fn with_environment(
        options: GitOptions,
        vars: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Self {
        let mut environment = environment::filtered(vars);
        let key = options.ssh_key_file.as_deref();
        let hosts = options.known_hosts_file.as_deref();
        if (key.is_some() || hosts.is_some()) && !environment::chooses_ssh(&environment) {
            environment.insert("GIT_SSH_COMMAND".into(), environment::ssh_command(key, hosts));
        }
        Self { options, environment, ssh_configured: OnceCell::new(), version: OnceCell::new() }
    }

    /// The time of one call.
    #[must_use]
    pub const fn deadline(&self) -> Duration {
        self.options.deadline
    }

    /// Runs `git ARGS` to its end. `dir` is the repository (its git directory, absolute), `stdin` what git reads.
    ///
    /// The working directory is `/`, so that no checkout is ever found by accident; remote paths must be absolute.
    ///
    /// # Errors
    /// [`GitError`]; an end other than exit 0 is [`GitError::Failed`] with its class.
    pub async fn run<A: AsRef<OsStr> + Sync>(
        &self,
        args: &[A],
        dir: Option<&Path>,
        stdin: &[u8],
    ) -> Result<GitOutput, GitError> {
        let output = self.run_to_end(args, dir, stdin).await?;
        if output.status.success() { Ok(output) } else { Err(failed(&subcommand(args), &output)) }
    }

    /// As [`Git::run`], but an unsuccessful end is an answer.
    pub(super) async fn run_to_end<A: AsRef<OsStr> + Sync>(
        &self,
        args: &[A],
        dir: Option<&Path>,
        stdin: &[u8],
    ) -> Result<GitOutput, GitError> {
        let configured = self.is_ssh_configured().await;
        let quiet_ssh = !configured && !environment::chooses_ssh(&self.environment);
        let mut command = self.command(args, dir);
        if quiet_ssh {
            command.env("GIT_SSH_COMMAND", environment::ssh_command(None, None));
        }
        self.attend(command, subcommand(args), stdin).await
    }

    /// The version, major and minor, asked once.
    ///
    /// # Errors
    /// [`GitError::UnsupportedVersion`] before 2.29 and when the answer is not understood; the errors of
    /// [`Git::run`].
    pub async fn git_version(&self) -> Result<(u32, u32), GitError> {
        self.version
            .get_or_try_init(|| async {
                let version = self.command(&["version"], None);
                // Every call for which the version matters needs the other answer too: both are asked at once.
                let (_, output) = tokio::join!(
                    self.is_ssh_configured(),
                    self.attend(version, "version".to_owned(), b"")
                );
                let output = output?;
                if !output.status.success() {
                    return Err(failed("version", &output));
                }
                let found = String::from_utf8_lossy(&output.stdout);
                parse_version(&found).filter(|version| *version >= OLDEST).ok_or_else(|| {
                    let found = found.chars().filter(|c| !c.is_control()).take(60).collect();
                    GitError::UnsupportedVersion { found }
                })
            })
            .await
            .copied()
    }

    async fn is_ssh_configured(&self) -> bool {
        *self.ssh_configured.get_or_init(|| self.asks_ssh_configured()).await
    }

    /// Our own ssh command would override `core.sshCommand` of the operator's configuration, so it is asked for first.
    async fn asks_ssh_configured(&self) -> bool {
        if environment::chooses_ssh(&self.environment) {
            return false;
        }
        let args = ["config", "--get", "core.sshCommand"];
        let answer = self.attend(self.command(&args, None), "config".to_owned(), b"").await;
        answer.is_ok_and(|output| output.status.success())
    }

    fn command<A: AsRef<OsStr>>(&self, args: &[A], dir: Option<&Path>) -> Command {
        let mut command = Command::new("git");
        command.env_clear().envs(&self.environment).current_dir("/").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.kill_on_drop(true);
        if let Some(dir) = dir {
            // Said outright, a bare repository needs no discovery and no `safe.directory`.
            command.env("GIT_DIR", dir);
        }
        for setting in SETTINGS {
            command.arg("-c").arg(setting);
        }
        for setting in self.options.https_token.iter().filter_map(token_settings).flatten() {
            command.arg("-c").arg(setting);
        }
        command.args(args);
        command
    }

    async fn attend(
        &self,
        mut command: Command,
        name: String,
        stdin: &[u8],
    ) -> Result<GitOutput, GitError> {
        let mut child = command.spawn().map_err(|source| {
            if source.kind() == std::io::ErrorKind::NotFound {
                GitError::MissingProgram { source }
            } else {
                GitError::Run { command: name.clone(), source }
            }
        })?;
        // Declared after the child and so dropped before it: the group is killed while its leader is still ours.
        let mut group = Group::of(&child);
        group.limit_files(self.options.file_limit);
        let mut streams = Streams::with_limit(self.options.stdout_limit);
        let deadline = self.options.deadline;
        let ended = timeout(deadline, streams.follow(&mut child, &mut group, stdin)).await;
        let error = match ended {
            Ok(Ok(status)) => {
                return Ok(GitOutput { stdout: streams.stdout, stderr: streams.stderr, status });
            }
            Ok(Err(StreamError::TooLarge)) => {
                GitError::TooLarge { command: name, limit: self.options.stdout_limit }
            }
            Ok(Err(StreamError::Io(source))) => GitError::Run { command: name, source },
            Err(_elapsed) => GitError::Timeout { command: name, deadline },
        };
        group.end(&mut child).await;
        Err(error)
    }
}

/// The error of a `git` that ended badly.
pub(super) fn failed(command: &str, output: &GitOutput) -> GitError {
    let class = FailureClass::of_stderr(&output.stderr);
    GitError::Failed { command: command.to_owned(), status: output.status, class }
}

fn subcommand<A: AsRef<OsStr>>(args: &[A]) -> String {
    args.first().map(|arg| arg.as_ref().to_string_lossy().into_owned()).unwrap_or_default()
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("git version ")?.split_whitespace().next()?.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Settings for a credential helper that prints the token; the token itself is on no command line.
fn token_settings(token: &HttpsToken) -> Option<[OsString; 2]> {
    let host = token.url.strip_prefix("https://")?.split('/').next()?;
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let mut helper = format!(
        "credential.https://{host}.helper=!f() {{ test \"$1\" = get || exit 0; u=; \
        while IFS= read -r l && test -n \"$l\"; do case $l in username=*) u=1;; esac; done; \
        test -n \"$u\" || echo username=x-access-token; printf 'password=%s\\n' \"$(head -n 1 "
    )
    .into_bytes();
    helper.extend_from_slice(&environment::quoted(token.file.as_os_str()));
    helper.extend_from_slice(b")\"; }; f");
    let reset = OsString::from(format!("credential.https://{host}.helper="));
    Some([reset, std::os::unix::ffi::OsStringExt::from_vec(helper)])
}

#[cfg(test)]
mod tests {
    use super::{
        super::{GitErrorKind, testing::World},
        *,
    };

    #[test]
    fn versions_are_read_or_refused() {
        assert_eq!(parse_version("git version 2.47.3\n"), Some((2, 47)));
        assert_eq!(parse_version("git version 2.39.2 (Apple Git-143)"), Some((2, 39)));
        for text in ["", "git version", "git version x.y", "hub version 2.47.3", "git version 2"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }

    fn script(dir: &Path, name: &str, text: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[tokio::test]
    async fn the_real_git_is_new_enough_and_an_old_or_mute_one_is_refused() {
        let world = World::new();
        assert!(world.git.git_version().await.unwrap() >= OLDEST);
        for says in ["git version 2.20.1", "git version unknown", ""] {
            let bin = tempfile::tempdir().unwrap();
            script(bin.path(), "git", &format!("#!/bin/sh\necho '{says}'\n"));
            let world = World::with(GitOptions::default(), &[("PATH", bin.path())]);
            let error = world.git.git_version().await.unwrap_err();
            assert_eq!(error.kind(), GitErrorKind::UnsupportedVersion, "{says}: {error}");
        }
    }

    #[tokio::test]
    async fn no_git_is_said() {
        let empty = tempfile::tempdir().unwrap();
        let world = World::with(GitOptions::default(), &[("PATH", empty.path())]);
        let error = world.git.run(&["version"], None, b"").await.unwrap_err();
        assert_eq!(error.kind(), GitErrorKind::MissingProgram, "{error}");
    }

    #[tokio::test]
    async fn input_is_given_and_output_is_capped() {
        let world = World::new();
        let args = ["hash-object", "--stdin"];
        let big = vec![b'x'; 4 << 20];
        let hash = world.git.run(&args, None, &big).await.unwrap().stdout;
        assert_eq!(hash.len(), 41);
        // A git that does not read its input is no error of ours.
        world.git.run(&["version"], None, &big).await.unwrap();
        let small = World::with(GitOptions { stdout_limit: 40, ..GitOptions::default() }, &[]);
        let error = small.git.run(&args, None, b"x").await.unwrap_err();
        assert_eq!(error.kind(), GitErrorKind::TooLarge, "{error}");
        small.assert_no_process_left();
    }

    #[tokio::test]
    async fn a_failure_is_classified_and_its_text_is_not_shown() {
        let world = World::new();
        let url = "https://user:secret@host.invalid/secret.git";
        let error = world.git.run(&["ls-remote", "--", url], None, b"").await.unwrap_err();
        assert_eq!(error.kind(), GitErrorKind::Unreachable, "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }

    #[tokio::test]
    async fn a_tree_that_ignores_term_is_killed_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        script(dir.path(), "ssh", "#!/bin/sh\ntrap '' TERM\nsleep 1000 &\nsleep 1000\n");
        let options = GitOptions { deadline: Duration::from_millis(500), ..GitOptions::default() };
        let world = World::with(options, &[("GIT_SSH_COMMAND", &dir.path().join("ssh"))]);
        let call = world.git.run(&["ls-remote", "--", "ssh://h/r"], None, b"").await;
        let error = call.unwrap_err();
        assert_eq!(error.kind(), GitErrorKind::Timeout, "{error}");
        world.assert_no_process_left();
    }

    #[tokio::test]
    async fn a_cancelled_call_leaves_no_process() {
        let dir = tempfile::tempdir().unwrap();
        let started = dir.path().join("started");
        let text = format!("#!/bin/sh\n: >'{}'\nsleep 1000\n", started.display());
        script(dir.path(), "ssh", &text);
        let world =
            World::with(GitOptions::default(), &[("GIT_SSH_COMMAND", &dir.path().join("ssh"))]);
        let until_started = async {
            while !started.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            ended = world.git.run(&["ls-remote", "--", "ssh://h/r"], None, b"") => panic!("{ended:?}"),
            () = until_started => {}
        }
        world.assert_no_process_left();
    }

    #[tokio::test]
    async fn a_stranger_that_holds_the_pipes_is_not_waited_for() {
        let bin = tempfile::tempdir().unwrap();
        script(bin.path(), "git", "#!/bin/sh\n/bin/sleep 5 &\necho done\n");
        let world = World::with(GitOptions::default(), &[("PATH", bin.path())]);
        let output = world.git.run(&["x"], None, b"").await.unwrap();
        assert_eq!(output.stdout, b"done\n");
    }

    #[tokio::test]
    async fn ssh_asks_nobody_unless_the_operator_chose_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        script(
            dir.path(),
            "ssh",
            &format!("#!/bin/sh\necho \"$@\" >>'{}'\nexit 1\n", log.display()),
        );
        let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
        let call = async |options: GitOptions, config: &str| {
            let world = World::with(options, &[("PATH", Path::new(&path))]);
            std::fs::write(world.dir.path().join(".gitconfig"), config).unwrap();
            world.git.run(&["ls-remote", "--", "ssh://h/r"], None, b"").await.unwrap_err();
            let said = std::fs::read_to_string(&log).unwrap();
            std::fs::remove_file(&log).unwrap();
            said
        };
        assert!(call(GitOptions::default(), "").await.contains("BatchMode=yes"));
        let theirs = call(GitOptions::default(), "[core]\nsshCommand = ssh -o Theirs=yes\n").await;
        assert!(theirs.contains("Theirs=yes") && !theirs.contains("BatchMode"), "{theirs}");
        let key = GitOptions { ssh_key_file: Some("/k e/y".into()), ..GitOptions::default() };
        assert!(call(key, "").await.contains("-i /k e/y"));
    }

    #[tokio::test]
    async fn the_token_goes_to_its_own_host_only_and_is_on_no_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("to'ken");
        std::fs::write(&file, "s3cret\nmore\n").unwrap();
        let token = HttpsToken { url: "https://host:8443/o/r.git".into(), file };
        let options = GitOptions { https_token: Some(token), ..GitOptions::default() };
        let world = World::with(options, &[]);
        let fill = async |query: &[u8]| world.git.run(&["credential", "fill"], None, query).await;
        let answer = fill(b"protocol=https\nhost=host:8443\n\n").await.unwrap().stdout;
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.contains("username=x-access-token\npassword=s3cret\n"), "{answer}");
        let answer = fill(b"protocol=https\nhost=host:8443\nusername=me\n\n").await.unwrap().stdout;
        assert!(String::from_utf8(answer).unwrap().contains("username=me\npassword=s3cret\n"));
        for other in ["protocol=https\nhost=else\n\n", "protocol=http\nhost=host:8443\n\n"] {
            let error = fill(other.as_bytes()).await.unwrap_err();
            assert_eq!(error.kind(), GitErrorKind::Auth, "{error}");
        }
        let command = format!("{:?}", world.git.command(&["x"], None));
        assert!(!command.contains("s3cret"));
    }
}
