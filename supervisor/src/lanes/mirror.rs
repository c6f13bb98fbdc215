//! Our locks as the shell tools read them, for boxes where both are at work (`[compat] shell = true`): beside a row of
//! the store stands a record `lane-<N>.lock` with the same nonce. The store decides; a record of ours is never read back
//! as a lock of somebody else's.
//!
//! A record is written before the row is committed. Who is killed in between leaves a record that names a process, and
//! both kinds of tools clear it once that process is dead.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use lanewarden_probes::liveness::Recorded;

use super::{
    place::LockError,
    predecessor,
    rows::{Held, Kind},
};
use crate::text::rfc3339;

/// Where images are, and whether they are wanted.
#[derive(Debug)]
pub(super) struct Image {
    lane_root: PathBuf,
    locks: PathBuf,
    wanted: bool,
}

impl Image {
    /// `locks` is the lock directory of `lane_root`.
    pub(super) fn new(lane_root: &Path, locks: &Path, wanted: bool) -> Self {
        Self { lane_root: lane_root.to_owned(), locks: locks.to_owned(), wanted }
    }

    /// Puts the image of `now` in place of that of `before`, by rename: at no moment is a held lane without one. The two
    /// file locks must be held.
    ///
    /// # Errors
    /// A file that cannot be written or removed.
    pub(super) fn replace(&self, before: Option<&Held>, now: &Held) -> Result<(), LockError> {
        let wanted = if self.wanted { self.issues(now) } else { Vec::new() };
        for &issue in &wanted {
            let path = self.path(issue);
            write(&path, &text(issue, now)).map_err(|source| LockError::File {
                doing: "writing the shell tools' record",
                path,
                source,
            })?;
        }
        before.map_or(Ok(()), |before| self.remove_but(before, &wanted))
    }

    /// Removes an image, wanted or not. A record that somebody else wrote meanwhile has another nonce and stays.
    ///
    /// # Errors
    /// A file that cannot be removed.
    pub(super) fn remove(&self, held: &Held) -> Result<(), LockError> {
        self.remove_but(held, &[])
    }

