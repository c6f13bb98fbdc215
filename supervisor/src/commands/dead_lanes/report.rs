//! The report as text: findings always, everything for a person at a terminal, silence for a quiet cron.

use lanewarden_probes::liveness::Liveness;

use super::{Report, Row};
use crate::{
    output::{self, Tone, on_terminal},
    text::{duration, harmless},
};

pub(super) fn print(report: &Report, certify: bool) {
    for why in &report.incomplete {
        output::note(&format!("incomplete: {}", harmless(why)));
    }
    let finding = report.dead > 0 || report.unknown > 0;
    if !finding && !on_terminal() && !certify {
        return;
    }
    let rows: Vec<_> = report.lanes.iter().map(cells).collect();
    output::table(&["MACHINE", "LANE", "ISSUE", "PID", "VERDICT", "AGE", "DETAIL"], &rows);
    let Report { dead, unknown, foreign, .. } = report;
    let end = if report.certified {
        "certified: every configured lane was measured, none is dead or unknown"
    } else {
        "without --certify, and a whole measurement, this is no clean bill"
    };
    output::note(&format!("{dead} dead, {unknown} unknown, {foreign} of other machines; {end}"));
}

fn cells(row: &Row) -> Vec<(String, Tone)> {
    let tone = if row.verdict.is_dead() {
        Tone::Bad
    } else if row.verdict == Liveness::UnknownForeign {
        Tone::Dim
    } else if row.verdict.is_unknown() {
        Tone::Warn
    } else {
        Tone::Good
    };
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let age = row.age_s.map(|age| duration(f64::from(u32::try_from(age).unwrap_or(u32::MAX))));
    vec![
        (row.machine.clone(), Tone::Plain),
        (row.lane.clone(), Tone::Plain),
        (or_none(row.issue.map(|issue| issue.to_string())), Tone::Plain),
        (or_none(row.pid.map(|pid| pid.to_string())), Tone::Plain),
        (row.verdict.to_string(), tone),
        (or_none(age), Tone::Plain),
        (row.detail.clone(), Tone::Plain),
    ]
}
