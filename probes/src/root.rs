//! Where the kernel's files are: the one injected place of this crate.

use std::path::{Path, PathBuf};

/// The places of `/proc`, `/sys/fs/cgroup` and `/dev/kmsg`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Root {
    proc: PathBuf,
    cgroup: PathBuf,
    kmsg: PathBuf,
}

impl Root {
    /// The running system.
    #[must_use]
    pub fn live() -> Self {
        Self { proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into(), kmsg: "/dev/kmsg".into() }
    }

    /// A captured tree: `dir/proc`, `dir/cgroup`, `dir/kmsg`.
    #[must_use]
    pub fn at(dir: &Path) -> Self {
        Self { proc: dir.join("proc"), cgroup: dir.join("cgroup"), kmsg: dir.join("kmsg") }
    }

    /// The process table.
    #[must_use]
    pub fn proc(&self) -> &Path {
        &self.proc
    }

    /// The place where cgroup hierarchies are mounted.
    #[must_use]
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// The kernel log device.
    #[must_use]
    pub fn kmsg(&self) -> &Path {
        &self.kmsg
    }
}
