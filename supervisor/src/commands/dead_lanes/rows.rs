//! Rows of the report, and what they add up to. Pure.

use lanewarden_probes::liveness::{Judged, Liveness};
use serde::Serialize;

use super::Report;
use crate::{config::Config, verdict::LaneState};

/// One lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(in crate::commands) struct Row {
    /// Its claim, if it has one on the remote.
    #[serde(rename = "ref")]
    pub(super) name: Option<String>,
    pub(super) machine: String,
    pub(super) lane: String,
    pub(super) verdict: Liveness,
    pub(super) pid: Option<u32>,
    pub(super) issue: Option<u64>,
    pub(super) age_s: Option<u64>,
    /// Whether a pull request for the issue is open; null: nobody could be asked.
    pub(super) open_pr: Option<bool>,
    pub(super) detail: String,
    /// The lane's state, where the daemon or its store tells it.
    pub(super) state: Option<LaneState>,
}

impl Row {
    pub(super) fn new(machine: &str, lane: &str, judged: Judged) -> Self {
        Self {
            name: None,
            machine: machine.to_owned(),
            lane: lane.to_owned(),
            verdict: judged.verdict,
            pid: None,
            issue: None,
            age_s: None,
            open_pr: None,
            detail: judged.reason,
            state: None,
        }
    }
}

/// A verdict with its reason.
pub(super) fn judged(verdict: Liveness, reason: impl Into<String>) -> Judged {
    Judged { verdict, reason: reason.into() }
}

/// Adds it up.
pub(super) fn count(
    config: &Config,
    lanes: Vec<Row>,
    incomplete: Vec<String>,
    certify: bool,
) -> Report {
    let foreign = lanes.iter().filter(|row| row.verdict == Liveness::UnknownForeign).count();
    let dead = lanes.iter().filter(|row| row.verdict.is_dead()).count();
    let unknown = lanes.iter().filter(|row| row.verdict.is_unknown()).count() - foreign;
    let measured = |id: &str| {
        lanes.iter().any(|row| {
            row.machine == config.machine.as_str()
                && row.lane == id
                && !row.verdict.is_dead()
                && !row.verdict.is_unknown()
                // A lane that gave up is nobody's healthy lane.
                && !matches!(row.state, Some(LaneState::Tripped | LaneState::Exhausted))
        })
    };
    let all = config.lanes.iter().all(|lane| measured(lane.id.as_str()));
    Report {
        machine: config.machine.to_string(),
        dead,
        unknown,
        foreign,
        certified: certify && all && dead == 0 && unknown == 0 && incomplete.is_empty(),
        lanes,
        incomplete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Env;
    use std::path::Path;

    fn config() -> Config {
        let text = "machine = \"box-a\"\n[[lane]]\nid = \"a\"\ndir = \"/l/a\"\ncommand = [\"x\"]\n";
        Config::parse(text, Path::new("/c.toml"), &Env::of([("HOME", "/root")])).unwrap()
    }

    fn row(verdict: Liveness) -> Row {
        Row::new("box-a", "a", judged(verdict, ""))
    }

    #[test]
    fn only_a_box_without_a_doubt_is_certified() {
        for &verdict in Liveness::ALL {
            let report = count(&config(), vec![row(verdict)], Vec::new(), true);
            let healthy = !verdict.is_dead() && !verdict.is_unknown();
            assert_eq!(report.certified, healthy, "{verdict}");
            assert!(!count(&config(), vec![row(verdict)], Vec::new(), false).certified);
        }
        let gap = vec!["the remote did not answer".to_owned()];
        assert!(!count(&config(), vec![row(Liveness::Alive)], gap, true).certified);
        assert!(!count(&config(), Vec::new(), Vec::new(), true).certified, "not measured");
        let tripped = Row { state: Some(LaneState::Tripped), ..row(Liveness::NoWorker) };
        assert!(!count(&config(), vec![tripped], Vec::new(), true).certified);
    }

    #[test]
    fn foreign_rows_are_neither_dead_nor_unknown() {
        let report = count(&config(), vec![row(Liveness::UnknownForeign)], Vec::new(), false);
        assert_eq!((report.dead, report.unknown, report.foreign), (0, 0, 1));
    }
}
