//! The files of one group: Documentation/admin-guide/cgroup-v2.rst, and cgroup-v1/memory.rst.

use crate::{Absent, ProbeError, Reading, reading};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// From here on a v1 limit means "none": the counter's maximum, rounded down to the largest page size.
const V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_0000;

/// Counters of `memory.events`. A key that this kernel does not print is `None`, not 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Reclaimed although below `memory.low`.
    pub low: Option<u64>,
    /// Throttled at `memory.high`.
    pub high: Option<u64>,
    /// Hit `memory.max`.
    pub max: Option<u64>,
    /// The limit's owner could not reclaim. Not a kill.
    pub oom: Option<u64>,
    /// Processes killed by any kernel OOM killer, the global one included.
    pub oom_kill: Option<u64>,
    /// Times that the whole group was killed (5.17 and later).
    pub oom_group_kill: Option<u64>,
}

/// Events of the group and all below it (v2 `memory.events`).
///
/// # Errors
/// The file could not be read for another reason than absence, or is no list of keys and numbers.
pub fn memory_events(dir: &Path) -> Reading<MemoryEvents> {
    events(dir, &["memory.events"])
}

/// Events of the group alone: v2 `memory.events.local`, or v1 `memory.oom_control`, which has only kills.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no list of keys and numbers.
pub fn memory_events_local(dir: &Path) -> Reading<MemoryEvents> {
    events(dir, &["memory.events.local", "memory.oom_control"])
}

/// Processes of the group killed by the kernel's OOM killer. On v2 those of all groups below are counted too; on v1
/// (4.13 and later) only the group's own, whosever limit it was.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no list of keys and numbers.
pub fn oom_kill_count(dir: &Path) -> Reading<u64> {
    let events = events(dir, &["memory.events", "memory.oom_control"])?;
    Ok(events.and_then(|events| events.oom_kill.ok_or(Absent::NotSupported)))
}

fn events(dir: &Path, names: &[&str]) -> Reading<MemoryEvents> {
    with_file(dir, names, "keys and numbers", |_, bytes| {
        let mut found = MemoryEvents::default();
        for (key, value) in keyed(bytes)? {
            match key {
                b"low" => found.low = Some(value),
                b"high" => found.high = Some(value),
                b"max" => found.max = Some(value),
                b"oom" => found.oom = Some(value),
                b"oom_kill" => found.oom_kill = Some(value),
                b"oom_group_kill" => found.oom_group_kill = Some(value),
                _ => {}
            }
        }
        Some(found)
    })
}

/// Memory charged now, bytes: v2 `memory.current`, v1 `memory.usage_in_bytes`.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no number.
pub fn memory_current(dir: &Path) -> Reading<u64> {
    plain(dir, &["memory.current", "memory.usage_in_bytes"])
}

/// The most memory that was ever charged, bytes: v2 `memory.peak` (5.19), v1 `memory.max_usage_in_bytes`.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no number.
pub fn memory_peak(dir: &Path) -> Reading<u64> {
    plain(dir, &["memory.peak", "memory.max_usage_in_bytes"])
}

/// The hard limit of this group alone, bytes, `None` for none: v2 `memory.max`, v1 `memory.limit_in_bytes`. An
/// ancestor may have a lower one.
///
/// # Errors
/// The file could not be read for another reason than absence, or is neither a number nor `max`.
pub fn memory_limit(dir: &Path) -> Reading<Option<u64>> {
    let names = ["memory.max", "memory.limit_in_bytes"];
    with_file(dir, &names, "a number of bytes or max", |name, bytes| match bytes.trim_ascii() {
        b"max" => Some(None),
        digits => {
            let limit: u64 = reading::number(digits)?;
            Some(Some(limit).filter(|limit| name == "memory.max" || *limit < V1_UNLIMITED))
        }
    })
}

/// Tasks in the group and below, `pids.current`.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no number.
pub fn pids_current(dir: &Path) -> Reading<u64> {
    plain(dir, &["pids.current"])
}

