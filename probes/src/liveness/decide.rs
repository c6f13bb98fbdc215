//! The one decision: a record and what was seen, to a verdict. Pure.
//!
//! Order: record, machine, our own sight, boot, record's parts, pid namespace, clock, the kernel's word on the number,
//! the process table's entry. Boot comes before everything that a reboot makes meaningless, so that a reboot clears
//! every record.

use super::{Judged, Liveness, Observed, Recorded, StartWindow, Table};
use crate::{
    Absent,
    identity::{BootId, PidfdOutcome, ProcStat},
};

/// Half width of the band around a record's stamp in which the window rule does not decide, milliseconds.
pub const SLACK_MS: i64 = 2000;

/// Inode of the initial time namespace (`PROC_TIME_INIT_INO`, include/linux/proc_ns.h).
pub const INITIAL_TIME_NAMESPACE: u64 = 0xEFFF_FFFA;

/// Judges a recorded process by what was seen.
#[must_use]
pub fn decide(recorded: &Recorded, observed: &Observed) -> Judged {
    let judged = judged(recorded, observed);
    let me = observed.me.as_ref().zip(recorded.identity());
    if !judged.verdict.is_dead() && me.is_some_and(|(me, them)| me.is_same(&them)) {
        // Dead and our own can only be a zombie that we act for, and that is never oneself.
        return Judged::new(Liveness::OurSelf, "all five parts are our own");
    }
    if judged.verdict == Liveness::Alive && recorded.no_worker {
        return Judged::new(
            Liveness::NoWorker,
            format!("the lane has no worker, its warden lives: {}", judged.reason),
        );
    }
    judged
}

fn judged(recorded: &Recorded, observed: &Observed) -> Judged {
    if recorded.machine.is_empty() {
        return Judged::unreadable("the record names no machine");
    }
    if recorded.machine != observed.machine {
        let (theirs, ours) = (&recorded.machine, &observed.machine);
        return Judged::new(
            Liveness::UnknownForeign,
            format!("recorded on {theirs:?}, we are {ours:?}"),
        );
    }
    if let Some(judged) = by_boot(recorded, observed) {
        return judged;
    }
    if recorded.ephemeral {
        return Judged::new(
            Liveness::UnknownEphemeral,
            "the record names a process that was not meant to last",
        );
    }
    // Numbers beyond pid_t are damage and not dead processes.
    let Some(pid) = recorded.pid.filter(|pid| *pid > 0 && i32::try_from(*pid).is_ok()) else {
        return Judged::new(Liveness::UnknownNoPid, "the record has no usable pid");
    };
    if recorded.ticks.is_none() && !recorded.is_by_window() {
        return Judged::new(Liveness::UnknownNoStartTicks, "the record has no start ticks");
    }
    if observed.table == Table::Foreign {
        return Judged::new(
            Liveness::UnknownNamespace,
            "the process table that we see is not of our own pid namespace",
        );
    }
    if let Some(theirs) = recorded.pidns.filter(|theirs| observed.pidns != Some(*theirs)) {
        let ours = shown(observed.pidns);
        return Judged::new(
            Liveness::UnknownNamespace,
            format!("pid {pid} was recorded in pid namespace {theirs}, we are in {ours}"),
        );
    }
    // Each time namespace has a boottime clock of its own.
    if let Some((seen, now)) = recorded.seen_boottime_ms.zip(observed.boottime_ms)
        && now < seen
        && one_clock(recorded, observed)
    {
        return Judged::new(
            Liveness::UnknownClock,
            format!("{now} ms since boot, {seen} ms were seen before in the same boot"),
        );
    }
    by_kernel(recorded, observed, pid)
}

