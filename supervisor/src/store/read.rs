//! Reading: what a daemon needs to begin, and what the reading commands show.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;

use super::rows::{LaneRow, Memory, OpenRun, OpenWorker};
use crate::{
    ids::{LaneId, RunId},
    verdict::{RunVerdict, SigkillEnd, Verified},
    view::LastView,
};

/// A past run, as `history --json` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct HistoryRow {
    /// Its nonce.
    pub run: String,
    /// Its lane.
    pub lane: String,
    /// The issue that it worked on.
    pub issue: Option<u64>,
    /// How it is judged.
    pub verdict: RunVerdict,
    /// The forge's answer.
    pub verified: Verified,
    /// The exit code, if it exited.
    pub exit_code: Option<u8>,
    /// The signal, if one ended it.
    pub signal: Option<u8>,
    /// Who ended it, if SIGKILL did.
    pub end: Option<SigkillEnd>,
    /// When it started, RFC 3339.
    pub started_at: String,
    /// When it ended, RFC 3339.
    pub ended_at: String,
    /// How long it lived, seconds.
    pub duration_s: f64,
    /// Highest memory, bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Everything from which it was judged.
    pub evidence: serde_json::Value,
    /// The same moments, milliseconds since the epoch.
    pub started_at_ms: i64,
    /// When it ended, milliseconds since the epoch.
    pub ended_at_ms: i64,
    /// The worker's pid.
    pub pid: Option<u32>,
    /// One sentence.
    pub reason: String,
}

impl From<HistoryRow> for LastView {
    fn from(row: HistoryRow) -> Self {
        Self {
            verdict: row.verdict,
            exit_code: row.exit_code,
            signal: row.signal,
            end: row.end,
            duration_s: row.duration_s,
            reason: row.reason,
            run: row.run,
            ended_at_ms: row.ended_at_ms,
            // Not on record: what counts is how long it took when it happened.
            judged_after_ms: 0,
        }
    }
}

/// Past runs, newest first.
///
/// # Errors
/// What SQLite says.
pub fn history(
    connection: &Connection,
    lane: Option<&LaneId>,
    limit: u32,
) -> rusqlite::Result<Vec<HistoryRow>> {
    let mut statement = connection.prepare(
        "SELECT run, lane, issue, verdict, verified, exit_code, signal, sigkill_end, started_at_ms, ended_at_ms, \
         peak_memory_bytes, evidence, pid, reason FROM run \
         WHERE ended_at_ms IS NOT NULL AND (?1 IS NULL OR lane = ?1) \
         ORDER BY ended_at_ms DESC, rowid DESC LIMIT ?2",
    )?;
    statement.query_map(params![lane.map(LaneId::as_str), limit], history_row)?.collect()
}

fn history_row(row: &Row<'_>) -> rusqlite::Result<HistoryRow> {
    let (started_at_ms, ended_at_ms): (i64, i64) = (row.get(8)?, row.get(9)?);
    let evidence: Option<String> = row.get(11)?;
    let lived = u64::try_from(ended_at_ms.saturating_sub(started_at_ms)).unwrap_or(0);
    Ok(HistoryRow {
        run: row.get(0)?,
        lane: row.get(1)?,
        issue: row.get::<_, Option<i64>>(2)?.and_then(|issue| u64::try_from(issue).ok()),
        verdict: member(row, 3)?,
        verified: member(row, 4)?,
        exit_code: row.get(5)?,
        signal: row.get(6)?,
        end: row
            .get::<_, Option<String>>(7)?
            .map(|text| text.parse::<SigkillEnd>().map_err(|error| unreadable(7, error)))
            .transpose()?,
        started_at: crate::text::rfc3339(started_at_ms),
        ended_at: crate::text::rfc3339(ended_at_ms),
        duration_s: Duration::from_millis(lived).as_secs_f64(),
        peak_memory_bytes: row
            .get::<_, Option<i64>>(10)?
            .and_then(|bytes| u64::try_from(bytes).ok()),
        evidence: evidence.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
        started_at_ms,
        ended_at_ms,
        pid: row.get(12)?,
        reason: row.get::<_, Option<String>>(13)?.unwrap_or_default(),
    })
}

