//! Lanewarden: the per-box supervisor of lanes in which coding agents work.
//!
//! # The flow
//!
//! ```text
//!   the world ──► sources ──► Event ──► dispatch ──► Vec<Effect> ──► effects ──► the world
//!                                          │                            │
//!                                          ▼ asks                       ▼ answers with Events
//!                                    decide (pure)                  (spawned, stamped, recorded)
//! ```
//!
//! | room | job | may use |
//! |---|---|---|
//! | [`cli`], [`commands`] | what is typed, what is printed | everything |
//! | [`run`] | the loop | sources, effects, dispatch |
//! | [`sources`] | the read side: keeper, signals, control socket, kernel log, pidfds | event |
//! | [`effects`] | the write side: store, claims, notices, lanes, keeper orders | effect, event |
//! | [`dispatch`], [`lane`] | the flow, one event at a time | decide, effect, event |
//! | [`decide`] | pure judgement, one question a file | verdict, ids |
//! | [`event`], [`effect`], [`verdict`], [`ids`] | the vocabulary | - |
//!
//! Beside them: [`claims`] (git refs), [`forge`] (open pull requests), [`lanes`] (the lane lock), [`store`] (SQLite),
//! [`metrics`] and [`web`], [`config`], and [`keeper`], a process of its own that imports nothing of policy.
//!
//! Start reading at [`event`], then [`dispatch`], one file of [`decide`], [`effect`], one file of [`effects`].

pub mod claims;
pub mod cli;
pub mod clock;
pub mod commands;
pub mod config;
pub mod decide;
pub mod dispatch;
pub mod effect;
pub mod effects;
pub mod event;
pub mod exit_code;
pub mod forge;
pub mod ids;
pub mod keeper;
pub mod lane;
pub mod lanes;
pub mod metrics;
pub mod observe;
pub mod output;
pub mod run;
pub mod sources;
pub mod store;
pub mod text;
pub mod verdict;
pub mod view;
pub mod web;

use std::{path::PathBuf, process::ExitCode};

/// The program: parses the command line, runs the command, gives its exit code.
#[must_use]
pub fn main_impl() -> ExitCode {
    match cli::parse() {
        Ok(cli) => commands::dispatch(cli),
        Err(code) => exit_code::exit(code),
    }
}

/// This very program, to be started again as keeper or as a command of the demo.
///
/// # Errors
/// The system's, if /proc does not tell.
pub fn own_program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}
