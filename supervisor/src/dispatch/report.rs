//! A judged run: the row that keeps it with its evidence, and what a person must know at once.

use lanewarden_notify::Notice;
use lanewarden_probes::{ending::Ending, kmsg::ChannelState, oom::OomKill};

use super::{finish::Finish, turn::Turn};
use crate::{
    clock::Now,
    decide::{
        evidence::Evidence,
        exit::{EndFacts, JudgedEnd, KnownEnd, judge},
        marker::MarkerFinding,
    },
    effect::{Effect, Telling},
    ids::{LaneId, RunId},
    lane::{self, Run},
    observe::Observation,
    store::rows::{EndedRow, Write},
    verdict::{RunVerdict, SigkillEnd},
};

/// A victim for people: name, pid and size.
pub(super) fn victim(kill: &OomKill) -> String {
    let name = kill.comm.as_deref().unwrap_or("?").escape_default();
    let pid = kill.pid;
    let size = resident_kb(kill).map_or_else(String::new, |kb| format!(", {kb} kB resident"));
    format!("{name} (pid {pid}{size})")
}

fn resident_kb(kill: &OomKill) -> Option<u64> {
    let parts = [kill.anon_rss_kb, kill.file_rss_kb, kill.shmem_rss_kb];
    let known: Vec<u64> = parts.into_iter().flatten().collect();
    (!known.is_empty()).then(|| known.iter().sum())
}

/// The page for an OOM kill; one a run, whoever sees it first.
pub(super) fn oom_page(
    lane: &LaneId,
    run: &RunId,
    kill: Option<&OomKill>,
    limit: Option<u64>,
    class: SigkillEnd,
) -> Telling {
    Telling {
        id: format!("oom-{run}"),
        notice: Notice::OomKill {
            lane: lane.to_string(),
            run: run.to_string(),
            victim_pid: kill.map(|kill| kill.pid),
            victim_comm: kill.and_then(|kill| kill.comm.clone()),
            rss_kb: kill.and_then(resident_kb),
            limit_bytes: limit,
            cgroup: kill.and_then(|kill| kill.task_memcg.clone()),
            class: class.to_string(),
        },
    }
}

/// The verdict on a run, and the row that keeps it with its evidence.
pub(super) fn judge_run(
    id: &LaneId,
    run: &Run,
    finish: &Finish,
    kernel_log: ChannelState,
) -> (JudgedEnd, EndedRow) {
    let facts = EndFacts {
        end: finish.end,
        pid: run.started.as_ref().map_or(0, |started| started.pid),
        marker: &finish.marker,
        ordered: run.stopping.map(|stopping| stopping.cause),
        our_kill: finish.our_kill,
        counted: finish.counted,
        unnamed_before: run.tally.unnamed,
        named: &run.kills,
        sharing: &run.sharing,
        ended_at_ms: finish.ended_at_ms,
        kernel_log,
    };
    let mut judged = judge(&facts);
    if let Some(said) = &finish.said {
        judged.reason.clone_from(said);
    }
    let row = row(id, &run.id, finish, &judged, &facts);
    (judged, row)
}

/// Records, counts and tells a judged run, and lets the keeper forget it.
pub(super) fn report(
    run: &Run,
    finish: &Finish,
    judged: &JudgedEnd,
    row: &EndedRow,
    limit: Option<u64>,
    now: Now,
    turn: &mut Turn,
) {
    turn.observe(Observation::RunEnded {
        lane: row.lane.clone(),
        run: run.id.clone(),
        verdict: judged.verdict,
        end: judged.end,
        lived_ms: finish.lived_ms(),
        judged_after_ms: u64::try_from(now.unix_ms.saturating_sub(finish.ended_at_ms)).unwrap_or(0),
        reason: judged.reason.clone(),
    });
    tell_end(&row.lane, run, judged, limit, finish.lived_ms(), turn);
    turn.write(Write::RunEnded(Box::new(row.clone())));
    turn.then(Effect::Forget(run.id.clone()));
}

