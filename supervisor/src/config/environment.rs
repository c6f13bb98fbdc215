//! What only the machine can say about a configuration: directories, programs, secret files, the port.
//!
//! Looks and changes nothing. What is found holds for the user who asks: run the check as the user of the service.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::{ffi::OsStrExt, fs::PermissionsExt},
    path::{Path, PathBuf},
};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{Config, Env, Lane, Mode, Pulls, Remote};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// As it should be.
    Ok,
    /// Supervision works, and something is lost.
    Warning,
    /// Something that is configured cannot work.
    Failure,
}

impl Level {
    /// Every member.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Warning, Self::Failure];

    /// The one spelling.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failure => "failure",
        }
    }
}

/// What was found about one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub level: Level,
    /// What was looked at, such as `lane lane-1: directory`.
    pub subject: String,
    /// What was seen.
    pub detail: String,
    /// What to do; empty if all is well.
    pub remedy: String,
}

impl Finding {
    fn ok(subject: &str, detail: String) -> Self {
        Self { level: Level::Ok, subject: subject.to_owned(), detail, remedy: String::new() }
    }

    fn warning(subject: &str, detail: String, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warning, subject: subject.to_owned(), detail, remedy: remedy.into() }
    }

    fn failure(subject: &str, detail: String, remedy: impl Into<String>) -> Self {
        Self { level: Level::Failure, subject: subject.to_owned(), detail, remedy: remedy.into() }
    }
}

/// The longest runtime directory, bytes: a socket's path has 107 (unix(7)), and its name follows.
const RUNTIME_DIR_MAX: usize = 80;

/// Where programs are looked for if there is no PATH (`confstr(_CS_PATH)`, and the usual local directory).
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// Looks at everything that the configuration names, with the environment of this process.
#[must_use]
pub fn check_environment(config: &Config) -> Vec<Finding> {
    check_environment_in(config, &Env::current())
}

/// Looks at everything that the configuration names, with this environment.
#[must_use]
pub fn check_environment_in(config: &Config, env: &Env) -> Vec<Finding> {
    let mut found = vec![
        writable("state_dir", &config.state_dir),
        writable("runtime_dir", &config.runtime_dir),
        writable("lane_root", &config.lane_root),
    ];
    let length = config.runtime_dir.as_os_str().as_bytes().len();
    if length > RUNTIME_DIR_MAX {
        found.push(Finding::failure(
            "runtime_dir",
            format!("{length} bytes long: a socket in it could not be named"),
            format!("choose a directory of at most {RUNTIME_DIR_MAX} bytes"),
        ));
    }
    for lane in &config.lanes {
        found.extend(check_lane(lane, env));
    }
    found.extend(shared_directories(&config.lanes));
    if let Some(remote) = &config.remote {
        found.extend(check_remote(remote, env));
    }
    if let Some(file) = config.ntfy.as_ref().and_then(|ntfy| ntfy.token_file.as_ref()) {
        found.push(secret("ntfy.token_file", file, env));
    }
    if let Some(Pulls::Github { token_file: Some(file), .. }) =
        config.forge.as_ref().map(|forge| &forge.pulls)
    {
        found.push(secret("forge.token_file", file, env));
    }
    if let Some(metrics) = &config.metrics {
        found.push(bindable(metrics.listen));
    }
    found
}

/// True if a directory exists or could be made, and may be written.
fn writable(subject: &str, dir: &Path) -> Finding {
    let remedy = "create it for the service's user, or configure another";
    let mut seen = dir;
    loop {
        match fs::metadata(seen) {
            Ok(metadata) if !metadata.is_dir() => {
                return Finding::failure(subject, format!("{seen:?} is not a directory"), remedy);
            }
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => match seen.parent() {
                Some(parent) => seen = parent,
                None => return Finding::failure(subject, format!("{dir:?}: {error}"), remedy),
            },
            Err(error) => return Finding::failure(subject, format!("{seen:?}: {error}"), remedy),
        }
    }
    match accessat(CWD, seen, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS) {
        Ok(()) if seen == dir => Finding::ok(subject, format!("{dir:?} can be written")),
        Ok(()) => Finding::ok(subject, format!("{dir:?} can be created below {seen:?}")),
        Err(error) => {
            Finding::failure(subject, format!("{seen:?} cannot be written: {error}"), remedy)
        }
    }
}

fn check_lane(lane: &Lane, env: &Env) -> Vec<Finding> {
    let subject = format!("lane {}: directory", lane.id);
    let dir = &lane.dir;
    let mut found = vec![match fs::metadata(dir) {
        Err(error) => Finding::failure(
            &subject,
            format!("{dir:?}: {error}"),
            "create the checkout (git worktree add), or correct dir",
        ),
        Ok(metadata) if !metadata.is_dir() => {
            Finding::failure(&subject, format!("{dir:?} is not a directory"), "correct dir")
        }
        Ok(_) => match git2::Repository::open(dir) {
            Ok(repository) if repository.is_bare() => Finding::warning(
                &subject,
                format!("{dir:?} is a bare repository"),
                "name a checkout of it (git worktree add)",
            ),
            Ok(_) => Finding::ok(&subject, format!("{dir:?} is a checkout")),
            Err(error) if error.code() == git2::ErrorCode::NotFound => Finding::warning(
                &subject,
                format!("{dir:?} is not the top of a git checkout"),
                "create it with git worktree add, or correct dir",
            ),
            Err(error) => Finding::warning(
                &subject,
                format!("{dir:?} cannot be opened in process: {:?}", error.message()),
                "git itself is asked instead; for a foreign owner set safe.directory",
            ),
        },
    }];
    if lane.mode == Mode::Manage
        && let Some(program) = lane.command.first()
    {
        let subject = format!("lane {}: program", lane.id);
        let path = lane.env.get("PATH").map(String::as_str).or_else(|| env.var("PATH"));
        found.push(match resolve_program(program, path.unwrap_or(DEFAULT_PATH), dir) {
            Some(file) => Finding::ok(&subject, format!("{program:?} is {file:?}")),
            None => Finding::failure(
                &subject,
                format!("{program:?} is not found, or not executable"),
                "install it, write its whole path, or set PATH in the lane's env",
            ),
        });
    }
    found
}

