//! `claims reap --sweep`: the whole fleet judged at once.

use super::{Said, Sleeper, World, ago};

const NO_PR: &str = "exit 1";

fn sweep(world: &World, args: &[&str], hook: &str) -> Said {
    let args = [&["claims", "reap", "--sweep"], args].concat();
    world.run_with("box-a", &args, &[("CLAIM_OPEN_PR_CMD", hook)])
}

fn plant(world: &World, name: &str, issue: &str, rest: &str, seconds: u64) -> String {
    world.plant(name, &format!("claim issue={issue} {rest} ts={}", ago(seconds)))
}

fn row(said: &Said, name: &str) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    let claims = all.get("claims").and_then(|claims| claims.as_array()).unwrap();
    claims
        .iter()
        .find(|claim| claim["ref"] == name)
        .unwrap_or_else(|| panic!("{name}: {said:?}"))
        .clone()
}

#[test]
fn what_is_due_goes_in_one_push_and_the_rest_says_why_not() {
    let world = World::new();
    let live = Sleeper::start(world.dir.path());
    let mut dead = Sleeper::start(world.dir.path());
    let (live_pid, dead_pid) = (format!("pid={}", live.pid()), format!("pid={}", dead.pid()));
    dead.end();
    let old = 20_000;
    let cases = [
        ("refs/lane-claims/box-b/900", "900", "pid=1", old, "removed", "stale-foreign"),
        ("refs/lane-claims/box-a/901", "901", dead_pid.as_str(), old, "removed", "stale-dead"),
        ("refs/machine-claims/box-c", "902", "pid=1", old, "removed", "stale-foreign"),
        ("refs/heartbeats/box-d", "903", "machine=box-d", old, "removed", "stale-foreign"),
        ("refs/heartbeats/box-a", "903", "machine=box-a", old, "kept", "keep-no-pid"),
        ("refs/lane-claims/box-a/904", "904", live_pid.as_str(), old, "kept", "keep-process"),
        ("refs/lane-claims/box-b/905", "905", "pid=1", 14_000, "kept", "keep-fresh"),
        ("refs/lane-claims/box-b/906", "906", "pid=1", old, "kept", "keep-open-pr"),
        ("refs/lane-claims/box-b/p1-ab", "7", "pid=1", old, "kept", "keep-placeholder"),
    ];
    for (name, issue, rest, seconds, _, _) in cases {
        plant(&world, name, issue, rest, seconds);
    }
    world.plant("refs/claims/issue-900", "claim issue=900 machine=box-b actor=flow");
    // The remote sees one push: its hook runs once.
    let pushes = world.dir.path().join("pushes");
    world.hook("pre-receive", &format!("cat >/dev/null; echo x >>'{}'", pushes.display()));
    let hook = "test $1 = 906";
    let dry = sweep(&world, &["--dry-run", "--json"], hook);
    dry.is(0, &[]);
    assert_eq!(row(&dry, "refs/lane-claims/box-b/900")["done"], "would-remove");
    assert_eq!(world.refs().len(), cases.len() + 1);
    assert!(!pushes.exists());
    let said = sweep(&world, &["--json"], hook);
    said.is(0, &[]);
    for (name, _, _, _, done, reason) in cases {
        let row = row(&said, name);
        assert_eq!((&row["done"], &row["reason"]), (&done.into(), &reason.into()), "{name}");
        assert_eq!(world.at(name).is_some(), done == "kept", "{name}");
    }
    assert!(world.at("refs/claims/issue-900").is_some(), "issue locks are no claims of life");
    assert_eq!(std::fs::read_to_string(&pushes).unwrap(), "x\n");
    sweep(&world, &["--threshold", "10000"], NO_PR)
        .is(0, &["refs/lane-claims/box-b/905", "removed"]);
}

#[test]
fn what_cannot_be_told_is_kept_and_makes_the_job_fail() {
    let world = World::new();
    for (name, rest) in [
        ("refs/lane-claims/box-b/007", "ts=2020-01-01T00:00:00Z"),
        ("refs/lane-claims/8", "ts=2020-01-01T00:00:00Z"),
        ("refs/machine-claims/box-b", "issue=0 ts=2020-01-01T00:00:00Z"),
        ("refs/lane-claims/box-b/9", "ts=yesterday"),
    ] {
        world.plant(name, &format!("claim pid=1 {rest}"));
        let said = sweep(&world, &[], NO_PR);
        said.is(1, &[name, "kept"]);
        assert!(world.at(name).is_some(), "{said:?}");
        world.remote.find_reference(name).unwrap().delete().unwrap();
    }
    let name = "refs/lane-claims/box-b/10";
    plant(&world, name, "10", "pid=1", 20_000);
    sweep(&world, &[], "exit 7").is(1, &[name, "keep-open-pr-unknown"]);
    assert!(world.at(name).is_some());
    // A poisoned record stands alone; what is due beside it still goes.
    let bad = plant(&world, "refs/lane-claims/box-b/11", "11", "pid=1", 20_001);
    world.poison(&bad);
    sweep(&world, &[], NO_PR).is(1, &["removed", "keep-unreadable"]);
    assert_eq!(world.refs(), ["refs/lane-claims/box-b/11"]);
}

