//! The keeper as a process of its own, with real workers and a real socket.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::string_slice,
    clippy::wildcard_enum_match_arm,
    reason = "tests start processes, watch the clock, and fail at the first surprise"
)]

mod keeper_support;

use std::{fs, io::Write, os::unix::fs::MetadataExt, path::Path};

use keeper_support::{Home, Keeper, Peer, order, until};
use lanewarden::keeper::{
    KeeperError, KeeperOptions,
    protocol::{Answer, Limits, MAX_LINE, PROTOCOL, Request, StopSignal},
};
use lanewarden_probes::ending::Ending;

/// Not a test: the keeper, when a test starts this binary once more.
#[test]
fn keeper_process() {
    keeper_support::become_keeper();
}

fn ending(wait_status: i32) -> Option<Ending> {
    Ending::from_wait_status(wait_status)
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn pids_in(file: &Path, count: usize) -> Vec<u32> {
    until(&format!("{count} pids in {}", file.display()), || {
        let text = fs::read_to_string(file).unwrap_or_default();
        let pids: Vec<u32> = text.lines().filter_map(|line| line.trim().parse().ok()).collect();
        if pids.len() >= count { Ok(pids) } else { Err(text) }
    })
}

#[test]
fn an_exit_code_and_a_signal_come_back_raw() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut peer = keeper.peer();
    let started = peer.spawn(order(&home, "a", "exit 7"));
    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status), Some(Ending::Exited { code: 7 }));
    assert_eq!(ended.started, started);
    assert_eq!((ended.leftovers, ended.survivors.len(), ended.our_signals.len()), (0, 0, 0));
    assert!(ended.usage.max_rss_kb > 0);

    let started = peer.spawn(order(&home, "a", "kill -9 $$"));
    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status), Some(Ending::Signalled { signal: 9, core: false }));
    assert!(ended.our_signals.is_empty(), "it was not us");
}

#[test]
fn a_start_that_fails_says_where_and_why() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut peer = keeper.peer();
    let mut not_spawned = |change: &dyn Fn(&mut lanewarden::keeper::protocol::SpawnOrder)| {
        let mut order = order(&home, "a", "true");
        change(&mut order);
        match peer.ask(Request::Spawn(Box::new(order))) {
            Answer::NotSpawned { step, errno, message, .. } => (step, errno, message),
            other => panic!("{other:?}"),
        }
    };
    let (step, errno, message) = not_spawned(&|order| order.argv = vec!["no-such-program".into()]);
    assert_eq!((step.as_str(), errno), ("exec", Some(2)));
    assert!(message.contains("no-such-program") && message.contains("PATH"), "{message}");

    let (step, errno, _) = not_spawned(&|order| order.dir = "/nonexistent/lane".into());
    assert_eq!((step.as_str(), errno), ("directory", Some(2)));

    let script = home.path().join("bad");
    fs::write(&script, "#!/nonexistent/interpreter\n").unwrap();
    let (step, errno, message) =
        not_spawned(&|order| order.argv = vec![script.display().to_string()]);
    assert_eq!((step.as_str(), errno), ("exec", Some(13)), "{message}");
    make_executable(&script);
    let (step, errno, message) =
        not_spawned(&|order| order.argv = vec![script.display().to_string()]);
    assert_eq!((step.as_str(), errno), ("exec", Some(2)));
    assert!(message.contains("interpreter"), "{message}");

    let (step, ..) = not_spawned(&|order| order.log = home.path().to_owned());
    assert_eq!(step, "log");
    let (step, ..) = not_spawned(&|order| order.marker_dir = script.clone());
    assert_eq!(step, "marker-dir");
    let (step, ..) = not_spawned(&|order| order.oom_score_adj = -1000);
    assert_eq!(step, "refused");
    let (step, ..) = not_spawned(&|order| order.argv.clear());
    assert_eq!(step, "refused");
    assert_eq!(peer.runs(), (vec![], vec![]));
}