/// Sight and boot. `None`: go on.
fn by_boot(recorded: &Recorded, observed: &Observed) -> Option<Judged> {
    let by_window = recorded.is_by_window();
    if observed.table == Table::Unreadable {
        let verdict = if by_window { Liveness::UnknownProbe } else { Liveness::UnknownNoProc };
        return Some(Judged::new(verdict, "the process table does not show our own process"));
    }
    match (&recorded.boot, &observed.boot) {
        (Some(theirs), Some(ours)) => by_boot_ids(theirs, ours),
        (None, _) if by_window => None,
        (Some(_) | None, None) => {
            Some(Judged::new(Liveness::UnknownNoProc, "our own boot id cannot be read"))
        }
        (None, Some(_)) => {
            Some(Judged::new(Liveness::UnknownNoBootId, "the record has no boot id"))
        }
    }
}

fn by_boot_ids(theirs: &BootId, ours: &BootId) -> Option<Judged> {
    (theirs != ours).then(|| {
        Judged::new(Liveness::DeadReboot, format!("recorded in boot {theirs}, this is boot {ours}"))
    })
}

/// What the kernel said about the number itself.
fn by_kernel(recorded: &Recorded, observed: &Observed, pid: u32) -> Judged {
    match observed.pidfd {
        Some(PidfdOutcome::NoProcess) => Judged::new(
            Liveness::DeadNoProcess,
            format!("the kernel knows no process {pid} (ESRCH)"),
        ),
        Some(PidfdOutcome::Failed(errno)) => Judged::new(
            Liveness::UnknownProbe,
            format!("the kernel could not be asked about pid {pid} (errno {errno})"),
        ),
        None => Judged::new(Liveness::UnknownProbe, format!("pid {pid} was not asked about")),
        Some(PidfdOutcome::IsThread) => by_entry_of_thread(recorded, observed, pid),
        Some(PidfdOutcome::Opened { ino, exited }) => {
            let same = recorded.pidfs_ino.zip(ino).map(|(theirs, now)| theirs == now);
            // Another boot may give the same inode to another process, so likeness needs the boot beside it.
            let same = same.filter(|same| !same || recorded.boot.is_some());
            match same {
                Some(false) => Judged::new(
                    Liveness::DeadPidReused,
                    format!(
                        "pid {pid} is pidfs inode {} now, recorded {}",
                        shown(ino),
                        shown(recorded.pidfs_ino)
                    ),
                ),
                // The inode names the process; the entry can add nothing but its state, and that the pidfd has too.
                Some(true) if exited => Judged::new(
                    Liveness::DeadNoProcess,
                    format!("pid {pid} has exited and waits for its parent (same pidfs inode)"),
                ),
                Some(true) => Judged::new(
                    Liveness::Alive,
                    format!("pid {pid} runs under the same pidfs inode"),
                ),
                None => by_entry(recorded, observed, pid),
            }
        }
        Some(PidfdOutcome::Denied) => by_entry(recorded, observed, pid),
    }
}

/// The number is a thread's now. Records name processes, but old ones were not checked for that: only other ticks
/// prove that it is not what was recorded.
fn by_entry_of_thread(recorded: &Recorded, observed: &Observed, pid: u32) -> Judged {
    match (&observed.stat, recorded.ticks) {
        (Ok(Ok(stat)), Some(ticks)) if stat.start_ticks != ticks => {
            by_ticks(recorded, observed, pid, stat, ticks)
        }
        (Ok(_) | Err(_), _) => Judged::new(
            Liveness::UnknownIdentity,
            format!("{pid} is the id of a thread now, not of a process"),
        ),
    }
}

/// What the process table says. The kernel has affirmed that the number is in use.
fn by_entry(recorded: &Recorded, observed: &Observed, pid: u32) -> Judged {
    let stat = match &observed.stat {
        Ok(Ok(stat)) => stat,
        Ok(Err(Absent::Gone)) => {
            return Judged::new(
                Liveness::UnknownHidden,
                format!("process {pid} exists and the process table does not show it to us"),
            );
        }
        Ok(Err(Absent::Denied | Absent::NotSupported)) => {
            return Judged::new(
                Liveness::UnknownState,
                format!("process {pid} exists and its state may not be read"),
            );
        }
        Err(cause) => {
            return Judged::new(
                Liveness::UnknownState,
                format!("process {pid} exists and its state could not be read: {cause}"),
            );
        }
    };
    match (&recorded.boot, recorded.ticks) {
        (Some(_), Some(ticks)) => by_ticks(recorded, observed, pid, stat, ticks),
        (Some(_) | None, _) => by_window(recorded, observed.start, pid, stat),
    }
}

