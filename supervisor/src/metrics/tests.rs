use std::{collections::BTreeSet, io::Write as _, process::Stdio};

use super::*;
use crate::{
    claims::GitErrorKind,
    ids::RunId,
    verdict::{AdmissionCheck, LaneState},
    view::{ClaimView, LaneView},
};

fn id(name: &str) -> LaneId {
    LaneId::new(name).unwrap()
}

fn run() -> RunId {
    RunId::from_bytes([7; 16])
}

fn lane(name: &str, mode: Mode, state: LaneState) -> LaneView {
    LaneView {
        id: name.to_owned(),
        dir: "/data".to_owned(),
        mode: mode.as_str().to_owned(),
        state,
        reason: None,
        since_ms: 1_500,
        next_start_ms: None,
        pid: None,
        token: None,
        run: None,
        run_started_ms: None,
        issue: None,
        failures: 2,
        cannot_tell: false,
        intruders: Vec::new(),
        degraded: Vec::new(),
        last: None,
        claim: Some(ClaimView {
            name: "refs/x".to_owned(),
            oid: "0".to_owned(),
            age_s: 3,
            stamped_at_ms: 1_700_000_000_250,
        }),
    }
}

fn view(lanes: Vec<LaneView>) -> BoxView {
    BoxView {
        ready: true,
        keeper_up: true,
        taken_at_ms: 1_700_000_001_000,
        lanes,
        ..BoxView::default()
    }
}

fn two() -> (Metrics, BoxView) {
    let metrics = Metrics::new("0.1.0", &[(id("a"), Mode::Manage), (id("b"), Mode::Observe)]);
    let lanes = vec![
        lane("a", Mode::Manage, LaneState::Tripped),
        lane("b", Mode::Observe, LaneState::Observed),
    ];
    (metrics, view(lanes))
}

/// The value of the one sample that begins so.
fn value(page: &str, series: &str) -> f64 {
    let start = format!("{series} ");
    let found: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix(start.as_str())).collect();
    assert_eq!(found.len(), 1, "{series} in\n{page}");
    found[0].parse().unwrap()
}

fn ended(lane: &str, verdict: RunVerdict, end: Option<SigkillEnd>) -> Observation {
    Observation::RunEnded {
        lane: id(lane),
        run: run(),
        verdict,
        end,
        lived_ms: 61_000,
        judged_after_ms: 4,
        reason: String::new(),
    }
}

#[test]
fn the_page_is_the_catalogue() {
    let (metrics, view) = two();
    let page = metrics.page(&view).unwrap();
    let names = |start: &str| -> Vec<String> {
        let lines = page.lines().filter_map(|line| line.strip_prefix(start));
        lines.filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
    };
    let listed: Vec<String> = catalogue().iter().map(|entry| entry.name.to_owned()).collect();
    assert_eq!(names("# HELP "), listed);
    assert_eq!(names("# TYPE "), listed);
    let known: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .filter(|family| known.contains(family))
            .unwrap_or(name);
        assert!(known.contains(family), "{line}");
        assert_eq!(line.matches(' ').count(), 1, "a timestamp or a stray blank: {line}");
    }
}

