//! The store on real files: what is written is there again, and a disk that is full loses nothing.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use lanewarden_notify::{Context, Notice, render, spool};
use lanewarden_probes::ending::Usage;
use rusqlite::Connection;
use tempfile::TempDir;

use super::{
    backlog::{Backlog, Record},
    rows::{EndedRow, KillRow, LaneRow, Memory, OpenRun, OpenWorker, Queued, Write},
    *,
};
use crate::{
    ids::{LaneId, RunId},
    verdict::{LaneState, RunVerdict, SigkillEnd, Verified},
};

const BOOT: &str = "11111111-2222-3333-4444-555555555555";

fn place() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = path(dir.path());
    (dir, path)
}

fn started(path: &Path) -> Store {
    Store::start(open(path).unwrap(), BOOT.to_owned()).unwrap()
}

fn id(name: &str) -> LaneId {
    LaneId::new(name).unwrap()
}

fn run(byte: u8) -> RunId {
    RunId::from_bytes([byte; 16])
}

fn lane_row(name: &str, state: LaneState) -> LaneRow {
    LaneRow {
        lane: id(name),
        state,
        reason: Some("because \u{1b}[31m\0".to_owned()),
        since_ms: 5,
        again: false,
        down: true,
        next_start_boot_ms: Some(u64::MAX),
        streak: 2,
        failures_boot_ms: vec![1, 2],
        runs: 3,
        issues: 1,
        counting_since_ms: 4,
        issue: Some(88),
        last: Some((RunVerdict::Finalized, Verified::Unverified)),
    }
}

fn open_run(byte: u8, lane: &str, at_ms: i64) -> OpenRun {
    OpenRun {
        run: run(byte),
        lane: id(lane),
        started_at_ms: at_ms,
        worker: Some(OpenWorker {
            pid: 4_194_303,
            start_ticks: 1 << 40,
            boot_id: BOOT.to_owned(),
            pidns: Some(4_026_531_836),
            cgroup: Some("/lanes/x".to_owned()),
        }),
    }
}

fn ended(byte: u8, lane: &str, at_ms: i64) -> EndedRow {
    EndedRow {
        run: run(byte),
        lane: id(lane),
        issue: Some(7),
        verdict: RunVerdict::OomKilled,
        verified: Verified::NotAsked,
        exit_code: None,
        signal: Some(9),
        end: Some(SigkillEnd::OomMemcg),
        started_at_ms: at_ms - 1500,
        ended_at_ms: at_ms,
        peak_memory_bytes: Some(1 << 35),
        usage: Usage { user_us: 1, system_us: 2, max_rss_kb: 3 },
        leftovers: 4,
        reason: "an OOM killer ended it".to_owned(),
        evidence: serde_json::json!({"marker": "missing", "oom_kills_counted": 1}),
    }
}

fn audit(what: &str) -> Write {
    Write::Audit { at_ms: 1, what: what.to_owned() }
}

/// A write that needs pages of its own.
fn large(what: char) -> Write {
    audit(&what.to_string().repeat(40_000))
}

fn starting(byte: u8) -> Write {
    Write::RunStarting { run: run(byte), lane: id("a"), at_ms: 10 }
}

fn queued(id: &str) -> Queued {
    let notice = Notice::StoreRecovered;
    let message = render(&notice, &Context { id: id.to_owned(), ..Context::default() });
    Queued { id: id.to_owned(), notice, at_ms: 9, message }
}

fn audits(connection: &Connection) -> Vec<String> {
    let mut statement = connection.prepare("SELECT what FROM audit ORDER BY rowid").unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|what| what.unwrap().chars().take(1).collect()).collect()
}

