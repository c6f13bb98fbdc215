//! Lane claims on a real remote: over a git server and on a local path.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use lanewarden_tests::{
    Home,
    git::{Bare, Claim, Mood, Server, git},
    http,
    ntfy::Ntfy,
    proc,
    requires::{Need, has},
    until, until_within,
    wait::throughout,
};
use rustix::process::Signal;

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

/// A home with a remote behind a git server.
fn with_server(name: &str) -> (Home, Bare, Server) {
    let mut home = Home::new(name);
    let bare = Bare::make(home.path("remotes/fleet.git"));
    let server = Server::start(&home.path("remotes"));
    home.plan.remote = Some(server.url("fleet.git"));
    (home, bare, server)
}

/// A home with a remote on a local path.
fn with_path(name: &str) -> (Home, Bare) {
    let mut home = Home::new(name);
    let bare = Bare::make(home.path("remote.git"));
    home.plan.remote = Some(bare.path.display().to_string());
    (home, bare)
}

fn until_claim(bare: &Bare, lane: &str, what: &str, holds: impl Fn(&Claim) -> bool) -> Claim {
    until(&format!("the claim of {lane}: {what}"), || match bare.claim_of(lane) {
        Some(claim) if holds(&claim) => Ok(claim),
        _ => Err(bare.claims()),
    })
}

fn until_no_claim(bare: &Bare, lane: &str) {
    until(&format!("no claim of {lane}"), || match bare.claim_of(lane) {
        None => Ok(()),
        Some(claim) => Err(claim),
    });
}

fn assert_claim_tells_all(home: &Home, bare: &Bare) {
    let worker = home.until_running("a");
    let claim = until_claim(bare, "a", "running", |claim| claim.value("state") == Some("running"));
    let machine = home.plan.machine.as_str();
    // printf a | sha256sum
    assert_eq!(claim.name, format!("refs/lane-claims/{machine}/p0-ca978112ca1b"));
    let value = |key: &str| claim.value(key).unwrap_or_else(|| panic!("no {key}: {claim:?}"));
    assert!(claim.message.starts_with("claim issue="), "{claim:?}");
    assert_eq!(value("issue"), "p0-ca978112ca1b");
    assert_eq!(value("machine"), machine);
    assert_eq!(value("pid"), worker.to_string());
    assert_eq!(value("ticks"), proc::stat(worker).unwrap().1.to_string());
    assert_eq!(
        value("boot"),
        fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim()
    );
    assert_eq!(value("actor"), "flow-a");
    assert_eq!(value("lane"), "a");
    assert_eq!(value("run"), home.lane_view("a").unwrap()["run"].as_str().unwrap());
    assert!(value("ts").ends_with('Z') && value("ts").len() == 20, "{claim:?}");
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap().display().to_string();
    assert_eq!(format!("pid:[{}]", value("pidns")), namespace);
    // And the daemon shows the same.
    home.until_lane("a", "its claim", |lane| {
        lane["claim"]["ref"] == claim.name.as_str() && lane["claim"]["oid"] == claim.oid.as_str()
    });
}

#[test]
fn a_claim_over_the_network_names_worker_run_and_state() {
    if !has(&[Need::GitDaemon]) {
        return;
    }
    let (mut home, bare, _server) = with_server("net");
    home.lane("a", &["sleep"]);
    let warden = home.start();
    assert_claim_tells_all(&home, &bare);
    let claim = bare.claim_of("a").unwrap();
    let own = format!("{}/{}", warden.pid(), proc::stat(warden.pid()).unwrap().1);
    assert_eq!(claim.value("warden"), Some(own.as_str()));
    home.until_metric("lanewarden_claims_held", 1.0);
    home.end();
}

#[test]
fn a_claim_on_a_path_names_worker_run_and_state() {
    let (mut home, bare) = with_path("path");
    home.lane("a", &["sleep"]);
    home.start();
    assert_claim_tells_all(&home, &bare);
    home.end();
}

