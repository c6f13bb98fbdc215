//! Many processes at one remote, over the network transport.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::World;

const LOCK: &str = "refs/claims/issue-7";
/// Rounds of a race, unless LANEWARDEN_RACE_ROUNDS says another number.
const ROUNDS: usize = 10;
/// Claimers of one issue, unless LANEWARDEN_RACE_CLAIMERS says another number.
const CLAIMERS: usize = 8;

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |n| n.parse().unwrap())
}

fn rounds(default: usize) -> usize {
    number("LANEWARDEN_RACE_ROUNDS", default)
}

/// A real `git daemon` in front of a world's remote.
pub(super) struct Daemon(Child);

impl Daemon {
    pub(super) fn serve(world: &mut World) -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let mut child = Command::new("git")
                .args(["daemon", "--export-all", "--enable=receive-pack", "--reuseaddr"])
                .args(["--listen=127.0.0.1", &format!("--port={port}")])
                .arg(format!("--base-path={}", world.dir.path().display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(10) && child.try_wait().unwrap().is_none() {
                if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                    world.url = format!("git://127.0.0.1:{port}/remote.git");
                    return Self(child);
                }
                std::thread::yield_now();
            }
            child.kill().ok();
            child.wait().unwrap();
        }
        panic!("git daemon did not answer on any of five ports");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // `git daemon` is started by `git`; TERM reaches both where KILL would orphan the second.
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        self.0.wait().ok();
    }
}

/// Starts all at once and gives what each said, in order.
fn all(mut commands: Vec<Command>) -> Vec<(i32, String)> {
    let children: Vec<Child> = commands
        .iter_mut()
        .map(|command| command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
        .collect();
    children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let line = String::from_utf8(output.stdout).unwrap();
            (output.status.code().unwrap_or(-1), line)
        })
        .collect()
}

#[test]
fn cl_02_of_many_claimers_exactly_one_holds() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    for round in 0..rounds(ROUNDS) {
        let issue = round.to_string();
        let commands = (0..number("LANEWARDEN_RACE_CLAIMERS", CLAIMERS))
            .map(|n| world.command(&format!("box-{n}"), &["issue", "claim", &issue]))
            .collect();
        let answers = all(commands);
        let held: Vec<_> = answers.iter().filter(|(code, _)| *code == 0).collect();
        assert_eq!(held.len(), 1, "round {round}: {answers:?}");
        for (code, line) in &answers {
            // A loser may have been turned away while the winner's ref was locked; then it could not tell.
            assert!(matches!(code, 0..=2) && line.starts_with("CLAIM: "), "{answers:?}");
        }
        let at = world.at(&format!("refs/claims/issue-{issue}")).unwrap();
        assert!(held[0].1.contains(&at), "{held:?} {at}");
    }
}

#[test]
fn two_restarted_workers_do_not_both_follow_a_dead_one() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    for round in 0..rounds(3) {
        let mut dead = super::Sleeper::start(world.dir.path());
        let issue = round.to_string();
        world.issue("box-a", &["claim", &issue, "--pid", &dead.pid()]).is(0, &[]);
        dead.end();
        let heirs: Vec<_> = (0..4).map(|_| super::Sleeper::start(world.dir.path())).collect();
        let commands = heirs
            .iter()
            .map(|heir| world.command("box-a", &["issue", "claim", &issue, "--pid", &heir.pid()]))
            .collect();
        let answers = all(commands);
        assert_eq!(answers.iter().filter(|(code, _)| *code == 0).count(), 1, "{answers:?}");
    }
}

#[test]
fn cr_03_of_two_adopters_one_wins() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    let adopt = ["issue", "adopt", "7", "--expect", "none", "--reason", "both were told"];
    for round in 0..rounds(5) {
        let answers = all(vec![world.command("box-a", &adopt), world.command("box-b", &adopt)]);
        let won: Vec<_> = answers.iter().filter(|(code, _)| *code == 0).collect();
        assert_eq!(won.len(), 1, "round {round}: {answers:?}");
        assert!(won[0].1.contains(&world.at(LOCK).unwrap()), "{answers:?}");
        world.issue("box-a", &["release", "7", "--force"]).is(0, &["(force)"]);
    }
}

