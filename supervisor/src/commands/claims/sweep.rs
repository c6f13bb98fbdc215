//! `claims reap --sweep`: what a scheduled job runs. Every claim is judged; what is due goes under a lease on what was
//! judged; nothing goes if the look at the fleet was not whole.

use std::collections::{BTreeMap, BTreeSet};

use lanewarden_probes::closed_set;
use serde_json::{Value, json};

use super::{Room, age, args::SweepArgs, list::age_s, note, reap, trouble_words};
use crate::{
    claims::{ClaimRow, Namespace, PushOutcome, RefUpdate, listing, push, snapshot},
    commands::Failure,
    decide::reap::Reap,
    exit_code::{FAILED, OK},
    forge::Told,
    output::{self, Tone},
    verdict::OpenPr,
};

/// Most refs that one push names: each is two arguments of git, and the kernel bounds an argument list.
const BATCH: usize = 1000;

closed_set! {
    /// What was done about a claim.
    enum Done {
        /// It stays, for the reason beside it.
        Kept = "kept",
        /// It is gone.
        Removed = "removed",
        /// It would have been removed.
        WouldRemove = "would-remove",
        /// It was renewed after it was judged, and stays.
        Moved = "moved",
        /// The remote did not take the removal.
        Refused = "refused",
        /// Whether it is gone cannot be told.
        Unconfirmed = "unconfirmed",
    }
}

/// How to sweep.
pub(super) struct How {
    threshold: u64,
    dry_run: bool,
    json: bool,
}

impl How {
    pub(super) fn of(args: &SweepArgs) -> Result<Self, Failure> {
        let threshold = reap::threshold(args.threshold.as_deref())?;
        Ok(Self { threshold, dry_run: args.dry_run, json: args.json })
    }
}

/// One claim, judged.
struct Swept {
    row: ClaimRow,
    reason: Reap,
    told: Option<Told>,
    done: Done,
}

/// Judges the whole fleet and removes what is due.
pub(super) async fn sweep(room: &Room, how: How) -> u8 {
    let place = &room.place;
    let prefixes: Vec<&str> = Namespace::ALL.iter().map(|namespace| namespace.as_str()).collect();
    let found = match snapshot(&place.git, &place.scratch, &place.url, &prefixes).await {
        Ok(found) => found,
        Err(error) => {
            note(&format!(
                "nothing is removed: the refs on {} could not be listed: {error}",
                room.remote
            ));
            return FAILED;
        }
    };
    let rows: Vec<ClaimRow> = found.iter().filter_map(ClaimRow::of).collect();
    let is_cut_short = |row: &ClaimRow| row.parsed.as_ref().is_err_and(|why| why.is_cut_short());
    let whole = !rows.iter().any(is_cut_short);
    let mut swept = Vec::with_capacity(rows.len());
    for row in rows {
        let (reason, told) = reap::judge_row(room, &row, how.threshold).await;
        swept.push(Swept { row, reason, told, done: Done::Kept });
    }
    ask_again(room, &mut swept).await;
    if whole {
        remove(room, &mut swept, how.dry_run).await;
    } else {
        note("nothing is removed: the look at the refs ended before all of them were read");
    }
    report(room, &how, &swept, whole);
    let unsure = |one: &Swept| {
        one.reason.cannot_tell() || matches!(one.done, Done::Refused | Done::Unconfirmed)
    };
    if whole && !swept.iter().any(unsure) { OK } else { FAILED }
}

/// Judging a large fleet takes time. What is due is asked about once more, which costs nothing while the answer is fresh.
async fn ask_again(room: &Room, swept: &mut [Swept]) {
    for one in swept.iter_mut().filter(|one| one.reason.exit() == OK) {
        let Some(issue) = one.row.issue else { continue };
        let told = room.open_pr(issue).await;
        one.told = Some(told);
        match told.open {
            OpenPr::No => {}
            OpenPr::Yes => one.reason = Reap::KeepOpenPr,
            OpenPr::Unknown => one.reason = Reap::KeepOpenPrUnknown,
        }
    }
    let trouble = swept.iter().filter_map(|one| one.told?.trouble);
    for trouble in trouble.collect::<BTreeSet<_>>() {
        note(&trouble_words(trouble));
    }
}

