//! `lanewarden demo`: the whole path in a temporary directory, for somebody without git server, ntfy, systemd or root.
//!
//! It starts the real warden on a real configuration: a bare repository as coordination remote, five lanes, and a page
//! sink that stands in for ntfy's server. One lane is only observed: the demo starts and kills its worker, as somebody at a
//! terminal would. What it prints is read back from the daemon's own interfaces.

mod by_hand;
mod place;
mod sink;
mod tour;
mod worker;

use super::{Failure, Outcome, runtime};
use crate::exit_code::FAILED;

pub(super) use worker::worker;

pub(super) fn demo(seconds: u64, keep: bool) -> Outcome {
    let place = place::Place::make(keep)
        .map_err(|error| Failure::new(FAILED, format!("making the demo's directory: {error}")))?;
    let result = runtime()?.block_on(tour::tour(&place, std::time::Duration::from_secs(seconds)));
    place.clean();
    result
}