#[test]
fn every_counter_begins_at_zero_for_every_member() {
    let metrics = Metrics::new("0.1.0", &[(id("a"), Mode::Manage)]);
    // Before the first picture, too: a counter that is born with 1 is invisible to `increase`.
    let pages = [
        metrics.page(&BoxView::default()).unwrap(),
        metrics.page(&view(vec![lane("a", Mode::Manage, LaneState::Running)])).unwrap(),
    ];
    for page in pages {
        let zero = |series: String| assert!(value(&page, &series).abs() < f64::EPSILON, "{series}");
        for verdict in RunVerdict::ALL {
            zero(format!("lanewarden_runs_finished_total{{lane=\"a\",verdict=\"{verdict}\"}}"));
        }
        for end in SigkillEnd::ALL {
            zero(format!("lanewarden_sigkill_ends_total{{lane=\"a\",end=\"{end}\"}}"));
            let kill = format!("lanewarden_oom_kills_total{{lane=\"a\",kind=\"{end}\"}}");
            if end.is_oom() { zero(kill) } else { assert!(!page.contains(&kill), "{kill}") }
        }
        for check in AdmissionCheck::ALL {
            zero(format!("lanewarden_admission_refusals_total{{check=\"{check}\"}}"));
        }
        for reason in GitErrorKind::ALL {
            zero(format!("lanewarden_claim_push_failures_total{{reason=\"{reason}\"}}"));
        }
        for level in Level::ALL {
            zero(format!("lanewarden_notices_raised_total{{severity=\"{level}\"}}"));
        }
        for result in ["adopted", "ended-while-away", "lost"] {
            zero(format!("lanewarden_adoptions_total{{result=\"{result}\"}}"));
        }
        for signal in ["term", "kill"] {
            zero(format!("lanewarden_stop_signals_total{{lane=\"a\",signal=\"{signal}\"}}"));
        }
        zero("lanewarden_source_lost_records_total{source=\"kmsg\"}".to_owned());
        zero("lanewarden_runs_started_total{lane=\"a\"}".to_owned());
        zero("lanewarden_breaker_trips_total{lane=\"a\"}".to_owned());
        zero("lanewarden_run_duration_seconds_count".to_owned());
        for entry in catalogue().iter().filter(|entry| entry.kind == Kind::Counter) {
            assert!(page.contains(&format!("\n# TYPE {} counter\n", entry.name)), "{}", entry.name);
        }
    }
}

#[test]
fn the_signals_are_spelled_as_the_protocol_has_them() {
    for (signal, text) in [(StopSignal::Term, TERM), (StopSignal::Kill, KILL)] {
        assert_eq!(serde_json::to_value(signal).unwrap(), text);
    }
}

#[test]
fn gauges_say_what_the_picture_says() {
    let (metrics, mut view) = two();
    view.lanes[0].next_start_ms = Some(1_700_000_002_500);
    view.lanes[1].run_started_ms = Some(1_600_000_000_000);
    view.spool.pending = 3;
    let page = metrics.page(&view).unwrap();
    for (series, wanted) in [
        ("lanewarden_build_info{version=\"0.1.0\"}", 1.0),
        ("lanewarden_ready", 1.0),
        ("lanewarden_snapshot_timestamp_seconds", 1_700_000_001.0),
        ("lanewarden_lanes_configured{mode=\"manage\"}", 1.0),
        ("lanewarden_lane_info{lane=\"b\",mode=\"observe\"}", 1.0),
        ("lanewarden_lane_state{lane=\"a\",state=\"tripped\"}", 1.0),
        ("lanewarden_lane_state{lane=\"a\",state=\"running\"}", 0.0),
        ("lanewarden_lane_state_change_timestamp_seconds{lane=\"a\"}", 1.5),
        ("lanewarden_lane_next_start_timestamp_seconds{lane=\"a\"}", 1_700_000_002.5),
        ("lanewarden_lane_next_start_timestamp_seconds{lane=\"b\"}", 0.0),
        ("lanewarden_run_start_timestamp_seconds{lane=\"b\"}", 1_600_000_000.0),
        ("lanewarden_breaker_tripped{lane=\"a\"}", 1.0),
        ("lanewarden_breaker_tripped{lane=\"b\"}", 0.0),
        ("lanewarden_breaker_failures{lane=\"a\"}", 2.0),
        ("lanewarden_claims_held", 2.0),
        ("lanewarden_claim_stamp_timestamp_seconds{lane=\"a\"}", 1_700_000_000.25),
        ("lanewarden_notify_spool_pending", 3.0),
    ] {
        assert!((value(&page, series) - wanted).abs() < 1e-6, "{series}");
    }
    for state in LaneState::ALL {
        value(&page, &format!("lanewarden_lane_state{{lane=\"b\",state=\"{state}\"}}"));
    }
}

