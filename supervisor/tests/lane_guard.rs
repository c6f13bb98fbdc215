//! The commit guard in real repositories.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "this is test code, which the lints know only inside of test functions"
)]

mod executable_support;
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

/// Runs a line in a shell that works in the lane; `commit`, `probe` and `lane` are commands there.
fn in_session(at: &Roost, lane: &Path, line: &str) -> Said {
    let script = format!(
        "commit() {{ git commit -q --allow-empty -m x; }}\nlane() {{ '{0}' lane \"$@\"; }}\n\
         probe() {{ lane probe 7; }}\n{line}\ncode=$?\nexit $code",
        at.program.display()
    );
    // The environment of `git`, for a shell.
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(lane).env("LANE", lane);
    for (key, value) in git(at, lane, &[]).get_envs() {
        match value {
            Some(value) => shell.env(key, value),
            None => shell.env_remove(key),
        };
    }
    for who in ["AUTHOR", "COMMITTER"] {
        shell.env(format!("GIT_{who}_NAME"), "t").env(format!("GIT_{who}_EMAIL"), "t@example.org");
    }
    Said::of(shell.output().unwrap())
}

#[test]
fn a_hook_that_asks_for_its_own_name_is_still_the_one_that_git_called() {
    let at = Roost::new();
    let (main, _) = repository(&at);
    // As husky 9 lays them out: one generated hook dispatches to the project's by its own name.
    let generated = main.join(".husky/_");
    fs::create_dir_all(&generated).unwrap();
    let executable = |path: &Path, text: &str| {
        executable_support::executable(path, text.as_bytes());
    };
    executable(
        &generated.join("h"),
        "n=$(basename \"$0\")\ns=$(dirname \"$(dirname \"$0\")\")/$n\n[ -f \"$s\" ] || exit 0\nsh -e \"$s\" \"$@\"\nexit $?\n",
    );
    let hook = generated.join("pre-commit");
    executable(&hook, "#!/usr/bin/env sh\n. \"$(dirname \"$0\")/h\"\n");
    executable(&main.join(".husky/pre-commit"), "exit 1\n");
    assert!(git(&at, &main, &["config", "core.hooksPath", ".husky/_"]).status().unwrap().success());
    let commit =
        || git(&at, &main, &["commit", "-q", "--allow-empty", "-m", "x"]).status().unwrap();
    assert!(!commit().success(), "the project's check refuses");
    let install = || at.lane(&["guard", "install", "--repo", main.to_str().unwrap()]);
    assert_eq!(install().code, 0);
    assert!(!commit().success(), "and still does behind the guard");
    // Husky writes its hook again.
    executable(&hook, "#!/usr/bin/env sh\n. \"$(dirname \"$0\")/h\"\n");
    let again = install();
    assert!(again.code == 0 && again.out.contains("again"), "{again:?}");
    assert!(!commit().success());
    executable(&main.join(".husky/pre-commit"), "exit 0\n");
    assert!(commit().success());
}

#[test]
fn a_guard_that_cannot_be_asked_stops_no_commit() {
    let at = Roost::new();
    let (main, _) = repository(&at);
    assert_eq!(at.lane(&["guard", "install", "--repo", main.to_str().unwrap()]).code, 0);
    let mut commit = git(&at, &main, &["commit", "-q", "--allow-empty", "-m", "x"]);
    let said = Said::of(commit.env("LANEWARDEN_LOG", "no-such-level").output().unwrap());
    assert!(said.code == 0 && said.err.contains("the commit goes on"), "{said:?}");
}

#[test]
fn the_guard_stops_the_second_writer_and_keeps_the_hook_that_was_there() {
    let at = Roost::new();
    let (main, lane) = repository(&at);
    let hook = main.join(".git/hooks/pre-commit");
    let trace = at.root().join("ran");
    fs::create_dir_all(hook.parent().unwrap()).unwrap();
    let script = format!("#!/bin/sh\necho x >> '{}'\n", trace.display());
    executable_support::executable(&hook, script.as_bytes());
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

    // We, who commit, are outside of the lane; a session inside of it takes it by its first commit.
    let outsider = commit(&lane);
    assert!(outsider.code != 0 && outsider.err.contains("--pid"), "nobody lasting: {outsider:?}");
    let first = in_session(&at, &lane, "commit && probe");
    assert!(first.code == 0 && first.err.contains("was not locked until now"), "{first:?}");
    assert_eq!(first.field("liveness"), "SELF", "the session holds it, and not git: {first:?}");
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    let mut gone = Sleeper::new();
    at.lane(&["acquire", "7", "--pid", &gone.pid()]).is(0, "ACQUIRED");
    gone.kill();
    let dead = in_session(&at, &lane, "commit");
    assert!(dead.code == 0 && !dead.err.contains("was not locked"), "{dead:?}");
    assert_eq!(fs::read_to_string(&trace).unwrap(), "x\nx\nx\n");

    // Whoever holds it by --pid may commit from wherever it is, and by its number.
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    let line = "cd / && lane acquire 7 --pid $$ && git -C \"$LANE\" commit -q --allow-empty -m x";
    let from_outside = in_session(&at, &lane, line);
    assert_eq!(from_outside.code, 0, "{from_outside:?}");
    at.lane(&["release", "7", "--force"]).is(0, "RELEASED");
    let peer = Sleeper::inside(&lane);
    at.lane(&["acquire", "7", "--pid", &peer.pid()]).is(0, "ACQUIRED");
    let refused = in_session(&at, &lane, "commit");
    assert!(
        refused.code != 0 && refused.err.contains(&format!("pid {}", peer.pid())),
        "{refused:?}"
    );
    let log = git(&at, &lane, &["rev-list", "--count", "HEAD"]).output().unwrap();
    assert_eq!(String::from_utf8(log.stdout).unwrap().trim(), "4", "no commit was made");
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
