//! A coordination remote: a bare repository, and a real git server in front of it that goes away or hangs on order.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
};

/// Runs git and gives its output.
///
/// # Panics
/// If git fails.
pub fn git(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).args(args).stdin(Stdio::null());
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "git {args:?} in {}: {}",
        dir.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A checkout for a lane.
pub fn checkout(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
}

/// A claim on the remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The ref.
    pub name: String,
    /// The object.
    pub oid: String,
    /// The commit's message.
    pub message: String,
}

impl Claim {
    /// The value of a key of the message.
    #[must_use]
    pub fn value(&self, key: &str) -> Option<&str> {
        self.message.split_whitespace().find_map(|token| token.strip_prefix(key)?.strip_prefix('='))
    }
}

/// A bare repository.
#[derive(Debug, Clone)]
pub struct Bare {
    /// Where it is.
    pub path: PathBuf,
}

impl Bare {
    /// Makes one.
    #[must_use]
    pub fn make(path: PathBuf) -> Self {
        std::fs::create_dir_all(&path).unwrap();
        git(&path, &["init", "-q", "--bare"]);
        Self { path }
    }

    /// The lane claims that it has, by ref.
    #[must_use]
    pub fn claims(&self) -> Vec<Claim> {
        let format = "--format=%(refname) %(objectname) %(contents:subject)";
        let text = git(&self.path, &["for-each-ref", format, "refs/lane-claims/"]);
        text.lines()
            .filter_map(|line| {
                let mut parts = line.splitn(3, ' ').map(str::to_owned);
                let (name, oid) = (parts.next()?, parts.next()?);
                Some(Claim { name, oid, message: parts.next().unwrap_or_default() })
            })
            .collect()
    }

    /// The claim of a lane, by what the message says.
    #[must_use]
    pub fn claim_of(&self, lane: &str) -> Option<Claim> {
        self.claims().into_iter().find(|claim| claim.value("lane") == Some(lane))
    }
}

/// How the git server behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mood {
    /// `git daemon` answers.
    Serve = 0,
    /// Every connection is closed at once.
    Away = 1,
    /// Connections are taken and never answered.
    Hang = 2,
}

/// `git daemon` behind a listener of ours: its port stays bound while it is away.
#[derive(Debug, Clone)]
pub struct Server {
    address: SocketAddr,
    mood: Arc<AtomicU8>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    /// Serves every repository below `base`, for fetch and push, on a free port.
    #[must_use]
    pub fn start(base: &Path) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = Self {
            address,
            mood: Arc::new(AtomicU8::new(Mood::Serve as u8)),
            connections: Arc::default(),
        };
        let (own, base) = (server.clone(), base.to_owned());
        thread::spawn(move || {
            let mut hung = Vec::new();
            for stream in listener.incoming().flatten() {
                own.connections.fetch_add(1, Ordering::SeqCst);
                match own.mood.load(Ordering::SeqCst) {
                    0 => serve(&base, stream),
                    1 => drop(stream.shutdown(Shutdown::Both)),
                    _ => hung.push(stream),
                }
            }
        });
        server
    }

    /// The URL of a repository below the base.
    #[must_use]
    pub fn url(&self, repository: &str) -> String {
        format!("git://{}/{repository}", self.address)
    }

    /// Behaves so from now on.
    pub fn set(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    /// Connections so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn serve(base: &Path, stream: TcpStream) {
    let Ok(input) = stream.try_clone() else { return };
    let mut command = Command::new("git");
    command.args(["daemon", "--inetd", "--export-all", "--enable=receive-pack"]);
    command.arg(format!("--base-path={}", base.display())).arg(base);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    command.stdin(OwnedFd::from(input)).stdout(OwnedFd::from(stream)).stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        thread::spawn(move || drop(child.wait()));
    }
}
