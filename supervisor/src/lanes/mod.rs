//! The lane lock: machine-local ownership of a lane directory by exact processes.
//!
//! It works with and without a daemon, and does not depend on a daemon's state directory: two daemons with different
//! configurations still meet here.

pub mod lock;
