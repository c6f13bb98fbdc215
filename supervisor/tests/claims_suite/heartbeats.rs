//! Stamping and listing.

use std::fs;

use super::{Said, World, ago};

const LANE: &str = "refs/lane-claims/box-a/900";

#[test]
fn hb_01_02_07_a_heartbeat_is_one_ref_that_moves() {
    let world = World::new();
    world.claims("box-a", &["heartbeats"]).is(0, &["no heartbeats found on "]);
    world.claims("box-a", &["beat", "100"]).is(0, &[]);
    let first = world.at("refs/heartbeats/box-a").unwrap();
    let message = world.message("refs/heartbeats/box-a");
    assert!(message.starts_with("heartbeat issue=100 machine=box-a ts="), "{message}");
    world.claims("box-a", &["beat", "101"]).is(0, &[]);
    assert_eq!(world.refs(), ["refs/heartbeats/box-a"]);
    assert_ne!(world.at("refs/heartbeats/box-a").unwrap(), first);
}

#[test]
fn hb_04_the_age_is_that_of_the_message() {
    let world = World::new();
    let message = format!("heartbeat issue=7 machine=box-a ts={}", ago(36_000));
    world.plant("refs/heartbeats/box-a", &message);
    world.claims("box-a", &["heartbeats"]).is(0, &["MACHINE", "box-a", "10h"]);
}

#[test]
fn hb_06_a_checkout_is_left_alone() {
    let world = World::new();
    let repo = git2::Repository::init(world.dir.path().join("work")).unwrap();
    repo.remote("origin", &world.url).unwrap();
    let before = tree(repo.path());
    let run = |args: &[&str]| {
        super::said(
            world
                .command("box-a", args)
                .current_dir(repo.path().parent().unwrap())
                .env("CLAIM_REMOTE", "origin"),
        )
    };
    run(&["claims", "beat", "100"]).is(0, &[]);
    run(&["claims", "heartbeats"]).is(0, &["box-a"]);
    run(&["issue", "claim", "7"]).is(0, &["CLAIM: HELD issue=7"]);
    assert_eq!(tree(repo.path()), before);
    assert!(world.at("refs/claims/issue-7").is_some());
}

fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            names.extend(tree(&path));
        }
        names.push(path.display().to_string());
    }
    names.sort();
    names
}

#[test]
fn hb_09_10_a_stamp_is_a_lane_ref_and_no_legacy_one() {
    let world = World::new();
    let said = world.claims("box-a", &["stamp", "900", "4242"]);
    said.is(0, &[]);
    assert_eq!(Some(said.out.trim().to_owned()), world.at(LANE));
    let message = world.message(LANE);
    assert!(message.starts_with("claim issue=900 machine=box-a pid=4242 ts="), "{message}");
    assert_eq!(world.refs(), [LANE]);
    world.claims("box-a", &["list"]).is(0, &["box-a                900      4242 "]);
    world.claims("box-a-1-2", &["stamp", "900", "1"]).is(0, &[]);
    assert!(world.at("refs/lane-claims/box-a-1-2/900").is_some());
    let ours = std::process::id().to_string();
    world.claims("box-a", &["stamp", "900", &ours]).is(0, &[]);
    assert!(world.message(LANE).contains(" boot="), "a living process is named in full");
}

#[test]
fn hb_58_62_lane_ids_have_an_exact_form() {
    let world = World::new();
    for bad in ["0", "00", "pdead", "p-", "p", "pnotanumber", "007", "12x", ""] {
        world.claims("box-a", &["stamp", bad, "1"]).is(64, &[]);
    }
    world.claims("box-a", &["stamp", "7", "x"]).is(64, &[]);
    world.claims("box-a", &["stamp", "7", "0"]).is(64, &[]);
    assert!(world.refs().is_empty());
    for good in ["3367", "p123", "p123-abc12345"] {
        world.claims("box-a", &["stamp", good, "1"]).is(0, &[]);
    }
    assert_eq!(world.refs().len(), 3);
}

#[test]
fn a_stamp_or_beat_that_does_not_land_is_a_failure_and_deletes_nothing() {
    let world = World::new();
    let before = world.plant(LANE, "claim issue=900 machine=box-a pid=1 ts=2026-01-01T00:00:00Z");
    world.fault("push", "all", "echo 'fatal: unable to access' >&2; exit 128");
    let said = world.claims("box-a", &["stamp", "900", "4242"]);
    assert_eq!((said.code, said.out.as_str()), (1, ""), "{said:?}");
    world.claims("box-a", &["beat", "900"]).is(1, &[]);
    assert_eq!(world.at(LANE), Some(before));
    assert_eq!(world.refs(), [LANE]);
}