async fn written_soon(file: &Connection, what: &[&str]) {
    let poll = async {
        while audits(file) != what {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let done = tokio::time::timeout(Duration::from_secs(20), poll).await;
    assert!(done.is_ok(), "still not written: {:?}", audits(file));
}

async fn set_pages(store: &Store, most: u32) {
    store
        .call("bounding the file", move |connection| {
            connection.query_row(&format!("PRAGMA max_page_count = {most}"), [], |_| Ok(()))
        })
        .await
        .unwrap();
}

fn waits(written: &Written, records: usize) -> bool {
    matches!(written, Written::Waiting(why) if why.contains(&format!("({records} records wait, 0 lost)")))
}

#[expect(clippy::too_many_lines, reason = "one list of all writes, and one question for each")]
#[tokio::test]
async fn every_write_is_there_when_the_file_is_opened_again() {
    let (_dir, path) = place();
    let kill = KillRow {
        seq: Some(u64::MAX),
        at_ms: 8,
        lane: Some(id("a")),
        run: Some(run(1)),
        class: SigkillEnd::OomMemcg,
        proof: "cgroup".to_owned(),
        kill: serde_json::json!({"pid": 7}),
    };
    let stamped = |lane: &str| Write::ClaimStamped {
        lane: id(lane),
        name: format!("refs/{lane}"),
        oid: "f".repeat(40),
        at_ms: 7,
    };
    let writes = vec![
        Write::Lane(lane_row("a", LaneState::Running)),
        Write::Lane(lane_row("b", LaneState::Parked)),
        starting(1),
        Write::RunStarted(open_run(1, "a", 20)),
        Write::RunEnded(Box::new(ended(1, "a", 2000))),
        starting(2),
        starting(3),
        Write::RunStarted(open_run(3, "a", 30)),
        Write::OomKill(Box::new(kill.clone())),
        // The kernel's record is read again by the next daemon.
        Write::OomKill(Box::new(kill)),
        stamped("a"),
        stamped("b"),
        Write::ClaimRemoved { lane: id("b") },
        Write::Remember { key: Memory::KernelLog, value: "17".to_owned() },
        Write::Remember { key: Memory::KernelLog, value: "18".to_owned() },
        audit("x"),
    ];
    for write in &writes {
        // A new member belongs into the list above, and into the questions below.
        match write {
            Write::Lane(_)
            | Write::RunStarting { .. }
            | Write::RunStarted(_)
            | Write::RunEnded(_)
            | Write::OomKill(_)
            | Write::ClaimStamped { .. }
            | Write::ClaimRemoved { .. }
            | Write::Remember { .. }
            | Write::Audit { .. } => {}
        }
    }
    assert_eq!(started(&path).record(writes, vec![queued("n-1")]).await, Written::Committed);

    let file = open_to_read(&path).unwrap();
    let rows = [lane_row("a", LaneState::Running), lane_row("b", LaneState::Parked)];
    assert_eq!(lanes(&file).unwrap(), rows.map(|row| (row, BOOT.to_owned())));
    let unconfirmed = OpenRun { run: run(2), lane: id("a"), started_at_ms: 10, worker: None };
    assert_eq!(open_runs(&file).unwrap(), [unconfirmed, open_run(3, "a", 30)]);
    let log = remembered(&file, Memory::KernelLog).unwrap();
    assert_eq!(log, Some((BOOT.to_owned(), "18".to_owned())));
    assert_eq!(remembered(&file, Memory::Density).unwrap(), None);
    let past = history(&file, None, 10).unwrap();
    let expected = HistoryRow {
        run: run(1).to_string(),
        lane: "a".to_owned(),
        issue: Some(7),
        verdict: RunVerdict::OomKilled,
        verified: Verified::NotAsked,
        exit_code: None,
        signal: Some(9),
        end: Some(SigkillEnd::OomMemcg),
        started_at: "1970-01-01T00:00:00.500Z".to_owned(),
        ended_at: "1970-01-01T00:00:02.000Z".to_owned(),
        duration_s: 1.5,
        peak_memory_bytes: Some(1 << 35),
        evidence: serde_json::json!({"marker": "missing", "oom_kills_counted": 1}),
        started_at_ms: 500,
        ended_at_ms: 2000,
        pid: Some(4_194_303),
        reason: "an OOM killer ended it".to_owned(),
    };
    assert_eq!(past, [expected]);
    let claim = ("a".to_owned(), "refs/a".to_owned(), "f".repeat(40), 7);
    assert_eq!(claims(&file).unwrap(), [claim]);
    assert_eq!(audits(&file), ["x"]);
    let kills: (u32, i64) = file
        .query_row("SELECT count(*), max(seq) FROM oom_kill WHERE lane = 'a'", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(kills, (1, i64::MAX));
    let told = spool::list(&file, None, 10).unwrap();
    assert_eq!((told.len(), told[0].id.as_str(), told[0].raised_at_ms), (1, "n-1", 9));
}

#[tokio::test]
async fn a_newer_row_replaces_an_older_one() {
    let (_dir, path) = place();
    let store = started(&path);
    let stamp = |oid: &str| Write::ClaimStamped {
        lane: id("a"),
        name: "r".to_owned(),
        oid: oid.to_owned(),
        at_ms: 1,
    };
    store.record(vec![Write::Lane(lane_row("a", LaneState::Starting)), stamp("1")], vec![]).await;
    store.record(vec![Write::Lane(lane_row("a", LaneState::Running)), stamp("2")], vec![]).await;
    // A run that is judged twice, by two daemons, is one run; so is the page that tells it.
    for signal in [9, 15] {
        let row = EndedRow { signal: Some(signal), ..ended(1, "a", 2000) };
        store.record(vec![Write::RunEnded(Box::new(row))], vec![queued("same")]).await;
    }
    let file = open_to_read(&path).unwrap();
    assert_eq!(lanes(&file).unwrap()[0].0.state, LaneState::Running);
    assert_eq!(claims(&file).unwrap()[0].2, "2");
    let past = history(&file, None, 10).unwrap();
    assert_eq!((past.len(), past[0].signal), (1, Some(15)));
    assert_eq!(spool::counts(&file).unwrap().pending, 1);
}

#[tokio::test]
async fn history_is_newest_first_by_lane_and_bounded() {
    let (_dir, path) = place();
    let store = started(&path);
    let ends = [(1, "a", 3000), (2, "b", 5000), (3, "a", 4000), (4, "a", 4000)];
    let writes = ends.map(|(byte, lane, at)| Write::RunEnded(Box::new(ended(byte, lane, at))));
    store.record(writes.to_vec(), vec![]).await;
    // Two months are not made smaller than they are.
    let long = EndedRow { started_at_ms: 0, ..ended(5, "c", 5_184_000_000) };
    store.record(vec![Write::RunEnded(Box::new(long)), starting(6)], vec![]).await;
    let file = open_to_read(&path).unwrap();
    let runs = |lane: Option<&str>, limit| -> Vec<String> {
        let lane = lane.map(id);
        let rows = history(&file, lane.as_ref(), limit).unwrap();
        rows.into_iter().map(|row| row.run).collect()
    };
    let named = |bytes: &[u8]| bytes.iter().map(|&byte| run(byte).to_string()).collect::<Vec<_>>();
    assert_eq!(runs(None, 10), named(&[5, 2, 4, 3, 1]), "what has not ended is no history");
    assert_eq!(runs(Some("a"), 10), named(&[4, 3, 1]));
    assert_eq!(runs(Some("a"), 2), named(&[4, 3]));
    assert_eq!(runs(Some("nobody"), 2), named(&[]));
    assert_eq!(history(&file, None, 1).unwrap()[0].duration_s, 5_184_000.0);
    assert_eq!(newest_runs(&file, &id("a"), 2).unwrap(), named(&[4, 3]));
    let start = "030303";
    assert_eq!(started_run(&file, &id("a"), start).unwrap(), Some(run(3).to_string()));
    assert_eq!(started_run(&file, &id("b"), start).unwrap(), None);
    assert_eq!(started_run(&file, &id("a"), "%").unwrap(), None, "no pattern");
}

#[test]
fn an_empty_file_is_migrated_once_and_keeps_what_it_has() {
    let (_dir, path) = place();
    std::fs::write(&path, b"").unwrap();
    let version = |file: &Connection| -> i64 {
        file.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    {
        let file = open(&path).unwrap();
        assert_eq!(version(&file), SCHEMA_VERSION);
        let mode: String = file.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
        file.execute("INSERT INTO audit VALUES (1, 'kept')", []).unwrap();
    }
    let file = open(&path).unwrap();
    assert_eq!(audits(&file), ["k"]);
    assert_eq!(version(&file), SCHEMA_VERSION);
}

#[test]
fn a_store_of_the_first_release_keeps_what_it_has() {
    let (_dir, path) = place();
    {
        let file = Connection::open(&path).unwrap();
        file.execute_batch(schema::V1).unwrap();
        file.execute_batch(spool::SCHEMA).unwrap();
        file.pragma_update(None, "user_version", 1).unwrap();
        file.execute("INSERT INTO oom_kill VALUES ('boot', 7, 1, 'a', NULL, '{}')", []).unwrap();
    }
    let file = open(&path).unwrap();
    let kept: (i64, Option<String>) = file
        .query_row("SELECT seq, class FROM oom_kill", [], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap();
    assert_eq!(kept, (7, None));
    assert_eq!(remembered(&file, Memory::KernelLog).unwrap(), None);
}

#[test]
fn a_store_of_a_newer_release_is_refused_and_left_alone() {
    let (_dir, path) = place();
    let newer = SCHEMA_VERSION + 1;
    open(&path).unwrap().pragma_update(None, "user_version", newer).unwrap();
    for error in [open(&path).unwrap_err(), open_to_read(&path).unwrap_err()] {
        assert!(matches!(error, StoreError::Newer { found, .. } if found == newer), "{error}");
        assert!(error.to_string().contains("run the release that wrote it"));
    }
    let file = Connection::open(&path).unwrap();
    let kept: i64 = file.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
    assert_eq!(kept, newer);
}

#[test]
fn what_is_no_store_is_refused_by_name() {
    let (dir, path) = place();
    assert!(matches!(open_to_read(&path), Err(StoreError::Open { .. })));
    assert!(!path.exists(), "reading makes nothing");
    std::fs::write(&path, b"not a database, and long enough that SQLite looks at it").unwrap();
    for error in [open(&path).unwrap_err(), open_to_read(&path).unwrap_err()] {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    let error = open(&dir.path().join("missing/lanewarden.db")).unwrap_err();
    assert!(error.to_string().contains("check that the directory exists"), "{error}");
}

#[tokio::test]
async fn a_full_disk_keeps_everything_in_order_until_there_is_room() {
    let (_dir, path) = place();
    let store = started(&path);
    assert_eq!(store.record(vec![audit("a")], vec![]).await, Written::Committed);
    set_pages(&store, 1).await;
    let written = store.record(vec![large('b')], vec![queued("n-b")]).await;
    assert!(waits(&written, 1), "{written:?}");
    // What would fit waits behind it all the same: the order is the order of events.
    let written = store.record(vec![audit("c")], vec![]).await;
    assert!(waits(&written, 2), "{written:?}");
    // A lane's older states are superseded; nothing else is.
    for state in [LaneState::Starting, LaneState::Running, LaneState::Cooling] {
        let written = store.record(vec![Write::Lane(lane_row("a", state))], vec![]).await;
        assert!(waits(&written, 3), "{written:?}");
    }
    let both = vec![starting(1), Write::Lane(lane_row("a", LaneState::Stopped))];
    let written = store.record(both, vec![]).await;
    assert!(waits(&written, 3), "{written:?}");
    let file = open_to_read(&path).unwrap();
    assert_eq!(audits(&file), ["a"], "reading works on a full disk");
    assert_eq!(spool::counts(&file).unwrap().pending, 0);

    set_pages(&store, 1_000_000).await;
    assert_eq!(store.record(vec![audit("d")], vec![]).await, Written::Committed);
    assert_eq!(audits(&file), ["a", "b", "c", "d"]);
    assert_eq!(lanes(&file).unwrap()[0].0.state, LaneState::Stopped);
    assert_eq!(open_runs(&file).unwrap().len(), 1);
    assert_eq!(spool::counts(&file).unwrap().pending, 1);
}

#[tokio::test]
async fn a_disk_that_is_well_again_is_written_without_being_asked() {
    let (_dir, path) = place();
    let store = started(&path);
    set_pages(&store, 1).await;
    assert!(waits(&store.record(vec![large('b')], vec![]).await, 1));
    set_pages(&store, 1_000_000).await;
    let file = open_to_read(&path).unwrap();
    written_soon(&file, &["b"]).await;
}

#[tokio::test]
async fn what_waits_is_written_when_the_daemon_ends() {
    let (_dir, path) = place();
    let store = started(&path);
    set_pages(&store, 1).await;
    assert!(waits(&store.record(vec![large('b')], vec![]).await, 1));
    set_pages(&store, 1_000_000).await;
    drop(store);
    let file = open_to_read(&path).unwrap();
    written_soon(&file, &["b"]).await;
}

#[tokio::test]
async fn a_record_and_its_notices_are_written_together_or_not_at_all() {
    let (_dir, path) = place();
    let store = started(&path);
    let change = |sql: &'static str| {
        let store = store.clone();
        async move { store.call("changing", move |file| file.execute_batch(sql)).await.unwrap() }
    };
    change("ALTER TABLE audit RENAME TO away").await;
    let writes = vec![starting(1), Write::ClaimRemoved { lane: id("a") }, audit("x")];
    assert!(waits(&store.record(writes, vec![queued("n-1")]).await, 1));
    let file = open_to_read(&path).unwrap();
    assert!(open_runs(&file).unwrap().is_empty(), "not even what came before the failure");
    assert_eq!(spool::counts(&file).unwrap().pending, 0);
    change("ALTER TABLE away RENAME TO audit").await;
    // The notices are what fails.
    change("ALTER TABLE notice_spool RENAME TO notices_away").await;
    assert!(waits(&store.record(vec![audit("y")], vec![queued("n-2")]).await, 2));
    assert!(audits(&file).is_empty());
    change("ALTER TABLE notices_away RENAME TO notice_spool").await;
    assert_eq!(store.record(vec![], vec![]).await, Written::Committed);
    assert_eq!(audits(&file), ["x", "y"]);
    assert_eq!(spool::counts(&file).unwrap().pending, 2);
}

#[tokio::test]
async fn a_notice_that_cannot_be_queued_does_not_keep_its_record_from_the_disk() {
    let (_dir, path) = place();
    let written = started(&path).record(vec![audit("x")], vec![queued("not an id")]).await;
    assert_eq!(written, Written::Committed);
    assert_eq!(audits(&open_to_read(&path).unwrap()), ["x"]);
}

#[tokio::test]
async fn a_call_that_fails_says_what_was_tried() {
    let (_dir, path) = place();
    let store = started(&path);
    let error = store
        .call("counting sheep", |file| file.query_row("SELECT * FROM sheep", [], |_| Ok(())))
        .await
        .unwrap_err();
    assert!(error.to_string().starts_with("counting sheep: "), "{error}");
}

#[test]
fn a_row_that_cannot_be_read_is_an_error_and_never_dropped() {
    let (_dir, path) = place();
    let file = open(&path).unwrap();
    file.execute("INSERT INTO lane VALUES ('a', 'flying', 0, 'b', '{}')", []).unwrap();
    assert!(lanes(&file).is_err());
    file.execute("INSERT INTO run (run, lane, started_at_ms) VALUES ('x', 'a', 1)", []).unwrap();
    assert!(open_runs(&file).is_err());
}

#[test]
fn the_backlog_is_bounded_and_counts_what_it_lost() {
    let mut backlog = Backlog::default();
    for index in 0..2003 {
        backlog.push(Record { writes: vec![audit(&index.to_string())], notices: Vec::new() });
    }
    assert_eq!((backlog.len(), backlog.dropped()), (2000, 3));
    assert_eq!(backlog.front().unwrap().writes, [audit("3")]);
    // A record that only had a superseded state is gone, one with a notice stays for its notice.
    let mut backlog = Backlog::default();
    let lane = |state| vec![Write::Lane(lane_row("a", state))];
    backlog.push(Record { writes: lane(LaneState::Held), notices: vec![queued("n")] });
    backlog.push(Record { writes: lane(LaneState::Starting), notices: Vec::new() });
    backlog.push(Record { writes: lane(LaneState::Running), notices: Vec::new() });
    backlog.push(Record {
        writes: vec![Write::Lane(lane_row("b", LaneState::Held))],
        notices: vec![],
    });
    assert_eq!(backlog.len(), 3);
    assert!(backlog.front().unwrap().writes.is_empty());
    backlog.pop();
    assert_eq!(backlog.front().unwrap().writes, lane(LaneState::Running));
}
