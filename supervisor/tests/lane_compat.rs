//! Boxes in transition: locks that both kinds of tools see, other lock directories, and clocks that went back.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "this is test code, which the lints know only inside of test functions"
)]

mod lane_support;

use std::{fs, path::PathBuf, process::Command};

use lane_support::{Roost, Sleeper};

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
