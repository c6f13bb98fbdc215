//! The daemon's side of the lane lock: it takes a lane for its workers, names the worker, and gives the lane back.
//!
//! A lane is held while the warden that took it or the worker that it started lives, by identity. A holder of which it
//! cannot be told whether it lives holds.

use std::path::{Path, PathBuf};

use lanewarden_probes::liveness::{Judged, Recorded};
use rusqlite::params;

pub use super::place::LockError;
use super::{
    mirror::{Image, without_images},
    place::{Place, key},
    predecessor,
    rows::{self, Audit, Held, Kind, signed},
    standing::standing,
    waits::{self, Flocks},
};
use crate::{ids::LaneId, store::rows::OpenWorker};

/// What came of taking a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Taking {
    /// It is ours.
    Taken {
        /// Grows with each taking of the directory: a writer with an older one is late.
        epoch: u64,
    },
    /// Somebody else holds it; who, and by what evidence.
    Held(String),
}

/// The lane locks of a lane root.
#[derive(Debug)]
pub struct LaneLocks {
    place: Place,
    lane_root: PathBuf,
    /// Whether the shell tools' records are written too.
    shell: bool,
}

impl LaneLocks {
    /// Opens the lock file, making it and its directory. With `shell`, the shell tools' records are written too.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn open(lane_root: &Path, shell: bool) -> Result<Self, LockError> {
        Ok(Self { place: Place::open(lane_root)?, lane_root: lane_root.to_owned(), shell })
    }

    /// Takes `dir` (canonical) for this warden's next worker, unless somebody else lives there. Each taking is a new
    /// epoch, also one by the warden that has the lane already: another worker follows.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn take(
        &mut self,
        dir: &Path,
        lane: &LaneId,
        warden: &Recorded,
        now_ms: i64,
        judge: impl Fn(&Recorded) -> Judged,
    ) -> Result<Taking, LockError> {
        let name = key(dir)?;
        let issue = predecessor::issue_of_dir(&self.lane_root, dir);
        let _flocks = waits::flocks(&predecessor::lock_files(&self.place.dir, dir, issue))?;
        if let Some(by) = self.predecessor_holds(dir, lane, issue, warden, &judge)? {
            return Ok(Taking::Held(by));
        }
        let image = self.image();
        self.place.write("taking a lane", |store| {
            let found = rows::by_dir(store, name)?;
            if let Some(held) = found.as_ref().filter(|held| same(&held.holder, warden)) {
                let epoch = rows::next_epoch(store, name)?;
                store.execute(
                    "UPDATE lane_lock SET epoch = ?2, issue = NULL, worker_pid = NULL, worker_boot = NULL, \
                     worker_ticks = NULL, worker_pidns = NULL WHERE dir = ?1",
                    params![name, signed(Some(epoch))],
                )?;
                let now = Held { issue: None, worker: None, ..held.clone() };
                image.replace(Some(held), &now)?;
                return Ok(Taking::Taken { epoch });
            }
            let before = found.as_ref().map(|held| (held, standing(held, &judge)));
            if let Some((held, stands)) = before.as_ref().filter(|(_, stands)| !stands.is_over())
                && !same(&stands.who, warden)
            {
                return Ok(Taking::Held(held_by(held, stands)));
            }
            let taken = Held {
                dir: name.to_owned(),
                kind: Kind::Daemon,
                lane: lane.as_str().to_owned(),
                issue: None,
                scope: "explicit".to_owned(),
                holder: warden.clone(),
                worker: None,
                nonce: format!("{}-{now_ms}", warden.pid.unwrap_or(0)),
                epoch: 0,
                taken_at_ms: now_ms,
                unreadable: None,
            };
            let epoch = rows::insert(store, &taken)?;
            image.replace(before.as_ref().map(|(held, _)| *held), &taken)?;
            let reason = if before.is_some() { "auto-reclaim-dead-holder" } else { "free-lane" };
            let before = before
                .map(|(_, stands)| (rows::token(&stands.who), stands.verdict.as_str().to_owned()));
            let line = Audit {
                at_ms: now_ms,
                verdict: if before.is_some() { "ACQUIRED-RECLAIMED" } else { "ACQUIRED" },
                dir: name,
                issue: None,
                epoch,
                token: Some(rows::token(warden)),
                before,
                reason,
            };
            rows::audit(store, &line)?;
            Ok(Taking::Taken { epoch })
        })
    }

    /// Names the worker that lives in the lane now, of whom `warden` learns the end: a warden that adopted it follows the
    /// one that took the lane.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn name_worker(
        &mut self,
        dir: &Path,
        worker: &OpenWorker,
        warden: &Recorded,
        judge: impl Fn(&Recorded) -> Judged,
    ) -> Result<(), LockError> {
        let (name, image, _flocks) = self.enter(dir)?;
        self.place.write("naming a worker", |store| {
            let Some(held) = rows::by_dir(store, name)?.filter(|held| held.kind == Kind::Daemon)
            else {
                return Ok(());
            };
            let ours = same(&held.holder, warden);
            if !ours && !judge(&held.holder).verdict.is_dead() {
                return Ok(());
            }
            if !ours {
                rows::set_holder(store, name, warden)?;
            }
            store
                .execute(
                    "UPDATE lane_lock SET worker_pid = ?2, worker_boot = ?3, worker_ticks = ?4, worker_pidns = ?5 \
                     WHERE dir = ?1 AND kind = 'daemon'",
                    params![
                        name,
                        worker.pid,
                        worker.boot_id,
                        signed(Some(worker.start_ticks)),
                        signed(worker.pidns),
                    ],
                )?;
            match rows::by_dir(store, name)? {
                Some(now) => Ok(image.replace(Some(&held), &now)?),
                None => Ok(()),
            }
        })
    }

    /// The lane's worker is gone, and its warden keeps the lane. One that lives keeps its name there.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn no_worker(
        &mut self,
        dir: &Path,
        warden: &Recorded,
        judge: impl Fn(&Recorded) -> Judged,
    ) -> Result<(), LockError> {
        let (name, image, _flocks) = self.enter(dir)?;
        self.place.write("taking a worker's name out", |store| {
            let Some(held) = rows::by_dir(store, name)?.filter(|held| same(&held.holder, warden))
            else {
                return Ok(());
            };
            if held.worker.as_ref().is_some_and(|worker| !judge(worker).verdict.is_dead()) {
                return Ok(());
            }
            store.execute(
                "UPDATE lane_lock SET worker_pid = NULL, worker_boot = NULL, worker_ticks = NULL, \
                 worker_pidns = NULL WHERE dir = ?1",
                [name],
            )?;
            let now = Held { worker: None, ..held.clone() };
            Ok(image.replace(Some(&held), &now)?)
        })
    }

    /// Gives the lane back, if this warden holds it.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn release(&mut self, dir: &Path, warden: &Recorded, now_ms: i64) -> Result<(), LockError> {
        let (name, image, _flocks) = self.enter(dir)?;
        self.place.write("releasing a lane", |store| {
            let Some(held) = rows::by_dir(store, name)?.filter(|held| same(&held.holder, warden))
            else {
                return Ok(());
            };
            rows::delete(store, name)?;
            image.remove(&held)?;
            let line = Audit {
                at_ms: now_ms,
                verdict: "RELEASED",
                dir: name,
                issue: held.issue,
                epoch: held.epoch,
                token: Some(rows::token(warden)),
                before: None,
                reason: "holder-release",
            };
            rows::audit(store, &line)?;
            Ok(())
        })
    }

    /// The directory's key and image, with the shell tools' two file locks held.
    fn enter<'d>(&self, dir: &'d Path) -> Result<(&'d str, Image, Flocks), LockError> {
        let issue = predecessor::issue_of_dir(&self.lane_root, dir);
        let flocks = waits::flocks(&predecessor::lock_files(&self.place.dir, dir, issue))?;
        Ok((key(dir)?, self.image(), flocks))
    }

    fn image(&self) -> Image {
        Image::new(&self.lane_root, &self.place.dir, self.shell)
    }

    /// Who of the shell tools that came before holds the directory: a session by its record, or a supervisor.
    fn predecessor_holds(
        &self,
        dir: &Path,
        lane: &LaneId,
        issue: Option<u64>,
        warden: &Recorded,
        judge: &impl Fn(&Recorded) -> Judged,
    ) -> Result<Option<String>, LockError> {
        let locks = &self.place.dir;
        let records = predecessor::records(locks)
            .map_err(|source| LockError::Directory { path: locks.clone(), source })?;
        let rows = self.place.read("listing lane locks", rows::all)?;
        let records = without_images(records, &rows);
        for held in records {
            let of_our_number = held.issue.is_some() && held.issue == issue;
            // Where we would write a record, whatever stands there counts, for whichever directory it was taken.
            let here = Path::new(&held.dir) == dir
                || of_our_number && (self.shell || held.unreadable.is_some());
            let stands = standing(&held, judge);
            if here && !stands.is_over() && !same(&stands.who, warden) {
                return Ok(Some(held_by(&held, &stands)));
            }
        }
        let ours = [warden.pid.unwrap_or(0)];
        let supervisor = predecessor::supervisor(lane.as_str(), &ours);
        Ok(supervisor.map(|judged| {
            format!(
                "a supervisor of the predecessor holds the lane: {} ({}); end it, or remove its lock",
                judged.verdict,
                crate::text::harmless(&judged.reason)
            )
        }))
    }
}

