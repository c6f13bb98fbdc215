use super::*;

const AT: i64 = 1_000_000;

fn kill(pid: u32, task_memcg: Option<&str>) -> OomKill {
    let mut kill: OomKill =
        serde_json::from_value(serde_json::json!({"pid": pid, "kind": "memcg"})).unwrap();
    kill.task_memcg = task_memcg.map(str::to_owned);
    kill
}

fn runs() -> (RunId, RunId) {
    (RunId::from_bytes([1; 16]), RunId::from_bytes([2; 16]))
}

fn candidate<'a>(run: &'a RunId, cgroup: Option<&'a str>, tasks: &'a [u32]) -> Candidate<'a> {
    Candidate { run, cgroup, pid: tasks.first().copied(), tasks, lived: (AT - 5_000, None) }
}

fn by(owner: &Owner) -> Option<(&RunId, Proof)> {
    match owner {
        Owner::Run { run, proof, .. } => Some((run, *proof)),
        Owner::Foreign { .. } | Owner::Unplaced => None,
    }
}

#[test]
fn the_cgroup_in_which_the_victim_lived_decides() {
    let (a, b) = runs();
    let all = [
        candidate(&a, Some("/lanes/a.1"), &[10, 11]),
        candidate(&b, Some("/lanes/a.10"), &[20, 21]),
    ];
    let found = |pid, group: Option<&str>| owner(&kill(pid, group), AT, &all);
    assert_eq!(by(&found(99, Some("/lanes/a.1"))), Some((&a, Proof::Cgroup)));
    assert_eq!(by(&found(99, Some("/lanes/a.1/sub"))), Some((&a, Proof::Cgroup)));
    assert_eq!(by(&found(99, Some("/lanes/a.10"))), Some((&b, Proof::Cgroup)));
    assert_eq!(found(99, Some("/user.slice")), Owner::Foreign { conflict: None });
    // Without a place the number decides: worker, child or thread.
    assert_eq!(by(&found(20, None)), Some((&b, Proof::Pid)));
    assert_eq!(by(&found(21, None)), Some((&b, Proof::Pid)));
    assert_eq!(found(22, None), Owner::Unplaced);
}

#[test]
fn proofs_that_disagree_are_both_shown() {
    let (a, b) = runs();
    let all = [
        candidate(&a, Some("/lanes/a.1"), &[10, 11]),
        candidate(&b, Some("/lanes/b.1"), &[20, 21]),
    ];
    let conflict = |pid, group| match owner(&kill(pid, Some(group)), AT, &all) {
        Owner::Run { run, conflict, .. } => (Some(run), conflict),
        Owner::Foreign { conflict } => (None, conflict),
        Owner::Unplaced => (None, None),
    };
    let (run, said) = conflict(21, "/lanes/a.1");
    assert!(run == Some(a.clone()) && said.unwrap().contains(b.as_str()));
    // A number that was seen in our group, and a victim in somebody else's: it is used again by now.
    let (run, said) = conflict(11, "/user.slice");
    assert!(run.is_none() && said.unwrap().contains(a.as_str()));
    // But the worker is held by a pidfd: its number is nobody else's while it lives.
    let (run, said) = conflict(10, "/user.slice");
    assert!(run == Some(a) && said.unwrap().contains("/user.slice"));
}

#[test]
fn a_number_proves_nothing_outside_of_the_runs_life() {
    let (a, _) = runs();
    let mut all = [candidate(&a, None, &[10])];
    assert!(by(&owner(&kill(10, None), AT, &all)).is_some());
    assert_eq!(owner(&kill(10, None), AT - 60_000, &all), Owner::Unplaced, "before it began");
    all[0].lived.1 = Some(AT - 3_000);
    assert_eq!(owner(&kill(10, None), AT, &all), Owner::Unplaced, "long after its end");
    all[0].pid = Some(0);
    all[0].tasks = &[];
    assert_eq!(owner(&kill(0, None), AT - 4_000, &all), Owner::Unplaced, "no worker was known");
}

fn named(pid: u32, before_end_ms: i64) -> LaneKill {
    LaneKill {
        kill: kill(pid, None),
        read_at_ms: AT - before_end_ms,
        proof: Proof::Pid,
        conflict: None,
    }
}

fn facts(named: &[LaneKill]) -> SigkillFacts<'_> {
    SigkillFacts {
        pid: 10,
        our_kill: false,
        counted: Some(1),
        unnamed_before: 0,
        named,
        sharing: &[],
        ended_at_ms: AT,
    }
}

#[test]
fn who_sent_the_sigkill() {
    let own = [named(10, 5)];
    assert_eq!(sigkill_end(facts(&own)), SigkillEnd::OomMemcg);
    let thread = [LaneKill { kill: OomKill { tgid: Some(10), ..kill(12, None) }, ..named(12, 5) }];
    assert_eq!(sigkill_end(facts(&thread)), SigkillEnd::OomMemcg, "one of its threads is named");
    assert_eq!(sigkill_end(SigkillFacts { our_kill: true, ..facts(&own) }), SigkillEnd::KilledByUs);
    assert_eq!(sigkill_end(facts(&[])), SigkillEnd::OomUnnamed);
    let still = SigkillFacts { counted: Some(0), ..facts(&[]) };
    assert_eq!(sigkill_end(still), SigkillEnd::Unexplained);
    assert_eq!(sigkill_end(SigkillFacts { counted: None, ..still }), SigkillEnd::Unexplained);
}

#[test]
fn beside_a_victim_only_shared_memory_makes_a_co_victim() {
    let child = [named(11, 5)];
    assert_eq!(sigkill_end(facts(&child)), SigkillEnd::Unexplained);
    let shared = SigkillFacts { sharing: &[11], ..facts(&child) };
    assert_eq!(sigkill_end(shared), SigkillEnd::CoVictim);
    let old = [named(11, 1_500)];
    assert_eq!(sigkill_end(SigkillFacts { named: &old, ..shared }), SigkillEnd::Unexplained);
}

#[test]
fn what_was_counted_while_the_worker_lived_did_not_end_it() {
    let before = SigkillFacts { counted: Some(1), unnamed_before: 1, ..facts(&[]) };
    assert_eq!(sigkill_end(before), SigkillEnd::Unexplained);
    assert!(!wants_kernel_log(before, None));
    let again = SigkillFacts { counted: Some(2), ..before };
    assert_eq!(sigkill_end(again), SigkillEnd::OomUnnamed);
}

#[test]
fn a_counter_that_stands_still_needs_no_waiting() {
    let still = SigkillFacts { counted: Some(0), ..facts(&[]) };
    assert!(!wants_kernel_log(still, None));
    assert!(wants_kernel_log(facts(&[]), None));
    let uncounted = SigkillFacts { counted: None, ..still };
    assert!(wants_kernel_log(uncounted, None));
    assert!(!wants_kernel_log(uncounted, Some(false)));
    assert!(!wants_kernel_log(SigkillFacts { our_kill: true, ..uncounted }, None));
}
