//! Which process a claim is for, and what became of the process that a record names.

use lanewarden_probes::{
    Root,
    identity::{BootId, Identity, boot_id, outermost_ancestor_inside, resolve},
    liveness::{Recorded, judge},
};

use super::super::claims::place::Surroundings;
use crate::{
    claims::ParsedIssue,
    clock::{Now, unix_ms},
    decide::issue::{HolderProcess, Who},
};

/// How much later than this boot a stamp must be to be another box's and not our own past.
const BOOT_SLACK_S: i64 = 60;

/// The process to claim for: the one that was named, else the occupant of the configured lane in which we are run. `None`:
/// no lasting process can be named.
pub(super) fn claimant(
    around: &Surroundings,
    who: &Who,
    named: Option<u32>,
) -> Result<Option<Identity>, String> {
    let root = Root::live();
    let pid = match named {
        Some(pid) => pid,
        None => match occupant(&root, around)? {
            Some(pid) => pid,
            None => return Ok(None),
        },
    };
    let resolved = resolve(&root, pid, &who.machine, &who.actor)
        .map_err(|error| format!("the process to claim for cannot be looked at: {error}"))?;
    Ok(Some(resolved.identity))
}

/// The outermost of our ancestors that is in the lane. Not we ourselves: we are gone in a moment.
fn occupant(root: &Root, around: &Surroundings) -> Result<Option<u32>, String> {
    let Some(config) = &around.config else { return Ok(None) };
    let Ok(here) = std::env::current_dir() else { return Ok(None) };
    let lane = config.lanes.iter().find(|lane| {
        let dir = lane.dir.canonicalize().unwrap_or_else(|_| lane.dir.clone());
        here.starts_with(dir)
    });
    let Some(lane) = lane else { return Ok(None) };
    let Some(parent) =
        rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
    else {
        return Ok(None);
    };
    outermost_ancestor_inside(root, parent, &lane.dir)
        .map_err(|error| format!("the lane's occupant cannot be told: {error}"))
}

/// What became of the process of a record with our machine and actor.
pub(super) fn holder(record: &ParsedIssue, who: &Who, us: Option<&Identity>) -> HolderProcess {
    let ours = record.verbatim
        && record
            .holder
            .as_ref()
            .is_some_and(|(machine, actor)| *machine == who.machine && *actor == who.actor);
    let (true, Some(part)) = (ours, &record.process) else { return HolderProcess::NotCompared };
    let boot: Option<BootId> = part.boot.parse().ok();
    let here = boot_id(&Root::live()).ok().and_then(Result::ok);
    if here.is_some() && boot != here && stamped_in_this_boot(record.ts) {
        return HolderProcess::OtherBox;
    }
    let Some(us) = us else { return HolderProcess::NotCompared };
    let recorded = Recorded {
        machine: who.machine.clone(),
        actor: Some(who.actor.clone()),
        pid: record.pid,
        boot,
        ticks: Some(part.ticks),
        pidns: part.pidns,
        ..Recorded::default()
    };
    if recorded.identity().is_some_and(|them| them.is_same(us)) {
        return HolderProcess::Same;
    }
    let verdict = judge(&Root::live(), &recorded, &who.machine).verdict;
    if verdict.is_dead() {
        HolderProcess::Dead
    } else if verdict.is_unknown() {
        HolderProcess::Unknown
    } else {
        HolderProcess::Alive
    }
}

/// Whether a stamp is certainly later than the start of this boot.
pub(in crate::commands) fn stamped_in_this_boot(ts: Option<u64>) -> bool {
    let Some(ts) = ts.and_then(|ts| i64::try_from(ts).ok()) else { return false };
    let up = i64::try_from(Now::read().boot_ms / 1000).unwrap_or(i64::MAX);
    ts > (unix_ms() / 1000).saturating_sub(up).saturating_add(BOOT_SLACK_S)
}
