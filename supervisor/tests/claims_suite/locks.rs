//! The issue lock.

use super::{Sleeper, World, said};

const LOCK: &str = "refs/claims/issue-7";
const NO_PR: (&str, &str) = ("CLAIM_OPEN_PR_CMD", "exit 1");
/// What git says where it has no credentials.
const DENIED: &str = "echo \"fatal: could not read Username for 'https://s3cret@h': terminal prompts disabled\" >&2; exit 128";

#[test]
fn cl_01_07_one_holds_and_the_other_has_lost() {
    let world = World::new();
    let held = world.issue("box-a", &["claim", "7"]);
    held.is(
        0,
        &[
            "CLAIM: HELD issue=7 ref=refs/claims/issue-7 sha=",
            "machine=box-a actor=flow lane-lock=",
        ],
    );
    assert_eq!(Some(held.value("sha")), world.at(LOCK));
    world
        .issue("box-b", &["claim", "7"])
        .is(2, &["CLAIM: LOST issue=7", "holder-machine=box-a actor=flow"]);
    world.issue("box-a", &["claim", "7"]).is(0, &["(re-entrant)"]);
    world.issue("box-a", &["verify", "7"]).is(0, &["CLAIM: VERIFY-OK issue=7"]);
    world
        .issue("box-b", &["verify", "7"])
        .is(2, &["CLAIM: VERIFY-FAIL issue=7", "holder-machine=box-a", "wanted-machine=box-b"]);
    world.issue("box-a", &["verify", "8"]).is(2, &["VERIFY-FAIL issue=8 reason=no-claim-ref"]);
    world.issue("box-b", &["status"]).is(0, &["CLAIM: STATUS issue=7", "machine=box-a", "age="]);
    world.issue("box-b", &["status", "7", "--json"]).is(0, &["\"machine\": \"box-a\""]);
    world
        .issue("box-b", &["status", "8"])
        .is(0, &["STATUS none pattern=refs/claims/issue-8 remote="]);
}

#[test]
fn cl_03_22a_cr_07_a_branch_of_an_older_worker_guards() {
    let world = World::new();
    for other in ["refs/heads/feat/issue-7-y", "refs/heads/issue-70-x", "refs/heads/issue-7"] {
        world.plant(other, "x");
    }
    world.issue("box-a", &["claim", "7"]).is(0, &["HELD"]);
    world.plant("refs/heads/issue-8-oldslug", "claim issue=8 machine=box-a actor=flow");
    world.issue("box-a", &["claim", "8"]).is(
        2,
        &[
            "CLAIM: LOST issue=8 reason=legacy-branch-lock detail=refs/heads/issue-8-oldslug exists on ",
            "claim-ref=free resume=documented-procedure lane-evidence=none",
        ],
    );
    assert_eq!(world.at("refs/claims/issue-8"), None);
}

#[test]
fn cl_04_a_revived_holder_finds_out() {
    let world = World::new();
    let old = world.issue("box-a", &["claim", "7"]).value("sha");
    world
        .issue(
            "box-b",
            &["adopt", "7", "--expect", &old.to_uppercase(), "--reason", "box-a is gone"],
        )
        .is(0, &["CLAIM: ADOPTED", &format!("from={old}"), "mode=cas reason=box-a-is-gone"]);
    world.issue("box-a", &["verify", "7"]).is(2, &[]);
    world
        .issue("box-a", &["adopt", "7", "--expect", &old])
        .is(2, &["ADOPT-LOST", "holder-machine=box-b actor=flow"]);
}

#[test]
fn cl_05_08_16_a_release_is_the_holders_and_waits_for_pull_requests() {
    let world = World::new();
    let release = |machine: &str, hook: &str| {
        world.run_with(machine, &["issue", "release", "7"], &[("CLAIM_OPEN_PR_CMD", hook)])
    };
    let sha = world.issue("box-a", &["claim", "7"]).value("sha");
    release("box-b", "exit 1").is(2, &["RELEASE-REFUSED issue=7 reason=not-holder"]);
    release("box-a", "exit 0").is(2, &["RELEASE-REFUSED issue=7 reason=open-pr open-prs="]);
    release("box-a", "exit 9").is(2, &["reason=open-pr-check-unavailable"]);
    world.issue("box-a", &["release", "7"]).is(2, &["reason=open-pr-check-unavailable"]);
    assert!(world.at(LOCK).is_some());
    release("box-a", "test $1 != 7").is(0, &["CLAIM: RELEASED issue=7", &sha, "(cas)"]);
    assert_eq!(world.at(LOCK), None);
    release("box-a", "exit 1").is(0, &["(already absent)"]);
    world.issue("box-a", &["claim", "7"]);
    world.issue("box-b", &["release", "7", "--force"]).is(0, &["(force)"]);
    assert_eq!(world.at(LOCK), None);
}

