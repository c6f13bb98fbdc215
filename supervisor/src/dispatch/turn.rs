//! What one turn gathers, and the fixed order in which it is given out.

use crate::{
    effect::{Answer, ClaimWish, ControlId, Effect, Telling},
    keeper::protocol::Started,
    observe::Observation,
    store::rows::Write,
};

/// Effects in the making.
#[derive(Debug, Default)]
pub(super) struct Turn {
    writes: Vec<Write>,
    notices: Vec<Telling>,
    claims: Vec<ClaimWish>,
    rest: Vec<Effect>,
    pass: Option<u64>,
}

impl Turn {
    pub(super) fn write(&mut self, write: Write) {
        // Only the newest state of a lane counts.
        if let Write::Lane(row) = &write {
            self.writes.retain(|old| !matches!(old, Write::Lane(old) if old.lane == row.lane));
        }
        self.writes.push(write);
    }

    pub(super) fn tell(&mut self, telling: Telling) {
        self.notices.push(telling);
    }

    pub(super) fn claim(&mut self, wish: ClaimWish) {
        self.claims.retain(|old| old.lane != wish.lane);
        self.claims.push(wish);
    }

    pub(super) fn observe(&mut self, observation: Observation) {
        self.rest.push(Effect::Observe(observation));
    }

    pub(super) fn then(&mut self, effect: Effect) {
        self.rest.push(effect);
    }

    pub(super) fn wake_to_sample(&mut self, at: Option<u64>) {
        self.pass = at;
    }

    pub(super) fn done(&mut self, client: ControlId, sentence: String) {
        self.rest.push(Effect::Reply(client, Answer::Done(sentence)));
    }

    pub(super) fn refuse(&mut self, client: ControlId, sentence: String) {
        self.rest.push(Effect::Reply(client, Answer::Refused(sentence)));
    }

    pub(super) fn stranger(&mut self, started: &Started) {
        self.observe(Observation::Stranger {
            detail: format!(
                "run {} of lane {} (pid {}) was started by us, and no configured lane waits for it; it is left alone",
                started.run, started.lane, started.pid
            ),
        });
    }

    /// The effects in their fixed order; `wake` is the next moment at which something is due.
    pub(super) fn effects(self, wake: Option<u64>) -> Vec<Effect> {
        let mut effects = self.rest;
        if !self.notices.is_empty() {
            effects.push(Effect::Notify);
        }
        if !self.claims.is_empty() {
            effects.push(Effect::Claim(self.claims));
        }
        if !self.writes.is_empty() || !self.notices.is_empty() {
            effects.push(Effect::Record { writes: self.writes, notices: self.notices });
        }
        effects.extend(wake.map(Effect::Wake));
        effects.extend(self.pass.map(Effect::WakeToSample));
        effects.sort_by_key(Effect::rank);
        effects
    }
}
