//! What is counted, and the page that shows it. Every series that leaves this program is a member of [`MetricName`].
//!
//! Counters are plain numbers under one lock that is held for an addition and never over an await; gauges are built for
//! each page from the newest [`BoxView`]. Knows nothing of HTTP: that is [`crate::web`].

mod counters;
mod names;
mod process;
mod render;
mod restored;
#[cfg(test)]
mod tests;

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use lanewarden_notify::Level;
use lanewarden_probes::Root;

use self::{
    counters::{AdoptionResult, Counts, Source},
    process::OwnProcess,
    render::{KILL, LaneName, Picture, TERM},
};
pub use self::{
    names::{Description, Kind, MetricName, catalogue},
    restored::Restored,
};
use crate::{
    clock::Now,
    config::Mode,
    ids::LaneId,
    keeper::protocol::StopSignal,
    observe::Observation,
    verdict::{RunVerdict, SigkillEnd},
    view::BoxView,
};

/// Everything that is counted. Shared by the loop, the courier, the claims task and the web server.
#[derive(Debug)]
pub struct Metrics {
    version: String,
    /// The lanes of the configuration, for pages before the first picture.
    lanes: Vec<(LaneId, Mode)>,
    started_at: Option<f64>,
    tally: Mutex<Tally>,
}

#[derive(Debug, Clone, Default)]
struct Tally {
    counts: Counts,
    last_turn_ms: i64,
}

impl Metrics {
    /// Nothing counted yet, for these lanes.
    #[must_use]
    pub fn new(version: &str, lanes: &[(LaneId, Mode)]) -> Self {
        let own = OwnProcess::read(&Root::live());
        Self {
            version: version.to_owned(),
            lanes: lanes.to_vec(),
            started_at: own.map(|own| own.started_at(Now::read())),
            tally: Mutex::default(),
        }
    }

    /// Goes on from what earlier daemons counted: a restart must not hide a kill from an alert. Call it once, before
    /// anything is observed.
    pub fn restore(&self, restored: Restored) {
        let mut tally = self.lock();
        for (lane, kind, count) in restored.oom_kills {
            tally.oom_kills(lane.as_ref(), kind, count);
        }
        for (lane, verdict, count) in restored.runs_finished {
            tally.counts.add(MetricName::RunsFinished, lane.as_str(), verdict.as_str(), count);
        }
        for (lane, end, count) in restored.sigkill_ends {
            tally.counts.add(MetricName::SigkillEnds, lane.as_str(), end.as_str(), count);
        }
        for (lane, count) in restored.breaker_trips {
            tally.counts.add(MetricName::BreakerTrips, lane.as_str(), "", count);
        }
    }

    /// Counts what happened.
    pub fn observe(&self, observation: &Observation) {
        self.lock().observe(observation);
    }

    /// Policy asked for a notice.
    pub fn notice_raised(&self, level: Level) {
        self.add(MetricName::NoticesRaised, level.as_str());
    }

    /// A publish request was sent.
    pub fn notice_attempted(&self) {
        self.add(MetricName::NotifyRequests, "");
    }

    /// A record could not be written to the store in time.
    pub fn store_failed(&self) {
        self.add(MetricName::StoreErrors, "");
    }

    /// The loop finished a turn that took this long.
    pub fn loop_turn(&self, took: Duration) {
        let now = crate::clock::unix_ms();
        let mut tally = self.lock();
        tally.last_turn_ms = now;
        tally.counts.observe(MetricName::LoopIterationDuration, took.as_secs_f64());
    }

    /// The page in Prometheus' text format 0.0.4. Shows the lanes of `view`; before the first picture, the configured ones.
    ///
    /// # Errors
    /// What the encoder says; no input is known to make it fail.
    pub fn page(&self, view: &BoxView) -> Result<String, prometheus::Error> {
        // Copied, so that the loop never waits for a page to be written.
        let tally = self.lock().clone();
        let lanes = if view.taken_at_ms == 0 {
            self.lanes
                .iter()
                .map(|(id, mode)| LaneName { id: id.as_str(), mode: mode.as_str() })
                .collect()
        } else {
            view.lanes.iter().map(|lane| LaneName { id: &lane.id, mode: &lane.mode }).collect()
        };
        render::text(&Picture {
            version: &self.version,
            lanes,
            view,
            counts: &tally.counts,
            last_turn_ms: tally.last_turn_ms,
            own: OwnProcess::read(&Root::live()),
            started_at: self.started_at,
        })
    }

