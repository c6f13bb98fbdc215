//! Which process exactly: boot, pid and start ticks, and the namespaces in which these numbers mean anything.
//!
//! A pid alone names nothing for long. Boot id, pid and start ticks (field 22 of `/proc/PID/stat`) name one process
//! in practice; the inode of its pidfd on pidfs (Linux 6.9 and later) names it by construction. Wall clocks, command
//! names and command lines are never part of an identity. What follows from an identity is for [`crate::liveness`].

mod boot_id;
mod process;
mod resolve;
mod stat;
mod token;
mod whereabouts;

pub use boot_id::{BootId, BootIdError, boot_id};
pub use process::{
    children, cmdline, comm, cwd, environ, exe, own_pid, pid_namespace, pids, stat, tgid,
    time_namespace,
};
pub use resolve::{PidfdOutcome, ResolveError, Resolved, open_pidfd, resolve};
pub use stat::{PF_KTHREAD, ProcStat, StatError, parse_stat};
pub use token::{Identity, Token, TokenError};
pub use whereabouts::{Occupancy, Occupant, occupants, outermost_ancestor_inside};
