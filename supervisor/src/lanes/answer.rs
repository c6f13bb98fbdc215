//! The closed set of verdicts on the lane lock, their exit codes, and the one line in which they are said.

use serde_json::{Map, Value};

use crate::{exit_code, text::harmless};

/// An ownership answer: somebody else has it.
const OWNED: u8 = 2;

lanewarden_probes::closed_set! {
    /// What came of a question about a lane's lock.
    pub enum Verdict {
        /// The lane was free and is ours.
        Acquired = "ACQUIRED",
        /// It was ours already.
        Reentrant = "ACQUIRED (re-entrant)",
        /// Its holder was dead; it is ours.
        AcquiredReclaimed = "ACQUIRED (reclaimed)",
        /// It is exactly ours.
        VerifyOk = "VERIFY-OK",
        /// Nobody holds it.
        Free = "FREE",
        /// Somebody holds it, perhaps we.
        Held = "HELD",
        /// It was ours and is free.
        Released = "RELEASED",
        /// It was free.
        AlreadyFree = "RELEASED (already free)",
        /// It is ours now, as was asked for.
        Reclaimed = "RECLAIMED",
        /// It was ours already.
        ReclaimedReentrant = "RECLAIMED (re-entrant)",
        /// It is ours, but not under the lease that was stated.
        ReclaimLeaseMismatch = "RECLAIM-LEASE-MISMATCH",
        /// The state of the locks.
        Status = "STATUS",
        /// Somebody else holds it.
        Occupied = "OCCUPIED",
        /// It is not ours.
        VerifyFail = "VERIFY-FAIL",
        /// It is not ours to give back.
        ReleaseRefused = "RELEASE-REFUSED",
        /// It is held under another lease than was stated.
        ReleaseLost = "RELEASE-LOST",
        /// It is held otherwise than was stated.
        ReclaimLost = "RECLAIM-LOST",
        /// It could not be told; never that somebody else has it.
        Error = "ERROR",
    }
}

impl Verdict {
    /// The exit code: 0 yes, 2 somebody else's, 1 could not be told.
    #[must_use]
    pub const fn exit(self) -> u8 {
        match self {
            Self::Acquired
            | Self::Reentrant
            | Self::AcquiredReclaimed
            | Self::VerifyOk
            | Self::Free
            | Self::Held
            | Self::Released
            | Self::AlreadyFree
            | Self::Reclaimed
            | Self::ReclaimedReentrant
            | Self::ReclaimLeaseMismatch
            | Self::Status => exit_code::OK,
            Self::Occupied
            | Self::VerifyFail
            | Self::ReleaseRefused
            | Self::ReleaseLost
            | Self::ReclaimLost => OWNED,
            Self::Error => exit_code::FAILED,
        }
    }
}

/// A verdict with what belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// The verdict.
    pub verdict: Verdict,
    /// Its fields, in the order of the line.
    pub fields: Vec<(&'static str, Value)>,
    /// The directory; said last, so that a reader can take the rest of the line.
    pub lane_dir: Option<String>,
    /// Remarks beside the line.
    pub notes: Vec<String>,
}

impl Answer {
    /// A verdict without fields.
    #[must_use]
    pub const fn new(verdict: Verdict) -> Self {
        Self { verdict, fields: Vec::new(), lane_dir: None, notes: Vec::new() }
    }

    /// Adds a field.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<Value>) -> Self {
        self.fields.push((key, value.into()));
        self
    }

    /// Sets the directory.
    #[must_use]
    pub fn at(mut self, dir: &str) -> Self {
        self.lane_dir = Some(dir.to_owned());
        self
    }

    /// Adds a remark.
    #[must_use]
    pub fn noting(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// `LANE-LOCK: VERDICT key=value ... lane-dir=...`, control characters escaped.
    #[must_use]
    pub fn line(&self) -> String {
        let mut line = format!("LANE-LOCK: {}", self.verdict);
        for (key, value) in &self.fields {
            let shown = match value {
                Value::Bool(true) => "yes".to_owned(),
                Value::Bool(false) => "no".to_owned(),
                Value::Null => "-".to_owned(),
                Value::String(text) => text.clone(),
                Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
            };
            line.push_str(&format!(" {key}={}", harmless(&shown)));
        }
        if let Some(dir) = &self.lane_dir {
            line.push_str(&format!(" lane-dir={}", harmless(dir)));
        }
        line
    }

    /// The same as a JSON object: `verdict`, the fields with `_` for `-`, `lane_dir`.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut map = Map::new();
        map.insert("verdict".to_owned(), self.verdict.as_str().into());
        for (key, value) in &self.fields {
            map.insert(key.replace('-', "_"), value.clone());
        }
        map.insert("lane_dir".to_owned(), self.lane_dir.clone().into());
        Value::Object(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_last_and_nothing_drives_a_terminal() {
        let answer = Answer::new(Verdict::Held)
            .at("/a b\u{1b}[31m")
            .with("issue", 7)
            .with("reclaimable", false);
        assert_eq!(
            answer.line(),
            "LANE-LOCK: HELD issue=7 reclaimable=no lane-dir=/a b\\u{1b}[31m"
        );
        assert_eq!(answer.json()["issue"], 7);
    }

    #[test]
    fn every_verdict_has_its_exit_code() {
        let codes: Vec<u8> = Verdict::ALL.iter().map(|verdict| verdict.exit()).collect();
        assert_eq!(codes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 1]);
    }
}