/// CPU time used by the group and all below it, microseconds: v2 `cpu.stat`, v1 `cpuacct.usage`.
///
/// # Errors
/// The file could not be read for another reason than absence, or has no such number.
pub fn cpu_usage_usec(dir: &Path) -> Reading<u64> {
    with_file(dir, &["cpuacct.usage", "cpu.stat"], "a usage", |name, bytes| match name {
        "cpuacct.usage" => reading::number::<u64>(bytes).map(|nanoseconds| nanoseconds / 1000),
        // A v1 cpu hierarchy without accounting has a cpu.stat without this key.
        _ => keyed(bytes)?
            .into_iter()
            .find_map(|(key, value)| (key == b"usage_usec").then_some(value)),
    })
}

/// The processes of the group itself, not of those below it; ascending. [`Absent::Denied`] if one of them is outside
/// of our pid namespace: the kernel shows such a one as 0, and a list without it would be too short.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no list of pids.
pub fn procs(dir: &Path) -> Reading<Vec<u32>> {
    let pids = with_file(dir, &["cgroup.procs"], "pids", |_, bytes| {
        let words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut pids = words.map(reading::number).collect::<Option<Vec<u32>>>()?;
        pids.sort_unstable();
        pids.dedup();
        Some(pids)
    })?;
    Ok(pids.and_then(|pids| if pids.contains(&0) { Err(Absent::Denied) } else { Ok(pids) }))
}

/// The threads of the group itself, not of those below it; ascending. v2 `cgroup.threads`, v1 `tasks`. Threads outside of
/// our pid namespace, which the kernel shows as 0, are left out.
///
/// # Errors
/// The file could not be read for another reason than absence, or is no list of thread ids.
pub fn threads(dir: &Path) -> Reading<Vec<u32>> {
    with_file(dir, &["cgroup.threads", "tasks"], "thread ids", |_, bytes| {
        let words = bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
        let mut threads = words.map(reading::number).collect::<Option<Vec<u32>>>()?;
        threads.retain(|&thread| thread != 0);
        threads.sort_unstable();
        threads.dedup();
        Some(threads)
    })
}

/// Whether a process lives in the group or below it (v2 `cgroup.events`; zombies do not count).
///
/// # Errors
/// The file could not be read for another reason than absence, or has no such key.
pub fn events_populated(dir: &Path) -> Reading<bool> {
    with_file(dir, &["cgroup.events"], "populated 0 or 1", |_, bytes| {
        keyed(bytes)?.into_iter().find_map(|(key, value)| match (key, value) {
            (b"populated", 0) => Some(false),
            (b"populated", 1) => Some(true),
            _ => None,
        })
    })
}

/// What tells this group from a later one of the same name: the inode of its directory.
///
/// # Errors
/// The directory could not be looked at for another reason than absence.
pub fn instance(dir: &Path) -> Reading<u64> {
    match fs::metadata(dir) {
        Ok(found) => Ok(Ok(found.ino())),
        Err(error) => reading::absent(dir, error, Absent::Gone),
    }
}

fn plain(dir: &Path, names: &[&str]) -> Reading<u64> {
    with_file(dir, names, "a number", |_, bytes| reading::number(bytes))
}

/// Reads the first of `names` that this group has and parses it.
fn with_file<T>(
    dir: &Path,
    names: &[&str],
    expected: &'static str,
    parse: impl Fn(&str, &[u8]) -> Option<T>,
) -> Reading<T> {
    for name in names {
        let path: PathBuf = dir.join(name);
        match reading::read_file(&path, 4 * reading::SMALL, Absent::NotSupported)? {
            Ok(bytes) => return reading::parsed(&path, expected, &bytes, parse(name, &bytes)),
            Err(Absent::NotSupported) => {}
            Err(absent @ (Absent::Gone | Absent::Denied)) => return Ok(Err(absent)),
        }
    }
    match dir.try_exists() {
        Ok(true) => Ok(Err(Absent::NotSupported)),
        Ok(false) => Ok(Err(Absent::Gone)),
        Err(source) => Err(ProbeError::Io { path: dir.to_owned(), source }),
    }
}

