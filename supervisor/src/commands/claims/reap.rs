//! `claims should-reap`, `reap` and `clear`: judging and removing. What was judged is what is leased.

use lanewarden_probes::{
    Root,
    liveness::{Recorded, judge},
};
use serde_json::json;

use super::{super::Failure, Room, note, trouble_words, twin};
use crate::{
    claims::{
        ClaimRow, GitError, Namespace, ParsedClaim, PushOutcome, RefUpdate, is_lane_component,
        listing, push, read_one, record::issue_of,
    },
    clock::unix_ms,
    decide::reap::{Processes, Reap, is_stale, judge as judge_reap},
    exit_code::{FAILED, OK, USAGE},
    forge::Told,
    output,
    verdict::OpenPr,
};

/// Age beyond which a claim is stale where no other is named, seconds.
const DEFAULT_THRESHOLD: u64 = 14_400;
const OPEN_PR: u8 = 3;
const MOVED: u8 = 4;
const NO_ISSUE: u8 = 5;

/// One ref that is judged or removed.
#[derive(Debug)]
pub(super) struct Target {
    ref_name: String,
    lane: Option<String>,
}

impl Target {
    fn new(namespace: Namespace, machine: &str, lane: Option<&str>) -> Result<Self, Failure> {
        let component = lane.map(|lane| format!("/{lane}")).unwrap_or_default();
        let ref_name = format!("{namespace}{machine}{component}");
        let single = !machine.contains(['*', '\n']) && !machine.is_empty();
        if !(single && git2::Reference::is_valid_name(&ref_name)) {
            return Err(Failure::new(USAGE, format!("{machine:?} cannot be a machine's name")));
        }
        Ok(Self { ref_name, lane: lane.map(str::to_owned) })
    }

    fn lane(machine: &str, lane: &str) -> Result<Self, Failure> {
        if !is_lane_component(lane) {
            return Err(Failure::new(
                USAGE,
                format!(
                    "{lane:?} is not a lane: an issue's number without leading zero, or p<digits>[-<hex>]"
                ),
            ));
        }
        Self::new(Namespace::LaneClaims, machine, Some(lane))
    }

    fn legacy(machine: &str) -> Result<Self, Failure> {
        Self::new(Namespace::MachineClaims, machine, None)
    }

    pub(super) fn heartbeat(machine: &str) -> Result<Self, Failure> {
        Self::new(Namespace::Heartbeats, machine, None)
    }

    fn is_placeholder(&self) -> bool {
        self.lane.as_deref().is_some_and(|lane| issue_of(lane).is_none())
    }
}

/// Arguments of `should-reap`: two mean the older form and a threshold, three a lane.
pub(super) fn judged(machine: &str, rest: &[String]) -> Result<(Target, u64), Failure> {
    match rest {
        [lane, threshold] => Ok((Target::lane(machine, lane)?, seconds(threshold)?)),
        [threshold] => Ok((Target::legacy(machine)?, seconds(threshold)?)),
        _ => Ok((Target::legacy(machine)?, threshold(None)?)),
    }
}

fn seconds(text: &str) -> Result<u64, Failure> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| Failure::new(USAGE, format!("{text:?} is not a threshold in seconds")))
}

/// The age beyond which a claim is stale: as given, else the environment's, else the default.
pub(super) fn threshold(given: Option<&str>) -> Result<u64, Failure> {
    if let Some(given) = given {
        return seconds(given);
    }
    let default = std::env::var("DEFAULT_REAP_THRESHOLD_SECS").ok();
    let default = default.filter(|text| !text.is_empty());
    default.map_or(Ok(DEFAULT_THRESHOLD), |text| seconds(&text))
}

/// Arguments of `reap`: a lane, an object id, or both.
pub(super) fn leased(machine: &str, rest: &[String]) -> Result<(Target, Option<String>), Failure> {
    let oid = |text: &str| {
        let text = text.to_ascii_lowercase();
        let full = text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let something = text.bytes().any(|byte| byte != b'0');
        if full && something {
            Ok(text)
        } else {
            Err(Failure::new(USAGE, format!("{text:?} is not a full object id")))
        }
    };
    match rest {
        [lane, lease] if lane.is_empty() => Ok((Target::legacy(machine)?, Some(oid(lease)?))),
        [lane, lease] => Ok((Target::lane(machine, lane)?, Some(oid(lease)?))),
        [lease] if !is_lane_component(lease) && lease.len() == 40 => {
            Ok((Target::legacy(machine)?, Some(oid(lease)?)))
        }
        [lane] => Ok((Target::lane(machine, lane)?, None)),
        _ => Ok((Target::legacy(machine)?, None)),
    }
}

async fn read(room: &Room, target: &Target) -> Result<Option<ClaimRow>, GitError> {
    let place = &room.place;
    let found = read_one(&place.git, &place.scratch, &place.url, &target.ref_name).await?;
    Ok(found.as_ref().and_then(ClaimRow::of))
}

/// Whether the claim may go. The clause is said beside the exit code.
pub(super) async fn should_reap(room: &Room, target: &Target, threshold: u64, json: bool) -> u8 {
    let row = match read(room, target).await {
        Ok(row) => row,
        Err(error) => {
            note(&format!("keep: {} could not be read: {error}", target.ref_name));
            return FAILED;
        }
    };
    let (answer, told) = match &row {
        None => (Reap::Absent, None),
        Some(row) => judge_row(room, row, threshold).await,
    };
    if json {
        output::json(&json!({
            "ref": target.ref_name,
            "oid": row.as_ref().map(|row| &row.oid),
            "issue": row.as_ref().and_then(|row| row.issue),
            "reap": answer.exit() == OK,
            "reason": answer,
            "open_pr": told.map(|told| told.open),
            "open_pr_age_s": told.map(|told| told.age.as_secs()),
        }));
    }
    if let Some(trouble) = told.and_then(|told| told.trouble) {
        note(&trouble_words(trouble));
    }
    let issue = row.as_ref().and_then(|row| row.issue);
    let issue = issue.map(|issue| format!(" (issue {issue})")).unwrap_or_default();
    note(&format!("{}{issue}: {answer}", target.ref_name));
    if answer == Reap::KeepOtherBox {
        note(&twin::words(&room.us));
    }
    answer.exit()
}

