//! Real repositories, a real daemon and a look at real processes, for the tests of this room.
#![expect(
    clippy::disallowed_methods,
    reason = "tests start a git daemon and wait for conditions with a deadline"
)]

use std::{
    ffi::OsString,
    fs,
    net::{TcpListener, TcpStream},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use git2::{ObjectType, Repository, Signature, Time};
use tempfile::TempDir;

use super::{Git, GitOptions, PushOutcome, RefUpdate, RemoteRef, Scratch, push, snapshot};

pub(super) const NAMESPACES: &[&str] = &["refs/lane-claims/", "refs/machine-claims/"];

/// A remote, a state directory and a git that knows nothing of this machine's configuration.
pub(super) struct World {
    pub(super) dir: TempDir,
    pub(super) git: Git,
    pub(super) scratch: Scratch,
    pub(super) remote: Repository,
    pub(super) url: String,
}

impl World {
    pub(super) fn new() -> Self {
        Self::with(GitOptions::default(), &[])
    }

    pub(super) fn with(options: GitOptions, more: &[(&str, &Path)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("remote.git");
        let remote = Repository::init_bare(&path).unwrap();
        let scratch = Scratch::open(&dir.path().join("state")).unwrap();
        let git = Git::with_environment(options, environment(dir.path(), more));
        Self { git, scratch, remote, url: path.to_str().unwrap().to_owned(), dir }
    }

    /// Puts a claim commit there without our own push.
    pub(super) fn plant(&self, name: &str, message: &str) -> String {
        let tree = self.remote.treebuilder(None).unwrap().write().unwrap();
        let tree = self.remote.find_tree(tree).unwrap();
        let who = Signature::new("x", "x@example.invalid", &Time::new(1, 0)).unwrap();
        let oid = self.remote.commit(None, &who, &who, message, &tree, &[]).unwrap();
        self.remote.reference(name, oid, true, "").unwrap();
        oid.to_string()
    }

    /// Puts an object of any kind there.
    pub(super) fn plant_raw(&self, name: &str, kind: ObjectType, data: &[u8]) -> String {
        let oid = self.remote.odb().unwrap().write(kind, data).unwrap();
        let path = self.remote.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{oid}\n")).unwrap();
        oid.to_string()
    }

    /// Overwrites the object with garbage.
    pub(super) fn poison(&self, oid: &str) {
        let (fan, rest) = oid.split_at(2);
        let path = self.remote.path().join("objects").join(fan).join(rest);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"garbage").unwrap();
    }

    pub(super) fn at(&self, name: &str) -> Option<String> {
        let found = self.remote.find_reference(name).ok()?;
        found.target().map(|oid| oid.to_string())
    }

    pub(super) async fn push(&self, updates: &[RefUpdate]) -> Vec<PushOutcome> {
        let results = push(&self.git, &self.scratch, &self.url, updates, false).await.unwrap();
        let names: Vec<_> = results.iter().map(|result| &result.ref_name).collect();
        assert_eq!(names, updates.iter().map(|update| &update.ref_name).collect::<Vec<_>>());
        results.into_iter().map(|result| result.outcome).collect()
    }

    pub(super) async fn snapshot(&self) -> Vec<RemoteRef> {
        let refs = snapshot(&self.git, &self.scratch, &self.url, NAMESPACES).await.unwrap();
        self.assert_tidy();
        refs
    }

    /// Nothing is left of a snapshot.
    pub(super) fn assert_tidy(&self) {
        let names: Vec<_> = fs::read_dir(self.dir.path().join("state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["claims.git"]);
        let scratch = Repository::open_bare(self.scratch.path()).unwrap();
        assert_eq!(scratch.references().unwrap().count(), 0);
        assert!(!self.scratch.path().join("FETCH_HEAD").exists());
    }

    /// Waits until no process has this world's home in its environment.
    pub(super) fn assert_no_process_left(&self) {
        let home = [b"HOME=", self.dir.path().as_os_str().as_bytes()].concat();
        let start = Instant::now();
        loop {
            let left: Vec<PathBuf> = fs::read_dir("/proc")
                .unwrap()
                .filter_map(|entry| entry.ok().map(|entry| entry.path()))
                .filter(|path| {
                    fs::read(path.join("environ")).is_ok_and(|environ| {
                        environ.split(|byte| *byte == 0).any(|variable| variable == home)
                    })
                })
                .collect();
            if left.is_empty() {
                return;
            }
            assert!(start.elapsed() < Duration::from_secs(5), "still there: {left:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn environment(home: &Path, more: &[(&str, &Path)]) -> Vec<(OsString, OsString)> {
    let mut vars: Vec<(OsString, OsString)> = vec![
        ("PATH".into(), std::env::var_os("PATH").unwrap()),
        ("HOME".into(), home.into()),
        ("GIT_CONFIG_NOSYSTEM".into(), "1".into()),
    ];
    vars.extend(more.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    vars
}

pub(super) fn update(name: &str, new: Option<&str>, expect: Option<&str>) -> RefUpdate {
    RefUpdate {
        ref_name: name.to_owned(),
        new: new.map(str::to_owned),
        expect: expect.map(str::to_owned),
    }
}

/// A port that is free now.
pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A real `git daemon`.
pub(super) struct Daemon {
    child: Child,
    pub(super) url: String,
}

impl Daemon {
    /// `None`, said aloud, if this machine has no git-daemon.
    pub(super) async fn serve(world: &World) -> Option<Self> {
        let found = world.git.run(&["--exec-path"], None, b"").await.unwrap();
        let program = Path::new(String::from_utf8(found.stdout).unwrap().trim()).join("git-daemon");
        if !program.exists() {
            #[expect(clippy::print_stderr, reason = "a skipped test must be seen")]
            {
                eprintln!("SKIPPED: needs git-daemon, looked for {}", program.display());
            }
            return None;
        }
        let base = world.remote.path().parent().unwrap();
        // Somebody may take the port between the look and the daemon's bind; then another is tried.
        for _ in 0..5 {
            let port = free_port();
            let mut child = Command::new(&program)
                .args(["--export-all", "--enable=receive-pack", "--reuseaddr"])
                .args(["--listen=127.0.0.1".to_owned(), format!("--port={port}")])
                .arg(format!("--base-path={}", base.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(10) && child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    let url = format!("git://127.0.0.1:{port}/remote.git");
                    return Some(Self { child, url });
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            child.kill().ok();
            child.wait().unwrap();
        }
        panic!("git-daemon did not answer on any of five ports");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
