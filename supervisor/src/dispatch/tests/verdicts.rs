//! Every verdict, from the first event to the row.

use super::world::*;
use crate::{
    event::{Beginning, Event, Order},
    ids::RunId,
    keeper::protocol::{Started, StopSignal},
    store::rows::OpenRun,
    verdict::{LaneState, RunVerdict, SigkillEnd},
};

/// Ends a worker with exit 0 and this marker.
fn marked(world: &mut World, worker: &Started, json: &str) {
    let mut end = ended(worker, EXIT_0, world.now.unix_ms);
    end.marker = marker(json);
    world.handle(Event::Ended(Box::new(end)));
}

/// Drives one worker to an end of this kind; false if nothing produces the verdict yet.
fn drive(world: World, verdict: RunVerdict) -> Option<World> {
    let (mut world, worker) = world.running();
    world.pass(5000);
    match verdict {
        RunVerdict::Finalized => {
            marked(&mut world, &worker, r#"{"outcome":"finalized","issue":7,"pr":12}"#);
        }
        RunVerdict::NoWork => marked(&mut world, &worker, r#"{"outcome":"no-work"}"#),
        RunVerdict::Blocked => marked(&mut world, &worker, r#"{"outcome":"blocked","issue":7}"#),
        RunVerdict::ParkedOnOwner => marked(
            &mut world,
            &worker,
            r#"{"outcome":"blocked","reason":"needs-decision","question":"A or B?"}"#,
        ),
        RunVerdict::Failed => drop(world.end(&worker, exit(3)).len()),
        RunVerdict::Signalled => drop(world.end(&worker, 0x8b).len()),
        RunVerdict::OomKilled => {
            let kill = oom_kill(worker.pid, worker.cgroup.as_deref());
            world.handle(kernel(kill, 1, world.now.unix_ms));
            let mut end = ended(&worker, SIGKILLED, world.now.unix_ms);
            end.ended.oom_kills = Some((0, 1));
            world.handle(Event::Ended(Box::new(end)));
        }
        RunVerdict::Deadline => {
            world.later(7_200_000);
            assert_eq!(world.state("a"), LaneState::Stopping);
            world.end(&worker, 15);
        }
        RunVerdict::StuckOnQuestion => return None,
        RunVerdict::MarkerMissing => drop(world.end(&worker, EXIT_0).len()),
        RunVerdict::MarkerInvalid => marked(&mut world, &worker, "{"),
        RunVerdict::MarkerStale => {
            let other = RunId::from_bytes([9; 16]);
            marked(&mut world, &worker, &format!(r#"{{"outcome":"no-work","run":"{other}"}}"#));
        }
        RunVerdict::NotStarted => {
            world.end(&worker, exit(1));
            world.later(1000);
            world.prepared("a");
            let run = world.spawn_order().run;
            let (step, message) = ("exec".to_owned(), "no such program".to_owned());
            world.handle(Event::NotSpawned { lane: id("a"), run, step, message });
        }
        RunVerdict::Stopped => {
            world.order(1, Order::Stop(id("a")));
            let mut end = ended(&worker, 15, world.now.unix_ms);
            end.ended.our_signals = vec![(StopSignal::Term, world.now.unix_ms)];
            world.handle(Event::Ended(Box::new(end)));
        }
        RunVerdict::Vanished => {
            world.handle(Event::KeeperLost);
            world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
            let marker = crate::decide::marker::MarkerReading::Absent;
            world.handle(Event::WorkerGone {
                run: worker.run,
                wait_status: None,
                marker,
                box_counter_grew: None,
            });
        }
    }
    Some(world)
}

#[test]
fn every_verdict_is_reached_and_recorded_first() {
    let mut unproduced = Vec::new();
    for &verdict in RunVerdict::ALL {
        let Some(world) = drive(World::one(), verdict) else {
            unproduced.push(verdict);
            continue;
        };
        assert_eq!(world.verdicts(), [verdict.as_str()], "{:#?}", world.effects);
        let shape = world.shape();
        assert!(shape[0].starts_with("record ") && shape[0].contains(&format!("ended {verdict}")));
        assert!(shape.contains(&"forget".to_owned()), "{shape:?}");
        let last = world.lane("a").last.clone().unwrap();
        assert_eq!(last.verdict, verdict);
        assert_eq!(world.lane_row().last.map(|(last, _)| last), Some(verdict));
        assert!(world.lane("a").run.is_none());
    }
    // Nothing looks for questions yet. When something does, it belongs into `drive`.
    assert_eq!(unproduced, [RunVerdict::StuckOnQuestion]);
}

#[test]
fn what_is_told_of_an_end() {
    let told: Vec<(&str, Vec<&str>)> = RunVerdict::ALL
        .iter()
        .filter_map(|&verdict| Some((verdict.as_str(), drive(World::one(), verdict)?)))
        .map(|(verdict, world)| (verdict, world.told()))
        .filter(|(_, told)| !told.is_empty())
        .collect();
    // The page for an OOM kill went out when the kernel's record was read, before the end.
    assert_eq!(
        told,
        [
            ("blocked", vec!["blocked"]),
            ("parked-on-owner", vec!["parked"]),
            ("signalled", vec!["lane-dead"]),
            ("deadline", vec!["deadline-ended"]),
            ("vanished", vec!["lane-dead"]),
        ]
    );
}

#[test]
fn where_each_end_leaves_the_lane() {
    for &verdict in RunVerdict::ALL {
        let Some(world) = drive(World::one(), verdict) else { continue };
        let state = if verdict == RunVerdict::ParkedOnOwner {
            LaneState::Parked
        } else if verdict == RunVerdict::Stopped {
            LaneState::Stopped
        } else {
            LaneState::Cooling
        };
        assert_eq!(world.state("a"), state, "{verdict}");
        assert_eq!(world.wake().is_some(), state == LaneState::Cooling, "{verdict}");
    }
}

#[test]
fn the_effects_of_an_end_in_full() {
    let (mut world, worker) = World::new(vec![lane("a")], false).running();
    world.pass(5000);
    world.end(&worker, SIGKILLED);
    assert_eq!(
        world.shape(),
        [
            "record ended signalled, lane cooling, tell lane-dead",
            "run signalled",
            "moved running cooling",
            "notify",
            "forget",
            &format!("wake in {}", world.wake().unwrap() - world.now.boot_ms),
        ]
    );
    let row = world.judged()[0];
    assert_eq!((row.signal, row.exit_code), (Some(9), None));
    assert_eq!(row.end, Some(SigkillEnd::Unexplained));
    assert_eq!(row.ended_at_ms - row.started_at_ms, 5000);
    assert_eq!(row.evidence["oom_kills_counted"], 0);
}

#[test]
fn a_run_that_was_never_confirmed_vanished() {
    let mut world = World::one();
    let run = RunId::from_bytes([1; 16]);
    let open = OpenRun { run, lane: id("a"), started_at_ms: world.now.unix_ms, worker: None };
    world.began(Beginning { open: vec![(open, None)], same_boot: true, ..Beginning::default() });
    assert_eq!(world.verdicts(), ["vanished"]);
}
