//! Who is in a directory: by current directory, which a process sets on purpose and seldom leaves by accident.

use super::{cwd, pids, stat};
use crate::{Absent, ProbeError, Root};
use std::path::Path;

/// How far up the parents are followed.
const MOST_HOPS: usize = 64;

/// A process whose current directory is in the place that was asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupant {
    /// The process.
    pub pid: u32,
    /// Its command name; chosen by it, escape before showing it.
    pub comm: Vec<u8>,
    /// Its parent.
    pub ppid: u32,
}

/// Who is in a directory, and how many could not be asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Those whose current directory is the place or below it.
    pub occupants: Vec<Occupant>,
    /// Processes whose current directory or state we may not read. They are attributed to no place; an empty list
    /// beside a number here is no proof that the place is empty.
    pub unreadable: usize,
}

/// All processes whose current directory is `dir` or below it. Kernel threads and processes that end meanwhile are
/// passed over, and so is process 1, which works nowhere. A `dir` that is not there has no occupants.
///
/// # Errors
/// The process table could not be listed, or a read failed for another reason than absence.
pub fn occupants(root: &Root, dir: &Path) -> Result<Occupancy, ProbeError> {
    let dir = physical(dir);
    let mut found = Occupancy::default();
    for pid in pids(root)?.into_iter().filter(|pid| *pid > 1) {
        // The link first: most processes are elsewhere, and need no second look.
        let inside = match cwd(root, pid)? {
            Ok(place) if place.starts_with(&dir) => true,
            Ok(_) | Err(Absent::Gone) => continue,
            Err(Absent::Denied | Absent::NotSupported) => false,
        };
        match stat(root, pid)? {
            Ok(stat) if stat.is_kernel_thread() => {}
            Ok(stat) if inside => {
                found.occupants.push(Occupant { pid, comm: stat.comm, ppid: stat.ppid });
            }
            Ok(_) | Err(Absent::Denied | Absent::NotSupported) => found.unreadable += 1,
            Err(Absent::Gone) => {}
        }
    }
    Ok(found)
}

/// The outermost of `pid` and its ancestors whose current directory is `dir` or below it: the process that stands for
/// a session there. Pid 1 is never it. The walk ends after 64 parents, or at one that is hidden from us: such a one
/// belongs to somebody else and could not be asked for its directory either.
///
/// # Errors
/// A read failed for another reason than absence.
pub fn outermost_ancestor_inside(
    root: &Root,
    pid: u32,
    dir: &Path,
) -> Result<Option<u32>, ProbeError> {
    let dir = physical(dir);
    let mut outermost = None;
    let mut at = pid;
    for _ in 0..=MOST_HOPS {
        if at <= 1 {
            break;
        }
        if cwd(root, at)?.is_ok_and(|place| place.starts_with(&dir)) {
            outermost = Some(at);
        }
        match stat(root, at)? {
            Ok(stat) => at = stat.ppid,
            Err(_) => break,
        }
    }
    Ok(outermost)
}

/// The kernel shows current directories without symbolic links, so the place is compared without them too.
fn physical(dir: &Path) -> std::path::PathBuf {
    dir.canonicalize().unwrap_or_else(|_| dir.to_owned())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests start real processes")]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Write},
        process::{Command, Stdio},
    };

    #[test]
    fn the_outermost_process_of_a_session_stands_for_it() {
        let root = Root::live();
        let dir = tempfile::tempdir().unwrap();
        let below = dir.path().join("below it");
        std::fs::create_dir(&below).unwrap();
        // A shell in the place, and another below it as its child; each tells its pid, then waits for us.
        let mut outer = Command::new("sh")
            .args(["-c", "echo $$; cd 'below it'; sh -c 'echo $$; read line'; :"])
            .current_dir(dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(outer.stdout.take().unwrap()).lines();
        let mut pid = || lines.next().unwrap().unwrap().parse::<u32>().unwrap();
        let (shell, inner) = (pid(), pid());
        assert_eq!(outermost_ancestor_inside(&root, inner, dir.path()).unwrap(), Some(shell));
        let there = occupants(&root, &below).unwrap();
        let mut found: Vec<u32> = there.occupants.iter().map(|occupant| occupant.pid).collect();
        found.sort_unstable();
        let mut expected = [shell, inner];
        expected.sort_unstable();
        assert_eq!(found, expected);
        assert!(there.occupants.iter().any(|one| one.pid == inner && one.ppid == shell));
        outer.stdin.take().unwrap().write_all(b"\n").unwrap();
        outer.wait().unwrap();
        assert_eq!(occupants(&root, dir.path()).unwrap().occupants, []);
        assert_eq!(outermost_ancestor_inside(&root, std::process::id(), dir.path()).unwrap(), None);
    }

    #[test]
    fn parents_in_a_ring_end_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        for (pid, ppid) in [(10, 11), (11, 10)] {
            let place = root.proc().join(pid.to_string());
            std::fs::create_dir_all(&place).unwrap();
            let line = format!("{pid} (x) S {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0");
            std::fs::write(place.join("stat"), line).unwrap();
        }
        assert_eq!(outermost_ancestor_inside(&root, 10, dir.path()).unwrap(), None);
    }
}
