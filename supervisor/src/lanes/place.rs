//! The store: one SQLite file below the lane root, in rollback-journal mode, so that a torn record cannot exist and the
//! file system's locks order the takers. Its directory is setgid and group-writable, so that lane users of one group
//! share it. Directory and file appear under their names only once their modes are right: whoever is killed in between
//! leaves nothing that another user could not use.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use super::{
    rows,
    waits::{HeldBy, PATIENCE, waited_for},
};

/// The schema's number, `PRAGMA user_version`.
const VERSION: i64 = 2;

/// As it was before it had a number; what a daemon needs.
const SCHEMA_0: &str = "
CREATE TABLE IF NOT EXISTS lane_lock (
    dir TEXT PRIMARY KEY, lane TEXT NOT NULL, machine TEXT NOT NULL, taken_at_ms INTEGER NOT NULL,
    warden_pid INTEGER NOT NULL, warden_boot TEXT NOT NULL, warden_ticks INTEGER NOT NULL, warden_pidns INTEGER,
    worker_pid INTEGER, worker_boot TEXT, worker_ticks INTEGER, worker_pidns INTEGER
) STRICT;
";

/// Sessions hold lanes too: the `warden_*` columns then name the session, so that an older daemon respects it.
const TO_1: &str = "
ALTER TABLE lane_lock ADD COLUMN kind TEXT NOT NULL DEFAULT 'daemon';
ALTER TABLE lane_lock ADD COLUMN issue INTEGER;
ALTER TABLE lane_lock ADD COLUMN actor TEXT NOT NULL DEFAULT 'flow';
ALTER TABLE lane_lock ADD COLUMN scope TEXT NOT NULL DEFAULT 'explicit';
ALTER TABLE lane_lock ADD COLUMN nonce TEXT NOT NULL DEFAULT '-';
ALTER TABLE lane_lock ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
ALTER TABLE lane_lock ADD COLUMN warden_timens INTEGER;
ALTER TABLE lane_lock ADD COLUMN warden_pidfs INTEGER;
CREATE UNIQUE INDEX lane_lock_issue ON lane_lock (issue) WHERE issue IS NOT NULL;
CREATE TABLE lane_epoch (dir TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT;
CREATE TABLE lane_audit (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, verdict TEXT NOT NULL, dir TEXT NOT NULL, issue INTEGER,
    epoch INTEGER NOT NULL, token TEXT, prev_token TEXT, prev_liveness TEXT, reason TEXT NOT NULL
) STRICT;
";

/// The furthest that a boot's clock was seen, by time namespace (0 where the kernel has none): a clock behind it is that
/// of a resumed snapshot, in which pids and start ticks mean nothing.
const TO_2: &str = "
CREATE TABLE lane_clock (
    boot TEXT NOT NULL, timens INTEGER NOT NULL, boottime_ms INTEGER NOT NULL, PRIMARY KEY (boot, timens)
) STRICT;
";

/// The lane locks could not be used. Nobody may conclude from this that a lane is free.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The directory cannot be made or entered.
    #[error("using the lock directory {}: {source}; check lane_root", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be used.
    #[error("{doing} {}: {source}", path.display())]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// SQLite failed.
    #[error("{doing} in {}: {source}", path.display())]
    Sql {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// Somebody held a lock for too long.
    #[error("waited {seconds} s for {}, held by {held_by}; look what it does, or end it", path.display())]
    Waited {
        /// The file that was waited for.
        path: PathBuf,
        /// How long.
        seconds: u64,
        /// Who held it, where the kernel tells.
        held_by: HeldBy,
    },
    /// A directory's name that no record can hold.
    #[error("{path:?} is not UTF-8, or has a line break; rename the directory")]
    Name {
        /// The directory.
        path: PathBuf,
    },
}

/// Why work in a transaction failed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// SQLite.
    Sql(rusqlite::Error),
    /// A file beside the store.
    File(LockError),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<LockError> for Trouble {
    fn from(error: LockError) -> Self {
        Self::File(error)
    }
}

/// An open store.
#[derive(Debug)]
pub struct Place {
    pub(super) connection: Connection,
    pub(super) dir: PathBuf,
    path: PathBuf,
}

impl Place {
    /// Opens the store of a lane root, making it and its directory.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn open(lane_root: &Path) -> Result<Self, LockError> {
        let dir = lane_root.join(".lane-locks");
        let dir = make_directory(lane_root, &dir)
            .map_err(|source| LockError::Directory { path: dir, source })?;
        let path = dir.join("locks.db");
        make_file(&path).map_err(|source| LockError::File {
            doing: "making",
            path: path.clone(),
            source,
        })?;
        Self::connect(dir, path)
    }

    /// Opens the store if there is one; makes nothing.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn open_existing(lane_root: &Path) -> Result<Option<Self>, LockError> {
        Self::open_directory(&lane_root.join(".lane-locks"))
    }

    /// Opens the store in a lock directory, wherever that is, if there is one; makes nothing.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn open_directory(dir: &Path) -> Result<Option<Self>, LockError> {
        let dir = match fs::canonicalize(dir) {
            Ok(dir) => dir,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LockError::Directory { path: dir.to_owned(), source }),
        };
        let path = dir.join("locks.db");
        match fs::symlink_metadata(&path) {
            Ok(_) => Self::connect(dir, path).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(LockError::File { doing: "looking at", path, source }),
        }
    }

    fn connect(dir: PathBuf, path: PathBuf) -> Result<Self, LockError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let opened = Connection::open_with_flags(&path, flags)
            .and_then(|connection| connection.busy_timeout(PATIENCE).map(|()| connection));
        let connection = opened.map_err(|source| failed("opening", &path, source))?;
        let mut place = Self { connection, dir, path };
        place.migrate()?;
        Ok(place)
    }

    fn migrate(&mut self) -> Result<(), LockError> {
        let version = |connection: &Connection| {
            connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))
        };
        if version(&self.connection).map_err(|source| self.failed("reading the version", source))?
            >= VERSION
        {
            return Ok(());
        }
        let path = self.path.clone();
        let migrated = (|| {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            // Another may have done it while we waited.
            let found = version(&transaction)?;
            if found < 1 {
                transaction.execute_batch(SCHEMA_0)?;
                transaction.execute_batch(TO_1)?;
            }
            if found < 2 {
                transaction.execute_batch(TO_2)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            transaction.commit()
        })();
        migrated.map_err(|source| failed("migrating", &path, source))
    }

    /// Does something in one transaction that holds the write lock from its start, and is undone if the work fails.
    pub(super) fn write<T>(
        &mut self,
        doing: &'static str,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<T, Trouble>,
    ) -> Result<T, LockError> {
        let path = self.path.clone();
        let done: Result<T, Trouble> = (|| {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let value = work(&transaction)?;
            rows::note_clock(&transaction)?;
            transaction.commit()?;
            Ok(value)
        })();
        done.map_err(|trouble| match trouble {
            Trouble::Sql(source) => failed(doing, &path, source),
            Trouble::File(error) => error,
        })
    }

    /// Reads something.
    pub(super) fn read<T>(
        &self,
        doing: &'static str,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LockError> {
        work(&self.connection).map_err(|source| self.failed(doing, source))
    }

    fn failed(&self, doing: &'static str, source: rusqlite::Error) -> LockError {
        failed(doing, &self.path, source)
    }

    /// The store's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn failed(doing: &'static str, path: &Path, source: rusqlite::Error) -> LockError {
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => waited_for(path),
        Some(_) | None => LockError::Sql { doing, path: path.to_owned(), source },
    }
}