fn make_executable(file: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Writes its pid and those of a child and of a detached grandchild, all of which ignore TERM.
fn stubborn(pids: &Path) -> String {
    let pids = pids.display();
    format!(
        "trap '' TERM; echo $$ >> {pids}
         sh -c 'echo $$ >> {pids}; while :; do sleep 1; done' &
         (setsid env -i sh -c 'trap \"\" TERM; echo $$ >> {pids}; while :; do sleep 1; done' &)
         while :; do sleep 1; done"
    )
}

#[test]
fn a_kill_leaves_nothing_of_a_detached_tree_that_ignores_term() {
    let home = Home::new();
    kill_a_stubborn_tree(&home, &Keeper::start(&home));
}

#[test]
fn a_kill_leaves_nothing_without_cgroups_either() {
    let home = Home::new();
    let keeper = Keeper::start_without_cgroups(&home);
    assert!(keeper.peer().degraded.iter().any(|loss| loss.contains("no cgroup")));
    kill_a_stubborn_tree(&home, &keeper);
}

fn kill_a_stubborn_tree(home: &Home, keeper: &Keeper) {
    let mut peer = keeper.peer();
    let file = home.path().join("pids");
    let started = peer.spawn(order(home, "a", &stubborn(&file)));
    let pids = pids_in(&file, 3);

    let sent = peer.signal(&started.run, StopSignal::Term);
    assert!(sent >= 3, "{sent}");
    assert!(pids.iter().all(|&pid| is_alive(pid)), "they ignore it");
    let sent = peer.signal(&started.run, StopSignal::Kill);
    assert!(sent >= 3, "{sent}");

    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status).and_then(Ending::signal), Some(9));
    let order: Vec<StopSignal> = ended.our_signals.iter().map(|(how, _)| *how).collect();
    assert_eq!(order, [StopSignal::Term, StopSignal::Kill]);
    assert_eq!((ended.leftovers, ended.survivors), (0, vec![]));
    assert!(!pids.iter().any(|&pid| is_alive(pid)), "{pids:?}");
    assert_eq!(peer.signal(&started.run, StopSignal::Kill), 0, "nothing of it lives");
}

#[test]
fn what_a_worker_leaves_behind_is_ended_and_counted() {
    let home = Home::new();
    leave_two_behind(&home, &Keeper::start(&home));
}

#[test]
fn what_a_worker_leaves_behind_is_found_without_cgroups() {
    let home = Home::new();
    let keeper = Keeper::start_without_cgroups(&home);
    // Another lane's worker and its detached child are not taken for the first one's.
    let mut peer = keeper.peer();
    let file = home.path().join("other");
    let script =
        format!("(setsid sh -c 'echo $$ >> {}; exec sleep 1000' &); sleep 1000", file.display());
    let other = peer.spawn(order(&home, "b", &script));
    let child = pids_in(&file, 1)[0];
    leave_two_behind(&home, &keeper);
    assert!(is_alive(other.pid) && is_alive(child));
    peer.signal(&other.run, StopSignal::Kill);
    peer.ended(&other.run);
    assert!(!is_alive(child));
}

fn leave_two_behind(home: &Home, keeper: &Keeper) {
    let mut peer = keeper.peer();
    let file = home.path().join("pids");
    let script = format!(
        "for n in 1 2; do (setsid sh -c 'trap \"\" TERM; echo $$ >> {0}; exec sleep 1000' &); done
         while [ $(wc -l < {0}) -lt 2 ]; do sleep 0.01; done; exit 3",
        file.display()
    );
    fs::write(&file, "").unwrap();
    let started = peer.spawn(order(home, "a", &script));
    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status), Some(Ending::Exited { code: 3 }));
    assert_eq!((ended.leftovers, ended.survivors), (2, vec![]));
    assert!(!pids_in(&file, 2).iter().any(|&pid| is_alive(pid)));
    assert!(ended.our_signals.is_empty(), "nobody ordered it");
}

