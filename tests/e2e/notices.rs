//! People are told: as ntfy wants it, once, whatever the server or the warden go through.

use lanewarden_tests::{
    Home, Warden, http, note,
    ntfy::{Answer, Ntfy, Page, titles},
    proc,
    requires::{Need, has},
    until,
    wait::throughout,
};
use rustix::process::Signal;
use std::time::Duration;

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

fn box_with(name: &str) -> (Home, Ntfy) {
    let ntfy = Ntfy::start();
    let mut home = Home::new(name);
    home.plan.ntfy = Some(ntfy.url());
    (home, ntfy)
}

fn assert_as_ntfy_wants(page: &Page, machine: &str) {
    assert_eq!((page.method.as_str(), page.path.as_str()), ("POST", "/"), "to the server's root");
    let json = page.json();
    assert_eq!(json["topic"], "fleet", "{json}");
    assert!(json["title"].as_str().unwrap().starts_with(machine), "{json}");
    assert!(json["priority"].as_u64().is_some_and(|p| (1..=5).contains(&p)), "{json}");
    assert!(json["tags"].is_array() && json["message"].is_string(), "{json}");
    assert!(json["sequence_id"].is_string(), "{json}");
    // Nothing that came from outside stands in a header.
    for (name, _) in &page.headers {
        let known =
            ["host", "content-type", "content-length", "accept", "user-agent", "authorization"];
        assert!(known.contains(&name.as_str()), "{:?}", page.headers);
    }
    let header = |name: &str| page.headers.iter().find(|(own, _)| own == name);
    assert_eq!(header("content-type").unwrap().1, "application/json");
}

#[test]
fn a_tripped_breaker_pages() {
    let (mut home, ntfy) = box_with("breaker");
    home.lane("a", &["exit", "7"]);
    home.start();
    let page = ntfy.page("breaker tripped, 3 failures");
    assert_as_ntfy_wants(&page, &home.plan.machine);
    assert!(page.text("title").contains(" a: "), "{}", page.text("title"));
    assert!(page.text("message").contains("failed: exit 7"), "{}", page.text("message"));
    assert!(page.text("message").contains("lanewarden start a"), "it says the remedy");
    assert_eq!(page.json()["priority"], 5);
    assert!(page.headers.iter().all(|(name, _)| name != "authorization"));
    assert_eq!(ntfy.accepted("").len(), 1, "{:?}", titles(&ntfy.pages()));
    home.end();
}

#[test]
fn a_token_goes_into_the_header_and_nowhere_else() {
    let (mut home, ntfy) = box_with("token");
    let token = "tk_abcdefghijklmnopqrstuvwxyz123";
    std::fs::write(home.path("token"), format!("{token}\n")).unwrap();
    let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(home.path("token"), own).unwrap();
    // The plan ends the [ntfy] table with its topic.
    home.plan.ntfy = None;
    home.plan.admission = format!(
        "disk_free_min = \"1K\"\n[ntfy]\nserver = \"{}\"\ntopic = \"fleet\"\ntoken_file = \"{}\"\n",
        ntfy.url(),
        home.at("token")
    );
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    let page = ntfy.page("breaker tripped");
    let given = page.headers.iter().find(|(name, _)| name == "authorization").unwrap();
    assert_eq!(given.1, format!("Bearer {token}"));
    assert!(!String::from_utf8_lossy(&page.body).contains(token));
    assert!(!home.log().contains(token));
    let shown = home.run(&["check", "--effective"]);
    assert!(!shown.stdout.contains(token), "{shown:?}");
    home.end();
}

#[test]
fn an_oom_kill_pages_lane_victim_and_size() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let (mut home, ntfy) = box_with("oom");
    home.lane_with("a", &["eat", "256"], &format!("{ONE_RUN}limits = {{ memory_max = \"24M\" }}"));
    home.start();
    let page = ntfy.page("oom-memcg killed fixture-worker");
    assert_as_ntfy_wants(&page, &home.plan.machine);
    let run = home.history("a")[0].clone();
    let message = page.text("message");
    assert!(page.text("title").contains(" a: "), "{}", page.text("title"));
    assert!(
        message.contains(&format!("Process {} (fixture-worker) of lane a", run["pid"])),
        "{message}"
    );
    assert!(message.contains("Resident: ") && message.contains("Limit: 24"), "{message}");
    let oom = "lanewarden_oom_kills_total{lane=\"a\",kind=\"oom-memcg\"}";
    assert_eq!(http::sample(&home.metrics(), oom), Some(1.0), "{}", home.metrics());
    assert_eq!(ntfy.accepted("").len(), 1, "one page a kill: {:?}", titles(&ntfy.pages()));
    // How long it took, for whoever reads the log of the tests.
    let ended = run["ended_at_ms"].as_i64().unwrap();
    let judged = home.lane_view("a").unwrap()["last"]["judged_after_ms"].clone();
    note(&format!(
        "OOM kill: judged {judged} ms after the end, paged {} ms after it",
        page.at_ms - ended
    ));
    home.end();
}

