//! The keeper: forks workers, is their parent and subreaper, and remembers how each ended.
//!
//! It has no policy, no network and no database, and little memory: kill -9, restart and upgrade of the warden touch no
//! worker and lose no exit status. It listens on one socket and speaks [`protocol`].
//!
//! | idea | file |
//! |---|---|
//! | the poll loop | `server` |
//! | one peer: lines in, lines out, both bounded | `conn` |
//! | runtime directory, lock, socket | `home` |
//! | the table of runs, and what is done with it | `runs` |
//! | from an order to a running worker | `start`, with `prepare` for its files and `account` for its user |
//! | fork, exec and wait, with all the unsafe code | `spawn` |
//! | where cgroups can be made | `cgroup`, with `hierarchy` for finding them |
//! | one run's cgroup | `group` |
//! | who belongs to a run | `tree`, which reads `/proc` through `process` |
//! | the dead | `reap` |

mod account;
mod cgroup;
mod clock;
mod conn;
mod group;
mod hierarchy;
mod home;
mod prepare;
mod process;
pub mod protocol;
mod reap;
mod runs;
mod server;
mod spawn;
mod start;
mod tree;

use std::{io, path::PathBuf};

pub use server::run;

/// What a keeper needs to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperOptions {
    /// Holds `keeper.sock` and `keeper.lock`. Created if it is missing: mode 0700, or 0711 if a peer is another user.
    pub runtime_dir: PathBuf,
    /// Users that may connect (checked by `SO_PEERCRED`).
    pub peers: Vec<u32>,
    /// Users as whom workers may run. Uid 0 in this list does not count: see `allow_root`.
    pub allow_users: Vec<u32>,
    /// Whether workers may run as uid 0.
    pub allow_root: bool,
    /// Lane groups are made below this cgroup, counted from the hierarchy's root, rather than below the keeper's own.
    pub cgroup_base: Option<String>,
}

/// Why a keeper cannot run.
#[derive(Debug, thiserror::Error)]
pub enum KeeperError {
    /// Another keeper holds the lock of this runtime directory.
    #[error("another keeper serves {}: stop it, or choose another runtime directory", runtime_dir.display())]
    AlreadyRunning {
        /// The directory.
        runtime_dir: PathBuf,
    },
    /// The runtime directory cannot be made or is not fit.
    #[error("prepare the runtime directory {}: make it a directory of this user that others cannot write", path.display())]
    RuntimeDir {
        /// The directory.
        path: PathBuf,
        /// What the kernel or the check said.
        source: io::Error,
    },
    /// The lock file cannot be opened or locked.
    #[error("lock {}", path.display())]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The socket cannot be bound.
    #[error("listen on {}: its name must have fewer than 108 bytes", path.display())]
    Listen {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process cannot become what a keeper must be.
    #[error("{what}")]
    Process {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}
