//! What one message of the kernel says about an OOM event. The text begins where the message begins.

use super::{
    OomKind,
    bytes::{contains, leading_number, leading_pid, rfind, rsplit_once, split_once},
};

/// The messages that name an OOM and may stand before `Killed process`, with the limit that they mean. Longer ones
/// first. From mm/oom_kill.c of 2.6.19 to 6.18 and mm/memcontrol.c.
const MESSAGES: [(&[u8], OomKind); 6] = [
    (b"Memory cgroup out of memory", OomKind::Memcg),
    (b"Out of memory (oom_kill_allocating_task)", OomKind::Global),
    (b"Out of memory", OomKind::Global),
    (b"Out of Memory", OomKind::Global),
    (b"No available memory (MPOL_BIND)", OomKind::Global),
    (b"No available memory in cpuset", OomKind::Global),
];

/// How a constraint line begins (since 5.0).
pub(super) const CONSTRAINT: &[u8] = b"oom-kill:constraint=";

/// What one message says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// A new report begins.
    Header,
    /// The one-line summary, unparsed: only together with the kill line is it unambiguous.
    Constraint,
    /// `Kill process P`: an intent, often with a thread's or a parent's id.
    Announced { kind: OomKind, pid: u32 },
    /// `Killed process P`.
    Killed(KillLine),
    /// `Kill process P (C) sharing same memory`.
    Sharing { pid: u32, comm: Vec<u8> },
    /// `Task in X killed as a result of limit of Y` (before 5.0).
    Limit { task: Vec<u8>, limit: Vec<u8> },
    /// `Tasks in X are going to be killed due to memory.oom.group set`.
    Group { path: Vec<u8> },
    /// The victim of this event was exiting already: nobody is killed by it.
    Spared,
}

/// The fields of a `Killed process` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KillLine {
    pub(super) kind: Option<OomKind>,
    pub(super) pid: u32,
    pub(super) comm: Option<Vec<u8>>,
    pub(super) uid: Option<u32>,
    pub(super) sizes: Sizes,
    pub(super) shape: Shape,
}

/// How much of a kill line is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// With sizes.
    Whole,
    /// Name and no sizes: 2.6 before el6. Believed only together with a message or an announcement.
    Old,
    /// Cut before the sizes began. Believed like `Old`.
    Cut,
}

/// The values after `total-vm:`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) total_vm_kb: Option<u64>,
    pub(super) anon_rss_kb: Option<u64>,
    pub(super) file_rss_kb: Option<u64>,
    pub(super) shmem_rss_kb: Option<u64>,
    pub(super) oom_score_adj: Option<i32>,
}

impl Sizes {
    /// How many values are known, to see whether a re-joined line says more.
    pub(super) fn known(&self) -> usize {
        let sizes = [self.total_vm_kb, self.anon_rss_kb, self.file_rss_kb, self.shmem_rss_kb];
        sizes.iter().flatten().count().saturating_add(usize::from(self.oom_score_adj.is_some()))
    }
}

/// Reads one message. `None` when it says nothing about an OOM event.
pub(super) fn said(text: &[u8]) -> Option<Said> {
    if text.starts_with(CONSTRAINT) {
        return Some(Said::Constraint);
    }
    if let Some(rest) = text.strip_prefix(b"Killed process ") {
        return killed(rest, None).map(Said::Killed);
    }
    if let Some(rest) = text.strip_prefix(b"Kill process ") {
        return sharing(rest);
    }
    if let Some(rest) = text.strip_prefix(b"Task in ") {
        let (task, limit) = rsplit_once(rest, b" killed as a result of limit of ")?;
        return Some(Said::Limit { task: task.to_vec(), limit: limit.trim_ascii_end().to_vec() });
    }
    if let Some(rest) = text.strip_prefix(b"Tasks in ") {
        let (path, _) = rsplit_once(rest, b" are going to be killed due to memory.oom.group set")?;
        return Some(Said::Group { path: path.to_vec() });
    }
    MESSAGES
        .iter()
        .find_map(|&(message, kind)| {
            let rest = text.strip_prefix(message)?.strip_prefix(b": ")?;
            after_message(rest, kind)
        })
        .or_else(|| is_header(text).then_some(Said::Header))
}

/// Whether the text is the first line of a report. The name before it is the invoker's, and short.
pub(super) fn is_header(text: &[u8]) -> bool {
    contains(text.get(..256).unwrap_or(text), b" invoked oom-killer: ")
}

/// What follows `MESSAGE: `.
fn after_message(rest: &[u8], kind: OomKind) -> Option<Said> {
    if let Some(rest) = rest.strip_prefix(b"Killed process ") {
        return killed(rest, Some(kind)).map(Said::Killed);
    }
    if rest.starts_with(b"OOM victim ") {
        return Some(Said::Spared);
    }
    let rest =
        rest.strip_prefix(b"Kill process ").or_else(|| rest.strip_prefix(b"kill process "))?;
    let (pid, rest) = leading_pid(rest)?;
    rest.starts_with(b" (").then_some(Said::Announced { kind, pid })
}