#[test]
fn a_lane_is_claimed_before_its_first_worker_starts_and_all_lanes_in_one_push() {
    let (mut home, bare) = with_path("order");
    let started = home.at("started");
    let order = home.at("order");
    let hook = bare.path.join("hooks/pre-receive");
    let script = format!(
        "#!/bin/sh\nlines=0\nwhile read -r line; do lines=$((lines + 1)); done\n\
         if [ -e {started} ]; then when=after; else when=before; fi\necho $when $lines >> {order}\n"
    );
    fs::write(&hook, script).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    for lane in ["a", "b", "c"] {
        home.lane(lane, &["touch", &started, "sleep"]);
    }
    home.start();
    for lane in ["a", "b", "c"] {
        home.until_running(lane);
        until_claim(&bare, lane, "running", |claim| claim.value("state") == Some("running"));
    }
    let text = fs::read_to_string(home.path("order")).unwrap();
    let pushes: Vec<&str> = text.lines().collect();
    assert!(pushes[0].starts_with("before"), "{pushes:?}");
    let refs: u32 =
        pushes.iter().map(|push| push.rsplit(' ').next().unwrap().parse::<u32>().unwrap()).sum();
    assert!(usize::try_from(refs).unwrap() > pushes.len(), "several refs in a push: {pushes:?}");
    home.end();
}

#[test]
fn a_claim_follows_the_state_and_the_issue() {
    let (mut home, bare) = with_path("state");
    let go = home.at("go");
    home.lane_with("a", &["wait-for", &go, "exit", "1"], "restart = { breaker = 1 }");
    let warden = home.start();
    home.until_running("a");
    let placeholder =
        until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    assert_eq!(home.run(&["lane", "issue", "42", "--lane", "a"]).code, 0);
    let name = format!("refs/lane-claims/{}/42", home.plan.machine);
    until_claim(&bare, "a", "issue 42", |claim| claim.name == name);
    until("only one claim", || {
        let claims = bare.claims();
        if claims.iter().all(|claim| claim.name != placeholder.name) { Ok(()) } else { Err(claims) }
    });
    fs::write(go, "").unwrap();
    home.until_state("a", "tripped");
    let claim = until_claim(&bare, "a", "tripped", |claim| claim.value("state") == Some("tripped"));
    assert_eq!(
        claim.value("pid"),
        Some(warden.pid().to_string().as_str()),
        "no worker: the warden"
    );
    home.end();
}

#[test]
fn a_claim_is_refreshed_without_a_cause() {
    let (mut home, bare) = with_path("refresh");
    home.plan.refresh = "1s".to_owned();
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    let first = until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    let next = until_claim(&bare, "a", "refreshed", |claim| claim.oid != first.oid);
    assert_eq!(next.value("state"), Some("running"));
    assert!(next.value("ts") > first.value("ts"), "{first:?} {next:?}");
    home.end();
}

