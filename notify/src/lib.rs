//! What people are told about lanes, and how it reaches them.
//!
//! Nothing here knows a lane's policy and nothing here reads a clock: times come in as Unix milliseconds, random
//! numbers come in as numbers, and the database connection is handed in. The one thing that touches the network is
//! [`courier`]. Nothing logs above debug.
//!
//! | what | module |
//! |---|---|
//! | the closed set of things that are said, and how loudly | [`notice`] |
//! | notice to title and text, within the server's limits (pure) | [`mod@render`] |
//! | hostile text made harmless, cut on a character boundary (pure) | [`text`] |
//! | what repeats within a window (pure) | [`quiet`] |
//! | the queue on disk: schema and queries | [`spool`] |
//! | what an answer means and when to try again (pure) | [`delivery`] |
//! | the access token | [`credential`] |
//! | one POST to an ntfy server | [`courier`] |
//!
//! A notice's life: [`render::render`], then [`spool::enqueue`] in the transaction of the record that causes it,
//! [`spool::due`], [`spool::record_attempt`], [`courier::Courier::publish`], and by its answer [`spool::delivered`],
//! [`spool::retry`] or [`spool::dead_letter`].
//!
//! May be used by every other member of the workspace; may use none.

#![forbid(unsafe_code)]

mod closed_set;

pub mod courier;
pub mod credential;
pub mod delivery;
pub mod notice;
pub mod quiet;
pub mod render;
pub mod spool;
pub mod text;

pub use closed_set::UnknownMember;
pub use courier::{Courier, CourierError, Target};
pub use credential::{Credential, CredentialError};
pub use delivery::{Delivery, Reason, classify, next_attempt};
pub use notice::{KINDS, Kind, Level, Notice};
pub use render::{Context, Message, render};
