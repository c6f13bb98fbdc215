//! The commit guard in real repositories.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "this is test code, which the lints know only inside of test functions"
)]

mod lane_support;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use lane_support::{Roost, Said, Sleeper};

/// A repository with one commit and a linked worktree `lane-7` below the lane root.
fn repository(at: &Roost) -> (PathBuf, PathBuf) {
    let main = at.root().join("main");
    let lane = at.root().join("lane-7");
    fs::create_dir(&main).unwrap();
    let run = |dir: &Path, args: &[&str]| {
        let done = git(at, dir, args).output().unwrap();
        assert!(done.status.success(), "{args:?}: {done:?}");
    };
    run(&main, &["init", "-q"]);
    run(&main, &["commit", "-q", "--allow-empty", "-m", "first"]);
    run(&main, &["worktree", "add", "-q", lane.to_str().unwrap()]);
    (main, lane)
}

fn git(at: &Roost, dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .args(["-c", "user.name=t", "-c", "user.email=t@example.org"])
        .args(args)
        .env("LANE_ROOT", at.root())
        .env("LANEWARDEN_CONFIG", at.root().join("none"))
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env_remove("LANE_LOCK_PID");
    command
}

#[test]
fn the_guard_stops_the_second_writer_and_keeps_the_hook_that_was_there() {
    let at = Roost::new();
    let (main, lane) = repository(&at);
    let hook = main.join(".git/hooks/pre-commit");
    let trace = at.root().join("ran");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    fs::write(&hook, format!("#!/bin/sh\necho x >> '{}'\n", trace.display())).unwrap();
    fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Installed from the worktree, twice.
    for wanted in ["before the present hook", "installed already"] {
        let said = at.lane(&["guard", "install", "--repo", lane.to_str().unwrap()]);
        assert!(said.code == 0 && said.out.contains(wanted), "{said:?}");
    }
    let commit = |dir: &Path| {
        Said::of(git(&at, dir, &["commit", "-q", "--allow-empty", "-m", "x"]).output().unwrap())
    };
    let outside = commit(&main);
    assert!(outside.code == 0 && outside.err.is_empty(), "silent outside of lanes: {outside:?}");
    assert_eq!(fs::read_to_string(&trace).unwrap(), "x\n", "the old hook ran");

    let free = commit(&lane);
    assert!(free.code == 0 && free.err.contains("was not locked until now"), "{free:?}");
    let mut gone = Sleeper::new();
    at.lane(&["acquire", "7", "--pid", &gone.pid()]);
    gone.kill();
    let dead = commit(&lane);
    assert!(dead.code == 0 && !dead.err.contains("was not locked"), "{dead:?}");

    let left = at.lane(&["probe", "7"]);
    assert_eq!(
        left.field("liveness"),
        "DEAD-NO-PROCESS",
        "the commit's own process held it: {left:?}"
    );

    let peer = Sleeper::inside(&lane);
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    at.lane(&["acquire", "7", "--pid", &peer.pid()]).is(0, "ACQUIRED");
    let refused = commit(&lane);
    assert!(
        refused.code != 0 && refused.err.contains(&format!("pid {}", peer.pid())),
        "{refused:?}"
    );
    let log = git(&at, &lane, &["rev-list", "--count", "HEAD"]).output().unwrap();
    assert_eq!(String::from_utf8(log.stdout).unwrap().trim(), "3", "no commit was made");
}

#[test]
fn the_guard_goes_where_core_hookspath_says() {
    let at = Roost::new();
    let (main, _) = repository(&at);
    let set = git(&at, &main, &["config", "core.hooksPath", "my hooks"]).status().unwrap();
    assert!(set.success());
    assert_eq!(at.lane(&["guard", "install", "--repo", main.to_str().unwrap()]).code, 0);
    assert!(main.join("my hooks/pre-commit").exists());
    assert!(!main.join(".git/hooks/pre-commit").exists());
}
