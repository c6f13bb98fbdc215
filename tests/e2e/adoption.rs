//! Wardens and keepers die; workers do not notice, and nothing is doubled.

use lanewarden_tests::{
    Home, cgroup,
    command::background,
    git::checkout,
    proc,
    requires::{Need, has},
    until,
    wait::throughout,
};
use rustix::process::Signal;
use std::{fs, path::Path, time::Duration};

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

fn the_keeper(home: &Home) -> u32 {
    until("one keeper", || match home.keepers()[..] {
        [keeper] => Ok(keeper),
        _ => Err(home.keepers()),
    })
}

/// Kills the keeper and waits until another serves.
fn replace_keeper(home: &Home) -> u32 {
    let old = the_keeper(home);
    proc::signal(old, Signal::KILL);
    let new = until("another keeper", || match home.keepers()[..] {
        [keeper] if keeper != old => Ok(keeper),
        _ => Err(home.keepers()),
    });
    until("the warden to see the new keeper", || {
        let view = home.view()?;
        if view["keeper_up"] == true && home.log().contains("a keeper answers") {
            Ok(())
        } else {
            Err(view.to_string())
        }
    });
    new
}

fn assert_one_worker(home: &Home, pid: u32) {
    throughout(Duration::from_millis(300), "one worker", || {
        let workers = home.workers("sleep");
        if workers == [pid] { Ok(()) } else { Err(workers) }
    });
}

#[test]
fn a_killed_warden_finds_its_worker_again() {
    let mut home = Home::new("adopt");
    home.lane("a", &["sleep"]);
    let first = home.start();
    let worker = home.until_running("a");
    let run = home.lane_view("a").unwrap()["run"].clone();
    first.kill9();
    assert!(proc::runs(worker));
    let second = home.start();
    assert_ne!(first.pid(), second.pid());
    assert_eq!(home.until_running("a"), worker);
    assert_eq!(home.lane_view("a").unwrap()["run"], run);
    assert_one_worker(&home, worker);
    assert!(home.history("a").is_empty(), "its run is not over");
    let adopted = "lanewarden_adoptions_total{result=\"adopted\"}";
    home.until_metric(adopted, 1.0);
    // It is a worker like any other: it takes orders and is judged.
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    home.until_verdict("a", "stopped");
    home.end();
}

#[test]
fn how_a_worker_ended_between_two_wardens_is_known() {
    let mut home = Home::new("between");
    let go = home.at("go");
    home.lane_with("exits", &["wait-for", &go, "exit", "5"], ONE_RUN);
    home.lane_with("dies", &["wait-for", &go, "die", "11"], ONE_RUN);
    home.lane_with("finishes", &["wait-for", &go, "marker", "finalized"], ONE_RUN);
    let first = home.start();
    let lanes = ["exits", "dies", "finishes"];
    let workers = lanes.map(|lane| home.until_running(lane));
    first.kill9();
    fs::write(&go, "").unwrap();
    for worker in workers {
        proc::until_gone(worker);
    }
    home.start();
    let exits = home.until_verdict("exits", "failed");
    assert_eq!(exits["last"]["exit_code"], 5, "{exits}");
    let dies = home.until_verdict("dies", "signalled");
    assert_eq!(dies["last"]["signal"], 11, "{dies}");
    home.until_verdict("finishes", "finalized");
    for lane in lanes {
        assert_eq!(home.history(lane).len(), 1);
    }
    home.end();
}

#[test]
fn a_warden_that_is_killed_again_and_again_never_doubles_a_worker() {
    let mut home = Home::new("again");
    home.lane("a", &["sleep"]);
    let mut warden = home.start();
    let worker = home.until_running("a");
    for _ in 0..5 {
        warden.kill9();
        warden = home.start();
        assert_eq!(home.until_running("a"), worker);
    }
    assert_one_worker(&home, worker);
    home.end();
}

