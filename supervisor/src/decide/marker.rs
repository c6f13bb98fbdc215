//! What did the worker say that it did? The marker is the worker's last act, and foreign bytes.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ids::RunId;

/// The largest marker that is read, bytes.
pub const MAX_MARKER: u64 = 64 * 1024;

/// What was found at the marker's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MarkerReading {
    /// Nothing is there.
    Absent,
    /// A regular file of at most [`MAX_MARKER`] bytes.
    Bytes(Vec<u8>),
    /// Something is there that is not read: too large, a FIFO, a link, or it cannot be opened.
    NotRead(String),
}

/// What the worker claims to have done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// An issue is finished, with a pull request.
    Finalized,
    /// There was nothing to do.
    NoWork,
    /// The issue cannot go on.
    Blocked,
}

/// A marker that can be believed to be this run's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// What the worker claims.
    pub outcome: Outcome,
    /// The issue that it worked on.
    pub issue: Option<u64>,
    /// The pull request: a URL or a number, as written.
    pub pr: Option<String>,
    /// Why it is blocked.
    pub reason: Option<String>,
    /// The one question that its owner should answer.
    pub question: Option<String>,
}

/// What the marker says, judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkerFinding {
    /// There is none.
    Missing,
    /// It is this run's and complete.
    Valid(Marker),
    /// It cannot be read as a marker; why.
    Invalid(String),
    /// It carries another run's nonce.
    Stale {
        /// That nonce, cut to a readable length.
        run: String,
    },
}

/// Judges what was found at the marker's path.
#[must_use]
pub fn find(reading: &MarkerReading, run: &RunId) -> MarkerFinding {
    match reading {
        MarkerReading::Absent => MarkerFinding::Missing,
        MarkerReading::NotRead(why) => MarkerFinding::Invalid(why.clone()),
        MarkerReading::Bytes(bytes) => parse(bytes, run),
    }
}

fn parse(bytes: &[u8], run: &RunId) -> MarkerFinding {
    let fields = match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(fields)) => fields,
        Ok(
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_),
        ) => {
            return MarkerFinding::Invalid("not a JSON object".to_owned());
        }
        Err(error) => return MarkerFinding::Invalid(format!("not JSON: {error}")),
    };
    if let Some(other) = text(fields.get("run")).filter(|nonce| nonce != run.as_str()) {
        return MarkerFinding::Stale { run: other.chars().take(40).collect() };
    }
    let outcome = match text(fields.get("outcome")).as_deref() {
        Some("finalized") => Outcome::Finalized,
        Some("no-work") => Outcome::NoWork,
        Some("blocked") => Outcome::Blocked,
        Some(other) => {
            let shown: String = other.chars().take(40).collect();
            return MarkerFinding::Invalid(format!("unknown outcome {shown:?}"));
        }
        None => return MarkerFinding::Invalid("no outcome".to_owned()),
    };
    let marker = Marker {
        outcome,
        issue: text(fields.get("issue")).and_then(|issue| issue.parse().ok()).filter(|&n| n > 0),
        pr: text(fields.get("pr")),
        reason: text(fields.get("reason")),
        question: text(fields.get("question")),
    };
    if outcome == Outcome::Finalized && (marker.issue.is_none() || marker.pr.is_none()) {
        return MarkerFinding::Invalid("finalized without an issue and a pull request".to_owned());
    }
    MarkerFinding::Valid(marker)
}

/// A string or a number as text; nothing for null, empty and everything else.
fn text(value: Option<&Value>) -> Option<String> {
    match value? {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Whether a reason for being blocked asks for a decision of the owner (spec of the predecessor: the park reasons).
#[must_use]
pub fn asks_owner(reason: Option<&str>) -> bool {
    matches!(reason, Some("seam1-approval" | "needs-decision"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run() -> RunId {
        RunId::from_bytes([7; 16])
    }

    fn found(json: &str) -> MarkerFinding {
        find(&MarkerReading::Bytes(json.as_bytes().to_vec()), &run())
    }

    #[test]
    fn only_the_outcome_is_always_required() {
        assert!(matches!(found(r#"{"outcome":"no-work"}"#), MarkerFinding::Valid(_)));
        assert!(matches!(found(r#"{"outcome":"blocked"}"#), MarkerFinding::Valid(_)));
        assert!(matches!(found("{}"), MarkerFinding::Invalid(_)));
    }

    #[test]
    fn finalized_needs_an_issue_and_a_pull_request() {
        assert!(matches!(found(r#"{"outcome":"finalized","issue":7}"#), MarkerFinding::Invalid(_)));
        assert!(matches!(
            found(r#"{"outcome":"finalized","issue":"7","pr":12}"#),
            MarkerFinding::Valid(Marker { issue: Some(7), .. })
        ));
    }

    #[test]
    fn another_runs_nonce_is_stale_and_no_nonce_is_ours() {
        let other = RunId::from_bytes([9; 16]);
        assert!(matches!(
            found(&format!(r#"{{"outcome":"no-work","run":"{other}"}}"#)),
            MarkerFinding::Stale { .. }
        ));
        let own = run();
        assert!(matches!(
            found(&format!(r#"{{"outcome":"no-work","run":"{own}"}}"#)),
            MarkerFinding::Valid(_)
        ));
    }

    #[test]
    fn what_cannot_be_read_is_invalid_and_says_why() {
        for bad in ["", "[]", "null", "{", "\u{0}", r#"{"outcome":"done"}"#] {
            assert!(matches!(found(bad), MarkerFinding::Invalid(_)), "{bad:?}");
        }
        let fifo = MarkerReading::NotRead("it is a FIFO".to_owned());
        assert_eq!(find(&fifo, &run()), MarkerFinding::Invalid("it is a FIFO".to_owned()));
        assert_eq!(find(&MarkerReading::Absent, &run()), MarkerFinding::Missing);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _finding = find(&MarkerReading::Bytes(bytes), &run());
        }
    }
}
