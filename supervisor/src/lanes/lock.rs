//! One SQLite file below the lane root, in rollback-journal mode: a torn record cannot exist, and the file system's locks
//! order the takers. Its directory is setgid and group-writable, so that lane users of one group share it.
//!
//! A lane is held while the warden that took it or the worker that it started lives, by identity. A holder of which it
//! cannot be told whether it lives holds.

use std::{
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use lanewarden_probes::liveness::{Judged, Recorded};
use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use crate::{ids::LaneId, store::rows::OpenWorker};

/// How long a taker waits for another that holds the file.
const PATIENCE: Duration = Duration::from_secs(5);

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS lane_lock (
    dir TEXT PRIMARY KEY, lane TEXT NOT NULL, machine TEXT NOT NULL, taken_at_ms INTEGER NOT NULL,
    warden_pid INTEGER NOT NULL, warden_boot TEXT NOT NULL, warden_ticks INTEGER NOT NULL, warden_pidns INTEGER,
    worker_pid INTEGER, worker_boot TEXT, worker_ticks INTEGER, worker_pidns INTEGER
) STRICT;
";

/// The lock file could not be used. Nobody may conclude from this that a lane is free.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The directory cannot be made or entered.
    #[error("using the lock directory {}: {source}; check lane_root", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// SQLite failed, or another process held the file too long.
    #[error("{doing} in {}: {source}", path.display())]
    Sql {
        /// What was tried.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

/// What came of taking a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taking {
    /// It is ours.
    Taken,
    /// Somebody else holds it; who, and by what evidence.
    Held(String),
}

/// The lane locks of a lane root.
#[derive(Debug)]
pub struct LaneLocks {
    connection: Connection,
    path: PathBuf,
}

impl LaneLocks {
    /// Opens the lock file, making it and its directory.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn open(lane_root: &Path) -> Result<Self, LockError> {
        let dir = lane_root.join(".lane-locks");
        let made = std::fs::create_dir_all(&dir).and_then(|()| {
            // Somebody else's directory keeps its mode: its owner decides who shares it.
            let metadata = std::fs::metadata(&dir)?;
            if metadata.permissions().mode() & 0o7777 != 0o2770 {
                let wanted = std::fs::Permissions::from_mode(0o2770);
                drop(std::fs::set_permissions(&dir, wanted));
            }
            Ok(())
        });
        made.map_err(|source| LockError::Directory { path: dir.clone(), source })?;
        let path = dir.join("locks.db");
        let failed = |source| LockError::Sql { doing: "opening", path: path.clone(), source };
        let connection = Connection::open(&path).map_err(failed)?;
        connection.busy_timeout(PATIENCE).map_err(failed)?;
        connection.execute_batch(SCHEMA).map_err(failed)?;
        drop(std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)));
        Ok(Self { connection, path })
    }

    /// Takes `dir` (canonical) for this warden, unless somebody else lives there.
    ///
    /// # Errors
    /// [`LockError::Sql`].
    pub fn take(
        &mut self,
        dir: &Path,
        lane: &LaneId,
        warden: &Recorded,
        now_ms: i64,
        judge: impl Fn(&Recorded) -> Judged,
    ) -> Result<Taking, LockError> {
        let path = self.path.clone();
        let failed = |doing| move |source| LockError::Sql { doing, path, source };
        if self.holder(dir)?.is_some_and(|holder| same(&holder.warden, warden)) {
            return Ok(Taking::Taken);
        }
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed("waiting for the lane locks"))?;
        let path = self.path.clone();
        let failed = |doing| {
            let path = path.clone();
            move |source| LockError::Sql { doing, path, source }
        };
        let found = read(&transaction, dir).map_err(failed("reading a lane lock"))?;
        if let Some(held) = found.as_ref().and_then(|holder| held_by(holder, warden, &judge)) {
            return Ok(Taking::Held(held));
        }
        transaction
            .execute(
                "INSERT OR REPLACE INTO lane_lock (dir, lane, machine, taken_at_ms, warden_pid, warden_boot, \
                 warden_ticks, warden_pidns) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                params![
                    dir.to_string_lossy(),
                    lane.as_str(),
                    warden.machine,
                    now_ms,
                    warden.pid,
                    warden.boot.as_ref().map(lanewarden_probes::identity::BootId::full),
                    signed(warden.ticks),
                    signed(warden.pidns),
                ],
            )
            .and_then(|_| transaction.commit())
            .map_err(failed("writing a lane lock"))?;
        Ok(Taking::Taken)
    }

    /// Names the worker that lives in the lane now.
    ///
    /// # Errors
    /// [`LockError::Sql`].
    pub fn name_worker(&self, dir: &Path, worker: &OpenWorker) -> Result<(), LockError> {
        self.run(
            "naming a worker",
            "UPDATE lane_lock SET worker_pid = ?2, worker_boot = ?3, worker_ticks = ?4, worker_pidns = ?5 \
             WHERE dir = ?1",
            params![
                dir.to_string_lossy(),
                worker.pid,
                worker.boot_id,
                signed(Some(worker.start_ticks)),
                signed(worker.pidns),
            ],
        )
    }

    /// Gives the lane back, if this warden holds it.
    ///
    /// # Errors
    /// [`LockError::Sql`].
    pub fn release(&self, dir: &Path, warden: &Recorded) -> Result<(), LockError> {
        self.run(
            "releasing a lane",
            "DELETE FROM lane_lock WHERE dir = ?1 AND warden_pid = ?2 AND warden_ticks = ?3",
            params![dir.to_string_lossy(), warden.pid, signed(warden.ticks)],
        )
    }

    fn run(
        &self,
        doing: &'static str,
        sql: &str,
        values: impl rusqlite::Params,
    ) -> Result<(), LockError> {
        self.connection.execute(sql, values).map(drop).map_err(|source| LockError::Sql {
            doing,
            path: self.path.clone(),
            source,
        })
    }

    fn holder(&self, dir: &Path) -> Result<Option<Holder>, LockError> {
        read(&self.connection, dir).map_err(|source| LockError::Sql {
            doing: "reading a lane lock",
            path: self.path.clone(),
            source,
        })
    }
}

