//! When box and runs are measured, and what follows from the figures.

use std::time::Duration;

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    effect::{Effect, Post},
    event::Sampling,
};

/// How often box and runs are measured.
pub(super) const EVERY: Duration = Duration::from_secs(5);

impl Dispatcher {
    /// Asks for a pass over box and runs, if one is due.
    pub(super) fn sample(&mut self, now: Now, turn: &mut Turn) {
        if !self.began || self.next_sample > now.boot_ms {
            return;
        }
        self.next_sample = now.after(EVERY);
        let posts = self
            .lanes
            .values()
            .filter(|lane| lane.has_worker())
            .filter_map(|lane| lane.run.as_ref()?.started.as_ref())
            .map(Post::from)
            .collect();
        turn.then(Effect::Sample(posts));
    }

    pub(super) fn on_sampled(&mut self, _sampling: &Sampling, _now: Now, _turn: &mut Turn) {}
}