/// Lines of a key, a blank and a number.
fn keyed(bytes: &[u8]) -> Option<Vec<(&[u8], u64)>> {
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let blank = line.iter().position(|byte| *byte == b' ')?;
            Some((line.get(..blank)?, reading::number(line.get(blank..)?)?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn a_group_of_v2() {
        let dir = group(&[
            ("memory.current", "4096\n"),
            ("memory.peak", "8192\n"),
            ("memory.max", "max\n"),
            ("memory.events", "low 0\nhigh 1\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\nnew 5\n"),
            ("memory.events.local", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 1\n"),
            ("pids.current", "7\n"),
            ("cpu.stat", "usage_usec 123456\nuser_usec 1\nsystem_usec 2\n"),
            ("cgroup.procs", "20\n3\n20\n"),
            ("cgroup.events", "populated 1\nfrozen 0\n"),
        ]);
        let dir = dir.path();
        assert_eq!(memory_current(dir).unwrap(), Ok(4096));
        assert_eq!(memory_peak(dir).unwrap(), Ok(8192));
        assert_eq!(memory_limit(dir).unwrap(), Ok(None));
        assert_eq!(oom_kill_count(dir).unwrap(), Ok(2));
        assert_eq!(memory_events(dir).unwrap().unwrap().oom, Some(3));
        let local = memory_events_local(dir).unwrap().unwrap();
        assert_eq!((local.oom_kill, local.oom_group_kill), (Some(1), None));
        assert_eq!(pids_current(dir).unwrap(), Ok(7));
        assert_eq!(cpu_usage_usec(dir).unwrap(), Ok(123_456));
        assert_eq!(procs(dir).unwrap(), Ok(vec![3, 20]));
        assert_eq!(events_populated(dir).unwrap(), Ok(true));
    }

    #[test]
    fn a_group_of_v1() {
        let dir = group(&[
            ("memory.usage_in_bytes", "4096\n"),
            ("memory.max_usage_in_bytes", "8192\n"),
            ("memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n"),
            ("cpuacct.usage", "2999\n"),
            ("cgroup.procs", "0\n3\n"),
        ]);
        let dir = dir.path();
        assert_eq!(memory_current(dir).unwrap(), Ok(4096));
        assert_eq!(memory_peak(dir).unwrap(), Ok(8192));
        assert_eq!(memory_limit(dir).unwrap(), Ok(None));
        assert_eq!(oom_kill_count(dir).unwrap(), Ok(5));
        assert_eq!(cpu_usage_usec(dir).unwrap(), Ok(2));
        assert_eq!(procs(dir).unwrap(), Err(Absent::Denied), "a process outside of our namespace");
        assert_eq!(memory_events(dir).unwrap(), Err(Absent::NotSupported));
        assert_eq!(events_populated(dir).unwrap(), Err(Absent::NotSupported));
        fs::write(dir.join("memory.limit_in_bytes"), "1048576\n").unwrap();
        assert_eq!(memory_limit(dir).unwrap(), Ok(Some(1_048_576)));
        // Before 4.13 there was no counter of kills; that is not a count of 0.
        fs::write(dir.join("memory.oom_control"), "oom_kill_disable 0\nunder_oom 0\n").unwrap();
        assert_eq!(oom_kill_count(dir).unwrap(), Err(Absent::NotSupported));
    }

    #[test]
    fn a_removed_group_is_gone_and_a_damaged_file_an_error() {
        let dir = group(&[("memory.current", "lots\n"), ("memory.events", "oom_kill\n")]);
        assert!(matches!(memory_current(dir.path()), Err(ProbeError::Malformed { .. })));
        assert!(matches!(oom_kill_count(dir.path()), Err(ProbeError::Malformed { .. })));
        let gone = dir.path().join("gone");
        assert_eq!(memory_current(&gone).unwrap(), Err(Absent::Gone));
        assert_eq!(instance(&gone).unwrap(), Err(Absent::Gone));
        assert!(instance(dir.path()).unwrap().is_ok());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let dir = tempfile::tempdir().unwrap();
            for name in ["memory.events", "memory.max", "cgroup.procs", "cpu.stat", "cgroup.events"] {
                fs::write(dir.path().join(name), &bytes).unwrap();
            }
            let _unused = (memory_events(dir.path()), memory_limit(dir.path()), procs(dir.path()));
            let _unused = (cpu_usage_usec(dir.path()), events_populated(dir.path()));
        }
    }
}
