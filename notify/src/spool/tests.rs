//! On a real database file.

use std::path::Path;

use super::*;
use crate::{
    notice::Notice,
    render::{Context, render},
};

struct Spool {
    dir: tempfile::TempDir,
    conn: Connection,
}

fn open(dir: &Path) -> Connection {
    let conn = Connection::open(dir.join("spool.db")).unwrap();
    conn.execute_batch(SCHEMA).unwrap();
    conn
}

impl Spool {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let conn = open(dir.path());
        Self { dir, conn }
    }

    fn reopened(self) -> Self {
        drop(self.conn);
        let conn = open(self.dir.path());
        Self { dir: self.dir, conn }
    }

    fn put(&self, id: &str, subject: &str, level: Level, at_ms: i64) -> bool {
        let kind = if level == Level::High { Kind::OomKill } else { Kind::Blocked };
        let message =
            render(&Notice::Test { level }, &Context { id: id.into(), ..Context::default() });
        let notice =
            Enqueue { id, subject, kind, level, at_ms, unrecorded: false, message: &message };
        enqueue(&self.conn, &notice).unwrap()
    }

    fn due(&self, now_ms: i64) -> Vec<String> {
        due(&self.conn, now_ms, 100).unwrap().into_iter().map(|row| row.id).collect()
    }

    fn row(&self, id: &str) -> RowId {
        let seq = self
            .conn
            .query_row("SELECT seq FROM notice_spool WHERE id = ?1", [id], |found| found.get(0))
            .unwrap();
        RowId(seq)
    }

    fn deliver(&self, id: &str, now_ms: i64) {
        delivered(&self.conn, self.row(id), now_ms, "server-id").unwrap();
    }
}

#[test]
fn an_identity_is_queued_once_whatever_became_of_it() {
    let spool = Spool::new();
    assert!(spool.put("a", "lane-1", Level::High, 10));
    assert!(!spool.put("a", "lane-1", Level::High, 20), "waiting");
    spool.deliver("a", 30);
    let spool = spool.reopened();
    assert!(!spool.put("a", "lane-1", Level::High, 40), "delivered, and the process is another");
    assert_eq!(spool.due(1_000), [""; 0]);
    let message = render(&Notice::StoreRecovered, &Context::default());
    let notice = Enqueue {
        id: "not an id",
        subject: "box",
        kind: Kind::StoreRecovered,
        level: Level::Recovery,
        at_ms: 0,
        unrecorded: false,
        message: &message,
    };
    assert!(matches!(enqueue(&spool.conn, &notice), Err(SpoolError::Id)));
}

#[test]
fn what_was_queued_comes_back_as_it_was() {
    let spool = Spool::new();
    let context = Context { machine: "box-a".into(), id: "a".into(), ..Context::default() };
    let message = render(&Notice::StoreRecovered, &context);
    let notice = Enqueue {
        id: "a",
        subject: "box",
        kind: Kind::StoreRecovered,
        level: Level::Recovery,
        at_ms: 7,
        unrecorded: true,
        message: &message,
    };
    assert!(enqueue(&spool.conn, &notice).unwrap());
    let spool = spool.reopened();
    let rows = due(&spool.conn, 10, 10).unwrap();
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!(row.message, message);
    assert_eq!((row.raised_at_ms, row.unrecorded, row.attempts), (7, true, 0));
    assert_eq!((row.kind.as_str(), row.level), ("store-recovered", Level::Recovery));
}

#[test]
fn high_goes_first_and_no_subject_is_overtaken() {
    let spool = Spool::new();
    spool.put("info-1", "lane-1", Level::Info, 1);
    spool.put("info-2", "lane-2", Level::Info, 2);
    spool.put("high-2", "lane-2", Level::High, 3);
    spool.put("high-3", "lane-3", Level::High, 4);
    spool.put("high-3b", "lane-3", Level::High, 5);
    // lane-2's info holds up a page, so it goes with the pages.
    assert_eq!(spool.due(10), ["info-2", "high-3", "info-1"]);
    spool.deliver("info-2", 11);
    assert_eq!(spool.due(11), ["high-2", "high-3", "info-1"]);
    assert_eq!(due(&spool.conn, 11, 1).unwrap().len(), 1);
    retry(&spool.conn, spool.row("high-3"), 5_000, Reason::Connect).unwrap();
    assert!(!spool.due(4_999).contains(&"high-3b".to_owned()), "its elder waits");
    assert_eq!(spool.due(5_000), ["high-2", "high-3", "info-1"]);
    assert_eq!(spool.due(0), ["high-2"], "a set-back clock holds no page up");
}

