//! Records that could not be written wait here, in order, until the disk is well again.

use std::collections::VecDeque;

use super::rows::{Queued, Write};

/// One record: rows and the notices that they cause.
#[derive(Debug, Clone, Default)]
pub(super) struct Record {
    pub(super) writes: Vec<Write>,
    pub(super) notices: Vec<Queued>,
}

/// A bounded queue. A lane's older states are superseded by its newest, so hours of a full disk fit.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    records: VecDeque<Record>,
    dropped: u64,
}

/// The most records that wait.
const MOST: usize = 2000;

impl Backlog {
    pub(super) fn push(&mut self, record: Record) {
        for write in &record.writes {
            let Write::Lane(row) = write else { continue };
            for old in &mut self.records {
                old.writes.retain(|old| !matches!(old, Write::Lane(old) if old.lane == row.lane));
            }
        }
        self.records.retain(|old| !old.writes.is_empty() || !old.notices.is_empty());
        if self.records.len() >= MOST {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
    }

    pub(super) fn front(&self) -> Option<&Record> {
        self.records.front()
    }

    pub(super) fn pop(&mut self) {
        self.records.pop_front();
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// How many records were lost because too many waited.
    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }
}
