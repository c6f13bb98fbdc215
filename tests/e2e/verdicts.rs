//! Every run verdict is produced for real, and store, metrics and pages all say the same word.

use lanewarden::verdict::{RunVerdict, SigkillEnd};
use lanewarden_tests::{
    Home, http,
    ntfy::Ntfy,
    requires::{Need, has},
    until,
};
use rustix::process::Signal;

/// Verdicts that nothing produces yet, and why. The walk fails as soon as one of them gets a fixture.
const WITHOUT_PRODUCER: &[(RunVerdict, &str)] = &[(
    RunVerdict::StuckOnQuestion,
    "the watchdog that looks for a prompt in a worker's output is not built yet",
)];

/// How a verdict is brought about.
struct Fixture {
    words: Vec<String>,
    extra: &'static str,
    /// A part of the title of the page that it causes, if it causes one.
    page: Option<&'static str>,
    needs: &'static [Need],
    provoke: fn(&Home),
}

fn nothing(_: &Home) {}

impl Fixture {
    fn of(words: &[&str]) -> Self {
        Self {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            extra: "",
            page: None,
            needs: &[],
            provoke: nothing,
        }
    }

    fn with(self, extra: &'static str) -> Self {
        Self { extra, ..self }
    }

    fn pages(self, title: &'static str) -> Self {
        Self { page: Some(title), ..self }
    }

    fn needs(self, needs: &'static [Need]) -> Self {
        Self { needs, ..self }
    }

    fn provoked(self, provoke: fn(&Home)) -> Self {
        Self { provoke, ..self }
    }
}

/// What brings each verdict about. Exhaustive: a new verdict does not compile without an answer.
fn fixture(verdict: RunVerdict) -> Option<Fixture> {
    Some(match verdict {
        RunVerdict::Finalized => Fixture::of(&["marker", "finalized"]),
        RunVerdict::NoWork => Fixture::of(&["marker", "no-work"]),
        RunVerdict::Blocked => Fixture::of(&["marker", "blocked"]).pages("blocked on issue 42"),
        RunVerdict::ParkedOnOwner => {
            Fixture::of(&["marker", "needs-decision"]).pages("parked on issue 42")
        }
        RunVerdict::Failed => Fixture::of(&["exit", "7"]),
        RunVerdict::Signalled => Fixture::of(&["die", "15"]).pages("dead, signalled"),
        RunVerdict::OomKilled => Fixture::of(&["eat", "256"])
            .with("limits = { memory_max = \"24M\" }")
            .pages("oom-memcg killed")
            .needs(&[Need::MemoryCgroup, Need::Kmsg]),
        RunVerdict::Deadline => {
            Fixture::of(&["sleep"]).with("deadline = \"300ms\"").pages("run ended at its deadline")
        }
        RunVerdict::StuckOnQuestion => return None,
        RunVerdict::MarkerMissing => Fixture::of(&[]),
        RunVerdict::MarkerInvalid => Fixture::of(&["marker", "garbage"]),
        RunVerdict::MarkerStale => Fixture::of(&["marker", "stale"]),
        RunVerdict::NotStarted => Fixture::of(&[]).provoked(|_| {}),
        RunVerdict::Stopped => Fixture::of(&["sleep"]).provoked(|home| {
            home.until_running("a");
            assert_eq!(home.run(&["stop", "a"]).code, 0);
        }),
        RunVerdict::Vanished => Fixture::of(&["sleep"]).pages("dead, vanished").provoked(vanish),
    })
}

/// The keeper dies first, so that nobody is left who could learn how the worker ends.
fn vanish(home: &Home) {
    let worker = home.until_running("a");
    let [keeper] = home.keepers()[..] else { panic!("keepers: {:?}", home.keepers()) };
    lanewarden_tests::proc::signal(keeper, Signal::KILL);
    until("another keeper", || match home.keepers()[..] {
        [next] if next != keeper => Ok(()),
        _ => Err(home.keepers()),
    });
    home.until_metric("lanewarden_keeper_up", 1.0);
    lanewarden_tests::proc::signal(worker, Signal::KILL);
}

/// Starts a box with one lane of this fixture, and brings the verdict about.
fn bring_about(verdict: RunVerdict, fixture: &Fixture) -> (Home, Ntfy) {
    let ntfy = Ntfy::start();
    let mut home = Home::new(verdict.as_str());
    home.plan.ntfy = Some(ntfy.url());
    let words: Vec<&str> = fixture.words.iter().map(String::as_str).collect();
    // One run each: whatever comes next waits.
    let extra = format!(
        "restart = {{ delay = \"1h\", max_delay = \"1h\", breaker = 0 }}\n{}",
        fixture.extra
    );
    home.lane_with("a", &words, &extra);
    if verdict == RunVerdict::NotStarted {
        home.plan.lanes[0].command = vec!["/no/such/program".to_owned()];
    }
    home.start();
    (fixture.provoke)(&home);
    (home, ntfy)
}

