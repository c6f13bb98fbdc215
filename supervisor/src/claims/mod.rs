//! Claims: git refs on the coordination remote that prove to the fleet that a lane is alive.
//!
//! | what | file |
//! |---|---|
//! | the words of a claim's message | [`record`] |
//! | a ref's name and message together | [`rows`] |
//! | the `git` program, bounded | [`git`], [`environment`], [`failure`] |
//! | commits that carry a message | [`objects`] |
//! | reading a namespace in one connection | [`mod@snapshot`] |
//! | writing refs under lease | [`mod@push`] |
//! | the record of an issue lock | [`issue`] |
//! | a look at a few refs | [`lookup`] |
//!
//! Nothing here decides whether a lane is dead: this room reads and writes, `decide` judges.

pub(crate) mod child;
pub mod environment;
pub mod failure;
pub mod git;
pub mod issue;
pub mod lookup;
pub mod objects;
pub mod push;
pub mod record;
pub mod rows;
pub mod snapshot;

#[cfg(test)]
mod testing;

pub use failure::{FailureClass, GitError, GitErrorKind, has_password, redact_url};
pub use git::{Git, GitOptions, GitOutput, HttpsToken};
pub use issue::{IssueClaim, ParsedIssue, ProcessPart};
pub use lookup::{listing, read_one};
pub use objects::Scratch;
pub use push::{PushOutcome, RefUpdate, UpdateResult, push};
pub use record::{LaneClaim, ParsedClaim, is_lane_component, lane_ref, sanitise};
pub use rows::{ClaimRow, Namespace};
pub use snapshot::{RemoteRef, Unreadable, snapshot};