#[test]
fn a_worker_inherits_nothing_of_ours() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut peer = keeper.peer();
    let mut clean = order(
        &home,
        "a",
        "env > env; cat /proc/self/stat > stat; readlink /proc/self/fd/0 > stdin; umask > umask
         cat /proc/self/oom_score_adj > score; ulimit -n > files; pwd > pwd
         sh -c 'ls /proc/self/fd | wc -l' > fds; grep -E 'Sig(Blk|Ign)|^Uid' /proc/self/status > signals
         echo said; echo wrong >&2",
    );
    for key in ["NOTIFY_SOCKET", "LISTEN_FDS", "WATCHDOG_USEC", "CREDENTIALS_DIRECTORY"] {
        clean.env.insert(key.into(), "1".into());
    }
    clean.env.insert("FOO".into(), "bar".into());
    let (dir, log, marker) = (clean.dir.clone(), clean.log.clone(), clean.marker_dir.clone());
    let started = peer.spawn(clean);
    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status), Some(Ending::Exited { code: 0 }));

    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();
    let env = read("env");
    assert!(env.contains("FOO=bar\n"), "{env}");
    for bad in ["NOTIFY_SOCKET", "LISTEN_", "WATCHDOG_", "CREDENTIALS_", "CARGO", "STRAY"] {
        assert!(!env.contains(bad), "{bad} in {env}");
    }
    // `cat` is in the worker's session, which is the worker's own.
    let stat = read("stat");
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap().to_owned();
    assert_eq!(session, started.pid.to_string());
    assert_eq!(read("stdin"), "/dev/null\n");
    assert_eq!(read("umask").trim().trim_start_matches('0'), "22");
    assert_eq!(read("score"), "500\n");
    assert_eq!(read("pwd").trim(), dir.to_str().unwrap());
    assert!(read("files").trim().parse::<u32>().unwrap() <= 1024);
    // 0, 1, 2, and the directory that `ls` reads.
    assert_eq!(read("fds").trim(), "4");
    let signals = read("signals");
    assert_eq!(signals.matches("0000000000000000").count(), 2, "{signals}");
    assert_eq!(fs::read_to_string(&log).unwrap(), "said\nwrong\n");
    assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::metadata(&marker).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn one_keeper_serves_a_runtime_directory() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let options = KeeperOptions {
        runtime_dir: home.runtime_dir(),
        peers: vec![],
        allow_users: vec![],
        allow_root: false,
        cgroup_base: None,
    };
    let refused = lanewarden::keeper::run(options).unwrap_err();
    assert!(matches!(refused, KeeperError::AlreadyRunning { .. }), "{refused}");
    // The first one does not notice.
    assert_eq!(keeper.peer().runs(), (vec![], vec![]));
    assert_eq!(fs::metadata(home.runtime_dir()).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn only_its_peers_may_speak() {
    let home = Home::new();
    let own = rustix::process::geteuid().as_raw();
    let keeper = Keeper::start_for(&home, &[own + 12345], &[own]);
    let mut stranger = Peer::connect(&keeper.socket());
    match stranger.next_reply() {
        Some(Answer::Refused { message }) => assert!(message.contains("--peer"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(stranger.next_reply(), None, "and the connection is closed");
}

#[test]
fn a_peer_that_talks_nonsense_harms_nobody() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut good = keeper.peer();

    let mut rude = Peer::connect(&keeper.socket());
    match rude.ask(Request::List) {
        Answer::Refused { message } => assert!(message.contains("hello"), "{message}"),
        other => panic!("{other:?}"),
    }
    rude.stream.write_all(b"\xff\x00{\"ask\":\n{\"id\":1}\n").unwrap();
    assert!(matches!(rude.next_reply(), Some(Answer::Refused { .. })));
    assert!(matches!(rude.next_reply(), Some(Answer::Refused { .. })));
    match rude.ask(Request::Hello { protocol: u32::MAX }) {
        Answer::Hello { protocol, .. } => assert_eq!(protocol, PROTOCOL),
        other => panic!("{other:?}"),
    }
    assert!(matches!(rude.ask(Request::List), Answer::Refused { .. }), "no common protocol");

    let mut endless = Peer::connect(&keeper.socket());
    let flood = vec![b'x'; MAX_LINE + 2];
    // It may be cut off while it still writes.
    if endless.stream.write_all(&flood).is_ok() {
        while endless.next_reply().is_some() {}
    }
    assert_eq!(good.runs(), (vec![], vec![]));
}

#[test]
fn a_warden_that_died_finds_everything_again() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut first = keeper.peer();
    let lasting = first.spawn(order(&home, "a", "exec sleep 1000"));
    let ending_alone = first.spawn(order(&home, "b", "exit 4"));
    drop(first);

    let mut second = keeper.peer();
    let ended = until("the ended run in the list", || {
        let (living, ended) = second.runs();
        assert_eq!(living.iter().filter(|started| started.lane == lasting.lane).count(), 1);
        ended.first().cloned().ok_or(living)
    });
    assert_eq!(ended.started, ending_alone);
    assert_eq!(ending(ended.wait_status), Some(Ending::Exited { code: 4 }));

    assert!(matches!(
        second.ask(Request::Forget { run: lasting.run.clone() }),
        Answer::Refused { .. }
    ));
    assert_eq!(second.ask(Request::Forget { run: ending_alone.run.clone() }), Answer::Forgotten);
    assert_eq!(second.ask(Request::Forget { run: ending_alone.run }), Answer::Forgotten);
    assert_eq!(second.runs(), (vec![lasting.clone()], vec![]));

    let twice = order(&home, "a", "true");
    match second.ask(Request::Spawn(Box::new(twice))) {
        Answer::NotSpawned { step, message, .. } => {
            assert_eq!(step, "refused");
            assert!(message.contains(&lasting.pid.to_string()), "{message}");
        }
        other => panic!("{other:?}"),
    }
    second.signal(&lasting.run, StopSignal::Kill);
    second.ended(&lasting.run);
}

#[test]
fn a_keeper_that_is_told_to_end_leaves_its_workers_alone() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut peer = keeper.peer();
    let started = peer.spawn(order(&home, "a", "exec sleep 1000"));
    let socket = keeper.socket();
    assert!(keeper.end(), "it exits with success");
    assert!(is_alive(started.pid));
    assert!(!socket.exists());

    // And the directory is free for the next one.
    let next = Keeper::start(&home);
    let mut peer = next.peer();
    assert_eq!(peer.runs(), (vec![], vec![]));
    let unknown = Request::Signal { run: started.run.clone(), how: StopSignal::Kill };
    assert!(matches!(peer.ask(unknown), Answer::Refused { .. }), "not ours: cannot tell");
    let pid = rustix::process::Pid::from_raw(started.pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // The group of a run that an earlier keeper started goes when the run is forgotten, once it is empty.
    if let Some(cgroup) = started.cgroup {
        until("the earlier keeper's cgroup to go", || {
            assert_eq!(peer.ask(Request::Forget { run: started.run.clone() }), Answer::Forgotten);
            if keeper_support::cgroup_exists(&cgroup) { Err(cgroup.clone()) } else { Ok(()) }
        });
    }
}

#[test]
fn a_worker_that_outgrows_its_memory_is_counted() {
    let home = Home::new();
    let keeper = Keeper::start(&home);
    let mut peer = keeper.peer();
    if let Some(loss) = peer.degraded.iter().find(|loss| loss.contains("memory")) {
        keeper_support::missing("cgroup memory limits", loss);
        return;
    }
    // Each time anew: the counter of a fresh group starts at zero.
    for _ in 0..3 {
        outgrow(&home, &mut peer);
    }
}

fn outgrow(home: &Home, peer: &mut Peer) {
    let limit = 48 << 20;
    let mut hungry = order(home, "a", "exec tail /dev/zero");
    hungry.limits = Limits { memory_max: Some(limit), ..Limits::default() };
    let started = peer.spawn(hungry);
    assert_eq!(started.degraded, Vec::<String>::new());
    let ended = peer.ended(&started.run);
    assert_eq!(ending(ended.wait_status).and_then(Ending::signal), Some(9));
    assert_eq!(ended.oom_kills, Some((0, 1)));
    let peak = ended.peak_memory_bytes.unwrap();
    assert!(peak > limit / 2 && peak <= limit + (1 << 20), "{peak}");
    assert!(ended.our_signals.is_empty());

    // Nothing of it stays once it is forgotten.
    let cgroup = started.cgroup.unwrap();
    assert!(cgroup.ends_with(&format!("/a.{}", &started.run.as_str()[..8])), "{cgroup}");
    assert!(keeper_support::cgroup_exists(&cgroup));
    peer.ask(Request::Forget { run: started.run });
    until("the cgroup to go", || {
        if keeper_support::cgroup_exists(&cgroup) { Err(cgroup.clone()) } else { Ok(()) }
    });
}

#[test]
fn root_starts_workers_as_the_user_that_is_allowed() {
    if !rustix::process::geteuid().is_root() {
        keeper_support::missing("root", "only root can start workers as another user");
        return;
    }
    const NOBODY: u32 = 65534;
    let home = Home::new();
    let keeper = Keeper::start_for(&home, &[0], &[NOBODY]);
    let mut peer = keeper.peer();
    let order = order(&home, "a", "id -u; id -g; grep CapEff /proc/self/status");
    let (log, marker) = (order.log.clone(), order.marker_dir.clone());
    let started = peer.spawn(order);
    peer.ended(&started.run);
    let said = fs::read_to_string(log).unwrap();
    assert!(said.starts_with("65534\n"), "{said}");
    assert!(said.contains("0000000000000000"), "{said}");
    assert_eq!(fs::metadata(marker).unwrap().uid(), NOBODY);
}

#[test]
fn a_root_keeper_opens_nothing_that_its_peer_could_not() {
    if !rustix::process::geteuid().is_root() {
        keeper_support::missing("root", "only a root keeper has rights that its peer lacks");
        return;
    }
    const PEER: u32 = 65534;
    const WORKER: u32 = 1;
    let home = Home::new();
    open_to_all(home.path());
    let keeper = Keeper::start_for(&home, &[PEER], &[WORKER]);
    let socket = keeper.socket();
    let mut peer = keeper_support::as_user(PEER, || Peer::connect(&socket));
    assert!(matches!(peer.ask(Request::Hello { protocol: PROTOCOL }), Answer::Hello { .. }));

    // The test's directory is root's: the peer cannot make `logs` in it, so neither does the keeper for it.
    let forbidden = order(&home, "a", "true");
    match peer.ask(Request::Spawn(Box::new(forbidden))) {
        Answer::NotSpawned { step, errno, .. } => {
            assert_eq!((step.as_str(), errno), ("log", Some(13)));
        }
        other => panic!("{other:?}"),
    }
    for name in ["logs", "markers"] {
        let dir = home.path().join(name);
        fs::create_dir(&dir).unwrap();
        std::os::unix::fs::chown(&dir, Some(PEER), Some(PEER)).unwrap();
    }
    let order = order(&home, "a", "id -u");
    let (log, marker) = (order.log.clone(), order.marker_dir.clone());
    let started = peer.spawn(order);
    peer.ended(&started.run);
    assert_eq!(fs::read_to_string(&log).unwrap(), "1\n");
    assert_eq!(fs::metadata(&log).unwrap().uid(), PEER);
    let marker = fs::metadata(&marker).unwrap();
    // The peer reads the marker by its group.
    assert_eq!((marker.uid(), marker.gid(), marker.mode() & 0o777), (WORKER, PEER, 0o750));
    peer.ask(Request::Forget { run: started.run });
}

fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
}
