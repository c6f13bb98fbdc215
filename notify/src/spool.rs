//! The queue of notices on disk: schema and queries on a connection that is handed in.
//!
//! Every function works within a transaction of the caller, so that a record and the notices that it causes are
//! written together. A notice is sent at least once and known by its identity: one whose id is here already, delivered
//! or not, is not queued again. Rows go `pending` to `delivered`, `dead` or `dropped` ([`bounds`]) and keep their
//! identity for some days. The topic and the token are never here.

pub mod bounds;
mod row;

use rusqlite::{Connection, OptionalExtension, named_params};

use crate::{
    closed_set::closed_set,
    delivery::{Reason, next_attempt},
    notice::{Kind, Level},
    render::{Message, is_event_id, shorten},
};

pub use bounds::{Dropped, Limits, bound, take_dropped};
pub use row::{Listed, Row, RowId, due, list, next_due_at};

/// The tables, all named `notice_*`. Harmless to run again.
pub const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS notice_spool (
    seq                INTEGER PRIMARY KEY AUTOINCREMENT,
    id                 TEXT    NOT NULL UNIQUE,
    subject            TEXT    NOT NULL,
    kind               TEXT    NOT NULL,
    level              TEXT    NOT NULL,
    unrecorded         INTEGER NOT NULL DEFAULT 0,
    raised_at_ms       INTEGER NOT NULL,
    message            TEXT    NOT NULL,
    shortened          INTEGER NOT NULL DEFAULT 0,
    state              TEXT    NOT NULL DEFAULT 'pending',
    attempts           INTEGER NOT NULL DEFAULT 0,
    last_attempt_at_ms INTEGER,
    next_at_ms         INTEGER NOT NULL,
    settled_at_ms      INTEGER,
    reason             TEXT,
    server_id          TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS notice_spool_pending
    ON notice_spool (subject, seq) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS notice_spool_settled
    ON notice_spool (settled_at_ms) WHERE state <> 'pending';
CREATE TABLE IF NOT EXISTS notice_channel (
    one                INTEGER PRIMARY KEY CHECK (one = 1),
    paused_until_ms    INTEGER NOT NULL,
    reason             TEXT    NOT NULL,
    silent             INTEGER NOT NULL,
    failures           INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS notice_dropped (
    kind               TEXT    PRIMARY KEY,
    dropped            INTEGER NOT NULL,
    since_ms           INTEGER NOT NULL
) STRICT;
";

closed_set! {
    /// How far a notice has come.
    pub enum State {
        /// Waits to be sent, or to be sent again.
        Pending = "pending",
        /// The server has it.
        Delivered = "delivered",
        /// The server refused it for good.
        Dead = "dead",
        /// Never sent: the queue was full or it grew too old. Counted in [`take_dropped`].
        Dropped = "dropped",
    }
}

/// Why the queue could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The database refused.
    #[error("{doing} in the notice spool")]
    Database {
        /// What was tried.
        doing: &'static str,
        /// What the database says.
        source: rusqlite::Error,
    },
    /// The notice's identity has no legal spelling.
    #[error("queue a notice: its id is not 1 to 64 of A-Z, a-z, 0-9, `-` and `_`")]
    Id,
    /// The message could not be encoded.
    #[error("encode a notice for the spool")]
    Encode {
        /// What the encoder says.
        source: serde_json::Error,
    },
}

/// A notice to be queued.
#[derive(Debug, Clone, Copy)]
pub struct Enqueue<'a> {
    /// The event's identity, see [`is_event_id`].
    pub id: &'a str,
    /// What it is kept in order with, see [`Notice::subject`](crate::Notice::subject).
    pub subject: &'a str,
    /// What it is about.
    pub kind: Kind,
    /// How loudly.
    pub level: Level,
    /// When it was raised, in Unix milliseconds.
    pub at_ms: i64,
    /// Whether the record behind it could not be written in time.
    pub unrecorded: bool,
    /// What is sent.
    pub message: &'a Message,
}