#[test]
fn cr_14_a_forced_release_against_an_adoption_leaves_no_old_record() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    let adopt = ["issue", "adopt", "7", "--expect", "none", "--reason", "after the release"];
    for round in 0..rounds(3) {
        let old = world.issue("box-a", &["claim", "7"]).value("sha");
        let release = world.command("box-c", &["issue", "release", "7", "--force"]);
        let answers = all(vec![release, world.command("box-b", &adopt)]);
        let at = world.at(LOCK);
        assert_ne!(at, Some(old), "round {round}: {answers:?}");
        if answers[1].0 == 0 {
            assert!(answers[1].1.contains(&at.unwrap()), "{answers:?}");
        }
        world.issue("box-a", &["release", "7", "--force"]).is(0, &[]);
    }
}

#[test]
fn of_an_adopter_and_a_revived_holder_one_has_it() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    let mut won = [0, 0];
    for round in 0..rounds(5) {
        let mut dead = super::Sleeper::start(world.dir.path());
        let revived = super::Sleeper::start(world.dir.path());
        let issue = round.to_string();
        let old = world.issue("box-a", &["claim", &issue, "--pid", &dead.pid()]).value("sha");
        dead.end();
        let adopt = ["issue", "adopt", &issue, "--expect", &old, "--reason", "its box is gone"];
        let claim = ["issue", "claim", &issue, "--pid", &revived.pid()];
        let answers = all(vec![world.command("box-a", &claim), world.command("box-b", &adopt)]);
        let at = world.at(&format!("refs/claims/issue-{issue}")).unwrap();
        assert_ne!(at, old, "round {round}: {answers:?}");
        let holders: Vec<usize> = (0..2).filter(|n| answers[*n].0 == 0).collect();
        assert_eq!(holders.len(), 1, "round {round}: {answers:?}");
        assert!(answers[holders[0]].1.contains(&at), "round {round}: {answers:?} {at}");
        won[holders[0]] += 1;
        let other = ["box-b", "box-a"][holders[0]];
        world.issue(other, &["verify", &issue]).is(2, &["VERIFY-FAIL"]);
    }
    assert_eq!(won[0] + won[1], rounds(5));
}

#[test]
fn a_release_against_a_claim_leaves_one_truth() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    for round in 0..rounds(5) {
        let issue = (round + 1).to_string();
        let old = world.issue("box-a", &["claim", &issue]).value("sha");
        let mut release = world.command("box-a", &["issue", "release", &issue]);
        release.env("CLAIM_OPEN_PR_CMD", "exit 1");
        let answers = all(vec![release, world.command("box-b", &["issue", "claim", &issue])]);
        assert_eq!(answers[0].0, 0, "round {round}: {answers:?}");
        let at = world.at(&format!("refs/claims/issue-{issue}"));
        match answers[1].0 {
            0 => assert!(answers[1].1.contains(&at.unwrap()), "round {round}: {answers:?}"),
            // It was told of a holder that was about to go, or met the ref while it was locked.
            1 | 2 => assert_eq!(at, None, "round {round}: {answers:?}"),
            other => panic!("{other}: {answers:?}"),
        }
        assert_ne!(world.at(&format!("refs/claims/issue-{issue}")), Some(old));
    }
}

#[test]
fn a_claimer_that_is_killed_leaves_a_lock_that_its_own_command_resolves() {
    let mut world = World::new();
    let _daemon = Daemon::serve(&mut world);
    for round in 0..rounds(ROUNDS) {
        let issue = round.to_string();
        let mut child = world
            .command("box-a", &["issue", "claim", &issue])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // At another moment in every round, from its start until it has long ended: 37 has no factor in common with 120.
        let until = Duration::from_millis(u64::try_from(round).unwrap() * 37 % 120);
        let start = Instant::now();
        while start.elapsed() < until {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        world.issue("box-a", &["claim", &issue]).is(0, &["HELD"]);
        world.issue("box-b", &["claim", &issue]).is(2, &["LOST"]);
    }
}
