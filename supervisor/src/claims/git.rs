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

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::{Child, Command},
    sync::OnceCell,
    time::timeout,
};

use super::{
    environment::{self, Environment},
    failure::{FailureClass, GitError},
};

/// The last bytes of standard error that are kept for classification.
const STDERR_KEPT: usize = 64 * 1024;
/// How long the tree may tidy up between TERM and KILL.
const TERM_GRACE: Duration = Duration::from_millis(300);
/// How long the pipes are read on after git itself has ended: an ssh master of the operator may hold them open.
const DRAIN: Duration = Duration::from_millis(300);
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
        let configured = self.ssh_configured.get_or_init(|| self.asks_ssh_configured()).await;
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
                let output = self.run(&["version"], None, b"").await?;
                let found = String::from_utf8_lossy(&output.stdout);
                parse_version(&found).filter(|version| *version >= OLDEST).ok_or_else(|| {
                    let found = found.chars().filter(|c| !c.is_control()).take(60).collect();
                    GitError::UnsupportedVersion { found }
                })
            })
            .await
            .copied()
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
        let mut streams = Streams { limit: self.options.stdout_limit, ..Streams::default() };
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

enum StreamError {
    TooLarge,
    Io(std::io::Error),
}

#[derive(Default)]
struct Streams {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    limit: usize,
}

impl Streams {
    /// Feeds and reads until git has ended.
    async fn follow(
        &mut self,
        child: &mut Child,
        group: &mut Group,
        input: &[u8],
    ) -> Result<ExitStatus, StreamError> {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A git that ends without reading its input says why on standard error.
                stdin.write_all(input).await.ok();
            }
            Ok(())
        };
        let pump = async {
            tokio::try_join!(
                feed,
                read_whole(stdout, self.limit, &mut self.stdout),
                read_end(stderr, &mut self.stderr)
            )
            .map(|_| ())
        };
        tokio::pin!(pump);
        let first = tokio::select! {
            pumped = &mut pump => Err(pumped),
            status = child.wait() => Ok(status),
        };
        let status = match first {
            Err(pumped) => {
                pumped?;
                let status = child.wait().await;
                group.forget();
                status
            }
            Ok(status) => {
                group.forget();
                // What is still in the pipes; a stranger that holds them open is not waited for.
                if let Ok(pumped) = timeout(DRAIN, pump).await {
                    pumped?;
                }
                status
            }
        };
        status.map_err(StreamError::Io)
    }
}

async fn read_whole(
    pipe: Option<impl AsyncRead + Unpin>,
    limit: usize,
    into: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let Some(pipe) = pipe else { return Ok(()) };
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    pipe.take(most).read_to_end(into).await.map_err(StreamError::Io)?;
    if into.len() > limit { Err(StreamError::TooLarge) } else { Ok(()) }
}

async fn read_end(
    pipe: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    while pipe.read_buf(into).await.map_err(StreamError::Io)? > 0 {
        if into.len() > 2 * STDERR_KEPT {
            into.drain(..into.len() - STDERR_KEPT);
        }
    }
    Ok(())
}

/// The process group that git leads. Killed on drop unless its leader was reaped, so that a cancelled call leaves
/// nothing behind; after the reaping the number may belong to somebody else and is not used again.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn forget(&mut self) {
        self.0 = None;
    }

    /// Bounds every file that git and its children write; a huge object behind a ref must not fill the disk.
    fn limit_files(&self, bytes: u64) {
        if self.0.is_some() {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            // Fails only where the limit is lower already.
            rustix::process::prlimit(self.0, Resource::Fsize, limit).ok();
        }
    }

    /// TERM, a short grace, KILL to the whole group, then the leader is reaped.
    async fn end(&mut self, child: &mut Child) {
        if let Some(pid) = self.0 {
            rustix::process::kill_process_group(pid, Signal::TERM).ok();
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            let gone = async {
                while let Ok(None) = rustix::process::waitid(WaitId::Pid(pid), look) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            if timeout(TERM_GRACE, gone).await.is_err() {
                tracing::debug!(pid = pid.as_raw_nonzero().get(), "git outlived SIGTERM");
            }
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
            // A process in an uninterruptible sleep is left to the runtime's orphan queue.
            if timeout(Duration::from_secs(1), child.wait()).await.is_ok() {
                self.forget();
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_or_refused() {
        assert_eq!(parse_version("git version 2.47.3\n"), Some((2, 47)));
        assert_eq!(parse_version("git version 2.39.2 (Apple Git-143)"), Some((2, 39)));
        for text in ["", "git version", "git version x.y", "hub version 2.47.3", "git version 2"] {
            assert_eq!(parse_version(text), None, "{text}");
        }
    }
}
