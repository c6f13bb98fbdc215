//! What only grows: plain numbers under one lock, so that a page is one moment and nothing has to be registered.

use std::collections::BTreeMap;

use lanewarden_probes::closed_set;

use super::names::MetricName;

closed_set! {
    /// What became of a run that was found at start-up.
    pub(super) enum AdoptionResult {
        /// Its worker lives and is ours again.
        Adopted = "adopted",
        /// It ended while we were away, and was judged.
        EndedWhileAway = "ended-while-away",
        /// Nothing of its end could be learnt.
        Lost = "lost",
    }
}

closed_set! {
    /// A read-side source that can know of its losses.
    pub(super) enum Source {
        /// The kernel log.
        Kmsg = "kmsg",
    }
}

/// Upper bounds of run durations, seconds.
const RUN_BOUNDS: &[f64] =
    &[10.0, 30.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 7200.0, 14_400.0, 28_800.0];
/// Upper bounds of git pushes, seconds.
const PUSH_BOUNDS: &[f64] = &[0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0];
/// Upper bounds of deliveries, seconds: at once, or after an outage.
const DELIVERY_BOUNDS: &[f64] =
    &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 21_600.0];
/// Upper bounds of what should take milliseconds, seconds.
const FAST_BOUNDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// The upper bounds of a histogram.
fn bounds(name: MetricName) -> &'static [f64] {
    let own = [
        (MetricName::RunDuration, RUN_BOUNDS),
        (MetricName::ClaimPushDuration, PUSH_BOUNDS),
        (MetricName::NotifyDelivery, DELIVERY_BOUNDS),
    ];
    own.into_iter().find(|(owner, _)| *owner == name).map_or(FAST_BOUNDS, |(_, bounds)| bounds)
}

/// A classic histogram.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

impl Histogram {
    /// An empty one with the bounds of its family.
    pub(super) fn of(name: MetricName) -> Self {
        let bounds = bounds(name);
        Self { bounds, counts: vec![0; bounds.len()], sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        self.sum += value;
        self.count = self.count.saturating_add(1);
        let place = self.bounds.iter().position(|bound| value <= *bound);
        if let Some(count) = place.and_then(|place| self.counts.get_mut(place)) {
            *count = count.saturating_add(1);
        }
    }

    /// Upper bounds with the count of all observations up to each.
    pub(super) fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        let mut so_far = 0_u64;
        self.bounds.iter().zip(&self.counts).map(move |(bound, count)| {
            so_far = so_far.saturating_add(*count);
            (*bound, so_far)
        })
    }

    /// The sum of all observations.
    pub(super) fn sum(&self) -> f64 {
        self.sum
    }

    /// How many there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

/// Everything that is counted. What is not in it is 0.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    by_lane: BTreeMap<MetricName, BTreeMap<String, BTreeMap<&'static str, u64>>>,
    histograms: BTreeMap<MetricName, Histogram>,
}

impl Counts {
    /// Adds to a counter; `lane` and `member` are empty where the family has no such label.
    pub(super) fn add(&mut self, name: MetricName, lane: &str, member: &'static str, more: u64) {
        let lanes = self.by_lane.entry(name).or_default();
        let count = lanes.entry(lane.to_owned()).or_default().entry(member).or_default();
        *count = count.saturating_add(more);
    }

    /// A counter's value.
    pub(super) fn get(&self, name: MetricName, lane: &str, member: &str) -> u64 {
        let members = self.by_lane.get(&name).and_then(|lanes| lanes.get(lane));
        members.and_then(|members| members.get(member)).copied().unwrap_or(0)
    }

    /// Adds an observation to a histogram, in the family's unit.
    pub(super) fn observe(&mut self, name: MetricName, value: f64) {
        self.histograms.entry(name).or_insert_with(|| Histogram::of(name)).observe(value);
    }

    /// A histogram, empty if nothing was observed yet.
    pub(super) fn histogram(&self, name: MetricName) -> Histogram {
        self.histograms.get(&name).cloned().unwrap_or_else(|| Histogram::of(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_includes_its_own_value() {
        let mut histogram = Histogram::of(MetricName::RunDuration);
        for value in [10.0, 10.5, 100_000.0] {
            histogram.observe(value);
        }
        let shown: Vec<(f64, u64)> = histogram.cumulative().take(2).collect();
        assert_eq!(shown, [(10.0, 1), (30.0, 2)]);
        assert_eq!(
            histogram.cumulative().last(),
            Some((28_800.0, 2)),
            "the rest is above every bound"
        );
        assert_eq!(histogram.count(), 3);
        assert!((histogram.sum() - 100_020.5).abs() < 1e-9);
    }

    #[test]
    fn bounds_rise() {
        for &name in MetricName::ALL {
            assert!(bounds(name).is_sorted_by(|low, high| low < high), "{name:?}");
            assert!(bounds(name).len() <= 12, "{name:?}");
        }
    }
}
