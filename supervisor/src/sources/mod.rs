//! The read side of the world: each file turns one outside thing into events.

#![expect(
    clippy::disallowed_methods,
    reason = "the edge: this is where processes and clocks are read"
)]

pub mod address_space;
pub mod adoption;
pub mod control;
mod exit_info;
pub mod keeper;
pub mod kernel_log;
pub mod marker;
pub mod pidfd;
pub mod signals;

use tokio::sync::mpsc;

use crate::event::Event;

/// Where sources put what they see. Bounded: a source waits when the loop is behind.
pub type Events = mpsc::Sender<Event>;

/// The most events that wait for the loop.
pub const QUEUE: usize = 1024;
