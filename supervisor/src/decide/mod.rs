//! Pure functions, one question each. They take values and give back a member of a closed set with the reason.
//!
//! Nothing here reads a clock, a file, a process or the network, and nothing here awaits or logs: a test of the
//! workspace reads these files and holds that.

pub mod admission;
pub mod attribution;
pub mod claim;
pub mod evidence;
pub mod exit;
pub mod issue;
pub mod ledger;
pub mod marker;
pub mod reap;
pub mod restart;
pub mod roster;
pub mod shutdown;
