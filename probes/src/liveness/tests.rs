//! A fixture for every verdict, made-up evidence for those that need another kernel or machine, real processes for the
//! rest; and that damage never kills.

use super::{observe::window, *};
use crate::{
    Absent, Root,
    identity::{PidfdOutcome, ProcStat, parse_stat, resolve},
};
use proptest::prelude::*;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::process::{Child, Command, Stdio};

const BOOT: &str = "0f6b1c9e-1234-4abc-8def-0123456789ab";
const OTHER_BOOT: &str = "0f6b1c9e-ffff-4abc-8def-0123456789ab";
const PIDNS: u64 = 4_026_531_836;
const TIMENS: u64 = 4_026_531_834;

fn stat(state: u8, threads: u64, ticks: u64) -> ProcStat {
    let (state, line) = (char::from(state), "1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0");
    parse_stat(format!("4711 (x) {state} {line} {threads} 0 {ticks} 0 0").as_bytes()).unwrap()
}

/// A record and what is seen of it while all is well.
fn alive() -> (Recorded, Observed) {
    let recorded = Recorded {
        machine: "box".into(),
        actor: Some("flow".into()),
        pid: Some(4711),
        boot: Some(BOOT.parse().unwrap()),
        ticks: Some(78127),
        pidns: Some(PIDNS),
        timens: Some(TIMENS),
        ..Recorded::default()
    };
    let observed = Observed {
        machine: "box".into(),
        me: None,
        table: Table::Usable,
        boot: Some(BOOT.parse().unwrap()),
        pidns: Some(PIDNS),
        timens: Some(TIMENS),
        boottime_ms: Some(1_000_000),
        pidfd: Some(PidfdOutcome::Opened { ino: Some(46744), exited: false }),
        stat: Ok(Ok(stat(b'S', 1, 78127))),
        start: None,
    };
    (recorded, observed)
}

/// A record that has a stamp instead of an identity, and a process that started `offset` ms after it.
fn stamped(offset: i64) -> (Recorded, Observed) {
    let (recorded, observed) = alive();
    let start = StartWindow { earliest_ms: 50_000 + offset, latest_ms: 50_020 + offset };
    (
        Recorded { boot: None, ticks: None, ts_ms: Some(50_000), ..recorded },
        Observed { start: Some(start), ..observed },
    )
}

type Change = fn(&mut Recorded, &mut Observed);