/// Queues a notice; false if its id is here already, whatever became of it. It is due at once.
///
/// # Errors
/// If the id has no legal spelling or the database refuses.
pub fn enqueue(conn: &Connection, notice: &Enqueue<'_>) -> Result<bool, SpoolError> {
    if !is_event_id(notice.id) {
        return Err(SpoolError::Id);
    }
    let message = encoded(notice.message)?;
    // Due from time zero: a page must not wait for a clock that was set back.
    let rows = execute(
        conn,
        "queue a notice",
        "INSERT INTO notice_spool
             (id, subject, kind, level, unrecorded, raised_at_ms, message, next_at_ms)
         VALUES (:id, :subject, :kind, :level, :unrecorded, :at, :message, 0)
         ON CONFLICT (id) DO NOTHING",
        named_params! {
            ":id": notice.id,
            ":subject": notice.subject,
            ":kind": notice.kind.as_str(),
            ":level": notice.level.as_str(),
            ":unrecorded": notice.unrecorded,
            ":at": notice.at_ms,
            ":message": message,
        },
    )?;
    Ok(rows == 1)
}

/// Notes that a notice is about to be sent. To be committed before it is: a crash in between must cost an attempt,
/// not make a loop.
///
/// Returns how many attempts in a row have not succeeded, this one included: of this notice or of the whole channel,
/// whichever is more. That is what [`next_attempt`] wants, so that five hundred notices do not
/// each begin with the shortest pause while the server is away.
///
/// # Errors
/// If the database refuses.
pub fn record_attempt(conn: &Connection, row: RowId, now_ms: i64) -> Result<u32, SpoolError> {
    execute(
        conn,
        "note an attempt",
        "UPDATE notice_spool SET attempts = attempts + 1, last_attempt_at_ms = :now
         WHERE seq = :seq",
        named_params! { ":now": now_ms, ":seq": row.0 },
    )?;
    conn.query_row(
        "SELECT max(coalesce((SELECT attempts FROM notice_spool WHERE seq = :seq), 1),
                    coalesce((SELECT failures FROM notice_channel), 0) + 1)",
        named_params! { ":seq": row.0 },
        |found| found.get(0),
    )
    .map_err(doing("count attempts"))
}

/// Notes that the server has it, and that the channel works.
///
/// # Errors
/// If the database refuses.
pub fn delivered(
    conn: &Connection,
    row: RowId,
    now_ms: i64,
    server_id: &str,
) -> Result<(), SpoolError> {
    execute(
        conn,
        "note a delivery",
        "UPDATE notice_spool
         SET state = 'delivered', settled_at_ms = :now, reason = NULL, server_id = :server_id
         WHERE seq = :seq",
        named_params! { ":now": now_ms, ":server_id": server_id, ":seq": row.0 },
    )?;
    execute(conn, "open the channel", "DELETE FROM notice_channel", [])?;
    Ok(())
}

/// Puts a notice off. The channel pauses with it, since whatever kept this one back keeps others back: until then
/// nothing is due, but a page that was never tried, and not even that if the server counts requests
/// ([`Reason::silences_channel`]).
///
/// # Errors
/// If the database refuses.
pub fn retry(
    conn: &Connection,
    row: RowId,
    next_at_ms: i64,
    reason: Reason,
) -> Result<(), SpoolError> {
    execute(
        conn,
        "put a notice off",
        "UPDATE notice_spool SET next_at_ms = :next, reason = :reason
         WHERE seq = :seq AND state = 'pending'",
        named_params! { ":next": next_at_ms, ":reason": reason.as_str(), ":seq": row.0 },
    )?;
    pause(conn, next_at_ms, reason)
}

/// Gives a notice up, because the server will never take it. For [`Reason::Unauthorized`] and [`Reason::Forbidden`]
/// the channel pauses for an hour, and [`reload`] brings the notice back.
///
/// # Errors
/// If the database refuses.
pub fn dead_letter(
    conn: &Connection,
    row: RowId,
    now_ms: i64,
    reason: Reason,
) -> Result<(), SpoolError> {
    execute(
        conn,
        "give a notice up",
        "UPDATE notice_spool SET state = 'dead', settled_at_ms = :now, reason = :reason
         WHERE seq = :seq AND state = 'pending'",
        named_params! { ":now": now_ms, ":reason": reason.as_str(), ":seq": row.0 },
    )?;
    if matches!(reason, Reason::Unauthorized | Reason::Forbidden) {
        pause(conn, next_attempt(1, reason, 0, now_ms), reason)?;
    }
    Ok(())
}

