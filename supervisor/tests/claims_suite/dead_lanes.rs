//! `dead-lanes` over claims that no configured lane answers for. The verdicts on processes one by one, and lanes under a
//! warden, are tested end to end with the whole program.

use std::{
    fs,
    process::{Child, Command},
    time::{Duration, Instant},
};

use super::{Said, Sleeper, World, ago};

/// Was started long before any claim here.
const OLD_PID: &str = "1";

fn dead_lanes(world: &World, args: &[&str]) -> Said {
    let dir = world.dir.path();
    let config = dir.join("config.toml");
    let text = format!(
        "machine = \"box-a\"\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}/run\"\n[remote]\nurl = \"{1}\"\n[metrics]\nlisten = \"off\"\n",
        dir.display(),
        world.url
    );
    fs::write(&config, text).unwrap();
    let config = [("LANEWARDEN_CONFIG", config.to_str().unwrap())];
    world.run_with("box-a", &[&["dead-lanes"], args].concat(), &config)
}

/// The verdict of the one lane, and the exit code.
#[track_caller]
fn verdict(world: &World, lane: &str) -> (String, i32) {
    let said = dead_lanes(world, &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let rows = json.get("lanes").unwrap().as_array().unwrap();
    let row = rows.iter().find(|row| row.get("lane").unwrap() == lane);
    let row = row.unwrap_or_else(|| panic!("no {lane} in {said:?}"));
    (row.get("verdict").unwrap().as_str().unwrap().to_owned(), said.code)
}

fn stamp(world: &World, machine: &str, lane: &str, pid: &str, age: u64) -> String {
    let message = format!("claim issue={lane} machine={machine} pid={pid} ts={}", ago(age));
    world.plant(&format!("refs/lane-claims/{machine}/{lane}"), &message)
}

fn dead_pid(world: &World) -> String {
    let mut dead = Sleeper::start(world.dir.path());
    dead.end();
    dead.pid()
}

/// A child that has ended and is not waited for.
struct Zombie(Child);

impl Zombie {
    fn make() -> Self {
        let child = Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let start = Instant::now();
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
            std::thread::yield_now();
        }
        Self(child)
    }
}

impl Drop for Zombie {
    fn drop(&mut self) {
        self.0.wait().ok();
    }
}

#[test]
fn hb_22_a_young_claim_of_an_absent_process_is_dead_and_not_yet_reaped() {
    let world = World::new();
    stamp(&world, "box-a", "900", &dead_pid(&world), 30);
    let said = dead_lanes(&world, &[]);
    said.is(3, &["DEAD-NO-PROCESS", "box-a", "900"]);
    let hook = [("CLAIM_OPEN_PR_CMD", "exit 1")];
    world.run_with("box-a", &["claims", "should-reap", "box-a", "900", "14400"], &hook).is(1, &[]);
}

#[test]
fn hb_23_41_52_a_healthy_lane_among_foreign_ones_is_no_finding_and_no_clean_bill() {
    let world = World::new();
    stamp(&world, "box-a", "900", OLD_PID, 0);
    stamp(&world, "box-b", "901", &dead_pid(&world), 36_000);
    assert_eq!(verdict(&world, "900"), ("ALIVE".to_owned(), 1));
    assert_eq!(verdict(&world, "901"), ("UNKNOWN-FOREIGN".to_owned(), 1));
    let said = dead_lanes(&world, &["--certify"]);
    assert!(!said.out.contains("DEAD-") && said.code == 1, "{said:?}");
    assert!(said.err.contains("no clean bill"), "{said:?}");
}

#[test]
fn hb_26_34_76_without_a_pid_nothing_is_told() {
    let world = World::new();
    for token in ["", "pid=", "pid=1x", "pid=0", "pid=-1"] {
        let message = format!("claim issue=900 machine=box-a {token} ts={}", ago(30));
        world.plant("refs/lane-claims/box-a/900", &message);
        assert_eq!(verdict(&world, "900"), ("UNKNOWN-NO-PID".to_owned(), 1), "{token:?}");
    }
}

