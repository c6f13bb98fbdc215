//! Adoption, and what a person may say.

use super::World;

const LOCK: &str = "refs/claims/issue-7";
const NO_PR: (&str, &str) = ("CLAIM_OPEN_PR_CMD", "exit 1");
const ADOPT: [&str; 6] = ["adopt", "7", "--expect", "none", "--reason", "owner said go on"];

#[test]
fn cr_01_16_an_abandoned_branch_is_taken_over_with_a_reason() {
    let world = World::new();
    let tip = world.plant("refs/heads/issue-7-x", "work");
    let refused = world.issue("box-a", &["claim", "7"]);
    refused.is(2, &["refs/heads/issue-7-x exists on ", "claim-ref=free"]);
    assert_eq!(refused.out.lines().count(), 1);
    world
        .issue("box-a", &ADOPT)
        .is(0, &["ADOPTED", "from=none mode=empty-lease reason=owner-said-go-on"]);
    world.issue("box-a", &["verify", "7"]).is(0, &[]);
    world.issue("box-b", &["verify", "7"]).is(2, &[]);
    world.issue("box-b", &["status", "7"]).is(0, &["machine=box-a", "reason=owner-said-go-on"]);
    assert_eq!(world.at("refs/heads/issue-7-x"), Some(tip));
    world.run_with("box-a", &["issue", "release", "7"], &[NO_PR]).is(0, &["(cas)"]);
    world.issue("box-a", &["claim", "7"]).is(2, &["reason=legacy-branch-lock"]);
}

#[test]
fn cr_02_a_holder_is_not_adopted_away() {
    let world = World::new();
    let sha = world.issue("box-a", &["claim", "7"]).value("sha");
    world.issue("box-b", &ADOPT).is(2, &["ADOPT-LOST", "expected=none", "holder-machine=box-a"]);
    assert_eq!(world.at(LOCK), Some(sha));
    world.issue("box-a", &["verify", "7"]).is(0, &[]);
}

#[test]
fn cr_04_expectations_are_full_ids() {
    let world = World::new();
    for bad in ["", "zz", "0", "00", "abc123", "0000000", "HEAD"] {
        world.issue("box-a", &["adopt", "7", "--expect", bad, "--reason", "because"]).is(64, &[]);
    }
    for verb in ["claim", "verify", "release", "status"] {
        world.issue("box-a", &[verb, "7x"]).is(64, &[]);
        world.issue("box-a", &[verb, "$(id)"]).is(64, &[]);
    }
    world.issue("box-a", &["adopt", "x", "--expect", "none", "--reason", "because"]).is(64, &[]);
    world.issue("box-a", &["adopt", "7", "--expect", "none"]).is(64, &[]);
    world.issue("box-a", &[]).is(64, &[]);
    for wrong in ["a".repeat(40), "a".repeat(64)] {
        world
            .issue("box-a", &["adopt", "7", "--expect", &wrong])
            .is(2, &["ADOPT-LOST", "actual=<gone> holder=unknown"]);
    }
    assert!(world.refs().is_empty());
    world
        .issue("box-a", &["adopt", "7", "--expect", &"0".repeat(40), "--reason", "because"])
        .is(0, &["from=none"]);
}

#[test]
fn cr_06_09_without_an_answer_nothing_is_taken() {
    let world = World::new();
    world.fault("ls-remote", "1", "exit 128");
    world.issue("box-a", &["claim", "7"]).is(1, &["reason=infra"]);
    world.mend();
    world.fault("push", "all", "exit 128");
    world.issue("box-a", &ADOPT).is(1, &["detail=adopt-empty-lease-rejected-but-ref-absent-on-"]);
    assert!(world.refs().is_empty());
}

#[test]
fn cr_10_a_retry_of_an_adoption_that_landed_is_re_entrant() {
    let world = World::new();
    world.fault("ls-remote", "1", "exit 128");
    world.issue("box-a", &ADOPT).is(1, &[]);
    world.mend();
    let sha = world.at(LOCK).unwrap();
    world.issue("box-a", &ADOPT).is(0, &[&sha, "from=none (re-entrant)"]);
    assert_eq!(world.at(LOCK), Some(sha.clone()));
    world.issue("box-a", &[&ADOPT[..], &["--actor", "somebody"]].concat()).is(2, &["ADOPT-LOST"]);
    world.issue("box-b", &ADOPT).is(2, &["ADOPT-LOST"]);
    let stale = "a".repeat(40);
    let said = world.issue("box-a", &["adopt", "7", "--expect", &stale]);
    said.is(0, &["(re-entrant, lease-mismatch", &format!("expected={stale} actual={sha}")]);
    assert!(!said.out.contains("from="));
    world.fault("push", "all", "exit 128");
    world
        .issue("box-a", &["adopt", "7", "--expect", &sha])
        .is(0, &[&format!("from={sha} (re-entrant)")]);
    world
        .issue("box-b", &["adopt", "7", "--expect", &sha])
        .is(1, &["detail=adopt-cas-rejected-but-ref-unchanged"]);
}