#[test]
fn nothing_goes_when_the_listing_failed_or_was_cut_short() {
    let world = World::new();
    let name = "refs/lane-claims/box-b/900";
    plant(&world, name, "900", "pid=1", 20_000);
    world.fault("fetch", "all", "exit 128");
    world.fault("ls-remote", "all", "exit 128");
    let said = sweep(&world, &[], NO_PR);
    said.is(1, &[]);
    assert!(said.err.contains("nothing is removed") && said.out.is_empty(), "{said:?}");
    world.mend();
    // The first fetch fails, the listing answers, and of the halves one is read and one meets a refusal for good.
    plant(&world, "refs/lane-claims/box-b/901", "901", "pid=1", 20_000);
    world.fault("fetch", "1", "exit 128");
    world.fault("fetch", "2", "exit 128");
    world.fault("fetch", "4", "echo 'fatal: Authentication failed for x' >&2; exit 128");
    let said = sweep(&world, &["--json"], NO_PR);
    said.is(1, &["\"whole\": false"]);
    assert!(said.err.contains("nothing is removed"), "{said:?}");
    assert_eq!(world.refs().len(), 2);
    world.mend();
    sweep(&world, &[], NO_PR).is(0, &["removed"]);
    assert!(world.refs().is_empty());
    sweep(&world, &[], NO_PR).is(0, &["no claims found on"]);
}

#[test]
fn a_claim_that_is_renewed_meanwhile_stays_and_a_lost_answer_is_looked_up() {
    let world = World::new();
    let name = "refs/lane-claims/box-b/900";
    plant(&world, name, "900", "pid=1", 20_000);
    let newer = plant(&world, "refs/other/x", "900", "pid=1", 1);
    let renew = format!("git -C '{}' update-ref {name} {newer}", world.remote.path().display());
    // The question about pull requests comes between reading and removing.
    sweep(&world, &[], &format!("{renew}; exit 1")).is(0, &["moved"]);
    assert_eq!(world.at(name), Some(newer));
    plant(&world, name, "900", "pid=1", 20_000);
    world.fault("push", "1", "exit 128");
    sweep(&world, &[], NO_PR).is(1, &["refused"]);
    assert!(world.at(name).is_some());
    world.mend();
    world.fault("push", "1", "real \"$@\" >/dev/null 2>&1; exit 128");
    sweep(&world, &[], NO_PR).is(0, &["removed"]);
    assert_eq!(world.at(name), None);
    plant(&world, name, "900", "pid=1", 20_000);
    world.mend();
    world.hook("update", "exit 1");
    sweep(&world, &[], NO_PR).is(1, &["refused"]);
}

#[test]
fn the_two_forms_do_not_mix() {
    let world = World::new();
    for args in [
        &["claims", "reap"][..],
        &["claims", "reap", "box-a", "--sweep"],
        &["claims", "reap", "box-a", "--dry-run"],
        &["claims", "reap", "box-a", "900", "--json"],
        &["claims", "reap", "--dry-run"],
        &["claims", "reap", "--sweep", "--threshold", "soon"],
    ] {
        world.run("box-a", args).is(64, &[]);
    }
    world.run("box-a", &["claims", "reap", "--help"]).is(0, &["--sweep: 0 every claim"]);
}

#[test]
fn a_clone_of_this_box_keeps_its_claims() {
    let world = World::new();
    let boot = "boot=11111111-2222-3333-4444-555555555555 ticks=5 pid=1";
    let no_pr = [("CLAIM_OPEN_PR_CMD", NO_PR)];
    let issue = "refs/lane-claims/box-a/900";
    let placeholder = "refs/lane-claims/box-a/p1-ab";
    for (name, lane) in [(issue, "900"), (placeholder, "p1-ab")] {
        plant(&world, name, "900", boot, 0);
        let said = world.run_with("box-a", &["claims", "reap", "box-a", lane], &no_pr);
        said.is(1, &[]);
        assert!(said.err.contains("two boxes bear the name"), "{said:?}");
        assert!(world.at(name).is_some());
        // The same record from before this boot is our own past.
        world.plant(name, &format!("claim issue=900 {boot} ts=2001-01-01T00:00:00Z"));
        world.run_with("box-a", &["claims", "reap", "box-a", lane], &no_pr).is(0, &[]);
    }
    plant(&world, issue, "900", boot, 0);
    let up = std::fs::read_to_string("/proc/uptime").unwrap();
    let up: f64 = up.split(' ').next().unwrap().parse().unwrap();
    if up > 120.0 {
        plant(&world, issue, "900", boot, 30);
        sweep(&world, &["--threshold", "10"], NO_PR).is(0, &["kept", "keep-other-box"]);
        assert!(world.at(issue).is_some());
    }
    world.plant(issue, &format!("claim issue=900 {boot} ts=2001-01-01T00:00:00Z"));
    sweep(&world, &[], NO_PR).is(0, &["removed", "stale-dead"]);
}
