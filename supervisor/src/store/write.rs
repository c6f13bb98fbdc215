//! Writing: one transaction for a record and the notices that it causes.

use lanewarden_notify::spool::{self, Enqueue, SpoolError};
use rusqlite::{Connection, Transaction, params};

use super::rows::{EndedRow, KillRow, LaneRow, OpenRun, Queued, Write};

/// Writes all of it, or nothing.
///
/// # Errors
/// What SQLite says: a full disk, a failing one.
pub(super) fn record(
    connection: &mut Connection,
    boot_id: &str,
    writes: &[Write],
    notices: &[Queued],
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for write in writes {
        one(&transaction, boot_id, write)?;
    }
    for queued in notices {
        enqueue(&transaction, queued)?;
    }
    transaction.commit()
}

fn enqueue(transaction: &Transaction<'_>, queued: &Queued) -> rusqlite::Result<()> {
    let notice = &queued.notice;
    let result = spool::enqueue(
        transaction,
        &Enqueue {
            id: &queued.id,
            subject: notice.subject(),
            kind: notice.kind(),
            level: notice.level(),
            at_ms: queued.at_ms,
            unrecorded: false,
            message: &queued.message,
        },
    );
    match result {
        Ok(_) => Ok(()),
        Err(SpoolError::Database { source, .. }) => Err(source),
        // Ids and messages are ours; a wrong one must not keep the record from the disk.
        Err(SpoolError::Id | SpoolError::Encode { .. }) => {
            tracing::error!(id = queued.id, "a notice has no legal id or cannot be encoded");
            Ok(())
        }
    }
}

fn one(transaction: &Transaction<'_>, boot_id: &str, write: &Write) -> rusqlite::Result<()> {
    match write {
        Write::Lane(row) => lane(transaction, boot_id, row),
        Write::RunStarting { run, lane, at_ms } => transaction
            .prepare_cached(
                "INSERT OR IGNORE INTO run (run, lane, started_at_ms) VALUES (?1, ?2, ?3)",
            )?
            .execute(params![run.as_str(), lane.as_str(), at_ms])
            .map(drop),
        Write::RunStarted(open) => started(transaction, open),
        Write::RunEnded(row) => ended(transaction, row),
        Write::OomKill(row) => oom_kill(transaction, boot_id, row),
        Write::ClaimStamped { lane, name, oid, at_ms } => transaction
            .prepare_cached(
                "INSERT INTO claim (lane, name, oid, stamped_at_ms) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT (lane) DO UPDATE SET name = ?2, oid = ?3, stamped_at_ms = ?4",
            )?
            .execute(params![lane.as_str(), name, oid, at_ms])
            .map(drop),
        Write::ClaimRemoved { lane } => transaction
            .prepare_cached("DELETE FROM claim WHERE lane = ?1")?
            .execute([lane.as_str()])
            .map(drop),
        Write::Remember { key, value } => transaction
            .prepare_cached(
                "INSERT INTO box (key, boot_id, value) VALUES (?1, ?2, ?3) \
                 ON CONFLICT (key) DO UPDATE SET boot_id = ?2, value = ?3",
            )?
            .execute(params![key.as_str(), boot_id, value])
            .map(drop),
        Write::Audit { at_ms, what } => transaction
            .prepare_cached("INSERT INTO audit (at_ms, what) VALUES (?1, ?2)")?
            .execute(params![at_ms, what])
            .map(drop),
    }
}

fn lane(transaction: &Transaction<'_>, boot_id: &str, row: &LaneRow) -> rusqlite::Result<()> {
    let json = serde_json::to_string(row)
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    transaction
        .prepare_cached(
            "INSERT INTO lane (lane, state, down, boot_id, row) VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (lane) DO UPDATE SET state = ?2, down = ?3, boot_id = ?4, row = ?5",
        )?
        .execute(params![row.lane.as_str(), row.state.as_str(), row.down, boot_id, json])
        .map(drop)
}

fn started(transaction: &Transaction<'_>, open: &OpenRun) -> rusqlite::Result<()> {
    let Some(worker) = &open.worker else { return Ok(()) };
    transaction
        .prepare_cached(
            "INSERT INTO run (run, lane, started_at_ms, pid, start_ticks, boot_id, pidns, cgroup) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) \
             ON CONFLICT (run) DO UPDATE SET started_at_ms = ?3, pid = ?4, start_ticks = ?5, boot_id = ?6, \
             pidns = ?7, cgroup = ?8",
        )?
        .execute(params![
            open.run.as_str(),
            open.lane.as_str(),
            open.started_at_ms,
            worker.pid,
            signed(worker.start_ticks),
            worker.boot_id,
            worker.pidns.map(signed),
            worker.cgroup,
        ])
        .map(drop)
}

fn ended(transaction: &Transaction<'_>, row: &EndedRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO run (run, lane, issue, started_at_ms, ended_at_ms, verdict, verified, exit_code, signal, \
             sigkill_end, peak_memory_bytes, user_us, system_us, max_rss_kb, leftovers, reason, evidence) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17) \
             ON CONFLICT (run) DO UPDATE SET issue = ?3, started_at_ms = ?4, ended_at_ms = ?5, verdict = ?6, \
             verified = ?7, exit_code = ?8, signal = ?9, sigkill_end = ?10, peak_memory_bytes = ?11, user_us = ?12, \
             system_us = ?13, max_rss_kb = ?14, leftovers = ?15, reason = ?16, evidence = ?17",
        )?
        .execute(params![
            row.run.as_str(),
            row.lane.as_str(),
            row.issue.map(signed),
            row.started_at_ms,
            row.ended_at_ms,
            row.verdict.as_str(),
            row.verified.as_str(),
            row.exit_code,
            row.signal,
            row.end.map(crate::verdict::SigkillEnd::as_str),
            row.peak_memory_bytes.map(signed),
            signed(row.usage.user_us),
            signed(row.usage.system_us),
            signed(row.usage.max_rss_kb),
            row.leftovers,
            row.reason,
            row.evidence.to_string(),
        ])
        .map(drop)
}

/// A kill that only a counter told of has no number of the kernel's; it gets one below zero.
fn oom_kill(transaction: &Transaction<'_>, boot_id: &str, row: &KillRow) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT OR IGNORE INTO oom_kill (boot_id, seq, at_ms, lane, run, class, proof, kill) VALUES (?1, \
             coalesce(?2, (SELECT min(coalesce(min(seq), 0), 0) - 1 FROM oom_kill WHERE boot_id = ?1)), \
             ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute(params![
            boot_id,
            row.seq.map(signed),
            row.at_ms,
            row.lane.as_ref().map(crate::ids::LaneId::as_str),
            row.run.as_ref().map(crate::ids::RunId::as_str),
            row.class.as_str(),
            row.proof,
            row.kill.to_string(),
        ])
        .map(drop)
}

/// SQLite's integers are signed. What does not fit is cut to the largest, which no counter of ours reaches.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
