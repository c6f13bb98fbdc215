//! One moment as a page: every family of the catalogue, in its order, from the newest picture and the counts.
//!
//! Nothing is set and left: a lane that is not in the picture is not on the page.

use lanewarden_notify::Level;
use lanewarden_probes::Root;
use prometheus::{
    Encoder, TextEncoder,
    proto::{Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType},
};

use super::{
    counters::{AdoptionResult, Counts, Source},
    names::{Kind, MetricName},
    process::{OwnProcess, float, max_fds, open_fds, seconds},
};
use crate::{
    claims::GitErrorKind,
    config::Mode,
    verdict::{AdmissionCheck, LaneState, RunVerdict, SigkillEnd},
    view::{BoxView, LaneView},
};

/// The spellings of the signals that end workers, as the keeper's protocol has them.
pub(super) const TERM: &str = "term";
/// See [`TERM`].
pub(super) const KILL: &str = "kill";

/// A lane of the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaneName<'a> {
    /// Its id.
    pub(super) id: &'a str,
    /// Who starts its worker.
    pub(super) mode: &'a str,
}

/// Everything that a page is made of.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    /// The daemon's version.
    pub(super) version: &'a str,
    /// The lanes that have counters.
    pub(super) lanes: Vec<LaneName<'a>>,
    /// The newest picture.
    pub(super) view: &'a BoxView,
    /// What was counted until now.
    pub(super) counts: &'a Counts,
    /// When the loop last finished a turn, milliseconds since the epoch.
    pub(super) last_turn_ms: i64,
    /// Our own process; `None` if it could not be read.
    pub(super) own: Option<OwnProcess>,
    /// When it started, seconds since the epoch.
    pub(super) started_at: Option<f64>,
}

/// The page in text format 0.0.4.
pub(super) fn text(picture: &Picture<'_>) -> Result<String, prometheus::Error> {
    let families: Vec<MetricFamily> =
        MetricName::ALL.iter().filter_map(|name| picture.family(*name)).collect();
    let mut page = Vec::with_capacity(families.len() * 256);
    TextEncoder::new().encode(&families, &mut page)?;
    String::from_utf8(page).map_err(|error| prometheus::Error::Msg(error.to_string()))
}