/// The file that a program's name stands for; a name with a slash is taken from the lane's directory on.
fn resolve_program(program: &str, path: &str, dir: &Path) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
            && accessat(CWD, file, Access::EXEC_OK, AtFlags::EACCESS).is_ok()
    };
    if program.contains('/') {
        return Some(dir.join(program)).filter(executable);
    }
    path.split(':')
        .filter(|entry| entry.starts_with('/'))
        .map(|entry| Path::new(entry).join(program))
        .find(executable)
}

/// Lanes whose directories are one, though their names differ: two workers would meet in it.
fn shared_directories(lanes: &[Lane]) -> Vec<Finding> {
    let mut seen: BTreeMap<PathBuf, &Lane> = BTreeMap::new();
    let mut found = Vec::new();
    for lane in lanes {
        // A directory that cannot be resolved has its own finding already.
        let Ok(real) = fs::canonicalize(&lane.dir) else { continue };
        match seen.get(&real) {
            Some(first) => found.push(Finding::failure(
                &format!("lane {}: directory", lane.id),
                format!("{:?} is {real:?}, which is lane {}'s", lane.dir, first.id),
                "give each lane its own checkout",
            )),
            None => {
                seen.insert(real, lane);
            }
        }
    }
    found
}

fn check_remote(remote: &Remote, env: &Env) -> Vec<Finding> {
    let path = env.var("PATH").unwrap_or(DEFAULT_PATH);
    let program = |name: &str, remedy: &str| match resolve_program(name, path, Path::new("/")) {
        Some(file) => Finding::ok("remote", format!("{name} is {file:?}")),
        None => Finding::failure("remote", format!("{name} is not in PATH"), remedy),
    };
    let mut found = vec![program("git", "install git, or remove [remote] to run without claims")];
    if remote.url.starts_with('/') {
        found.push(if Path::new(&remote.url).is_dir() {
            Finding::ok("remote.url", format!("{:?} is a directory", remote.url))
        } else {
            Finding::warning(
                "remote.url",
                format!("{:?} is not a directory now", remote.url),
                "create it (git init --bare), or correct url; claims wait until then",
            )
        });
    } else if remote.url.starts_with("ssh://") || !remote.url.contains("://") {
        found.push(program("ssh", "install an ssh client, or use https"));
    }
    if let Some(file) = &remote.ssh_key_file {
        found.push(secret("remote.ssh_key_file", file, env));
    }
    if let Some(file) = &remote.known_hosts_file {
        found.push(match open_file(file) {
            Ok(_) => Finding::ok("remote.known_hosts_file", format!("{file:?} can be read")),
            Err(error) => Finding::failure(
                "remote.known_hosts_file",
                format!("{file:?}: {error}"),
                "create it with ssh-keyscan, and compare the fingerprint",
            ),
        });
    }
    match (&remote.token_file, &remote.credential) {
        (Some(file), None) => found.push(secret("remote.token_file", file, env)),
        (Some(file), Some(_)) => found.push(secret("remote.credential", file, env)),
        (None, Some(name)) => found.push(Finding::warning(
            "remote.credential",
            format!("{name:?} cannot be looked at: CREDENTIALS_DIRECTORY is not set"),
            "run the check in the service's unit, or use token_file",
        )),
        (None, None) => {}
    }
    found
}

/// A file that only its owner should read. Its content is not looked at.
fn secret(subject: &str, file: &Path, env: &Env) -> Finding {
    let metadata = open_file(file);
    // systemd guards its credentials itself, and with other modes.
    let guarded = env.credentials_dir().is_some_and(|dir| file.starts_with(dir));
    match metadata {
        Err(error) => Finding::failure(
            subject,
            format!("{file:?}: {error}"),
            "create it, owned by the service's user, with mode 0600",
        ),
        Ok(metadata) if !metadata.is_file() => {
            Finding::failure(subject, format!("{file:?} is not a file"), "name a file")
        }
        Ok(metadata) if metadata.len() == 0 => {
            Finding::failure(subject, format!("{file:?} is empty"), "write the secret into it")
        }
        Ok(metadata) if !guarded && metadata.permissions().mode() & 0o077 != 0 => Finding::warning(
            subject,
            format!("{file:?} has mode {:04o}", metadata.permissions().mode() & 0o7777),
            "others can read or change it: chmod 0600",
        ),
        Ok(_) => Finding::ok(subject, format!("{file:?} can be read")),
    }
}

/// Opens a file for reading, to see that it can be; anything else (a FIFO would block) is only measured.
fn open_file(file: &Path) -> io::Result<fs::Metadata> {
    let metadata = fs::metadata(file)?;
    if metadata.is_file() { File::open(file)?.metadata() } else { Ok(metadata) }
}

fn bindable(listen: SocketAddr) -> Finding {
    match TcpListener::bind(listen) {
        Ok(_) => Finding::ok("metrics.listen", format!("{listen} is free")),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Finding::warning(
            "metrics.listen",
            format!("{listen} is in use"),
            "all is well if the daemon runs; else choose another port",
        ),
        Err(error) => Finding::failure(
            "metrics.listen",
            format!("{listen}: {error}"),
            "choose an address of this host and a port above 1023",
        ),
    }
}

#[cfg(test)]
mod tests;
