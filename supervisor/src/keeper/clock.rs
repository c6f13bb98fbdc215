//! The keeper's two clocks: one for waiting, one for the record.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since boot without suspend: for deadlines. A stepped wall clock does not move it.
pub(super) fn monotonic() -> Duration {
    since_zero(ClockId::Monotonic)
}

/// Milliseconds since the epoch: for people and records, never compared.
pub(super) fn epoch_ms() -> i64 {
    i64::try_from(since_zero(ClockId::Realtime).as_millis()).unwrap_or(i64::MAX)
}

fn since_zero(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}
