//! Bad input has a clear message and the right verdict or exit, and hurts no other lane.

use std::{fs, net::TcpListener, os::unix::fs::symlink};

use lanewarden_tests::{
    Home,
    git::{Mood, Server},
    proc, until,
};

/// A box with a lane that must not notice anything.
fn with_witness(name: &str) -> Home {
    let mut home = Home::new(name);
    home.lane("witness", &["sleep"]);
    home
}

fn assert_witness_runs(home: &Home) {
    let worker = home.until_running("witness");
    assert!(proc::runs(worker) && home.history("witness").is_empty());
}

fn assert_not_started(home: &Home, words: &[&str]) {
    home.until_state("bad", "tripped");
    let run = &home.history("bad")[0];
    assert_eq!(run["verdict"], "not-started", "{run}");
    let reason = run["reason"].as_str().unwrap();
    for word in words {
        assert!(reason.contains(word), "no {word:?} in {reason:?}");
    }
    assert_witness_runs(home);
    let checked = home.run(&["check"]);
    assert_eq!(checked.code, 78, "{checked:?}");
    home.end();
}

#[test]
fn a_missing_program() {
    let mut home = with_witness("program");
    home.lane("bad", &[]);
    home.plan.lanes[1].command = vec!["/no/such/program".to_owned()];
    home.start();
    assert_not_started(&home, &["/no/such/program"]);
}

#[test]
fn a_file_that_is_no_program() {
    let mut home = with_witness("noexec");
    home.lane("bad", &[]);
    fs::write(home.path("text"), "no program").unwrap();
    home.plan.lanes[1].command = vec![home.at("text")];
    home.start();
    assert_not_started(&home, &["text"]);
}

#[test]
fn a_missing_lane_directory() {
    let mut home = with_witness("nodir");
    home.lane("bad", &["sleep"]);
    home.plan.lanes[1].dir = home.path("no-such-lane");
    home.start();
    assert_not_started(&home, &["no-such-lane", "create the checkout or correct `dir`"]);
}

#[test]
fn a_lane_directory_that_is_a_file() {
    let mut home = with_witness("filedir");
    home.lane("bad", &["sleep"]);
    fs::write(home.path("file"), "").unwrap();
    home.plan.lanes[1].dir = home.path("file");
    home.start();
    assert_not_started(&home, &["is not a directory"]);
}

#[test]
fn a_directory_that_is_no_checkout() {
    let mut home = with_witness("checkout");
    home.lane("bad", &["sleep"]);
    let dir = home.path("plain");
    fs::create_dir(&dir).unwrap();
    home.plan.lanes[1].dir = dir;
    home.configure();
    let checked = home.run(&["check"]);
    assert_eq!(checked.code, 0, "{checked:?}");
    assert!(checked.stdout.contains("is not the top of a git checkout"), "{checked:?}");
    assert!(checked.stdout.contains("git worktree add"), "{checked:?}");
    home.start();
    home.until_running("bad");
    assert_witness_runs(&home);
    home.end();
}

fn assert_refused(home: &Home, words: &[&str]) {
    home.configure();
    for command in ["check", "run"] {
        let refused = home.run(&[command]);
        assert_eq!(refused.code, 78, "{refused:?}");
        let all = format!("{}{}", refused.stdout, refused.stderr);
        for word in words {
            assert!(all.contains(word), "{command}: no {word:?} in {all}");
        }
    }
    assert!(home.workers("").is_empty(), "nothing was started");
}

#[test]
fn two_lanes_with_one_directory() {
    let mut home = with_witness("shared");
    home.lane("bad", &["sleep"]);
    home.plan.lanes[1].dir = home.plan.lanes[0].dir.clone();
    assert_refused(&home, &["lane[1].dir", "is another lane's directory"]);
}

#[test]
fn two_lanes_with_one_directory_through_a_link() {
    let mut home = with_witness("linked");
    home.lane("bad", &["sleep"]);
    symlink(&home.plan.lanes[0].dir, home.path("link")).unwrap();
    home.plan.lanes[1].dir = home.path("link");
    assert_refused(&home, &["witness", "bad"]);
}

#[test]
fn two_lanes_with_one_directory_hurt_no_running_lane() {
    let mut home = with_witness("later");
    let warden = home.start();
    let worker = home.until_running("witness");
    assert!(warden.term().success());
    home.lane("bad", &["sleep"]);
    home.plan.lanes[1].dir = home.plan.lanes[0].dir.clone();
    home.configure();
    assert_eq!(home.run(&["run"]).code, 78);
    assert!(proc::runs(worker));
    home.plan.lanes.truncate(1);
    home.start();
    assert_eq!(home.until_running("witness"), worker);
    home.end();
}

/// A worker leaves this marker and exits 0.
fn marker(kind: &str, verdict: &str, word: &str) {
    let mut home = with_witness(kind);
    let words = ["marker", kind];
    home.lane_with("bad", &words, "restart = { breaker = 1 }");
    home.start();
    home.until_verdict("bad", verdict);
    let run = &home.history("bad")[0];
    let reason = run["reason"].as_str().unwrap();
    assert!(reason.contains(word), "no {word:?} in {reason:?}");
    assert!(reason.chars().all(|c| !c.is_control()), "{reason:?}");
    assert_eq!(run["exit_code"], 0, "{run}");
    home.until_state("bad", "tripped");
    assert_witness_runs(&home);
    home.end();
}