#[test]
fn cl_09_an_outage_is_no_loss() {
    let world = World::new();
    for remote in ["/nowhere/at/all.git", "git://127.0.0.1:1/x.git", "nosuchremote"] {
        let run = |args: &[&str]| {
            world.run_with("box-a", &[&["issue"], args].concat(), &[("CLAIM_REMOTE", remote)])
        };
        run(&["claim", "7"]).is(
            1,
            &[
                "CLAIM: ERROR reason=infra issue=7",
                "detail=legacy-branch-ls-remote-unreachable-on-",
            ],
        );
        run(&["verify", "7"]).is(1, &["detail=ls-remote-unreachable-on-"]);
        run(&["release", "7"]).is(1, &["detail=ls-remote-unreachable-on-"]);
        run(&["release", "7", "--force"]).is(1, &["detail=ls-remote-unreachable-on-"]);
        run(&["adopt", "7", "--expect", "none", "--reason", "why not"])
            .is(1, &["detail=adopt-cas-and-confirm-ls-remote-unreachable-on-"]);
        run(&["status"]).is(1, &["ERROR reason=infra"]);
        run(&["smoke"]).is(1, &["SMOKE-FAIL"]);
    }
}

#[test]
fn cl_10_14_15_a_push_is_believed_only_when_it_is_read() {
    let world = World::new();
    world.fault("ls-remote", "2", "exit 0");
    world
        .issue("box-a", &["claim", "7"])
        .is(1, &["detail=push-accepted-but-ref-absent-on-confirm-on-"]);
    world.mend();
    world.fault("ls-remote", "2", "exit 128");
    let said = world.issue("box-a", &["claim", "8"]);
    said.is(1, &["detail=push-succeeded-but-confirm-ls-remote-unreachable-on-"]);
    assert!(world.at("refs/claims/issue-8").is_some());
    world.mend();
    let old = world.at(LOCK).unwrap();
    world.fault("ls-remote", "1", "exit 128");
    world
        .issue("box-b", &["adopt", "7", "--expect", &old])
        .is(1, &["detail=adopt-cas-and-confirm-ls-remote-unreachable-on-"]);
    assert_ne!(world.at(LOCK), Some(old));
}

#[test]
fn a_connection_that_breaks_after_the_push_landed_is_a_claim() {
    let world = World::new();
    world.fault("push", "1", "real \"$@\" >/dev/null 2>&1; exit 128");
    world.issue("box-a", &["claim", "7"]).is(0, &["HELD"]);
    world.mend();
    world.fault("push", "1", "real \"$@\" >/dev/null 2>&1; exit 128");
    world.run_with("box-a", &["issue", "release", "7"], &[NO_PR]).is(0, &["RELEASED"]);
    world.mend();
    world.fault("push", "1", "exit 128");
    world.issue("box-a", &["claim", "7"]).is(1, &["detail=push-rejected-but-ref-absent-on-"]);
}

#[test]
fn cl_17_19_names_of_refs_are_text() {
    let world = World::new();
    world.plant("refs/claims/issue-$(touch${IFS}pwned)", "claim machine=a actor=bcd");
    world.plant("refs/claims/smoke-x", "claim issue=smoke");
    let said = world.issue("box-a", &["status"]);
    said.is(0, &["CLAIM: STATUS issue=touch-IFS-pwned"]);
    assert_eq!(said.out.lines().count(), 1, "{said:?}");
    assert!(!world.dir.path().join("pwned").exists());
}

#[test]
fn cl_20_missing_credentials_are_a_verdict_of_their_own() {
    let world = World::new();
    let denied = |args: &[&str], detail: &str| {
        world.fault("push", "all", DENIED);
        let said = world.issue("box-a", args);
        said.is(1, &["reason=auth", detail, "NOT retryable"]);
        let all = format!("{}{}", said.out, said.err);
        for leak in ["s3cret", "Username", "transient", "LOST"] {
            assert!(!all.contains(leak), "{said:?}");
        }
        world.mend();
    };
    denied(&["claim", "7"], "detail=claim-push-unauthenticated");
    denied(&["smoke"], "SMOKE-FAIL");
    let sha = world.issue("box-a", &["claim", "7"]).value("sha");
    denied(&["adopt", "7", "--expect", &sha], "detail=adopt-cas-push-unauthenticated");
    denied(&["release", "7", "--force"], "detail=release-force-delete-unauthenticated");
    assert_eq!(world.at(LOCK), Some(sha));
    world.fault("ls-remote", "all", DENIED);
    world.issue("box-a", &["claim", "9"]).is(1, &["reason=auth issue=9"]);
    world.mend();
    for outage in ["Could not resolve host: h", "The requested URL returned error: 403 Forbidden"] {
        world.fault(
            "push",
            "all",
            &format!("echo 'fatal: unable to access: {outage}' >&2; exit 128"),
        );
        world.issue("box-a", &["claim", "9"]).is(1, &["reason=infra"]);
        world.mend();
    }
}