/// Makes a notice shorter and due again, for a server that takes less than ours allows; false if that was done
/// before or is no use, and it has to be given up.
///
/// # Errors
/// If the database refuses.
pub fn shorten_once(conn: &Connection, row: RowId) -> Result<bool, SpoolError> {
    let found: Option<String> = conn
        .query_row(
            "SELECT message FROM notice_spool
             WHERE seq = :seq AND state = 'pending' AND shortened = 0",
            named_params! { ":seq": row.0 },
            |found| found.get(0),
        )
        .optional()
        .map_err(doing("read a notice to shorten"))?;
    let Some(shorter) = found
        .and_then(|text| serde_json::from_str::<Message>(&text).ok())
        .and_then(|message| shorten(&message, SHORT_MESSAGE))
    else {
        return Ok(false);
    };
    let message = encoded(&shorter)?;
    let rows = execute(
        conn,
        "shorten a notice",
        "UPDATE notice_spool SET message = :message, shortened = 1, next_at_ms = 0
         WHERE seq = :seq",
        named_params! { ":message": message, ":seq": row.0 },
    )?;
    Ok(rows == 1)
}

/// How long a shortened text is, in bytes.
const SHORT_MESSAGE: usize = 1_000;

/// After the configuration or the token changed: ends every pause, and brings back what was given up for want of
/// permission. Returns how many notices came back.
///
/// # Errors
/// If the database refuses.
pub fn reload(conn: &Connection) -> Result<usize, SpoolError> {
    execute(conn, "open the channel", "DELETE FROM notice_channel", [])?;
    execute(
        conn,
        "end the waits",
        "UPDATE notice_spool SET next_at_ms = 0 WHERE state = 'pending'",
        [],
    )?;
    execute(
        conn,
        "bring refused notices back",
        "UPDATE notice_spool SET state = 'pending', settled_at_ms = NULL, next_at_ms = 0
         WHERE state = 'dead' AND reason IN ('unauthorized', 'forbidden')",
        [],
    )
}

/// How much is in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct SpoolCounts {
    /// Waiting.
    pub pending: u32,
    /// Refused for good.
    pub dead: u32,
    /// Delivered, of those still remembered.
    pub delivered: u32,
    /// Never sent, of those still remembered.
    pub dropped: u32,
    /// When the oldest waiting one was raised, in Unix milliseconds.
    pub oldest_pending_at_ms: Option<i64>,
}

/// Counts the queue.
///
/// # Errors
/// If the database refuses.
pub fn counts(conn: &Connection) -> Result<SpoolCounts, SpoolError> {
    conn.query_row(
        "SELECT count(*) FILTER (WHERE state = 'pending'),
                count(*) FILTER (WHERE state = 'dead'),
                count(*) FILTER (WHERE state = 'delivered'),
                count(*) FILTER (WHERE state = 'dropped'),
                min(raised_at_ms) FILTER (WHERE state = 'pending')
         FROM notice_spool",
        [],
        |found| {
            Ok(SpoolCounts {
                pending: found.get(0)?,
                dead: found.get(1)?,
                delivered: found.get(2)?,
                dropped: found.get(3)?,
                oldest_pending_at_ms: found.get(4)?,
            })
        },
    )
    .map_err(doing("count notices"))
}

/// The channel pauses until then. A pause that the server imposed is not made shorter by one that it did not.
fn pause(conn: &Connection, until_ms: i64, reason: Reason) -> Result<(), SpoolError> {
    execute(
        conn,
        "pause the channel",
        "INSERT INTO notice_channel (one, paused_until_ms, reason, silent, failures)
         VALUES (1, :until, :reason, :silent, 1)
         ON CONFLICT (one) DO UPDATE SET
             failures = failures + 1,
             paused_until_ms =
                 iif(silent AND NOT excluded.silent, max(paused_until_ms, excluded.paused_until_ms),
                     excluded.paused_until_ms),
             reason = iif(silent AND NOT excluded.silent, reason, excluded.reason),
             silent = max(silent, excluded.silent)",
        named_params! {
            ":until": until_ms,
            ":reason": reason.as_str(),
            ":silent": reason.silences_channel(),
        },
    )?;
    Ok(())
}

fn encoded(message: &Message) -> Result<String, SpoolError> {
    serde_json::to_string(message).map_err(|source| SpoolError::Encode { source })
}

/// Puts a sentence to a database error.
fn doing(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> SpoolError {
    move |source| SpoolError::Database { doing, source }
}

fn execute(
    conn: &Connection,
    what: &'static str,
    sql: &str,
    params: impl rusqlite::Params,
) -> Result<usize, SpoolError> {
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(doing(what))
}

fn query<T>(
    conn: &Connection,
    what: &'static str,
    sql: &str,
    params: impl rusqlite::Params,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, SpoolError> {
    conn.prepare_cached(sql)
        .and_then(|mut statement| statement.query_map(params, read)?.collect())
        .map_err(doing(what))
}

#[cfg(test)]
mod tests;
