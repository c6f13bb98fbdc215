//! The keeper: forks workers, is their parent and subreaper, and remembers how each ended.
//!
//! It has no policy, no network and no database, and little memory: kill -9, restart and upgrade of the warden touch no
//! worker and lose no exit status. It listens on one socket and speaks [`protocol`].

pub mod protocol;
