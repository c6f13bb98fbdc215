//! Which numbers were processes and threads of a run, and when they were last seen.

use std::collections::BTreeMap;

/// How long a number is remembered after it was last seen, milliseconds: a kill line may come late, and a number that was
/// not seen for longer may be somebody else's.
pub const REMEMBERED_MS: i64 = 60_000;

/// The most numbers of one run that are remembered; a fork bomb gains nothing.
const MOST: usize = 8192;

/// The numbers of one run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Roster {
    seen: BTreeMap<u32, i64>,
}

impl Roster {
    /// These were seen now.
    pub fn see(&mut self, tasks: &[u32], now_ms: i64) {
        self.seen.retain(|_, at| now_ms.saturating_sub(*at) <= REMEMBERED_MS);
        for &task in tasks {
            if self.seen.len() < MOST || self.seen.contains_key(&task) {
                self.seen.insert(task, now_ms);
            }
        }
    }

    /// All that are remembered, ascending.
    #[must_use]
    pub fn tasks(&self) -> Vec<u32> {
        self.seen.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_remembered_for_a_minute_and_the_memory_is_bounded() {
        let mut roster = Roster::default();
        roster.see(&[3, 1], 0);
        roster.see(&[2], REMEMBERED_MS);
        assert_eq!(roster.tasks(), [1, 2, 3]);
        roster.see(&[], REMEMBERED_MS + 1);
        assert_eq!(roster.tasks(), [2]);
        let many: Vec<u32> = (10..100_000).collect();
        roster.see(&many, REMEMBERED_MS + 2);
        assert_eq!(roster.tasks().len(), MOST);
    }
}
