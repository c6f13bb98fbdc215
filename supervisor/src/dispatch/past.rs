//! Evidence that comes after the verdict: the run is judged again, openly.

use super::{
    Dispatcher, kernel,
    report::{merge, oom_page},
    turn::Turn,
};
use crate::{
    clock::Now,
    decide::{
        attribution::{LaneKill, class},
        exit::judge,
    },
    event::KernelRecord,
    ids::RunId,
    observe::Observation,
    store::rows::Write,
};

impl Dispatcher {
    /// A kill of a run that is judged already. Its row gets the evidence, and the verdict that follows from it; what it was
    /// before stays beside it. What the lane did upon the first verdict is not undone.
    pub(super) fn amend(
        &mut self,
        record: &KernelRecord,
        nonce: &RunId,
        kill: LaneKill,
        now: Now,
        turn: &mut Turn,
    ) {
        let Some(past) = self.books.past.iter_mut().find(|past| past.row.run == *nonce) else {
            return;
        };
        let (row, evidence) = (&mut past.row, &mut past.evidence);
        let id = row.lane.clone();
        let words = kernel::with_conflict(kill.proof.as_str(), kill.conflict.as_deref());
        kernel::put(record, Some((&id, nonce)), words, turn);
        turn.tell(oom_page(&id, nonce, Some(&record.kill), past.limit, class(record.kill.kind)));
        evidence.oom_kills_named.push(kill);
        let named = evidence.oom_kills_named.len();
        if past.tally.unnamed > 0 && past.tally.unexplained(named - 1) == Some(0) {
            // It was told, and counted, without its name before.
            past.tally.unnamed -= 1;
            self.books.ledger.take_back();
        } else {
            kernel::count(record, Some(&id), turn);
        }
        let judged = judge(&evidence.facts());
        let before = (row.verdict, row.end);
        if before != (judged.verdict, judged.end) {
            (row.verdict, row.end) = (judged.verdict, judged.end);
            row.reason = format!("{}; said {} before the evidence came", judged.reason, before.0);
            turn.observe(Observation::RunAmended {
                lane: id.clone(),
                run: nonce.clone(),
                before: before.0,
                verdict: judged.verdict,
                reason: judged.reason,
            });
        }
        merge(&mut row.evidence, evidence, &row.reason);
        turn.write(Write::RunEnded(Box::new(row.clone())));
        let Some(lane) = self.lanes.get_mut(&id) else { return };
        if let Some(last) = lane.last.as_mut().filter(|last| last.run == nonce.as_str()) {
            *last = crate::lane::last_view(row, now);
        }
    }
}
