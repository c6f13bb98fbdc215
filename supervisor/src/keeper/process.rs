//! The few facts of `/proc/PID` that the keeper needs. Source: proc_pid_stat(5).

use std::{fs, io};

/// One line of `/proc/PID/stat`, as far as the keeper needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// Field 3.
    pub(super) state: u8,
    /// Field 4.
    pub(super) ppid: u32,
    /// Field 6.
    pub(super) session: u32,
    /// Field 20.
    pub(super) threads: u64,
    /// Field 22: ticks since boot.
    pub(super) start_ticks: u64,
}

impl Stat {
    /// Whether nothing of the process runs any more. A dead leader with living threads is alive.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }

    /// The facts in one stat line; `None` if it is not one. The name may hold any byte: the last `)` ends it.
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let end = line.iter().rposition(|&byte| byte == b')')?;
        let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
        // Field 3 is the first after the name.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            ppid: field(4)?.parse().ok()?,
            // -1 never occurs for the session; 0 is a kernel thread's.
            session: field(6)?.parse().ok()?,
            threads: field(20)?.parse().ok()?,
            start_ticks: field(22)?.parse().ok()?,
        })
    }
}

/// The process's stat line.
///
/// # Errors
/// What the kernel says; `NotFound` or ESRCH if there is no such process (or /proc hides it).
pub(super) fn stat(pid: u32) -> io::Result<Stat> {
    let line = fs::read(format!("/proc/{pid}/stat"))?;
    Stat::parse(&line).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a stat line"))
}

/// Every process that /proc lists, with its facts. Those that end meanwhile are left out.
pub(super) fn all() -> Vec<(u32, Stat)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .filter_map(|pid| Some((pid, stat(pid).ok()?)))
        .collect()
}

/// The pids of this process's children; `None` where the kernel has no such list (CONFIG_PROC_CHILDREN).
pub(super) fn own_children() -> Option<Vec<u32>> {
    let mut children = Vec::new();
    for task in fs::read_dir("/proc/self/task").ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("children")).ok()?;
        children.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    Some(children)
}

/// Whether the environment that the process was started with holds exactly `name=value`.
///
/// `false` also where it cannot be read: a process that is not known to be ours is not ours.
pub(super) fn has_environment(pid: u32, name: &str, value: &str) -> bool {
    let Ok(block) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    block.split(|&byte| byte == 0).any(|entry| {
        entry
            .strip_prefix(name.as_bytes())
            .and_then(|rest| rest.strip_prefix(b"="))
            .is_some_and(|found| found == value.as_bytes())
    })
}

/// The number in a one-number file of `/proc/PID`.
pub(super) fn number(pid: u32, file: &str) -> Option<i64> {
    fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hostile_name_moves_no_field() {
        let line = b"12 (a) R 1 (b) S 7 12 9 0 -1 4194304 1 0 0 0 1 2 0 0 20 0 3 0 4711 1 1";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(stat, Stat { state: b'S', ppid: 7, session: 9, threads: 3, start_ticks: 4711 });
    }

    #[test]
    fn a_zombie_with_threads_is_alive() {
        let dead = Stat { state: b'Z', ppid: 1, session: 1, threads: 1, start_ticks: 1 };
        assert!(dead.is_dead());
        assert!(!Stat { threads: 2, ..dead }.is_dead());
    }

    #[test]
    fn our_own_facts_are_readable() {
        let own = stat(std::process::id()).unwrap();
        assert_eq!(own.ppid, std::os::unix::process::parent_id());
        assert!(all().iter().any(|(pid, _)| *pid == std::process::id()));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(line in any::<Vec<u8>>()) {
            if let Some(stat) = Stat::parse(&line) {
                prop_assert!(line.contains(&stat.state));
            }
        }
    }
}
