//! Ending a worker: which rung comes next, and when.

use std::time::Duration;

use super::exit::StopCause;
use crate::clock::millis;

/// An order to end a worker, and how far it got. Moments are milliseconds on the boot clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopping {
    /// Why.
    pub cause: StopCause,
    /// When SIGTERM was sent.
    pub term_at: u64,
    /// When SIGKILL was last sent.
    pub kill_at: Option<u64>,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rung {
    /// Look again at this moment.
    Wait(u64),
    /// SIGKILL the whole tree.
    Kill,
}

/// SIGKILL is sent again this often to a tree that does not go.
const AGAIN: Duration = Duration::from_secs(5);

/// The next rung of TERM, grace, KILL.
#[must_use]
pub fn rung(stopping: Stopping, grace: Duration, now: u64) -> Rung {
    let due = match stopping.kill_at {
        None => stopping.term_at.saturating_add(millis(grace)),
        Some(killed) => killed.saturating_add(millis(AGAIN)),
    };
    if now >= due { Rung::Kill } else { Rung::Wait(due) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn term_then_grace_then_kill_then_again() {
        let grace = Duration::from_secs(10);
        let asked = Stopping { cause: StopCause::Order, term_at: 1000, kill_at: None };
        assert_eq!(rung(asked, grace, 1000), Rung::Wait(11_000));
        assert_eq!(rung(asked, grace, 11_000), Rung::Kill);
        let killed = Stopping { kill_at: Some(11_000), ..asked };
        assert_eq!(rung(killed, grace, 11_001), Rung::Wait(16_000));
        assert_eq!(rung(killed, grace, 16_000), Rung::Kill);
        assert_eq!(rung(asked, Duration::ZERO, 1000), Rung::Kill);
    }
}
