//! Every series that leaves this program: one closed enum, and one line of description for each member.
//!
//! The page is rendered by a match over this enum, so that a family cannot be described and not exported, or exported
//! and not described. Label names stand here only; `render` puts values beside them.

use lanewarden_probes::closed_set;
use serde::Serialize;

closed_set! {
    /// What a family is. An info or a state set is a gauge in the text format.
    pub enum Kind {
        /// Only grows while the daemon lives.
        Counter = "counter",
        /// Goes up and down.
        Gauge = "gauge",
        /// Counts by upper bounds, with sum and count.
        Histogram = "histogram",
        /// Constant 1; its labels are the message.
        Info = "info",
        /// One sample for each member of a closed set: 1 for the member that holds, 0 for all others.
        StateSet = "stateset",
    }
}

/// What a family says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Description {
    /// The member.
    #[serde(skip)]
    pub member: MetricName,
    /// Its name on the page.
    pub name: &'static str,
    /// What it is.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// Its labels, in the order of the page.
    pub labels: &'static [&'static str],
    /// The base unit; `None` for plain counts, flags and sets.
    pub unit: Option<&'static str>,
    /// One sentence.
    pub help: &'static str,
    /// When the family is not on the page; `None` if it always is.
    pub absent_when: Option<&'static str>,
}

/// Families by lane need a lane.
const NO_LANE: Option<&str> = Some("no lane is configured");
/// These come from the supervision loop's newest picture.
const NO_PICTURE: Option<&str> =
    Some("no lane is configured, or the loop has not finished its first turn");
/// These are read from `/proc` for each page.
const NO_PROC: Option<&str> = Some("/proc cannot be read");
/// A limit that is none has no number.
const NO_LIMIT: Option<&str> = Some("there is no limit");
/// In every page.
const ALWAYS: Option<&str> = None;

const COUNT: Option<&str> = None;
const SECONDS: Option<&str> = Some("seconds");
const BYTES: Option<&str> = Some("bytes");

macro_rules! catalogue {
    ($( $member:ident $name:literal $kind:ident [$($label:literal),*] $unit:ident $absent:ident $help:literal )+) => {
        /// A family of series.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum MetricName {
            $( #[doc = $help] $member ),+
        }

        impl MetricName {
            /// Every member, in the order of the page.
            pub const ALL: &'static [Self] = &[ $( Self::$member ),+ ];

            /// The member's name on the page.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$member => $name ),+ }
            }

            /// What it says of itself.
            #[must_use]
            pub const fn describe(self) -> Description {
                match self {
                    $( Self::$member => Description {
                        member: self,
                        name: $name,
                        kind: Kind::$kind,
                        labels: &[ $($label),* ],
                        unit: $unit,
                        help: $help,
                        absent_when: $absent,
                    } ),+
                }
            }
        }

        static CATALOGUE: &[Description] = &[ $( MetricName::$member.describe() ),+ ];
    };
}

