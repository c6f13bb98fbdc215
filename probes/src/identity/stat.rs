//! `/proc/PID/stat`, proc_pid_stat(5): one line, written by the kernel around a name that the process chose.

use crate::reading::{excerpt, number};

/// `flags` bit of a kernel thread (include/linux/sched.h). Such a process is never a worker.
pub const PF_KTHREAD: u32 = 0x0020_0000;

/// The fields of `/proc/PID/stat` that we use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcStat {
    /// Field 1: the process (or, under `/proc/TID`, the thread).
    pub pid: u32,
    /// Field 2: the command name, any bytes but NUL. Chosen by the process; escape before showing it.
    pub comm: Vec<u8>,
    /// Field 3: one letter; `Z` zombie, `X` dead, others alive.
    pub state: u8,
    /// Field 4: the parent, 0 if it is outside our pid namespace.
    pub ppid: u32,
    /// Field 5: process group.
    pub pgrp: i64,
    /// Field 6: session.
    pub session: i64,
    /// Field 7: the controlling terminal's device number, 0 without one.
    pub tty_nr: i64,
    /// Field 9: `PF_*` flags.
    pub flags: u32,
    /// Field 14: user time, clock ticks.
    pub utime: u64,
    /// Field 15: system time, clock ticks.
    pub stime: u64,
    /// Field 20: threads that are still there. 2 in a zombie means a live thread beside a leader that exited.
    pub num_threads: u64,
    /// Field 22: start, clock ticks since boot (including suspend), shifted by the reader's time namespace.
    pub start_ticks: u64,
    /// Field 24: resident pages; `None` on a line that ends before it.
    pub rss_pages: Option<i64>,
}

impl ProcStat {
    /// No thread of it runs any more. A zombie leader with live threads is not over (proc_pid_stat(5), field 20).
    #[must_use]
    pub fn is_over(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x') && self.num_threads <= 1
    }

    /// Whether the state letter is one that Linux has ever used for a process (fs/proc/array.c).
    #[must_use]
    pub fn state_is_known(&self) -> bool {
        b"RSDTtZXxKWPI".contains(&self.state)
    }

    /// Whether it is a kernel thread.
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }
}

/// A line that is not what proc_pid_stat(5) describes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected} in a process stat line, found {found:?}")]
pub struct StatError {
    /// What was looked for.
    pub expected: &'static str,
    /// The first bytes of the line, escaped.
    pub found: String,
}

/// Parses a stat line. The name is cut at the **last** `)`, since it may itself hold brackets, blanks and newlines;
/// more fields than known are accepted, fewer than 22 are not.
///
/// # Errors
/// Says which part was not as expected.
pub fn parse_stat(line: &[u8]) -> Result<ProcStat, StatError> {
    let wrong = |expected| StatError { expected, found: excerpt(line) };
    let open = line.iter().position(|byte| *byte == b'(').ok_or_else(|| wrong("`(`"))?;
    let close = line.iter().rposition(|byte| *byte == b')').ok_or_else(|| wrong("`)`"))?;
    let head = line.get(..open).ok_or_else(|| wrong("a pid"))?;
    let comm = line.get(open + 1..close).ok_or_else(|| wrong("a name in brackets"))?;
    let tail = line.get(close + 1..).ok_or_else(|| wrong("fields"))?;
    let fields: Vec<&[u8]> =
        tail.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty()).collect();

    // Numbered as in the manual page: field 3 is the first one after the name.
    let field = |number: usize| fields.get(number - 3).copied();
    let state = match field(3) {
        Some([letter]) if letter.is_ascii_alphabetic() => *letter,
        Some(_) | None => return Err(wrong("a state letter")),
    };
    let signed = |at| field(at).and_then(signed_number);
    Ok(ProcStat {
        pid: number(head).filter(|pid| *pid > 0).ok_or_else(|| wrong("a pid"))?,
        comm: comm.to_vec(),
        state,
        ppid: field(4).and_then(number).ok_or_else(|| wrong("a parent (field 4)"))?,
        pgrp: signed(5).ok_or_else(|| wrong("a process group (field 5)"))?,
        session: signed(6).ok_or_else(|| wrong("a session (field 6)"))?,
        tty_nr: signed(7).ok_or_else(|| wrong("a terminal (field 7)"))?,
        flags: field(9).and_then(number).ok_or_else(|| wrong("flags (field 9)"))?,
        utime: field(14).and_then(number).ok_or_else(|| wrong("user time (field 14)"))?,
        stime: field(15).and_then(number).ok_or_else(|| wrong("system time (field 15)"))?,
        num_threads: field(20).and_then(number).ok_or_else(|| wrong("threads (field 20)"))?,
        start_ticks: field(22).and_then(number).ok_or_else(|| wrong("start ticks (field 22)"))?,
        rss_pages: signed(24),
    })
}

/// A decimal number with an optional minus sign.
fn signed_number(bytes: &[u8]) -> Option<i64> {
    match bytes.split_first() {
        Some((b'-', digits)) => number::<i64>(digits)?.checked_neg(),
        Some(_) | None => number(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINE: &str = "9059 (cat) R 9051 9051 7265 0 -1 4194304 100 0 0 0 3 4 0 0 20 0 1 0 78127 3133440 383 \
        18446744073709551615 1 2 3 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 1 2 3 4 5 6 7 0\n";

    #[test]
    fn a_line_of_linux_6() {
        let stat = parse_stat(LINE.as_bytes()).unwrap();
        assert_eq!((stat.pid, stat.ppid, stat.state), (9059, 9051, b'R'));
        assert_eq!((stat.utime, stat.stime, stat.num_threads), (3, 4, 1));
        assert_eq!((stat.start_ticks, stat.rss_pages), (78127, Some(383)));
        assert!(!stat.is_over() && stat.state_is_known() && !stat.is_kernel_thread());
    }

    #[test]
    fn twenty_two_fields_are_enough_and_twenty_one_are_not() {
        let words: Vec<&str> = LINE.split(' ').collect();
        assert_eq!(parse_stat(words[..22].join(" ").as_bytes()).unwrap().rss_pages, None);
        let short = parse_stat(words[..21].join(" ").as_bytes()).unwrap_err();
        assert_eq!(short.expected, "start ticks (field 22)");
    }

    #[test]
    fn a_zombie_leader_with_a_live_thread_is_not_over() {
        let zombie = |threads: u64| {
            let stat = parse_stat(LINE.as_bytes()).unwrap();
            ProcStat { state: b'Z', num_threads: threads, ..stat }
        };
        assert!(!zombie(2).is_over());
        assert!(zombie(1).is_over() && zombie(0).is_over());
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _unused = parse_stat(&bytes);
        }

        #[test]
        fn no_name_hides_the_start(name in proptest::collection::vec(1u8.., 0..16)) {
            let mut line = b"7 (".to_vec();
            line.extend_from_slice(&name);
            line.extend_from_slice(LINE.strip_prefix("9059 (cat").unwrap().as_bytes());
            let stat = parse_stat(&line).unwrap();
            prop_assert_eq!(stat.comm, name);
            prop_assert_eq!(stat.start_ticks, 78127);
        }

        #[test]
        fn damage_gives_an_error_or_a_line(at in 0usize..100, byte in any::<u8>(), cut in 0usize..200) {
            let mut line = LINE.as_bytes().to_vec();
            line[at] = byte;
            line.truncate(cut);
            let _unused = parse_stat(&line);
        }
    }
}
