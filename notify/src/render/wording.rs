//! The words for each notice. Names inside sentences are made short here; cutting and making harmless each part as a
//! whole is the caller's.

use crate::{
    notice::{Level, Notice},
    text,
};

/// The parts of a message.
#[derive(Debug, Default)]
pub(super) struct Words {
    /// For the title, after machine and lane.
    pub(super) headline: String,
    /// What happened, in a sentence.
    pub(super) fact: String,
    /// What was measured. The first to be cut.
    pub(super) evidence: String,
    /// What to do about it.
    pub(super) next: String,
}

pub(super) fn words(notice: &Notice) -> Words {
    match notice {
        Notice::BreakerTripped { lane, failures, limit, window_s, last_verdict, next_try_s } => {
            let times =
                if *failures == 1 { "once".to_owned() } else { format!("{failures} times") };
            let count = format!("{times} in {} (limit {limit})", text::span(*window_s));
            breaker_tripped(lane, *failures, &count, last_verdict, *next_try_s)
        }
        Notice::OomKill {
            lane,
            run,
            victim_pid,
            victim_comm,
            rss_kb,
            limit_bytes,
            cgroup,
            class,
        } => {
            let run = format!("{}, run {}", name(class), name(run));
            let victim = victim_comm.as_deref().unwrap_or("a process");
            Words {
                headline: format!("{} killed {}", short(class, 24), short(victim, 32)),
                evidence: memory(*rss_kb, *limit_bytes, cgroup.as_deref()),
                ..oom_kill(lane, *victim_pid, victim_comm.as_deref(), &run)
            }
        }
        Notice::LaneDead { lane, verdict, detail, pid } => lane_dead(lane, verdict, detail, *pid),
        Notice::BackWithLanesLost { lanes, adopted } => back(lanes, *adopted),
        Notice::Parked { lane, issue, question } => parked(lane, *issue, question.as_deref()),
        Notice::Blocked { lane, issue, reason } => blocked(lane, *issue, reason),
        Notice::DeadlineEnded { lane, run, after_s } => deadline_ended(lane, run, *after_s),
        Notice::StoreDegraded { error, remedy } => store_degraded(error, remedy),
        Notice::StoreRecovered => store_recovered(),
        Notice::Intruder { lane, pid, command, worker } => intruder(lane, *pid, command, *worker),
        Notice::ClaimLost { lane, detail } => claim_lost(lane, detail),
        Notice::HoldBegan { lane, check, detail } => hold_began(lane, check, detail),
        Notice::GateResult { result, branch, sha, failing } => gate(result, branch, sha, failing),
        Notice::NoticesDropped { kinds, since_ms } => dropped(kinds, *since_ms),
        Notice::Text { title, message, .. } => sent_by_hand(title, message),
        Notice::Test { level } => test(*level),
    }
}

/// A foreign name inside a sentence: one line, at most `limit` bytes.
pub(super) fn short(name: &str, limit: usize) -> String {
    text::cut(&text::line(name), limit)
}

fn name(name: &str) -> String {
    short(name, 64)
}

fn on_issue(issue: Option<u64>) -> String {
    issue.map(|n| format!(" on issue {n}")).unwrap_or_default()
}

fn breaker_tripped(
    lane: &str,
    failures: u32,
    count: &str,
    last_verdict: &str,
    next_try_s: Option<u64>,
) -> Words {
    let lane = name(lane);
    Words {
        headline: format!(
            "breaker tripped, {failures} failure{}",
            if failures == 1 { "" } else { "s" }
        ),
        fact: format!("Lane {lane} failed {count}; the last run ended {}.", name(last_verdict)),
        evidence: next_try_s.map_or_else(
            || "It is not started again by itself.".to_owned(),
            |s| format!("It is tried again in {}.", text::span(s)),
        ),
        next: format!(
            "`lanewarden logs {lane}` and `lanewarden history {lane}`; when the cause is gone, \
             `lanewarden start {lane}`."
        ),
    }
}

fn oom_kill(lane: &str, pid: Option<u32>, comm: Option<&str>, run: &str) -> Words {
    let lane = name(lane);
    let comm = comm.map(|comm| format!(" ({})", name(comm))).unwrap_or_default();
    let victim = pid.map_or_else(|| "A process".to_owned(), |pid| format!("Process {pid}{comm}"));
    Words {
        fact: format!("{victim} of lane {lane} was killed for memory: {run}."),
        next: format!(
            "`lanewarden oom` for the record; raise limits.memory_max of {lane} or make its work \
             smaller."
        ),
        ..Words::default()
    }
}

fn memory(rss_kb: Option<u64>, limit_bytes: Option<u64>, cgroup: Option<&str>) -> String {
    let resident =
        rss_kb.map_or_else(|| "not recorded".to_owned(), |kb| text::size(kb.saturating_mul(1_024)));
    let limit = limit_bytes.map_or_else(|| "none known".to_owned(), text::size);
    let cgroup = cgroup.map_or_else(|| "not recorded".to_owned(), |path| short(path, 400));
    format!("Resident: {resident}. Limit: {limit}. Cgroup: {cgroup}.")
}

fn lane_dead(lane: &str, verdict: &str, detail: &str, pid: Option<u32>) -> Words {
    let (lane, verdict) = (name(lane), name(verdict));
    let looked_for = pid.map(|pid| format!(" Process {pid} was looked for.")).unwrap_or_default();
    Words {
        headline: format!("dead, {}", short(&verdict, 48)),
        fact: format!("Lane {lane} has no live worker: {verdict}.{looked_for}"),
        evidence: detail.to_owned(),
        next: format!("`lanewarden history {lane}`, then `lanewarden start {lane}`."),
    }
}