#[test]
fn hb_27_34_without_a_claim_of_this_box_nothing_was_measured() {
    let world = World::new();
    for foreign in [false, true] {
        if foreign {
            stamp(&world, "box-b", "901", "1", 30);
        }
        let said = dead_lanes(&world, &["--certify"]);
        said.is(1, &[]);
        assert!(!said.out.contains("ALIVE") && said.err.contains("no clean bill"), "{said:?}");
    }
}

#[test]
fn hb_31_56_74_what_cannot_be_read_is_told_beside_the_dead() {
    let world = World::new();
    let bad = stamp(&world, "box-a", "902", "1", 30);
    world.poison(&bad);
    assert_eq!(verdict(&world, "902"), ("UNKNOWN-UNREADABLE".to_owned(), 1));
    stamp(&world, "box-a", "900", &dead_pid(&world), 30);
    let said = dead_lanes(&world, &[]);
    said.is(3, &["DEAD-NO-PROCESS", "UNKNOWN-UNREADABLE", "902"]);
    assert!(said.err.contains("1 dead, 1 unknown"), "{said:?}");
}

#[test]
fn hb_35_a_number_that_somebody_else_has_now_is_dead() {
    let world = World::new();
    let mut other = Sleeper::start(world.dir.path());
    stamp(&world, "box-a", "900", &other.pid(), 7200);
    assert_eq!(verdict(&world, "900"), ("DEAD-PID-REUSED".to_owned(), 3));
    assert!(other.0.try_wait().unwrap().is_none(), "and it lives");
}

#[test]
fn hb_44_a_zombie_is_dead() {
    let world = World::new();
    let zombie = Zombie::make();
    stamp(&world, "box-a", "900", &zombie.0.id().to_string(), 0);
    dead_lanes(&world, &[]).is(3, &["DEAD-NO-PROCESS", "zombie"]);
}

#[test]
fn hb_52b_lanes_of_one_box_do_not_hide_one_another() {
    let world = World::new();
    stamp(&world, "box-a", "900", &dead_pid(&world), 30);
    stamp(&world, "box-a", "901", OLD_PID, 0);
    assert_eq!(verdict(&world, "900"), ("DEAD-NO-PROCESS".to_owned(), 3));
    assert_eq!(verdict(&world, "901"), ("ALIVE".to_owned(), 3));
}

#[test]
fn hb_28_29_40_69_a_report_that_cannot_be_made_is_no_report() {
    let world = World::new();
    stamp(&world, "box-a", "900", OLD_PID, 0);
    dead_lanes(&world, &["stray"]).is(64, &[]);
    dead_lanes(&world, &["--help"]).is(0, &["Usage"]);
    world.fault("fetch", "all", "echo 'warning: redirecting to x\ty' >&2");
    assert_eq!(verdict(&world, "900"), ("ALIVE".to_owned(), 1));
    world.mend();
    world.fault("version", "all", "echo git version 2.20.1; exit 0");
    let said = dead_lanes(&world, &[]);
    assert!(said.code == 1 && said.err.contains("git 2.29"), "{said:?}");
    assert!(!said.out.contains("ALIVE"), "{said:?}");
    world.mend();
    fs::remove_dir_all(world.remote.path()).unwrap();
    let said = dead_lanes(&world, &[]);
    assert!(said.code == 1 && said.err.contains("cannot be read"), "{said:?}");
}

#[test]
fn hb_82_locks_and_heartbeats_are_no_subject() {
    let world = World::new();
    let pid = dead_pid(&world);
    let record = |kind: &str, issue: &str| {
        format!("{kind} issue={issue} machine=box-a pid={pid} actor=flow ts={}", ago(36_000))
    };
    world.plant("refs/claims/issue-8801", &record("claim", "8801"));
    world.plant("refs/heartbeats/box-a", &record("heartbeat", "8803"));
    let said = dead_lanes(&world, &["--certify"]);
    said.is(1, &[]);
    for absent in ["8801", "8803", "DEAD-", "UNKNOWN-", "ALIVE"] {
        assert!(!said.out.contains(absent) && !said.err.contains(absent), "{absent} in {said:?}");
    }
    stamp(&world, "box-a", "8801", &pid, 36_000);
    dead_lanes(&world, &[]).is(3, &["DEAD-NO-PROCESS", "8801"]);
}
