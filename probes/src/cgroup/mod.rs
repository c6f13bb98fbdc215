//! Control groups: where a process is in each hierarchy, and what the counters of a group say. Reading only.
//!
//! Boxes differ: plain v2; plain v1; v1 controllers beside a v2 tree that has none of them ("hybrid"). So every reader
//! takes a directory and tries the v2 name of a file first, then the v1 name; [`Absent::NotSupported`] means that
//! this group has neither, [`Absent::Gone`] that the group itself is no more. Counters die with their group: keep
//! [`instance`] beside a baseline.
//!
//! [`Absent::NotSupported`]: crate::Absent::NotSupported
//! [`Absent::Gone`]: crate::Absent::Gone

mod files;
mod hierarchies;

pub use files::{
    MemoryEvents, cpu_usage_usec, events_populated, instance, memory_current, memory_events,
    memory_events_local, memory_limit, memory_peak, oom_kill_count, pids_current, procs, threads,
};
pub use hierarchies::{Hierarchies, Unified, hierarchies};
