//! The queue stays small: what is dropped from it is counted, so that it can be said, and what is settled is
//! forgotten after some days.

use rusqlite::{Connection, named_params};

use super::{SpoolError, execute, query};

const DAY_MS: i64 = 24 * 3_600 * 1_000;

/// How much the queue may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Waiting notices.
    pub pending: u32,
    /// Age of a waiting notice, in milliseconds.
    pub pending_age_ms: i64,
    /// How long a settled notice is remembered, and with it that it was said, in milliseconds.
    pub settled_age_ms: i64,
    /// How long one that was given up is kept, in milliseconds.
    pub dead_age_ms: i64,
    /// Settled notices of any age.
    pub settled: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            pending: 500,
            pending_age_ms: 3 * DAY_MS,
            settled_age_ms: 7 * DAY_MS,
            dead_age_ms: 30 * DAY_MS,
            settled: 5_000,
        }
    }
}

/// Notices of one kind that were dropped and not yet told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dropped {
    /// Their kind.
    pub kind: String,
    /// How many.
    pub dropped: u32,
    /// When the oldest of them was raised, in Unix milliseconds.
    pub since_ms: i64,
}

/// Drops waiting notices that are too old or too many, the oldest of the quiet ones first and pages last, and forgets
/// settled ones. Returns how many were dropped; they are also counted for [`take_dropped`].
///
/// # Errors
/// If the database refuses.
pub fn bound(conn: &Connection, now_ms: i64, limits: &Limits) -> Result<usize, SpoolError> {
    let excess: Vec<i64> = query(
        conn,
        "look for notices to drop",
        "SELECT seq FROM (
             SELECT seq, raised_at_ms, row_number() OVER (
                 ORDER BY level IN ('info', 'digest', 'recovery'), seq DESC) AS place
             FROM notice_spool WHERE state = 'pending')
         WHERE place > :pending OR raised_at_ms < :oldest",
        named_params! {
            ":pending": limits.pending,
            ":oldest": now_ms.saturating_sub(limits.pending_age_ms),
        },
        |found| found.get(0),
    )?;
    for seq in &excess {
        drop_one(conn, *seq, now_ms)?;
    }
    forget(conn, now_ms, limits)?;
    Ok(excess.len())
}

fn drop_one(conn: &Connection, seq: i64, now_ms: i64) -> Result<(), SpoolError> {
    execute(
        conn,
        "count a dropped notice",
        "INSERT INTO notice_dropped (kind, dropped, since_ms)
         SELECT kind, 1, raised_at_ms FROM notice_spool WHERE seq = :seq
         ON CONFLICT (kind) DO UPDATE SET
             dropped = dropped + 1, since_ms = min(since_ms, excluded.since_ms)",
        named_params! { ":seq": seq },
    )?;
    execute(
        conn,
        "drop a notice",
        "UPDATE notice_spool SET state = 'dropped', settled_at_ms = :now WHERE seq = :seq",
        named_params! { ":now": now_ms, ":seq": seq },
    )?;
    Ok(())
}

fn forget(conn: &Connection, now_ms: i64, limits: &Limits) -> Result<(), SpoolError> {
    execute(
        conn,
        "forget settled notices",
        "DELETE FROM notice_spool
         WHERE state <> 'pending'
           AND settled_at_ms < iif(state = 'dead', :dead_before, :settled_before)",
        named_params! {
            ":settled_before": now_ms.saturating_sub(limits.settled_age_ms),
            ":dead_before": now_ms.saturating_sub(limits.dead_age_ms),
        },
    )?;
    execute(
        conn,
        "forget settled notices",
        "DELETE FROM notice_spool WHERE seq IN (
             SELECT seq FROM notice_spool WHERE state <> 'pending'
             ORDER BY settled_at_ms DESC, seq DESC LIMIT -1 OFFSET :settled)",
        named_params! { ":settled": limits.settled },
    )?;
    Ok(())
}

/// Takes the counts of dropped notices, most first. To be called in the transaction that queues the notice which
/// tells of them, so that neither is without the other.
///
/// # Errors
/// If the database refuses.
pub fn take_dropped(conn: &Connection) -> Result<Vec<Dropped>, SpoolError> {
    let found = query(
        conn,
        "read the counts of dropped notices",
        "SELECT kind, dropped, since_ms FROM notice_dropped ORDER BY dropped DESC, kind",
        [],
        |found| {
            Ok(Dropped { kind: found.get(0)?, dropped: found.get(1)?, since_ms: found.get(2)? })
        },
    )?;
    execute(conn, "take the counts of dropped notices", "DELETE FROM notice_dropped", [])?;
    Ok(found)
}