#[test]
fn a_marker_of_garbage() {
    marker("garbage", "marker-invalid", "not JSON");
}

#[test]
fn a_huge_marker() {
    marker("huge", "marker-invalid", "larger than");
}

#[test]
fn a_marker_that_is_a_fifo() {
    marker("fifo", "marker-invalid", "FIFO");
}

#[test]
fn a_marker_of_another_run() {
    marker("stale", "marker-stale", "00000000000000000000000000000000");
}

#[test]
fn a_remote_that_hangs() {
    let mut home = with_witness("hang");
    let server = Server::start(&home.path("remotes"));
    server.set(Mood::Hang);
    home.plan.remote = Some(server.url("fleet.git"));
    home.plan.remote_deadline = "1s".to_owned();
    home.start();
    assert_witness_runs(&home);
    let series = "lanewarden_claim_push_failures_total{reason=\"timeout\"}";
    home.until_metric(series, 1.0);
    home.end();
}

#[test]
fn a_port_in_use() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut home = with_witness("port");
    home.plan.listen = other.local_addr().unwrap().to_string();
    home.configure();
    let warden = home.launch(&[]);
    let pid = until("the worker to run all the same", || {
        let status = home.run(&["status", "--json"]);
        if status.code != 0 {
            return Err(status.stderr);
        }
        let lane = status.json()["lanes"][0].clone();
        if lane["state"] == "running" { Ok(lane["pid"].clone()) } else { Err(lane.to_string()) }
    });
    let log = home.log();
    assert!(log.contains("cannot be listened on") && log.contains("[metrics] listen"), "{log}");
    assert!(warden.status().is_none());
    // It is tried again; nobody restarts anything.
    drop(other);
    until("the page to be served", || home.http("/metrics").map(drop));
    assert_eq!(home.until_running("witness"), u32::try_from(pid.as_u64().unwrap()).unwrap());
    home.end();
}

#[test]
fn a_state_directory_that_cannot_be() {
    let mut home = with_witness("statefile");
    fs::write(home.path("file"), "").unwrap();
    home.plan.state_dir = home.path("file/state");
    assert_refused(&home, &["file"]);
}

#[test]
fn a_runtime_directory_that_cannot_be() {
    let mut home = with_witness("runfile");
    fs::write(home.path("file"), "").unwrap();
    home.plan.runtime_dir = home.path("file/run");
    assert_refused(&home, &["file"]);
}

/// A configuration with this wrong line: key, value and line are named, by every command that reads it.
fn assert_wrong(wrong: &str, words: &[&str]) {
    let mut home = Home::new("wrong");
    if wrong.starts_with("lame_root") {
        home.plan.top = wrong.to_owned();
    } else {
        home.plan.defaults = wrong.to_owned();
    }
    home.configure();
    let text = fs::read_to_string(home.config()).unwrap();
    let line = 1 + text.lines().position(|line| line == wrong).unwrap();
    let place = format!("config.toml:{line}: ");
    for command in [&["check"][..], &["run"], &["status"], &["history"], &["dead-lanes"]] {
        let refused = home.run(command);
        assert_eq!(refused.code, 78, "{command:?}: {refused:?}");
        for word in words.iter().chain([&place.as_str()]) {
            assert!(
                refused.stderr.contains(word),
                "{command:?}: no {word:?} in {}",
                refused.stderr
            );
        }
    }
}

#[test]
fn a_configuration_that_is_wrong_names_key_value_and_line() {
    assert_wrong("lame_root = \"/x\"", &["lame_root"]);
    assert_wrong("deadline = \"2 fortnights\"", &["deadline", "2 fortnights"]);
    assert_wrong("deadline = 7200", &["deadline", "7200", "units are"]);
    assert_wrong("limits = { memory_max = \"lots\" }", &["memory_max", "lots"]);
    assert_wrong("deadline = \"0s\"", &["deadline", "0s"]);
    assert_wrong("oom_score_adj = 4000", &["oom_score_adj", "4000"]);
}

#[test]
fn a_configuration_that_is_no_toml_or_not_there() {
    let home = Home::new("notoml");
    fs::write(home.config(), "machine = \n[[").unwrap();
    let refused = home.run(&["run"]);
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("config.toml:1"), "{refused:?}");
    fs::remove_file(home.config()).unwrap();
    let refused = home.run(&["run"]);
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("config.toml"), "{refused:?}");
}

#[test]
fn a_box_without_lanes_is_no_mistake() {
    let mut home = Home::new("empty");
    home.plan.lane_root = home.path("not/there/yet");
    let warden = home.start();
    assert_eq!(home.view().unwrap()["lanes"], serde_json::json!([]));
    assert!(home.path("not/there/yet").is_dir());
    assert_eq!(home.run(&["check"]).code, 0);
    assert!(warden.status().is_none());
    home.end();
}

#[test]
fn admission_that_refuses_holds_a_lane_and_says_why() {
    let mut home = Home::new("held");
    home.plan.admission = "disk_free_min = \"1024T\"".to_owned();
    home.lane("a", &["sleep"]);
    home.start();
    let lane = home.until_state("a", "held");
    let reason = lane["reason"].as_str().unwrap();
    assert!(reason.contains("disk") && reason.contains("disk_free_min"), "{reason}");
    assert!(home.workers("").is_empty());
    home.until_metric("lanewarden_admission_refusals_total{check=\"disk\"}", 1.0);
    home.end();
}
