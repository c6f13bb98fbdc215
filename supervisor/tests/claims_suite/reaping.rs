//! Judging and removing.

use super::{Said, Sleeper, World, ago};

const LANE: &str = "refs/lane-claims/box-a/900";
const LEGACY: &str = "refs/machine-claims/box-a";
const NO_PR: (&str, &str) = ("CLAIM_OPEN_PR_CMD", "exit 1");

fn claims(world: &World, args: &[&str], hook: &str) -> Said {
    world.run_with("box-a", &[&["claims"], args].concat(), &[("CLAIM_OPEN_PR_CMD", hook)])
}

fn lane(world: &World, pid: &str, seconds: u64) -> String {
    let ts = ago(seconds);
    world.plant(LANE, &format!("claim issue=900 machine=box-a pid={pid} ts={ts}"))
}

fn dead_pid(world: &World) -> String {
    let mut sleeper = Sleeper::start(world.dir.path());
    let pid = sleeper.pid();
    sleeper.end();
    pid
}

#[test]
fn hb_05_20_21_a_heartbeat_is_cleared_unless_a_pull_request_is_open() {
    let world = World::new();
    let plant = || world.plant("refs/heartbeats/box-a", "heartbeat issue=7 machine=box-a ts=x");
    plant();
    claims(&world, &["clear", "box-a"], "exit 0").is(3, &[]);
    claims(&world, &["clear", "box-a"], "exit 7").is(3, &[]);
    assert!(world.at("refs/heartbeats/box-a").is_some());
    claims(&world, &["clear", "box-a"], "test $1 != 7").is(0, &[]);
    assert_eq!(world.at("refs/heartbeats/box-a"), None);
    claims(&world, &["clear", "box-a"], "exit 1").is(0, &[]);
    world.plant("refs/heartbeats/box-a", "heartbeat issue=abc machine=box-a");
    claims(&world, &["clear", "box-a"], "exit 1").is(5, &[]);
}

#[test]
fn hb_11_13_14_15_17_only_a_stale_claim_of_a_dead_process_without_pull_request_goes() {
    let world = World::new();
    let judge = |hook| claims(&world, &["should-reap", "box-a", "900", "100"], hook);
    judge("exit 1").is(2, &[]);
    let live = Sleeper::start(world.dir.path());
    lane(&world, &live.pid(), 500);
    judge("exit 1").is(1, &[]);
    lane(&world, &dead_pid(&world), 50);
    judge("exit 1").is(1, &[]);
    lane(&world, &dead_pid(&world), 500);
    judge("exit 0").is(1, &[]);
    judge("exit 7").is(1, &[]);
    judge("exit 1").is(0, &[]);
    world.claims("box-a", &["should-reap", "box-a", "900", "100"]).is(1, &[]);
}

#[test]
fn hb_16_stamps_are_read_strictly() {
    let world = World::new();
    for ts in ["not-a-date", "now", "@0", "1", "2999-01-01T00:00:00Z"] {
        world.plant(LANE, &format!("claim issue=900 machine=box-b pid=1 ts={ts}"));
        claims(&world, &["should-reap", "box-a", "900", "1"], "exit 1").is(1, &[]);
    }
}

#[test]
fn hb_19_25_a_claim_with_an_open_pull_request_stays() {
    let world = World::new();
    let ts = ago(50_000);
    world.plant(LEGACY, &format!("claim issue=7 machine=box-a pid=1 ts={ts}"));
    claims(&world, &["reap", "box-a"], "exit 0").is(3, &[]);
    lane(&world, &dead_pid(&world), 500);
    claims(&world, &["reap", "box-a", "900"], "exit 0").is(3, &[]);
    assert!(world.at(LEGACY).is_some() && world.at(LANE).is_some());
    claims(&world, &["reap", "box-a"], "exit 1").is(0, &[]);
    claims(&world, &["reap", "box-a"], "exit 1").is(0, &[]);
    assert_eq!(world.at(LEGACY), None);
}

#[test]
fn hb_57_two_arguments_are_the_older_form() {
    let world = World::new();
    world.plant("refs/lane-claims/box-b/14400", &format!("claim pid=1 ts={}", ago(500)));
    claims(&world, &["should-reap", "box-b", "14400"], "exit 1").is(2, &[]);
    claims(&world, &["should-reap", "box-b", "14400", "100"], "exit 1").is(0, &[]);
    claims(&world, &["should-reap", "box-b", "x"], "exit 1").is(64, &[]);
    claims(&world, &["should-reap", "box-b", "007", "1"], "exit 1").is(64, &[]);
}

