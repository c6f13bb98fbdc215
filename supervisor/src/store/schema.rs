//! The schema, its versions, and opening a database.
//!
//! A release only adds tables and columns, so that the release before still runs after a rollback. Migrations run
//! forward in one transaction; `user_version` says how far they got.

use std::{path::Path, time::Duration};

use rusqlite::{Connection, OpenFlags};

use super::StoreError;

/// The newest schema that this release knows.
pub const SCHEMA_VERSION: i64 = 2;

/// Statements that lead from one version to the next: the first makes version 1.
const MIGRATIONS: &[&[&str]] = &[&[V1, lanewarden_notify::spool::SCHEMA], &[V2]];

pub(super) const V1: &str = "
CREATE TABLE lane (
    lane TEXT PRIMARY KEY, state TEXT NOT NULL, down INTEGER NOT NULL, boot_id TEXT NOT NULL, row TEXT NOT NULL
) STRICT;
CREATE TABLE run (
    run TEXT PRIMARY KEY, lane TEXT NOT NULL, issue INTEGER,
    pid INTEGER, start_ticks INTEGER, boot_id TEXT, pidns INTEGER, cgroup TEXT,
    started_at_ms INTEGER NOT NULL, ended_at_ms INTEGER,
    verdict TEXT, verified TEXT, exit_code INTEGER, signal INTEGER, sigkill_end TEXT,
    peak_memory_bytes INTEGER, user_us INTEGER, system_us INTEGER, max_rss_kb INTEGER, leftovers INTEGER,
    reason TEXT, evidence TEXT
) STRICT;
CREATE INDEX run_by_end ON run (ended_at_ms);
CREATE INDEX run_by_lane ON run (lane, started_at_ms);
CREATE TABLE claim (
    lane TEXT PRIMARY KEY, name TEXT NOT NULL, oid TEXT NOT NULL, stamped_at_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE oom_kill (
    boot_id TEXT NOT NULL, seq INTEGER NOT NULL, at_ms INTEGER NOT NULL, lane TEXT, run TEXT, kill TEXT NOT NULL,
    PRIMARY KEY (boot_id, seq)
) STRICT;
CREATE TABLE audit (at_ms INTEGER NOT NULL, what TEXT NOT NULL) STRICT;
";

/// What is remembered of the box, and how an OOM kill was attributed.
const V2: &str = "
CREATE TABLE box (key TEXT PRIMARY KEY, boot_id TEXT NOT NULL, value TEXT NOT NULL) STRICT;
ALTER TABLE oom_kill ADD COLUMN class TEXT;
ALTER TABLE oom_kill ADD COLUMN proof TEXT;
";

/// Opens the database for writing, making or migrating it.
///
/// # Errors
/// [`StoreError::Open`], [`StoreError::Newer`], or the migration's failure.
pub fn open(path: &Path) -> Result<Connection, StoreError> {
    let failed = |source| StoreError::Open { path: path.to_owned(), source };
    let mut connection = Connection::open(path).map_err(failed)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(failed)?;
    connection
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA foreign_keys = ON; \
             PRAGMA cache_size = -512; PRAGMA journal_size_limit = 4194304;",
        )
        .map_err(failed)?;
    let found = user_version(&connection).map_err(failed)?;
    if found > SCHEMA_VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found });
    }
    let done = usize::try_from(found).unwrap_or(0);
    if done < MIGRATIONS.len() {
        let transaction = connection.transaction().map_err(failed)?;
        for statements in MIGRATIONS.iter().skip(done) {
            for sql in *statements {
                transaction.execute_batch(sql).map_err(failed)?;
            }
        }
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(failed)?;
        transaction.commit().map_err(failed)?;
    }
    Ok(connection)
}

/// Opens an existing database for reading only, beside a daemon or without one.
///
/// # Errors
/// [`StoreError::Open`] if there is none, [`StoreError::Newer`] if this release cannot read it.
pub fn open_to_read(path: &Path) -> Result<Connection, StoreError> {
    let failed = |source| StoreError::Open { path: path.to_owned(), source };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    connection.busy_timeout(Duration::from_secs(2)).map_err(failed)?;
    let found = user_version(&connection).map_err(failed)?;
    if found > SCHEMA_VERSION {
        return Err(StoreError::Newer { path: path.to_owned(), found });
    }
    Ok(connection)
}

fn user_version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}
