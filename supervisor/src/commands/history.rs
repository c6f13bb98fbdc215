//! `lanewarden history`.

use super::{Failure, Outcome};
use crate::{
    config::Config,
    exit_code::{FAILED, OK},
    ids::LaneId,
    output::{self, Tone},
    store::{self, HistoryRow},
    text::{duration, size},
    verdict::RunVerdict,
};

pub(super) fn history(config: &Config, lane: Option<&LaneId>, limit: u32, json: bool) -> Outcome {
    let rows = open(config)
        .and_then(|connection| store::history(&connection, lane, limit).map_err(failed))?;
    if json {
        output::json(&rows);
        return Ok(OK);
    }
    let table: Vec<_> = rows.iter().map(row).collect();
    output::table(&["ENDED", "LANE", "VERDICT", "EXIT", "TOOK", "PEAK", "RUN", "REASON"], &table);
    Ok(OK)
}

/// The store, beside a daemon or without one.
pub(super) fn open(config: &Config) -> Result<rusqlite::Connection, Failure> {
    store::open_to_read(&store::path(&config.state_dir))
        .map_err(|error| Failure::new(FAILED, error))
}

pub(super) fn failed(error: rusqlite::Error) -> Failure {
    Failure::new(FAILED, format!("reading the store: {error}"))
}

fn row(run: &HistoryRow) -> Vec<(String, Tone)> {
    let plain = |text: String| (text, Tone::Plain);
    let tone = match run.verdict {
        RunVerdict::Finalized | RunVerdict::NoWork => Tone::Good,
        RunVerdict::Stopped => Tone::Dim,
        RunVerdict::Blocked | RunVerdict::ParkedOnOwner | RunVerdict::StuckOnQuestion => Tone::Warn,
        RunVerdict::Failed
        | RunVerdict::Signalled
        | RunVerdict::OomKilled
        | RunVerdict::Deadline
        | RunVerdict::MarkerMissing
        | RunVerdict::MarkerInvalid
        | RunVerdict::MarkerStale
        | RunVerdict::NotStarted
        | RunVerdict::Vanished => Tone::Bad,
    };
    let exit = match (run.exit_code, run.signal) {
        (Some(code), _) => code.to_string(),
        (None, Some(signal)) => {
            run.end.map_or_else(|| format!("signal {signal}"), |end| format!("{signal} {end}"))
        }
        (None, None) => "-".to_owned(),
    };
    vec![
        plain(run.ended_at.clone()),
        plain(run.lane.clone()),
        (run.verdict.to_string(), tone),
        plain(exit),
        plain(duration(run.duration_s)),
        plain(run.peak_memory_bytes.map_or_else(|| "-".to_owned(), size)),
        plain(run.run.chars().take(8).collect()),
        plain(run.reason.clone()),
    ]
}