#[test]
fn hb_58b_61_79_a_placeholder_is_removed_by_its_owner_only() {
    let world = World::new();
    let name = "refs/lane-claims/box-a/p12-ab";
    let judge = || claims(&world, &["should-reap", "box-a", "p12-ab", "1"], "exit 1");
    judge().is(2, &[]);
    world.plant(
        name,
        &format!("claim issue=7 machine=box-a pid={} ts={}", dead_pid(&world), ago(500)),
    );
    judge().is(1, &[]);
    claims(&world, &["reap", "box-a", "p12-ab"], "exit 0").is(0, &[]);
    assert_eq!(world.at(name), None);
}

#[test]
fn hb_60_73_a_stale_lease_deletes_nothing() {
    let world = World::new();
    let old = lane(&world, "1", 500);
    let new = lane(&world, "2", 400);
    let reap = |oid: &str| claims(&world, &["reap", "box-a", "900", oid], "exit 1");
    reap(&old).is(4, &[]);
    assert_eq!(world.at(LANE), Some(new.clone()));
    reap("abc").is(64, &[]);
    world.fault("push", "all", "exit 128");
    reap(&new).is(1, &[]);
    world.mend();
    reap(&new).is(0, &[]);
    reap(&new).is(0, &[]);
    assert_eq!(world.at(LANE), None);
}

#[test]
fn hb_63_68_75_a_legacy_claim_without_a_readable_issue_stays() {
    let world = World::new();
    let reap = || claims(&world, &["reap", "box-a"], "exit 1");
    let judge = || claims(&world, &["should-reap", "box-a", "1"], "exit 1");
    for issue in ["", "issue=abc", "issue=0", "issue=007", "issue=12x"] {
        world.plant(LEGACY, &format!("claim {issue} machine=box-a pid=1 ts={}", ago(500)));
        judge().is(1, &[]);
        reap().is(5, &[]);
    }
    let oid = world.plant(LEGACY, &format!("claim issue=77 machine=box-a pid=9 ts={}", ago(400)));
    world.poison(&oid);
    reap().is(5, &[]);
    judge().is(1, &[]);
    assert!(world.at(LEGACY).is_some());
    world.plant(
        LEGACY,
        &format!("claim issue=4242 machine=box-a pid={} ts={}", dead_pid(&world), ago(300)),
    );
    judge().is(0, &[]);
    reap().is(0, &[]);
}

#[test]
fn hb_72_the_path_outranks_the_message() {
    let world = World::new();
    world.plant("refs/lane-claims/box-b/5555", &format!("claim issue=9999 pid=1 ts={}", ago(500)));
    let said = claims(&world, &["should-reap", "box-b", "5555", "1"], "test $1 = 5555");
    said.is(1, &[]);
    assert!(said.err.contains("5555") && !said.err.contains("9999"), "{said:?}");
}

#[test]
fn hb_78a_80_of_this_machine_only_affirmed_death_counts() {
    let world = World::new();
    let ts = ago(500);
    world.plant(LANE, &format!("claim issue=900 machine=box-a ts={ts}"));
    let judge = ["claims", "should-reap", "box-a", "900", "100"];
    world.run_with("box-a", &judge, &[NO_PR]).is(1, &[]);
    world.run_with("box-b", &judge, &[NO_PR]).is(0, &[]);
    // A zombie: ended, and not waited for.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id().to_string();
    let stat = format!("/proc/{pid}/stat");
    let started = std::time::Instant::now();
    while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
        assert!(started.elapsed().as_secs() < 10, "{}", std::fs::read_to_string(&stat).unwrap());
        std::thread::yield_now();
    }
    lane(&world, &pid, 500);
    world.run_with("box-a", &judge, &[NO_PR]).is(0, &[]);
    child.wait().unwrap();
}

#[test]
fn a_dead_worker_under_a_living_warden_is_the_wardens_to_restart() {
    let world = World::new();
    let warden = Sleeper::start(world.dir.path());
    world.claims("box-a", &["stamp", "900", &warden.pid()]).is(0, &[]);
    let message = world.message(LANE);
    let value = |key: &str| {
        message.split(' ').find_map(|token| token.strip_prefix(key)).unwrap().to_owned()
    };
    let (boot, ticks) = (value("boot="), value("ticks="));
    let plant = |warden: &str| {
        let dead = dead_pid(&world);
        world.plant(
            LANE,
            &format!("claim issue=900 machine=box-a pid={dead} ts={} boot={boot} ticks=1 warden={warden}", ago(500)),
        );
        claims(&world, &["should-reap", "box-a", "900", "100"], "exit 1")
    };
    plant(&format!("{}/{ticks}", warden.pid())).is(1, &[]);
    plant(&format!("{}/1", warden.pid())).is(0, &[]);
}