/// Makes the directory if it is not there; gives its path without symbolic links.
fn make_directory(lane_root: &Path, dir: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(lane_root)?;
    match fs::metadata(dir) {
        Ok(metadata) if metadata.is_dir() => {
            // Somebody else's directory keeps its mode: its owner decides who shares it.
            let mode = metadata.permissions().mode();
            if metadata.uid() == rustix::process::geteuid().as_raw() && mode & 0o2770 != 0o2770 {
                drop(fs::set_permissions(dir, fs::Permissions::from_mode(mode | 0o2770)));
            }
        }
        Ok(_) => return Err(io::Error::from(io::ErrorKind::NotADirectory)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let fresh = tempfile::Builder::new().prefix(".lane-locks.").tempdir_in(lane_root)?;
            let group = fs::metadata(lane_root)?.gid();
            // The lane root's group is the one that lane users are in; keeping ours is the second best.
            drop(std::os::unix::fs::chown(fresh.path(), None, Some(group)));
            fs::set_permissions(fresh.path(), fs::Permissions::from_mode(0o2770))?;
            match renameat_with(CWD, fresh.path(), CWD, dir, RenameFlags::NOREPLACE) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                // A file system without this flag: the directory is empty, and a plain rename replaces none but an
                // empty one.
                Err(rustix::io::Errno::INVAL) => fs::rename(fresh.path(), dir)?,
                Err(errno) => return Err(errno.into()),
            }
        }
        Err(error) => return Err(error),
    }
    fs::canonicalize(dir)
}

/// Makes an empty file that the group may write, if there is none; SQLite takes it for a new database.
pub(super) fn make_file(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let fresh = tempfile::Builder::new()
        .prefix(".fresh.")
        .tempfile_in(path.parent().unwrap_or(Path::new(".")))?;
    fresh.as_file().set_permissions(fs::Permissions::from_mode(0o660))?;
    match fresh.persist_noclobber(path) {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error.error),
    }
}

/// A directory's name as a key.
///
/// # Errors
/// [`LockError::Name`].
pub fn key(dir: &Path) -> Result<&str, LockError> {
    dir.to_str()
        .filter(|text| !text.contains(['\n', '\r', '\0']))
        .ok_or_else(|| LockError::Name { path: dir.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_a_number_is_taken_over_with_its_rows() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join(".lane-locks");
        fs::create_dir(&dir).unwrap();
        let old = Connection::open(dir.join("locks.db")).unwrap();
        old.execute_batch(SCHEMA_0).unwrap();
        old.execute(
            "INSERT INTO lane_lock (dir, lane, machine, taken_at_ms, warden_pid, warden_boot, warden_ticks) \
             VALUES ('/a', 'a', 'm', 1, 2, 'b', 3)",
            [],
        )
        .unwrap();
        let place = Place::open(root.path()).unwrap();
        let (kind, epoch): (String, i64) = place
            .connection
            .query_row("SELECT kind, epoch FROM lane_lock", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .unwrap();
        assert_eq!((kind.as_str(), epoch), ("daemon", 0));
        // The previous version reads and writes on.
        old.execute("UPDATE lane_lock SET worker_pid = 5 WHERE dir = '/a'", []).unwrap();
    }

    #[test]
    fn modes_let_a_group_share_it() {
        let root = tempfile::tempdir().unwrap();
        let place = Place::open(root.path()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode(&place.dir), mode(place.path())), (0o2770, 0o660));
    }

    #[test]
    fn a_store_that_is_a_link_is_refused() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join(".lane-locks")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.path().join(".lane-locks/locks.db"))
            .unwrap();
        assert!(matches!(Place::open(root.path()), Err(LockError::Sql { .. })));
    }
}