#[test]
fn a_lane_that_dies_unexpectedly_pages() {
    let (mut home, ntfy) = box_with("dead");
    home.lane_with("a", &["sleep"], ONE_RUN);
    home.start();
    let worker = home.until_running("a");
    proc::signal(worker, Signal::KILL);
    let page = ntfy.page("dead, signalled");
    assert_as_ntfy_wants(&page, &home.plan.machine);
    assert!(page.text("message").contains(&worker.to_string()), "{}", page.text("message"));
    home.end();
}

fn end_everything(home: &Home, warden: &Warden, lanes: &[&str]) {
    let workers: Vec<u32> = lanes.iter().map(|lane| home.until_running(lane)).collect();
    let keepers = home.keepers();
    warden.kill9();
    for pid in keepers.into_iter().chain(workers) {
        proc::signal(pid, Signal::KILL);
        proc::until_gone(pid);
    }
}

#[test]
fn a_daemon_that_is_back_tells_which_lanes_were_lost() {
    let (mut home, ntfy) = box_with("back");
    home.lane_with("a", &["sleep"], ONE_RUN);
    home.lane_with("b", &["sleep"], ONE_RUN);
    let warden = home.start();
    end_everything(&home, &warden, &["a", "b"]);
    home.start();
    let page = ntfy.page("back, 2 lanes lost");
    assert_as_ntfy_wants(&page, &home.plan.machine);
    let message = page.text("message");
    assert!(
        message.contains("a DEAD-NO-PROCESS") && message.contains("b DEAD-NO-PROCESS"),
        "{message}"
    );
    for lane in ["a", "b"] {
        home.until_verdict(lane, "vanished");
    }
    home.end();
}

#[test]
fn what_the_server_missed_is_delivered_once_when_it_is_back() {
    let (mut home, ntfy) = box_with("down");
    ntfy.answer(Answer::Down);
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    home.until_state("a", "tripped");
    home.until_metric("lanewarden_notify_request_failures_total", 1.0);
    home.until_metric("lanewarden_notify_spool_pending", 1.0);
    until("the picture to count it", || {
        let view = home.view()?;
        if view["spool"]["pending"] == 1 { Ok(()) } else { Err(view["spool"].to_string()) }
    });
    ntfy.answer(Answer::Accept);
    ntfy.page("breaker tripped");
    home.until_metric("lanewarden_notices_delivered_total", 1.0);
    until("an empty spool", || {
        let view = home.view()?;
        if view["spool"]["pending"] == 0 { Ok(()) } else { Err(view["spool"].to_string()) }
    });
    throughout(Duration::from_millis(500), "delivered once", || {
        let accepted = ntfy.accepted("");
        if accepted.len() == 1 { Ok(()) } else { Err(titles(&accepted)) }
    });
    home.end();
}

#[test]
fn answers_that_are_no_receipt_are_not_believed() {
    let (mut home, ntfy) = box_with("liars");
    let error = "{\"code\":50001,\"http\":500,\"error\":\"internal\"}";
    ntfy.script([Answer::Status(500, error.to_owned()), Answer::Html]);
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    let page = ntfy.page("breaker tripped");
    let pages = ntfy.pages();
    assert_eq!(pages.len(), 3, "{:?}", titles(&pages));
    let ids: Vec<String> = pages.iter().map(|page| page.text("sequence_id")).collect();
    assert!(ids.iter().all(|id| *id == page.text("sequence_id")), "one event, one id: {ids:?}");
    home.end();
}