#[test]
fn an_attempt_is_on_disk_before_it_is_made() {
    let spool = Spool::new();
    spool.put("a", "lane-1", Level::High, 1);
    assert_eq!(record_attempt(&spool.conn, spool.row("a"), 5).unwrap(), 1);
    let spool = spool.reopened();
    assert_eq!(due(&spool.conn, 10, 10).unwrap()[0].attempts, 1);
    assert_eq!(list(&spool.conn, None, 10).unwrap()[0].last_attempt_at_ms, Some(5));
}

#[test]
fn an_outage_pauses_the_channel_but_for_an_untried_page() {
    let spool = Spool::new();
    spool.put("a", "lane-1", Level::High, 1);
    record_attempt(&spool.conn, spool.row("a"), 5).unwrap();
    retry(&spool.conn, spool.row("a"), 9_000, Reason::Timeout).unwrap();
    spool.put("info", "lane-2", Level::Info, 6);
    let spool = spool.reopened();
    assert_eq!(spool.due(8_999), [""; 0]);
    assert_eq!(next_due_at(&spool.conn).unwrap(), Some(9_000));
    spool.put("page", "lane-3", Level::High, 7);
    assert_eq!(spool.due(10), ["page"]);
    assert_eq!(next_due_at(&spool.conn).unwrap(), Some(0));
    assert_eq!(
        record_attempt(&spool.conn, spool.row("page"), 11).unwrap(),
        2,
        "the channel's second"
    );
    retry(&spool.conn, spool.row("page"), 12_000, Reason::Timeout).unwrap();
    assert_eq!(spool.due(11_999), [""; 0]);
    assert_eq!(spool.due(12_000), ["a", "page", "info"]);
    spool.deliver("a", 12_001);
    assert_eq!(spool.due(12_001), ["page", "info"]);
}

#[test]
fn a_server_that_counts_is_left_alone_even_over_a_restart() {
    for reason in [Reason::Quota, Reason::RateLimited] {
        let spool = Spool::new();
        spool.put("a", "lane-1", Level::High, 1);
        retry(&spool.conn, spool.row("a"), 50_000, reason).unwrap();
        spool.put("page", "lane-2", Level::High, 2);
        let spool = spool.reopened();
        assert_eq!(spool.due(49_999), [""; 0], "{reason}");
        assert_eq!(next_due_at(&spool.conn).unwrap(), Some(50_000));
        retry(&spool.conn, spool.row("page"), 3, Reason::Connect).unwrap();
        assert_eq!(spool.due(49_999), [""; 0], "{reason} is not made shorter");
        assert_eq!(spool.due(50_000), ["a", "page"]);
    }
}

#[test]
fn refused_for_good_is_kept_and_the_next_one_goes() {
    let spool = Spool::new();
    spool.put("a", "lane-1", Level::High, 1);
    spool.put("b", "lane-1", Level::High, 2);
    dead_letter(&spool.conn, spool.row("a"), 10, Reason::BadRequest).unwrap();
    assert_eq!(spool.due(10), ["b"]);
    let dead = list(&spool.conn, Some(State::Dead), 10).unwrap();
    assert_eq!((dead[0].id.as_str(), dead[0].reason.as_deref()), ("a", Some("bad-request")));
}

#[test]
fn bad_credentials_wait_an_hour_or_for_a_reload_and_cost_nothing() {
    let spool = Spool::new();
    spool.put("a", "lane-1", Level::High, 1);
    spool.put("b", "lane-2", Level::High, 2);
    dead_letter(&spool.conn, spool.row("a"), 10, Reason::Unauthorized).unwrap();
    let spool = spool.reopened();
    assert_eq!(spool.due(3_600_009), [""; 0]);
    assert_eq!(spool.due(3_600_010), ["b"]);
    assert_eq!(reload(&spool.conn).unwrap(), 1);
    assert_eq!(spool.due(11), ["a", "b"]);
}

#[test]
fn a_long_text_is_shortened_once() {
    let spool = Spool::new();
    let long = Notice::Text { level: Level::High, title: "t".into(), message: "x".repeat(5_000) };
    let message = render(&long, &Context::default());
    let notice = Enqueue {
        id: "long",
        subject: "box",
        kind: Kind::Text,
        level: Level::High,
        at_ms: 1,
        unrecorded: false,
        message: &message,
    };
    enqueue(&spool.conn, &notice).unwrap();
    assert!(shorten_once(&spool.conn, spool.row("long")).unwrap());
    assert!(due(&spool.conn, 1, 1).unwrap()[0].message.message.len() <= 1_000);
    assert!(!shorten_once(&spool.conn, spool.row("long")).unwrap());
    spool.put("short", "lane-1", Level::High, 2);
    assert!(!shorten_once(&spool.conn, spool.row("short")).unwrap());
}

