//! What the store says of a lane, and the few ways in which that is changed.

use lanewarden_probes::{
    Root,
    identity::{self, BootId, Identity},
    liveness::{INITIAL_TIME_NAMESPACE, Recorded},
};
use rusqlite::{Connection, OptionalExtension, Row, params};

lanewarden_probes::closed_set! {
    /// Who wrote a lock.
    pub enum Kind {
        /// A daemon, for its workers.
        Daemon = "daemon",
        /// A session, by `lane acquire`.
        Session = "session",
        /// The shell tools that came before.
        Predecessor = "predecessor",
    }
}

/// A lane's lock, as recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The canonical directory.
    pub dir: String,
    /// Who wrote it.
    pub kind: Kind,
    /// The lane's id, if a daemon wrote it.
    pub lane: String,
    /// The issue, once it is known.
    pub issue: Option<u64>,
    /// How the process was found: `explicit`, `cwd-match` or `ephemeral`.
    pub scope: String,
    /// The session, or the warden.
    pub holder: Recorded,
    /// The worker that a daemon started there.
    pub worker: Option<Recorded>,
    /// Names this acquisition.
    pub nonce: String,
    /// Grows with each acquisition of the directory; 0 if the record does not say.
    pub epoch: u64,
    /// When, milliseconds since the epoch; 0 if the record does not say.
    pub taken_at_ms: i64,
    /// Set if the record could not be read: why.
    pub unreadable: Option<String>,
}

const COLUMNS: &str = "dir, kind, lane, issue, scope, machine, actor, nonce, epoch, taken_at_ms, \
     warden_pid, warden_boot, warden_ticks, warden_pidns, worker_pid, worker_boot, worker_ticks, worker_pidns, \
     warden_timens, warden_pidfs, \
     (SELECT boottime_ms FROM lane_clock WHERE boot = warden_boot AND timens = ifnull(warden_timens, 0)), \
     (SELECT boottime_ms FROM lane_clock WHERE boot = worker_boot AND timens = ifnull(warden_timens, 0))";

/// The lock of a directory.
pub(super) fn by_dir(connection: &Connection, dir: &str) -> rusqlite::Result<Option<Held>> {
    let sql = format!("SELECT {COLUMNS} FROM lane_lock WHERE dir = ?1");
    connection.query_row(&sql, [dir], held).optional()
}

/// The lock of an issue.
pub(super) fn by_issue(connection: &Connection, issue: u64) -> rusqlite::Result<Option<Held>> {
    let sql = format!("SELECT {COLUMNS} FROM lane_lock WHERE issue = ?1");
    connection.query_row(&sql, [signed(Some(issue))], held).optional()
}

/// All locks, by directory.
pub(super) fn all(connection: &Connection) -> rusqlite::Result<Vec<Held>> {
    let sql = format!("SELECT {COLUMNS} FROM lane_lock ORDER BY dir");
    connection.prepare(&sql)?.query_map([], held)?.collect()
}

fn held(row: &Row<'_>) -> rusqlite::Result<Held> {
    let machine: String = row.get(5)?;
    let actor: String = row.get(6)?;
    let timens = unsigned(row, 18)?;
    let party = |at: usize, pidfs_ino, clock: usize| -> rusqlite::Result<Recorded> {
        Ok(Recorded {
            machine: machine.clone(),
            actor: Some(actor.clone()),
            // A number that no pid can be is damage: the record then has no usable pid.
            pid: unsigned(row, at)?.and_then(|pid| u32::try_from(pid).ok()),
            boot: row.get::<_, Option<String>>(at + 1)?.and_then(|text| text.parse().ok()),
            ticks: unsigned(row, at + 2)?,
            pidns: unsigned(row, at + 3)?,
            timens,
            pidfs_ino,
            seen_boottime_ms: unsigned(row, clock)?,
            ..Recorded::default()
        })
    };
    let kind: String = row.get(1)?;
    let worker: Option<i64> = row.get(14)?;
    Ok(Held {
        dir: row.get(0)?,
        kind: kind.parse().unwrap_or(Kind::Daemon),
        lane: row.get(2)?,
        issue: unsigned(row, 3)?,
        scope: row.get(4)?,
        holder: party(10, unsigned(row, 19)?, 20)?,
        worker: worker.map(|_| party(14, None, 21)).transpose()?,
        nonce: row.get(7)?,
        epoch: unsigned(row, 8)?.unwrap_or(0),
        taken_at_ms: row.get(9)?,
        unreadable: None,
    })
}

