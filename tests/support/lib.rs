//! What end-to-end tests stand on: one file for each outside thing.
//!
//! | file | thing |
//! |---|---|
//! | [`daemon`] | a home of its own with the real binary in it |
//! | [`cgroup`] | what keepers left of theirs |
//! | [`command`] | commands, run to their end or left to go on |
//! | [`config`] | that home's configuration |
//! | [`git`] | a bare remote, and a git server over a real socket |
//! | [`ntfy`] | a page server that records and misbehaves on order |
//! | [`http`] | a client for what the daemon serves |
//! | [`proc`] | processes by identity |
//! | [`wait`] | waiting for a condition, bounded, with the last state |
//! | [`tmux`] | a real terminal multiplexer, typed into |
//! | [`scene`] | a lane root without a daemon, and questions about who holds it |
//! | [`requires`] | what a test needs of the host, by name |
//!
//! A test reads metrics, refs, pages and messages from outside, like anybody else.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::indexing_slicing,
    reason = "test code, which the lints know only inside of test functions: it starts processes, reads clocks and fails loudly"
)]

pub mod cgroup;
pub mod command;
pub mod config;
pub mod daemon;
pub mod git;
pub mod http;
pub mod ntfy;
pub mod proc;
pub mod requires;
pub mod scene;
pub mod tmux;
pub mod wait;

pub use command::Output;
pub use config::{Plan, quoted};
pub use daemon::{Home, Warden};
pub use wait::{until, until_within};

use std::path::PathBuf;

/// A measurement or remark for whoever reads the output of the tests.
pub fn note(text: &str) {
    eprintln!("{text}");
}

/// The fixture worker, built beside the tests.
#[must_use]
pub fn worker_program() -> PathBuf {
    beside("fixture-worker")
}

/// The fixture that brings about what only the kernel can, built beside the tests.
#[must_use]
pub fn situation_program() -> PathBuf {
    beside("fixture-situation")
}

/// The program under test, built beside the tests.
#[must_use]
pub fn program() -> PathBuf {
    beside("lanewarden-under-test")
}

/// Cargo builds a package's binaries before its tests, two directories up from the test binary.
fn beside(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let found = own.ancestors().skip(1).map(|dir| dir.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{name} is not built beside {}", own.display()))
}