fn flag(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

/// A moment for an alert to read: 0 where there is none.
fn moment(unix_ms: Option<i64>) -> f64 {
    unix_ms.map_or(0.0, seconds)
}

impl Picture<'_> {
    /// A family with its samples; `None` while it has none.
    fn family(&self, name: MetricName) -> Option<MetricFamily> {
        let samples = self.samples(name);
        if samples.is_empty() {
            return None;
        }
        let description = name.describe();
        let mut family = MetricFamily::default();
        family.set_name(description.name.to_owned());
        family.set_help(description.help.to_owned());
        family.set_field_type(match description.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge | Kind::Info | Kind::StateSet => MetricType::GAUGE,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        family.set_metric(samples);
        Some(family)
    }

    fn samples(&self, name: MetricName) -> Vec<Metric> {
        use MetricName as M;
        let (view, one) = (self.view, |value| vec![sample(name, &[], value)]);
        let maybe = |value: Option<f64>| value.map(one).unwrap_or_default();
        let own = |get: fn(OwnProcess) -> f64| maybe(self.own.map(get));
        let root = Root::live();
        match name {
            M::BuildInfo => vec![sample(name, &[self.version], 1.0)],
            M::Ready => one(flag(view.ready)),
            M::KeeperUp => one(flag(view.keeper_up)),
            M::SnapshotTimestamp => one(seconds(view.taken_at_ms)),
            M::LoopLastIteration => one(seconds(self.last_turn_ms)),
            M::LanesConfigured => self.modes(name),
            M::LaneInfo => {
                self.lanes.iter().map(|lane| sample(name, &[lane.id, lane.mode], 1.0)).collect()
            }
            M::LaneState => self.states(name),
            M::LaneStateChange => self.gauge(name, |lane| seconds(lane.since_ms)),
            M::LaneNextStart => self.gauge(name, |lane| moment(lane.next_start_ms)),
            M::RunStart => self.gauge(name, |lane| moment(lane.run_started_ms)),
            M::BreakerTripped => self.gauge(name, |lane| flag(lane.state == LaneState::Tripped)),
            M::LaneIntruders => self.gauge(name, |lane| {
                f64::from(u32::try_from(lane.intruders.len()).unwrap_or(u32::MAX))
            }),
            M::BreakerFailures => self.gauge(name, |lane| f64::from(lane.failures)),
            M::ClaimStamp => self
                .gauge(name, |lane| moment(lane.claim.as_ref().map(|claim| claim.stamped_at_ms))),
            M::ClaimsHeld => {
                let held = view.lanes.iter().filter(|lane| lane.claim.is_some()).count();
                one(float(u64::try_from(held).unwrap_or(u64::MAX)))
            }
            M::NotifySpoolPending => one(float(view.spool.pending)),
            M::StoreErrors
            | M::OomKillsUnattributed
            | M::ClaimPushes
            | M::NoticesDelivered
            | M::NoticesDropped
            | M::NotifyRequests
            | M::NotifyRequestFailures => one(self.count(name, "", "")),
            M::RunsStarted | M::BreakerTrips => self.by_lane(name),
            M::RunsFinished => {
                self.by_lane_and(name, &spelled(RunVerdict::ALL, RunVerdict::as_str))
            }
            M::SigkillEnds => self.by_lane_and(name, &spelled(SigkillEnd::ALL, SigkillEnd::as_str)),
            M::StopSignals => self.by_lane_and(name, &[TERM, KILL]),
            M::OomKills => self.by_lane_and(name, &oom_kinds()),
            M::SourceLostRecords => self.by(name, &spelled(Source::ALL, Source::as_str)),
            M::Adoptions => self.by(name, &spelled(AdoptionResult::ALL, AdoptionResult::as_str)),
            M::AdmissionRefusals => {
                self.by(name, &spelled(AdmissionCheck::ALL, AdmissionCheck::as_str))
            }
            M::ClaimPushFailures => {
                self.by(name, &spelled(GitErrorKind::ALL, GitErrorKind::as_str))
            }
            M::NoticesRaised => self.by(name, &spelled(Level::ALL, Level::as_str)),
            M::LoopIterationDuration
            | M::RunDuration
            | M::RunExitDetection
            | M::ClaimPushDuration
            | M::NotifyDelivery => vec![self.histogram(name)],
            M::ProcessCpu => own(|own| own.cpu),
            M::ProcessResident => own(|own| own.resident),
            M::ProcessVirtual => own(|own| own.virtual_size),
            M::ProcessThreads => own(|own| own.threads),
            M::ProcessOpenFds => maybe(open_fds(&root)),
            M::ProcessMaxFds => maybe(max_fds()),
            M::ProcessStart => maybe(self.started_at),
        }
    }

    fn count(&self, name: MetricName, lane: &str, member: &str) -> f64 {
        float(self.counts.get(name, lane, member))
    }

    /// One sample for each member of a closed set.
    fn by(&self, name: MetricName, members: &[&str]) -> Vec<Metric> {
        members.iter().map(|member| sample(name, &[member], self.count(name, "", member))).collect()
    }

    /// One sample for each lane.
    fn by_lane(&self, name: MetricName) -> Vec<Metric> {
        self.lanes
            .iter()
            .map(|lane| sample(name, &[lane.id], self.count(name, lane.id, "")))
            .collect()
    }

    /// One sample for each lane and each member of a closed set.
    fn by_lane_and(&self, name: MetricName, members: &[&str]) -> Vec<Metric> {
        let of_lane = |lane: &LaneName<'_>| -> Vec<Metric> {
            members
                .iter()
                .map(|member| sample(name, &[lane.id, member], self.count(name, lane.id, member)))
                .collect()
        };
        self.lanes.iter().flat_map(of_lane).collect()
    }

    /// One sample for each lane of the picture.
    fn gauge(&self, name: MetricName, value: impl Fn(&LaneView) -> f64) -> Vec<Metric> {
        self.view.lanes.iter().map(|lane| sample(name, &[&lane.id], value(lane))).collect()
    }

    fn states(&self, name: MetricName) -> Vec<Metric> {
        let of_lane = |lane: &LaneView| -> Vec<Metric> {
            LaneState::ALL
                .iter()
                .map(|state| sample(name, &[&lane.id, state.as_str()], flag(lane.state == *state)))
                .collect()
        };
        self.view.lanes.iter().flat_map(of_lane).collect()
    }

    fn modes(&self, name: MetricName) -> Vec<Metric> {
        Mode::ALL
            .iter()
            .map(|mode| {
                let lanes = self.lanes.iter().filter(|lane| lane.mode == mode.as_str()).count();
                sample(name, &[mode.as_str()], float(u64::try_from(lanes).unwrap_or(u64::MAX)))
            })
            .collect()
    }

    fn histogram(&self, name: MetricName) -> Metric {
        let counted = self.counts.histogram(name);
        let buckets = counted
            .cumulative()
            .map(|(bound, count)| {
                let mut bucket = Bucket::default();
                bucket.set_upper_bound(bound);
                bucket.set_cumulative_count(count);
                bucket
            })
            .collect();
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets);
        histogram.set_sample_sum(counted.sum());
        histogram.set_sample_count(counted.count());
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        metric
    }
}

/// The spellings of a closed set's members.
fn spelled<T: Copy>(all: &[T], as_str: fn(T) -> &'static str) -> Vec<&'static str> {
    all.iter().map(|member| as_str(*member)).collect()
}

/// The ends that are an OOM killer's work.
fn oom_kinds() -> Vec<&'static str> {
    SigkillEnd::ALL.iter().filter(|end| end.is_oom()).map(|end| end.as_str()).collect()
}

/// One sample: the values stand in the order of the family's labels.
fn sample(name: MetricName, values: &[&str], value: f64) -> Metric {
    let description = name.describe();
    let labels = description
        .labels
        .iter()
        .zip(values)
        .map(|(label, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*label).to_owned());
            pair.set_value((*value).to_owned());
            pair
        })
        .collect();
    let mut metric = Metric::from_label(labels);
    if description.kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        metric.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        metric.set_gauge(gauge);
    }
    metric
}
