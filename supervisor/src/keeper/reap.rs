//! The dead: workers and strangers alike.
//!
//! A subreaper gets orphans that nobody else will reap. Each dead child is looked at first and reaped by its pid then,
//! so that no status is taken from under whoever owns it.

use lanewarden_probes::ending::Usage;

use super::{clock, spawn};

/// A child that was reaped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dead {
    pub(super) pid: u32,
    /// As wait(2) gives it.
    pub(super) wait_status: i32,
    pub(super) usage: Usage,
    /// When we learnt of it, milliseconds since the epoch.
    pub(super) at_ms: i64,
}

/// What a look at our children brought.
#[derive(Debug, Default)]
pub(super) struct Harvest {
    pub(super) dead: Vec<Dead>,
    /// Whether no child at all is left.
    pub(super) childless: bool,
}

/// The most that are reaped in one turn: a fork bomb's dead must not keep us from our peers.
const TURN: usize = 1024;

/// Reaps every child that is dead.
pub(super) fn harvest() -> Harvest {
    let mut harvest = Harvest::default();
    while harvest.dead.len() < TURN {
        let pid = match spawn::look_for_dead() {
            Ok(Some(pid)) => pid,
            Ok(None) => break,
            Err(error) => {
                harvest.childless =
                    error.raw_os_error() == Some(rustix::io::Errno::CHILD.raw_os_error());
                break;
            }
        };
        match spawn::reap(pid) {
            Ok((wait_status, usage)) => {
                harvest.dead.push(Dead { pid, wait_status, usage, at_ms: clock::epoch_ms() });
            }
            Err(error) => {
                tracing::warn!(pid, %error, "a dead child cannot be reaped");
                break;
            }
        }
    }
    harvest
}
