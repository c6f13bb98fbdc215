//! Snapshots of every kind, and limits that hold for any input.

use proptest::prelude::*;

use super::*;
use crate::{
    courier::encode,
    notice::{KINDS, Kind, Level},
};

fn context() -> Context {
    Context {
        machine: "box-a".into(),
        at_unix_ms: 1_796_004_845_000,
        id: "e3b0c44298fc".into(),
        click: Some("https://box-a.example/".into()),
        unrecorded: false,
    }
}

/// A notice of every kind whose texts are all `t` and whose numbers are all `n`.
fn sample(kind: Kind, t: &str, n: u32) -> Notice {
    let (t, wide) = (t.to_owned(), u64::from(n));
    match kind {
        Kind::BreakerTripped => Notice::BreakerTripped {
            lane: t.clone(),
            failures: n,
            limit: n,
            window_s: wide,
            last_verdict: t,
            next_try_s: Some(wide),
        },
        Kind::OomKill => Notice::OomKill {
            lane: t.clone(),
            run: t.clone(),
            victim_pid: Some(n),
            victim_comm: Some(t.clone()),
            rss_kb: Some(wide),
            limit_bytes: Some(wide),
            cgroup: Some(t.clone()),
            class: t,
        },
        Kind::LaneDead => {
            Notice::LaneDead { lane: t.clone(), verdict: t.clone(), detail: t, pid: Some(n) }
        }
        Kind::BackWithLanesLost => {
            Notice::BackWithLanesLost { lanes: vec![(t.clone(), t); 200], adopted: n }
        }
        Kind::Parked => Notice::Parked { lane: t.clone(), issue: Some(wide), question: Some(t) },
        Kind::Blocked => Notice::Blocked { lane: t.clone(), issue: None, reason: t },
        Kind::DeadlineEnded => Notice::DeadlineEnded { lane: t.clone(), run: t, after_s: wide },
        Kind::StoreDegraded => Notice::StoreDegraded { error: t.clone(), remedy: t },
        Kind::StoreRecovered => Notice::StoreRecovered,
        Kind::Intruder => Notice::Intruder { lane: t.clone(), pid: n, command: t, worker: n },
        Kind::ClaimLost => Notice::ClaimLost { lane: t.clone(), detail: t },
        Kind::HoldBegan => Notice::HoldBegan { lane: t.clone(), check: t.clone(), detail: t },
        Kind::GateResult => Notice::GateResult {
            result: t.clone(),
            branch: t.clone(),
            sha: t.clone(),
            failing: vec![t; 200],
        },
        Kind::NoticesDropped => {
            Notice::NoticesDropped { kinds: vec![(t, wide); 200], since_ms: i64::from(n) }
        }
        Kind::Text => Notice::Text { level: Level::High, title: t.clone(), message: t },
        Kind::Test => Notice::Test { level: Level::High },
    }
}

/// Notices as they come, one of each kind.
fn plausible() -> Vec<Notice> {
    let lane = || "lane-1".to_owned();
    vec![
        Notice::BreakerTripped {
            lane: lane(),
            failures: 3,
            limit: 3,
            window_s: 3_600,
            last_verdict: "oom-killed".into(),
            next_try_s: None,
        },
        Notice::OomKill {
            lane: lane(),
            run: "r-7f3a".into(),
            victim_pid: Some(4_242),
            victim_comm: Some("rustc".into()),
            rss_kb: Some(25_165_824),
            limit_bytes: Some(24 << 30),
            cgroup: Some("/lanewarden-lanes.service/lane-1".into()),
            class: "oom-memcg".into(),
        },
        Notice::LaneDead {
            lane: lane(),
            verdict: "DEAD-PID-REUSED".into(),
            detail: "started at tick 900, the claim says 812".into(),
            pid: Some(4_242),
        },
        Notice::BackWithLanesLost {
            lanes: vec![
                ("lane-1".into(), "DEAD-REBOOT".into()),
                ("lane-2".into(), "DEAD-NO-PROCESS".into()),
            ],
            adopted: 5,
        },
        Notice::Parked {
            lane: lane(),
            issue: Some(321),
            question: Some("Drop support for v1 files?".into()),
        },
        Notice::Blocked { lane: lane(), issue: Some(321), reason: "needs 320 first".into() },
        Notice::DeadlineEnded { lane: lane(), run: "r-7f3a".into(), after_s: 7_200 },
        Notice::StoreDegraded {
            error: "failed to write run r-7f3a: disk full".into(),
            remedy: "free space below state_dir".into(),
        },
        Notice::StoreRecovered,
        Notice::Intruder { lane: lane(), pid: 4_242, command: "vim".into(), worker: 4_000 },
        Notice::ClaimLost { lane: lane(), detail: "box-b holds it since 02:10".into() },
        Notice::HoldBegan {
            lane: lane(),
            check: "disk_free_min".into(),
            detail: "1.5 GiB free, 2.0 GiB wanted".into(),
        },
        Notice::GateResult {
            result: "FAIL".into(),
            branch: "fix/321".into(),
            sha: "0123456789abcdef".into(),
            failing: vec!["fmt".into(), "e2e".into()],
        },
        Notice::NoticesDropped {
            kinds: vec![("blocked".into(), 7), ("deadline-ended".into(), 2)],
            since_ms: 1_796_000_000_000,
        },
        Notice::Text {
            level: Level::Info,
            title: "backup done".into(),
            message: "42 GiB\nin 10 min".into(),
        },
        Notice::Test { level: Level::High },
    ]
}