/// Every case of the decision: what is different from `alive`, and what follows.
const CASES: &[(Liveness, &str, Change)] = &[
    (Liveness::Alive, "all equal", |_, _| {}),
    (Liveness::Alive, "leader gone, threads run", |_, o| o.stat = Ok(Ok(stat(b'Z', 2, 78127)))),
    (Liveness::Alive, "denied by the kernel, entry readable", |_, o| {
        o.pidfd = Some(PidfdOutcome::Denied);
    }),
    (Liveness::Alive, "hidden, same pidfs inode", |r, o| {
        r.pidfs_ino = Some(46744);
        o.stat = Ok(Err(Absent::Gone));
    }),
    (Liveness::Alive, "other time namespace, same pidfs inode", |r, o| {
        r.pidfs_ino = Some(46744);
        o.timens = Some(7);
        o.stat = Ok(Ok(stat(b'S', 1, 100_078_127)));
    }),
    (Liveness::Alive, "a record that knows of no namespaces", |r, _| {
        (r.pidns, r.timens) = (None, None);
    }),
    (Liveness::OurSelf, "our own record", |r, o| o.me = r.identity()),
    (Liveness::OurSelf, "our own record, though ephemeral", |r, o| {
        r.ephemeral = true;
        o.me = r.identity();
    }),
    (Liveness::DeadNoProcess, "a zombie that we act for", |r, o| {
        o.me = r.identity();
        o.stat = Ok(Ok(stat(b'Z', 1, 78127)));
    }),
    (Liveness::NoWorker, "warden alive", |r, _| r.no_worker = true),
    (Liveness::DeadNoProcess, "warden dead", |r, o| {
        r.no_worker = true;
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::DeadReboot, "other boot, same first digits", |r, _| {
        r.boot = Some(OTHER_BOOT.parse().unwrap());
    }),
    (Liveness::DeadReboot, "a reboot clears even what could never be judged", |r, _| {
        r.boot = Some(OTHER_BOOT.parse().unwrap());
        (r.pid, r.ticks, r.ephemeral, r.pidns) = (None, None, true, Some(7));
    }),
    (Liveness::DeadNoProcess, "ESRCH", |_, o| {
        o.pidfd = Some(PidfdOutcome::NoProcess);
        o.stat = Ok(Err(Absent::Gone));
    }),
    (Liveness::DeadNoProcess, "zombie", |_, o| o.stat = Ok(Ok(stat(b'Z', 1, 78127)))),
    (Liveness::DeadNoProcess, "hidden zombie, same pidfs inode", |r, o| {
        r.pidfs_ino = Some(46744);
        o.pidfd = Some(PidfdOutcome::Opened { ino: Some(46744), exited: true });
        o.stat = Ok(Err(Absent::Gone));
    }),
    (Liveness::DeadPidReused, "other ticks", |_, o| o.stat = Ok(Ok(stat(b'S', 1, 78128)))),
    (Liveness::DeadPidReused, "ticks collide, pidfs inode does not", |r, _| {
        r.pidfs_ino = Some(46743);
    }),
    (Liveness::DeadPidReused, "a thread with other ticks", |_, o| {
        o.pidfd = Some(PidfdOutcome::IsThread);
        o.stat = Ok(Ok(stat(b'S', 1, 78128)));
    }),
    (Liveness::UnknownUnreadable, "no machine", |r, _| r.machine.clear()),
    (Liveness::UnknownForeign, "other machine", |r, o| {
        r.machine = "other".into();
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNoProc, "no process table", |_, o| o.table = Table::Unreadable),
    (Liveness::UnknownNoProc, "no boot id of ours", |_, o| o.boot = None),
    (Liveness::UnknownNoBootId, "no boot in the record", |r, o| {
        r.boot = None;
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownEphemeral, "ephemeral", |r, o| {
        r.ephemeral = true;
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNoPid, "no pid", |r, _| r.pid = None),
    (Liveness::UnknownNoPid, "pid 0", |r, _| r.pid = Some(0)),
    (Liveness::UnknownNoPid, "beyond pid_t", |r, o| {
        r.pid = Some(u32::MAX);
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNoStartTicks, "no ticks", |r, o| {
        r.ticks = None;
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownState, "denied", |_, o| o.stat = Ok(Err(Absent::Denied))),
    (Liveness::UnknownState, "unparsable", |_, o| o.stat = Err("damaged".into())),
    (Liveness::UnknownState, "no such state", |_, o| o.stat = Ok(Ok(stat(b'q', 1, 78127)))),
    (Liveness::UnknownProbe, "out of descriptors", |_, o| {
        o.pidfd = Some(PidfdOutcome::Failed(24));
        o.stat = Ok(Err(Absent::Gone));
    }),
    (Liveness::UnknownIdentity, "a thread with the same ticks", |_, o| {
        o.pidfd = Some(PidfdOutcome::IsThread);
    }),
    (Liveness::UnknownHidden, "hidden", |_, o| o.stat = Ok(Err(Absent::Gone))),
    (Liveness::UnknownNamespace, "other pid namespace", |r, o| {
        r.pidns = Some(7);
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNamespace, "a table of another pid namespace", |_, o| {
        o.table = Table::Foreign;
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNamespace, "other time namespace", |_, o| {
        o.timens = Some(7);
        o.stat = Ok(Ok(stat(b'S', 1, 100_078_127)));
    }),
    (Liveness::UnknownNamespace, "old record read in a time namespace", |r, o| {
        (r.timens, o.timens) = (None, Some(7));
        o.stat = Ok(Ok(stat(b'S', 1, 100_078_127)));
    }),
    (Liveness::UnknownClock, "boottime went back", |r, o| {
        r.seen_boottime_ms = Some(1_000_001);
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownNamespace, "an earlier clock, which is another namespace's", |r, o| {
        (r.seen_boottime_ms, o.timens) = (Some(1_000_001), Some(7));
    }),
    // Records with a stamp and no identity.
    (Liveness::Alive, "started before the stamp", |r, o| (*r, *o) = stamped(-2021)),
    (Liveness::UnknownIdentity, "reaches into the band", |r, o| (*r, *o) = stamped(-2020)),
    (Liveness::UnknownIdentity, "on the edge of the band", |r, o| (*r, *o) = stamped(2000)),
    (Liveness::DeadPidReused, "started after the stamp", |r, o| (*r, *o) = stamped(2001)),
    (Liveness::DeadNoProcess, "zombie beside a stamp", |r, o| {
        (*r, *o) = stamped(0);
        o.stat = Ok(Ok(stat(b'Z', 1, 78127)));
    }),
    (Liveness::DeadNoProcess, "ESRCH beside a stamp", |r, o| {
        (*r, *o) = stamped(0);
        o.pidfd = Some(PidfdOutcome::NoProcess);
    }),
    (Liveness::UnknownIdentity, "stamp unreadable", |r, o| {
        (*r, *o) = stamped(-9000);
        (r.ts_ms, r.ts_unreadable) = (None, true);
    }),
    (Liveness::UnknownIdentity, "start unreadable", |r, o| {
        (*r, *o) = stamped(-9000);
        o.start = None;
    }),
    (Liveness::UnknownProbe, "no table beside a stamp", |r, o| {
        (*r, *o) = stamped(-9000);
        o.table = Table::Unreadable;
    }),
    (Liveness::Alive, "no boot id on this kernel, stamp", |r, o| {
        (*r, *o) = stamped(-9000);
        o.boot = None;
    }),
    (Liveness::UnknownIdentity, "same inode, but the boot is unknown", |r, o| {
        (*r, *o) = stamped(0);
        r.pidfs_ino = Some(46744);
    }),
];

#[test]
fn every_case_has_its_verdict() {
    for (expected, name, change) in CASES {
        let (mut recorded, mut observed) = alive();
        change(&mut recorded, &mut observed);
        let judged = decide(&recorded, &observed);
        assert_eq!(judged.verdict, *expected, "{name}: {}", judged.reason);
        assert!(!judged.reason.is_empty(), "{name}");
    }
}

#[test]
fn every_verdict_has_a_case_and_one_spelling() {
    for member in Liveness::ALL {
        assert!(CASES.iter().any(|(verdict, ..)| verdict == member), "{member}");
        assert_eq!(member.is_dead(), member.as_str().starts_with("DEAD-"));
        assert_eq!(member.is_unknown(), member.as_str().starts_with("UNKNOWN-"));
    }
    assert_eq!(Liveness::ALL.len(), 19);
}

#[test]
fn the_start_window_is_as_wide_as_the_tick_and_the_pause() {
    // 100 ticks a second, up 10 s, started at tick 300: 7 s ago, one tick wide.
    let at_once = window(300, 100, 10_000, 1_000_000, 10_000).unwrap();
    assert_eq!(at_once, StartWindow { earliest_ms: 993_000, latest_ms: 993_010 });
    let paused = window(300, 100, 10_000, 1_000_000, 15_000).unwrap();
    assert_eq!(paused, StartWindow { earliest_ms: 988_000, latest_ms: 993_010 });
    assert_eq!(window(u64::MAX, 100, 0, 0, 0), None);
}

#[expect(clippy::disallowed_methods, reason = "tests start real processes")]
fn sleeper() -> Child {
    Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap()
}

/// Kills it and returns once it is a zombie.
fn make_zombie(child: &mut Child) {
    child.kill().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT).unwrap();
}

fn record_of(pid: u32) -> Recorded {
    Recorded::of(&resolve(&Root::live(), pid, "box", "flow").unwrap().identity)
}

fn verdict(recorded: &Recorded) -> Liveness {
    judge(&Root::live(), recorded, "box").verdict
}

#[test]
fn a_real_process_lives_is_a_zombie_and_is_gone() {
    let mut child = sleeper();
    let whole = record_of(child.id());
    // Once as a newer kernel records it, once as the predecessor's lane lock does.
    let lock = Recorded { pidns: None, timens: None, pidfs_ino: None, ..whole.clone() };
    for recorded in [&whole, &lock] {
        assert_eq!(verdict(recorded), Liveness::Alive);
        let reused = Recorded {
            ticks: recorded.ticks.map(|ticks| ticks + 1),
            pidfs_ino: recorded.pidfs_ino.map(|ino| ino + 1),
            ..recorded.clone()
        };
        assert_eq!(verdict(&reused), Liveness::DeadPidReused);
        let rebooted = Recorded { boot: Some(OTHER_BOOT.parse().unwrap()), ..recorded.clone() };
        assert_eq!(verdict(&rebooted), Liveness::DeadReboot);
        let foreign = Recorded { machine: "other".into(), ..recorded.clone() };
        assert_eq!(verdict(&foreign), Liveness::UnknownForeign);
        let elsewhere = Recorded { pidns: Some(7), ..recorded.clone() };
        assert_eq!(verdict(&elsewhere), Liveness::UnknownNamespace);
    }
    make_zombie(&mut child);
    for recorded in [&whole, &lock] {
        assert_eq!(verdict(recorded), Liveness::DeadNoProcess);
    }
    child.wait().unwrap();
    for recorded in [&whole, &lock] {
        assert_eq!(verdict(recorded), Liveness::DeadNoProcess);
    }
}

#[test]
fn a_stamp_is_judged_by_the_real_start() {
    let mut child = sleeper();
    let stamped = |ts_ms| Recorded {
        machine: "box".into(),
        pid: Some(child.id()),
        ts_ms: Some(ts_ms),
        ..Recorded::default()
    };
    let now = observe(&Root::live(), &stamped(0), "box").start.unwrap();
    assert!((0..=200).contains(&(now.latest_ms - now.earliest_ms)), "{now:?}");
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Realtime).tv_sec * 1000;
    assert!((now.earliest_ms - clock).abs() < 60_000, "{now:?} at {clock}");
    assert_eq!(verdict(&stamped(now.earliest_ms)), Liveness::UnknownIdentity);
    assert_eq!(verdict(&stamped(now.latest_ms + 60_000)), Liveness::Alive);
    assert_eq!(verdict(&stamped(now.earliest_ms - 60_000)), Liveness::DeadPidReused);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn we_are_ourselves_and_nobody_else() {
    let root = Root::live();
    let me = resolve(&root, std::process::id(), "box", "flow").unwrap().identity;
    assert_eq!(judge_as(&root, &Recorded::of(&me), &me).verdict, Liveness::OurSelf);
    let other_actor = Recorded { actor: Some("other".into()), ..Recorded::of(&me) };
    assert_eq!(judge_as(&root, &other_actor, &me).verdict, Liveness::Alive);
}

#[test]
fn a_real_thread_is_no_process() {
    let (told, heard) = std::sync::mpsc::sync_channel(1);
    let (done, wait) = std::sync::mpsc::sync_channel::<()>(1);
    let thread = std::thread::spawn(move || {
        told.send(rustix::thread::gettid()).unwrap();
        wait.recv().unwrap();
    });
    let tid = u32::try_from(heard.recv().unwrap().as_raw_nonzero().get()).unwrap();
    let root = Root::live();
    let ticks = crate::identity::stat(&root, tid).unwrap().unwrap().start_ticks;
    let recorded = Recorded {
        pid: Some(tid),
        ticks: Some(ticks),
        pidfs_ino: None,
        ..record_of(std::process::id())
    };
    assert_eq!(verdict(&recorded), Liveness::UnknownIdentity);
    done.send(()).unwrap();
    thread.join().unwrap();
}

#[test]
fn a_captured_tree_kills_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = sleeper();
    let recorded = record_of(child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    let judged = judge(&Root::at(dir.path()), &recorded, "box");
    assert_eq!(judged.verdict, Liveness::UnknownNoProc);
}

fn outcome() -> impl Strategy<Value = Option<PidfdOutcome>> {
    prop_oneof![
        Just(None),
        Just(Some(PidfdOutcome::Denied)),
        Just(Some(PidfdOutcome::IsThread)),
        any::<i32>().prop_map(|errno| Some(PidfdOutcome::Failed(errno))),
        Just(Some(PidfdOutcome::Opened { ino: None, exited: false })),
    ]
}

proptest! {
    /// Damage of the process table's line: a verdict of death needs a whole line that says so.
    #[test]
    fn garbage_kills_nobody(bytes in proptest::collection::vec(any::<u8>(), 0..300), pidfd in outcome()) {
        let (recorded, observed) = alive();
        let read = parse_stat(&bytes).map(Ok).map_err(|error| error.to_string());
        prop_assume!(read.is_err());
        let judged = decide(&recorded, &Observed { pidfd, stat: read, ..observed });
        prop_assert!(judged.verdict.is_unknown(), "{:?}", judged);
    }

    /// Missing parts on either side never turn into death while the kernel affirms the process and its line is ours.
    #[test]
    fn what_is_missing_kills_nobody(parts in any::<[bool; 12]>(), pidfd in outcome(), ts in proptest::option::of(any::<i64>())) {
        let (mut recorded, mut observed) = alive();
        observed.pidfd = pidfd;
        if parts[0] { recorded.boot = None }
        if parts[1] { recorded.ticks = None }
        if parts[2] { recorded.pid = None }
        if parts[3] { recorded.pidns = None }
        if parts[4] { recorded.timens = None }
        if parts[5] { observed.boot = None }
        if parts[6] { observed.pidns = None }
        if parts[7] { observed.timens = None }
        if parts[8] { observed.stat = Ok(Err(Absent::Gone)) }
        if parts[9] { observed.stat = Ok(Err(Absent::Denied)) }
        if parts[10] { observed.table = Table::Unreadable }
        recorded.ts_ms = ts;
        recorded.ts_unreadable = parts[11];
        let judged = decide(&recorded, &observed);
        prop_assert!(!judged.verdict.is_dead(), "{:?}", judged);
    }
}