/// `P (C) sharing same memory`.
fn sharing(rest: &[u8]) -> Option<Said> {
    let (pid, rest) = leading_pid(rest)?;
    let (comm, _) = rsplit_once(rest.strip_prefix(b" (")?, b") sharing same memory")?;
    Some(Said::Sharing { pid, comm: comm.to_vec() })
}

/// What follows `Killed process `.
pub(super) fn killed(rest: &[u8], kind: Option<OomKind>) -> Option<KillLine> {
    let (pid, rest) = leading_pid(rest)?;
    let (uid, rest) = match rest.strip_prefix(b", UID ") {
        Some(rest) => {
            let (uid, rest) = leading_number(rest)?;
            (u32::try_from(uid).ok(), rest.strip_prefix(b", (")?)
        }
        None => (None, rest.strip_prefix(b" (")?),
    };
    let line = KillLine { kind, pid, comm: None, uid, sizes: Sizes::default(), shape: Shape::Cut };
    Some(match end_of_comm(rest) {
        Some(named) => {
            let (sizes, tail_uid) = tail(named.tail);
            KillLine {
                comm: Some(named.comm.to_vec()),
                uid: uid.or(named.uid).or(tail_uid),
                sizes,
                shape: Shape::Whole,
                ..line
            }
        }
        None => without_sizes(rest, line)?,
    })
}

/// The name, what el7 prints between it and the sizes, and the sizes.
struct Named<'a> {
    comm: &'a [u8],
    uid: Option<u32>,
    tail: &'a [u8],
}

/// The name ends at the last `) total-vm:` or `), UID N, total-vm:`, whichever is later: everything after it is printed
/// by the kernel, everything before it may be the name.
fn end_of_comm(rest: &[u8]) -> Option<Named<'_>> {
    let at = rfind(rest, b"total-vm:")?;
    let (before, tail) = rest.split_at_checked(at)?;
    if let Some(comm) = before.strip_suffix(b") ") {
        return Some(Named { comm, uid: None, tail });
    }
    let (comm, uid) = rsplit_once(before, b"), UID ")?;
    let (uid, end) = leading_number(uid)?;
    (end == b", ").then_some(Named { comm, uid: u32::try_from(uid).ok(), tail })
}

/// The values after the name, by key: unknown keys are skipped, a value that was cut is not taken.
fn tail(text: &[u8]) -> (Sizes, Option<u32>) {
    let mut sizes = Sizes::default();
    let mut uid = None;
    for token in text.split(|byte| matches!(byte, b' ' | b',' | b'\n' | b'"' | b'\'')) {
        let Some((key, value)) = split_once(token, b":") else { continue };
        match key {
            b"total-vm" => sizes.total_vm_kb = kilobytes(value),
            b"anon-rss" => sizes.anon_rss_kb = kilobytes(value),
            b"file-rss" => sizes.file_rss_kb = kilobytes(value),
            b"shmem-rss" => sizes.shmem_rss_kb = kilobytes(value),
            b"UID" => uid = leading_number(value).and_then(|(uid, _)| u32::try_from(uid).ok()),
            b"oom_score_adj" => sizes.oom_score_adj = adjustment(value),
            _ => {}
        }
    }
    (sizes, uid)
}

/// `NkB`.
fn kilobytes(value: &[u8]) -> Option<u64> {
    let (value, unit) = leading_number(value)?;
    unit.starts_with(b"kB").then_some(value)
}

/// A signed number between -1000 and 1000.
fn adjustment(value: &[u8]) -> Option<i32> {
    let (negative, digits) = match value.strip_prefix(b"-") {
        Some(digits) => (true, digits),
        None => (false, value),
    };
    let (size, _) = leading_number(digits)?;
    let size = i32::try_from(size).ok().filter(|&size| size <= 1000)?;
    Some(if negative { size.saturating_neg() } else { size })
}

/// A line without `total-vm:`: of an old kernel, or cut. Anything else after the name is somebody else's sentence.
fn without_sizes(rest: &[u8], line: KillLine) -> Option<KillLine> {
    let rest = rest.trim_ascii_end();
    if let Some(comm) = rest.strip_suffix(b").").or_else(|| rest.strip_suffix(b")")) {
        return Some(KillLine { comm: Some(comm.to_vec()), shape: Shape::Old, ..line });
    }
    match rsplit_once(rest, b")") {
        None => Some(line),
        Some((comm, after)) if cut_after_comm(after) => {
            Some(KillLine { comm: Some(comm.to_vec()), ..line })
        }
        Some(_) => None,
    }
}

/// Whether the text is the beginning of what a kernel prints after the name.
fn cut_after_comm(after: &[u8]) -> bool {
    if b" total-vm:".starts_with(after) || b", UID ".starts_with(after) {
        return true;
    }
    after
        .strip_prefix(b", UID ")
        .and_then(leading_number)
        .is_some_and(|(_, rest)| b", total-vm:".starts_with(rest))
}