#[test]
fn a_warden_killed_while_it_begins_leaves_nothing_doubled() {
    let mut home = Home::new("early");
    home.lane("a", &["sleep"]);
    home.lane("b", &["sleep"]);
    home.configure();
    // Wherever in its first steps each of these is hit, the next one settles it.
    for wait in [5_u64, 20, 40, 60, 80, 120] {
        let warden = home.launch(&[]);
        throughout(Duration::from_millis(wait), "running", || match warden.status() {
            None => Ok(()),
            Some(status) => Err(format!("{status}: {}", home.log())),
        });
        warden.kill9();
    }
    home.start();
    let pids = [home.until_running("a"), home.until_running("b")];
    throughout(Duration::from_millis(300), "one worker a lane", || {
        let mut workers = home.workers("sleep");
        workers.sort_unstable();
        let mut wanted = pids.to_vec();
        wanted.sort_unstable();
        if workers == wanted { Ok(()) } else { Err(workers) }
    });
    home.end();
}

#[test]
fn a_worker_outlives_its_keeper_and_its_end_is_judged() {
    let mut home = Home::new("keeper");
    home.lane_with("a", &["sleep"], ONE_RUN);
    home.start();
    let worker = home.until_running("a");
    replace_keeper(&home);
    assert_eq!(home.until_running("a"), worker);
    assert_one_worker(&home, worker);
    proc::signal(worker, Signal::TERM);
    // Newer kernels tell a stranger through the pidfd; others do not, and nobody guesses.
    let lane = home.until_lane("a", "judged", |lane| !lane["last"].is_null());
    let verdict = lane["last"]["verdict"].as_str().unwrap();
    assert!(["vanished", "signalled"].contains(&verdict), "{lane}");
    if verdict == "signalled" {
        assert_eq!(lane["last"]["signal"], 15, "{lane}");
    }
}

#[test]
fn a_worker_without_a_keeper_can_still_be_stopped() {
    let mut home = Home::new("stray");
    home.lane_with("a", &["ignore-term", "pid-file", &home.at("pid"), "sleep"], ONE_RUN);
    home.start();
    let worker = home.until_running("a");
    home.until_pid("pid");
    replace_keeper(&home);
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    proc::until_gone(worker);
    assert_eq!(home.until_state("a", "stopped")["pid"], serde_json::Value::Null);
}

#[test]
fn a_worker_outlives_warden_and_keeper() {
    let mut home = Home::new("both");
    home.lane("a", &["sleep"]);
    let first = home.start();
    let worker = home.until_running("a");
    let keeper = the_keeper(&home);
    first.kill9();
    proc::signal(keeper, Signal::KILL);
    proc::until_gone(keeper);
    assert!(proc::runs(worker));
    home.start();
    assert_eq!(home.until_running("a"), worker);
    assert_one_worker(&home, worker);
}

#[test]
fn term_leaves_workers_and_the_next_warden_has_them() {
    let mut home = Home::new("term");
    home.lane("a", &["sleep"]);
    let first = home.start();
    let worker = home.until_running("a");
    assert_eq!(first.term().code(), Some(0));
    assert!(proc::runs(worker));
    the_keeper(&home);
    home.start();
    assert_eq!(home.until_running("a"), worker);
    assert_one_worker(&home, worker);
    home.end();
    assert!(!proc::runs(worker));
}

