//! The daemon's own process, under the names that every Prometheus client uses.

use std::fs;

use lanewarden_probes::{Root, identity::parse_stat};
use rustix::{
    param::{clock_ticks_per_second, page_size},
    process::{Resource, getrlimit},
};

use crate::clock::Now;

/// What the kernel says of us.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct OwnProcess {
    /// User and system time, seconds.
    pub(super) cpu: f64,
    /// Resident memory, bytes.
    pub(super) resident: f64,
    /// Virtual memory, bytes.
    pub(super) virtual_size: f64,
    /// Threads.
    pub(super) threads: f64,
    /// Clock ticks from boot to our start.
    start_ticks: f64,
}

/// A count or size as a sample's value: 53 bits hold every one that a box has.
pub(super) fn float(number: u64) -> f64 {
    number as f64
}

fn ticks() -> f64 {
    float(clock_ticks_per_second()).max(1.0)
}

impl OwnProcess {
    /// Reads `/proc/self/stat` and `/proc/self/statm`; `None` if they cannot be read.
    pub(super) fn read(root: &Root) -> Option<Self> {
        let own = root.proc().join("self");
        let stat = parse_stat(&fs::read(own.join("stat")).ok()?).ok()?;
        let statm = fs::read_to_string(own.join("statm")).ok()?;
        let mut pages = statm.split_ascii_whitespace().map(str::parse::<u64>);
        let page = u64::try_from(page_size()).ok()?;
        let mut bytes = || Some(float(pages.next()?.ok()?.saturating_mul(page)));
        let (virtual_size, resident) = (bytes()?, bytes()?);
        Some(Self {
            cpu: float(stat.utime.saturating_add(stat.stime)) / ticks(),
            resident,
            virtual_size,
            threads: float(stat.num_threads),
            start_ticks: float(stat.start_ticks),
        })
    }

    /// When it started, seconds since the epoch, as of the clocks at `now`.
    ///
    /// Worked out once: the difference of the two clocks moves with every correction of the wall clock, and a start that
    /// moves looks like a restart.
    pub(super) fn started_at(&self, now: Now) -> f64 {
        let age = float(now.boot_ms) / 1000.0 - self.start_ticks / ticks();
        seconds(now.unix_ms) - age
    }
}

/// Milliseconds since the epoch as seconds; 53 bits hold them for 285,000 years.
pub(super) fn seconds(unix_ms: i64) -> f64 {
    unix_ms as f64 / 1000.0
}

/// Open descriptors; `None` if they cannot be listed.
pub(super) fn open_fds(root: &Root) -> Option<f64> {
    let entries = fs::read_dir(root.proc().join("self/fd")).ok()?;
    let count = u32::try_from(entries.filter(Result::is_ok).count()).ok()?;
    // The listing itself holds one.
    Some(f64::from(count.saturating_sub(1)))
}

/// The soft limit of open descriptors (getrlimit(2)); `None` if there is none.
pub(super) fn max_fds() -> Option<f64> {
    getrlimit(Resource::Nofile).current.map(float)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_process_is_as_the_kernel_says() {
        let root = Root::live();
        let own = OwnProcess::read(&root).unwrap();
        assert!(
            own.resident > 0.0 && own.virtual_size >= own.resident && own.threads >= 1.0,
            "{own:?}"
        );
        let now = Now::read();
        let age = seconds(now.unix_ms) - own.started_at(now);
        assert!((0.0..3600.0).contains(&age), "{age}");
        assert!(open_fds(&root).unwrap() >= 3.0);
        assert!(max_fds().unwrap() >= open_fds(&root).unwrap());
    }

    #[test]
    fn a_missing_proc_is_no_zero() {
        let root = Root::at(std::path::Path::new("/nonexistent"));
        assert_eq!(OwnProcess::read(&root), None);
        assert_eq!(open_fds(&root), None);
    }
}