#[test]
fn a_rate_limit_silences_the_whole_channel() {
    let (mut home, ntfy) = box_with("limit");
    ntfy.answer(Answer::Status(429, "{\"code\":42901,\"http\":429}".to_owned()));
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.lane_with("b", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    home.until_metric("lanewarden_notify_spool_pending", 2.0);
    until("a refused request", || if ntfy.pages().is_empty() { Err(home.log()) } else { Ok(()) });
    throughout(Duration::from_millis(800), "quiet", || {
        let pages = ntfy.pages();
        if pages.len() == 1 { Ok(()) } else { Err(titles(&pages)) }
    });
    home.end();
}

#[test]
fn a_server_that_hangs_holds_nobody_up() {
    let (mut home, ntfy) = box_with("hang");
    ntfy.answer(Answer::Hang);
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.lane("b", &["exit", "7"]);
    home.start();
    home.until_state("a", "tripped");
    home.until_state("b", "tripped");
    assert_eq!(home.run(&["status"]).code, 0);
    assert_eq!(home.http("/readyz").unwrap().status, 200);
    home.end();
}

#[test]
fn a_killed_warden_loses_no_notice() {
    let (mut home, ntfy) = box_with("kill");
    ntfy.answer(Answer::Down);
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    let warden = home.start();
    home.until_state("a", "tripped");
    home.until_metric("lanewarden_notify_spool_pending", 1.0);
    warden.kill9();
    ntfy.answer(Answer::Accept);
    home.start();
    ntfy.page("breaker tripped");
    home.until_metric("lanewarden_notify_spool_pending", 0.0);
    throughout(Duration::from_millis(500), "delivered once", || {
        let accepted = ntfy.accepted("breaker");
        if accepted.len() == 1 { Ok(()) } else { Err(titles(&accepted)) }
    });
    home.end();
}

#[test]
fn notices_by_hand_need_no_daemon() {
    let (home, ntfy) = box_with("hand");
    home.configure();
    let tested = home.run(&["notify", "test"]);
    assert_eq!(tested.code, 0, "{tested:?}");
    assert_eq!(ntfy.accepted("test notice").len(), 4, "one of each level");
    let sent = home.run(&["notify", "send", "Title \u{1b}[31m", "A message\nwith two lines"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    let page = ntfy.page("Title");
    assert_as_ntfy_wants(&page, &home.plan.machine);
    assert!(!page.text("title").contains('\u{1b}'), "{:?}", page.text("title"));
    let gate =
        ["notify", "gate", "--result", "FAIL", "--branch", "main", "--sha", "0123456789abcdef"];
    assert_eq!(home.run(&[&gate[..], &["--failing", "lint,unit"]].concat()).code, 0);
    let page = ntfy.page("gate FAIL main@012345678");
    assert!(page.text("message").contains("lint, unit"), "{}", page.text("message"));
    assert_eq!(page.json()["priority"], 5);
}

#[test]
fn notices_by_hand_wait_in_the_spool_for_the_daemon() {
    let (home, ntfy) = box_with("spool");
    home.configure();
    ntfy.answer(Answer::Down);
    assert_eq!(home.run(&["notify", "test"]).code, 1);
    let sent = home.run(&["notify", "send", "Later", "text"]);
    assert_eq!(sent.code, 0, "{sent:?}");
    assert!(sent.stdout.contains("spooled"), "{sent:?}");
    ntfy.answer(Answer::Accept);
    home.start();
    ntfy.page("Later");
    home.end();
}

#[test]
fn a_hostile_name_reaches_people_harmless() {
    let (mut home, ntfy) = box_with("hostile");
    home.lane_with("a", &["marker", "blocked"], ONE_RUN);
    let words = ["\u{1b}]0;x\u{7}", "\r\nX-Header: y"];
    home.plan.lanes[0].command = vec![
        "/bin/sh".to_owned(),
        "-c".to_owned(),
        format!(
            "printf '%s' '{{\"outcome\":\"blocked\",\"reason\":\"{}{}\"}}' > \"$LANEWARDEN_MARKER\"",
            "\\u001b]0;x\\u0007", "\\r\\nX-Header: y"
        ),
    ];
    home.start();
    let page = ntfy.page("blocked");
    for word in words {
        assert!(!page.text("message").contains(word), "{:?}", page.text("message"));
        assert!(!page.text("title").contains(word));
    }
    let status = home.run(&["status"]);
    assert!(!status.stdout.contains('\u{1b}'), "{status:?}");
    let history = home.run(&["history"]);
    assert!(!history.stdout.contains('\u{1b}'), "{history:?}");
    assert!(!home.log().contains('\u{1b}'), "{}", home.log());
    home.end();
}

#[test]
fn status_counts_what_waits_for_delivery() {
    let (mut home, ntfy) = box_with("pending");
    ntfy.answer(Answer::Down);
    home.lane_with("a", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    home.until_metric("lanewarden_notify_spool_pending", 1.0);
    let status = home.run(&["status", "--json"]).json();
    assert_eq!(status["spool"]["pending"], 1, "{status}");
    home.end();
}

#[test]
fn a_child_that_the_kernel_killed_pages_while_its_worker_goes_on() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let (mut home, ntfy) = box_with("child");
    let limit = format!("{ONE_RUN}limits = {{ memory_max = \"24M\" }}");
    home.lane_with("a", &["child-eats", "256", "sleep"], &limit);
    home.start();
    let worker = home.until_running("a");
    let page = ntfy.page("oom-memcg killed fixture-worker");
    assert!(
        !page.text("message").contains(&format!("Process {worker} ")),
        "the child, not the worker"
    );
    assert_eq!(home.until_running("a"), worker);
    home.end();
}
