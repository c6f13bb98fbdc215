//! And now? After a judged run: when, or whether, the next one starts.

use std::time::Duration;

use crate::{clock::millis, config::Restart, verdict::RunVerdict};

/// A run that lived this long clears the count of failures in a row: what crashes once a day is not a crash loop.
pub const STABLE: Duration = Duration::from_secs(60);

/// How the lane fared lately. Moments are milliseconds on the boot clock.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// When its failures ended, oldest first, those inside the breaker's window only.
    pub failures: Vec<u64>,
    /// Failures in a row.
    pub streak: u32,
}

/// What comes next for the lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Start again at this moment of the boot clock, or later if admission refuses.
    At {
        /// When.
        boot_ms: u64,
        /// Why then.
        why: String,
    },
    /// Wait for the owner.
    Parked,
    /// The breaker keeps the lane down.
    Tripped {
        /// Failures inside the window.
        failures: u32,
    },
}

impl History {
    /// The history after a run that ended at `now` with this verdict.
    #[must_use]
    pub fn after(&self, verdict: RunVerdict, lived: Duration, now: u64, policy: &Restart) -> Self {
        let from = now.saturating_sub(millis(policy.breaker_window));
        let mut failures: Vec<u64> =
            self.failures.iter().copied().filter(|&at| at >= from).collect();
        if !verdict.is_failure() {
            // Idle and blocked runs leave the window as it is: a lane that crashes every other time must still trip.
            if verdict == RunVerdict::Finalized {
                failures.clear();
            }
            return Self { failures, streak: 0 };
        }
        failures.push(now);
        let before = if lived >= STABLE { 0 } else { self.streak };
        Self { failures, streak: before.saturating_add(1) }
    }
}

/// Decides what comes after a run. `history` already counts it; `random` is any number and sets the jitter.
#[must_use]
pub fn next(
    verdict: RunVerdict,
    history: &History,
    policy: &Restart,
    now: u64,
    random: u64,
) -> Next {
    let failures = u32::try_from(history.failures.len()).unwrap_or(u32::MAX);
    if verdict.is_failure() && policy.breaker > 0 && failures >= policy.breaker {
        return Next::Tripped { failures };
    }
    let (wait, why) = match verdict {
        RunVerdict::ParkedOnOwner => return Next::Parked,
        RunVerdict::NoWork => (policy.idle_delay, "there was no work".to_owned()),
        RunVerdict::Blocked => (policy.idle_delay, "the last run was blocked".to_owned()),
        RunVerdict::Finalized | RunVerdict::Stopped => {
            (policy.delay, "the last run is done".to_owned())
        }
        RunVerdict::StuckOnQuestion
        | RunVerdict::Failed
        | RunVerdict::Signalled
        | RunVerdict::OomKilled
        | RunVerdict::Deadline
        | RunVerdict::MarkerMissing
        | RunVerdict::MarkerInvalid
        | RunVerdict::MarkerStale
        | RunVerdict::NotStarted
        | RunVerdict::Vanished => (
            back_off(history.streak, policy, random),
            format!("failure {} in a row", history.streak),
        ),
    };
    Next::At { boot_ms: now.saturating_add(millis(wait)), why }
}

/// Doubles from `delay` to `max_delay`, up to a quarter less by jitter so that lanes of one box drift apart; from the
/// second failure in a row never below `min_gap`.
#[must_use]
pub fn back_off(streak: u32, policy: &Restart, random: u64) -> Duration {
    let doublings = streak.saturating_sub(1).min(20);
    let whole = policy.delay.saturating_mul(1 << doublings).min(policy.max_delay);
    let less = millis(whole) / 4;
    let jitter = if less == 0 { 0 } else { random % (less + 1) };
    let wait = whole.saturating_sub(Duration::from_millis(jitter));
    if streak >= 2 { wait.max(policy.min_gap) } else { wait }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn policy() -> Restart {
        Restart {
            delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(300),
            min_gap: Duration::from_secs(1),
            idle_delay: Duration::from_secs(900),
            breaker: 3,
            breaker_window: Duration::from_secs(3600),
        }
    }

    fn fail_at(history: &History, at: u64) -> History {
        history.after(RunVerdict::Failed, Duration::from_millis(5), at, &policy())
    }

    #[test]
    fn three_failures_inside_the_window_trip() {
        let mut history = History::default();
        for at in [0, 1000, 3000] {
            assert!(!matches!(
                next(RunVerdict::NoWork, &history, &policy(), at, 0),
                Next::Tripped { .. }
            ));
            history = fail_at(&history, at);
        }
        assert_eq!(
            next(RunVerdict::Failed, &history, &policy(), 3000, 0),
            Next::Tripped { failures: 3 }
        );
    }

    #[test]
    fn failures_outside_the_window_are_forgotten() {
        let hour = 3_600_000;
        let history = fail_at(&fail_at(&fail_at(&History::default(), 0), 1), 2 * hour);
        assert_eq!(history.failures, [2 * hour]);
    }

    #[test]
    fn an_idle_run_between_crashes_does_not_hide_them() {
        let mut history = History::default();
        for at in 0..3 {
            history = fail_at(&history, at * 10);
            history = history.after(RunVerdict::NoWork, Duration::ZERO, at * 10 + 5, &policy());
        }
        assert_eq!(history.failures.len(), 3);
        assert_eq!(history.streak, 0);
        let done = history.after(RunVerdict::Finalized, Duration::ZERO, 100, &policy());
        assert!(done.failures.is_empty());
    }

    #[test]
    fn every_verdict_has_a_next_step() {
        for &verdict in RunVerdict::ALL {
            let history = History::default().after(verdict, Duration::ZERO, 10, &policy());
            let step = next(verdict, &history, &policy(), 10, 0);
            assert_eq!(step == Next::Parked, verdict == RunVerdict::ParkedOnOwner, "{verdict}");
        }
    }

    #[test]
    fn a_breaker_of_zero_is_off() {
        let policy = Restart { breaker: 0, ..policy() };
        let history = History { failures: vec![1; 50], streak: 50 };
        assert!(matches!(next(RunVerdict::Failed, &history, &policy, 1, 0), Next::At { .. }));
    }

    #[test]
    fn no_delay_means_at_once_after_the_first_failure() {
        let policy = Restart { delay: Duration::ZERO, ..policy() };
        assert_eq!(back_off(1, &policy, 99), Duration::ZERO);
        assert_eq!(back_off(2, &policy, 99), Duration::from_secs(1), "min_gap");
    }

    proptest! {
        #[test]
        fn back_off_stays_inside_its_bounds(streak in 1_u32..200, random in any::<u64>()) {
            let wait = back_off(streak, &policy(), random);
            prop_assert!(wait <= policy().max_delay);
            prop_assert!(wait >= policy().delay.mul_f64(0.74));
        }

        #[test]
        fn back_off_never_shrinks_by_more_than_its_jitter(streak in 1_u32..60, random in any::<u64>()) {
            let now = back_off(streak, &policy(), random);
            let later = back_off(streak + 1, &policy(), random);
            prop_assert!(later >= now.mul_f64(0.74));
        }
    }
}