/// What was remembered of the box under this key, with the full id of the boot in which it was written.
///
/// # Errors
/// What SQLite says.
pub fn remembered(
    connection: &Connection,
    key: Memory,
) -> rusqlite::Result<Option<(String, String)>> {
    connection
        .prepare("SELECT boot_id, value FROM box WHERE key = ?1")?
        .query_row([key.as_str()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}

pub(super) fn member<T: std::str::FromStr<Err = lanewarden_probes::UnknownMember>>(
    row: &Row<'_>,
    index: usize,
) -> rusqlite::Result<T> {
    row.get::<_, String>(index)?.parse().map_err(|error| unreadable(index, error))
}

pub(super) fn unreadable(
    index: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(index, rusqlite::types::Type::Text, Box::new(error))
}

/// What is remembered of each lane, with the boot that wrote it.
///
/// # Errors
/// What SQLite says. A row that this release cannot read is an error too: it is never silently dropped.
pub fn lanes(connection: &Connection) -> rusqlite::Result<Vec<(LaneRow, String)>> {
    let mut statement = connection.prepare("SELECT row, boot_id FROM lane ORDER BY lane")?;
    statement
        .query_map([], |row| {
            let json: String = row.get(0)?;
            let lane = serde_json::from_str(&json).map_err(|error| unreadable(0, error))?;
            Ok((lane, row.get(1)?))
        })?
        .collect()
}

/// Runs that began and have no end on record.
///
/// # Errors
/// What SQLite says.
pub fn open_runs(connection: &Connection) -> rusqlite::Result<Vec<OpenRun>> {
    let mut statement = connection.prepare(
        "SELECT run, lane, started_at_ms, pid, start_ticks, boot_id, pidns, cgroup FROM run \
         WHERE ended_at_ms IS NULL ORDER BY started_at_ms",
    )?;
    statement.query_map([], open_run)?.collect()
}

fn open_run(row: &Row<'_>) -> rusqlite::Result<OpenRun> {
    let pid: Option<u32> = row.get(3)?;
    let ticks = row.get::<_, Option<i64>>(4)?.and_then(|ticks| u64::try_from(ticks).ok());
    let boot_id: Option<String> = row.get(5)?;
    let worker = match (pid, ticks, boot_id) {
        (Some(pid), Some(start_ticks), Some(boot_id)) => Some(OpenWorker {
            pid,
            start_ticks,
            boot_id,
            pidns: row.get::<_, Option<i64>>(6)?.and_then(|ns| u64::try_from(ns).ok()),
            cgroup: row.get(7)?,
        }),
        (None, _, _) | (_, None, _) | (_, _, None) => None,
    };
    let name = |index| -> rusqlite::Result<String> { row.get(index) };
    Ok(OpenRun {
        run: RunId::new(&name(0)?).map_err(|error| unreadable(0, error))?,
        lane: LaneId::new(&name(1)?).map_err(|error| unreadable(1, error))?,
        started_at_ms: row.get(2)?,
        worker,
    })
}

/// Those of these runs that are judged already.
///
/// # Errors
/// What SQLite says.
pub fn judged_runs(connection: &Connection, runs: &[String]) -> rusqlite::Result<Vec<String>> {
    let mut statement =
        connection.prepare("SELECT 1 FROM run WHERE run = ?1 AND ended_at_ms IS NOT NULL")?;
    let mut judged = Vec::new();
    for run in runs {
        if statement.exists([run])? {
            judged.push(run.clone());
        }
    }
    Ok(judged)
}

/// A lane's newest runs, ended or not, newest first.
///
/// # Errors
/// What SQLite says.
pub fn newest_runs(
    connection: &Connection,
    lane: &LaneId,
    limit: u32,
) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(
        "SELECT run FROM run WHERE lane = ?1 ORDER BY started_at_ms DESC, rowid DESC LIMIT ?2",
    )?;
    statement.query_map(params![lane.as_str(), limit], |row| row.get(0))?.collect()
}

/// Whether a run is known, by its nonce or the start of it; its full nonce.
///
/// # Errors
/// What SQLite says.
pub fn started_run(
    connection: &Connection,
    lane: &LaneId,
    start: &str,
) -> rusqlite::Result<Option<String>> {
    connection
        .query_row(
            "SELECT run FROM run WHERE lane = ?1 AND substr(run, 1, length(?2)) = ?2 \
             ORDER BY started_at_ms DESC LIMIT 1",
            [lane.as_str(), start],
            |row| row.get(0),
        )
        .optional()
}

/// The claims that the remote accepted: lane, ref, object, time in milliseconds since the epoch.
///
/// # Errors
/// What SQLite says.
pub fn claims(connection: &Connection) -> rusqlite::Result<Vec<(String, String, String, i64)>> {
    let mut statement = connection.prepare("SELECT lane, name, oid, stamped_at_ms FROM claim")?;
    statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect()
}
