//! What cron asks: what is dead on this box right now?

use std::{collections::BTreeSet, fs, path::Path};

use lanewarden_tests::{
    Home,
    command::{command, run_shell},
    git::{Bare, git},
    proc, until,
};
use rustix::process::Signal;
use serde_json::Value;

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn a_healthy_box_is_quiet_and_can_be_certified() {
    let mut home = Home::new("healthy");
    home.lane("a", &["sleep"]);
    home.lane_with("b", &["marker", "no-work"], ONE_RUN);
    home.start();
    home.until_running("a");
    home.until_verdict("b", "no-work");
    let report = home.run(&["dead-lanes"]);
    assert_eq!(
        (report.code, report.stdout.as_str(), report.stderr.as_str()),
        (1, "", ""),
        "cron mails nothing"
    );
    let report = home.run(&["dead-lanes", "--certify"]);
    assert_eq!(report.code, 0, "{report:?}");
    let json = home.run(&["dead-lanes", "--certify", "--json"]).json();
    assert_eq!(json["certified"], true, "{json}");
    for key in ["machine", "lanes", "dead", "unknown", "foreign", "certified"] {
        assert!(keys(&json).contains(key), "{key}: {json}");
    }
    let row = &json["lanes"][0];
    for key in ["ref", "machine", "lane", "verdict", "pid", "issue", "age_s", "open_pr", "detail"] {
        assert!(keys(row).contains(key), "{key}: {row}");
    }
    assert_eq!(
        (&json["lanes"][0]["verdict"], &json["lanes"][1]["verdict"]),
        (&"ALIVE".into(), &"NO-WORKER".into())
    );
    let uncertified = home.run(&["dead-lanes", "--json"]).json();
    assert_eq!(uncertified["certified"], false, "nobody asked for a certificate");
    home.end();
}

#[test]
fn a_worker_that_died_with_its_warden_is_dead() {
    let mut home = Home::new("dead");
    home.lane("a", &["sleep"]);
    home.lane("b", &["sleep"]);
    let warden = home.start();
    let worker = home.until_running("a");
    home.until_running("b");
    warden.kill9();
    proc::signal(worker, Signal::KILL);
    proc::until_gone(worker);
    let report = home.run(&["dead-lanes"]);
    assert_eq!(report.code, 3, "{report:?}");
    assert!(report.stdout.contains("DEAD-NO-PROCESS"), "{report:?}");
    let json = home.run(&["dead-lanes", "--certify", "--json"]);
    assert_eq!(json.code, 3, "{json:?}");
    let json = json.json();
    assert_eq!(
        (&json["dead"], &json["unknown"], &json["certified"]),
        (&1.into(), &0.into(), &false.into())
    );
    assert_eq!(json["lanes"][0]["verdict"], "DEAD-NO-PROCESS");
    assert_eq!(json["lanes"][0]["pid"], worker);
    // The other one lives, whoever watches it.
    assert_eq!(json["lanes"][1]["verdict"], "ALIVE");
}

#[test]
fn a_lane_that_gave_up_is_not_certified_and_not_dead() {
    let mut home = Home::new("tripped");
    home.lane("a", &["exit", "1"]);
    home.start();
    home.until_state("a", "tripped");
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    assert_eq!(report.code, 1, "{report:?}");
    let json = report.json();
    assert_eq!(
        (&json["dead"], &json["lanes"][0]["verdict"]),
        (&0.into(), &"NO-WORKER".into()),
        "{json}"
    );
    home.end();
}

#[test]
fn a_lane_in_which_somebody_else_works_is_not_certified() {
    let mut home = Home::new("somebody-else");
    home.lane("a", &["sleep"]);
    let dir = home.plan.lanes[0].dir.clone();
    let mut sleep = command(Path::new("sleep"));
    let mut stranger = sleep.arg("1000").current_dir(&dir).spawn().unwrap();
    home.start();
    home.until_state("a", "occupied");
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    // The stranger can lock the lane: the daemon has given it back.
    let pid = stranger.id().to_string();
    let dir = dir.display().to_string();
    let locked = home.run(&["lane", "acquire", "9", "--dir", &dir, "--pid", &pid]);
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    assert_eq!(report.code, 1, "{report:?}");
    assert_eq!(report.json()["lanes"][0]["verdict"], "UNKNOWN-IDENTITY", "{report:?}");
    assert_eq!(locked.code, 0, "{locked:?}");
    home.end();
}

