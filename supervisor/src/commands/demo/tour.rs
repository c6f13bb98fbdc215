//! The tour: starts the warden, prints what it detects as it happens, and sums up.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::process::{Child, Command};

use super::{
    super::{Failure, Outcome, client},
    by_hand::ByHand,
    place::{LANES, LIMIT, Place, WATCHED},
    sink::{Page, Sink},
};
use crate::{
    exit_code::{FAILED, OK},
    output::{self, Tone, toned},
    sources::control::{Request, Response, socket_path},
    store,
    text::{duration, harmless},
    verdict::{LaneState, RunVerdict},
    view::{BoxView, LaneView},
};

/// How often the daemon is asked.
const LOOK: Duration = Duration::from_millis(50);

pub(super) async fn tour(place: &Place, limit: Duration) -> Outcome {
    let failed =
        |doing: &'static str| move |error| Failure::new(FAILED, format!("{doing}: {error}"));
    let sink = Sink::default();
    let address = sink.listen().await.map_err(failed("opening the page sink"))?;
    let program = crate::own_program().map_err(failed("finding our own program"))?;
    place.configure(address, &program).map_err(failed("writing the configuration"))?;
    output::line(&format!(
        "A box in {}: a bare repository as remote, and five lanes.",
        place.path().display()
    ));
    for (lane, what) in LANES {
        output::line(&format!("  {lane:9} {what}"));
    }
    let log = std::fs::File::create(place.path().join("warden.log"))
        .map_err(failed("creating the warden's log"))?;
    let mut warden = Command::new(&program)
        .arg("--config")
        .arg(place.config())
        .args(["run", "--with-workers"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed("starting the warden"))?;
    let mut tour = Tour {
        began: Instant::now(),
        states: BTreeMap::new(),
        runs: BTreeSet::new(),
        pages: 0,
        detected: BTreeMap::new(),
        address: None,
        by_hand: ByHand::start(place, &program).map_err(failed("starting a worker by hand"))?,
    };
    let ended = tokio::select! {
        ended = tour.watch(place, &sink, &mut warden, limit) => Some(ended),
        () = interrupted() => None,
    };
    if let Some(Ok(Some(view))) = &ended {
        summary(view);
    }
    stop(&mut warden).await;
    for page in sink.after(tour.pages) {
        tour.page(&page);
    }
    match ended {
        Some(Ok(Some(_))) => {
            farewell();
            Ok(OK)
        }
        None => {
            Err(Failure::new(FAILED, "interrupted; everything of the demo is ended and removed"))
        }
        Some(Ok(None)) => Err(Failure::new(
            FAILED,
            format!("the warden did not get ready within {} s", limit.as_secs()),
        )),
        Some(Err(status)) => {
            let log = std::fs::read_to_string(place.path().join("warden.log")).unwrap_or_default();
            output::note(&harmless_lines(&log));
            Err(Failure::new(FAILED, format!("the warden ended early: {status}")))
        }
    }
}

struct Tour {
    began: Instant,
    /// State of each lane, as printed.
    states: BTreeMap<String, LaneState>,
    /// Runs whose verdict is printed.
    runs: BTreeSet<String>,
    pages: usize,
    detected: BTreeMap<String, i64>,
    /// Where metrics and the status page are.
    address: Option<String>,
    by_hand: ByHand,
}

impl Tour {
    /// Prints until every lane has shown what it is there to show, or the time is up.
    async fn watch(
        &mut self,
        place: &Place,
        sink: &Sink,
        warden: &mut Child,
        limit: Duration,
    ) -> Result<Option<BoxView>, std::process::ExitStatus> {
        let mut newest = None;
        while self.began.elapsed() < limit {
            if let Ok(Some(status)) = warden.try_wait() {
                return Err(status);
            }
            if let Some(view) = ask(place).await {
                self.show_address(place);
                self.show_runs(place, &view);
                for lane in &view.lanes {
                    self.show_state(lane);
                }
                self.kill_by_hand(&view).await;
                let shown = view.lanes.iter().all(shown);
                newest = Some(view);
                if shown && self.began.elapsed() > Duration::from_secs(1) {
                    // The last page is on its way.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    self.take_pages(sink);
                    return Ok(newest);
                }
            }
            self.take_pages(sink);
            tokio::time::sleep(LOOK).await;
        }
        Ok(newest)
    }

    async fn kill_by_hand(&mut self, view: &BoxView) {
        let observed =
            view.lanes.iter().any(|lane| lane.id == WATCHED && lane.state == LaneState::Observed);
        if observed && self.by_hand.observed().await {
            self.line(WATCHED, "its worker is killed by hand, with SIGKILL", Tone::Plain);
        }
    }

    fn take_pages(&mut self, sink: &Sink) {
        for page in sink.after(self.pages) {
            self.pages += 1;
            self.page(&page);
        }
    }

    fn line(&self, lane: &str, what: &str, tone: Tone) {
        let at = self.began.elapsed().as_secs_f64();
        output::line(&format!("{at:6.2}s  {lane:9} {}", toned(&harmless(what), tone)));
    }

    fn page(&self, page: &Page) {
        let lane =
            LANES.iter().find(|(lane, _)| page.title.contains(lane)).map_or("", |(lane, _)| lane);
        let after = self.detected.get(lane).map_or_else(String::new, |ended| {
            format!(" ({} ms after the end)", page.at_ms.saturating_sub(*ended).max(0))
        });
        self.line(lane, &format!("page: {}{after}", page.title), Tone::Warn);
        self.line(lane, &format!("      {}", page.first_line), Tone::Dim);
    }

    fn show_address(&mut self, place: &Place) {
        if self.address.is_some() {
            return;
        }
        if let Ok(address) = std::fs::read_to_string(place.path().join("run").join("http-address"))
        {
            let address = address.trim().to_owned();
            output::line(&format!(
                "Metrics: http://{address}/metrics, status page: http://{address}/"
            ));
            self.address = Some(address);
        }
    }

    /// Every run that was judged, in order; a lane may have judged two between two looks.
    fn show_runs(&mut self, place: &Place, view: &BoxView) {
        let path = store::path(&place.path().join("state"));
        let Ok(connection) = store::open_to_read(&path) else { return };
        let mut runs = store::history(&connection, None, 100).unwrap_or_default();
        runs.reverse();
        for run in runs {
            if !self.runs.insert(run.run.clone()) {
                continue;
            }
            let lived = duration(run.duration_s);
            let how = run.end.map_or_else(String::new, |end| format!(" ({end})"));
            let tone = if run.verdict.is_failure() { Tone::Bad } else { Tone::Good };
            let newest = view.lanes.iter().filter_map(|lane| lane.last.as_ref());
            let after =
                newest.filter(|last| last.run == run.run).map(|last| last.judged_after_ms).next();
            let after =
                after.map_or_else(String::new, |ms| format!("; judged {ms} ms after the end"));
            let what = format!("{}{how} after {lived}: {}{after}", run.verdict, run.reason);
            self.line(&run.lane, &what, tone);
            self.detected.insert(run.lane.clone(), run.ended_at_ms);
        }
    }

    fn show_state(&mut self, lane: &LaneView) {
        let before = self.states.insert(lane.id.clone(), lane.state);
        if Some(lane.state) != before && lane.state != LaneState::Starting {
            let pid = lane.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
            self.line(&lane.id, &format!("{}{pid}", lane.state), Tone::Plain);
            for sentence in &lane.degraded {
                self.line(&lane.id, &format!("on this host: {sentence}"), Tone::Dim);
            }
        }
    }
}

/// Ctrl-C, or an order to end: the demo still cleans up after itself.
async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
}