#[test]
fn a_removed_lane_is_gone_and_a_new_one_is_there() {
    let (metrics, mut view) = two();
    metrics.observe(&ended("b", RunVerdict::Failed, None));
    assert!(metrics.page(&view).unwrap().contains("lane=\"b\""));
    view.lanes.remove(1);
    view.lanes.push(lane("c", Mode::Manage, LaneState::Starting));
    let page = metrics.page(&view).unwrap();
    assert!(!page.contains("lane=\"b\""), "{page}");
    assert!(page.contains("lanewarden_runs_finished_total{lane=\"c\",verdict=\"failed\"} 0\n"));
    view.lanes.clear();
    assert!(!metrics.page(&view).unwrap().contains("lane=\""));
}

#[test]
fn what_happens_is_counted_once() {
    let (metrics, view) = two();
    let kill = |lane: Option<&str>, class| Observation::OomKill {
        lane: lane.map(id),
        class,
        victim: String::new(),
    };
    for observation in [
        Observation::Adopted { living: 2, ended: 1, lost: 0 },
        Observation::RunStarted { lane: id("a"), run: run(), pid: 4 },
        kill(Some("a"), SigkillEnd::OomMemcg),
        ended("a", RunVerdict::OomKilled, Some(SigkillEnd::OomMemcg)),
        // No record told this one.
        ended("a", RunVerdict::OomKilled, Some(SigkillEnd::CoVictim)),
        // A kill that no record names is told once as a kill; the runs that it ended add nothing.
        kill(Some("b"), SigkillEnd::OomUnnamed),
        ended("b", RunVerdict::OomKilled, Some(SigkillEnd::OomUnnamed)),
        ended("b", RunVerdict::OomKilled, Some(SigkillEnd::OomUnnamed)),
        kill(None, SigkillEnd::OomGlobal),
        Observation::KernelLogLost(9),
        Observation::BreakerTripped { lane: id("a"), failures: 3 },
        Observation::StartRefused {
            lane: id("a"),
            check: AdmissionCheck::Disk,
            detail: String::new(),
            again: true,
        },
        Observation::Signalled { lane: id("a"), how: StopSignal::Kill },
        Observation::ClaimsPushed { accepted: 1, refused: 0, took_ms: 300 },
        Observation::ClaimsFailed { class: GitErrorKind::Timeout, lanes: 2 },
        Observation::NoticeDelivered { after_ms: 90 },
        Observation::NoticeDelayed { reason: String::new() },
        Observation::NoticeDropped { reason: String::new() },
    ] {
        metrics.observe(&observation);
    }
    metrics.notice_raised(Level::High);
    metrics.notice_attempted();
    metrics.store_failed();
    metrics.loop_turn(Duration::from_millis(2));
    let page = metrics.page(&view).unwrap();
    for (series, wanted) in [
        ("adoptions_total{result=\"adopted\"}", 2.0),
        ("runs_started_total{lane=\"a\"}", 1.0),
        ("runs_finished_total{lane=\"a\",verdict=\"oom-killed\"}", 2.0),
        ("oom_kills_total{lane=\"a\",kind=\"oom-memcg\"}", 1.0),
        ("oom_kills_total{lane=\"a\",kind=\"co-victim\"}", 1.0),
        ("oom_kills_total{lane=\"b\",kind=\"oom-unnamed\"}", 1.0),
        ("oom_kills_unattributed_total", 1.0),
        ("sigkill_ends_total{lane=\"b\",end=\"oom-unnamed\"}", 2.0),
        ("run_duration_seconds_bucket{le=\"60\"}", 0.0),
        ("run_duration_seconds_bucket{le=\"300\"}", 4.0),
        ("run_duration_seconds_bucket{le=\"+Inf\"}", 4.0),
        ("run_exit_detection_seconds_sum", 0.016),
        ("source_lost_records_total{source=\"kmsg\"}", 9.0),
        ("breaker_trips_total{lane=\"a\"}", 1.0),
        ("admission_refusals_total{check=\"disk\"}", 1.0),
        ("stop_signals_total{lane=\"a\",signal=\"kill\"}", 1.0),
        ("claim_pushes_total", 2.0),
        ("claim_push_failures_total{reason=\"timeout\"}", 1.0),
        ("claim_push_duration_seconds_count", 1.0),
        ("notices_raised_total{severity=\"high\"}", 1.0),
        ("notices_delivered_total", 1.0),
        ("notices_dropped_total", 1.0),
        ("notify_requests_total", 1.0),
        ("notify_request_failures_total", 2.0),
        ("notify_delivery_seconds_bucket{le=\"0.1\"}", 1.0),
        ("store_errors_total", 1.0),
        ("loop_iteration_duration_seconds_count", 1.0),
    ] {
        let series = format!("lanewarden_{series}");
        assert!((value(&page, &series) - wanted).abs() < 1e-9, "{series}");
    }
    assert!(value(&page, "lanewarden_loop_last_iteration_timestamp_seconds") > 1.7e9);
}

