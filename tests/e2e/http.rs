//! What the daemon serves: metrics, health, readiness, the lanes as JSON, the status page.

use std::{collections::BTreeSet, fs};

use lanewarden_tests::{
    Home,
    command::run_shell,
    http,
    requires::{Need, has},
    until,
    wait::throughout,
};
use serde_json::Value;

fn working_box(name: &str) -> Home {
    let mut home = Home::new(name);
    home.lane("a", &["sleep"]);
    home.lane("b", &["exit", "7"]);
    home.start();
    home.until_running("a");
    home.until_state("b", "tripped");
    home
}

#[test]
fn metrics_are_prometheus_text_and_every_family_is_in_the_catalogue() {
    let home = working_box("metrics");
    let answer = home.http("/metrics").unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let page = answer.body;
    let catalogue = home.run(&["metrics", "--json"]).json();
    let known: BTreeSet<&str> =
        catalogue.as_array().unwrap().iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    let mut families = 0;
    for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(known.contains(name), "{name} is not in the catalogue");
        assert!(page.contains(&format!("# HELP {name} ")), "{name} has no help");
        families += 1;
    }
    assert!(families > 30, "{families} families");
    for series in [
        "lanewarden_ready 1",
        "lanewarden_keeper_up 1",
        "lanewarden_lane_state{lane=\"a\",state=\"running\"} 1",
        "lanewarden_lane_state{lane=\"a\",state=\"tripped\"} 0",
        "lanewarden_lane_state{lane=\"b\",state=\"tripped\"} 1",
        "lanewarden_runs_finished_total{lane=\"b\",verdict=\"failed\"} 3",
        "lanewarden_runs_started_total{lane=\"b\"} 3",
        "lanewarden_breaker_tripped{lane=\"b\"} 1",
    ] {
        assert!(page.lines().any(|line| line == series), "no {series} in\n{page}");
    }
    assert!(page.contains("lanewarden_build_info{version=\""), "{page}");
    // Nothing of unbounded number is a label.
    let run = home.lane_view("a").unwrap()["run"].as_str().unwrap().to_owned();
    assert!(!page.contains(&run));
    home.end();
}

#[test]
fn promtool_finds_nothing_to_say() {
    if !has(&[Need::Promtool]) {
        return;
    }
    let home = working_box("promtool");
    fs::write(home.path("page"), home.metrics()).unwrap();
    let checked = run_shell(&format!("promtool check metrics < {}", home.at("page")));
    assert_eq!(checked.code, 0, "{checked:?}");
    home.end();
}

#[test]
fn health_readiness_and_the_picture_agree() {
    let home = working_box("health");
    assert_eq!(home.http("/healthz").unwrap().body, "ok\n");
    assert_eq!(home.http("/readyz").unwrap().body, "ready\n");
    let api = home.view().unwrap();
    let status = home.run(&["status", "--json"]).json();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&api), keys(&status));
    assert_eq!(keys(&api["lanes"][0]), keys(&status["lanes"][0]));
    for lane in [0, 1] {
        for key in ["id", "state", "pid", "run", "last", "claim", "token"] {
            assert_eq!(api["lanes"][lane][key], status["lanes"][lane][key], "{key}");
        }
    }
    home.end();
}

#[test]
fn the_status_page_shows_every_lane_and_loads_nothing() {
    let home = working_box("page");
    let answer = home.http("/").unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(answer.header("content-security-policy").unwrap().contains("default-src 'none'"));
    for word in [home.plan.machine.as_str(), "running", "tripped", "exit 7"] {
        assert!(answer.body.contains(word), "no {word:?}");
    }
    assert!(!answer.body.contains("<script"));
    assert_eq!(home.http("/no-such-place").unwrap().status, 404);
    home.end();
}

#[test]
fn a_warden_whose_keeper_is_a_units_is_not_ready_before_it() {
    let mut home = Home::new("unit");
    home.lane("a", &["sleep"]);
    home.configure();
    home.launch(&["--keeper", "unit"]);
    until("the warden to answer that it is not ready", || {
        let answer = home.http("/readyz")?;
        if answer.status == 503 { Ok(()) } else { Err(answer.body) }
    });
    throughout(std::time::Duration::from_millis(300), "without a keeper of its own", || {
        let keepers = home.keepers();
        if keepers.is_empty() { Ok(()) } else { Err(keepers) }
    });
    let mut command = home.command();
    command.args(["keep", "--allow-root"]);
    home.adopt(command);
    home.until_running("a");
    assert_eq!(home.http("/readyz").unwrap().status, 200);
}

#[test]
fn counters_go_on_over_the_death_of_a_warden() {
    let mut home = Home::new("counters");
    home.lane("a", &["exit", "7"]);
    let warden = home.start();
    home.until_state("a", "tripped");
    let series = "lanewarden_runs_finished_total{lane=\"a\",verdict=\"failed\"}";
    home.until_metric(series, 3.0);
    warden.kill9();
    home.start();
    assert_eq!(http::sample(&home.metrics(), series), Some(3.0));
    home.end();
}