/// Removes what is due, each under its own lease: one push for up to [`BATCH`].
async fn remove(room: &Room, swept: &mut [Swept], dry_run: bool) {
    let mut due: Vec<&mut Swept> = swept.iter_mut().filter(|one| one.reason.exit() == OK).collect();
    if dry_run {
        due.iter_mut().for_each(|one| one.done = Done::WouldRemove);
        return;
    }
    let place = &room.place;
    for batch in due.chunks_mut(BATCH) {
        let updates: Vec<RefUpdate> = batch
            .iter()
            .map(|one| RefUpdate {
                ref_name: one.row.ref_name.clone(),
                new: None,
                expect: Some(one.row.oid.clone()),
            })
            .collect();
        match push(&place.git, &place.scratch, &place.url, &updates, false).await {
            Ok(results) => {
                for (one, result) in batch.iter_mut().zip(&results) {
                    one.done = match result.outcome {
                        PushOutcome::Accepted | PushOutcome::UpToDate => Done::Removed,
                        PushOutcome::LeaseRefused => Done::Moved,
                        PushOutcome::Rejected => Done::Refused,
                        PushOutcome::Unconfirmed => Done::Unconfirmed,
                    };
                }
            }
            Err(error) => {
                note(&format!("the removal was not confirmed: {error}"));
                batch.iter_mut().for_each(|one| one.done = Done::Unconfirmed);
            }
        }
    }
    if due.iter().any(|one| one.done == Done::Unconfirmed) {
        look_again(room, &mut due).await;
    }
}

/// A push whose answer was lost may have landed: what the remote has now decides.
async fn look_again(room: &Room, due: &mut [&mut Swept]) {
    let place = &room.place;
    let starts: Vec<&str> = Namespace::ALL.iter().map(|namespace| namespace.as_str()).collect();
    let now = match listing(&place.git, &place.scratch, &place.url, &[], &starts).await {
        Ok(listed) => listed.into_iter().collect::<BTreeMap<_, _>>(),
        Err(error) => {
            note(&format!("and the refs could not be listed again: {error}"));
            return;
        }
    };
    for one in due.iter_mut().filter(|one| one.done == Done::Unconfirmed) {
        one.done = match now.get(&one.row.ref_name) {
            None => Done::Removed,
            Some(oid) if *oid == one.row.oid => Done::Refused,
            Some(_) => Done::Moved,
        };
    }
}

fn report(room: &Room, how: &How, swept: &[Swept], whole: bool) {
    let count = |done: Done| swept.iter().filter(|one| one.done == done).count();
    if how.json {
        let claims: Vec<Value> = swept.iter().map(as_json).collect();
        let counts: serde_json::Map<String, Value> =
            Done::ALL.iter().map(|done| (done.to_string(), count(*done).into())).collect();
        output::json(&json!({
            "remote": room.remote, "threshold_s": how.threshold, "dry_run": how.dry_run,
            "whole": whole, "counts": counts, "claims": claims,
        }));
        return;
    }
    if swept.is_empty() {
        output::line(&format!("no claims found on {}", room.remote));
        return;
    }
    let unknown = || "?".to_owned();
    let cells: Vec<Vec<(String, Tone)>> = swept
        .iter()
        .map(|one| {
            let issue = one.row.issue.map_or_else(unknown, |issue| issue.to_string());
            let tone = match one.done {
                Done::Kept if one.reason.cannot_tell() => Tone::Warn,
                Done::Kept | Done::Moved => Tone::Plain,
                Done::Removed | Done::WouldRemove => Tone::Good,
                Done::Refused | Done::Unconfirmed => Tone::Bad,
            };
            vec![
                (one.row.ref_name.clone(), Tone::Plain),
                (issue, Tone::Plain),
                (age_s(&one.row).map_or_else(unknown, age), Tone::Plain),
                (one.done.to_string(), tone),
                (one.reason.to_string(), Tone::Plain),
            ]
        })
        .collect();
    output::table(&["REF", "ISSUE", "AGE", "DONE", "REASON"], &cells);
    let counts: Vec<String> = Done::ALL
        .iter()
        .map(|done| (count(*done), *done))
        .filter(|(count, _)| *count > 0)
        .map(|(count, done)| format!("{count} {done}"))
        .collect();
    note(&format!("{} claims on {}: {}", swept.len(), room.remote, counts.join(", ")));
}

fn as_json(one: &Swept) -> Value {
    json!({
        "ref": one.row.ref_name,
        "oid": one.row.oid,
        "machine": one.row.machine,
        "lane": one.row.component,
        "issue": one.row.issue,
        "age_s": age_s(&one.row),
        "done": one.done.as_str(),
        "reason": one.reason,
        "open_pr": one.told.map(|told| told.open),
        "open_pr_age_s": one.told.map(|told| told.age.as_secs()),
        "unreadable": one.row.parsed.as_ref().err().map(ToString::to_string),
    })
}
