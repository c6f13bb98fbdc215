//! What was there before us, and what becomes of it while its keeper comes and goes.

use lanewarden_notify::Notice;
use lanewarden_probes::liveness::{Judged, Liveness};

use super::world::*;
use crate::{
    config::{Lane, Mode},
    decide::marker::MarkerReading,
    event::{Beginning, Event, Order},
    ids::RunId,
    keeper::protocol::Started,
    store::rows::{LaneRow, OpenRun, Write},
    verdict::{LaneState, RunVerdict, Verified},
};

fn run(byte: u8) -> RunId {
    RunId::from_bytes([byte; 16])
}

fn old(world: &World, byte: u8) -> Started {
    started("a", &run(byte), 70 + u32::from(byte), world.now.unix_ms - 60_000)
}

fn judged(verdict: Liveness) -> Option<Judged> {
    Some(Judged { verdict, reason: "it was looked at".to_owned() })
}

fn begin_with_open(open: OpenRun, judged: Option<Judged>) -> World {
    let mut world = World::one();
    world.began(Beginning { open: vec![(open, judged)], same_boot: true, ..Beginning::default() });
    world
}

fn row(state: LaneState) -> LaneRow {
    let world = World::one();
    LaneRow { state, reason: Some("as it was".to_owned()), ..world.lane("a").row() }
}

fn gone(run: &RunId, wait_status: Option<i32>, marker: MarkerReading) -> Event {
    Event::WorkerGone { run: run.clone(), wait_status, marker, box_counter_grew: None }
}

#[test]
fn a_living_run_is_taken_over_and_never_started_again() {
    let mut world = World::one();
    let worker = old(&world, 1);
    world.began(Beginning {
        living: vec![worker.clone()],
        same_boot: true,
        ..Beginning::default()
    });
    assert_eq!(
        world.shape(),
        [
            "record started, lane running",
            "adopted 1 0 0",
            "watch",
            // The deadline counts from its start, not from ours.
            "wake in 7140000"
        ]
    );
    world.later(60_000);
    assert_eq!(world.shape(), ["wake in 7080000"]);
    world.end(&worker, exit(2));
    assert_eq!(world.verdicts(), ["failed"]);
    assert_eq!(world.judged()[0].ended_at_ms - world.judged()[0].started_at_ms, 120_000);
}

#[test]
fn a_run_that_ended_meanwhile_is_judged_by_its_status() {
    let mut world = World::one();
    let worker = old(&world, 1);
    let end = ended(&worker, exit(2), world.now.unix_ms - 5000);
    let open = vec![(open_run(&worker), judged(Liveness::DeadNoProcess))];
    world.began(Beginning { open, ended: vec![end], same_boot: true, ..Beginning::default() });
    assert_eq!(world.verdicts(), ["failed"], "once, and not as lost");
    assert_eq!(world.told(), Vec::<&str>::new());
    assert!(world.shape().contains(&"adopted 0 1 0".to_owned()));
}

#[test]
fn an_open_run_that_lives_by_identity_is_watched_without_a_keeper() {
    let worker = old(&World::one(), 1);
    let mut world = begin_with_open(open_run(&worker), judged(Liveness::Alive));
    assert_eq!(world.shape(), ["record lane running", "adopted 0 0 0", "watch", "wake in 7140000"]);
    world.order(1, Order::Stop(id("a")));
    assert!(world.shape().contains(&"signal Term stray".to_owned()), "{:?}", world.shape());
    world.handle(gone(&worker.run, None, MarkerReading::Absent));
    assert_eq!(world.verdicts(), ["stopped"], "we ordered it, however it went");
    assert_eq!(world.state("a"), LaneState::Stopped);
}