fn by_ticks(
    recorded: &Recorded,
    observed: &Observed,
    pid: u32,
    stat: &ProcStat,
    ticks: u64,
) -> Judged {
    let now = stat.start_ticks;
    if !one_clock(recorded, observed) {
        let (theirs, ours) = (time_namespace(recorded), shown(observed.timens));
        return Judged::new(
            Liveness::UnknownNamespace,
            format!(
                "start ticks {ticks} were recorded in time namespace {theirs}, we read {now} in {ours}"
            ),
        );
    }
    if now != ticks {
        return Judged::new(
            Liveness::DeadPidReused,
            format!("pid {pid} started at tick {now}, recorded {ticks}"),
        );
    }
    by_state(pid, stat, format!("same boot, pid and start tick {ticks}"))
}

/// The time namespace of a record. One that does not say was written by somebody who knew of none.
fn time_namespace(recorded: &Recorded) -> u64 {
    recorded.timens.unwrap_or(INITIAL_TIME_NAMESPACE)
}

/// Whether the record's moments since boot and ours are of one clock.
fn one_clock(recorded: &Recorded, observed: &Observed) -> bool {
    match (recorded.timens, observed.timens) {
        // Neither says: a kernel before 5.6 has only one.
        (None, None) => true,
        (Some(_) | None, Some(ours)) => ours == time_namespace(recorded),
        (Some(_), None) => false,
    }
}

/// Over, running, or in a state that no Linux is known to print.
fn by_state(pid: u32, stat: &ProcStat, identity: String) -> Judged {
    let state = char::from(stat.state);
    if stat.is_over() {
        let text = format!("pid {pid} has exited and waits for its parent (state {state}, zombie)");
        return Judged::new(Liveness::DeadNoProcess, text);
    }
    if !stat.state_is_known() {
        let text = format!("process {pid} is in an unknown state {state}");
        return Judged::new(Liveness::UnknownState, text);
    }
    let threads = stat.num_threads;
    Judged::new(Liveness::Alive, format!("{identity}; state {state}, {threads} threads"))
}

/// The predecessor's rule for records that carry a stamp and no identity: a process that started after the stamp
/// cannot be the one that was stamped; one that started before it is; near it nothing can be said.
fn by_window(recorded: &Recorded, start: Option<StartWindow>, pid: u32, stat: &ProcStat) -> Judged {
    if stat.is_over() || !stat.state_is_known() {
        return by_state(pid, stat, String::new());
    }
    let unknown = |reason: String| Judged::new(Liveness::UnknownIdentity, reason);
    let Some(ts) = recorded.ts_ms else {
        return unknown(format!("process {pid} runs and the record's stamp cannot be read"));
    };
    let Some(StartWindow { earliest_ms, latest_ms }) = start else {
        return unknown(format!("process {pid} runs and its start cannot be told"));
    };
    let (first, last) = (earliest_ms.saturating_sub(ts), latest_ms.saturating_sub(ts));
    let reason =
        format!("pid {pid} started {first} to {last} ms after the stamp (band {SLACK_MS} ms)");
    if first > SLACK_MS {
        Judged::new(Liveness::DeadPidReused, reason)
    } else if last < -SLACK_MS {
        by_state(pid, stat, format!("identity=verified, {reason}"))
    } else {
        unknown(reason)
    }
}

fn shown(value: Option<u64>) -> String {
    value.map_or_else(|| "an unknown one".to_owned(), |value| value.to_string())
}
