//! May it start? Holds, the breaker and budgets.

use super::world::*;
use crate::{
    config::{Budget, Lane},
    decide::admission::HostReading,
    event::{Beginning, Event, Order, Preparation},
    keeper::protocol::Started,
    verdict::LaneState,
};

fn refuse(world: &mut World, reading: HostReading) {
    world.handle(Event::Prepared {
        lane: id("a"),
        answer: Preparation::Taken { reading, epoch: 3 },
    });
}

fn loaded() -> HostReading {
    HostReading { load: Ok(9.0), ..well() }
}

fn full() -> HostReading {
    HostReading { disk_free: Ok(1), ..well() }
}

/// The next worker of lane `a`, at once.
fn next(world: &mut World) -> Started {
    let at = world.lane("a").next_start.unwrap();
    world.later(at.saturating_sub(world.now.boot_ms));
    world.prepared("a");
    world.spawned()
}

#[test]
fn a_refused_start_is_held_told_once_a_reason_and_tried_again() {
    let mut world = World::one();
    world.began(Beginning::default());
    refuse(&mut world, loaded());
    assert_eq!(
        world.shape(),
        [
            "record lane held, tell hold-began",
            "refused load",
            "moved starting held",
            "notify",
            "wake in 10000"
        ]
    );
    world.later(10_000);
    assert_eq!(world.shape(), ["prepare"], "it keeps showing why it is held");
    refuse(&mut world, loaded());
    assert_eq!(world.told(), Vec::<&str>::new(), "the same reason is not told again");
    assert!(world.shape().contains(&"refused load again".to_owned()));
    world.later(10_000);
    refuse(&mut world, full());
    assert_eq!(world.told(), ["hold-began"], "another reason is");
    world.later(10_000);
    world.prepared("a");
    assert_eq!(world.shape(), ["record starting, lane starting", "moved held starting", "spawn"]);
}

#[test]
fn what_cannot_be_measured_holds() {
    let mut world = World::one();
    world.began(Beginning::default());
    refuse(&mut world, HostReading { memory_available: Err("EIO".to_owned()), ..well() });
    assert_eq!(world.state("a"), LaneState::Held);
    let reason = world.lane("a").reason.clone().unwrap();
    assert_eq!(reason, "memory: memory could not be measured: EIO");
}

#[test]
fn somebody_in_the_lane_is_waited_for() {
    let mut world = World::one();
    world.began(Beginning::default());
    for _ in 0..2 {
        let answer = Preparation::Occupied("pid 7 (vim)".to_owned());
        world.handle(Event::Prepared { lane: id("a"), answer });
        assert_eq!(world.state("a"), LaneState::Occupied);
        world.later(10_000);
        assert_eq!(world.shape(), ["prepare"]);
    }
    refuse(&mut world, loaded());
    assert_eq!(world.state("a"), LaneState::Held);
}

#[test]
fn the_breaker_trips_on_the_third_failure_and_an_order_resets_it() {
    let (mut world, mut worker) = World::one().running();
    for _ in 0..2 {
        world.end(&worker, exit(1));
        assert_eq!(world.state("a"), LaneState::Cooling);
        worker = next(&mut world);
    }
    world.end(&worker, exit(1));
    assert_eq!(
        world.shape(),
        [
            "record ended failed, lane tripped, tell breaker-tripped",
            "run failed",
            "BreakerTripped",
            "moved running tripped",
            "notify",
            "forget"
        ]
    );
    world.later(86_400_000);
    assert_eq!(world.shape(), Vec::<String>::new(), "nothing but a person starts it again");
    world.order(1, Order::Start(id("a")));
    assert!(world.is_done(1));
    assert_eq!(
        world.shape(),
        ["record audit, lane starting", "moved tripped starting", "prepare", "reply 1 done"]
    );
    assert!(world.lane_row().failures_boot_ms.is_empty());
    world.prepared("a");
    let worker = world.spawned();
    world.end(&worker, exit(1));
    assert_eq!(world.state("a"), LaneState::Cooling, "the count began anew");
}

#[test]
fn failures_outside_the_window_do_not_trip() {
    let (mut world, mut worker) = World::one().running();
    for _ in 0..6 {
        world.pass(3_600_001);
        world.end(&worker, exit(1));
        assert_eq!(world.state("a"), LaneState::Cooling);
        worker = next(&mut world);
    }
}

#[test]
fn failures_in_a_row_wait_longer_each_time() {
    let patient =
        Lane { restart: crate::config::Restart { breaker: 0, ..lane("a").restart }, ..lane("a") };
    let (mut world, mut worker) = World::new(vec![patient], false).running();
    let mut waits = Vec::new();
    for _ in 0..6 {
        world.end(&worker, exit(1));
        waits.push(world.wake().unwrap() - world.now.boot_ms);
        worker = next(&mut world);
    }
    for (index, wait) in waits.iter().enumerate() {
        let whole = 1000 << index;
        assert!((whole * 3 / 4..=whole).contains(wait) || *wait == 1000, "{waits:?}");
    }
}

#[test]
fn budgets_of_runs_and_hours_rest_the_lane_and_an_order_begins_new_ones() {
    let bounded = |budget| World::new(vec![Lane { budget, ..lane("a") }], false);
    let (mut world, worker) = bounded(Budget { runs: 1, ..Budget::default() }).running();
    world.end(&worker, exit(1));
    world.later(1000);
    assert_eq!(world.shape(), ["record lane exhausted", "moved cooling exhausted"]);
    world.order(1, Order::Start(id("a")));
    assert_eq!(world.state("a"), LaneState::Starting);

    let mut world = bounded(Budget { hours: 1, ..Budget::default() });
    world.began(Beginning::default());
    let answer = Preparation::Occupied("vim".to_owned());
    world.handle(Event::Prepared { lane: id("a"), answer });
    world.later(3_600_000);
    assert_eq!(world.shape(), ["record lane exhausted", "moved occupied exhausted"]);
}

#[test]
fn the_budget_of_issues_counts_finished_ones_and_outlives_the_daemon() {
    let bounded = || Lane { budget: Budget { issues: 1, ..Budget::default() }, ..lane("a") };
    let (mut world, worker) = World::new(vec![bounded()], false).running();
    let mut end = ended(&worker, EXIT_0, world.now.unix_ms);
    end.marker = marker(r#"{"outcome":"finalized","issue":7,"pr":12}"#);
    world.handle(Event::Ended(Box::new(end)));
    let row = world.lane_row().clone();
    assert_eq!(row.issues, 1);
    world.later(1000);
    assert_eq!(world.state("a"), LaneState::Exhausted);
    for state in [LaneState::Stopped, LaneState::Exhausted] {
        let mut world = World::new(vec![bounded()], false);
        let row = crate::store::rows::LaneRow { state, ..row.clone() };
        world.began(Beginning { lanes: vec![row], same_boot: true, ..Beginning::default() });
        world.later(2000);
        assert_eq!(world.state("a"), LaneState::Exhausted);
    }
}
