//! A second writer in a running lane: found by walking the lanes, shown at once, paged once when it stays.

use std::time::Duration;

use lanewarden_notify::Notice;

use super::{Dispatcher, turn::Turn};
use crate::{
    clock::Now,
    config::Mode,
    effect::{Effect, Post, Telling},
    event::Intruder,
    lane::Stranger,
    observe::Observation,
};

/// How often running lanes are walked. Somebody who is there on two walks is not just passing by.
pub(super) const EVERY: Duration = Duration::from_secs(10);

impl Dispatcher {
    /// Asks for a walk, if one is due and a worker runs.
    pub(super) fn patrol(&mut self, now: Now, turn: &mut Turn) {
        if !self.began || self.next_patrol.is_none_or(|at| at > now.boot_ms) {
            return;
        }
        let posts: Vec<Post> = self
            .lanes
            .values()
            .filter(|lane| lane.config.mode == Mode::Manage && lane.has_worker())
            .filter_map(|lane| lane.run.as_ref()?.started.as_ref())
            .map(Post::from)
            .collect();
        self.next_patrol = if posts.is_empty() { Some(now.after(EVERY)) } else { None };
        if !posts.is_empty() {
            turn.then(Effect::Patrol(posts));
        }
    }

    pub(super) fn on_patrolled(
        &mut self,
        posts: &[Post],
        intruders: Vec<Intruder>,
        now: Now,
        turn: &mut Turn,
    ) {
        self.next_patrol = Some(now.after(EVERY));
        for post in posts {
            let Some(lane) = self.lanes.get_mut(&post.lane) else { continue };
            let before = std::mem::take(&mut lane.strangers);
            // Another run by now: what was seen beside the old one proves nothing.
            if lane.run.as_ref().is_none_or(|run| run.id != post.run) {
                continue;
            }
            for intruder in intruders.iter().filter(|one| one.lane == post.lane) {
                let known = before
                    .iter()
                    .find(|one| (one.pid, one.start_ticks) == (intruder.pid, intruder.start_ticks));
                let since_ms = known.map_or(now.unix_ms, |known| known.since_ms);
                if known.is_none() {
                    turn.observe(Observation::Intruder {
                        lane: post.lane.clone(),
                        pid: intruder.pid,
                        command: intruder.command.clone(),
                    });
                } else {
                    // The spool knows the event by its identity: it is told once, however long it lasts.
                    let again = known.is_some_and(|known| known.told);
                    if !again {
                        turn.tell(Telling {
                            id: format!("intruder-{}-{}", intruder.pid, intruder.start_ticks),
                            notice: Notice::Intruder {
                                lane: post.lane.to_string(),
                                pid: intruder.pid,
                                command: intruder.command.clone(),
                                worker: post.pid,
                            },
                        });
                    }
                }
                lane.strangers.push(Stranger {
                    pid: intruder.pid,
                    start_ticks: intruder.start_ticks,
                    command: intruder.command.clone(),
                    since_ms,
                    told: known.is_some(),
                });
            }
        }
    }
}
