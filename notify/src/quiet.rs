//! What repeats within a window is said once. Pure.
//!
//! Nothing is dropped without a trace: whoever folds keeps the count, and the next notice of that kind and subject
//! carries it.

use crate::notice::Kind;

/// What was said last of one kind about one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastSaid {
    /// Of what kind.
    pub kind: Kind,
    /// About what.
    pub subject: String,
    /// When it was said, in Unix milliseconds. Folding does not move it, so a steady stream is said once per window.
    pub at_ms: i64,
    /// How many were folded into it since.
    pub folded: u32,
}

/// What to do with a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    /// Say it.
    Now {
        /// How many were folded since the last time, to be told along.
        folded_before: u32,
    },
    /// Do not say it, count it.
    FoldInto {
        /// How many are folded now, this one included.
        count: u32,
    },
}

/// Whether a notice is said or folded into `previous`.
///
/// The first of a kind about a subject is always said. So is one after the clock went back: a window that cannot be
/// told is no reason to be quiet.
#[must_use]
pub fn fold(
    previous: Option<&LastSaid>,
    kind: Kind,
    subject: &str,
    now_ms: i64,
    window_ms: i64,
) -> Say {
    let Some(last) = previous.filter(|last| last.kind == kind && last.subject == subject) else {
        return Say::Now { folded_before: 0 };
    };
    let elapsed = now_ms.saturating_sub(last.at_ms);
    if (0..window_ms).contains(&elapsed) {
        Say::FoldInto { count: last.folded.saturating_add(1) }
    } else {
        Say::Now { folded_before: last.folded }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last(at_ms: i64, folded: u32) -> LastSaid {
        LastSaid { kind: Kind::OomKill, subject: "lane-1".into(), at_ms, folded }
    }

    #[test]
    fn the_first_is_said_and_repeats_are_counted() {
        let say =
            |previous: Option<&LastSaid>, now| fold(previous, Kind::OomKill, "lane-1", now, 600);
        assert_eq!(say(None, 0), Say::Now { folded_before: 0 });
        assert_eq!(say(Some(&last(0, 0)), 0), Say::FoldInto { count: 1 });
        assert_eq!(say(Some(&last(0, 6)), 599), Say::FoldInto { count: 7 });
        assert_eq!(say(Some(&last(0, 7)), 600), Say::Now { folded_before: 7 });
        assert_eq!(
            say(Some(&last(0, 7)), -1),
            Say::Now { folded_before: 7 },
            "the clock went back"
        );
    }

    #[test]
    fn others_do_not_fold() {
        let said = last(0, 3);
        let now = Say::Now { folded_before: 0 };
        assert_eq!(fold(Some(&said), Kind::LaneDead, "lane-1", 1, 600), now);
        assert_eq!(fold(Some(&said), Kind::OomKill, "lane-2", 1, 600), now);
    }
}