#[test]
fn ctrl_c_ends_workers_and_keeper() {
    let mut home = Home::new("int");
    home.lane("a", &["sleep"]);
    home.lane("b", &["ignore-term", "grandchild", &home.at("grandchild"), "sleep"]);
    let warden = home.start();
    home.until_running("a");
    let grandchild = home.until_pid("grandchild");
    warden.signal(Signal::INT);
    assert_eq!(warden.ended().code(), Some(0));
    assert!(!proc::runs(grandchild), "it is gone before the warden says that it is done");
    home.end();
    assert_eq!(home.history("a")[0]["verdict"], "stopped");
    assert_eq!(home.history("b")[0]["end"], "killed-by-us");
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_the_grace() {
    let mut home = Home::new("int2");
    home.plan.defaults = "deadline = \"2h\"".to_owned();
    let words = ["ignore-term", "pid-file", &home.at("pid"), "sleep"];
    home.lane_with("a", &words, "stop_grace = \"10m\"");
    let warden = home.start();
    home.until_pid("pid");
    warden.signal(Signal::INT);
    home.until_state("a", "stopping");
    warden.signal(Signal::INT);
    assert_eq!(warden.ended().code(), Some(0));
    home.end();
}

#[test]
fn with_workers_makes_term_end_them() {
    let mut home = Home::new("with");
    home.lane("a", &["sleep"]);
    home.configure();
    let warden = home.launch(&["--with-workers"]);
    let worker = home.until_running("a");
    assert_eq!(warden.term().code(), Some(0));
    assert!(!proc::runs(worker));
    home.end();
}

#[test]
fn a_second_warden_is_refused() {
    let mut home = Home::new("second");
    home.lane("a", &["sleep"]);
    home.start();
    let worker = home.until_running("a");
    let refused = home.run(&["run"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("another warden runs"), "{refused:?}");
    assert_eq!(home.until_running("a"), worker);
    assert_one_worker(&home, worker);
    home.end();
}

/// Another box on the same lane directory: whether it shares the lock file or not, it starts nothing.
fn assert_occupied(name: &str, shares_locks: bool) {
    let mut home = Home::new(name);
    home.lane("a", &["sleep"]);
    home.start();
    let worker = home.until_running("a");
    let mut other = Home::new(name);
    other.lane("a", &["sleep"]);
    other.lane("b", &["sleep"]);
    other.plan.lanes[0].dir = home.plan.lanes[0].dir.clone();
    if shares_locks {
        other.plan.lane_root = home.plan.lane_root.clone();
    }
    other.start();
    let lane = other.until_state("a", "occupied");
    let reason = lane["reason"].as_str().unwrap();
    assert!(reason.contains(&worker.to_string()) || reason.contains("pid"), "{reason}");
    // The other lanes of that box work.
    other.until_running("b");
    throughout(Duration::from_millis(300), "one worker", || {
        let all = [home.workers("sleep"), other.workers("sleep")];
        if all.map(|found| found.len()) == [1, 1] { Ok(()) } else { Err(other.workers("sleep")) }
    });
    assert_eq!(home.until_running("a"), worker);
    other.end();
    home.end();
}

#[test]
fn a_lane_that_another_warden_holds_is_occupied() {
    assert_occupied("locked", true);
}

#[test]
fn a_lane_in_which_another_works_is_occupied_without_any_lock() {
    assert_occupied("cwd", false);
}

#[test]
fn a_lane_whose_worker_outlived_its_warden_is_occupied_for_another_box() {
    let mut home = Home::new("left");
    home.lane("a", &["sleep"]);
    let first = home.start();
    let worker = home.until_running("a");
    assert_eq!(first.term().code(), Some(0));
    let mut other = Home::new("right");
    checkout(&other.plan.lane_root.join("x"));
    other.lane("a", &["sleep"]);
    other.plan.lanes[0].dir = home.plan.lanes[0].dir.clone();
    other.plan.lane_root = home.plan.lane_root.clone();
    other.start();
    other.until_state("a", "occupied");
    assert!(other.workers("sleep").is_empty());
    assert!(proc::runs(worker));
    other.end();
    home.start();
    assert_eq!(home.until_running("a"), worker);
    home.end();
}

#[test]
fn a_deadline_goes_on_over_the_death_of_a_warden() {
    let mut home = Home::new("clock");
    home.lane_with("a", &["sleep"], &format!("{ONE_RUN}deadline = \"2s\""));
    let first = home.start();
    let worker = home.until_running("a");
    first.kill9();
    home.start();
    assert_eq!(home.until_running("a"), worker);
    let lane = home.until_verdict("a", "deadline");
    let lived = lane["last"]["duration_s"].as_f64().unwrap();
    assert!((1.9..4.0).contains(&lived), "{lived} s");
    home.end();
}

#[test]
fn a_keeper_that_replaced_another_ends_with_the_box() {
    let mut home = Home::new("replaced");
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    replace_keeper(&home);
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    home.end();
}

#[test]
fn a_stop_that_a_dead_warden_began_is_finished_by_the_next() {
    let mut home = Home::new("midstop");
    let words = ["ignore-term", "pid-file", &home.at("pid"), "sleep"];
    home.lane_with("a", &words, "stop_grace = \"2s\"");
    let first = home.start();
    let worker = home.until_pid("pid");
    home.until_running("a");
    // The order is on disk before it is answered; its client is not waited for.
    let client = home.follow(&["stop", "a"]);
    home.until_state("a", "stopping");
    first.kill9();
    client.end();
    home.start();
    proc::until_gone(worker);
    home.until_state("a", "stopped");
    home.end();
}

#[test]
fn a_tree_whose_keeper_died_is_ended_whole() {
    let mut home = Home::new("straytree");
    let words = ["ignore-term", "grandchild", &home.at("grandchild"), "sleep"];
    home.lane_with("a", &words, ONE_RUN);
    home.start();
    home.until_running("a");
    let grandchild = home.until_pid("grandchild");
    replace_keeper(&home);
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    proc::until_gone(grandchild);
}

#[test]
fn a_warden_that_waits_for_its_keeper_can_be_ended() {
    let mut home = Home::new("waiting");
    home.lane("a", &["sleep"]);
    home.configure();
    let warden = home.launch(&["--keeper", "unit"]);
    until("the warden to answer that it is not ready", || {
        let answer = home.http("/readyz")?;
        if answer.status == 503 { Ok(()) } else { Err(answer.body) }
    });
    assert_eq!(warden.term().code(), Some(0));
}

#[test]
fn a_second_keeper_is_refused() {
    let mut home = Home::new("keepers");
    home.lane("a", &["sleep"]);
    home.start();
    let worker = home.until_running("a");
    let refused = home.run(&["keep", "--allow-root"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    the_keeper(&home);
    assert_eq!(home.until_running("a"), worker);
    home.end();
}

#[test]
fn an_occupied_lane_works_when_its_occupant_has_left() {
    let mut home = Home::new("occupant");
    home.lane("a", &["sleep"]);
    let mut sitter = lanewarden_tests::command::command(Path::new("/bin/sleep"));
    sitter.arg("600").current_dir(&home.plan.lanes[0].dir);
    let sitter = background(sitter, &home.path("sitter"));
    home.start();
    let lane = home.until_state("a", "occupied");
    assert!(lane["reason"].as_str().unwrap().contains("(sleep)"), "{lane}");
    assert!(home.workers("sleep").is_empty());
    sitter.end();
    home.until_running("a");
    home.end();
}

#[test]
fn kills_at_any_moment_lose_no_run_and_double_none() {
    let mut home = Home::new("anytime");
    home.lane_with(
        "a",
        &["exit", "3"],
        "restart = { delay = \"5ms\", max_delay = \"5ms\", min_gap = \"5ms\", breaker = 0 }",
    );
    let mut warden = home.start();
    let series = "lanewarden_runs_finished_total{lane=\"a\",verdict=\"failed\"}";
    for (round, least) in (0..8_u64).zip(1_u32..) {
        home.until_metric(series, f64::from(least));
        throughout(Duration::from_millis(60 + round * 17), "at most one worker", || {
            let workers = home.workers("exit");
            if workers.len() <= 1 { Ok(()) } else { Err(workers) }
        });
        warden.kill9();
        warden = home.start();
    }
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    let runs = home.run(&["history", "a", "--json", "--limit", "10000"]).json();
    let runs = runs.as_array().unwrap();
    assert!(runs.len() >= 8, "{} runs", runs.len());
    let odd: Vec<_> = runs.iter().filter(|run| run["exit_code"] != 3).collect();
    // The order to start may die with the warden that gave it; nothing else may get lost.
    assert!(odd.iter().all(|run| run["pid"].is_null()), "{odd:#?}");
    lanewarden_tests::note(&format!("{} runs, {} never confirmed", runs.len(), odd.len()));
    home.end();
}

#[test]
fn the_end_of_a_box_leaves_no_cgroup() {
    if !has(&[Need::MemoryCgroup]) {
        return;
    }
    let mut home = Home::new("cgroups");
    for number in 0..12 {
        home.lane(&format!("l{number}"), &["sleep"]);
    }
    home.start();
    for number in 0..12 {
        home.until_running(&format!("l{number}"));
    }
    let keeper = the_keeper(&home);
    assert!(cgroup::of_keeper(keeper).len() > 12, "{:?}", cgroup::of_keeper(keeper));
    home.end();
    assert_eq!(cgroup::of_keeper(keeper), Vec::<std::path::PathBuf>::new());
}