catalogue! {
    BuildInfo "lanewarden_build_info" Info ["version"] COUNT ALWAYS
        "Constant 1; what is running."
    Ready "lanewarden_ready" Gauge [] COUNT ALWAYS
        "1 when store and keeper answer and survivors are adopted."
    KeeperUp "lanewarden_keeper_up" Gauge [] COUNT ALWAYS
        "1 while the keeper answers."
    SnapshotTimestamp "lanewarden_snapshot_timestamp_seconds" Gauge [] SECONDS ALWAYS
        "When the gauges of this page were taken; 0 before the first turn of the loop."
    LoopLastIteration "lanewarden_loop_last_iteration_timestamp_seconds" Gauge [] SECONDS ALWAYS
        "When the supervision loop last finished a turn; 0 before the first."
    LoopIterationDuration "lanewarden_loop_iteration_duration_seconds" Histogram [] SECONDS ALWAYS
        "Time that one turn of the supervision loop took."
    SourceLostRecords "lanewarden_source_lost_records_total" Counter ["source"] COUNT ALWAYS
        "Records that a read-side source is known to have lost."
    StoreErrors "lanewarden_store_errors_total" Counter [] COUNT ALWAYS
        "Records that could not be written to the store in time."
    Adoptions "lanewarden_adoptions_total" Counter ["result"] COUNT ALWAYS
        "Runs found at start-up, by what became of them."

    LanesConfigured "lanewarden_lanes_configured" Gauge ["mode"] COUNT ALWAYS
        "Lanes in the configuration."
    LaneInfo "lanewarden_lane_info" Info ["lane", "mode"] COUNT NO_LANE
        "Constant 1 for each configured lane."
    LaneState "lanewarden_lane_state" StateSet ["lane", "state"] COUNT NO_PICTURE
        "1 for the state that the lane is in, 0 for all others."
    LaneStateChange "lanewarden_lane_state_change_timestamp_seconds" Gauge ["lane"] SECONDS NO_PICTURE
        "When the lane entered its state."
    LaneNextStart "lanewarden_lane_next_start_timestamp_seconds" Gauge ["lane"] SECONDS NO_PICTURE
        "When a waiting lane will be tried again; 0 when none is due."

    RunsStarted "lanewarden_runs_started_total" Counter ["lane"] COUNT NO_LANE
        "Workers spawned; from the second on, these are restarts."
    RunsFinished "lanewarden_runs_finished_total" Counter ["lane", "verdict"] COUNT NO_LANE
        "Runs judged, by run verdict."
    RunStart "lanewarden_run_start_timestamp_seconds" Gauge ["lane"] SECONDS NO_PICTURE
        "Start of the run under way; 0 without one."
    RunDuration "lanewarden_run_duration_seconds" Histogram [] SECONDS ALWAYS
        "Duration of judged runs."
    RunExitDetection "lanewarden_run_exit_detection_seconds" Histogram [] SECONDS ALWAYS
        "From the reaping of a worker to its judgement."
    StopSignals "lanewarden_stop_signals_total" Counter ["lane", "signal"] COUNT NO_LANE
        "Signals that were sent to workers to end them."
    SigkillEnds "lanewarden_sigkill_ends_total" Counter ["lane", "end"] COUNT NO_LANE
        "Workers that ended by SIGKILL, by who did it."

    OomKills "lanewarden_oom_kills_total" Counter ["lane", "kind"] COUNT NO_LANE
        "Processes of the lane that an OOM killer ended."
    OomKillsUnattributed "lanewarden_oom_kills_unattributed_total" Counter [] COUNT ALWAYS
        "OOM kills seen on the box that belong to no lane."

    AdmissionRefusals "lanewarden_admission_refusals_total" Counter ["check"] COUNT ALWAYS
        "Starts that admission refused, by the first check that did."
    BreakerTripped "lanewarden_breaker_tripped" Gauge ["lane"] COUNT NO_PICTURE
        "1 while the breaker keeps the lane down."
    BreakerTrips "lanewarden_breaker_trips_total" Counter ["lane"] COUNT NO_LANE
        "Times that the breaker tripped."
    LaneIntruders "lanewarden_lane_intruders" Gauge ["lane"] COUNT NO_PICTURE
        "Processes that work in the lane beside its worker."
    BreakerFailures "lanewarden_breaker_failures" Gauge ["lane"] COUNT NO_PICTURE
        "Failed runs that now count against the breaker."

    ClaimsHeld "lanewarden_claims_held" Gauge [] COUNT ALWAYS
        "Lane claims that the coordination remote has from this box."
    ClaimStamp "lanewarden_claim_stamp_timestamp_seconds" Gauge ["lane"] SECONDS NO_PICTURE
        "Newest liveness stamp that the remote accepted; 0 while the lane has no claim."
    ClaimPushes "lanewarden_claim_pushes_total" Counter [] COUNT ALWAYS
        "Pushes of claims tried."
    ClaimPushFailures "lanewarden_claim_push_failures_total" Counter ["reason"] COUNT ALWAYS
        "Pushes of claims that failed."
    ClaimPushDuration "lanewarden_claim_push_duration_seconds" Histogram [] SECONDS ALWAYS
        "Duration of the pushes of claims that the remote answered."

    NoticesRaised "lanewarden_notices_raised_total" Counter ["severity"] COUNT ALWAYS
        "Notices that policy asked for."
    NoticesDelivered "lanewarden_notices_delivered_total" Counter [] COUNT ALWAYS
        "Notices that the server acknowledged with a message id."
    NoticesDropped "lanewarden_notices_dropped_total" Counter [] COUNT ALWAYS
        "Notices given up because the server will never take them."
    NotifyRequests "lanewarden_notify_requests_total" Counter [] COUNT ALWAYS
        "Publish requests sent."
    NotifyRequestFailures "lanewarden_notify_request_failures_total" Counter [] COUNT ALWAYS
        "Publish requests that failed."
    NotifyDelivery "lanewarden_notify_delivery_seconds" Histogram [] SECONDS ALWAYS
        "From the raising of a notice to the server's acknowledgement."
    NotifySpoolPending "lanewarden_notify_spool_pending" Gauge [] COUNT ALWAYS
        "Notices waiting for delivery."

    ProcessCpu "process_cpu_seconds_total" Counter [] SECONDS NO_PROC
        "User and system CPU time of the daemon."
    ProcessResident "process_resident_memory_bytes" Gauge [] BYTES NO_PROC
        "Resident memory of the daemon."
    ProcessVirtual "process_virtual_memory_bytes" Gauge [] BYTES NO_PROC
        "Virtual memory of the daemon."
    ProcessOpenFds "process_open_fds" Gauge [] COUNT NO_PROC
        "Open file descriptors of the daemon."
    ProcessMaxFds "process_max_fds" Gauge [] COUNT NO_LIMIT
        "Most file descriptors that the daemon may open."
    ProcessThreads "process_threads" Gauge [] COUNT NO_PROC
        "Threads of the daemon."
    ProcessStart "process_start_time_seconds" Gauge [] SECONDS NO_PROC
        "When the daemon started."
}

/// The whole catalogue, in the order of the page.
#[must_use]
pub fn catalogue() -> &'static [Description] {
    CATALOGUE
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let mut seen = BTreeSet::new();
        for entry in catalogue() {
            let Description { name, kind, unit, help, labels, .. } = *entry;
            assert!(seen.insert(name), "{name} twice");
            assert!(name.starts_with("lanewarden_") || name.starts_with("process_"), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert_eq!(kind == Kind::Info, name.ends_with("_info"), "{name}");
            assert!(!["_count", "_sum", "_bucket"].iter().any(|end| name.ends_with(end)), "{name}");
            if let Some(unit) = unit {
                assert!(name.trim_end_matches("_total").ends_with(unit), "{name}: {unit}");
            }
            assert!(help.ends_with('.') && !help.contains('\n'), "{name}: {help}");
            let allowed = [
                "version", "lane", "mode", "state", "verdict", "signal", "end", "kind", "check",
                "reason", "severity", "source", "result",
            ];
            assert!(labels.iter().all(|label| allowed.contains(label)), "{name}: {labels:?}");
        }
        assert_eq!(catalogue().len(), MetricName::ALL.len());
    }
}