#[test]
fn a_clone_of_this_box_is_neither_stamped_over_nor_reaped() {
    const BEAT: &str = "refs/heartbeats/box-a";
    let twin = |ts: &str| {
        format!("machine=box-a pid=1 ts={ts} boot=11111111-2222-3333-4444-555555555555 ticks=5")
    };
    let ours = std::process::id().to_string();
    let hook = [("CLAIM_OPEN_PR_CMD", "exit 1")];
    let world = World::new();
    let lane = world.plant(LANE, &format!("claim issue=900 {}", twin(&ago(0))));
    let placeholder = "refs/lane-claims/box-a/p7-ab";
    world.plant(placeholder, &format!("claim issue=p7-ab {}", twin(&ago(0))));
    world.plant("refs/machine-claims/box-a", &format!("claim issue=900 {}", twin(&ago(0))));
    let beat = world.plant(BEAT, &format!("heartbeat issue=900 {}", twin(&ago(0))));
    let before = world.refs();
    for args in [
        &["stamp", "900", &ours][..],
        // Nobody has this number.
        &["stamp", "900", "2147483647"],
        &["beat", "900"],
        &["reap", "box-a"],
        &["reap", "box-a", "900"],
        &["reap", "box-a", "900", &lane],
        &["reap", "box-a", "p7-ab"],
        &["clear", "box-a"],
    ] {
        let said = world.run_with("box-a", &[&["claims"], args].concat(), &hook);
        said.is(1, &[]);
        for part in ["two boxes bear the name \"box-a\"", "another `machine`"] {
            assert!(said.err.contains(part), "{said:?}");
        }
        assert_eq!((world.at(LANE), world.at(BEAT)), (Some(lane.clone()), Some(beat.clone())));
        assert_eq!(world.refs(), before);
    }
    // A box that has got its own name removes what is left under the shared one.
    let clear = ["claims", "clear", "box-a"];
    world.run_with("box-b", &clear, &hook).is(0, &[]);
    assert_eq!(world.at(BEAT), None);
    // Of another boot and from before this one: our own past.
    let past = "2001-01-01T00:00:00Z";
    world.plant(LANE, &format!("claim issue=900 {}", twin(past)));
    world.plant(BEAT, &format!("heartbeat issue=900 {}", twin(past)));
    world.claims("box-a", &["stamp", "900", &ours]).is(0, &[]);
    world.claims("box-a", &["beat", "900"]).is(0, &[]);
    assert!(world.message(BEAT).contains(" boot="), "what tells a clone from us is in it");
    world.run_with("box-a", &["claims", "reap", "box-a", "900"], &hook).is(0, &[]);
    assert_eq!(world.at(LANE), None);
}

#[test]
fn a_stale_claim_of_a_clone_is_kept_by_reapers() {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    let up: u64 = text.split('.').next().unwrap().parse().unwrap();
    // Later than this boot began, and as old as can be.
    let age = up.saturating_sub(90).max(2);
    let world = World::new();
    let twin = format!(
        "claim issue=900 machine=box-a pid=2147483647 ts={} boot=11111111-2222-3333-4444-555555555555 ticks=5",
        ago(age)
    );
    world.plant(LANE, &twin);
    let hook = [("CLAIM_OPEN_PR_CMD", "exit 1")];
    let should = ["claims", "should-reap", "box-a", "900", "1"];
    let said = world.run_with("box-a", &should, &hook);
    // Within the first minute of a boot nobody can tell a clone from the past.
    if up > 95 {
        said.is(1, &[]);
        assert!(said.err.contains("keep-other-box") && said.err.contains("`machine`"), "{said:?}");
    }
    world.run_with("box-b", &should, &hook).is(0, &[]);
    if up > 95 {
        let sweep = ["claims", "reap", "--sweep", "--threshold", "1"];
        world.run_with("box-a", &sweep, &hook).is(0, &["keep-other-box"]);
        assert!(world.at(LANE).is_some());
    }
}