fn back(lanes: &[(String, String)], adopted: u32) -> Words {
    let lost = match lanes.len() {
        1 => "1 lane".to_owned(),
        n => format!("{n} lanes"),
    };
    Words {
        headline: format!("back, {lost} lost"),
        fact: format!("The warden is back: {lost} lost, {adopted} found alive and taken over."),
        evidence: listed(lanes.iter().map(|(lane, why)| format!("{} {}", name(lane), name(why)))),
        next: "`lanewarden history` for how each ended; `lanewarden status` for now.".to_owned(),
    }
}

fn parked(lane: &str, issue: Option<u64>, question: Option<&str>) -> Words {
    let (lane, issue) = (name(lane), on_issue(issue));
    Words {
        headline: format!("parked{issue}, needs its owner"),
        fact: format!("Lane {lane} waits for a decision{issue}."),
        evidence: question.unwrap_or("It left no question.").to_owned(),
        next: format!("answer where the issue is discussed, then `lanewarden start {lane}`."),
    }
}

fn blocked(lane: &str, issue: Option<u64>, reason: &str) -> Words {
    let (lane, issue) = (name(lane), on_issue(issue));
    Words {
        headline: format!("blocked{issue}"),
        fact: format!("Lane {lane} is blocked{issue} and could not go on."),
        evidence: reason.to_owned(),
        next: format!("nothing yet; `lanewarden history {lane}` if it repeats."),
    }
}

fn deadline_ended(lane: &str, run: &str, after_s: u64) -> Words {
    let (lane, run, after) = (name(lane), name(run), text::span(after_s));
    Words {
        headline: format!("run ended at its deadline, {after}"),
        fact: format!("Run {run} of lane {lane} was ended at its deadline after {after}."),
        evidence: String::new(),
        next: format!("`lanewarden logs {lane}` shows what it was doing."),
    }
}

fn store_degraded(error: &str, remedy: &str) -> Words {
    Words {
        headline: "records cannot be written".to_owned(),
        fact: "The store fails; lanes go on, and notices go out unrecorded.".to_owned(),
        evidence: error.to_owned(),
        next: remedy.to_owned(),
    }
}

fn store_recovered() -> Words {
    Words {
        headline: "records are written again".to_owned(),
        fact: "The store works again.".to_owned(),
        evidence: String::new(),
        next: "nothing; `lanewarden history` lacks what could not be written.".to_owned(),
    }
}

fn intruder(lane: &str, pid: u32, command: &str, worker: u32) -> Words {
    let lane = name(lane);
    Words {
        headline: format!("a second process works there: {}", short(command, 32)),
        fact: format!("Process {pid} ({}) works in lane {lane} beside its worker.", name(command)),
        evidence: format!(
            "Its working directory is in the lane, and it is not of the tree of {worker}."
        ),
        next: format!("End it, or `lanewarden stop {lane}` before somebody else works there."),
    }
}

fn claim_lost(lane: &str, detail: &str) -> Words {
    Words {
        headline: "claim lost".to_owned(),
        fact: format!("The claim of lane {} is no longer ours.", name(lane)),
        evidence: detail.to_owned(),
        next: "`lanewarden dead-lanes` shows who holds it.".to_owned(),
    }
}

fn hold_began(lane: &str, check: &str, detail: &str) -> Words {
    let (lane, check) = (name(lane), name(check));
    Words {
        headline: format!("held by {}", short(&check, 48)),
        fact: format!("Lane {lane} is not started: {check} refuses."),
        evidence: detail.to_owned(),
        next: "nothing if it passes; limits are under [admission] in the configuration.".to_owned(),
    }
}

fn gate(result: &str, branch: &str, sha: &str, failing: &[String]) -> Words {
    let passed = result == "PASS";
    let result = short(result, 32);
    Words {
        headline: format!(
            "gate {result} {}@{}",
            short(branch, 90),
            text::prefix(&text::line(sha), 9)
        ),
        fact: format!("RESULT: {result}"),
        evidence: match failing {
            [] => String::new(),
            failing => format!("Failing: {}", listed(failing.iter().map(|part| name(part)))),
        },
        next: if passed {
            "nothing.".to_owned()
        } else {
            format!("read the gate's log and run it again on {}.", short(branch, 120))
        },
    }
}

fn dropped(kinds: &[(String, u64)], since_ms: i64) -> Words {
    let count = kinds.iter().fold(0_u64, |sum, (_, n)| sum.saturating_add(*n));
    Words {
        headline: format!("{count} notices dropped"),
        fact: format!(
            "{count} notices raised since {} were dropped: too many, or too old to tell.",
            text::utc(since_ms)
        ),
        evidence: listed(kinds.iter().map(|(kind, n)| format!("{n} {}", name(kind)))),
        next: "`lanewarden history` has what happened; `lanewarden notify test` tries the way."
            .to_owned(),
    }
}

fn sent_by_hand(title: &str, message: &str) -> Words {
    let said = if message.trim().is_empty() { title } else { message };
    Words { headline: title.to_owned(), evidence: said.to_owned(), ..Words::default() }
}

fn test(level: Level) -> Words {
    Words {
        headline: "test notice".to_owned(),
        fact: format!("This is a test of level {level}: notices reach you."),
        evidence: String::new(),
        next: "nothing.".to_owned(),
    }
}

fn listed(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}
