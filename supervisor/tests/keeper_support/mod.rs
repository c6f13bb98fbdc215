//! A keeper process for tests, and a peer that speaks to it.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "this is test code, which the lints know only inside of test functions"
)]

use std::{
    collections::{BTreeMap, VecDeque},
    env, fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use lanewarden::{
    ids::{LaneId, RunId},
    keeper::{
        KeeperOptions,
        protocol::{
            Answer, Ask, Ended, FromKeeper, Limits, Notification, PROTOCOL, Request, SpawnOrder,
            Started, StopSignal, decode, encode,
        },
    },
};

const ROLE: &str = "LANEWARDEN_TEST_KEEPER";
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs a keeper in this process, if that is what it was started for.
pub(crate) fn become_keeper() {
    let Ok(runtime_dir) = env::var(ROLE) else { return };
    let list = |name: &str| -> Vec<u32> {
        let text = env::var(name).unwrap_or_default();
        text.split(',').filter_map(|uid| uid.parse().ok()).collect()
    };
    let allow_users = list("TEST_ALLOW");
    lanewarden::keeper::run(KeeperOptions {
        runtime_dir: runtime_dir.into(),
        peers: list("TEST_PEERS"),
        allow_root: allow_users.contains(&0),
        allow_users,
        cgroup_base: env::var("TEST_CGROUP").ok(),
    })
    .unwrap();
}

/// The directory of one test.
pub(crate) struct Home(tempfile::TempDir);

impl Home {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn runtime_dir(&self) -> PathBuf {
        self.path().join("run")
    }
}

/// A keeper process.
pub(crate) struct Keeper {
    child: Child,
    socket: PathBuf,
    tidies: bool,
}

impl Keeper {
    pub(crate) fn start(home: &Home) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self::start_for(home, &[own], &[own])
    }

    /// A keeper that can make no cgroup.
    pub(crate) fn start_without_cgroups(home: &Home) -> Self {
        let own = rustix::process::geteuid().as_raw();
        // Longer than any file name may be.
        Self::start_with(home, &[own], &[own], Some(&"x".repeat(300)))
    }

    pub(crate) fn start_for(home: &Home, peers: &[u32], allow: &[u32]) -> Self {
        Self::start_with(home, peers, allow, None)
    }

    fn start_with(home: &Home, peers: &[u32], allow: &[u32], base: Option<&str>) -> Self {
        let list = |uids: &[u32]| uids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        // One thread only, as in the real program.
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "keeper_process", "--nocapture", "--test-threads=1"])
            .env(ROLE, home.runtime_dir())
            .env("TEST_PEERS", list(peers))
            .env("TEST_ALLOW", list(allow))
            .env("STRAY", "1")
            .envs(base.map(|base| ("TEST_CGROUP", base)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let tidies = peers.contains(&rustix::process::geteuid().as_raw());
        let keeper = Self { child, socket: home.runtime_dir().join("keeper.sock"), tidies };
        until("the keeper's socket", || UnixStream::connect(&keeper.socket).map(drop));
        keeper
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.socket.clone()
    }

    /// A peer that said hello.
    pub(crate) fn peer(&self) -> Peer {
        let mut peer = Peer::connect(&self.socket);
        match peer.ask(Request::Hello { protocol: PROTOCOL }) {
            Answer::Hello { protocol, pid, degraded, .. } => {
                assert_eq!((protocol, pid), (PROTOCOL, self.child.id()));
                peer.degraded = degraded;
            }
            other => panic!("{other:?}"),
        }
        peer
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends SIGTERM; whether it exits with success.
    pub(crate) fn end(mut self) -> bool {
        self.signal(rustix::process::Signal::TERM);
        self.child.wait().unwrap().success()
    }

    /// Forgets whatever ended, as a warden does, so that no cgroup stays.
    fn tidy(&self) {
        let Ok(stream) = UnixStream::connect(&self.socket) else { return };
        let mut peer = Peer::over(stream);
        if matches!(peer.ask(Request::Hello { protocol: PROTOCOL }), Answer::Hello { .. }) {
            for ended in peer.runs().1 {
                peer.ask(Request::Forget { run: ended.started.run });
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_some() {
            return;
        }
        if !thread::panicking() {
            if self.tidies {
                self.tidy();
            }
            self.signal(rustix::process::Signal::TERM);
        } else {
            self.child.kill().unwrap();
        }
        self.child.wait().unwrap();
    }
}

/// A connection to a keeper.
pub(crate) struct Peer {
    pub(crate) stream: UnixStream,
    pub(crate) degraded: Vec<String>,
    reader: BufReader<UnixStream>,
    ended: VecDeque<Ended>,
    next: u64,
}

impl Peer {
    pub(crate) fn connect(socket: &Path) -> Self {
        Self::over(UnixStream::connect(socket).unwrap())
    }

    fn over(stream: UnixStream) -> Self {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.set_write_timeout(Some(DEADLINE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, degraded: vec![], reader, ended: VecDeque::new(), next: 0 }
    }

    /// The next answer, whatever was asked; `None` once the connection is closed.
    pub(crate) fn next_reply(&mut self) -> Option<Answer> {
        loop {
            match self.next()? {
                FromKeeper::Reply(reply) => return Some(reply.answer),
                FromKeeper::Notification(Notification::Ended(ended)) => {
                    self.ended.push_back(*ended)
                }
            }
        }
    }

    fn next(&mut self) -> Option<FromKeeper> {
        let mut line = Vec::new();
        match self.reader.read_until(b'\n', &mut line) {
            Ok(0) => None,
            Ok(_) => Some(decode(&line).unwrap()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => None,
            Err(error) => panic!("no word from the keeper: {error}"),
        }
    }

    pub(crate) fn ask(&mut self, request: Request) -> Answer {
        self.next += 1;
        let ask = Ask { id: self.next, request };
        self.stream.write_all(&encode(&ask)).unwrap();
        self.next_reply().unwrap()
    }

    pub(crate) fn spawn(&mut self, order: SpawnOrder) -> Started {
        match self.ask(Request::Spawn(Box::new(order))) {
            Answer::Spawned(started) => *started,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn signal(&mut self, run: &RunId, how: StopSignal) -> u32 {
        match self.ask(Request::Signal { run: run.clone(), how }) {
            Answer::Signalled { processes } => processes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn runs(&mut self) -> (Vec<Started>, Vec<Ended>) {
        match self.ask(Request::List) {
            Answer::Runs { living, ended } => (living, ended),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the notification that this run ended.
    pub(crate) fn ended(&mut self, run: &RunId) -> Ended {
        loop {
            if let Some(at) = self.ended.iter().position(|ended| ended.started.run == *run) {
                return self.ended.remove(at).unwrap();
            }
            match self.next() {
                Some(FromKeeper::Notification(Notification::Ended(ended))) => {
                    self.ended.push_back(*ended);
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// An order for a shell script in a lane of its own.
pub(crate) fn order(home: &Home, lane: &str, script: &str) -> SpawnOrder {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let seed = u128::from(number) << 96 | u128::from(std::process::id());
    let run = RunId::from_bytes(seed.to_be_bytes());
    let dir = home.path().join(lane);
    fs::create_dir_all(&dir).unwrap();
    SpawnOrder {
        argv: vec!["sh".into(), "-c".into(), script.into()],
        env: BTreeMap::from([
            ("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into()),
            ("LANEWARDEN_RUN".into(), run.to_string()),
        ]),
        log: home.path().join(format!("logs/{run}.log")),
        marker_dir: home.path().join(format!("markers/{run}")),
        limits: Limits::default(),
        oom_score_adj: 500,
        lane: LaneId::new(lane).unwrap(),
        run,
        dir,
    }
}

/// Waits until the condition holds; fails with its last state.
pub(crate) fn until<T, E: std::fmt::Debug>(
    what: &str,
    mut condition: impl FnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + DEADLINE;
    loop {
        match condition() {
            Ok(value) => return value,
            Err(state) if Instant::now() > end => panic!("still waiting for {what}: {state:?}"),
            Err(_) => thread::park_timeout(Duration::from_millis(5)),
        }
    }
}

/// Says loudly that a test could not test; fails where `LANEWARDEN_TEST_DEMAND` is set.
pub(crate) fn missing(what: &str, why: &str) {
    let mut stderr = std::io::stderr();
    writeln!(stderr, "\n*** NOT TESTED: this box has no {what}: {why} ***\n").unwrap();
    assert!(env::var_os("LANEWARDEN_TEST_DEMAND").is_none(), "{what} is demanded");
}

fn cgroup_dirs(cgroup: &str) -> Vec<PathBuf> {
    ["memory", "unified", "pids", ""]
        .iter()
        .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy))
        .map(|root| root.join(cgroup.trim_start_matches('/')))
        .filter(|dir| dir.is_dir())
        .collect()
}

pub(crate) fn cgroup_exists(cgroup: &str) -> bool {
    !cgroup_dirs(cgroup).is_empty()
}

/// Does something with the effective user and group of somebody else. The kernel's calls change this thread only.
pub(crate) fn as_user<T>(id: u32, what: impl FnOnce() -> T) -> T {
    use rustix::{
        process::{Gid, Uid},
        thread::{set_thread_res_gid, set_thread_res_uid},
    };
    set_thread_res_gid(None::<Gid>, Some(Gid::from_raw(id)), None::<Gid>).unwrap();
    set_thread_res_uid(None::<Uid>, Some(Uid::from_raw(id)), None::<Uid>).unwrap();
    let result = what();
    set_thread_res_uid(None::<Uid>, Some(Uid::ROOT), None::<Uid>).unwrap();
    set_thread_res_gid(None::<Gid>, Some(Gid::ROOT), None::<Gid>).unwrap();
    result
}
