//! Orders to lanes, deadlines, and that nothing of a stopped worker is left.

use std::time::Duration;

use lanewarden_tests::{Home, note, proc, until, wait::throughout};
use rustix::process::Signal;
use serde_json::Value;

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

#[test]
fn a_stopped_lane_stays_down_until_it_is_started() {
    let mut home = Home::new("stop");
    home.lane("a", &["sleep"]);
    home.lane("b", &["sleep"]);
    let warden = home.start();
    let (a, b) = (home.until_running("a"), home.until_running("b"));
    let stopped = home.run(&["stop", "a"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(!proc::runs(a), "the answer comes after the end");
    home.until_state("a", "stopped");
    assert_eq!(home.history("a")[0]["verdict"], "stopped");
    assert_eq!(home.history("a")[0]["evidence"]["ordered"], "order");

    // An order outlives the warden that got it.
    warden.kill9();
    home.start();
    home.until_state("a", "stopped");
    assert_eq!(home.until_running("b"), b);
    assert_eq!(home.run(&["stop", "a"]).code, 0, "again");

    assert_eq!(home.run(&["start", "a"]).code, 0);
    let next = home.until_running("a");
    assert_ne!(next, a);
    home.end();
}

#[test]
fn restart_ends_one_worker_and_starts_one() {
    let mut home = Home::new("restart");
    home.lane_with("a", &["sleep"], ONE_RUN);
    home.start();
    let first = home.until_running("a");
    let answer = home.run(&["restart", "a"]);
    assert_eq!(answer.code, 0, "{answer:?}");
    assert!(!proc::runs(first));
    let second = home.until_running("a");
    assert_ne!(first, second);
    assert_eq!(home.workers("sleep"), [second]);
    let run = &home.history("a")[0];
    assert_eq!(
        (&run["verdict"], &run["evidence"]["ordered"]),
        (&"stopped".into(), &"restart".into())
    );
    home.end();
}

#[test]
fn stop_ends_a_whole_tree_that_ignores_term() {
    let mut home = Home::new("tree");
    let (grandchild, own) = (home.at("grandchild"), home.at("own"));
    home.lane("a", &["ignore-term", "grandchild", &grandchild, "pid-file", &own, "sleep"]);
    home.start();
    let (grandchild, own) = (home.until_pid("grandchild"), home.until_pid("own"));
    assert_ne!(
        rustix::process::getsid(Some(proc::pid(grandchild))).unwrap(),
        rustix::process::getsid(Some(proc::pid(own))).unwrap(),
        "it is in a session of its own"
    );
    let stopped = home.run(&["stop", "a"]);
    assert_eq!(stopped.code, 0, "{stopped:?}");
    assert!(
        !proc::runs(own) && !proc::runs(grandchild),
        "both are gone when the order is answered"
    );
    let run = &home.history("a")[0];
    assert_eq!(run["end"], "killed-by-us", "{run}");
    assert_eq!(run["evidence"]["survivors"], serde_json::json!([]), "{run}");
    home.until_metric("lanewarden_stop_signals_total{lane=\"a\",signal=\"term\"}", 1.0);
    home.until_metric("lanewarden_stop_signals_total{lane=\"a\",signal=\"kill\"}", 1.0);
    home.end();
}

#[test]
fn what_a_worker_leaves_behind_does_not_outlive_its_run() {
    let mut home = Home::new("leftover");
    home.lane_with("a", &["grandchild", &home.at("grandchild"), "exit", "3"], ONE_RUN);
    home.start();
    let lane = home.until_verdict("a", "failed");
    assert_eq!(lane["last"]["exit_code"], 3, "{lane}");
    let grandchild = home.until_pid("grandchild");
    assert!(!proc::runs(grandchild), "it is gone before the run is judged");
    let run = &home.history("a")[0];
    assert!(run["evidence"]["leftovers"].as_u64().is_some_and(|left| left >= 1), "{run}");
    home.end();
}

#[test]
fn a_deadline_ends_a_worker_that_ignores_term() {
    let mut home = Home::new("deadline");
    let words = ["ignore-term", "grandchild", &home.at("grandchild"), "sleep"];
    let extra = format!("{ONE_RUN}deadline = \"1s\"\nstop_grace = \"200ms\"");
    home.lane_with("a", &words, &extra);
    home.start();
    let grandchild = home.until_pid("grandchild");
    let lane = home.until_verdict("a", "deadline");
    assert!(!proc::runs(grandchild));
    let lived = lane["last"]["duration_s"].as_f64().unwrap();
    assert!((1.1..4.0).contains(&lived), "{lived} s");
    assert_eq!(lane["last"]["end"], "killed-by-us");
    home.end();
}

#[test]
fn a_worker_that_listens_to_term_is_not_killed() {
    let mut home = Home::new("polite");
    home.lane_with("a", &["sleep"], "stop_grace = \"1m\"");
    home.start();
    home.until_running("a");
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    let run = &home.history("a")[0];
    assert_eq!((&run["signal"], &run["end"]), (&15.into(), &Value::Null), "{run}");
    home.end();
}

#[test]
fn drain_lets_workers_finish_and_starts_nothing() {
    let mut home = Home::new("drain");
    let go = home.at("go");
    home.lane("works", &["wait-for", &go, "marker", "finalized"]);
    home.lane_with("cools", &["exit", "1"], ONE_RUN);
    home.start();
    let worker = home.until_running("works");
    home.until_state("cools", "cooling");
    let drained = home.run(&["drain"]);
    assert_eq!(drained.code, 0, "{drained:?}");
    assert!(drained.stdout.contains("1 worker"), "{drained:?}");
    home.until_state("cools", "stopped");
    assert!(proc::runs(worker));
    let refused = home.run(&["start", "cools"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("draining"), "{refused:?}");
    std::fs::write(go, "").unwrap();
    home.until_state("works", "stopped");
    assert_eq!(home.history("works")[0]["verdict"], "finalized");
    throughout(Duration::from_millis(300), "quiet", || {
        let workers = home.workers("");
        if workers.is_empty() { Ok(()) } else { Err(workers) }
    });
    home.end();
}

#[test]
fn a_breaker_trips_and_start_tries_again() {
    let mut home = Home::new("breaker");
    home.lane("a", &["exit", "7"]);
    home.start();
    home.until_state("a", "tripped");
    assert_eq!(home.history("a").len(), 3);
    throughout(Duration::from_millis(400), "down", || match home.lane_view("a") {
        Ok(lane) if lane["state"] == "tripped" => Ok(()),
        other => Err(other),
    });
    home.until_metric("lanewarden_breaker_trips_total{lane=\"a\"}", 1.0);
    assert_eq!(home.run(&["start", "a"]).code, 0);
    home.until_metric("lanewarden_breaker_trips_total{lane=\"a\"}", 2.0);
    assert_eq!(home.history("a").len(), 6);
    home.end();
}

#[test]
fn a_tripped_lane_stays_tripped_over_a_restart_of_the_warden() {
    let mut home = Home::new("tripped");
    home.lane("a", &["exit", "7"]);
    let warden = home.start();
    home.until_state("a", "tripped");
    warden.kill9();
    home.start();
    home.until_state("a", "tripped");
    assert_eq!(home.history("a").len(), 3);
    home.end();
}

#[test]
fn a_worker_that_dies_is_replaced() {
    let mut home = Home::new("replace");
    home.lane_with("a", &["sleep"], "restart = { delay = \"0s\", breaker = 0 }");
    home.start();
    let first = home.until_running("a");
    proc::signal(first, Signal::KILL);
    let lane = home.until_lane("a", "another worker", |lane| {
        lane["state"] == "running" && lane["pid"].as_u64() != Some(first.into())
    });
    assert_eq!(lane["last"]["verdict"], "signalled");
    let (ended, next) = (&lane["last"]["ended_at_ms"], &lane["run_started_ms"]);
    let took = next.as_i64().unwrap() - ended.as_i64().unwrap();
    note(&format!("from the end of a worker to its replacement: {took} ms"));
    home.end();
}

#[test]
fn orders_to_nobody_are_refused_with_the_names_that_there_are() {
    let mut home = Home::new("nobody");
    home.lane("a", &["sleep"]);
    home.start();
    for order in ["stop", "start", "restart"] {
        let refused = home.run(&[order, "b"]);
        assert_eq!(refused.code, 1, "{refused:?}");
        assert!(refused.stderr.contains("no lane b is configured; there are: a"), "{refused:?}");
    }
    home.end();
}

#[test]
fn a_restart_during_the_end_at_a_deadline_is_answered() {
    let mut home = Home::new("late");
    let extra = format!("{ONE_RUN}deadline = \"500ms\"\nstop_grace = \"1500ms\"");
    home.lane_with("a", &["ignore-term", "sleep"], &extra);
    home.start();
    let first = home.until_running("a");
    home.until_state("a", "stopping");
    let client = home.follow(&["restart", "a"]);
    home.until_lane("a", "another worker", |lane| {
        lane["pid"].as_u64().is_some_and(|pid| pid != u64::from(first))
    });
    until("the order's answer", || {
        let text = client.text();
        if text.contains("starts another") { Ok(()) } else { Err(text) }
    });
    client.end();
}

#[test]
fn a_drain_ends_with_its_daemon() {
    let mut home = Home::new("drained");
    let go = home.at("go");
    home.lane("a", &["once", &home.at("ran"), "wait-for", &go, "marker", "finalized"]);
    let warden = home.start();
    home.until_running("a");
    assert_eq!(home.run(&["drain"]).code, 0);
    assert!(warden.term().success());
    // As the refusal of `start` says: restart the daemon to end that.
    home.start();
    std::fs::write(&go, "").unwrap();
    home.until_lane("a", "working again", |lane| {
        lane["state"] == "running" && lane["last"]["verdict"] == "finalized"
    });
    home.end();
}

#[test]
fn a_budget_that_is_used_up_rests_the_lane_until_it_is_started() {
    let mut home = Home::new("budget");
    home.lane_with("a", &["marker", "finalized"], "budget = { runs = 2 }");
    home.start();
    home.until_state("a", "exhausted");
    assert_eq!(home.history("a").len(), 2);
    let report = home.run(&["dead-lanes", "--certify"]);
    assert_eq!(report.code, 1, "a lane that gave up is nobody's healthy lane: {report:?}");
    assert_eq!(home.run(&["start", "a"]).code, 0);
    home.until_lane("a", "exhausted again", |lane| {
        lane["state"] == "exhausted" && home.history("a").len() == 4
    });
    home.end();
}