    fn add(&self, name: MetricName, member: &'static str) {
        self.lock().counts.add(name, "", member, 1);
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        // Numbers are never half written: an addition that panicked left the others whole.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn secs(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn wide(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

impl Tally {
    fn oom_kills(&mut self, lane: Option<&LaneId>, kind: SigkillEnd, count: u64) {
        match lane {
            Some(lane) => {
                self.counts.add(MetricName::OomKills, lane.as_str(), kind.as_str(), count)
            }
            None => self.counts.add(MetricName::OomKillsUnattributed, "", "", count),
        }
    }

    fn observe(&mut self, observation: &Observation) {
        use MetricName as M;
        let counts = &mut self.counts;
        match observation {
            Observation::Adopted { living, ended, lost } => {
                for (result, count) in [
                    (AdoptionResult::Adopted, living),
                    (AdoptionResult::EndedWhileAway, ended),
                    (AdoptionResult::Lost, lost),
                ] {
                    counts.add(M::Adoptions, "", result.as_str(), wide(*count));
                }
            }
            Observation::RunStarted { lane, .. } => {
                counts.add(M::RunsStarted, lane.as_str(), "", 1)
            }
            Observation::RunEnded { lane, verdict, end, lived_ms, judged_after_ms, .. } => {
                self.run_ended(lane, *verdict, *end, *lived_ms, *judged_after_ms);
            }
            Observation::OomKill { lane, class, .. } => {
                self.oom_kills(lane.as_ref(), *class, 1);
            }
            Observation::KernelLogLost(count) => {
                counts.add(M::SourceLostRecords, "", Source::Kmsg.as_str(), *count);
            }
            Observation::BreakerTripped { lane, .. } => {
                counts.add(M::BreakerTrips, lane.as_str(), "", 1);
            }
            Observation::StartRefused { check, .. } => {
                counts.add(M::AdmissionRefusals, "", check.as_str(), 1);
            }
            Observation::Signalled { lane, how } => {
                let signal = match how {
                    StopSignal::Term => TERM,
                    StopSignal::Kill => KILL,
                };
                counts.add(M::StopSignals, lane.as_str(), signal, 1);
            }
            Observation::ClaimsPushed { took_ms, .. } => {
                counts.add(M::ClaimPushes, "", "", 1);
                counts.observe(M::ClaimPushDuration, secs(*took_ms));
            }
            Observation::ClaimsFailed { class, .. } => {
                counts.add(M::ClaimPushes, "", "", 1);
                counts.add(M::ClaimPushFailures, "", class.as_str(), 1);
            }
            Observation::NoticeDelivered { after_ms } => {
                counts.add(M::NoticesDelivered, "", "", 1);
                counts.observe(M::NotifyDelivery, secs(*after_ms));
            }
            Observation::NoticeDelayed { .. } => counts.add(M::NotifyRequestFailures, "", "", 1),
            Observation::NoticeDropped { .. } => {
                counts.add(M::NotifyRequestFailures, "", "", 1);
                counts.add(M::NoticesDropped, "", "", 1);
            }
            // Gauges of the picture, or counted where it happens: `store_failed` counts every failure, this tells the first.
            Observation::LaneMoved { .. }
            | Observation::StoreFailed { .. }
            | Observation::StoreRecovered
            | Observation::KeeperLost
            | Observation::KeeperBack
            | Observation::KernelLogState(_)
            | Observation::KillUnplaced { .. }
            | Observation::RunAmended { .. }
            | Observation::Intruder { .. }
            | Observation::Stranger { .. } => {}
        }
    }

    fn run_ended(
        &mut self,
        lane: &LaneId,
        verdict: RunVerdict,
        end: Option<SigkillEnd>,
        lived_ms: u64,
        judged_after_ms: u64,
    ) {
        self.counts.add(MetricName::RunsFinished, lane.as_str(), verdict.as_str(), 1);
        self.counts.observe(MetricName::RunDuration, secs(lived_ms));
        self.counts.observe(MetricName::RunExitDetection, secs(judged_after_ms));
        let Some(end) = end else { return };
        self.counts.add(MetricName::SigkillEnds, lane.as_str(), end.as_str(), 1);
        if has_no_record(end) {
            self.oom_kills(Some(lane), end, 1);
        }
    }
}

/// Whether a worker's end of this class is an OOM kill that is not told as one by itself.
const fn has_no_record(end: SigkillEnd) -> bool {
    match end {
        SigkillEnd::OomUserspace | SigkillEnd::CoVictim => true,
        SigkillEnd::OomUnnamed
        | SigkillEnd::OomMemcg
        | SigkillEnd::OomGlobal
        | SigkillEnd::KilledByUs
        | SigkillEnd::Unexplained => false,
    }
}