#[test]
fn cl_20g_20h_20i_smoke_makes_reads_and_deletes_a_ref_of_its_own() {
    let world = World::new();
    for _ in 0..2 {
        let said = world.issue("box-a", &["smoke"]);
        said.is(0, &["CLAIM: SMOKE-OK remote=", "namespace=refs/claims/*"]);
        assert!(said.err.contains("refs/claims/smoke-"), "{said:?}");
    }
    assert!(world.refs().is_empty());
    world.hook("update", "case $3 in 000000*) exit 1;; esac");
    world.issue("box-a", &["smoke"]).is(1, &["SMOKE-FAIL", "reason=cleanup-unverified"]);
    world.fault("ls-remote", "1", "exit 128");
    world
        .issue("box-a", &["smoke"])
        .is(1, &["reason=ls-remote-mismatch seen=none", "cleanup-delete=FAILED"]);
    let world = World::new();
    world.fault("ls-remote", "1", "exit 128");
    let said = world.issue("box-a", &["smoke"]);
    said.is(1, &["reason=ls-remote-mismatch"]);
    assert!(!said.out.contains("cleanup") && world.refs().is_empty(), "{said:?}");
}

#[test]
fn a_second_session_is_refused_while_the_first_lives_and_follows_when_it_died() {
    let world = World::new();
    let mut first = Sleeper::start(world.dir.path());
    let second = Sleeper::start(world.dir.path());
    let claim = |pid: &str| world.issue("box-a", &["claim", "7", "--pid", pid]);
    let sha = claim(&first.pid()).value("sha");
    assert!(world.message(LOCK).contains(&format!(" pid={} ", first.pid())));
    claim(&first.pid()).is(0, &[&sha, "(re-entrant)"]);
    claim(&second.pid()).is(2, &["LOST", "holder-machine=box-a actor=flow"]);
    let verify = |pid: &str| world.issue("box-a", &["verify", "7", "--pid", pid]);
    verify(&second.pid()).is(2, &["VERIFY-FAIL"]);
    world
        .run_with("box-a", &["issue", "release", "7", "--pid", &second.pid()], &[NO_PR])
        .is(2, &["reason=not-holder"]);
    first.end();
    let said = claim(&second.pid());
    said.is(0, &["HELD", "(re-entrant)"]);
    assert_ne!(said.value("sha"), sha, "stamped anew");
    verify(&second.pid()).is(0, &[]);
    claim(&first.pid()).is(1, &["detail=claimant-process-unresolved"]);
    claim("0").is(64, &[]);
}

#[test]
fn a_lane_names_its_occupant() {
    let world = World::new();
    let lane = world.dir.path().join("lane");
    std::fs::create_dir(&lane).unwrap();
    let config = world.dir.path().join("config.toml");
    let text = format!(
        "machine = \"box-a\"\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}/run\"\nlane_root = \"{0}\"\n[remote]\nurl = \"{1}\"\n[[lane]]\nid = \"a\"\ndir = \"{2}\"\ncommand = [\"true\"]\n",
        world.dir.path().display(),
        world.url,
        lane.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut shell = std::process::Command::new("sh");
    let script =
        format!("'{}' --log off issue claim 7; echo pid=$$", env!("CARGO_BIN_EXE_lanewarden"));
    shell.args(["-c", &script]).current_dir(&lane).env_clear();
    shell.env("PATH", std::env::var("PATH").unwrap()).env("HOME", world.dir.path());
    let answer = said(shell.env("LANEWARDEN_CONFIG", &config));
    answer.is(0, &["HELD issue=7", "machine=box-a"]);
    let pid = answer.value("pid");
    let message = world.message(LOCK);
    assert!(message.contains(&format!(" pid={pid} ")) && message.contains(" ticks="), "{message}");
}

#[test]
fn a_twin_of_this_box_is_another_box() {
    let world = World::new();
    let twin = "claim issue=7 machine=box-a pid=1 actor=flow boot=11111111-2222-3333-4444-555555555555 ticks=3";
    world.plant(LOCK, &format!("{twin} ts={}", super::ago(0)));
    world.issue("box-a", &["claim", "7"]).is(2, &["LOST"]);
    world.plant(LOCK, &format!("{twin} ts=2001-01-01T00:00:00Z"));
    let ours = std::process::id().to_string();
    world.issue("box-a", &["claim", "7", "--pid", &ours]).is(0, &["HELD", "(re-entrant)"]);
}

#[test]
fn a_record_that_cannot_be_read_is_nobodys_and_everybodys() {
    let world = World::new();
    let oid = world.plant(LOCK, "claim issue=7 machine=box-b actor=flow");
    world.poison(&oid);
    for args in [&["claim", "7"][..], &["verify", "7"], &["release", "7"]] {
        world.issue("box-a", args).is(1, &["reason=infra", "detail=holder-commit-unreadable"]);
    }
    world.issue("box-a", &["status"]).is(0, &["issue=7", "machine=? actor=?", "age=unknown"]);
    let blob = world.remote.blob(b"no commit").unwrap();
    std::fs::write(world.remote.path().join(LOCK), format!("{blob}\n")).unwrap();
    world.issue("box-a", &["claim", "7"]).is(1, &["detail=holder-commit-unreadable"]);
    world.issue("box-a", &["release", "7", "--force"]).is(0, &["(force)"]);
}
