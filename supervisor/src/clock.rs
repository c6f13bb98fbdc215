//! `Now`: read once for each turn of the loop and passed in from there. The only reader of the clock for decisions.

#![expect(
    clippy::disallowed_methods,
    reason = "this is the one place that reads the clocks for decisions"
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// One moment, on two clocks.
///
/// Waiting and deadlines use `boot_ms`: CLOCK_BOOTTIME goes on while the box sleeps, survives a restart of the daemon,
/// and is not moved when somebody sets the wall clock. `unix_ms` is for people and records only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Now {
    /// Milliseconds since boot (CLOCK_BOOTTIME of clock_gettime(2)).
    pub boot_ms: u64,
    /// Milliseconds since the epoch.
    pub unix_ms: i64,
}

impl Now {
    /// Reads both clocks.
    #[must_use]
    pub fn read() -> Self {
        let boot = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(boot.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(boot.tv_nsec).unwrap_or(0);
        Self { boot_ms: seconds * 1000 + nanos / 1_000_000, unix_ms: unix_ms() }
    }

    /// The moment `later` after this one, on the boot clock.
    #[must_use]
    pub fn after(self, later: Duration) -> u64 {
        self.boot_ms.saturating_add(millis(later))
    }

    /// How long from now until `boot_ms`; zero if it is past.
    #[must_use]
    pub fn until(self, boot_ms: u64) -> Duration {
        Duration::from_millis(boot_ms.saturating_sub(self.boot_ms))
    }

    /// The wall-clock time of `boot_ms`, for people.
    #[must_use]
    pub fn unix_of(self, boot_ms: u64) -> i64 {
        let ahead = i64::try_from(boot_ms).unwrap_or(i64::MAX);
        let here = i64::try_from(self.boot_ms).unwrap_or(i64::MAX);
        self.unix_ms.saturating_add(ahead.saturating_sub(here))
    }
}

/// Milliseconds since the epoch, at this moment.
#[must_use]
pub fn unix_ms() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_millis()).ok())
        .unwrap_or(0)
}

/// The moment of a process' start (field 22 of /proc/PID/stat, clock ticks since boot), milliseconds since the epoch.
#[must_use]
pub fn start_unix_ms(start_ticks: u64) -> i64 {
    let ticks = rustix::param::clock_ticks_per_second().max(1);
    Now::read().unix_of(start_ticks.saturating_mul(1000) / ticks)
}

/// A duration in whole milliseconds.
#[must_use]
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// 16 random bytes of the kernel, for run nonces.
#[must_use]
pub fn random_bytes() -> [u8; 16] {
    let mut bytes = [0_u8; 16];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty()) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => {
                // Kernels before 3.17. A nonce must be unique, not secret: the clock and the pid are.
                let now = Now::read();
                let seed = now.boot_ms ^ now.unix_ms.unsigned_abs().rotate_left(32);
                let pid = u64::from(std::process::id());
                bytes = (u128::from(seed) << 64 | u128::from(pid)).to_le_bytes();
                break;
            }
        }
    }
    bytes
}
