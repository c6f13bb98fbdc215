//! What a worker sees of the world (design 4.3).

use std::collections::BTreeSet;

use lanewarden_tests::{Home, command::run, proc, until};
use serde_json::Value;

#[test]
fn a_worker_gets_a_clean_inheritance() {
    let mut home = Home::new("world");
    home.lane_with("a", &["report", &home.at("report"), "sleep"], "oom_score_adj = 700");
    home.configure();
    // What a service manager would tell the warden must not reach the worker.
    let mut command = home.command();
    command.arg("run").envs([
        ("LISTEN_FDS", "1"),
        ("WATCHDOG_USEC", "1"),
        ("CREDENTIALS_DIRECTORY", "/nowhere"),
        ("A_SECRET", "x"),
    ]);
    let warden = home.adopt(command);
    let worker = home.until_running("a");
    let report = until("the worker's report", || {
        let text = std::fs::read_to_string(home.path("report")).map_err(|e| e.to_string())?;
        serde_json::from_str::<Value>(&text).map_err(|error| error.to_string())
    });
    assert_eq!(report["cwd"], home.plan.lanes[0].dir.display().to_string());
    for own in ["pid", "sid", "pgid"] {
        assert_eq!(report[own], worker, "{own}");
    }
    assert_eq!(report["oom_score_adj"], "700");

    let fds: BTreeSet<&str> =
        report["fds"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(fds, BTreeSet::from(["0", "1", "2"]), "{report}");
    assert_eq!(report["fds"]["0"], "/dev/null");
    assert_eq!(report["fds"]["1"], report["fds"]["2"]);
    assert!(report["fds"]["1"].as_str().unwrap().ends_with(".log"), "{}", report["fds"]);

    let env = &report["env"];
    let run = home.lane_view("a").unwrap()["run"].clone();
    assert_eq!((&env["LANEWARDEN_LANE"], &env["LANE_ID"]), (&"a".into(), &"a".into()));
    assert_eq!(env["LANEWARDEN_RUN"], run);
    assert_eq!(env["CLAIM_ACTOR"], "flow-a");
    assert_eq!(env["LANEWARDEN_MARKER"], env["MARKER_FILE"]);
    let epoch = env["LANEWARDEN_EPOCH"].as_str().and_then(|epoch| epoch.parse::<u64>().ok());
    assert!(epoch >= Some(1), "{env}");
    assert!(env["LANEWARDEN_SOCKET"].is_string() && env["PATH"].is_string(), "{env}");
    let strangers = [
        "NOTIFY_SOCKET",
        "LISTEN_FDS",
        "LISTEN_PID",
        "WATCHDOG_USEC",
        "CREDENTIALS_DIRECTORY",
        "A_SECRET",
        "RUST_BACKTRACE",
    ];
    for stranger in strangers {
        assert!(env[stranger].is_null(), "{stranger} reached the worker");
    }
    for mask in ["SigBlk", "SigIgn"] {
        let line = report["status"].as_str().unwrap().lines().find(|line| line.starts_with(mask));
        let value = line.unwrap().rsplit('\t').next().unwrap();
        // The fixture's own runtime ignores SIGPIPE, signal 13.
        let own = if mask == "SigIgn" { 1 << 12 } else { 0 };
        assert_eq!(u64::from_str_radix(value, 16).unwrap() & !own, 0, "{line:?}");
    }
    drop(warden);
    home.end();
}

#[test]
fn a_worker_tells_its_issue_over_the_socket() {
    let mut home = Home::new("issue");
    home.lane("a", &["report", &home.at("report"), "sleep"]);
    home.start();
    home.until_running("a");
    let report = until("the worker's report", || {
        let text = std::fs::read_to_string(home.path("report")).map_err(|e| e.to_string())?;
        serde_json::from_str::<Value>(&text).map_err(|error| error.to_string())
    });
    let mut command = home.command();
    command.args(["lane", "issue", "42"]);
    for name in ["LANEWARDEN_LANE", "LANEWARDEN_SOCKET"] {
        command.env(name, report["env"][name].as_str().unwrap());
    }
    let told = run(command);
    assert_eq!(told.code, 0, "{told:?}");
    home.until_lane("a", "issue 42", |lane| lane["issue"] == 42);
    home.end();
}

#[test]
fn what_a_worker_prints_is_in_its_log() {
    let mut home = Home::new("logs");
    let gate = home.at("gate");
    home.lane(
        "a",
        &["say", "the first line", "wait-for", &gate, "say", "the second line", "sleep"],
    );
    home.start();
    home.until_running("a");
    let log = until("the first line", || {
        let logs = home.run(&["logs", "a"]);
        if logs.stdout == "the first line\n" { Ok(logs) } else { Err(logs) }
    });
    assert_eq!(log.code, 0);
    let follower = home.follow(&["logs", "a", "-f"]);
    until("the follower to copy what is there", || {
        let text = follower.text();
        if text.contains("the first line") { Ok(()) } else { Err(text) }
    });
    std::fs::write(&gate, "").unwrap();
    until("the follower to copy what comes", || {
        let text = follower.text();
        if text == "the first line\nthe second line\n" { Ok(()) } else { Err(text) }
    });
    // It goes on with the next run.
    assert_eq!(home.run(&["restart", "a"]).code, 0);
    until("the follower to go on with the next run", || {
        let text = follower.text();
        if text.matches("the first line").count() == 2 { Ok(()) } else { Err(text) }
    });
    let older = home.history("a")[0]["run"].as_str().unwrap().to_owned();
    let logs = home.run(&["logs", "a", "--run", &older.chars().take(8).collect::<String>()]);
    assert_eq!(logs.stdout, "the first line\nthe second line\n");
    assert_eq!(home.run(&["logs", "a", "--run", "zzzz"]).code, 1);
    assert!(proc::runs(home.until_running("a")));
    follower.end();
    home.end();
}