#[test]
fn every_kind_reads_well() {
    let notices = plausible();
    let kinds: Vec<Kind> = notices.iter().map(Notice::kind).collect();
    assert_eq!(kinds, KINDS, "one of each kind, in order");
    let mut all = String::new();
    for notice in &notices {
        let m = render(notice, &context());
        let head = format!("{} p{} {}", notice.kind(), m.priority, m.tags.join(","));
        all.push_str(&format!("== {head}\n{}\n--\n{}\n", m.title, m.message));
    }
    insta::assert_snapshot!(all);
}

#[test]
fn the_title_starts_with_machine_and_lane() {
    for notice in plausible() {
        let title = render(&notice, &context()).title;
        match notice.lane() {
            Some(lane) => assert!(title.starts_with(&format!("box-a {lane}: ")), "{title}"),
            None => assert!(title.starts_with("box-a: "), "{title}"),
        }
    }
}

#[test]
fn what_was_not_recorded_says_so() {
    let said = render(&Notice::StoreRecovered, &Context { unrecorded: true, ..context() }).message;
    assert!(said.contains("Unrecorded"), "{said}");
}

#[test]
fn too_long_a_reason_loses_its_end_but_not_the_next_step() {
    let reason = "why ".repeat(25_000);
    let notice = Notice::Blocked { lane: "lane-1".into(), issue: None, reason };
    let message = render(&notice, &context()).message;
    assert!(message.len() <= MESSAGE_LIMIT && message.contains(" bytes cut]"), "{message}");
    assert!(message.starts_with("Lane lane-1 is blocked and could not go on."), "{message}");
    assert!(message.ends_with("`lanewarden history lane-1` if it repeats."), "{message}");
    let shorter = shorten(&render(&notice, &context()), 1_000).unwrap();
    assert!(shorter.message.len() <= 1_000, "{}", shorter.message.len());
    assert!(shorter.message.ends_with("if it repeats."), "{}", shorter.message);
    assert_eq!(shorten(&shorter, 1_000), None);
}

#[test]
fn hostile_titles_arrive_as_text() {
    let text = |title: &str, message: &str| {
        render(
            &Notice::Text { level: Level::Info, title: title.into(), message: message.into() },
            &context(),
        )
    };
    let title = text("=?UTF-8?B?cHduZWQ=?= \u{202e}x\ny\u{7}", "m").title;
    assert_eq!(title, "box-a: = ?UTF-8?B?cHduZWQ= ?= \u{FFFD}x y\u{FFFD}");
    assert_eq!(
        text("\u{1F6A8} \u{65E5}\u{672C} \"q\"", "m").title,
        "box-a: \u{1F6A8} \u{65E5}\u{672C} \"q\""
    );
    assert!(text("t", "{\"a\":1}").message.starts_with("text: {"), "never like a document");
    assert!(text("only a title", " \n").message.starts_with("only a title\n"));
}

#[test]
fn only_plain_addresses_and_event_ids_pass() {
    let with = |click: &str, id: &str| {
        let context = Context { click: Some(click.into()), id: id.into(), ..context() };
        let m = render(&Notice::StoreRecovered, &context);
        (m.click, m.sequence_id)
    };
    assert_eq!(
        with("https://h/p?q=1", "a_b-C9"),
        (Some("https://h/p?q=1".into()), Some("a_b-C9".into()))
    );
    for (click, id) in [
        ("javascript:alert(1)", ""),
        ("https://", "a b"),
        ("http://h/\n", "a/b"),
        ("http://h/\u{e9}", "\u{e9}"),
        (&format!("http://{}", "h".repeat(300)), &"x".repeat(65)),
    ] {
        assert_eq!(with(click, id), (None, None), "{click} {id}");
    }
}

proptest! {
    // Each case renders every kind with long texts.
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn limits_hold_for_any_input(
        unit in any::<String>(),
        times in 1_usize..120,
        n in any::<u32>(),
        machine in any::<String>(),
        at_unix_ms in any::<i64>(),
        unrecorded in any::<bool>(),
    ) {
        let context = Context {
            machine,
            at_unix_ms,
            id: "x".repeat(64),
            click: Some(format!("https://{}", "h".repeat(CLICK_LIMIT - 8))),
            unrecorded,
        };
        for kind in KINDS {
            let notice = sample(*kind, &unit.repeat(times), n);
            prop_assert_eq!(notice.kind(), *kind);
            let message = render(&notice, &context);
            check(&message)?;
            if let Some(shorter) = shorten(&message, 1_000) {
                prop_assert!(shorter.message.len() <= 1_000);
                check(&shorter)?;
            }
        }
    }

    /// Text in which every character is one that costs a second byte in JSON.
    #[test]
    fn escapes_are_counted(parts in proptest::collection::vec("[\"\\\\\n{]", 1..50)) {
        for kind in KINDS {
            let notice = sample(*kind, &parts.concat().repeat(40), u32::MAX);
            check(&render(&notice, &context()))?;
        }
    }
}

fn check(message: &Message) -> Result<(), TestCaseError> {
    let Message { title, message: text, .. } = message;
    prop_assert!(title.len() <= TITLE_LIMIT, "title {} bytes", title.len());
    prop_assert!(text.len() <= MESSAGE_LIMIT, "message {} bytes", text.len());
    prop_assert!(!title.is_empty() && !text.trim().is_empty());
    prop_assert!(!title.contains("=?") && !title.contains('\n'));
    let like_a_document = text.starts_with(['{', '[']);
    prop_assert!(!like_a_document);
    for c in title.chars().chain(text.chars()) {
        prop_assert!(c == '\n' || !c.is_control(), "{c:?}");
    }
    let encoded = encode(&"t".repeat(64), message);
    prop_assert!(encoded.len() <= ENCODED_LIMIT, "encoded {} bytes", encoded.len());
    Ok(())
}
