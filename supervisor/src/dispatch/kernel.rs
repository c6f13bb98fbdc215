//! The kernel log named an OOM victim: whose was it, and who must know?

use lanewarden_probes::oom::{OomKill, OomKind};

use super::{Dispatcher, report, turn::Turn};
use crate::{
    clock::Now,
    decide::attribution::{Candidate, LaneKill, owner},
    observe::Observation,
    store::rows::{KillRow, Write},
    verdict::SigkillEnd,
};

impl Dispatcher {
    pub(super) fn on_kernel_kill(
        &mut self,
        kill: &OomKill,
        seq: u64,
        read_at_ms: i64,
        now: Now,
        turn: &mut Turn,
    ) {
        let candidates: Vec<Candidate<'_>> = self
            .lanes
            .values()
            .filter_map(|lane| lane.run.as_ref())
            .map(|run| Candidate {
                run: &run.id,
                cgroup: run.started.as_ref().and_then(|started| started.cgroup.as_deref()),
                pid: run.started.as_ref().map(|started| started.pid),
            })
            .collect();
        let owner = owner(kill, &candidates).cloned();
        let lane = owner.as_ref().and_then(|run| self.lane_of(run));
        let class = match kill.kind {
            OomKind::Memcg => SigkillEnd::OomMemcg,
            OomKind::Global => SigkillEnd::OomGlobal,
            OomKind::Unknown => SigkillEnd::OomUnnamed,
        };
        turn.write(Write::OomKill(Box::new(KillRow {
            seq,
            at_ms: read_at_ms,
            lane: lane.clone(),
            run: owner.clone(),
            kill: serde_json::to_value(kill).unwrap_or_default(),
        })));
        let victim = report::victim(kill);
        turn.observe(Observation::OomKill { lane: lane.clone(), class, victim });
        let (Some(id), Some(nonce)) = (lane, owner) else { return };
        let Some(run) = self.lanes.get_mut(&id).and_then(|lane| lane.run.as_mut()) else { return };
        run.kills.push(LaneKill { kill: kill.clone(), read_at_ms });
        let limit = self.lanes.get(&id).and_then(|lane| lane.config.limits.memory_max);
        turn.tell(report::oom_page(&id, &nonce, Some(kill), limit, class));
        // The run may have ended already and have waited for just this.
        let waiting = self.lanes.get_mut(&id).and_then(|lane| lane.run.as_mut()?.ended.take());
        if let Some((ended, _)) = waiting {
            self.finish_kept(&id, &ended, now, turn);
        }
        self.finish_orphan(&id, now, turn);
    }
}
