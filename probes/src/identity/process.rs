//! Single reads about one process from `/proc/PID`.

use super::{ProcStat, parse_stat};
use crate::{Absent, ProbeError, Reading, Root, reading};
use std::{
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Most bytes of an environment or command line that are read.
const ENVIRON_LIMIT: u64 = 256 * 1024;

fn place(root: &Root, pid: u32, file: &str) -> PathBuf {
    root.proc().join(pid.to_string()).join(file)
}

/// `/proc/PID/stat`. Opens by name also for a thread id, which is listed nowhere; see [`tgid`].
///
/// # Errors
/// The read failed for another reason than absence, or the line has not the shape of proc_pid_stat(5).
pub fn stat(root: &Root, pid: u32) -> Reading<ProcStat> {
    let path = place(root, pid, "stat");
    let bytes = match reading::read_file(&path, 4096, Absent::Gone)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    let stat =
        parse_stat(&bytes).map_err(|error| reading::malformed(&path, error.expected, &bytes))?;
    // A line about somebody else would turn into a verdict on somebody else.
    reading::parsed(&path, "the pid that was asked for", &bytes, (stat.pid == pid).then_some(stat))
}

/// The thread group that `pid` belongs to, from `/proc/PID/status`: equal to `pid` for a process, different for the
/// id of a thread.
///
/// # Errors
/// The read failed for another reason than absence, or there is no `Tgid:` line.
pub fn tgid(root: &Root, pid: u32) -> Reading<u32> {
    let path = place(root, pid, "status");
    let bytes = match reading::read_file(&path, 64 * 1024, Absent::Gone)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    // The name in the first line has its newlines escaped, so a forged line cannot start one.
    let line = bytes.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"));
    reading::parsed(&path, "a Tgid: line", &bytes, line.and_then(reading::number))
}

/// Inode of the pid namespace of `pid` (`/proc/PID/ns/pid`). Needs the right to trace a foreign process.
///
/// # Errors
/// The link could not be read for another reason than absence, or is no namespace.
pub fn pid_namespace(root: &Root, pid: u32) -> Reading<u64> {
    namespace(&place(root, pid, "ns/pid"))
}

/// Inode of the time namespace of `pid` (`/proc/PID/ns/time`, Linux 5.6).
///
/// # Errors
/// The link could not be read for another reason than absence, or is no namespace.
pub fn time_namespace(root: &Root, pid: u32) -> Reading<u64> {
    namespace(&place(root, pid, "ns/time"))
}

/// The inode in a link such as `pid:[4026531836]`.
fn namespace(path: &Path) -> Reading<u64> {
    let target = match link(path, Absent::Gone)? {
        Ok(target) => target,
        Err(absent) => return Ok(Err(absent)),
    };
    let bytes = target.as_os_str().as_bytes();
    let inode = bytes
        .iter()
        .position(|byte| *byte == b'[')
        .and_then(|open| bytes.get(open + 1..)?.strip_suffix(b"]"))
        .and_then(reading::number);
    reading::parsed(path, "a namespace such as pid:[4026531836]", bytes, inode)
}

/// Our own pid as this process table numbers us (`/proc/self`). [`Absent::Gone`] when the table is not one of our
/// pid namespace, or is not there.
///
/// # Errors
/// The link could not be read for another reason than absence, or is no number.
pub fn own_pid(root: &Root) -> Reading<u32> {
    let path = root.proc().join("self");
    let target = match link(&path, Absent::Gone)? {
        Ok(target) => target,
        Err(absent) => return Ok(Err(absent)),
    };
    let bytes = target.as_os_str().as_bytes();
    reading::parsed(&path, "a pid", bytes, reading::number(bytes))
}

/// The current directory of `pid`: its physical path, with ` (deleted)` behind it if it was removed.
///
/// # Errors
/// The link could not be read for another reason than absence.
pub fn cwd(root: &Root, pid: u32) -> Reading<PathBuf> {
    link(&place(root, pid, "cwd"), Absent::Gone)
}

/// The program that `pid` runs: its physical path, with ` (deleted)` behind it if it was removed. Needs the right to trace
/// a foreign process; a kernel thread has none.
///
/// # Errors
/// The link could not be read for another reason than absence.
pub fn exe(root: &Root, pid: u32) -> Reading<PathBuf> {
    link(&place(root, pid, "exe"), Absent::Gone)
}

fn link(path: &Path, missing: Absent) -> Reading<PathBuf> {
    match fs::read_link(path) {
        Ok(target) => Ok(Ok(target)),
        Err(error) => reading::absent(path, error, missing),
    }
}

/// The command name, without its newline. Any bytes but NUL.
///
/// # Errors
/// The read failed for another reason than absence.
pub fn comm(root: &Root, pid: u32) -> Reading<Vec<u8>> {
    let bytes = reading::read_file(&place(root, pid, "comm"), 4096, Absent::Gone)?;
    Ok(bytes.map(|bytes| bytes.strip_suffix(b"\n").unwrap_or(&bytes).to_vec()))
}

/// The arguments, without the NUL bytes between them; at most 256 KiB. Empty for kernel threads and zombies.
///
/// # Errors
/// The read failed for another reason than absence.
pub fn cmdline(root: &Root, pid: u32) -> Reading<Vec<Vec<u8>>> {
    let bytes = reading::read_file(&place(root, pid, "cmdline"), ENVIRON_LIMIT, Absent::Gone)?;
    Ok(bytes.map(|bytes| {
        let whole = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
        match whole {
            [] => Vec::new(),
            [..] => whole.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect(),
        }
    }))
}

/// The environment as it was at exec: `KEY=value` parts, each ended by NUL; at most 256 KiB.
///
/// # Errors
/// The read failed for another reason than absence.
pub fn environ(root: &Root, pid: u32) -> Reading<Vec<u8>> {
    reading::read_file(&place(root, pid, "environ"), ENVIRON_LIMIT, Absent::Gone)
}

/// All processes that the table lists, ascending. Under `hidepid` not all there are.
///
/// # Errors
/// The table itself could not be read.
pub fn pids(root: &Root) -> Result<Vec<u32>, ProbeError> {
    let mut found = numbers_in(root.proc())
        .map_err(|source| ProbeError::Io { path: root.proc().to_owned(), source })?;
    found.sort_unstable();
    Ok(found)
}

/// The names in `dir` that are numbers.
fn numbers_in(dir: &Path) -> std::io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        found.extend(reading::number::<u32>(entry?.file_name().as_bytes()));
    }
    Ok(found)
}