#[test]
fn a_daemon_that_hangs_is_not_absent() {
    let mut home = Home::new("hung");
    home.lane("a", &["exit", "1"]);
    let warden = home.start();
    home.until_state("a", "tripped");
    warden.signal(Signal::STOP);
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    warden.signal(Signal::CONT);
    assert_eq!(report.code, 1, "{report:?}");
    let json = report.json();
    assert_eq!(json["lanes"][0]["verdict"], "UNKNOWN-PROBE", "{json}");
    assert!(json["incomplete"].as_array().is_some_and(|why| !why.is_empty()), "{json}");
    home.end();
}

#[test]
fn a_textfile_that_cannot_be_written_hides_no_finding() {
    let mut home = Home::new("no-textfile");
    home.lane("a", &["sleep"]);
    let warden = home.start();
    let worker = home.until_running("a");
    warden.kill9();
    for keeper in home.keepers() {
        proc::signal(keeper, Signal::KILL);
    }
    proc::signal(worker, Signal::KILL);
    proc::until_gone(worker);
    let fifo = home.at("fifo.prom");
    assert_eq!(run_shell(&format!("mkfifo {fifo}")).code, 0);
    for place in [home.at("no/such/x.prom"), fifo.clone()] {
        let report = home.run(&["dead-lanes", "--textfile", &place]);
        assert_eq!(report.code, 3, "{report:?}");
        assert!(report.stdout.contains("DEAD-NO-PROCESS"), "{report:?}");
        assert!(report.stderr.contains(&place), "{report:?}");
    }
    assert_eq!(run_shell(&format!("test -p {fifo}")).code, 0, "it is still what it was");
}

#[test]
fn a_box_that_never_ran_is_not_certified() {
    let mut home = Home::new("never");
    home.lane("a", &["sleep"]);
    home.configure();
    assert_eq!(home.run(&["dead-lanes"]).code, 1);
    let report = home.run(&["dead-lanes", "--certify"]);
    assert_eq!(report.code, 1, "{report:?}");
}

#[test]
fn a_remote_that_cannot_be_asked_makes_the_report_incomplete() {
    let mut home = Home::new("incomplete");
    home.plan.remote = Some(home.at("no-such.git"));
    home.lane("a", &["sleep"]);
    let warden = home.start();
    let worker = home.until_running("a");
    let report = home.run(&["dead-lanes", "--certify"]);
    assert_eq!(report.code, 1, "{report:?}");
    assert!(report.stderr.contains("incomplete"), "{report:?}");
    warden.kill9();
    proc::signal(worker, Signal::KILL);
    proc::until_gone(worker);
    assert_eq!(home.run(&["dead-lanes", "--certify"]).code, 3, "dead is dead");
}

#[test]
fn claims_add_their_refs_and_other_boxes_are_foreign() {
    let mut home = Home::new("claims");
    let bare = Bare::make(home.path("remote.git"));
    home.plan.remote = Some(bare.path.display().to_string());
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    let claim = until("the running lane's claim", || match bare.claim_of("a") {
        Some(claim) if claim.value("state") == Some("running") => Ok(claim),
        _ => Err(bare.claims()),
    });
    let other = claim.name.replace(&home.plan.machine, "another-box");
    git(&bare.path, &["update-ref", &other, &claim.oid]);
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    let json = report.json();
    assert_eq!(report.code, 0, "another box's lanes are its own affair: {json}");
    assert_eq!(json["foreign"], 1, "{json}");
    let own = json["lanes"].as_array().unwrap().iter().find(|row| row["lane"] == "a").unwrap();
    assert_eq!(own["ref"], claim.name.as_str(), "{json}");
    assert!(own["age_s"].is_u64(), "{json}");
    home.end();
}

#[test]
fn the_textfile_appears_whole() {
    let mut home = Home::new("textfile");
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    let path = home.at("lanes.prom");
    assert_eq!(home.run(&["dead-lanes", "--textfile", &path, "--certify"]).code, 0);
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("lanewarden_cron_dead_lanes{verdict=\"ALIVE\"} 1\n"), "{text}");
    assert!(text.contains("lanewarden_cron_certified 1\n"), "{text}");
    let nowhere = home.run(&["dead-lanes", "--textfile", "/no/such/dir/x.prom"]);
    assert_eq!(nowhere.code, 1, "{nowhere:?}");
    assert!(nowhere.stderr.contains("/no/such/dir/x.prom"), "{nowhere:?}");
    home.end();
}
