//! The kernel log's grammar of OOM kills.
//!
//! One grammar, two ways in. [`LiveParser`] takes records of the device and is strict: facility 0, and the record must
//! begin with a known message. [`read_log`] takes whatever an operator kept or pasted (raw records, dmesg, syslog, the
//! journal as text or JSON, mail quotes) and is lenient about the wrapping, never about the message.
//!
//! A kill is what the kernel says that it did: `Killed process`. What it announces (`Kill process`), who asked for
//! memory (`invoked oom-killer`), the table of candidates and the reaper's lines are no kills. Message forms of 2.6 to
//! 6.18 are understood by their shape, never by a version, because vendors backport.
//!
//! Names of processes and cgroups are hostile: they may hold anything, our own key words too. They are delimited by
//! what the kernel prints after them.

pub(crate) mod bytes;
mod collect;
mod constraint;
mod grammar;
mod join;
mod journal;
mod lines;
mod live;
mod locate;
mod log;
mod wrapper;

pub use live::LiveParser;
pub use log::{OomLogError, OomReport, read_log};

use serde::{Deserialize, Serialize};

crate::closed_set! {
    /// Which limit was hit.
    pub enum OomKind {
        /// The box, or a cpuset or memory policy of it, had no memory left.
        Global = "global",
        /// A memory cgroup reached its limit.
        Memcg = "memcg",
        /// The log does not say.
        Unknown = "unknown",
    }
}

/// One process that the kernel's OOM killer killed. What the log does not say is `None`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "keys of the JSON contract, each on its own")]
pub struct OomKill {
    /// The pid of the kill line, else that of the constraint line; in the initial pid namespace. It is the id of another
    /// thread when the leader had exited before: see `tgid`.
    pub pid: u32,
    /// The victim's name; bytes that are not UTF-8 as `\xNN`. Control characters are in it as they are: escape on output.
    pub comm: Option<String>,
    /// The victim's uid in the initial user namespace.
    pub uid: Option<u32>,
    /// `CONSTRAINT_NONE`, `CONSTRAINT_MEMCG` and so on, as the kernel spells it.
    pub constraint: Option<String>,
    /// The cgroup whose limit was hit.
    pub memcg: Option<String>,
    /// The cgroup in which the victim lived. This one names the lane. Never a path that may have been cut.
    pub task_memcg: Option<String>,
    /// Address space in kB (of 1024 bytes).
    pub total_vm_kb: Option<u64>,
    /// Resident anonymous memory in kB.
    pub anon_rss_kb: Option<u64>,
    /// Resident file pages in kB.
    pub file_rss_kb: Option<u64>,
    /// Resident shared memory in kB; printed since 4.5.
    pub shmem_rss_kb: Option<u64>,
    /// The victim's adjustment, -1000 to 1000; printed since 5.4.
    pub oom_score_adj: Option<i32>,
    /// Which limit was hit.
    pub kind: OomKind,
    /// The process, where `pid` is only a thread of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tgid: Option<u32>,
    /// The name of the thread-group leader, where `tgid` is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tgid_comm: Option<String>,
    /// Killed because it shared the memory of the victim (kernels to about 4.5 say so; later ones are silent).
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_mm: bool,
    /// Killed together with its whole cgroup (`memory.oom.group`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub group: bool,
    /// The kill line was cut; the values after the cut are `None`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub truncated: bool,
    /// Only the constraint line was seen, not the kill line.
    #[serde(default, skip_serializing_if = "is_false")]
    pub constraint_only: bool,
    /// Sequence number of the kill record, where the source has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
}

impl OomKill {
    /// A kill of which only the pid is known.
    fn of(pid: u32) -> Self {
        Self {
            pid,
            comm: None,
            uid: None,
            constraint: None,
            memcg: None,
            task_memcg: None,
            total_vm_kb: None,
            anon_rss_kb: None,
            file_rss_kb: None,
            shmem_rss_kb: None,
            oom_score_adj: None,
            kind: OomKind::Unknown,
            tgid: None,
            tgid_comm: None,
            shared_mm: false,
            group: false,
            truncated: false,
            constraint_only: false,
            seq: None,
        }
    }
}

/// For keys that stand in the JSON only where they matter.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

#[cfg(test)]
mod tests;
