//! Waits that end: file locks, and the name of whoever holds them.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    event::{Timespec, poll},
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::place::{LockError, make_file};

/// How long a taker waits for another, in each of its waits.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(20);

/// File locks that are held; dropping them gives them back.
#[derive(Debug)]
pub struct Flocks(#[expect(dead_code, reason = "held until dropped")] Vec<File>);

/// Takes these files' locks in this order (flock(2)), making the files where they are missing.
///
/// # Errors
/// A file that cannot be opened, or that somebody holds for longer than [`PATIENCE`].
pub fn flocks(paths: &[PathBuf]) -> Result<Flocks, LockError> {
    let mut held = Vec::new();
    for path in paths {
        let failed =
            |source| LockError::File { doing: "opening the lock file", path: path.clone(), source };
        // Opened for reading, which is enough for flock: it may be another user's.
        let open = || {
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK)
                .open(path)
        };
        let file = match open() {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Whatever our umask is: the group's other users must be able to lock it too.
                make_file(path).map_err(failed)?;
                open().map_err(failed)?
            }
            Err(error) => return Err(failed(error)),
        };
        wait_for(&file, path)?;
        held.push(file);
    }
    Ok(Flocks(held))
}

fn wait_for(file: &File, path: &Path) -> Result<(), LockError> {
    let mut waited = Duration::ZERO;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if waited < PATIENCE => pause(&mut waited),
            Err(Errno::WOULDBLOCK) => return Err(waited_for(path)),
            Err(errno) => {
                let (path, source) = (path.to_owned(), io::Error::from(errno));
                return Err(LockError::File { doing: "locking", path, source });
            }
        }
    }
}

fn pause(waited: &mut Duration) {
    let span = Timespec::try_from(PAUSE).ok();
    // Polling nothing is a pause; a signal only makes it shorter.
    poll(&mut [], span.as_ref()).ok();
    *waited += PAUSE;
}

/// The error of a wait that ended without success, with the holders' pids where the kernel tells them.
#[must_use]
pub fn waited_for(path: &Path) -> LockError {
    let table = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    let held_by = std::fs::metadata(path)
        .map(|metadata| holders(&table, metadata.dev(), metadata.ino()))
        .unwrap_or_default();
    LockError::Waited {
        path: path.to_owned(),
        seconds: PATIENCE.as_secs(),
        held_by: HeldBy(held_by),
    }
}

/// Pids that hold a file's lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldBy(pub Vec<u32>);

impl std::fmt::Display for HeldBy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut pids = self.0.iter();
        match pids.next() {
            None => f.write_str("a process that is not told"),
            Some(first) => {
                write!(f, "pid {first}")?;
                pids.try_for_each(|pid| write!(f, ", {pid}"))
            }
        }
    }
}

/// Who holds locks on this file, from `/proc/locks` (proc_locks(5)): `1: POSIX ADVISORY WRITE 1234 fe:00:4711 0 EOF`;
/// lines of waiters have `->` behind their number.
fn holders(table: &str, dev: u64, ino: u64) -> Vec<u32> {
    let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
    let wanted = format!("{major:02x}:{minor:02x}:{ino}");
    let mut pids: Vec<u32> = table
        .lines()
        .filter_map(|line| {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (_kind, _mode, _access) = (words.next()?, words.next()?, words.next()?);
            let pid = words.next()?.parse().ok()?;
            (words.next()? == wanted).then_some(pid)
        })
        .collect();
    pids.sort_unstable();
    pids.dedup();
    pids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_a_file_lock_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.flock");
        let held = flocks(std::slice::from_ref(&path)).unwrap();
        let LockError::Waited { held_by, .. } = waited_for(&path) else { panic!() };
        assert_eq!(held_by.0, [std::process::id()]);
        drop(held);
        assert_eq!(flocks(std::slice::from_ref(&path)).map(drop).ok(), Some(()));
    }

    #[test]
    fn waiters_are_not_holders() {
        let table = "1: FLOCK  ADVISORY  WRITE 7 fe:00:42 0 EOF\n1: -> FLOCK  ADVISORY  WRITE 8 fe:00:42 0 EOF\nx\n";
        assert_eq!(holders(table, rustix::fs::makedev(0xfe, 0), 42), [7]);
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.flock");
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(flocks(&[path]), Err(LockError::File { .. })));
    }
}
