//! `claims list` and `claims heartbeats`: tables in the predecessor's columns.

use serde_json::{Value, json};

use super::{Room, age, note};
use crate::{
    claims::{ClaimRow, Namespace, record::format_ts, snapshot},
    clock::unix_ms,
    exit_code::{FAILED, OK},
    output,
    text::harmless,
};

/// Lane claims and what is left of the older form.
pub(super) async fn claims(room: &Room, json: bool) -> u8 {
    let namespaces = [Namespace::LaneClaims, Namespace::MachineClaims];
    let Some(rows) = rows(room, &namespaces).await else { return FAILED };
    show(
        room,
        &rows,
        json,
        "claims",
        &|row| {
            let machine = match row.namespace {
                Namespace::MachineClaims => format!("{} (legacy)", row.machine),
                Namespace::LaneClaims | Namespace::Heartbeats => row.machine.clone(),
            };
            let pid = row.parsed.as_ref().ok().and_then(|parsed| parsed.pid);
            let pid = pid.map_or_else(unknown, |pid| pid.to_string());
            let (issue, ts, age) = (issue(row), ts(row), age_of(row));
            format!("{machine:<20} {issue:<8} {pid:<10} {ts:<24} {age}")
        },
        &format!("{:<20} {:<8} {:<10} {:<24} AGE", "MACHINE", "ISSUE", "PID", "TS"),
    )
}

/// Heartbeats, one of a machine.
pub(super) async fn heartbeats(room: &Room, json: bool) -> u8 {
    let Some(rows) = rows(room, &[Namespace::Heartbeats]).await else { return FAILED };
    show(
        room,
        &rows,
        json,
        "heartbeats",
        &|row| {
            let (issue, ts, age) = (issue(row), ts(row), age_of(row));
            format!("{:<20} {issue:<8} {ts:<24} {age}", row.machine)
        },
        &format!("{:<20} {:<8} {:<24} AGE", "MACHINE", "ISSUE", "TS"),
    )
}

async fn rows(room: &Room, namespaces: &[Namespace]) -> Option<Vec<ClaimRow>> {
    let place = &room.place;
    let prefixes: Vec<&str> = namespaces.iter().map(|namespace| namespace.as_str()).collect();
    match snapshot(&place.git, &place.scratch, &place.url, &prefixes).await {
        Ok(found) => Some(found.iter().filter_map(ClaimRow::of).collect()),
        Err(error) => {
            note(&format!("the refs on {} could not be listed: {error}", room.remote));
            None
        }
    }
}

fn show(
    room: &Room,
    rows: &[ClaimRow],
    json: bool,
    what: &str,
    row: &dyn Fn(&ClaimRow) -> String,
    head: &str,
) -> u8 {
    let unreadable = rows.iter().filter(|row| row.parsed.is_err()).count();
    if json {
        let rows: Vec<Value> = rows.iter().map(as_json).collect();
        output::json(&json!({ "remote": room.remote, what: rows, "unreadable": unreadable }));
    } else if rows.is_empty() {
        output::line(&format!("no {what} found on {}", room.remote));
    } else {
        output::line(head);
        for one in rows {
            output::line(harmless(&row(one)).trim_end());
        }
    }
    if unreadable == 0 {
        return OK;
    }
    note(&format!("INCOMPLETE: {unreadable} of {} records could not be read", rows.len()));
    for bad in rows {
        if let Err(why) = &bad.parsed {
            note(&format!("{}: {why}", bad.ref_name));
        }
    }
    FAILED
}

fn unknown() -> String {
    "?".to_owned()
}

/// The lane by the ref's name, or the issue by the message.
fn issue(row: &ClaimRow) -> String {
    row.component
        .clone()
        .or_else(|| row.issue.map(|issue| issue.to_string()))
        .unwrap_or_else(unknown)
}

fn ts(row: &ClaimRow) -> String {
    let ts = row.parsed.as_ref().ok().and_then(|parsed| parsed.ts);
    ts.map_or_else(unknown, format_ts)
}

pub(super) fn age_s(row: &ClaimRow) -> Option<i64> {
    let ts = row.parsed.as_ref().ok()?.ts?;
    Some(unix_ms() / 1000 - i64::try_from(ts).ok()?)
}

fn age_of(row: &ClaimRow) -> String {
    match (&row.parsed, age_s(row)) {
        (Err(_), _) => "fetch-failed".to_owned(),
        (Ok(_), Some(seconds)) => age(seconds),
        (Ok(_), None) => unknown(),
    }
}

fn as_json(row: &ClaimRow) -> Value {
    let parsed = row.parsed.as_ref().ok();
    json!({
        "ref": row.ref_name,
        "oid": row.oid,
        "machine": row.machine,
        "lane": row.component,
        "issue": row.issue,
        "pid": parsed.and_then(|parsed| parsed.pid),
        "ts": parsed.and_then(|parsed| parsed.ts).map(format_ts),
        "age_s": age_s(row),
        "state": parsed.and_then(|parsed| parsed.state.as_ref()),
        "legacy": row.namespace == Namespace::MachineClaims,
        "unreadable": row.parsed.as_ref().err().map(ToString::to_string),
    })
}
