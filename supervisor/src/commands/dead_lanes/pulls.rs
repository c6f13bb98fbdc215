//! Whether a dead lane's work has an open pull request. Reported, never a reason to leave a row out.

use std::{collections::BTreeSet, time::Duration};

use lanewarden_probes::liveness::Liveness;

use super::{
    super::{Failure, claims::trouble_words, runtime},
    Row,
};
use crate::{
    config::{Config, Env},
    forge::OpenPulls,
    output,
    verdict::OpenPr,
};

/// The deadline of the hook where no remote says one.
const DEADLINE: Duration = Duration::from_secs(20);

/// Asks for every dead row. One that names no issue is not asked about, and stays unknown.
pub(super) fn ask(config: &Config, rows: &mut [Row]) -> Result<(), Failure> {
    if !rows.iter().any(|row| row.verdict.is_dead()) {
        return Ok(());
    }
    let env = Env::current();
    let deadline = config.remote.as_ref().map_or(DEADLINE, |remote| remote.deadline);
    let pulls = OpenPulls::new(env.var("CLAIM_OPEN_PR_CMD"), config.forge.as_ref(), deadline);
    let mut troubles = BTreeSet::new();
    runtime()?.block_on(async {
        for row in rows.iter_mut().filter(|row| row.verdict.is_dead()) {
            let told = match row.issue {
                Some(issue) => Some(pulls.ask(issue).await),
                None => None,
            };
            troubles.extend(told.and_then(|told| told.trouble));
            note(row, told.map_or(OpenPr::Unknown, |told| told.open));
        }
    });
    // Without anybody to ask there is nothing to say that the rows do not say.
    if pulls.is_configured() {
        for trouble in troubles {
            output::note(&trouble_words(trouble));
        }
    }
    Ok(())
}

fn note(row: &mut Row, open: OpenPr) {
    row.open_pr = match open {
        OpenPr::Yes => Some(true),
        OpenPr::No => Some(false),
        OpenPr::Unknown => None,
    };
    let orphaned = open == OpenPr::Yes && row.verdict == Liveness::DeadNoProcess;
    let remark = if orphaned { " (an orphaned endgame: do not reap)" } else { "" };
    row.detail = format!("{}; open-pr={open}{remark}", row.detail);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::dead_lanes::rows::judged;

    #[test]
    fn every_dead_row_says_one_of_three_words() {
        for (verdict, open, field, end) in [
            (
                Liveness::DeadNoProcess,
                OpenPr::Yes,
                Some(true),
                "open-pr=yes (an orphaned endgame: do not reap)",
            ),
            (Liveness::DeadPidReused, OpenPr::Yes, Some(true), "open-pr=yes"),
            (Liveness::DeadNoProcess, OpenPr::No, Some(false), "open-pr=no"),
            (Liveness::DeadReboot, OpenPr::Unknown, None, "open-pr=unknown"),
        ] {
            let mut row = Row::new("box-a", "7", judged(verdict, "gone"));
            note(&mut row, open);
            assert_eq!((row.open_pr, row.detail), (field, format!("gone; {end}")));
        }
    }
}