#[test]
fn an_orphans_end_is_what_the_kernel_or_its_marker_tells() {
    let no_work = || marker(r#"{"outcome":"no-work"}"#);
    for (status, marker, verdict) in [
        (Some(exit(3)), MarkerReading::Absent, "failed"),
        (Some(EXIT_0), no_work(), "no-work"),
        (Some(11), MarkerReading::Absent, "signalled"),
        (None, no_work(), "no-work"),
        (None, MarkerReading::Absent, "vanished"),
    ] {
        let worker = old(&World::one(), 1);
        let mut world = begin_with_open(open_run(&worker), judged(Liveness::Alive));
        world.handle(gone(&worker.run, status, marker));
        assert_eq!(world.verdicts(), [verdict], "{status:?}");
    }
}

#[test]
fn a_dead_or_never_confirmed_run_vanished_and_people_are_told() {
    let worker = old(&World::one(), 1);
    let unconfirmed = OpenRun { worker: None, ..open_run(&worker) };
    for (open, verdict, shown) in [
        (open_run(&worker), judged(Liveness::DeadReboot), "DEAD-REBOOT"),
        (open_run(&worker), judged(Liveness::DeadPidReused), "DEAD-PID-REUSED"),
        (unconfirmed, None, "never confirmed"),
    ] {
        let world = begin_with_open(open, verdict);
        assert_eq!(world.verdicts(), ["vanished"]);
        assert_eq!(world.state("a"), LaneState::Cooling);
        let lost = Notice::BackWithLanesLost {
            lanes: vec![("a".to_owned(), shown.to_owned())],
            adopted: 0,
        };
        assert!(world.notices().iter().any(|telling| telling.notice == lost), "{shown}");
    }
}

#[test]
fn what_cannot_be_told_starts_nothing_beside_it() {
    for &verdict in Liveness::ALL.iter().filter(|verdict| verdict.is_unknown()) {
        let mut world = begin_with_open(open_run(&old(&World::one(), 1)), judged(verdict));
        assert_eq!(world.state("a"), LaneState::Occupied, "{verdict}");
        assert_eq!(world.shape()[0], "record lane occupied", "{verdict}: it is not judged");
        world.later(10_000);
        assert_eq!(world.shape(), ["prepare"], "whoever takes the lane looks again");
    }
}

#[test]
fn a_living_worker_keeps_its_lane_whatever_else_is_remembered() {
    let mut world = World::one();
    let (living, dead) = (old(&world, 1), old(&world, 2));
    let at_ms = world.now.unix_ms;
    let open = vec![
        (open_run(&old(&world, 3)), judged(Liveness::DeadNoProcess)),
        (open_run(&old(&world, 4)), judged(Liveness::Alive)),
        (open_run(&old(&world, 5)), judged(Liveness::UnknownHidden)),
        (OpenRun { worker: None, ..open_run(&old(&world, 6)) }, None),
    ];
    world.began(Beginning {
        living: vec![living.clone(), old(&world, 7)],
        ended: vec![ended(&dead, exit(4), at_ms)],
        open,
        same_boot: true,
        ..Beginning::default()
    });
    assert_eq!(world.verdicts(), ["failed", "vanished", "vanished"], "recorded beside it");
    assert_eq!(world.lane("a").run.as_ref().map(|run| &run.id), Some(&living.run));
    assert_eq!(world.state("a"), LaneState::Running);
    assert!(world.lane("a").history.failures.is_empty());
    world.later(60_000);
    assert!(!world.shape().contains(&"prepare".to_owned()), "{:?}", world.shape());
}

#[test]
fn runs_of_lanes_that_are_not_configured_are_left_alone() {
    let mut world = World::one();
    let other = started("gone", &run(1), 71, world.now.unix_ms);
    let open = vec![(open_run(&other), judged(Liveness::Alive))];
    let dead = started("gone", &run(2), 72, world.now.unix_ms);
    let dead = vec![ended(&dead, EXIT_0, world.now.unix_ms)];
    world.began(Beginning { living: vec![other], ended: dead, open, ..Beginning::default() });
    let shape = world.shape();
    assert!(shape.contains(&"Stranger".to_owned()) && shape.contains(&"forget".to_owned()));
    assert!(!shape.iter().any(|word| word.starts_with("signal") || word == "watch"), "{shape:?}");
}

#[test]
fn what_waits_for_a_person_waits_on_and_moments_of_another_boot_mean_nothing() {
    for state in [LaneState::Parked, LaneState::Tripped, LaneState::Exhausted] {
        let mut world = World::one();
        world.began(Beginning { lanes: vec![row(state)], ..Beginning::default() });
        assert_eq!(world.state("a"), state);
        assert_eq!(world.lane("a").reason.as_deref(), Some("as it was"));
        assert_eq!(world.wake(), None);
    }
    let cooling = |world: &World| LaneRow {
        next_start_boot_ms: Some(world.now.boot_ms + 500_000),
        streak: 2,
        failures_boot_ms: vec![world.now.boot_ms - 10, world.now.boot_ms - 5],
        ..row(LaneState::Cooling)
    };
    let mut world = World::one();
    let lanes = vec![cooling(&world)];
    world.began(Beginning { lanes, same_boot: true, ..Beginning::default() });
    assert_eq!(world.shape(), ["record lane cooling", "adopted 0 0 0", "wake in 500000"]);
    assert_eq!(world.lane("a").history.streak, 2);

    let mut world = World::one();
    let lanes = vec![cooling(&world)];
    world.began(Beginning { lanes, same_boot: false, ..Beginning::default() });
    assert_eq!(world.state("a"), LaneState::Starting, "due at once");
    assert_eq!(world.lane("a").history.streak, 0);
}

#[test]
fn the_last_verdict_outlives_the_daemon() {
    let mut world = World::new(vec![lane("a")], true);
    let last = Some((RunVerdict::NoWork, Verified::NotAsked));
    let stopped = LaneRow { last, down: true, ..row(LaneState::Stopped) };
    world.began(Beginning { lanes: vec![stopped], same_boot: true, ..Beginning::default() });
    // Its claim was taken away when it stopped, and is not stamped again.
    assert_eq!(world.shape()[..2], ["record lane stopped", "claim stopped (remove)"]);
    assert_eq!(world.lane_row().last, last);
}

#[test]
fn a_lane_that_is_only_observed_by_now_is_not_started_again() {
    let observed = Lane { mode: Mode::Observe, command: Vec::new(), ..lane("a") };
    let mut world = World::new(vec![observed], false);
    let worker = old(&world, 1);
    world.began(Beginning { living: vec![worker.clone()], ..Beginning::default() });
    world.end(&worker, exit(1));
    assert_eq!(world.state("a"), LaneState::Vacant);
    world.later(86_400_000);
    assert_eq!(world.shape(), Vec::<String>::new());
}

#[test]
fn a_keeper_that_was_only_away_brings_everything_back() {
    let (mut world, worker) = World::one().running();
    world.handle(Event::KeeperLost);
    assert_eq!(world.shape()[0], "KeeperLost");
    assert!(!world.dispatcher.view(world.now).ready);
    world.handle(Event::KeeperLost);
    assert_eq!(world.shape(), ["wake in 7200000"], "said once");
    world.handle(Event::KeeperBack { living: vec![worker.clone()], ended: Vec::new() });
    assert_eq!(world.shape(), ["KeeperBack", "wake in 7200000"]);
    world.end(&worker, exit(1));
    assert_eq!(world.verdicts(), ["failed"]);

    let (mut world, worker) = World::one().running();
    world.handle(Event::KeeperLost);
    world.handle(gone(&worker.run, None, MarkerReading::Absent));
    assert_eq!(world.verdicts(), [""; 0], "its keeper may still tell how");
    let end = ended(&worker, exit(5), world.now.unix_ms);
    world.handle(Event::KeeperBack { living: Vec::new(), ended: vec![end] });
    assert_eq!(world.judged()[0].exit_code, Some(5));
}

#[test]
fn a_new_keeper_knows_nothing_and_workers_live_on() {
    let (mut world, worker) = World::one().running();
    world.handle(Event::KeeperLost);
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert_eq!(world.state("a"), LaneState::Running);
    world.handle(gone(&worker.run, Some(exit(6)), MarkerReading::Absent));
    assert_eq!(world.judged()[0].exit_code, Some(6));

    // It ended before the new keeper came.
    let (mut world, worker) = World::one().running();
    world.handle(Event::KeeperLost);
    world.handle(gone(&worker.run, Some(exit(6)), MarkerReading::Absent));
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert_eq!(world.judged()[0].exit_code, Some(6));
}

#[test]
fn a_stop_whose_signal_went_down_with_its_keeper_is_signalled_again() {
    let (mut world, worker) = World::one().running();
    world.handle(Event::KeeperLost);
    world.order(1, Order::Stop(id("a")));
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert_eq!(world.shape(), ["KeeperBack", "signal Term stray", "wake in 10000"]);
    world.later(10_000);
    assert_eq!(world.shape(), ["signalled Kill", "signal Kill stray", "wake in 5000"]);
    world.handle(gone(&worker.run, None, MarkerReading::Absent));
    assert!(world.is_done(1));
}

#[test]
fn a_start_in_flight_is_settled_when_a_keeper_is_back() {
    let spawning = || {
        let mut world = World::one();
        world.began(Beginning::default());
        world.prepared("a");
        let order = world.spawn_order();
        let worker = world.worker(&order);
        world.handle(Event::KeeperLost);
        (world, worker)
    };
    let (mut world, worker) = spawning();
    world.handle(Event::KeeperBack { living: vec![worker.clone()], ended: Vec::new() });
    assert_eq!(world.state("a"), LaneState::Running);
    assert!(matches!(world.writes()[0], Write::RunStarted(open) if open.run == worker.run));

    let (mut world, worker) = spawning();
    let end = ended(&worker, exit(1), world.now.unix_ms);
    world.handle(Event::KeeperBack { living: Vec::new(), ended: vec![end] });
    assert_eq!(world.verdicts(), ["failed"]);

    let (mut world, _) = spawning();
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert_eq!(world.verdicts(), ["vanished"]);
    assert_eq!(world.state("a"), LaneState::Cooling);
}

#[test]
fn a_store_that_fails_is_told_once_and_told_again_when_it_is_well() {
    let mut world = World::one();
    world.began(Beginning::default());
    for (failure, told) in [
        (Some("disk full"), vec!["store-degraded"]),
        (Some("disk full"), vec![]),
        (None, vec!["store-recovered"]),
        (None, vec![]),
    ] {
        world.handle(Event::Store { failure: failure.map(str::to_owned) });
        assert_eq!(world.told(), told, "{failure:?}");
        assert_eq!(world.dispatcher.view(world.now).ready, failure.is_none());
    }
}