#[test]
fn the_lease_outlives_the_warden() {
    let (mut home, bare) = with_path("lease");
    home.lane("a", &["sleep"]);
    let first = home.start();
    home.until_running("a");
    let claim = until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    home.until_lane("a", "its claim", |lane| lane["claim"]["oid"] == claim.oid.as_str());
    first.kill9();
    let rows = rusqlite::Connection::open(home.plan.state_dir.join("lanewarden.db")).unwrap();
    let kept: (String, String) = rows
        .query_row("SELECT name, oid FROM claim WHERE lane = 'a'", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(kept, (claim.name, claim.oid));
    drop(rows);
    let second = home.start();
    let own = format!("{}/", second.pid());
    until_claim(&bare, "a", "the new warden's", |claim| {
        claim.value("warden").is_some_and(|warden| warden.starts_with(&own))
    });
    let page = home.metrics();
    for line in page.lines().filter(|line| line.starts_with("lanewarden_claim_push_failures")) {
        assert!(line.ends_with(" 0"), "{line}");
    }
    home.end();
}

/// Writes a commit with this message at a ref, as somebody else would.
fn overwrite(bare: &Bare, name: &str, message: &str) -> String {
    let tree = git(&bare.path, &["mktree", "--missing"]).trim().to_owned();
    let who = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
    let commit = [&who[..], &["commit-tree", "-m", message, &tree]].concat();
    let oid = git(&bare.path, &commit).trim().to_owned();
    git(&bare.path, &["update-ref", name, &oid]);
    oid
}

#[test]
fn a_claim_that_a_dead_warden_moved_is_taken_back() {
    let (mut home, bare) = with_path("moved");
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    let claim = until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    let dead = claim.message.replace("warden=", "warden=4194303/1 was=");
    overwrite(&bare, &claim.name, &dead);
    assert_eq!(home.run(&["lane", "issue", "7", "--lane", "a"]).code, 0);
    let name = format!("refs/lane-claims/{}/7", home.plan.machine);
    until_claim(&bare, "a", "its issue", |claim| claim.name == name);
    home.end();
}

#[test]
fn a_claim_that_a_live_warden_moved_is_lost_and_told() {
    let ntfy = Ntfy::start();
    let (mut home, bare) = with_path("lost");
    home.plan.ntfy = Some(ntfy.url());
    home.plan.refresh = "1s".to_owned();
    home.lane("a", &["sleep"]);
    home.start();
    let worker = home.until_running("a");
    let claim = until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    let us = std::process::id();
    let live = format!("warden={us}/{} was=", proc::stat(us).unwrap().1);
    let oid = overwrite(&bare, &claim.name, &claim.message.replace("warden=", &live));
    let page = ntfy.page("claim lost");
    assert!(page.text("message").contains(&us.to_string()), "{}", page.text("message"));
    // It is never forced, and the worker goes on.
    let now = bare.claims().into_iter().find(|found| found.name == claim.name).unwrap();
    assert_eq!(now.oid, oid);
    assert_eq!(home.until_running("a"), worker);
    home.end();
}

#[test]
fn a_remote_that_is_away_is_a_warning_a_metric_and_a_retry() {
    if !has(&[Need::GitDaemon]) {
        return;
    }
    let (mut home, bare, server) = with_server("away");
    home.plan.refresh = "1s".to_owned();
    server.set(Mood::Away);
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    until("a counted failure", || {
        let page = home.metrics();
        let failed = page.lines().any(|line| {
            line.starts_with("lanewarden_claim_push_failures_total{") && !line.ends_with(" 0")
        });
        if failed { Ok(()) } else { Err(home.log()) }
    });
    assert!(home.log().contains("claims could not be pushed; will retry"), "{}", home.log());
    assert_eq!(home.http("/readyz").unwrap().status, 200, "readiness never waits for the remote");
    assert!(bare.claims().is_empty());
    let before = server.connections();
    server.set(Mood::Serve);
    until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    assert!(server.connections() > before);
    home.end();
}

#[test]
fn a_remote_that_hangs_holds_a_first_start_up_to_its_deadline_only() {
    let (mut home, _bare, server) = with_server("hang");
    server.set(Mood::Hang);
    home.plan.remote_deadline = "2s".to_owned();
    home.lane("a", &["sleep"]);
    home.lane("b", &["exit", "7"]);
    home.start();
    until("a connection that hangs", || match server.connections() {
        0 => Err(home.log()),
        _ => Ok(()),
    });
    throughout(Duration::from_millis(500), "waiting for the claim", || {
        let lane = home.lane_view("a")?;
        if lane["pid"].is_null() && lane["state"] == "starting" {
            Ok(())
        } else {
            Err(lane.to_string())
        }
    });
    // An order is answered meanwhile.
    assert_eq!(home.run(&["status"]).code, 0);
    until_within(Duration::from_secs(8), "the worker to start without its claim", || {
        let lane = home.lane_view("a")?;
        if lane["state"] == "running" { Ok(()) } else { Err(lane.to_string()) }
    });
    // Restarts do not wait for it again.
    home.until_state("b", "tripped");
    home.end();
    let left = home.git_processes();
    assert!(left.is_empty(), "git was killed with its tree: {left:?}");
}

#[test]
fn a_claim_goes_only_when_the_work_is_concluded_and_the_lane_is_stopped() {
    let (mut home, bare) = with_path("removal");
    home.lane_with("idle", &["marker", "no-work"], ONE_RUN);
    home.lane_with("parked", &["marker", "needs-decision"], ONE_RUN);
    home.lane_with("failed", &["exit", "1"], ONE_RUN);
    home.lane_with("blocked", &["marker", "blocked"], ONE_RUN);
    home.lane_with("finalized", &["marker", "finalized"], ONE_RUN);
    home.lane("running", &["sleep"]);
    home.start();
    home.until_verdict("idle", "no-work");
    home.until_verdict("parked", "parked-on-owner");
    home.until_verdict("failed", "failed");
    home.until_verdict("blocked", "blocked");
    home.until_verdict("finalized", "finalized");
    home.until_running("running");
    let lanes = ["idle", "parked", "failed", "blocked", "finalized", "running"];
    for lane in lanes {
        let state = home.lane_view(lane).unwrap()["state"].as_str().unwrap().to_owned();
        until_claim(&bare, lane, &state, |claim| claim.value("state") == Some(&state));
    }
    for lane in lanes {
        assert_eq!(home.run(&["stop", lane]).code, 0);
    }
    for lane in ["idle", "parked"] {
        until_no_claim(&bare, lane);
    }
    for lane in ["failed", "blocked", "finalized", "running"] {
        until_claim(&bare, lane, "stopped", |claim| claim.value("state") == Some("stopped"));
    }
    home.end();
    assert_eq!(bare.claims().len(), 4, "the end of the warden removes none");
}

#[test]
fn a_stop_of_the_warden_that_leaves_workers_leaves_their_claims() {
    let (mut home, bare) = with_path("leave");
    home.lane("a", &["sleep"]);
    let warden = home.start();
    let worker = home.until_running("a");
    until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    assert!(warden.term().success());
    let claim = bare.claim_of("a").unwrap();
    assert_eq!(claim.value("pid"), Some(worker.to_string().as_str()));
    assert_eq!(claim.value("state"), Some("running"));
    assert!(proc::runs(worker));
}

#[test]
fn the_last_word_on_a_stopped_worker_reaches_the_remote() {
    let (mut home, bare) = with_path("lastword");
    home.lane("a", &["sleep"]);
    let warden = home.start();
    home.until_running("a");
    until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    warden.signal(Signal::INT);
    assert!(warden.ended().success());
    let claim = bare.claim_of("a").unwrap();
    assert_eq!(claim.value("state"), Some("stopped"), "{claim:?}");
    assert_eq!(claim.value("pid"), Some(warden.pid().to_string().as_str()), "{claim:?}");
}

#[test]
fn a_restart_never_waits_for_the_remote() {
    let (mut home, bare, server) = with_server("restarts");
    home.plan.remote_deadline = "20s".to_owned();
    home.lane_with("a", &["sleep"], "restart = { delay = \"0s\", breaker = 0 }");
    home.start();
    let first = home.until_running("a");
    until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    server.set(Mood::Hang);
    proc::signal(first, Signal::KILL);
    until_within(Duration::from_secs(5), "another worker", || {
        let lane = home.lane_view("a")?;
        let other = lane["pid"].as_u64().is_some_and(|pid| pid != u64::from(first));
        if other { Ok(()) } else { Err(lane.to_string()) }
    });
    assert!(http::sample(&home.metrics(), "lanewarden_claim_pushes_total").is_some());
    server.set(Mood::Serve);
}

#[test]
fn a_second_box_of_the_same_name_does_not_start_beside_the_first() {
    let (mut home, bare) = with_path("twin");
    home.lane("a", &["sleep"]);
    home.start();
    home.until_running("a");
    let claim = until_claim(&bare, "a", "running", |claim| claim.value("state") == Some("running"));
    let mut twin = Home::new("twin");
    twin.plan.machine = home.plan.machine.clone();
    twin.plan.remote = home.plan.remote.clone();
    twin.lane("a", &["sleep"]);
    twin.start();
    let lane = twin.until_state("a", "occupied");
    assert!(lane["reason"].as_str().unwrap().contains("its claim is held elsewhere"), "{lane}");
    assert!(twin.workers("sleep").is_empty());
    assert_eq!(bare.claim_of("a").map(|found| found.oid), Some(claim.oid));
    twin.end();
    home.end();
}