/// The children of all threads of `pid`, from `/proc/PID/task/*/children`, else (a kernel without these files) from
/// the parents in the whole table. Ascending. A child that is born or orphaned meanwhile may be missing.
///
/// # Errors
/// A read failed for another reason than absence.
pub fn children(root: &Root, pid: u32) -> Reading<Vec<u32>> {
    let tasks = place(root, pid, "task");
    let threads = match numbers_in(&tasks) {
        Ok(threads) => threads,
        Err(error) => return reading::absent(&tasks, error, Absent::Gone),
    };
    let mut found = Vec::new();
    let mut supported = false;
    for thread in threads {
        let path = tasks.join(thread.to_string()).join("children");
        match reading::read_file(&path, reading::SMALL, Absent::NotSupported)? {
            Ok(bytes) => {
                supported = true;
                let words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
                for word in words {
                    let child = reading::number(word);
                    found.push(child.ok_or_else(|| reading::malformed(&path, "pids", &bytes))?);
                }
            }
            // The thread may have ended, or the kernel has no such file: the table below tells.
            Err(Absent::NotSupported | Absent::Gone) => {}
            Err(Absent::Denied) => return Ok(Err(Absent::Denied)),
        }
    }
    if !supported {
        for candidate in pids(root)? {
            match stat(root, candidate)? {
                Ok(stat) if stat.ppid == pid => found.push(candidate),
                Ok(_) | Err(_) => {}
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(Ok(found))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests start real processes")]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_real_child_is_seen_with_its_environment_and_directory() {
        let root = Root::live();
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let mut child = Command::new("sleep")
            .arg("600")
            .current_dir(&dir)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LANEWARDEN_COOKIE", "7")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let pid = child.id();
        let me = std::process::id();
        assert_eq!(stat(&root, pid).unwrap().unwrap().ppid, me);
        assert_eq!(tgid(&root, pid).unwrap(), Ok(pid));
        assert_eq!(cwd(&root, pid).unwrap(), Ok(dir));
        assert_eq!(comm(&root, pid).unwrap().unwrap(), b"sleep");
        assert_eq!(cmdline(&root, pid).unwrap().unwrap(), [b"sleep".to_vec(), b"600".to_vec()]);
        let environment = environ(&root, pid).unwrap().unwrap();
        assert!(environment.split(|byte| *byte == 0).any(|pair| pair == b"LANEWARDEN_COOKIE=7"));
        assert!(children(&root, me).unwrap().unwrap().contains(&pid));
        assert!(pids(&root).unwrap().contains(&pid));
        assert_eq!(own_pid(&root).unwrap(), Ok(me));
        assert_eq!(pid_namespace(&root, pid).unwrap(), pid_namespace(&root, me).unwrap());
        assert_eq!(time_namespace(&root, pid).unwrap(), time_namespace(&root, me).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(stat(&root, pid).unwrap(), Err(Absent::Gone));
        assert_eq!(tgid(&root, pid).unwrap(), Err(Absent::Gone));
    }

    #[test]
    fn a_captured_tree_without_children_files_falls_back_to_parents() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        let line = |pid: u32, ppid: u32| {
            format!("{pid} (x) S {ppid} 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 5 0 0")
        };
        for (pid, ppid) in [(10, 1), (11, 10), (12, 11)] {
            let place = root.proc().join(pid.to_string());
            fs::create_dir_all(place.join("task").join(pid.to_string())).unwrap();
            fs::write(place.join("stat"), line(pid, ppid)).unwrap();
        }
        assert_eq!(children(&root, 10).unwrap(), Ok(vec![11]));
        fs::write(root.proc().join("10/stat"), line(99, 1)).unwrap();
        assert!(matches!(stat(&root, 10), Err(ProbeError::Malformed { .. })));
    }
}
