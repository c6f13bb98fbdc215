//! Gathering the evidence of now: the one file of this module that asks the kernel.

use super::{Judged, Recorded, decide};
use crate::{
    Absent, Reading, Root,
    identity::{
        self, BootId, Identity, PidfdOutcome, ProcStat, boot_id, open_pidfd, own_pid,
        pid_namespace, tgid, time_namespace,
    },
};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Whether the process table is one in which a missing entry could mean anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// It lists us under our own number.
    Usable,
    /// It is not there, or does not show ourselves.
    Unreadable,
    /// It numbers us differently: it is of another pid namespace.
    Foreign,
}

/// When a process started, on the wall clock: certainly not before `earliest`, not after `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartWindow {
    /// Milliseconds since 1970.
    pub earliest_ms: i64,
    /// Milliseconds since 1970.
    pub latest_ms: i64,
}

/// What was seen just now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// Our machine.
    pub machine: String,
    /// Our own identity (or that of the session that we act for), for `SELF`. [`observe`] leaves it empty.
    pub me: Option<Identity>,
    /// Whether the process table can be used.
    pub table: Table,
    /// Our boot; `None` if it cannot be read.
    pub boot: Option<BootId>,
    /// Our pid namespace.
    pub pidns: Option<u64>,
    /// Our time namespace.
    pub timens: Option<u64>,
    /// The boottime clock, milliseconds.
    pub boottime_ms: Option<u64>,
    /// What the kernel said about the recorded number; `None` if there was no number to ask about.
    pub pidfd: Option<PidfdOutcome>,
    /// The process table's entry, read after the pidfd. A failed read is `Err` with its message.
    pub stat: Result<Result<ProcStat, Absent>, String>,
    /// When the process started, for records that are judged by time.
    pub start: Option<StartWindow>,
}

/// What we see of ourselves, which is the same for every record of one pass: our boot, our namespaces, our process table.
#[derive(Debug, Clone)]
pub struct Sight<'a> {
    root: &'a Root,
    table: Table,
    boot: Option<BootId>,
    pidns: Option<u64>,
    timens: Option<u64>,
}

impl<'a> Sight<'a> {
    /// Looks at ourselves. To be made anew for each pass: a mount may take the process table away.
    ///
    /// A captured [`Root`] does not list the asking process and is therefore [`Table::Unreadable`] or
    /// [`Table::Foreign`]: the kernel could not be asked about its numbers.
    #[must_use]
    pub fn new(root: &'a Root) -> Self {
        let us = known(own_pid(root));
        Self {
            root,
            table: table(root),
            boot: known(boot_id(root)),
            pidns: us.and_then(|us| known(pid_namespace(root, us))),
            timens: us.and_then(|us| known(time_namespace(root, us))),
        }
    }

    /// Looks at the process that a record names. Starts no process, sends no signal, takes microseconds.
    #[must_use]
    pub fn observe(&self, recorded: &Recorded, our_machine: &str) -> Observed {
        observe_from(self, recorded, our_machine)
    }

    /// Looks and decides.
    #[must_use]
    pub fn judge(&self, recorded: &Recorded, our_machine: &str) -> Judged {
        decide(recorded, &self.observe(recorded, our_machine))
    }
}

/// One look at one record, with a [`Sight`] of its own.
#[must_use]
pub fn observe(root: &Root, recorded: &Recorded, our_machine: &str) -> Observed {
    Sight::new(root).observe(recorded, our_machine)
}

fn observe_from(sight: &Sight<'_>, recorded: &Recorded, our_machine: &str) -> Observed {
    let root = sight.root;
    let number = recorded.pid.filter(|pid| *pid > 0);
    let (mut pidfd, mut stat) = (None, Ok(Err(Absent::Gone)));
    if let Some(pid) = number {
        // A process that ends between the two reads is hidden for a moment: ask again before saying so.
        for _ in 0..3 {
            let (outcome, held) = open_pidfd(pid);
            stat = identity::stat(root, pid).map_err(|error| describe(&error));
            let thread =
                held.is_none() && known(tgid(root, pid)).is_some_and(|leader| leader != pid);
            // The descriptor pins the process until its entry was read. Without one, a null signal was sent, and that
            // reaches threads as well.
            drop(held);
            let outcome = if thread { PidfdOutcome::IsThread } else { outcome };
            pidfd = Some(outcome);
            if !matches!((outcome, &stat), (PidfdOutcome::Opened { .. }, Ok(Err(Absent::Gone)))) {
                break;
            }
        }
    }
    let start = match &stat {
        Ok(Ok(stat)) if recorded.is_by_window() => start_window(stat.start_ticks),
        Ok(_) | Err(_) => None,
    };
    Observed {
        machine: our_machine.to_owned(),
        me: None,
        table: sight.table,
        boot: sight.boot.clone(),
        pidns: sight.pidns,
        timens: sight.timens,
        boottime_ms: u64::try_from(millis(clock_gettime(ClockId::Boottime))).ok(),
        pidfd,
        stat,
        start,
    }
}

/// Looks and decides.
#[must_use]
pub fn judge(root: &Root, recorded: &Recorded, our_machine: &str) -> Judged {
    decide(recorded, &observe(root, recorded, our_machine))
}

/// Looks and decides for a caller that wants to know itself: a record of `me` that is not dead is `SELF`.
#[must_use]
pub fn judge_as(root: &Root, recorded: &Recorded, me: &Identity) -> Judged {
    let observed = Observed { me: Some(me.clone()), ..observe(root, recorded, &me.machine) };
    decide(recorded, &observed)
}

fn table(root: &Root) -> Table {
    let us = std::process::id();
    match own_pid(root) {
        Ok(Ok(number)) if number != us => Table::Foreign,
        Ok(Ok(_)) if matches!(identity::stat(root, us), Ok(Ok(_))) => Table::Usable,
        // A table that is there but has no entry for us is one of a namespace that we are not in.
        Ok(Err(Absent::Gone)) if root.proc().join("stat").exists() => Table::Foreign,
        Ok(_) | Err(_) => Table::Unreadable,
    }
}

fn known<T>(reading: Reading<T>) -> Option<T> {
    reading.ok().and_then(Result::ok)
}

fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The start on the wall clock, from ticks and the boottime clock. Never through `btime` of `/proc/stat`, which is
/// recomputed at every step of the clock. The wall clock is read between two readings of the other, so that a pause of
/// ours widens the window instead of moving it.
fn start_window(ticks: u64) -> Option<StartWindow> {
    let before = millis(clock_gettime(ClockId::Boottime));
    let wall = millis(clock_gettime(ClockId::Realtime));
    let after = millis(clock_gettime(ClockId::Boottime));
    window(ticks, procfs::ticks_per_second(), before, wall, after)
}

/// The arithmetic of [`start_window`]; all clocks in milliseconds.
pub(super) fn window(
    ticks: u64,
    per_second: u64,
    before: i64,
    wall: i64,
    after: i64,
) -> Option<StartWindow> {
    let tick_start = i64::try_from(ticks.checked_mul(1000)?.checked_div(per_second)?).ok()?;
    let next_tick =
        i64::try_from(ticks.checked_add(1)?.checked_mul(1000)?.div_ceil(per_second)).ok()?;
    Some(StartWindow {
        earliest_ms: wall.checked_sub(after.checked_sub(tick_start)?)?,
        latest_ms: wall.checked_sub(before.checked_sub(next_tick)?)?,
    })
}

fn millis(time: Timespec) -> i64 {
    time.tv_sec.saturating_mul(1000).saturating_add(time.tv_nsec / 1_000_000)
}