fn unsigned(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<u64>> {
    Ok(row.get::<_, Option<i64>>(at)?.and_then(|value| u64::try_from(value).ok()))
}

/// As SQLite keeps it.
pub(super) fn signed(value: Option<u64>) -> Option<i64> {
    value.and_then(|value| i64::try_from(value).ok())
}

/// Takes a directory, in place of whoever is recorded for it; gives the new epoch.
pub(super) fn insert(connection: &Connection, held: &Held) -> rusqlite::Result<u64> {
    let epoch = next_epoch(connection, &held.dir)?;
    connection.execute("DELETE FROM lane_lock WHERE dir = ?1", [&held.dir])?;
    let holder = &held.holder;
    connection.execute(
        "INSERT INTO lane_lock (dir, kind, lane, issue, scope, machine, actor, nonce, epoch, taken_at_ms, \
         warden_pid, warden_boot, warden_ticks, warden_pidns, warden_timens, warden_pidfs) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
        params![
            held.dir,
            held.kind.as_str(),
            held.lane,
            signed(held.issue),
            held.scope,
            holder.machine,
            holder.actor.as_deref().unwrap_or("flow"),
            held.nonce,
            signed(Some(epoch)),
            held.taken_at_ms,
            holder.pid,
            holder.boot.as_ref().map(BootId::full),
            signed(holder.ticks),
            signed(holder.pidns),
            signed(holder.timens),
            signed(holder.pidfs_ino),
        ],
    )?;
    Ok(epoch)
}

/// The directory's epoch, one further.
pub(super) fn next_epoch(connection: &Connection, dir: &str) -> rusqlite::Result<u64> {
    let epoch: i64 = connection.query_row(
        "INSERT INTO lane_epoch (dir, epoch) VALUES (?1, 1) \
         ON CONFLICT (dir) DO UPDATE SET epoch = epoch + 1 RETURNING epoch",
        [dir],
        |row| row.get(0),
    )?;
    Ok(u64::try_from(epoch).unwrap_or(0))
}

/// Another warden follows the one that took the directory.
pub(super) fn set_holder(
    connection: &Connection,
    dir: &str,
    holder: &Recorded,
) -> rusqlite::Result<()> {
    connection
        .execute(
            "UPDATE lane_lock SET warden_pid = ?2, warden_boot = ?3, warden_ticks = ?4, warden_pidns = ?5, \
             warden_timens = ?6, warden_pidfs = ?7 WHERE dir = ?1",
            params![
                dir,
                holder.pid,
                holder.boot.as_ref().map(BootId::full),
                signed(holder.ticks),
                signed(holder.pidns),
                signed(holder.timens),
                signed(holder.pidfs_ino),
            ],
        )
        .map(drop)
}

/// Removes a directory's lock. Its epoch stays.
pub(super) fn delete(connection: &Connection, dir: &str) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM lane_lock WHERE dir = ?1", [dir]).map(drop)
}

/// Writes the issue into a directory's lock, or takes it out.
pub(super) fn set_issue(
    connection: &Connection,
    dir: &str,
    issue: Option<u64>,
) -> rusqlite::Result<()> {
    connection
        .execute("UPDATE lane_lock SET issue = ?2 WHERE dir = ?1", params![dir, signed(issue)])
        .map(drop)
}

/// Keeps how far this boot's clock has come.
pub(super) fn note_clock(connection: &Connection) -> rusqlite::Result<()> {
    let root = Root::live();
    let Ok(Ok(boot)) = identity::boot_id(&root) else { return Ok(()) };
    let timens = identity::time_namespace(&root, std::process::id()).ok().and_then(Result::ok);
    // Numbers of other time namespaces are given out again within a boot, with another clock behind them.
    if timens.is_some_and(|timens| timens != INITIAL_TIME_NAMESPACE) {
        return Ok(());
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now_ms = now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000);
    connection
        .execute(
            "INSERT INTO lane_clock (boot, timens, boottime_ms) VALUES (?1, ?2, ?3) \
             ON CONFLICT DO UPDATE SET boottime_ms = max(boottime_ms, excluded.boottime_ms)",
            params![boot.full(), signed(timens).unwrap_or(0), now_ms],
        )
        .map(drop)
}

/// A line of the audit.
#[derive(Debug)]
pub(super) struct Audit<'a> {
    pub(super) at_ms: i64,
    pub(super) verdict: &'a str,
    pub(super) dir: &'a str,
    pub(super) issue: Option<u64>,
    pub(super) epoch: u64,
    pub(super) token: Option<String>,
    pub(super) before: Option<(String, String)>,
    pub(super) reason: &'a str,
}

/// Writes a line of the audit, in the transaction of the change that it tells of.
pub(super) fn audit(connection: &Connection, line: &Audit<'_>) -> rusqlite::Result<()> {
    let (token, liveness) = line.before.clone().unzip();
    connection
        .execute(
            "INSERT INTO lane_audit (at_ms, verdict, dir, issue, epoch, token, prev_token, prev_liveness, reason) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            params![
                line.at_ms,
                line.verdict,
                line.dir,
                signed(line.issue),
                signed(Some(line.epoch)),
                line.token,
                token,
                liveness,
                line.reason,
            ],
        )
        .map(drop)
}

/// `machine:actor:pid:boot8:ticks` of a record.
#[must_use]
pub fn token(recorded: &Recorded) -> String {
    match recorded.identity() {
        Some(identity) => Identity::token(&identity),
        None => {
            let actor = recorded.actor.as_deref().unwrap_or("-");
            let boot = recorded.boot.as_ref().map_or("-", BootId::short);
            let ticks = recorded.ticks.map_or_else(|| "-".to_owned(), |ticks| ticks.to_string());
            format!("{}:{actor}:-:{boot}:{ticks}", recorded.machine)
        }
    }
}