    fn remove_but(&self, held: &Held, kept: &[u64]) -> Result<(), LockError> {
        for issue in self.issues(held).into_iter().filter(|issue| !kept.contains(issue)) {
            let found = predecessor::record(&self.locks, issue);
            if !found.is_some_and(|record| is_of(&record, held)) {
                continue;
            }
            let path = self.path(issue);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    let doing = "removing the shell tools' record";
                    return Err(LockError::File { doing, path, source: error });
                }
                Ok(()) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// The issues under whose numbers the shell tools look for this lock: its own, and that of a lane of the daemon's
    /// whose directory is named after one.
    fn issues(&self, held: &Held) -> Vec<u64> {
        let mut issues: Vec<u64> = held.issue.into_iter().collect();
        if held.kind == Kind::Daemon {
            let of_dir = predecessor::issue_of_dir(&self.lane_root, Path::new(&held.dir));
            issues.extend(of_dir.filter(|issue| Some(*issue) != held.issue));
        }
        issues
    }

    fn path(&self, issue: u64) -> PathBuf {
        self.locks.join(format!("lane-{issue}.lock"))
    }
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let beside = path.parent().unwrap_or(Path::new("."));
    let fresh = tempfile::Builder::new().prefix(".record.").tempfile_in(beside)?;
    fs::write(fresh.path(), text)?;
    fresh.as_file().set_permissions(fs::Permissions::from_mode(0o664))?;
    fresh.persist(path).map(drop).map_err(|error| error.error)
}

/// Whether a record is the image of this row.
#[must_use]
fn is_of(record: &Held, row: &Held) -> bool {
    record.unreadable.is_none() && record.nonce == row.nonce && record.dir == row.dir
}

/// Leaves out the records that are images of rows.
pub(super) fn without_images(records: Vec<Held>, rows: &[Held]) -> Vec<Held> {
    let is_image = |record: &Held| rows.iter().any(|row| is_of(record, row));
    records.into_iter().filter(|record| !is_image(record)).collect()
}

/// The record of a lock: its worker, else whoever took it.
fn text(issue: u64, held: &Held) -> String {
    let who = held.worker.as_ref().unwrap_or(&held.holder);
    let seconds = held.taken_at_ms / 1000;
    let mut lines = vec![
        ("version", "1".to_owned()),
        ("issue", issue.to_string()),
        ("lane-dir", held.dir.clone()),
        ("machine", who.machine.clone()),
        ("actor", who.actor.clone().unwrap_or_else(|| "flow".to_owned())),
    ];
    lines.extend(parts(who));
    lines.push(("pid-scope", held.scope.clone()));
    lines.push(("acquired-ts", rfc3339(seconds * 1000)));
    lines.push(("acquired-epoch", seconds.to_string()));
    lines.push(("nonce", held.nonce.clone()));
    lines.into_iter().map(|(key, value)| format!("{key}={value}\n")).collect()
}

fn parts(who: &Recorded) -> impl Iterator<Item = (&'static str, String)> {
    let boot = who.boot.as_ref().map(|boot| boot.full().to_owned());
    [
        ("pid", who.pid.map(|pid| pid.to_string())),
        ("boot-id", boot),
        ("start-ticks", who.ticks.map(|ticks| ticks.to_string())),
    ]
    .into_iter()
    .filter_map(|(key, value)| Some((key, value?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(kind: Kind, issue: Option<u64>, dir: &Path) -> Held {
        Held {
            dir: dir.display().to_string(),
            kind,
            lane: "lane-7".to_owned(),
            issue,
            scope: "explicit".to_owned(),
            holder: Recorded {
                machine: "box-a".to_owned(),
                actor: Some("flow".to_owned()),
                pid: Some(12),
                boot: "0f6b1c9e-1234-4abc-8def-0123456789ab".parse().ok(),
                ticks: Some(345),
                ..Recorded::default()
            },
            worker: None,
            nonce: "1-2-3".to_owned(),
            epoch: 4,
            taken_at_ms: 1_796_000_000_123,
            unreadable: None,
        }
    }

    #[test]
    fn a_record_says_what_the_row_says() {
        let root = tempfile::tempdir().unwrap();
        let row = held(Kind::Session, Some(42), &root.path().join("a b=c"));
        Image::new(root.path(), root.path(), true).replace(None, &row).unwrap();
        let read = predecessor::record(root.path(), 42).unwrap();
        assert_eq!(read.unreadable, None);
        assert_eq!((&read.dir, &read.holder), (&row.dir, &row.holder));
        assert_eq!((&read.scope, &read.nonce), (&row.scope, &row.nonce));
        assert_eq!(read.taken_at_ms, 1_796_000_000_000, "whole seconds");
        assert!(without_images(vec![read], &[row]).is_empty());
    }

    #[test]
    fn a_daemons_lane_is_found_under_its_directorys_number_and_its_issue() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().canonicalize().unwrap();
        let row = held(Kind::Daemon, Some(42), &top.join("lane-7"));
        let image = Image::new(&top, &top, true);
        image.replace(None, &row).unwrap();
        let found: Vec<_> = predecessor::records(&top).unwrap();
        assert_eq!(found.iter().filter_map(|one| one.issue).collect::<Vec<_>>(), [7, 42]);
        image.remove(&row).unwrap();
        assert_eq!(predecessor::records(&top).unwrap(), []);
    }

    #[test]
    fn what_another_wrote_meanwhile_stays() {
        let root = tempfile::tempdir().unwrap();
        let row = held(Kind::Session, Some(42), root.path());
        let other = Held { nonce: "other".to_owned(), ..row.clone() };
        let image = Image::new(root.path(), root.path(), true);
        image.replace(None, &other).unwrap();
        image.remove(&row).unwrap();
        let left = predecessor::record(root.path(), 42).unwrap();
        assert_eq!(left.nonce, "other");
        assert_eq!(without_images(vec![left], &[row]).len(), 1);
    }
}