/// Whether a lane has shown what it is there to show.
fn shown(lane: &LaneView) -> bool {
    match lane.id.as_str() {
        "finishes" => lane.last.as_ref().is_some_and(|last| last.verdict == RunVerdict::NoWork),
        WATCHED => lane.last.is_some() && lane.state == LaneState::Vacant,
        _ => matches!(lane.state, LaneState::Tripped),
    }
}

async fn ask(place: &Place) -> Option<BoxView> {
    let socket = socket_path(&place.path().join("run"));
    let answer = tokio::task::spawn_blocking(move || {
        client::ask(&socket, &Request::Status, Duration::from_secs(2))
    });
    match answer.await.ok()?.ok()? {
        Response::Status(view) => Some(*view),
        Response::Done(_) | Response::Refused(_) => None,
    }
}

fn summary(view: &BoxView) {
    output::line("");
    let rows: Vec<_> = view
        .lanes
        .iter()
        .map(|lane| {
            let last = lane.last.as_ref();
            let verdict = last.map_or_else(|| "-".to_owned(), |last| last.verdict.to_string());
            let good = last.is_some_and(|last| !last.verdict.is_failure());
            vec![
                (lane.id.clone(), Tone::Plain),
                (lane.state.to_string(), Tone::Plain),
                (verdict, if good { Tone::Good } else { Tone::Bad }),
                (last.map_or_else(String::new, |last| last.reason.clone()), Tone::Plain),
                (
                    lane.claim.as_ref().map_or_else(|| "-".to_owned(), |claim| claim.name.clone()),
                    Tone::Dim,
                ),
            ]
        })
        .collect();
    output::table(&["LANE", "STATE", "VERDICT", "WHY", "CLAIM ON THE REMOTE"], &rows);
    let oom = view
        .lanes
        .iter()
        .any(|lane| lane.last.as_ref().is_some_and(|last| last.verdict == RunVerdict::OomKilled));
    if !oom {
        output::line(&format!(
            "No OOM kill was shown: this host does not let us set a memory limit of {LIMIT} (no writable cgroup with the memory controller)."
        ));
    }
}

/// Ends the warden as an operator would, and waits until nothing is left.
async fn stop(warden: &mut Child) {
    let Some(pid) = warden.id().and_then(|pid| i32::try_from(pid).ok()) else { return };
    if let Some(pid) = rustix::process::Pid::from_raw(pid)
        && let Err(error) = rustix::process::kill_process(pid, rustix::process::Signal::TERM)
    {
        output::error(&format!("ending the warden: {error}"));
    }
    let ended = tokio::time::timeout(Duration::from_secs(20), warden.wait()).await;
    if ended.is_err() {
        output::error("the warden did not end within 20 s and is killed");
        drop(warden.kill().await);
    }
}

fn farewell() {
    output::line("What to try next:");
    output::line("  lanewarden demo --keep            the same, with everything left for a look");
    output::line(
        "  lanewarden --help                 all commands; README.md has a first real configuration",
    );
}

fn harmless_lines(text: &str) -> String {
    text.lines().map(harmless).collect::<Vec<_>>().join("\n")
}
