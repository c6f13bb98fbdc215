//! Boxes in transition: locks that both kinds of tools see, other lock directories, and clocks that went back.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "this is test code, which the lints know only inside of test functions"
)]

mod lane_support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lane_support::{Roost, Sleeper};
use lanewarden::{
    ids::LaneId,
    lanes::lock::{LaneLocks, Taking},
    store::rows::OpenWorker,
};
use lanewarden_probes::{
    Root,
    identity::resolve,
    liveness::{Judged, Recorded, judge},
};

/// A lane root whose configuration has `[compat] shell = true`.
fn shared() -> (Roost, PathBuf) {
    let at = Roost::new();
    fs::write(
        at.root().join("no-configuration"),
        format!(
            "machine = \"box-a\"\nlane_root = {:?}\n[compat]\nshell = true\n",
            at.root().display().to_string()
        ),
    )
    .unwrap();
    let locks = at.root().join(".lane-locks");
    (at, locks)
}

/// A field of a record, as the shell tools read it.
fn shell_reads(record: &PathBuf, key: &str) -> String {
    let output =
        Command::new("sed").args(["-n", &format!("s/^{key}=//p")]).arg(record).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

#[test]
fn a_lock_has_its_image_from_its_taking_to_its_release() {
    let (at, locks) = shared();
    let record = locks.join("lane-7.lock");
    let (mut one, two) = (Sleeper::new(), Sleeper::new());
    let taken = at.lane(&["acquire", "7", "--pid", &one.pid()]);
    taken.is(0, "ACQUIRED");
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for (key, wanted) in [
        ("version", "1"),
        ("issue", "7"),
        ("machine", "box-a"),
        ("pid", &one.pid()),
        ("boot-id", boot.trim()),
        ("start-ticks", taken.field("start-ticks")),
        ("lane-dir", &at.root().join("lane-7").display().to_string()),
    ] {
        assert_eq!(shell_reads(&record, key), wanted, "{key}");
    }
    // The image is no second lock: the session comes back, a stranger is refused by the lock itself.
    at.lane(&["acquire", "7", "--pid", &one.pid()]).is(0, "ACQUIRED (re-entrant)");
    let refused = at.lane(&["acquire", "7", "--pid", &two.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("holder-kind"), "session");
    let rows = at.lane(&["status"]).out.lines().count();
    assert_eq!(rows, 2, "one lock and the summary");

    one.kill();
    at.lane(&["acquire", "7", "--pid", &two.pid()]).is(0, "ACQUIRED (reclaimed)");
    assert_eq!(shell_reads(&record, "pid"), two.pid());
    at.lane(&["release", "7", "--pid", &two.pid()]).is(0, "RELEASED");
    assert!(!record.exists());
}

#[test]
fn what_the_shell_tools_took_from_a_dead_session_is_theirs() {
    let (at, locks) = shared();
    let record = locks.join("lane-7.lock");
    let (mut ours, theirs, third) = (Sleeper::new(), Sleeper::new(), Sleeper::new());
    at.lane(&["acquire", "7", "--pid", &ours.pid()]).is(0, "ACQUIRED");
    let own = at.lane(&["acquire", "1", "--pid", &theirs.pid()]);
    ours.kill();
    // They find a dead holder in the image, and put their own record in its place.
    let text = fs::read_to_string(&record).unwrap();
    let text: String = text
        .lines()
        .map(|line| match line.split_once('=').unwrap() {
            ("pid", _) => format!("pid={}\n", theirs.pid()),
            ("start-ticks", _) => format!("start-ticks={}\n", own.field("start-ticks")),
            ("nonce", _) => "nonce=1-2-3\n".to_owned(),
            _ => format!("{line}\n"),
        })
        .collect();
    fs::write(&record, &text).unwrap();
    let refused = at.lane(&["acquire", "7", "--pid", &third.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(
        (refused.field("holder-kind"), refused.field("holder-pid")),
        ("predecessor", theirs.pid().as_str())
    );
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    assert_eq!(fs::read_to_string(&record).unwrap(), text, "a forced release of ours leaves it");
}

/// The daemon's side, as a warden that is this very process.
struct Warden {
    locks: LaneLocks,
    us: Recorded,
    lane: LaneId,
}

impl Warden {
    fn of(at: &Roost) -> Self {
        Self {
            locks: LaneLocks::open(&at.root(), true).unwrap(),
            us: recorded(std::process::id()),
            lane: LaneId::new("lane-7").unwrap(),
        }
    }

    fn take(&mut self, dir: &Path) -> Taking {
        self.locks.take(dir, &self.lane, &self.us, 1_000, judged).unwrap()
    }

    fn name(&mut self, dir: &Path, worker: &Sleeper) {
        let worker = recorded(worker.0.id());
        let open = OpenWorker {
            pid: worker.pid.unwrap(),
            start_ticks: worker.ticks.unwrap(),
            boot_id: worker.boot.as_ref().unwrap().full().to_owned(),
            pidns: worker.pidns,
            cgroup: None,
        };
        self.locks.name_worker(dir, &open, &self.us, judged).unwrap();
    }
}

fn recorded(pid: u32) -> Recorded {
    Recorded::of(&resolve(&Root::live(), pid, "box-a", "warden").unwrap().identity)
}

fn judged(one: &Recorded) -> Judged {
    judge(&Root::live(), one, "box-a")
}

#[test]
fn the_daemons_record_names_who_lives_and_overwrites_nobody() {
    let (at, locks) = shared();
    let lane = at.root().join("lane-7");
    fs::create_dir(&lane).unwrap();
    let record = locks.join("lane-7.lock");
    let us = std::process::id().to_string();
    let mut warden = Warden::of(&at);

    // A session of theirs holds the number for another directory.
    let theirs = Sleeper::new();
    let line = at.lane(&["acquire", "1", "--pid", &theirs.pid()]);
    let text = format!(
        "machine=box-a\nlane-dir=/elsewhere\npid={}\nboot-id={}\nstart-ticks={}\n",
        theirs.pid(),
        recorded(theirs.0.id()).boot.unwrap().full(),
        line.field("start-ticks")
    );
    fs::write(&record, &text).unwrap();
    assert!(matches!(warden.take(&lane), Taking::Held(_)));
    assert_eq!(fs::read_to_string(&record).unwrap(), text);
    drop(theirs);

    assert!(matches!(warden.take(&lane), Taking::Taken { .. }));
    assert_eq!(shell_reads(&record, "pid"), us, "no worker yet");
    let mut worker = Sleeper::inside(&lane);
    warden.name(&lane, &worker);
    assert_eq!(shell_reads(&record, "pid"), worker.pid());
    warden.locks.no_worker(&lane, &warden.us, judged).unwrap();
    assert_eq!(shell_reads(&record, "pid"), worker.pid(), "it lives, whoever says otherwise");
    worker.kill();
    warden.locks.no_worker(&lane, &warden.us, judged).unwrap();
    assert_eq!(shell_reads(&record, "pid"), us, "the warden keeps the lane between two workers");
    warden.locks.release(&lane, &warden.us, 2_000).unwrap();
    assert!(!record.exists());
}

#[test]
fn a_warden_that_adopts_a_worker_holds_its_lane() {
    let (at, _) = shared();
    let lane = at.root().join("lane-7");
    fs::create_dir(&lane).unwrap();
    let mut warden = Warden::of(&at);
    // The one before is dead: our number with another start.
    let before = Recorded { ticks: Some(1), pidfs_ino: None, ..warden.us.clone() };
    warden.locks.take(&lane, &warden.lane, &before, 1_000, judged).unwrap();
    let mut worker = Sleeper::inside(&lane);
    warden.name(&lane, &worker);
    worker.kill();
    warden.locks.no_worker(&lane, &warden.us, judged).unwrap();
    let stranger = Sleeper::new();
    let refused = at.lane(&["acquire", "7", "--pid", &stranger.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("liveness"), "NO-WORKER");
}

#[test]
fn an_image_that_cannot_be_written_takes_no_lane() {
    let (at, locks) = shared();
    let one = Sleeper::new();
    at.lane(&["acquire", "1", "--pid", &one.pid()]).is(0, "ACQUIRED");
    // Neither a file nor absent: nothing may be renamed over it.
    fs::create_dir_all(locks.join("lane-7.lock/x")).unwrap();
    let refused = at.lane(&["acquire", "7", "--pid", &one.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("liveness"), "UNKNOWN-UNREADABLE");
    let status = at.lane(&["status", "7"]).out;
    assert!(!status.contains("holder-kind=session"), "{status}");
}

#[test]
fn another_lock_directory_is_inspected_without_its_lanes() {
    let at = Roost::new();
    let one = Sleeper::new();
    at.lane(&["acquire", "7", "--pid", &one.pid()]).is(0, "ACQUIRED");
    let elsewhere = at.root().join("saved");
    fs::rename(at.root().join(".lane-locks"), &elsewhere).unwrap();
    let status = at.lane(&["status", "--lock-root", elsewhere.to_str().unwrap()]);
    status.is(0, "STATUS");
    assert_eq!((status.field("issue"), status.field("liveness")), ("7", "ALIVE"));
    assert!(!at.root().join(".lane-locks").exists(), "an inspection makes nothing");
    assert_eq!(at.lane(&["status", "--lock-root", "saved"]).code, 64, "relative");
}

#[test]
fn a_thread_of_the_kernel_holds_nothing() {
    let at = Roost::new();
    // kthreadd; a container may not show it.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.trim() == "kthreadd") {
        let refused = at.lane(&["acquire", "7", "--pid", "2"]);
        assert_eq!(refused.code, 64, "{refused:?}");
        assert!(refused.err.contains("kernel"), "{refused:?}");
    }
}

#[test]
fn a_clock_that_went_back_makes_records_meaningless_and_not_dead() {
    let at = Roost::new();
    let (mut one, two) = (Sleeper::new(), Sleeper::new());
    at.lane(&["acquire", "7", "--pid", &one.pid()]).is(0, "ACQUIRED");
    // What a snapshot finds that was resumed after the store on a shared disk went on: a later moment of the same boot.
    let store = rusqlite::Connection::open(at.root().join(".lane-locks/locks.db")).unwrap();
    let changed =
        store.execute("UPDATE lane_clock SET boottime_ms = boottime_ms + 3600000", []).unwrap();
    assert_eq!(changed, 1, "one boot, one time namespace");
    one.kill();
    let probe = at.lane(&["probe", "7", "--pid", &two.pid()]);
    assert_eq!(
        (probe.field("liveness"), probe.field("reclaimable")),
        ("UNKNOWN-CLOCK", "no"),
        "{probe:?}"
    );
    at.lane(&["acquire", "7", "--pid", &two.pid()]).is(2, "OCCUPIED");
    let lease = probe.field("lease").to_owned();
    let reason = ["--reason", "resumed from a snapshot"];
    let pid = two.pid();
    let args = ["reclaim", "7", "--pid", &pid, "--expect", &lease, reason[0], reason[1]];
    at.lane(&args).is(0, "RECLAIMED");
    at.lane(&["verify", "7", "--pid", &two.pid()]).is(0, "VERIFY-OK");
}