#[test]
fn a_full_queue_drops_the_oldest_quiet_ones_and_says_so() {
    let spool = Spool::new();
    for n in 0..6_i64 {
        let level = if n % 2 == 0 { Level::High } else { Level::Info };
        spool.put(&format!("n{n}"), &format!("lane-{n}"), level, 100 + n);
    }
    let limits = Limits { pending: 4, ..Limits::default() };
    assert_eq!(bound(&spool.conn, 200, &limits).unwrap(), 2);
    assert_eq!(spool.due(200), ["n0", "n2", "n4", "n5"]);
    let limits = Limits { pending: 2, ..limits };
    assert_eq!(bound(&spool.conn, 200, &limits).unwrap(), 2);
    assert_eq!(spool.due(200), ["n2", "n4"], "pages last, and of them the oldest first");
    assert!(!spool.put("n1", "lane-1", Level::Info, 300), "a dropped identity is known");
    let counted = counts(&spool.conn).unwrap();
    assert_eq!((counted.pending, counted.dropped), (2, 4));
    let spool = spool.reopened();
    let told = take_dropped(&spool.conn).unwrap();
    let blocked = Dropped { kind: "blocked".into(), dropped: 3, since_ms: 101 };
    let oom = Dropped { kind: "oom-kill".into(), dropped: 1, since_ms: 100 };
    assert_eq!(told, [blocked, oom]);
    assert_eq!(take_dropped(&spool.conn).unwrap(), []);
}

#[test]
fn age_drops_what_waits_and_forgets_what_is_settled() {
    const HOUR: i64 = 3_600_000;
    let spool = Spool::new();
    spool.put("old", "lane-1", Level::High, 0);
    spool.put("young", "lane-2", Level::High, HOUR);
    spool.put("done", "lane-3", Level::High, HOUR);
    spool.put("dead", "lane-4", Level::High, HOUR);
    spool.deliver("done", HOUR);
    dead_letter(&spool.conn, spool.row("dead"), HOUR, Reason::BadRequest).unwrap();
    let ids = |spool: &Spool| -> Vec<String> {
        let mut ids: Vec<_> =
            list(&spool.conn, None, 10).unwrap().into_iter().map(|l| l.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(bound(&spool.conn, 72 * HOUR, &Limits::default()).unwrap(), 0);
    assert_eq!(bound(&spool.conn, 72 * HOUR + 1, &Limits::default()).unwrap(), 1);
    assert_eq!(spool.due(72 * HOUR + 1), ["young"]);
    assert_eq!(ids(&spool), ["dead", "done", "old", "young"]);
    spool.deliver("young", 100 * HOUR);
    bound(&spool.conn, 169 * HOUR + 1, &Limits::default()).unwrap();
    assert_eq!(ids(&spool), ["dead", "old", "young"], "delivered at hour 1 is forgotten");
    bound(&spool.conn, 170 * HOUR, &Limits { settled: 1, ..Limits::default() }).unwrap();
    assert_eq!(ids(&spool), ["young"], "few are kept, the newest");
}

#[test]
fn a_damaged_row_still_pages() {
    let spool = Spool::new();
    spool.put("a", "lane-1", Level::High, 1);
    spool
        .conn
        .execute(
            "UPDATE notice_spool SET message = '{', level = 'loud', kind = 'x' WHERE id = 'a'",
            [],
        )
        .unwrap();
    let rows = due(&spool.conn, 10, 10).unwrap();
    assert_eq!((rows[0].level, rows[0].message.priority), (Level::High, 5));
    assert!(rows[0].message.message.contains("id a"), "{}", rows[0].message.message);
}

#[test]
fn counts_and_times_of_an_empty_queue() {
    let spool = Spool::new();
    assert_eq!(counts(&spool.conn).unwrap(), SpoolCounts::default());
    assert_eq!(next_due_at(&spool.conn).unwrap(), None);
    spool.put("a", "lane-1", Level::High, 42);
    let counted = counts(&spool.conn).unwrap();
    assert_eq!((counted.pending, counted.oldest_pending_at_ms), (1, Some(42)));
}

#[test]
fn a_transaction_that_is_rolled_back_leaves_no_notice() {
    let mut spool = Spool::new();
    let message = render(&Notice::StoreRecovered, &Context::default());
    let notice = Enqueue {
        id: "a",
        subject: "box",
        kind: Kind::StoreRecovered,
        level: Level::Recovery,
        at_ms: 0,
        unrecorded: false,
        message: &message,
    };
    let transaction = spool.conn.transaction().unwrap();
    assert!(enqueue(&transaction, &notice).unwrap());
    transaction.rollback().unwrap();
    assert_eq!(counts(&spool.conn).unwrap().pending, 0);
}