/// Judges a claim that exists by every clause, one after the other. With it comes the answer about pull requests, if it
/// came to that question.
pub(super) async fn judge_row(room: &Room, row: &ClaimRow, threshold: u64) -> (Reap, Option<Told>) {
    let well_formed = row.component.as_deref().is_none_or(is_lane_component);
    if row.machine.is_empty() || !well_formed {
        return (Reap::KeepMalformed, None);
    }
    let record = row.parsed.as_ref().ok();
    let now = unix_ms() / 1000;
    let placeholder = row.component.as_deref().is_some_and(|lane| issue_of(lane).is_none());
    let issue = match is_stale(placeholder, record, row.issue, now, threshold) {
        Ok(issue) => issue,
        Err(kept) => return (kept, None),
    };
    let told = room.open_pr(issue).await;
    let ours = row.machine == room.us;
    let seen = record.filter(|_| ours).map(|record| processes(room, record));
    (judge_reap(told.open, seen), Some(told))
}

fn processes(room: &Room, record: &ParsedClaim) -> Processes {
    let root = Root::live();
    let boot = record.boot.as_ref().and_then(|boot| boot.parse().ok());
    let by_identity = boot.is_some() && record.ticks.is_some();
    let worker = Recorded {
        machine: room.us.clone(),
        pid: record.pid,
        boot,
        ticks: record.ticks,
        pidns: record.pidns,
        ts_ms: record.ts.and_then(|ts| i64::try_from(ts).ok()).map(|ts| ts.saturating_mul(1000)),
        ts_unreadable: record.ts.is_none(),
        ..Recorded::default()
    };
    let warden = record.warden.map(|(pid, ticks)| {
        let warden = Recorded { pid: Some(pid), ticks: Some(ticks), ..worker.clone() };
        judge(&root, &warden, &room.us).verdict
    });
    Processes {
        named: record.pid.is_some(),
        worker: judge(&root, &worker, &room.us).verdict,
        by_identity,
        warden,
        other_box: twin::is_other_box(record),
    }
}

/// Removes a claim whose work has no open pull request, under a lease on `lease`, else on what was read.
pub(super) async fn reap(room: &Room, target: &Target, lease: Option<String>) -> u8 {
    remove(room, target, lease).await
}

/// Removes a heartbeat.
pub(super) async fn clear(room: &Room, target: &Target) -> u8 {
    match remove(room, target, None).await {
        // A heartbeat that moved was renewed; the predecessor has no number for that.
        MOVED => FAILED,
        code => code,
    }
}

async fn remove(room: &Room, target: &Target, lease: Option<String>) -> u8 {
    let row = match read(room, target).await {
        Ok(Some(row)) => row,
        Ok(None) => {
            note(&format!("{} is already absent", target.ref_name));
            return OK;
        }
        Err(error) => {
            note(&format!("{} was not removed: {error}", target.ref_name));
            return FAILED;
        }
    };
    let ours = row.machine == room.us;
    if ours && row.parsed.as_ref().is_ok_and(twin::is_other_box) {
        note(&format!("refused: {}: {}", target.ref_name, twin::words(&room.us)));
        return FAILED;
    }
    if !target.is_placeholder() {
        let Some(issue) = row.issue else {
            note(&format!("refused: the issue of {} cannot be read", target.ref_name));
            return NO_ISSUE;
        };
        let told = room.open_pr(issue).await;
        match told.open {
            OpenPr::No => {}
            OpenPr::Yes => {
                note(&format!("refused: a pull request of issue {issue} is open"));
                return OPEN_PR;
            }
            OpenPr::Unknown => {
                let why = told.trouble.map(trouble_words).unwrap_or_default();
                note(&format!("refused: for issue {issue} {why}"));
                return OPEN_PR;
            }
        }
    }
    let lease = lease.unwrap_or(row.oid);
    delete(room, target, &lease).await
}

/// Deletes under lease. That the ref moved is said only when it was seen.
async fn delete(room: &Room, target: &Target, lease: &str) -> u8 {
    let place = &room.place;
    let name = &target.ref_name;
    let update = RefUpdate { ref_name: name.clone(), new: None, expect: Some(lease.to_owned()) };
    match push(&place.git, &place.scratch, &place.url, &[update], false).await {
        Ok(results) => match results.first().map(|result| result.outcome) {
            Some(PushOutcome::Accepted | PushOutcome::UpToDate) => return OK,
            Some(outcome) => note(&format!("{name} was not deleted: {outcome}")),
            None => {}
        },
        Err(error) => note(&format!("{name} was not deleted: {error}")),
    }
    match listing(&place.git, &place.scratch, &place.url, &[name], &[]).await {
        Ok(found) => match found.first() {
            None => OK,
            Some((_, oid)) if oid == lease => FAILED,
            Some((_, oid)) => {
                note(&format!("{name} moved to {oid}; the lease was on {lease}"));
                MOVED
            }
        },
        Err(error) => {
            note(&format!("and it could not be read again: {error}"));
            FAILED
        }
    }
}