/// What a person must know of this end at once.
fn tell_end(
    id: &LaneId,
    run: &Run,
    judged: &JudgedEnd,
    limit: Option<u64>,
    lived_ms: u64,
    turn: &mut Turn,
) {
    let lane = id.to_string();
    let pid = run.started.as_ref().map(|started| started.pid).filter(|&pid| pid != 0);
    let (kills, run) = (&run.kills, &run.id);
    // A kill that the kernel log named was told when its record was read.
    if judged.verdict == RunVerdict::OomKilled && kills.is_empty() {
        let class = judged.end.unwrap_or(SigkillEnd::OomUnnamed);
        turn.tell(oom_page(id, run, None, limit, class));
    }
    if lane::died_unexpectedly(judged.verdict) {
        turn.tell(Telling {
            id: format!("dead-{run}"),
            notice: Notice::LaneDead {
                lane: lane.clone(),
                verdict: judged.verdict.to_string(),
                detail: judged.reason.clone(),
                pid,
            },
        });
    }
    if judged.verdict == RunVerdict::Deadline {
        turn.tell(Telling {
            id: format!("deadline-{run}"),
            notice: Notice::DeadlineEnded {
                lane: lane.clone(),
                run: run.to_string(),
                after_s: lived_ms / 1000,
            },
        });
    }
    if judged.verdict == RunVerdict::ParkedOnOwner {
        turn.tell(Telling {
            id: format!("parked-{run}"),
            notice: Notice::Parked { lane, issue: judged.issue, question: judged.question.clone() },
        });
    } else if judged.verdict == RunVerdict::Blocked {
        turn.tell(Telling {
            id: format!("blocked-{run}"),
            notice: Notice::Blocked {
                lane,
                issue: judged.issue,
                reason: judged.question.clone().unwrap_or_else(|| "no reason given".to_owned()),
            },
        });
    }
}

fn row(
    lane: &LaneId,
    run: &RunId,
    finish: &Finish,
    judged: &JudgedEnd,
    facts: &EndFacts<'_>,
) -> EndedRow {
    let ending = match finish.end {
        KnownEnd::Known(ending) => Some(ending),
        KnownEnd::Unknown | KnownEnd::NotStarted => None,
    };
    let mut evidence = serde_json::json!({
        "marker": match &finish.marker {
            MarkerFinding::Missing => "missing".to_owned(),
            MarkerFinding::Valid(_) => "valid".to_owned(),
            MarkerFinding::Invalid(why) => format!("invalid: {why}"),
            MarkerFinding::Stale { run } => format!("stale: run {run}"),
        },
        "leftovers": finish.leftovers,
        "survivors": finish.survivors,
    });
    merge(&mut evidence, &Evidence::of(facts), &judged.reason);
    EndedRow {
        run: run.clone(),
        lane: lane.clone(),
        issue: judged.issue,
        verdict: judged.verdict,
        verified: judged.verified,
        exit_code: ending.and_then(Ending::exit_code),
        signal: ending.and_then(Ending::signal),
        end: judged.end,
        started_at_ms: finish.started_at_ms,
        ended_at_ms: finish.ended_at_ms,
        peak_memory_bytes: finish.peak_memory_bytes,
        usage: finish.usage,
        leftovers: finish.leftovers,
        reason: judged.reason.clone(),
        evidence,
    }
}

/// Puts everything from which the run was judged into what is kept beside its verdict.
pub(super) fn merge(kept: &mut serde_json::Value, evidence: &Evidence, reason: &str) {
    let Some(kept) = kept.as_object_mut() else { return };
    if let Ok(serde_json::Value::Object(facts)) = serde_json::to_value(evidence) {
        kept.extend(facts);
    }
    kept.insert("reason".to_owned(), reason.into());
}
