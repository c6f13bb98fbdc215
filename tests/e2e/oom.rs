//! OOM kills by the kernel, told once whatever the daemon went through, and blamed on the lane whose they were.

use lanewarden_tests::{
    Home, http, proc,
    requires::{Need, has},
    until,
};
use std::fs;

/// One run, which the kernel ends at 24 MiB.
const LIMITED: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n\
                       limits = { memory_max = \"24M\" }";
const KILLS: &str = "lanewarden_oom_kills_total{lane=\"a\",kind=\"oom-memcg\"}";

fn kills(home: &Home) -> Option<f64> {
    http::sample(&home.metrics(), KILLS)
}

/// Kills by the kernel in lane `a`, named or not.
fn all_kills(home: &Home) -> Option<f64> {
    let unnamed = "lanewarden_oom_kills_total{lane=\"a\",kind=\"oom-unnamed\"}";
    Some(kills(home)? + http::sample(&home.metrics(), unnamed)?)
}

/// Each kill is the lane's: by its record, or, where a storm anywhere on the box keeps that from telling, by its counter.
fn until_all_are_counted(home: &Home, all: f64) {
    until("all kills to be counted", || match all_kills(home) {
        Some(counted) if (counted - all).abs() < 0.5 => Ok(()),
        other => Err(format!("{other:?}\n{}", home.log())),
    });
}

/// Starts another daemon and asserts that it finds nothing new.
fn assert_told_once(home: &Home, kills_so_far: f64) {
    home.start();
    home.until_metric("lanewarden_loop_iteration_duration_seconds_count", 3.0);
    assert_eq!(all_kills(home), Some(kills_so_far));
}

#[test]
fn a_worker_that_the_kernel_killed_while_no_daemon_ran_is_told_once() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let mut home = Home::new("oom-away");
    let go = home.at("go");
    home.lane_with("a", &["wait-for", &go, "eat", "256"], LIMITED);
    let first = home.start();
    let worker = home.until_running("a");
    first.kill9();
    fs::write(&go, "").unwrap();
    proc::until_gone(worker);
    let second = home.start();
    home.until_verdict("a", "oom-killed");
    let newest = &home.history("a")[0];
    assert_eq!(newest["end"], "oom-memcg", "{newest}");
    let named = newest["evidence"]["oom_kills_named"].as_array().cloned().unwrap_or_default();
    assert_eq!(named.len(), 1, "{newest}");
    assert_eq!(named[0]["kill"]["pid"], worker, "{newest}");
    home.until_metric(KILLS, 1.0);
    assert_eq!(kills(&home), Some(1.0));
    second.kill9();
    assert_told_once(&home, 1.0);
    home.end();
}

#[test]
fn a_child_that_the_kernel_killed_while_no_daemon_ran_is_told_once() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let mut home = Home::new("oom-child-away");
    let (go, done) = (home.at("go"), home.at("done"));
    let words = ["wait-for", &go, "child-eats", "256", "touch", &done, "sleep"];
    home.lane_with("a", &words, LIMITED);
    let first = home.start();
    let worker = home.until_running("a");
    first.kill9();
    fs::write(&go, "").unwrap();
    until("the child to be killed", || {
        if home.path("done").exists() { Ok(()) } else { Err("not yet") }
    });
    let second = home.start();
    assert_eq!(home.until_running("a"), worker);
    until_all_are_counted(&home, 1.0);
    second.kill9();
    assert_told_once(&home, 1.0);
    home.end();
}
