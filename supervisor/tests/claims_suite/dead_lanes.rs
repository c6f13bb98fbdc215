//! `dead-lanes` on the claims of the remote, on a box without a daemon and without lanes of its own.

use std::fs;

use super::{Said, Sleeper, World, ago};

fn dead_lanes(world: &World) -> Said {
    let dir = world.dir.path();
    let config = dir.join("config.toml");
    let text = format!(
        "machine = \"box-a\"\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}/run\"\n[remote]\nurl = \"{1}\"\n[metrics]\nlisten = \"off\"\n",
        dir.display(),
        world.url
    );
    fs::write(&config, text).unwrap();
    world.run_with("box-a", &["dead-lanes"], &[("LANEWARDEN_CONFIG", config.to_str().unwrap())])
}

fn plant(world: &World, name: &str, rest: &str, seconds: u64) -> String {
    world.plant(name, &format!("claim {rest} ts={}", ago(seconds)))
}

#[test]
fn hb_22_26_31_34_52_a_dead_lane_is_found_beside_what_cannot_be_told() {
    let world = World::new();
    let mut dead = Sleeper::start(world.dir.path());
    let pid = dead.pid();
    dead.end();
    dead_lanes(&world).is(1, &[]);
    plant(&world, "refs/lane-claims/box-b/5", "issue=5 pid=1", 30);
    let foreign = dead_lanes(&world);
    assert!(foreign.code == 1 && !foreign.out.contains("DEAD-"), "{foreign:?}");
    plant(&world, "refs/lane-claims/box-a/901", "issue=901 machine=box-a", 30);
    dead_lanes(&world).is(1, &["901", "UNKNOWN-NO-PID"]);
    plant(&world, "refs/lane-claims/box-a/900", &format!("issue=900 pid={pid}"), 30);
    let bad = plant(&world, "refs/lane-claims/box-a/902", "issue=902 pid=1", 31);
    world.poison(&bad);
    dead_lanes(&world).is(3, &["box-a", "900", "DEAD-NO-PROCESS", "UNKNOWN-UNREADABLE"]);
    let keeps = ["claims", "should-reap", "box-a", "900", "14400"];
    world.run_with("box-a", &keeps, &[("CLAIM_OPEN_PR_CMD", "exit 1")]).is(1, &[]);
}

#[test]
fn hb_82_records_that_nobody_renews_are_not_read() {
    let world = World::new();
    let mut dead = Sleeper::start(world.dir.path());
    let pid = dead.pid();
    dead.end();
    plant(&world, "refs/claims/issue-8801", &format!("issue=8801 machine=box-a pid={pid}"), 30);
    plant(&world, "refs/heartbeats/box-a", &format!("issue=8803 machine=box-a pid={pid}"), 30);
    let said = dead_lanes(&world);
    assert_eq!(said.code, 1, "{said:?}");
    for word in ["8801", "8803", "DEAD-", "ALIVE"] {
        assert!(!said.out.contains(word), "{word}: {said:?}");
    }
    plant(&world, "refs/lane-claims/box-a/8801", &format!("issue=8801 pid={pid}"), 30);
    dead_lanes(&world).is(3, &["8801", "DEAD-NO-PROCESS"]);
}