/// Everybody says the same word.
fn assert_same_word(home: &Home, ntfy: &Ntfy, verdict: RunVerdict, fixture: &Fixture) {
    let word = verdict.as_str();
    let lane = home.until_verdict("a", word);
    let newest = &home.history("a")[0];
    assert_eq!(newest["verdict"], word, "{newest}");
    assert_eq!(newest["run"], lane["last"]["run"]);
    let series = format!("lanewarden_runs_finished_total{{lane=\"a\",verdict=\"{word}\"}}");
    assert_eq!(http::sample(&home.metrics(), &series), Some(1.0), "{series}");
    let status = home.run(&["status"]);
    assert!(status.stdout.contains(word), "{status:?}");
    if let Some(title) = fixture.page {
        let page = ntfy.page(title);
        assert!(page.text("title").contains(&home.plan.machine), "{:?}", page.text("title"));
    }
}

fn walk(verdict: RunVerdict) {
    let Some(fixture) = fixture(verdict) else {
        let known = WITHOUT_PRODUCER.iter().any(|(without, _)| *without == verdict);
        assert!(known, "{verdict} has no fixture");
        return;
    };
    if !has(fixture.needs) {
        return;
    }
    let (home, ntfy) = bring_about(verdict, &fixture);
    assert_same_word(&home, &ntfy, verdict, &fixture);
}

/// Half of the walk, so that the halves run beside each other.
fn walk_half(half: usize) {
    for (_, verdict) in RunVerdict::ALL.iter().enumerate().filter(|(at, _)| at % 2 == half) {
        walk(*verdict);
    }
}

#[test]
fn every_verdict_is_produced_for_real_and_everybody_says_the_same_word() {
    walk_half(0);
}

#[test]
fn every_verdict_is_produced_for_real_the_other_half() {
    walk_half(1);
}

#[test]
fn only_what_has_no_producer_is_excused() {
    for (verdict, why) in WITHOUT_PRODUCER {
        assert!(fixture(*verdict).is_none(), "{verdict} has a fixture now; it is excused: {why}");
    }
}

fn until_end(home: &Home, end: SigkillEnd) {
    let word = end.as_str();
    home.until_lane("a", word, |lane| lane["last"]["end"] == word);
    let newest = &home.history("a")[0];
    assert_eq!(newest["end"], word, "{newest}");
    assert_eq!(newest["signal"], 9, "{newest}");
    let series = format!("lanewarden_sigkill_ends_total{{lane=\"a\",end=\"{word}\"}}");
    assert_eq!(http::sample(&home.metrics(), &series), Some(1.0), "{series}");
}

const ONE_RUN: &str = "restart = { delay = \"1h\", max_delay = \"1h\", breaker = 0 }\n";

#[test]
fn a_kill_of_ours_is_told_from_one_that_nobody_explains() {
    let mut home = Home::new("ends");
    home.lane_with("a", &["ignore-term", "touch", &home.at("ready"), "sleep"], ONE_RUN);
    home.start();
    home.until_running("a");
    until("the worker to ignore TERM", || {
        if home.path("ready").exists() { Ok(()) } else { Err("not yet") }
    });
    assert_eq!(home.run(&["stop", "a"]).code, 0);
    until_end(&home, SigkillEnd::KilledByUs);
    assert_eq!(home.history("a")[0]["verdict"], "stopped");

    assert_eq!(home.run(&["start", "a"]).code, 0);
    let worker = home.until_running("a");
    lanewarden_tests::proc::signal(worker, Signal::KILL);
    until_end(&home, SigkillEnd::Unexplained);
    assert_eq!(home.history("a")[0]["verdict"], "signalled");
    home.end();
}

#[test]
fn an_oom_kill_is_the_kernels() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let mut home = Home::new("memcg");
    home.lane_with("a", &["eat", "256"], &format!("{ONE_RUN}limits = {{ memory_max = \"24M\" }}"));
    home.start();
    until_end(&home, SigkillEnd::OomMemcg);
    let newest = &home.history("a")[0];
    assert_eq!(newest["verdict"], "oom-killed", "{newest}");
    assert!(newest["peak_memory_bytes"].as_u64().is_some_and(|peak| peak > 16 << 20), "{newest}");
    let named = newest["evidence"]["oom_kills_named"].as_array().cloned().unwrap_or_default();
    assert_eq!(named.len(), 1, "{newest}");
    assert_eq!(named[0]["kill"]["pid"], newest["pid"], "{newest}");
    home.end();
}

#[test]
fn a_child_that_the_kernel_killed_makes_the_run_oom_killed() {
    if !has(&[Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let mut home = Home::new("child");
    let limit = format!("{ONE_RUN}limits = {{ memory_max = \"24M\" }}");
    home.lane_with("a", &["child-eats", "256", "exit", "137"], &limit);
    home.lane_with("b", &["child-eats", "256", "exit", "3"], &limit);
    home.start();
    for (lane, code) in [("a", 137), ("b", 3)] {
        let view = home.until_verdict(lane, "oom-killed");
        assert_eq!(view["last"]["exit_code"], code, "{view}");
        assert_eq!(view["last"]["end"], "oom-memcg", "{view}");
    }
    home.end();
}
