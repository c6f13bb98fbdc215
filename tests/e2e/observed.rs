//! Lanes whose worker somebody else starts: found, stamped, watched and reported; never started or signalled.

#![expect(clippy::disallowed_methods, reason = "the occupant is somebody else's process")]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use lanewarden_tests::{
    Home, command,
    git::Bare,
    ntfy::Ntfy,
    proc,
    requires::{MemoryGroup, Need, has},
    scene::{Scene, file},
    until, until_within, worker_program,
};

/// Lanes are walked every ten seconds, and who is there twice is told.
const PATROLS: Duration = Duration::from_secs(60);

/// Somebody's own worker, as from a terminal: the test is its parent and reaps it.
struct Occupant(Child);

impl Occupant {
    fn enter(home: &Home, lane: &str, script: &str) -> Self {
        let dir = home.plan.lanes.iter().find(|plan| plan.id == lane).unwrap().dir.clone();
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(dir).stdin(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill9(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Occupant {
    fn drop(&mut self) {
        // Gone already in most tests.
        drop(self.0.kill().and_then(|()| self.0.wait()));
    }
}

fn home(name: &str, ntfy: &Ntfy) -> (Home, Bare) {
    let mut home = Home::new(name);
    let remote = Bare::make(home.path("remote.git"));
    home.plan.remote = Some(home.at("remote.git"));
    home.plan.ntfy = Some(ntfy.url());
    home.lane_with("o", &[], "mode = \"observe\"\n");
    (home, remote)
}

#[test]
fn an_occupant_is_found_stamped_and_missed() {
    let ntfy = Ntfy::start();
    let (home, remote) = home("observed", &ntfy);
    let warden = home.start();
    home.until_state("o", "vacant");
    let mut occupant = Occupant::enter(&home, "o", "exec sleep 1000");
    let lane = home.until_state("o", "observed");
    assert_eq!(lane["pid"], occupant.pid(), "{lane}");
    let claim = until("the occupant's claim", || {
        let claim = remote.claim_of("o").ok_or("none")?;
        if claim.value("pid") == Some(&occupant.pid().to_string()) {
            Ok(claim)
        } else {
            Err("of another")
        }
    });
    assert_eq!(claim.value("state"), Some("observed"));
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    assert_eq!(report.code, 0, "{report:?}");
    assert_eq!(report.json()["lanes"][0]["verdict"], "ALIVE");

    // Neither the end of the daemon nor another one touches it.
    warden.kill9();
    let _warden = home.start();
    assert_eq!(home.until_state("o", "observed")["pid"], occupant.pid());

    occupant.kill9();
    let lane = home.until_state("o", "vacant");
    assert_eq!(lane["last"]["verdict"], "signalled", "{lane}");
    assert_eq!(lane["last"]["signal"], 9, "{lane}");
    let page = ntfy.page("o");
    assert_eq!(page.json()["topic"], "fleet");
    home.end();
}

#[test]
fn the_daemon_leaves_an_observed_worker_alone_when_it_ends_its_own() {
    let ntfy = Ntfy::start();
    let (mut home, _remote) = home("left-alone", &ntfy);
    home.lane("mine", &["sleep"]);
    let warden = home.start();
    let mine = home.until_running("mine");
    let occupant = Occupant::enter(&home, "o", "exec sleep 1000");
    home.until_state("o", "observed");
    let refused = home.run(&["stop", "o"]);
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.stderr.contains("observed"), "{refused:?}");
    warden.signal(rustix::process::Signal::INT);
    assert!(warden.ended().success());
    proc::until_gone(mine);
    assert!(proc::runs(occupant.pid()));
}

#[test]
fn without_a_daemon_the_report_looks_for_itself() {
    let ntfy = Ntfy::start();
    let (mut home, _remote) = home("looking", &ntfy);
    home.plan.remote = None;
    home.configure();
    let report = home.run(&["dead-lanes", "--json"]).json();
    // Other users' processes may not be asked where they work, but by root.
    let root = rustix::process::geteuid().is_root();
    let empty = if root { "NO-WORKER" } else { "UNKNOWN-PROBE" };
    assert_eq!(report["lanes"][0]["verdict"], empty, "{report}");
    let occupant = Occupant::enter(&home, "o", "exec sleep 1000");
    let report = home.run(&["dead-lanes", "--json"]).json();
    assert_eq!(report["lanes"][0]["verdict"], "ALIVE", "{report}");
    let pid = occupant.pid().to_string();
    assert!(report["lanes"][0]["detail"].as_str().unwrap().contains(&pid), "{report}");
}

#[test]
fn whoever_may_not_be_asked_leaves_a_lane_unmeasured() {
    if !has(&[Need::Root]) {
        return;
    }
    let scene = Scene::default();
    let place = scene.path().display().to_string();
    std::fs::create_dir(scene.path().join("o")).unwrap();
    let config = file(
        &scene,
        "config.toml",
        &format!(
            "machine = \"m\"\nlane_root = \"{place}\"\nstate_dir = \"{place}/state\"\n\
             [[lane]]\nid = \"o\"\ndir = \"{place}/o\"\nmode = \"observe\"\n"
        ),
    );
    let mut asked = command::command(Path::new("setpriv"));
    asked.args(["--reuid=61001", "--regid=61001", "--clear-groups", "--"]);
    asked.arg(scene.path().join("lanewarden")).arg("--config").arg(config);
    asked.args(["dead-lanes", "--certify", "--json"]);
    let report = command::run(asked);
    assert_eq!(report.code, 1, "{report:?}");
    assert_eq!(report.json()["lanes"][0]["verdict"], "UNKNOWN-PROBE", "{report:?}");
}

#[test]
fn an_observed_lane_whose_directory_is_gone_is_not_certified() {
    let ntfy = Ntfy::start();
    let (home, _remote) = home("vanished", &ntfy);
    let _warden = home.start();
    home.until_state("o", "vacant");
    std::fs::remove_dir_all(&home.plan.lanes[0].dir).unwrap();
    home.until_lane("o", "cannot tell", |lane| lane["cannot_tell"] == true);
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    assert_eq!(report.code, 1, "{report:?}");
    assert_eq!(report.json()["lanes"][0]["verdict"], "UNKNOWN-PROBE", "{report:?}");
    home.end();
}

#[test]
fn an_oom_kill_of_an_occupant_is_named() {
    if !has(&[Need::Root, Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let ntfy = Ntfy::start();
    let (home, _remote) = home("observed-oom", &ntfy);
    let _warden = home.start();
    home.until_state("o", "vacant");
    let group = MemoryGroup::make("lanewarden-test-observed", 32 << 20);
    // It enters a group of its own, waits until it was seen, and then eats.
    let script = format!(
        "echo $$ > {}/cgroup.procs; while [ ! -e go ]; do sleep 0.05; done; \
         exec {} eat 256",
        group.path().display(),
        worker_program().display(),
    );
    let mut occupant = Occupant::enter(&home, "o", &script);
    home.until_state("o", "observed");
    std::fs::write(home.plan.lanes[0].dir.join("go"), "").unwrap();
    occupant.0.wait().unwrap();
    let lane = home.until_verdict("o", "oom-killed");
    assert_eq!(lane["last"]["end"], "oom-memcg", "{lane}");
    home.end();
}

#[test]
fn a_second_writer_beside_a_managed_worker_is_shown_and_told_once() {
    let ntfy = Ntfy::start();
    let (mut home, _remote) = home("intruder", &ntfy);
    home.lane("mine", &["sleep"]);
    let _warden = home.start();
    home.until_running("mine");
    let intruder = Occupant::enter(&home, "mine", "exec sleep 1000");
    let lane = until_within(PATROLS, "the intruder's row", || {
        let lane = home.lane_view("mine")?;
        let seen = lane["intruders"][0]["pid"] == intruder.pid();
        if seen { Ok(lane) } else { Err(lane.to_string()) }
    });
    assert_eq!(lane["state"], "running", "{lane}");
    assert_eq!(lane["intruders"].as_array().map(Vec::len), Some(1), "the worker is none: {lane}");
    home.until_metric("lanewarden_lane_intruders{lane=\"mine\"}", 1.0);
    let page = ntfy.page_within(PATROLS, "second process");
    assert!(page.text("message").contains(&intruder.pid().to_string()), "{}", page.text("message"));
    home.end();
}
