//! State on disk: one SQLite database in WAL mode, on a thread of its own.
//!
//! Everything that the daemon says aloud is in here first. A commit survives kill -9 at any moment (WAL with
//! `synchronous = NORMAL`: a power cut may lose the newest commits, never the database). A disk that is full or hangs
//! holds nobody up: the caller waits for a commit at most [`PATIENCE`], and rows that could not be written are kept in
//! memory and written when the disk is well again.

mod backlog;
mod kills;
mod read;
pub mod rows;
mod schema;
mod thread;
mod write;

use std::{path::PathBuf, time::Duration};

pub use kills::{kill_seqs, kills_of_open_runs, past_runs};
pub use read::{
    HistoryRow, claims, history, judged_runs, lanes, newest_runs, open_runs, remembered,
    started_run,
};
pub use schema::{SCHEMA_VERSION, open, open_to_read};
pub use thread::{Store, Written};

/// How long a turn waits for its record before its notices go out unrecorded.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The database below a state directory.
#[must_use]
pub fn path(state_dir: &std::path::Path) -> PathBuf {
    state_dir.join("lanewarden.db")
}

/// The store could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be opened or made.
    #[error("opening the store {}: {source}; check that the directory exists and is writable", path.display())]
    Open {
        /// The database.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A newer release wrote it.
    #[error(
        "the store {} has schema {found}, and this release knows {SCHEMA_VERSION}; run the release that wrote it, or a newer one",
        path.display()
    )]
    Newer {
        /// The database.
        path: PathBuf,
        /// Its schema.
        found: i64,
    },
    /// A statement failed.
    #[error("{doing}: {source}")]
    Sql {
        /// What was tried.
        doing: &'static str,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// The store's thread is gone, or its disk hangs.
    #[error("the store does not answer")]
    Closed,
}

impl StoreError {
    /// Wraps a statement's failure with what was tried.
    pub(crate) fn sql(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sql { doing, source }
    }
}

#[cfg(test)]
mod tests;
