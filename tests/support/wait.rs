//! Waiting for a condition: level-triggered, bounded, and it says the last state when it gives up.

use std::{
    fmt::Debug,
    thread,
    time::{Duration, Instant},
};

/// Long enough for a box that also builds something.
pub const PATIENCE: Duration = Duration::from_secs(20);

const PAUSE: Duration = Duration::from_millis(10);

/// Waits until the condition gives a value.
///
/// # Panics
/// After [`PATIENCE`], with what the condition said last.
pub fn until<T, E: Debug>(what: &str, condition: impl FnMut() -> Result<T, E>) -> T {
    until_within(PATIENCE, what, condition)
}

/// Waits until the condition gives a value, at most this long.
///
/// # Panics
/// After that time, with what the condition said last.
pub fn until_within<T, E: Debug>(
    patience: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<T, E>,
) -> T {
    let end = Instant::now() + patience;
    loop {
        match condition() {
            Ok(value) => return value,
            Err(state) if Instant::now() > end => {
                panic!("after {patience:?} still waiting for {what}: {state:#?}")
            }
            Err(_) => thread::park_timeout(PAUSE),
        }
    }
}

/// Looks again and again for this long that the condition holds: for what must not happen.
///
/// # Panics
/// As soon as it does not.
pub fn throughout<E: Debug>(
    span: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<(), E>,
) {
    let end = Instant::now() + span;
    while Instant::now() < end {
        if let Err(state) = condition() {
            panic!("not {what}: {state:#?}");
        }
        thread::park_timeout(PAUSE);
    }
}
