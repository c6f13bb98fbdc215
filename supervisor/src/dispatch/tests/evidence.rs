//! Who sent the SIGKILL? The kernel's word is waited for only while it can still say something.

use super::world::*;
use crate::{
    effect::Effect,
    event::{EndedRun, Event, Order},
    keeper::protocol::{Started, StopSignal},
    observe::Observation,
    store::rows::Write,
    verdict::{LaneState, SigkillEnd},
};

fn killed(world: &World, worker: &Started, counter: Option<(u64, u64)>) -> EndedRun {
    let mut end = ended(worker, SIGKILLED, world.now.unix_ms);
    end.ended.oom_kills = counter;
    end
}

fn kernel_kill(world: &mut World, pid: u32, task_memcg: Option<&str>) {
    world.handle(kernel(oom_kill(pid, task_memcg), 42, world.now.unix_ms));
}

#[test]
fn a_counter_that_stands_still_is_judged_at_once() {
    let (mut world, worker) = World::one().running();
    let end = killed(&world, &worker, Some((3, 3)));
    world.handle(Event::Ended(Box::new(end)));
    assert_eq!(world.verdicts(), ["signalled"]);
    assert_eq!(world.judged()[0].end, Some(SigkillEnd::Unexplained));

    // No counter of its own, and the box's stands still.
    let (mut world, worker) = World::one().running();
    let end = killed(&world, &worker, None);
    world.handle(Event::Ended(Box::new(end)));
    assert_eq!(world.verdicts(), ["signalled"]);
}

#[test]
fn a_counter_that_grew_waits_for_the_kernels_record() {
    let (mut world, worker) = World::one().running();
    let end = killed(&world, &worker, Some((0, 1)));
    world.handle(Event::Ended(Box::new(end)));
    assert_eq!(world.shape(), ["wake in 250"]);
    assert_eq!(world.state("a"), LaneState::Running);
    world.pass(40);
    kernel_kill(&mut world, worker.pid, worker.cgroup.as_deref());
    assert_eq!(
        world.shape(),
        [
            "record kill in a, ended oom-killed, lane cooling, tell oom-kill",
            "OomKill",
            "run oom-killed",
            "moved running cooling",
            "notify",
            "forget",
            &format!("wake in {}", world.wake().unwrap() - world.now.boot_ms),
        ]
    );
    let row = world.judged()[0];
    assert_eq!(row.end, Some(SigkillEnd::OomMemcg));
    assert_eq!(row.evidence["oom_kills_named"][0]["kill"]["pid"], worker.pid);
}

#[test]
fn a_record_that_never_comes_is_not_waited_for_longer_than_a_quarter_second() {
    for counter in [Some((0, 1)), None] {
        let (mut world, worker) = World::one().running();
        let mut end = killed(&world, &worker, counter);
        end.box_counter_grew = None;
        world.handle(Event::Ended(Box::new(end)));
        world.later(249);
        assert_eq!(world.shape(), ["wake in 1"]);
        world.later(1);
        let expected = if counter.is_some() {
            ("oom-killed", SigkillEnd::OomUnnamed, vec!["oom-kill"])
        } else {
            ("signalled", SigkillEnd::Unexplained, vec!["lane-dead"])
        };
        assert_eq!(world.verdicts(), [expected.0]);
        assert_eq!(world.judged()[0].end, Some(expected.1));
        assert_eq!(world.told(), expected.2);
    }
}

#[test]
fn a_deadline_that_passes_meanwhile_does_not_spin() {
    let (mut world, worker) = World::one().running();
    world.pass(7_199_900);
    let end = killed(&world, &worker, Some((0, 1)));
    world.handle(Event::Ended(Box::new(end)));
    world.later(100);
    assert_eq!(world.shape(), ["wake in 150"], "the deadline of a worker that is gone is over");
    world.later(150);
    assert_eq!(world.verdicts(), ["oom-killed"]);
}

#[test]
fn a_kill_in_the_tree_of_a_living_worker_is_a_page_and_no_verdict() {
    let (mut world, worker) = World::one().running();
    let below = format!("{}/child", worker.cgroup.clone().unwrap());
    kernel_kill(&mut world, 9999, Some(&below));
    assert_eq!(
        world.shape(),
        ["record kill in a, tell oom-kill", "OomKill", "notify", "wake in 7200000"]
    );
    assert_eq!(world.state("a"), LaneState::Running);
    // A worker that fails within two seconds died of it; one that fails later did not.
    let mut later = World::one().running();
    kernel_kill(&mut later.0, 9999, later.1.cgroup.as_deref());
    later.0.pass(60_000);
    let mut end = ended(&later.1, exit(2), later.0.now.unix_ms);
    end.ended.oom_kills = Some((0, 1));
    later.0.handle(Event::Ended(Box::new(end.clone())));
    assert_eq!(later.0.verdicts(), ["failed"]);
    world.pass(1000);
    end.ended.started = worker.clone();
    end.ended.ended_at_ms = world.now.unix_ms;
    world.handle(Event::Ended(Box::new(end)));
    assert_eq!(world.verdicts(), ["oom-killed"]);
    assert_eq!(world.told(), Vec::<&str>::new(), "one page a run");
}

#[test]
fn a_foreign_victim_blames_no_lane() {
    let (mut world, worker) = World::one().running();
    kernel_kill(&mut world, worker.pid + 1, Some("/user.slice"));
    assert_eq!(world.shape(), ["record kill in -", "OomKill", "wake in 7200000"]);
    assert!(
        matches!(world.writes()[0], Write::OomKill(row) if row.seq == Some(42) && row.run.is_none())
    );
    assert!(matches!(
        &world.effects[1],
        Effect::Observe(Observation::OomKill { lane: None, class: SigkillEnd::OomMemcg, .. })
    ));
    world.end(&worker, SIGKILLED);
    assert_eq!(world.verdicts(), ["signalled"]);
}

#[test]
fn our_own_kill_is_ours_and_waits_for_nothing() {
    let (mut world, worker) = World::one().running();
    world.order(1, Order::Stop(id("a")));
    world.later(10_000);
    assert_eq!(world.shape(), ["signalled Kill", "signal Kill", "wake in 5000"]);
    let mut end = killed(&world, &worker, None);
    end.box_counter_grew = None;
    let at_ms = world.now.unix_ms;
    end.ended.our_signals = vec![(StopSignal::Term, at_ms - 10_000), (StopSignal::Kill, at_ms)];
    world.handle(Event::Ended(Box::new(end)));
    assert_eq!(world.verdicts(), ["stopped"]);
    assert_eq!(world.judged()[0].end, Some(SigkillEnd::KilledByUs));
    assert!(world.is_done(1));
}

#[test]
fn lost_records_of_the_kernel_log_are_counted() {
    let mut world = World::one();
    world.handle(Event::KernelLogLost(3));
    assert_eq!(world.effects, [Effect::Observe(Observation::KernelLogLost(3))]);
}
