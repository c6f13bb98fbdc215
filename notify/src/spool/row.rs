//! Reading the queue: what is due, when the next is, and what people are shown of it.

use rusqlite::{Connection, named_params};
use serde::Serialize;

use super::{SpoolError, State, doing, query};
use crate::{notice::Level, render::Message, text};

/// A row's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId(pub(super) i64);

/// A notice that is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its key.
    pub row: RowId,
    /// The event's identity.
    pub id: String,
    /// What it is kept in order with.
    pub subject: String,
    /// What it is about, in the spelling of [`Kind`](crate::Kind); a newer release may have more.
    pub kind: String,
    /// How loudly.
    pub level: Level,
    /// When it was raised, in Unix milliseconds.
    pub raised_at_ms: i64,
    /// Whether the record behind it could not be written in time.
    pub unrecorded: bool,
    /// Attempts so far.
    pub attempts: u32,
    /// What is sent.
    pub message: Message,
}

/// A notice in any state, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Listed {
    /// The event's identity.
    pub id: String,
    /// What it is kept in order with.
    pub subject: String,
    /// What it is about.
    pub kind: String,
    /// How loudly.
    pub level: Level,
    /// How far it came: a spelling of [`State`].
    pub state: String,
    /// When it was raised, in Unix milliseconds.
    pub raised_at_ms: i64,
    /// Attempts so far.
    pub attempts: u32,
    /// When it was last tried, in Unix milliseconds.
    pub last_attempt_at_ms: Option<i64>,
    /// Why it did not go through: a spelling of [`Reason`](crate::Reason).
    pub reason: Option<String>,
    /// The server's id of it.
    pub server_id: Option<String>,
    /// Its title.
    pub title: String,
}

/// No pause is longer than a day and some minutes. One that seems longer was written before the clock was set back, and
/// counts as over.
const LONGEST_WAIT_MS: i64 = 25 * 3_600 * 1_000;

/// The waiting notices that are first of their subject and not held back by a pause.
const HEADS: &str = "
    SELECT seq, id, subject, kind, level, raised_at_ms, unrecorded, attempts, message, next_at_ms,
           iif(silent = 0 AND attempts = 0 AND is_high, 0, coalesce(paused_until_ms, 0)) AS opens_at_ms
    FROM (SELECT *, level NOT IN ('info', 'digest', 'recovery') AS is_high
          FROM notice_spool WHERE state = 'pending') AS head
    LEFT JOIN (SELECT paused_until_ms, silent FROM notice_channel) ON true
    WHERE NOT EXISTS (SELECT 1 FROM notice_spool AS older
                      WHERE older.state = 'pending' AND older.subject = head.subject
                        AND older.seq < head.seq)";

/// The notices to send now, at most `limit`: the oldest first, high before others, and of each subject only the
/// oldest, so that none is overtaken. One that holds up a high one counts as high.
///
/// # Errors
/// If the database refuses.
pub fn due(conn: &Connection, now_ms: i64, limit: u32) -> Result<Vec<Row>, SpoolError> {
    let sql = format!(
        "SELECT seq, id, subject, kind, level, raised_at_ms, unrecorded, attempts, message
         FROM ({HEADS}) AS head
         WHERE (next_at_ms <= :now OR next_at_ms > :never)
           AND (opens_at_ms <= :now OR opens_at_ms > :never)
         ORDER BY EXISTS (SELECT 1 FROM notice_spool AS urgent
                          WHERE urgent.state = 'pending' AND urgent.subject = head.subject
                            AND urgent.level NOT IN ('info', 'digest', 'recovery')) DESC, seq
         LIMIT :limit"
    );
    let never = now_ms.saturating_add(LONGEST_WAIT_MS);
    query(
        conn,
        "look for due notices",
        &sql,
        named_params! { ":now": now_ms, ":never": never, ":limit": limit },
        |found| {
            let (id, kind): (String, String) = (found.get(1)?, found.get(3)?);
            let level = Level::from_word(&found.get::<_, String>(4)?);
            Ok(Row {
                row: RowId(found.get(0)?),
                subject: found.get(2)?,
                level,
                raised_at_ms: found.get(5)?,
                unrecorded: found.get(6)?,
                attempts: found.get(7)?,
                message: decoded(&found.get::<_, String>(8)?, &id, &kind, level),
                id,
                kind,
            })
        },
    )
}

/// When the next notice is due, in Unix milliseconds: none if nothing waits, in the past if something is due.
///
/// # Errors
/// If the database refuses.
pub fn next_due_at(conn: &Connection) -> Result<Option<i64>, SpoolError> {
    let sql = format!("SELECT min(max(next_at_ms, opens_at_ms)) FROM ({HEADS})");
    conn.query_row(&sql, [], |found| found.get(0)).map_err(doing("look for the next due notice"))
}

/// The newest notices first, at most `limit`, in one state or in all.
///
/// # Errors
/// If the database refuses.
pub fn list(
    conn: &Connection,
    state: Option<State>,
    limit: u32,
) -> Result<Vec<Listed>, SpoolError> {
    query(
        conn,
        "list notices",
        "SELECT id, subject, kind, level, state, raised_at_ms, attempts, last_attempt_at_ms, reason,
                server_id, message
         FROM notice_spool WHERE :state IS NULL OR state = :state
         ORDER BY seq DESC LIMIT :limit",
        named_params! { ":state": state.map(State::as_str), ":limit": limit },
        |found| {
            let (id, kind): (String, String) = (found.get(0)?, found.get(2)?);
            let level = Level::from_word(&found.get::<_, String>(3)?);
            Ok(Listed {
                subject: found.get(1)?,
                level,
                state: found.get(4)?,
                raised_at_ms: found.get(5)?,
                attempts: found.get(6)?,
                last_attempt_at_ms: found.get(7)?,
                reason: found.get(8)?,
                server_id: found.get(9)?,
                title: decoded(&found.get::<_, String>(10)?, &id, &kind, level).title,
                id,
                kind,
            })
        },
    )
}

/// The message of a row. One that cannot be read any more still says that there was something to say: a damaged row
/// must neither silence its page nor stop the queue.
fn decoded(json: &str, id: &str, kind: &str, level: Level) -> Message {
    serde_json::from_str(json).unwrap_or_else(|_| Message {
        title: format!("damaged notice: {}", text::cut(&text::line(kind), 64)),
        message: format!(
            "A notice of kind {} was damaged on disk (id {}).\nNext: `lanewarden history` has what \
             happened.",
            text::cut(&text::line(kind), 64),
            text::cut(&text::line(id), 64)
        ),
        priority: level.priority(),
        tags: vec![level.tag().to_owned()],
        click: None,
        sequence_id: None,
    })
}
