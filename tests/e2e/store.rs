//! The store on a disk that is full, read-only, or of another release.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    time::Duration,
};

use lanewarden_tests::{
    Home,
    command::run_shell,
    ntfy::{Ntfy, titles},
    proc,
    requires::{Need, has},
    until, until_within,
};
use rustix::process::Signal;

/// A small file system of its own, unmounted at the end.
struct Disk(PathBuf);

impl Disk {
    fn mount(path: &Path, options: &str) -> Self {
        fs::create_dir_all(path).unwrap();
        let mounted = run_shell(&format!("mount -t tmpfs -o {options} tmpfs {}", path.display()));
        assert_eq!(mounted.code, 0, "{mounted:?}");
        Self(path.to_owned())
    }

    /// Takes every last page.
    fn fill(&self) {
        let mut file = File::create(self.0.join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.0.join("filler")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazy: whatever of a failed test still has a file open there lets go when it ends.
        let _output = run_shell(&format!("umount -l {}", self.0.display()));
    }
}

#[test]
fn a_full_disk_silences_nobody_and_stops_nothing() {
    if !has(&[Need::Root]) {
        return;
    }
    let ntfy = Ntfy::start();
    let mut home = Home::new("full");
    let disk = Disk::mount(&home.plan.state_dir, "size=2m,nr_inodes=4k");
    home.plan.ntfy = Some(ntfy.url());
    let go = home.at("go");
    home.lane_with("works", &["sleep"], "restart = { delay = \"0s\", breaker = 0 }");
    home.lane_with("fails", &["wait-for", &go, "exit", "7"], "restart = { breaker = 1 }");
    home.start();
    let worker = home.until_running("works");
    home.until_running("fails");
    disk.fill();
    fs::write(&go, "").unwrap();

    let page = ntfy.page("breaker tripped");
    assert!(page.text("message").contains("Unrecorded"), "{}", page.text("message"));
    ntfy.page("records cannot be written");
    home.until_metric("lanewarden_store_errors_total", 1.0);
    home.until_state("fails", "tripped");
    assert_eq!(home.until_running("works"), worker, "the worker goes on");
    assert!(home.history("fails").is_empty(), "what was not written is not there");
    let readyz = home.http("/readyz").unwrap();
    assert_eq!(readyz.status, 503, "{readyz:?}");
    assert!(readyz.body.contains("store"), "{readyz:?}");

    disk.free();
    until("the record of what happened meanwhile", || match home.history("fails").as_slice() {
        [run] if run["verdict"] == "failed" => Ok(()),
        runs => Err(runs.to_vec()),
    });
    let told = ntfy.accepted("breaker tripped");
    assert_eq!(
        told.len(),
        1,
        "told from memory, not told again from the disk: {:?}",
        titles(&told)
    );
    home.end();
}

#[test]
fn a_full_disk_does_not_keep_a_worker_from_being_replaced() {
    if !has(&[Need::Root]) {
        return;
    }
    let mut home = Home::new("fullspawn");
    let disk = Disk::mount(&home.plan.state_dir, "size=2m,nr_inodes=4k");
    home.lane_with("works", &["sleep"], "restart = { delay = \"0s\", breaker = 0 }");
    home.start();
    let worker = home.until_running("works");
    disk.fill();
    proc::signal(worker, Signal::KILL);
    let lane = home.until_lane("works", "another worker", |lane| {
        lane["state"] == "running" && lane["pid"].as_u64() != Some(worker.into())
    });
    assert_eq!(lane["last"]["verdict"], "signalled", "{lane}");
    disk.free();
    until("the record", || match home.history("works").as_slice() {
        [run] if run["verdict"] == "signalled" => Ok(()),
        runs => Err(runs.to_vec()),
    });
    home.end();
}

#[test]
fn a_state_directory_on_a_read_only_disk_is_refused() {
    if !has(&[Need::Root]) {
        return;
    }
    let mut home = Home::new("readonly");
    let _disk = Disk::mount(&home.plan.state_dir, "ro,size=64k");
    home.lane("a", &["sleep"]);
    home.configure();
    for command in ["run", "check"] {
        let refused = home.run(&[command]);
        assert_eq!(refused.code, 78, "{refused:?}");
        let all = format!("{}{}", refused.stdout, refused.stderr);
        assert!(all.contains(&home.at("state")) && all.contains("ead-only"), "{all}");
    }
    assert!(home.workers("").is_empty());
}

#[test]
fn a_store_of_a_newer_release_is_refused_and_left_alone() {
    let mut home = Home::new("newer");
    home.lane("a", &["sleep"]);
    let warden = home.start();
    let worker = home.until_running("a");
    assert!(warden.term().success());
    let path = home.plan.state_dir.join("lanewarden.db");
    let store = rusqlite::Connection::open(&path).unwrap();
    let own: i64 = store.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    store.pragma_update(None, "user_version", own + 1).unwrap();
    drop(store);
    for command in ["run", "history"] {
        let refused = home.run(&[command]);
        let code = if command == "run" { 78 } else { 1 };
        assert_eq!(refused.code, code, "{refused:?}");
        let wanted = format!("has schema {}, and this release knows {own}", own + 1);
        assert!(refused.stderr.contains(&wanted), "{refused:?}");
    }
    assert!(proc::runs(worker), "the worker goes on");
    let store = rusqlite::Connection::open(&path).unwrap();
    let found: i64 = store.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(found, own + 1);
    store.pragma_update(None, "user_version", own).unwrap();
    drop(store);
    home.start();
    assert_eq!(home.until_running("a"), worker);
    home.end();
}

#[test]
fn a_store_that_is_no_database_is_refused() {
    let mut home = Home::new("garbage");
    home.lane("a", &["sleep"]);
    fs::create_dir_all(&home.plan.state_dir).unwrap();
    fs::write(home.plan.state_dir.join("lanewarden.db"), [0x5a; 8192]).unwrap();
    home.configure();
    let refused = home.run(&["run"]);
    assert_eq!(refused.code, 78, "{refused:?}");
    assert!(refused.stderr.contains("lanewarden.db"), "{refused:?}");
    assert!(home.workers("").is_empty());
}

#[test]
fn how_a_run_ended_is_kept_until_it_is_on_disk() {
    if !has(&[Need::Root]) {
        return;
    }
    let mut home = Home::new("fullkill");
    let disk = Disk::mount(&home.plan.state_dir, "size=2m,nr_inodes=4k");
    let go = home.at("go");
    home.lane_with("a", &["wait-for", &go, "exit", "7"], "restart = { breaker = 1 }");
    let warden = home.start();
    home.until_running("a");
    disk.fill();
    fs::write(&go, "").unwrap();
    home.until_state("a", "tripped");
    warden.kill9();
    disk.free();
    home.start();
    let run = until("the record", || match home.history("a").as_slice() {
        [run] => Ok(run.clone()),
        runs => Err(runs.to_vec()),
    });
    assert_eq!((&run["verdict"], &run["exit_code"]), (&"failed".into(), &7.into()), "{run}");
    home.end();
}

#[test]
fn a_store_that_hangs_holds_nobody_up() {
    let ntfy = Ntfy::start();
    let mut home = Home::new("hung");
    home.plan.ntfy = Some(ntfy.url());
    let go = home.at("go");
    home.lane_with("fails", &["wait-for", &go, "exit", "7"], "restart = { breaker = 1 }");
    home.lane_with("works", &["sleep"], "restart = { delay = \"0s\", breaker = 0 }");
    home.start();
    home.until_running("fails");
    let worker = home.until_running("works");
    // Somebody holds the database: whoever writes waits.
    let holder = rusqlite::Connection::open(home.plan.state_dir.join("lanewarden.db")).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    fs::write(&go, "").unwrap();
    let page = ntfy.page_within(Duration::from_secs(5), "breaker tripped");
    assert!(page.text("message").contains("Unrecorded"), "{}", page.text("message"));
    let status = home.run(&["status"]);
    assert_eq!(status.code, 0, "{status:?}");
    proc::signal(worker, Signal::KILL);
    until_within(Duration::from_secs(8), "another worker", || {
        let lane = home.lane_view("works")?;
        let other = lane["pid"].as_u64().is_some_and(|pid| pid != u64::from(worker));
        if other { Ok(()) } else { Err(lane.to_string()) }
    });
    holder.execute_batch("ROLLBACK").unwrap();
    until("the record", || match home.history("fails").len() {
        1 => Ok(()),
        count => Err(count),
    });
    home.end();
}

#[test]
fn a_store_that_is_well_again_says_so() {
    if !has(&[Need::Root]) {
        return;
    }
    let ntfy = Ntfy::start();
    let mut home = Home::new("well");
    let disk = Disk::mount(&home.plan.state_dir, "size=2m,nr_inodes=4k");
    home.plan.ntfy = Some(ntfy.url());
    let go = home.at("go");
    home.lane_with("fails", &["wait-for", &go, "exit", "7"], "restart = { breaker = 1 }");
    home.start();
    home.until_running("fails");
    disk.fill();
    fs::write(&go, "").unwrap();
    ntfy.page("records cannot be written");
    home.until_state("fails", "tripped");
    disk.free();
    // Nothing else happens on this box: the news must not wait for the next record.
    ntfy.page("records are written again");
    until("readiness", || {
        let answer = home.http("/readyz")?;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    });
    home.end();
}
