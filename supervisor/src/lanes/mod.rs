//! The lane lock: machine-local ownership of a lane directory by exact processes.
//!
//! It works with and without a daemon, and does not depend on a daemon's state directory: two daemons with different
//! configurations, sessions that take a lane by hand, and the shell tools that came before all meet here.
//!
//! | file | job |
//! |---|---|
//! | [`lock`] | the daemon's side: take, name the worker, release |
//! | [`desk`] | the sessions' side: acquire, verify, probe, release, reclaim, status |
//! | [`answer`] | the closed set of verdicts, and their one line |
//! | [`session`] | which process asks |
//! | [`standing`] | whether a holder still stands |
//! | [`rows`] | what the store says, and how it is changed |
//! | [`place`] | the store's file: made, opened, migrated; every wait bounded |
//! | [`predecessor`] | records and locks of the shell tools that came before |
//! | [`mirror`] | our locks as those tools read them, where they are still at work |
//! | [`names`] | canonical directories, sanitised words, reasons |

pub mod answer;
pub mod desk;
pub mod lock;
pub mod mirror;
pub mod names;
pub mod place;
pub mod predecessor;
pub mod rows;
pub mod session;
pub mod standing;
pub mod waits;
