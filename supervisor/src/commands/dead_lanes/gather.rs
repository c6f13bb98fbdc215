//! Evidence: the daemon's picture, the store, /proc, and the claims on the remote, in that order.

use std::{collections::BTreeMap, time::Duration};

use lanewarden_probes::{
    Root,
    liveness::{Judged, Liveness, Recorded, judge},
};

use super::{
    super::{Failure, runtime, status},
    rows::{Row, judged},
};
use crate::{
    claims::{ClaimRow, Namespace, ParsedClaim, Scratch, redact_url, snapshot},
    clock::unix_ms,
    config::{Config, Mode},
    effects::{prepare::ancestors, visitor::visitor},
    event::Looked,
    sources::{adoption::judge_worker, control::socket_path},
    store::{
        self,
        rows::{LaneRow, OpenRun},
    },
    verdict::LaneState,
    view::{BoxView, LaneView},
};

/// What the store remembers.
#[derive(Debug, Default)]
struct Memory {
    lanes: BTreeMap<String, LaneRow>,
    open: BTreeMap<String, OpenRun>,
}

/// The daemon's picture. While it names a worker that the kernel does not know any more it is judging that end: it is
/// asked again, until both agree or its time is up.
fn settled_view(config: &Config) -> Option<BoxView> {
    const TRIES: u32 = 10;
    let mut view = status::view(config).ok()?;
    for _ in 0..TRIES {
        let open = remember(config).map(|memory| memory.open).unwrap_or_default();
        let disputed = view.lanes.iter().any(|lane| {
            let run =
                open.get(&lane.id).filter(|run| Some(run.run.as_str()) == lane.run.as_deref());
            let judged = run.and_then(|run| judge_worker(run, &config.machine));
            lane.pid.is_some() && judged.is_some_and(|judged| judged.verdict.is_dead())
        });
        if !disputed {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        view = status::view(config).ok()?;
    }
    Some(view)
}

/// The rows, and why they are not all that there should be.
pub(super) fn gather(config: &Config) -> Result<(Vec<Row>, Vec<String>), Failure> {
    let mut incomplete = Vec::new();
    let view = settled_view(config);
    let hung = view.is_none() && is_hung(config);
    if hung {
        incomplete.push("the daemon holds its socket and does not answer".to_owned());
    }
    let memory = match remember(config) {
        Ok(memory) => Some(memory),
        Err(why) => {
            if view.is_none() {
                incomplete.push(why);
            }
            None
        }
    };
    let mut rows: Vec<Row> = config
        .lanes
        .iter()
        .map(|lane| own_row(config, lane, view.as_ref(), memory.as_ref(), hung))
        .collect();
    if let Some(remote) = &config.remote {
        match claims(remote) {
            Ok(found) => add_claims(config, view.is_some(), &mut rows, found),
            Err(why) => incomplete.push(why),
        }
    }
    Ok((rows, incomplete))
}

/// Whether somebody listens at the daemon's socket who did not answer.
fn is_hung(config: &Config) -> bool {
    std::os::unix::net::UnixStream::connect(socket_path(&config.runtime_dir)).is_ok()
}

fn remember(config: &Config) -> Result<Memory, String> {
    let connection =
        store::open_to_read(&store::path(&config.state_dir)).map_err(|e| e.to_string())?;
    let failed = |error: rusqlite::Error| format!("reading the store: {error}");
    let lanes = store::lanes(&connection).map_err(failed)?;
    let open = store::open_runs(&connection).map_err(failed)?;
    Ok(Memory {
        lanes: lanes.into_iter().map(|(row, _)| (row.lane.to_string(), row)).collect(),
        // The newest of a lane comes last and wins.
        open: open.into_iter().map(|run| (run.lane.to_string(), run)).collect(),
    })
}

fn own_row(
    config: &Config,
    lane: &crate::config::Lane,
    view: Option<&BoxView>,
    memory: Option<&Memory>,
    hung: bool,
) -> Row {
    let id = lane.id.as_str();
    let seen = view.and_then(|view| view.lanes.iter().find(|seen| seen.id == id));
    let open = memory.and_then(|memory| memory.open.get(id));
    let remembered = memory.and_then(|memory| memory.lanes.get(id));
    let judged = match seen {
        Some(seen) => with_daemon(config, seen, open),
        None => match without_daemon(config, lane, open, remembered, memory.is_some()) {
            // Nobody was looked for and found dead: the daemon may know of a worker, if only it answered.
            dead if hung && dead.verdict.is_dead() && open.is_none() => judged(
                Liveness::UnknownProbe,
                "the daemon does not answer, and may have a worker there",
            ),
            judged => judged,
        },
    };
    let mut row = Row::new(config.machine.as_str(), id, judged);
    row.state = seen.map(|seen| seen.state).or_else(|| remembered.map(|row| row.state));
    row.issue = seen.and_then(|seen| seen.issue).or_else(|| remembered.and_then(|row| row.issue));
    row.pid = match seen {
        Some(seen) => seen.pid,
        None => open.and_then(|run| run.worker.as_ref()).map(|worker| worker.pid),
    };
    row
}

/// The daemon answers: a worker is judged by its own identity, and a lane without one is the daemon's to explain.
fn with_daemon(config: &Config, seen: &LaneView, open: Option<&OpenRun>) -> Judged {
    let explained = || {
        let reason = seen.reason.as_deref().unwrap_or("no reason given");
        judged(Liveness::NoWorker, format!("{}: {reason}", seen.state))
    };
    if seen.cannot_tell {
        let why = seen.reason.clone().unwrap_or_default();
        return judged(Liveness::UnknownProbe, why);
    }
    if seen.state == LaneState::Occupied {
        // Somebody works there, and it is nobody whom the daemon knows.
        let who = seen.reason.as_deref().unwrap_or("it is not said by whom");
        return judged(Liveness::UnknownIdentity, format!("occupied: {who}"));
    }
    if seen.pid.is_none() {
        return explained();
    }
    let worker = open.filter(|run| Some(run.run.as_str()) == seen.run.as_deref());
    match worker.and_then(|run| judge_worker(run, &config.machine)) {
        // The daemon was asked again and again, and still says that it runs. One of the two is wrong.
        Some(dead) if dead.verdict.is_dead() => judged(
            Liveness::UnknownState,
            format!("the daemon says that it runs, and by /proc it does not: {}", dead.reason),
        ),
        Some(alive) => alive,
        None => judged(
            Liveness::UnknownProbe,
            "the daemon names a worker that the store does not have yet; ask again",
        ),
    }
}

/// No daemon answers: nobody restarts what is dead.
fn without_daemon(
    config: &Config,
    lane: &crate::config::Lane,
    open: Option<&OpenRun>,
    remembered: Option<&LaneRow>,
    store_read: bool,
) -> Judged {
    if let Some(judged) = open.and_then(|run| judge_worker(run, &config.machine)) {
        return judged;
    }
    if lane.mode == Mode::Observe {
        return by_looking(lane);
    }
    match remembered {
        Some(row) if row.down => {
            judged(Liveness::NoWorker, "stopped on order; no daemon answers on this box")
        }
        Some(row) => judged(
            Liveness::DeadNoProcess,
            format!("no daemon answers, and no worker is on record; last state {}", row.state),
        ),
        None if store_read => {
            judged(Liveness::UnknownNoPid, "no daemon answers, and none ever supervised it")
        }
        None => judged(Liveness::UnknownProbe, "no daemon answers, and the store tells nothing"),
    }
}

/// An observed lane without a daemon: whoever is there now.
fn by_looking(lane: &crate::config::Lane) -> Judged {
    let looked = match std::fs::canonicalize(&lane.dir) {
        Ok(dir) => visitor(&dir, &ancestors()),
        Err(error) => Looked::CannotTell(format!("{}: {error}", lane.dir.display())),
    };
    match looked {
        Looked::Somebody(visitor) => {
            judged(Liveness::Alive, format!("{} works there; no daemon answers", visitor.shown))
        }
        Looked::Nobody => judged(Liveness::NoWorker, "vacant; no daemon answers"),
        Looked::Shell(shell) => {
            judged(Liveness::NoWorker, format!("vacant, {shell}; no daemon answers"))
        }
        Looked::Young { .. } => judged(Liveness::UnknownProbe, "somebody has only just come there"),
        Looked::CannotTell(why) => judged(Liveness::UnknownProbe, why),
    }
}

fn claims(remote: &crate::config::Remote) -> Result<Vec<ClaimRow>, String> {
    let place =
        tempfile::tempdir().map_err(|error| format!("making a scratch directory: {error}"))?;
    let scratch = Scratch::open(place.path()).map_err(|error| error.to_string())?;
    let git = crate::run::git(remote);
    let prefixes = [Namespace::LaneClaims.as_str(), Namespace::MachineClaims.as_str()];
    let runtime = runtime().map_err(|failure| failure.words)?;
    let refs =
        runtime.block_on(snapshot(&git, &scratch, &remote.url, &prefixes)).map_err(|error| {
            format!("the remote {} cannot be read: {error}", redact_url(&remote.url))
        })?;
    Ok(refs.iter().filter_map(ClaimRow::of).collect())
}

/// Joins the claims with our own rows, and judges those that are nobody's here.
fn add_claims(config: &Config, daemon: bool, rows: &mut Vec<Row>, claims: Vec<ClaimRow>) {
    for claim in claims {
        let parsed = claim.parsed.as_ref().ok();
        let age_s = parsed.and_then(|parsed| parsed.ts).map(|ts| {
            let now = u64::try_from(unix_ms() / 1000).unwrap_or(0);
            now.saturating_sub(ts)
        });
        let named = parsed.and_then(|parsed| parsed.lane.as_ref()).map(ToString::to_string);
        let placeholder = |row: &Row| {
            crate::ids::LaneId::new(&row.lane)
                .is_ok_and(|lane| Some(lane.placeholder()) == claim.component)
        };
        let own = claim.machine == config.machine.as_str();
        let row = rows.iter_mut().find(|row| {
            own && row.machine == config.machine.as_str()
                && (named.as_deref() == Some(row.lane.as_str()) || placeholder(row))
        });
        if let Some(row) = row {
            row.name = Some(claim.ref_name.clone());
            row.age_s = age_s;
            row.issue = row.issue.or(claim.issue);
            continue;
        }
        let judged = judge_claim(config, daemon, &claim, parsed);
        let lane = named.or_else(|| claim.component.clone()).unwrap_or_default();
        let mut row = Row::new(&claim.machine, &lane, judged);
        row.name = Some(claim.ref_name);
        row.pid = parsed.and_then(|parsed| parsed.pid);
        row.issue = claim.issue;
        row.age_s = age_s;
        rows.push(row);
    }
}

/// Judges a claim that no configured lane of ours answers for.
fn judge_claim(
    config: &Config,
    daemon: bool,
    claim: &ClaimRow,
    parsed: Option<&ParsedClaim>,
) -> Judged {
    let Some(parsed) = parsed else {
        let why = claim.parsed.as_ref().err().map(ToString::to_string).unwrap_or_default();
        return Judged::unreadable(why);
    };
    let warden = parsed.warden.map(|(pid, _)| pid);
    let recorded = Recorded {
        machine: claim.machine.clone(),
        pid: parsed.pid,
        boot: parsed.boot.as_ref().and_then(|boot| boot.parse().ok()),
        ticks: parsed.ticks,
        pidns: parsed.pidns,
        ts_ms: parsed.ts.and_then(|ts| i64::try_from(ts).ok()).map(|ts| ts.saturating_mul(1000)),
        ts_unreadable: parsed.ts.is_none(),
        no_worker: warden.is_some() && warden == parsed.pid,
        ..Recorded::default()
    };
    let verdict = judge(&Root::live(), &recorded, config.machine.as_str());
    if daemon && verdict.verdict.is_dead() && parsed.warden.is_some() {
        // A claim of ours for a lane that the running daemon does not have: left over from another configuration.
        return judged(
            verdict.verdict,
            format!("{}; the lane is not configured any more", verdict.reason),
        );
    }
    verdict
}