#[test]
fn cr_12_13_18_19_words_name_no_holder() {
    let world = World::new();
    let adopt = |reason: &str| {
        world.issue("box-a", &["adopt", "7", "--expect", "none", "--reason", reason])
    };
    for bad in ["", "   ", "---", "\u{2026}", "x", "===", "TODO", "n/a", "Why", "a <reason> here"] {
        adopt(bad).is(64, &[]);
    }
    assert!(world.refs().is_empty());
    adopt("x machine=box-b actor=other\nclaim machine=box-b")
        .is(0, &["reason=x-machine-box-b-actor-other-claim-machine-box-b"]);
    world.issue("box-b", &["verify", "7"]).is(2, &[]);
    world.issue("box-b", &["claim", "7"]).is(2, &[]);
    let status = world.issue("box-b", &["status"]);
    assert_eq!(status.out.lines().count(), 1, "{status:?}");
    for bad in ["", "--", "..\u{2026}", "a b", "\u{e9}\u{e9}", "unspecified"] {
        let said = world.issue("box-a", &["claim", "9", "--actor", bad]);
        if bad == "a b" {
            said.is(0, &["actor=a-b"]);
        } else if !bad.is_empty() && said.code != 64 {
            panic!("{bad:?}: {said:?}");
        }
    }
    let odd = ["--actor", "x machine=box-b"];
    world.issue("box-a", &[&["claim", "10"][..], &odd].concat()).is(0, &["actor=x-machine-box-b"]);
    world.issue("box-a", &[&["verify", "10"][..], &odd].concat()).is(0, &[]);
    world.issue("box-a", &["verify", "10"]).is(2, &[]);
    world.run_with("box-a", &["issue", "claim", "11"], &[("CLAIM_MACHINE", "--")]).is(64, &[]);
}

#[test]
fn cr_20_the_first_exact_tokens_decide() {
    let world = World::new();
    world.plant(
        LOCK,
        "claim issue=7 holder-machine=evil machine=box-a pid=1 actor=flow machine=evil actor=evil",
    );
    world.issue("evil", &["verify", "7", "--actor", "evil"]).is(2, &[]);
    world.run_with("evil", &["issue", "release", "7"], &[NO_PR]).is(2, &[]);
    world.issue("box-a", &["verify", "7"]).is(0, &[]);
    world.run_with("box-a", &["issue", "release", "7"], &[NO_PR]).is(0, &[]);
    std::fs::write(world.dir.path().join("machineX"), "").unwrap();
    world.plant(LOCK, "claim issue=7 machine=machine* pid=1 actor=flow");
    let said = world.issue("machine", &["verify", "7"]);
    said.is(2, &["holder-machine=machine "]);
    assert!(!said.out.contains("machineX"));
}

#[test]
fn cr_01_02_a_create_names_the_all_zero_old_id_and_a_refused_one_writes_nothing() {
    let world = World::new();
    let log = world.dir.path().join("log");
    world.hook("update", &format!("echo $1 $2 $3 >>'{}'", log.display()));
    let updates = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let zero = "0".repeat(40);
    let held = world.issue("box-a", &["claim", "8"]).value("sha");
    let adopted = world.issue("box-a", &ADOPT).value("sha");
    world.issue("box-b", &ADOPT).is(2, &["ADOPT-LOST"]);
    world.issue("box-b", &["claim", "8"]).is(2, &["LOST"]);
    let creates =
        [format!("refs/claims/issue-8 {zero} {held}"), format!("{LOCK} {zero} {adopted}")];
    assert_eq!(updates(), creates);
}

#[test]
fn an_adopter_whose_lock_names_a_dead_process_stamps_itself() {
    let world = World::new();
    let mut dead = super::Sleeper::start(world.dir.path());
    let heir = super::Sleeper::start(world.dir.path());
    let old = world.issue("box-a", &["claim", "7", "--pid", &dead.pid()]).value("sha");
    let adopt = |pid: &str| world.issue("box-a", &[&ADOPT[..], &["--pid", pid]].concat());
    adopt(&heir.pid()).is(2, &["ADOPT-LOST"]);
    dead.end();
    let said = adopt(&heir.pid());
    said.is(0, &["(re-entrant)"]);
    assert_ne!(said.value("sha"), old);
    assert!(world.message(LOCK).contains(&format!(" pid={} ", heir.pid())));
}

#[test]
fn cr_15_a_refusal_does_not_depend_on_the_hook() {
    let world = World::new();
    world.plant("refs/heads/issue-7-x", "work");
    let plain = world.issue("box-a", &["claim", "7"]);
    let broken = world.run_with("box-a", &["issue", "claim", "7"], &[("CLAIM_OPEN_PR_CMD", "((")]);
    assert_eq!(plain.out, broken.out);
    for runnable in ["adopt", "--expect", "lanewarden", "git push", "claim.sh"] {
        assert!(!plain.out.contains(runnable) && !plain.err.contains(runnable), "{plain:?}");
    }
}