/// Who holds a lane, as recorded.
#[derive(Debug, Clone)]
struct Holder {
    lane: String,
    warden: Recorded,
    worker: Option<Recorded>,
}

/// Who holds it against us, if anybody does: whoever is not proven dead.
fn held_by(holder: &Holder, us: &Recorded, judge: &impl Fn(&Recorded) -> Judged) -> Option<String> {
    let parties = [("worker", holder.worker.as_ref()), ("warden", Some(&holder.warden))];
    parties.into_iter().find_map(|(role, party)| {
        let party = party.filter(|party| !same(party, us))?;
        let judged = judge(party);
        let pid = party.pid.unwrap_or(0);
        (!judged.verdict.is_dead()).then(|| {
            format!(
                "lane {} is held by a {role}, pid {pid}: {} ({})",
                crate::text::harmless(&holder.lane),
                judged.verdict,
                judged.reason
            )
        })
    })
}

fn same(a: &Recorded, b: &Recorded) -> bool {
    a.pid.is_some() && a.pid == b.pid && a.ticks == b.ticks && a.boot == b.boot && a.ticks.is_some()
}

fn read(connection: &Connection, dir: &Path) -> rusqlite::Result<Option<Holder>> {
    connection
        .query_row(
            "SELECT lane, machine, warden_pid, warden_boot, warden_ticks, warden_pidns, \
             worker_pid, worker_boot, worker_ticks, worker_pidns FROM lane_lock WHERE dir = ?1",
            [dir.to_string_lossy()],
            |row| {
                let machine: String = row.get(1)?;
                let worker: Option<u32> = row.get(6)?;
                Ok(Holder {
                    lane: row.get(0)?,
                    warden: recorded(row, &machine, 2)?,
                    worker: worker.map(|_| recorded(row, &machine, 6)).transpose()?,
                })
            },
        )
        .optional()
}

fn recorded(row: &Row<'_>, machine: &str, at: usize) -> rusqlite::Result<Recorded> {
    let unsigned = |index| -> rusqlite::Result<Option<u64>> {
        Ok(row.get::<_, Option<i64>>(index)?.and_then(|value| u64::try_from(value).ok()))
    };
    Ok(Recorded {
        machine: machine.to_owned(),
        pid: row.get(at)?,
        boot: row.get::<_, Option<String>>(at + 1)?.and_then(|text| text.parse().ok()),
        ticks: unsigned(at + 2)?,
        pidns: unsigned(at + 3)?,
        ..Recorded::default()
    })
}

fn signed(value: Option<u64>) -> Option<i64> {
    value.and_then(|value| i64::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanewarden_probes::{Root, identity::resolve, liveness};

    fn recorded_of(pid: u32) -> Recorded {
        Recorded::of(&resolve(&Root::live(), pid, "box-a", "warden").unwrap().identity)
    }

    fn judge(recorded: &Recorded) -> Judged {
        liveness::judge(&Root::live(), recorded, "box-a")
    }

    #[test]
    fn a_live_holder_keeps_its_lane_and_a_dead_one_does_not() {
        let root = tempfile::tempdir().unwrap();
        let mut locks = LaneLocks::open(root.path()).unwrap();
        let lane = LaneId::new("a").unwrap();
        let us = recorded_of(std::process::id());
        assert_eq!(locks.take(root.path(), &lane, &us, 1, judge).unwrap(), Taking::Taken);
        assert_eq!(locks.take(root.path(), &lane, &us, 2, judge).unwrap(), Taking::Taken, "again");

        let mut other = us.clone();
        other.ticks = Some(1);
        let Taking::Held(by) = locks.take(root.path(), &lane, &other, 3, judge).unwrap() else {
            panic!("taken from a live holder");
        };
        assert!(by.contains("ALIVE"), "{by}");

        // The holder's pid now belongs to a younger process: it is dead, whoever has its number.
        locks.release(root.path(), &us).unwrap();
        assert_eq!(locks.take(root.path(), &lane, &other, 4, judge).unwrap(), Taking::Taken);
        assert_eq!(locks.take(root.path(), &lane, &us, 5, judge).unwrap(), Taking::Taken);
    }

    #[test]
    fn a_live_worker_holds_the_lane_of_a_dead_warden() {
        let root = tempfile::tempdir().unwrap();
        let mut locks = LaneLocks::open(root.path()).unwrap();
        let lane = LaneId::new("a").unwrap();
        let us = recorded_of(std::process::id());
        let mut dead = us.clone();
        dead.ticks = Some(1);
        assert_eq!(locks.take(root.path(), &lane, &dead, 1, judge).unwrap(), Taking::Taken);
        let worker = OpenWorker {
            pid: us.pid.unwrap(),
            start_ticks: us.ticks.unwrap(),
            boot_id: us.boot.clone().unwrap().full().to_owned(),
            pidns: us.pidns,
            cgroup: None,
        };
        locks.name_worker(root.path(), &worker).unwrap();
        let mut third = us;
        third.ticks = Some(2);
        assert!(matches!(
            locks.take(root.path(), &lane, &third, 2, judge).unwrap(),
            Taking::Held(by) if by.contains("worker")
        ));
    }
}