fn held_by(held: &Held, stands: &super::standing::Standing) -> String {
    let name = match (held.kind, held.issue) {
        (Kind::Daemon, _) => format!("lane {}", crate::text::harmless(&held.lane)),
        (Kind::Session | Kind::Predecessor, Some(issue)) => format!("the lane of issue {issue}"),
        (Kind::Session | Kind::Predecessor, None) => "the lane".to_owned(),
    };
    let pid = stands.who.pid.unwrap_or(0);
    let (role, verdict, reason) = (stands.role, stands.verdict, &stands.reason);
    format!("{name} is held by a {role}, pid {pid}: {verdict} ({reason})")
}

fn same(a: &Recorded, b: &Recorded) -> bool {
    a.pid.is_some() && a.pid == b.pid && a.ticks == b.ticks && a.boot == b.boot && a.ticks.is_some()
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
        let mut locks = LaneLocks::open(root.path(), false).unwrap();
        let lane = LaneId::new("a").unwrap();
        let us = recorded_of(std::process::id());
        assert!(matches!(
            locks.take(root.path(), &lane, &us, 1, judge).unwrap(),
            Taking::Taken { .. }
        ));
        assert_eq!(
            locks.take(root.path(), &lane, &us, 2, judge).unwrap(),
            Taking::Taken { epoch: 2 },
            "again, a new epoch"
        );

        let mut other = us.clone();
        // A younger process, which no inode contradicts.
        other.ticks = Some(1);
        other.pidfs_ino = None;
        let Taking::Held(by) = locks.take(root.path(), &lane, &other, 3, judge).unwrap() else {
            panic!("taken from a live holder");
        };
        assert!(by.contains("NO-WORKER"), "its warden lives, it has no worker: {by}");

        // The holder's pid now belongs to a younger process: it is dead, whoever has its number.
        locks.release(root.path(), &us, 3).unwrap();
        assert!(matches!(
            locks.take(root.path(), &lane, &other, 4, judge).unwrap(),
            Taking::Taken { .. }
        ));
        assert!(matches!(
            locks.take(root.path(), &lane, &us, 5, judge).unwrap(),
            Taking::Taken { .. }
        ));
    }

    #[test]
    fn a_live_worker_holds_the_lane_of_a_dead_warden() {
        let root = tempfile::tempdir().unwrap();
        let mut locks = LaneLocks::open(root.path(), false).unwrap();
        let lane = LaneId::new("a").unwrap();
        let us = recorded_of(std::process::id());
        let mut dead = us.clone();
        dead.ticks = Some(1);
        dead.pidfs_ino = None;
        assert!(matches!(
            locks.take(root.path(), &lane, &dead, 1, judge).unwrap(),
            Taking::Taken { .. }
        ));
        let worker = OpenWorker {
            pid: us.pid.unwrap(),
            start_ticks: us.ticks.unwrap(),
            boot_id: us.boot.clone().unwrap().full().to_owned(),
            pidns: us.pidns,
            cgroup: None,
        };
        locks.name_worker(root.path(), &worker, &dead, judge).unwrap();
        let mut third = us;
        third.ticks = Some(2);
        assert!(matches!(
            locks.take(root.path(), &lane, &third, 2, judge).unwrap(),
            Taking::Held(by) if by.contains("worker")
        ));
    }
    #[test]
    fn a_live_session_of_the_shell_tools_keeps_the_daemon_out() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().canonicalize().unwrap();
        let mut locks = LaneLocks::open(&top, false).unwrap();
        let lane = LaneId::new("no-such-supervisor").unwrap();
        let us = recorded_of(std::process::id());
        let other = recorded_of(std::os::unix::process::parent_id());
        let record = |dir: &Path| {
            format!(
                "issue=7\nlane-dir={}\nmachine=box-a\nactor=flow\npid={}\nboot-id={}\nstart-ticks={}\n",
                dir.display(),
                other.pid.unwrap(),
                other.boot.as_ref().unwrap(),
                other.ticks.unwrap()
            )
        };
        let file = top.join(".lane-locks/lane-7.lock");
        std::fs::write(&file, record(&top.join("a"))).unwrap();
        let mut take = |dir: &str| locks.take(&top.join(dir), &lane, &us, 1, judge).unwrap();
        assert!(matches!(take("a"), Taking::Held(by) if by.contains("session")));
        assert!(matches!(take("b"), Taking::Taken { .. }));
        // What cannot be read may be about the lane of its name.
        std::fs::write(&file, "torn").unwrap();
        assert!(matches!(take("lane-7"), Taking::Held(by) if by.contains("UNKNOWN-UNREADABLE")));
        assert!(matches!(take("a"), Taking::Taken { .. }));
    }
}
