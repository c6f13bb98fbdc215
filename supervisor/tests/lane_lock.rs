//! The lane lock from outside: real processes and real users.

#![expect(
    clippy::disallowed_methods,
    reason = "this is test code, which the lints know only inside of test functions"
)]

mod executable_support;
mod lane_support;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use lane_support::{Roost, Said, Sleeper};

fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "still waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// How often a race is run: more often with `LANE_LOCK_ROUNDS=10`.
fn rounds(usual: u64) -> u64 {
    let times = std::env::var("LANE_LOCK_ROUNDS").ok().and_then(|text| text.parse().ok());
    usual * times.unwrap_or(1)
}

#[test]
fn a_lane_is_taken_verified_probed_lost_and_reclaimed() {
    let at = Roost::new();
    let (mut one, two) = (Sleeper::new(), Sleeper::new());
    at.lane(&["probe", "7"]).is(0, "FREE");
    assert!(!at.root().join(".lane-locks").exists(), "a probe writes nothing");

    let first = at.lane(&["acquire", "7", "--pid", &one.pid()]);
    first.is(0, "ACQUIRED");
    assert!(!at.root().join("lane-7").exists(), "the lane itself is never made");
    at.lane(&["acquire", "7", "--pid", &one.pid()]).is(0, "ACQUIRED (re-entrant)");
    at.lane(&["verify", "7", "--pid", &one.pid()]).is(0, "VERIFY-OK");
    at.lane(&["verify", "7", "--pid", &two.pid()]).is(2, "VERIFY-FAIL");

    let probe = at.lane(&["probe", "7", "--pid", &two.pid()]);
    probe.is(0, "HELD");
    assert_eq!((probe.field("liveness"), probe.field("holder-pid")), ("ALIVE", one.pid().as_str()));
    assert!(probe.out.trim_end().ends_with("/lane-7"), "the directory is last: {probe:?}");
    assert_eq!(at.lane(&["probe", "7", "--pid", &one.pid()]).field("liveness"), "SELF");
    assert_eq!(at.lane(&["probe", "7"]).field("our-identity"), "UNRESOLVED");

    let refused = at.lane(&["acquire", "7", "--pid", &two.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("holder-pid"), one.pid());
    at.lane(&["release", "7", "--pid", &two.pid()]).is(2, "RELEASE-REFUSED");
    at.lane(&["reclaim", "7", "--pid", &two.pid()]).is(2, "RECLAIM-LOST");

    one.kill();
    assert_eq!(at.lane(&["probe", "7"]).field("liveness"), "DEAD-NO-PROCESS");
    let second = at.lane(&["reclaim", "7", "--pid", &two.pid()]);
    second.is(0, "RECLAIMED");
    assert_eq!((first.field("epoch"), second.field("epoch")), ("1", "2"), "the epoch only grows");
    at.lane(&["release", "7", "--pid", &two.pid()]).is(0, "RELEASED");
    at.lane(&["release", "7", "--pid", &two.pid()]).is(0, "RELEASED (already free)");
    assert_eq!(at.lane(&["acquire", "7", "--pid", &two.pid()]).field("epoch"), "3");
}

#[test]
fn a_lease_binds_and_a_token_is_no_lease() {
    let at = Roost::new();
    let (one, two) = (Sleeper::new(), Sleeper::new());
    let old = at.lane(&["acquire", "7", "--pid", &one.pid()]).field("lease").to_owned();
    at.lane(&["release", "7", "--pid", &one.pid()]).is(0, "RELEASED");
    let new = at.lane(&["acquire", "7", "--pid", &one.pid()]).field("lease").to_owned();
    assert_ne!(old, new);
    let reclaim = |expect: &str, pid: &Sleeper| {
        at.lane(&["reclaim", "7", "--pid", &pid.pid(), "--expect", expect, "--reason", "it hangs"])
    };
    reclaim(&old, &two).is(2, "RECLAIM-LOST");
    reclaim("none", &two).is(2, "RECLAIM-LOST");
    reclaim(&old, &one).is(0, "RECLAIM-LEASE-MISMATCH");
    reclaim(&new, &one).is(0, "RECLAIMED (re-entrant)");
    at.lane(&["release", "7", "--force", "--expect", &old]).is(2, "RELEASE-LOST");
    reclaim(&new, &two).is(0, "RECLAIMED");
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    reclaim(&new, &two).is(2, "RECLAIM-LOST");
    reclaim("none", &two).is(0, "RECLAIMED");
}

#[test]
fn two_issues_cannot_share_a_directory_nor_two_directories_an_issue() {
    let at = Roost::new();
    let (one, two) = (Sleeper::new(), Sleeper::new());
    let dir = at.root().join("a lane *[x]");
    fs::create_dir(&dir).unwrap();
    std::os::unix::fs::symlink(&dir, at.root().join("alias")).unwrap();
    let dir = dir.to_str().unwrap();
    let taken = at.lane(&["acquire", "7", "--dir", dir, "--pid", &one.pid()]);
    taken.is(0, "ACQUIRED");
    assert!(taken.out.trim_end().ends_with(&format!("lane-dir={dir}")), "{taken:?}");

    let alias = at.root().join("alias/../alias/");
    let other = at.lane(&["acquire", "8", "--dir", alias.to_str().unwrap(), "--pid", &two.pid()]);
    other.is(2, "OCCUPIED");
    assert_eq!(other.field("reason"), "same-lane-dir-other-issue");
    assert_eq!(other.field("conflicting-issue"), "7");
    let moved = at.lane(&["acquire", "7", "--pid", &one.pid()]);
    moved.is(2, "OCCUPIED");
    assert_eq!(moved.field("reason"), "reentrant-lane-dir-mismatch");
    at.lane(&["acquire", "7", "--pid", &two.pid()]).is(2, "OCCUPIED");
    at.lane(&["verify", "7", "--pid", &one.pid()]).is(0, "VERIFY-OK");
}

#[test]
fn wrong_questions_are_64_and_print_no_verdict() {
    let at = Roost::new();
    let mut gone = Sleeper::new();
    let live = Sleeper::new();
    gone.kill();
    let (gone, live) = (gone.pid(), live.pid());
    let cases: [&[&str]; 16] = [
        &["acquire", "0"],
        &["acquire", "07"],
        &["acquire", "+7"],
        &["acquire", "-7"],
        &["acquire", "99999999999999999999"],
        &["acquire", "x"],
        &["acquire"],
        &["acquire", "7", "--pid", "0"],
        &["acquire", "7", "--pid", &gone],
        &["acquire", "7", "--pid", &live, "--dir", "relative"],
        &["acquire", "7", "--pid", &live, "--dir", "/with\nbreak"],
        &["acquire", "7", "--pid", &live, "--actor", "\u{e4}\u{e4}"],
        &["reclaim", "7", "--pid", &live, "--expect", "", "--reason", "it hangs"],
        &["reclaim", "7", "--pid", &live, "--expect", "none"],
        &["reclaim", "7", "--pid", &live, "--reason", "todo"],
        &["reclaim", "7", "--pid", &live, "--reason", "because of <why>"],
    ];
    for args in cases {
        let said = at.lane(args);
        assert!(
            said.code == 64 && said.out.is_empty() && !said.err.is_empty(),
            "{args:?}: {said:?}"
        );
    }
    let relative = at.command(&["status"]).env("LANE_ROOT", "lanes").output().unwrap();
    assert_eq!(Said::of(relative).code, 64);
    assert!(!at.root().join(".lane-locks").exists());
}

#[test]
fn the_outermost_process_inside_the_lane_holds_it_and_an_outsider_writes_nothing() {
    let at = Roost::new();
    let outside = at.lane(&["acquire", "7"]);
    outside.is(1, "ERROR");
    assert_eq!(outside.field("detail"), "no-durable-session-process");
    assert!(!at.root().join(".lane-locks").exists());

    let lane = at.root().join("lane-7");
    fs::create_dir(&lane).unwrap();
    let mut shell = Command::new("sh")
        .current_dir(&lane)
        .env("LANE_ROOT", at.root())
        .env("LANEWARDEN_CONFIG", at.root().join("none"))
        .env_remove("LANE_LOCK_PID")
        .args(["-c", "\"$0\" lane acquire 7; sh -c '\"$0\" lane acquire 7' \"$0\"; read line; :"])
        .arg(&at.program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(shell.stdout.take().unwrap()).lines();
    let pid = format!(" pid={} ", shell.id());
    let first = lines.next().unwrap().unwrap();
    assert!(first.contains("ACQUIRED issue") && first.contains(&pid), "{first}");
    assert!(first.contains("pid-scope=cwd-match"), "{first}");
    let nested = lines.next().unwrap().unwrap();
    assert!(nested.contains("ACQUIRED (re-entrant)") && nested.contains(&pid), "{nested}");
    shell.stdin.take().unwrap().write_all(b"\n").unwrap();
    shell.wait().unwrap();
    assert_eq!(at.lane(&["probe", "7"]).field("liveness"), "DEAD-NO-PROCESS");
}

#[test]
fn of_many_that_ask_at_once_one_wins() {
    let at = Roost::new();
    let racers: Vec<Sleeper> = (0..32).map(|_| Sleeper::new()).collect();
    for round in 1..=rounds(20) {
        let asked: Vec<Child> = racers
            .iter()
            .map(|racer| {
                let pid = racer.pid();
                let mut command = at.command(&["acquire", "7", "--pid", &pid]);
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let said: Vec<Said> =
            asked.into_iter().map(|child| Said::of(child.wait_with_output().unwrap())).collect();
        let winners = said.iter().filter(|one| one.code == 0).count();
        assert_eq!(winners, 1, "round {round}: {said:?}");
        assert!(said.iter().all(|one| matches!(one.code, 0 | 2)), "round {round}: {said:?}");
        at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    }
}

#[test]
fn whoever_is_killed_while_it_takes_a_lane_leaves_nothing_that_cannot_be_cleared() {
    let at = Roost::new();
    let holder = Sleeper::new();
    for round in 0..rounds(50) {
        let mut victim = at
            .command(&["acquire", "7", "--pid", &holder.pid()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Every round at another moment of its short life.
        thread::sleep(Duration::from_micros(round % 60 * 250));
        victim.kill().unwrap();
        victim.wait().unwrap();
        let next = at.lane(&["acquire", "7", "--pid", &holder.pid()]);
        assert_eq!(next.code, 0, "round {round}: {next:?}");
        at.lane(&["release", "7", "--pid", &holder.pid()]).is(0, "RELEASED");
    }
}

#[test]
fn a_stuck_process_is_named_after_a_bounded_wait() {
    let at = Roost::new();
    let holder = Sleeper::new();
    at.lane(&["acquire", "7", "--pid", &holder.pid()]).is(0, "ACQUIRED");
    let stuck = rusqlite::Connection::open(at.root().join(".lane-locks/locks.db")).unwrap();
    stuck.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let us = std::process::id().to_string();
    for args in [["release", "7", "--pid", &holder.pid()], ["probe", "7", "--pid", &holder.pid()]] {
        let start = Instant::now();
        let said = at.lane(&args);
        said.is(1, "ERROR");
        assert_eq!((said.field("reason"), said.field("held-by-pid")), ("infra", us.as_str()));
        assert!(said.field("waited-for").ends_with("locks.db"), "{said:?}");
        assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    }
}

#[test]
fn two_users_of_one_group_share_the_locks() {
    // Users can only be changed by root; elsewhere there is nothing to see.
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut at = Roost::new();
    let (one, two, group) = (61_001, 61_002, 61_003);
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    // A place that ordinary users reach, and a copy of the program that they may run.
    fs::set_permissions(at.root(), mode(0o755)).unwrap();
    let program = at.root().join("lanewarden");
    executable_support::executable(&program, &fs::read(&at.program).unwrap());
    let lanes = at.root().join("lanes");
    fs::create_dir(&lanes).unwrap();
    std::os::unix::fs::chown(&lanes, None, Some(group)).unwrap();
    fs::set_permissions(&lanes, mode(0o2770)).unwrap();
    at.program = program;
    let run = |user: u32, args: &[&str]| {
        // The harshest umask: the locks are shared all the same.
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask 077; exec \"$0\" lane \"$@\""])
            .arg(&at.program)
            .args(args)
            .current_dir("/")
            .env("LANE_ROOT", &lanes)
            .env("LANEWARDEN_CONFIG", lanes.join("no-configuration"))
            .uid(user)
            .gid(group);
        Said::of(command.output().unwrap())
    };
    let sleeper = |user: u32| {
        Sleeper(
            Command::new("sleep").arg("600").uid(user).gid(group).current_dir("/").spawn().unwrap(),
        )
    };
    let (mut first, second) = (sleeper(one), sleeper(two));
    run(one, &["acquire", "7", "--pid", &first.pid()]).is(0, "ACQUIRED");
    let refused = run(two, &["acquire", "7", "--pid", &second.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("liveness"), "ALIVE");
    run(two, &["acquire", "8", "--pid", &second.pid()]).is(0, "ACQUIRED");
    first.kill();
    run(two, &["acquire", "7", "--pid", &second.pid()]).is(0, "ACQUIRED (reclaimed)");
    run(one, &["verify", "7"]).is(2, "VERIFY-FAIL");
    let stranger = {
        let mut command = at.command(&["probe", "7"]);
        Said::of(command.env("LANE_ROOT", &lanes).uid(61_009).gid(61_009).output().unwrap())
    };
    stranger.is(1, "ERROR");
}

#[test]
fn records_of_the_shell_tools_are_respected_and_never_changed() {
    let at = Roost::new();
    let (mut theirs, ours) = (Sleeper::new(), Sleeper::new());
    let locks = at.root().join(".lane-locks");
    fs::create_dir(&locks).unwrap();
    let seen = at.lane(&["probe", "7", "--pid", &theirs.pid()]);
    seen.is(0, "FREE");
    // Another lane tells us how this process is recorded.
    let own = at.lane(&["acquire", "1", "--pid", &theirs.pid()]);
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let text = format!(
        "version=1\nissue=7\nlane-dir={}\nmachine={}\nactor=flow\npid={}\npid-scope=session\nboot-id={}\nstart-ticks={}\nacquired-epoch=1700000000\nnonce=1-2-3\n",
        at.root().join("lane-7").display(),
        own.field("machine"),
        theirs.pid(),
        boot.trim(),
        own.field("start-ticks"),
    );
    let record = locks.join("lane-7.lock");
    fs::write(&record, &text).unwrap();
    let probe = at.lane(&["probe", "7", "--pid", &ours.pid()]);
    probe.is(0, "HELD");
    assert_eq!((probe.field("liveness"), probe.field("holder-kind")), ("ALIVE", "predecessor"));
    assert_eq!(at.lane(&["probe", "7", "--pid", &theirs.pid()]).field("liveness"), "SELF");
    at.lane(&["acquire", "7", "--pid", &ours.pid()]).is(2, "OCCUPIED");
    let dir = at.root().join("lane-7");
    let shared = at.lane(&["acquire", "8", "--dir", dir.to_str().unwrap(), "--pid", &ours.pid()]);
    shared.is(2, "OCCUPIED");
    assert_eq!(shared.field("reason"), "same-lane-dir-other-issue");
    at.lane(&["release", "7", "--force"]).is(2, "RELEASE-REFUSED");
    assert_eq!(fs::read_to_string(&record).unwrap(), text);

    theirs.kill();
    at.lane(&["acquire", "7", "--pid", &ours.pid()]).is(0, "ACQUIRED");
    fs::write(locks.join("lane-9.lock"), "junk").unwrap();
    let partial = at.lane(&["acquire", "7", "--pid", &ours.pid()]);
    assert_eq!(partial.field("dir-guard"), "NOT-EXHAUSTIVE");
    at.lane(&["acquire", "9", "--pid", &ours.pid()]).is(2, "OCCUPIED");
    let status = at.lane(&["status", "--json"]);
    let all: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    assert_eq!(all.as_array().unwrap().last().unwrap()["scope"], "lock-takers-only");
}

#[test]
fn a_session_that_was_killed_by_force_leaves_its_lane_to_the_next() {
    let at = Roost::new();
    let lane = at.root().join("lane-7");
    fs::create_dir(&lane).unwrap();
    let mut holder = Sleeper::inside(&lane);
    at.lane(&["acquire", "7", "--pid", &holder.pid()]).is(0, "ACQUIRED");
    // Killed and not yet reaped: a zombie holds nothing, and may not take anything.
    holder.0.kill().unwrap();
    let probe = until("the zombie", || {
        let probe = at.lane(&["probe", "7"]);
        (probe.field("liveness") == "DEAD-NO-PROCESS").then_some(probe)
    });
    assert_eq!(probe.field("reclaimable"), "yes");
    assert_eq!(at.lane(&["acquire", "7", "--pid", &holder.pid()]).code, 64);
    let next = Sleeper::new();
    at.lane(&["acquire", "7", "--pid", &next.pid()]).is(0, "ACQUIRED (reclaimed)");
}

#[test]
fn sessions_and_a_daemon_see_one_lock() {
    use lanewarden::{
        ids::LaneId,
        lanes::lock::{LaneLocks, Taking},
        store::rows::OpenWorker,
    };
    use lanewarden_probes::{
        Root,
        identity::resolve,
        liveness::{Recorded, judge},
    };
    let at = Roost::new();
    let lane = at.root().join("lane-7");
    fs::create_dir(&lane).unwrap();
    let other = Sleeper::new();
    let taken = at.lane(&["acquire", "7", "--pid", &other.pid()]);
    let machine = taken.field("machine").to_owned();
    let identity = |pid| resolve(&Root::live(), pid, &machine, "warden").unwrap().identity;
    let us = Recorded::of(&identity(std::process::id()));
    let id = LaneId::new("lane-of-a-daemon").unwrap();
    let mut locks = LaneLocks::open(&at.root(), false).unwrap();
    let mut take =
        || locks.take(&lane, &id, &us, 1, |one| judge(&Root::live(), one, &machine)).unwrap();
    assert!(matches!(take(), Taking::Held(by) if by.contains("session")));
    at.lane(&["release", "7", "--pid", &other.pid()]).is(0, "RELEASED");
    assert_eq!(take(), Taking::Taken { epoch: 2 });

    // No worker yet: the warden holds it.
    let refused = at.lane(&["acquire", "7", "--pid", &other.pid()]);
    refused.is(2, "OCCUPIED");
    assert_eq!(refused.field("liveness"), "NO-WORKER");
    let worker = Sleeper::inside(&lane);
    let named = identity(worker.0.id());
    let open = OpenWorker {
        pid: named.pid,
        start_ticks: named.start_ticks.unwrap(),
        boot_id: named.boot_id.as_ref().unwrap().full().to_owned(),
        pidns: named.pidns,
        cgroup: None,
    };
    locks.name_worker(&lane, &open, &us, |one| judge(&Root::live(), one, &machine)).unwrap();
    let probe = at.lane(&["probe", "7", "--pid", &other.pid()]);
    assert_eq!(
        (probe.field("liveness"), probe.field("holder-pid")),
        ("ALIVE", worker.pid().as_str())
    );
    at.lane(&["release", "7", "--force"]).is(2, "RELEASE-REFUSED");
    // The worker itself may ask as the shell tools taught it.
    at.lane(&["acquire", "7", "--pid", &worker.pid()]).is(0, "ACQUIRED (re-entrant)");
    at.lane(&["verify", "7", "--pid", &worker.pid()]).is(0, "VERIFY-OK");
    at.lane(&["release", "7", "--pid", &worker.pid()]).is(0, "RELEASED");
    at.lane(&["acquire", "7", "--pid", &other.pid()]).is(2, "OCCUPIED");
    locks.release(&lane, &us, 2).unwrap();
    at.lane(&["acquire", "7", "--pid", &other.pid()]).is(0, "ACQUIRED");
}
