//! Measuring only: what the kernel says about processes, cgroups, memory and its own kills.
//!
//! Nothing here judges policy and nothing writes. The one injected place is [`Root`], which says where `/proc`,
//! `/sys/fs/cgroup` and `/dev/kmsg` are, so that every parser is tested on captured trees.
//!
//! | what is read | module |
//! |---|---|
//! | `/proc/PID/stat`, `/proc/PID/status`, namespaces, boot id | [`identity`] |
//! | evidence to verdict on one process | [`liveness`] |
//! | `/dev/kmsg` records | [`kmsg`] |
//! | the kernel log's grammar of OOM kills | [`oom`] |
//! | cgroup v2 and v1 files | [`cgroup`] |
//! | `/proc/pressure/*` | [`pressure`] |
//! | load, memory, disks | [`host`] |
//! | wait status and rusage | [`ending`] |
//!
//! May be used by every other member of the workspace; may use none.

#![forbid(unsafe_code)]

mod closed_set;

pub mod cgroup;
pub mod ending;
pub mod error;
pub mod host;
pub mod identity;
pub mod kmsg;
pub mod liveness;
pub mod oom;
pub mod pressure;
pub mod reading;
pub mod root;

pub use closed_set::UnknownMember;
pub use error::ProbeError;
pub use reading::{Absent, Reading};
pub use root::Root;

/// What [`closed_set!`] needs at its place of use.
#[doc(hidden)]
pub mod reexport {
    pub use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// `serde::de::Error::custom` under a name that the macro can reach.
    pub fn custom_error<E: serde::de::Error>(error: crate::UnknownMember) -> E {
        E::custom(error)
    }
}
