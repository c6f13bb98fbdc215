//! Evidence to verdict on one recorded process: a closed set, one pure decision, one place that gathers evidence.
//!
//! [`judge`] = [`observe()`] (effects: `/proc`, pidfd, clocks) and then [`decide()`] (pure). Death needs affirmative
//! evidence: another boot, ESRCH from the kernel, other start ticks, or a zombie without threads. Whatever cannot be
//! told gets its own `UNKNOWN-*`. Nothing here knows what a caller does with a verdict.
//!
//! Members that depend on what only a caller knows:
//! * `SELF`: the caller puts its own identity into [`Observed::me`] (see [`judge_as`]).
//! * `NO-WORKER`: the record says so ([`Recorded::no_worker`]) and the warden that it names is alive.
//! * `UNKNOWN-EPHEMERAL`: the record says so ([`Recorded::ephemeral`]).
//! * `UNKNOWN-UNREADABLE`: there is no record that could be judged ([`Judged::unreadable`]), or it has no machine.

mod decide;
mod observe;
mod recorded;
#[cfg(test)]
mod tests;

pub use decide::{INITIAL_TIME_NAMESPACE, SLACK_MS, decide};
pub use observe::{Observed, Sight, StartWindow, Table, judge, judge_as, observe};
pub use recorded::{Judged, Recorded};

crate::closed_set! {
    /// What became of a recorded process.
    pub enum Liveness {
        /// It runs (perhaps only by threads beside a leader that exited).
        Alive = "ALIVE",
        /// It is the very process that asks.
        OurSelf = "SELF",
        /// The lane has no worker just now and the warden that the record names is alive.
        NoWorker = "NO-WORKER",
        /// It ran in an earlier boot of this machine.
        DeadReboot = "DEAD-REBOOT",
        /// The kernel knows no such process, or only its zombie.
        DeadNoProcess = "DEAD-NO-PROCESS",
        /// Its number belongs to another process now.
        DeadPidReused = "DEAD-PID-REUSED",
        /// The record could not be read or parsed.
        UnknownUnreadable = "UNKNOWN-UNREADABLE",
        /// The record is of another machine.
        UnknownForeign = "UNKNOWN-FOREIGN",
        /// Our process table or our boot id cannot be read.
        UnknownNoProc = "UNKNOWN-NO-PROC",
        /// The record has no boot id.
        UnknownNoBootId = "UNKNOWN-NO-BOOT-ID",
        /// The record names a process that was never meant to last.
        UnknownEphemeral = "UNKNOWN-EPHEMERAL",
        /// The record has no usable pid.
        UnknownNoPid = "UNKNOWN-NO-PID",
        /// The record has no start ticks.
        UnknownNoStartTicks = "UNKNOWN-NO-START-TICKS",
        /// A process of that number exists, and its state cannot be read.
        UnknownState = "UNKNOWN-STATE",
        /// The kernel could not be asked whether the number is in use.
        UnknownProbe = "UNKNOWN-PROBE",
        /// A process of that number runs, and it cannot be told whether it is the recorded one.
        UnknownIdentity = "UNKNOWN-IDENTITY",
        /// A process of that number exists and the process table hides it from us (`hidepid`).
        UnknownHidden = "UNKNOWN-HIDDEN",
        /// The record's numbers are of another pid or time namespace.
        UnknownNamespace = "UNKNOWN-NAMESPACE",
        /// This boot's clock is behind one that was seen before: a resumed snapshot or a repeated boot id.
        UnknownClock = "UNKNOWN-CLOCK",
    }
}

impl Liveness {
    /// Affirmed dead. Only these may ever lead to a reclaim.
    #[must_use]
    pub const fn is_dead(self) -> bool {
        match self {
            Self::DeadReboot | Self::DeadNoProcess | Self::DeadPidReused => true,
            Self::Alive
            | Self::OurSelf
            | Self::NoWorker
            | Self::UnknownUnreadable
            | Self::UnknownForeign
            | Self::UnknownNoProc
            | Self::UnknownNoBootId
            | Self::UnknownEphemeral
            | Self::UnknownNoPid
            | Self::UnknownNoStartTicks
            | Self::UnknownState
            | Self::UnknownProbe
            | Self::UnknownIdentity
            | Self::UnknownHidden
            | Self::UnknownNamespace
            | Self::UnknownClock => false,
        }
    }

    /// It could not be told.
    #[must_use]
    pub const fn is_unknown(self) -> bool {
        match self {
            Self::Alive | Self::OurSelf | Self::NoWorker => false,
            Self::DeadReboot | Self::DeadNoProcess | Self::DeadPidReused => false,
            Self::UnknownUnreadable
            | Self::UnknownForeign
            | Self::UnknownNoProc
            | Self::UnknownNoBootId
            | Self::UnknownEphemeral
            | Self::UnknownNoPid
            | Self::UnknownNoStartTicks
            | Self::UnknownState
            | Self::UnknownProbe
            | Self::UnknownIdentity
            | Self::UnknownHidden
            | Self::UnknownNamespace
            | Self::UnknownClock => true,
        }
    }
}