#[test]
fn a_restart_keeps_what_alerts_need() {
    let (metrics, view) = two();
    metrics.restore(Restored {
        oom_kills: vec![(Some(id("a")), SigkillEnd::OomMemcg, 5), (None, SigkillEnd::OomGlobal, 2)],
        runs_finished: vec![(id("a"), RunVerdict::OomKilled, 4)],
        sigkill_ends: vec![(id("a"), SigkillEnd::OomMemcg, 4)],
        breaker_trips: vec![(id("b"), 1)],
    });
    metrics.observe(&Observation::OomKill {
        lane: Some(id("a")),
        class: SigkillEnd::OomMemcg,
        victim: String::new(),
    });
    let page = metrics.page(&view).unwrap();
    assert!(page.contains("lanewarden_oom_kills_total{lane=\"a\",kind=\"oom-memcg\"} 6\n"));
    assert!(page.contains("lanewarden_oom_kills_unattributed_total 2\n"));
    assert!(page.contains("lanewarden_runs_finished_total{lane=\"a\",verdict=\"oom-killed\"} 4\n"));
    assert!(page.contains("lanewarden_breaker_trips_total{lane=\"b\"} 1\n"));
}

#[test]
fn the_process_is_measured_finely() {
    let (metrics, view) = two();
    let began = Now::read().unix_ms;
    let mut sum = 0_u64;
    while Now::read().unix_ms - began < 60 {
        sum = std::hint::black_box(sum.wrapping_add(1));
    }
    let page = metrics.page(&view).unwrap();
    assert!(value(&page, "process_cpu_seconds_total") >= 0.01);
    let age = process::seconds(Now::read().unix_ms) - value(&page, "process_start_time_seconds");
    assert!((0.0..3600.0).contains(&age), "{age}");
    assert!(value(&page, "process_threads") >= 1.0);
}

#[test]
fn label_values_are_escaped() {
    let (metrics, mut view) = two();
    view.lanes[0].id = "a\"b\\\n{}".to_owned();
    let page = metrics.page(&view).unwrap();
    assert!(page.contains("lanewarden_runs_started_total{lane=\"a\\\"b\\\\\\n{}\"} 0\n"), "{page}");
    judged_by_promtool(&page);
}

#[test]
fn a_page_is_legal() {
    let (metrics, view) = two();
    judged_by_promtool(&metrics.page(&BoxView::default()).unwrap());
    judged_by_promtool(&metrics.page(&view).unwrap());
}

#[expect(
    clippy::disallowed_methods,
    clippy::print_stderr,
    reason = "a real judge, if there is one"
)]
fn judged_by_promtool(page: &str) {
    let mut command = std::process::Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = match command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            return eprintln!("promtool cannot be asked ({error}): the page is not judged");
        }
    };
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));
}