fn unreachable(said: &Said) {
    said.is(1, &[]);
    assert!(!said.out.contains("no claims") && !said.out.contains("no heartbeats"), "{said:?}");
    assert!(!said.err.is_empty(), "{said:?}");
}

#[test]
fn hb_29_64_a_remote_that_cannot_be_read_has_no_claims_to_tell_of() {
    let world = World::new();
    let nowhere = world.dir.path().join("nowhere.git");
    for remote in [nowhere.to_str().unwrap(), "nosuchremote"] {
        for args in [["claims", "list"], ["claims", "heartbeats"], ["issue", "smoke"]] {
            unreachable(&world.run_with("box-a", &args, &[("CLAIM_REMOTE", remote)]));
        }
        let reap = ["claims", "should-reap", "box-a", "7", "1"];
        world.run_with("box-a", &reap, &[("CLAIM_REMOTE", remote)]).is(1, &[]);
    }
    world.plant("refs/lane-claims/box-a/p12-ab", "claim issue=7 pid=3");
    world.claims("box-a", &["list"]).is(0, &["p12-ab"]);
}

#[test]
fn hb_40_warnings_of_git_are_no_rows() {
    let world = World::new();
    world.plant(LANE, "claim issue=900 machine=box-a pid=1 ts=2026-01-01T00:00:00Z");
    world.fault("fetch", "all", "echo 'warning: redirecting to x\ty' >&2");
    let said = world.claims("box-a", &["list"]);
    said.is(0, &["900"]);
    assert_eq!(said.out.lines().count(), 2, "{said:?}");
}

#[test]
fn hb_74_unreadable_rows_are_shown_and_make_the_list_incomplete() {
    let world = World::new();
    world.plant(
        "refs/lane-claims/box-a/901",
        "claim issue=901 machine=box-a pid=1 ts=2026-01-01T00:00:00Z",
    );
    world.claims("box-a", &["list"]).is(0, &["901"]);
    let bad = world.plant(LANE, "claim issue=900 machine=box-a pid=2");
    world.poison(&bad);
    let said = world.claims("box-a", &["list"]);
    said.is(1, &["901", "fetch-failed"]);
    assert!(said.err.contains("INCOMPLETE"), "{said:?}");
    world.claims("box-a", &["list", "--json"]).is(1, &["\"unreadable\": 1"]);
}

#[test]
fn hb_76_half_a_number_is_no_pid_and_hostile_text_is_escaped() {
    let world = World::new();
    world.plant(LANE, "claim issue=900 machine=box-a pid=12x ts=tomorrow\x1b[31m");
    world.plant("refs/machine-claims/old", "claim issue=5 machine=evil pid=6");
    let said = world.claims("box-a", &["list"]);
    said.is(
        0,
        &["box-a                900      ?          ?                        ?", "old (legacy)"],
    );
    assert!(!said.out.contains('\x1b'));
}

#[test]
fn hb_69_an_old_git_reads_nothing_and_still_writes() {
    let world = World::new();
    world.fault("version", "all", "echo git version 2.20.1; exit 0");
    for args in [
        &["list"][..],
        &["heartbeats"],
        &["clear", "box-a"],
        &["reap", "box-a"],
        &["should-reap", "box-a", "5"],
    ] {
        let said = world.claims("box-a", args);
        said.is(1, &[]);
        assert!(said.err.contains("git 2.29"), "{said:?}");
    }
    world.claims("box-a", &["stamp", "900", "1"]).is(0, &[]);
    world.claims("box-a", &["stamp", "900", "2"]).is(0, &[]);
    world.claims("box-a", &["beat", "900"]).is(0, &[]);
}

#[test]
fn hb_28_help_is_an_answer_and_nothing_typed_is_not() {
    let world = World::new();
    for args in [&["claims", "--help"][..], &["issue", "--help"], &["claims", "reap", "--help"]] {
        world.run("box-a", args).is(0, &["Usage"]);
    }
    for args in [&["claims"][..], &["issue"], &["claims", "nope"], &["claims", "list", "x"]] {
        world.run("box-a", args).is(64, &[]);
    }
    for bad in ["a b", "-x", "a..b", "../x", ""] {
        world
            .run_with("ok", &["claims", "stamp", "7"], &[("HEARTBEAT_MACHINE", "a/b")])
            .is(64, &[]);
        world.claims("box-a", &["reap", "--", bad, "7"]).is(if bad == "-x" { 0 } else { 64 }, &[]);
    }
}
