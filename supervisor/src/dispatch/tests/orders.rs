//! Orders at every step: each client gets one answer, and no lane gets a second worker.

use super::world::*;
use crate::{
    effect::{Answer, Goodbye},
    event::{Beginning, ClaimAnswer, Event, Order, Termination},
    keeper::protocol::Started,
    store::rows::LaneRow,
    verdict::LaneState,
};

/// Where a lane may be when an order comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Down,
    Preparing,
    Claiming,
    Spawning,
    Running,
    Stopping,
    Evidence,
    Cooling,
    Held,
    Parked,
}

const EVERYWHERE: [At; 10] = [
    At::Down,
    At::Preparing,
    At::Claiming,
    At::Spawning,
    At::Running,
    At::Stopping,
    At::Evidence,
    At::Cooling,
    At::Held,
    At::Parked,
];

/// A lane there, and its worker if the keeper has one or is about to.
fn there(at: At) -> (World, Option<Started>) {
    let mut world = World::new(vec![lane("a")], at == At::Claiming);
    world.began(Beginning::default());
    match at {
        At::Preparing => return (world, None),
        At::Held => {
            let reading = crate::decide::admission::HostReading { load: Ok(99.0), ..well() };
            let answer = crate::event::Preparation::Taken { reading, epoch: 3 };
            world.handle(Event::Prepared { lane: id("a"), answer });
            return (world, None);
        }
        At::Down => {
            world.order(900, Order::Stop(id("a")));
            world.prepared("a");
            assert!(world.is_done(900));
            return (world, None);
        }
        At::Claiming
        | At::Spawning
        | At::Running
        | At::Stopping
        | At::Evidence
        | At::Cooling
        | At::Parked => {}
    }
    world.prepared("a");
    if at == At::Claiming {
        return (world, None);
    }
    let order = world.spawn_order();
    let worker = world.worker(&order);
    if at == At::Spawning {
        return (world, Some(worker));
    }
    world.handle(Event::Spawned(Box::new(worker.clone())));
    let mut end = ended(&worker, exit(1), world.now.unix_ms);
    match at {
        At::Stopping => {
            world.later(7_200_000);
            assert_eq!(world.state("a"), LaneState::Stopping);
        }
        At::Evidence => {
            end.ended.wait_status = SIGKILLED;
            end.ended.oom_kills = Some((0, 1));
            world.handle(Event::Ended(Box::new(end)));
            return (world, None);
        }
        At::Cooling => {
            world.handle(Event::Ended(Box::new(end)));
            return (world, None);
        }
        At::Parked => {
            end.ended.wait_status = EXIT_0;
            end.marker = marker(r#"{"outcome":"blocked","reason":"needs-decision"}"#);
            world.handle(Event::Ended(Box::new(end)));
            return (world, None);
        }
        At::Down | At::Preparing | At::Claiming | At::Spawning | At::Running | At::Held => {}
    }
    (world, Some(worker))
}

/// Lets everything that is under way come to its end.
fn settle(world: &mut World, worker: Option<Started>) {
    if let Some(worker) = worker {
        if world.lane("a").run.as_ref().is_some_and(|run| run.started.is_none()) {
            world.handle(Event::Spawned(Box::new(worker.clone())));
        }
        if world.lane("a").run.as_ref().is_some_and(|run| run.stopping.is_some()) {
            world.end(&worker, 15);
        }
    }
    world.later(250);
    world.prepared("a");
}

#[test]
fn a_stop_takes_the_lane_down_from_everywhere() {
    for at in EVERYWHERE {
        let (mut world, worker) = there(at);
        world.order(1, Order::Stop(id("a")));
        settle(&mut world, worker);
        assert!(world.is_done(1), "{at:?}: {:?}", world.answer(1));
        assert_eq!(world.state("a"), LaneState::Stopped, "{at:?}");
        assert_eq!(world.wake(), None, "{at:?}: nothing is due");
        world.handle(Event::ClaimAnswered {
            lane: id("a"),
            answer: ClaimAnswer::Failed(String::new()),
        });
        world.later(86_400_000);
        assert_eq!(world.state("a"), LaneState::Stopped, "{at:?}");
        assert!(world.lane("a").row().down, "the next daemon keeps it down");
    }
}

#[test]
fn a_restart_leads_to_a_new_worker_from_everywhere() {
    for at in EVERYWHERE {
        let (mut world, worker) = there(at);
        let before = world.lane("a").run.as_ref().map(|run| run.id.clone());
        world.order(1, Order::Restart(id("a")));
        settle(&mut world, worker);
        assert!(world.is_done(1), "{at:?}: {:?}", world.answer(1));
        if at == At::Claiming {
            world.later(20_000);
        }
        let now = world.lane("a").run.as_ref().map(|run| run.id.clone());
        assert!(now.is_some() && now != before, "{at:?}: {:?} {:?}", world.state("a"), now);
    }
}

#[test]
fn a_start_answers_from_everywhere_and_never_makes_a_second_worker() {
    for at in EVERYWHERE {
        let (mut world, worker) = there(at);
        world.order(1, Order::Start(id("a")));
        assert!(world.is_done(1), "{at:?}: {:?}", world.answer(1));
        settle(&mut world, worker);
        assert_ne!(world.state("a"), LaneState::Stopped, "{at:?}");
    }
}

#[test]
fn the_last_of_two_orders_counts_and_both_are_answered() {
    type Make = fn(crate::ids::LaneId) -> Order;
    let orders: [Make; 3] = [Order::Stop, Order::Start, Order::Restart];
    for at in EVERYWHERE {
        for (first, second) in (0..9).map(|index| (index / 3, index % 3)) {
            let (mut world, worker) = there(at);
            world.order(1, orders[first](id("a")));
            world.order(2, orders[second](id("a")));
            settle(&mut world, worker);
            let which = format!("{at:?}: {first} {second}");
            assert_eq!(world.unanswered(), [0_u64; 0], "{which}: {:?}", world.lane("a"));
            let down = world.state("a") == LaneState::Stopped;
            assert_eq!(down, second == 0, "{which}: {:?}", world.state("a"));
        }
    }
}

#[test]
fn a_stop_while_the_keeper_starts_the_worker_ends_it_when_it_is_there() {
    let (mut world, worker) = there(At::Spawning);
    world.order(1, Order::Stop(id("a")));
    assert_eq!(world.shape(), ["record audit"]);
    world.handle(Event::Spawned(Box::new(worker.unwrap())));
    assert_eq!(
        world.shape(),
        [
            "record started, lane stopping",
            "run started",
            "signalled Term",
            "moved starting stopping",
            "watch",
            "signal Term",
            "wake in 10000"
        ]
    );
}

#[test]
fn the_rungs_of_a_stop() {
    let (mut world, _) = there(At::Running);
    world.order(1, Order::Stop(id("a")));
    assert_eq!(
        world.shape(),
        [
            "record audit, lane stopping",
            "signalled Term",
            "moved running stopping",
            "signal Term",
            "wake in 10000"
        ]
    );
    world.later(9999);
    assert_eq!(world.shape(), ["wake in 1"]);
    for wait in [1, 5000, 5000] {
        world.later(wait);
        assert_eq!(world.shape(), ["signalled Kill", "signal Kill", "wake in 5000"]);
    }
}

#[test]
fn a_deadline_stays_a_deadline_whatever_is_ordered_afterwards() {
    for order in [Order::Stop(id("a")), Order::Restart(id("a"))] {
        let (mut world, worker) = there(At::Stopping);
        world.order(1, order);
        world.end(&worker.unwrap(), 15);
        assert_eq!(world.verdicts(), ["deadline"]);
        assert!(world.is_done(1));
    }
}

#[test]
fn a_drained_box_starts_nothing_more_from_anywhere() {
    for at in EVERYWHERE {
        let (mut world, worker) = there(at);
        world.order(1, Order::Drain);
        assert!(world.is_done(1));
        for (client, order) in [(2, Order::Start(id("a"))), (3, Order::Restart(id("a")))] {
            world.order(client, order);
            assert!(matches!(world.answer(client), Some(Answer::Refused(_))), "{at:?}");
        }
        if let Some(worker) = worker {
            if at == At::Spawning {
                world.handle(Event::Spawned(Box::new(worker.clone())));
            }
            world.end(&worker, exit(1));
        }
        world.handle(Event::ClaimAnswered {
            lane: id("a"),
            answer: ClaimAnswer::Failed(String::new()),
        });
        settle(&mut world, None);
        world.later(86_400_000);
        assert!(world.lane("a").run.is_none(), "{at:?}");
        let rests = if at == At::Parked { LaneState::Parked } else { LaneState::Stopped };
        assert_eq!(world.state("a"), rests, "{at:?}");
        assert_eq!(world.lane("a").row().down, at == At::Down, "{at:?}: only a stop outlives us");
    }
}

#[test]
fn a_drained_lane_is_due_again_in_the_next_daemon_and_a_stopped_one_is_not() {
    for (order, starts) in [(Order::Drain, true), (Order::Stop(id("a")), false)] {
        let (mut world, worker) = there(At::Running);
        world.order(1, order);
        world.end(&worker.unwrap(), 15);
        let row: LaneRow = world.lane_row().clone();
        let mut next = World::one();
        next.began(Beginning { lanes: vec![row], same_boot: true, ..Beginning::default() });
        let prepares = next.shape().contains(&"prepare".to_owned());
        assert_eq!(prepares, starts, "{:?}", next.shape());
    }
}

#[test]
fn unknown_lanes_are_refused_by_name() {
    let mut world = World::one();
    world.began(Beginning::default());
    world.order(1, Order::Stop(id("b")));
    let Some(Answer::Refused(why)) = world.answer(1) else { panic!("{:?}", world.answer(1)) };
    assert!(why.contains("no lane b") && why.contains("there are: a"), "{why}");
}

#[test]
fn a_worker_tells_its_issue_and_status_tells_everything() {
    let mut world = World::new(vec![lane("a")], true);
    world.began(Beginning::default());
    world.order(1, Order::Issue(id("a"), 88));
    assert_eq!(world.shape(), ["record audit, lane starting", "claim starting", "reply 1 done"]);
    assert_eq!(world.lane_row().issue, Some(88));
    world.order(2, Order::Status);
    let Some(Answer::Status(view)) = world.answer(2) else { panic!("{:?}", world.answer(2)) };
    assert_eq!((view.lanes[0].id.as_str(), view.lanes[0].issue), ("a", Some(88)));
}

#[test]
fn leaving_workers_exits_at_once_and_leaves_claims() {
    for (at, left) in [(At::Running, 1), (At::Spawning, 1), (At::Cooling, 0), (At::Preparing, 0)] {
        let (mut world, _) = there(at);
        world.handle(Event::Terminate(Termination::LeaveWorkers));
        assert_eq!(world.goodbye(), Some(Goodbye { workers_left: left }), "{at:?}");
        assert!(!world.shape().iter().any(|word| word.starts_with("claim")), "{:?}", world.shape());
        assert!(!world.shape().iter().any(|word| word.starts_with("signal")));
    }
    // A client that waits for a worker which goes on is told so.
    let (mut world, _) = there(At::Running);
    world.order(1, Order::Stop(id("a")));
    world.handle(Event::Terminate(Termination::LeaveWorkers));
    assert!(matches!(world.answer(1), Some(Answer::Refused(_))));
}

#[test]
fn ending_with_workers_ends_them_first() {
    for at in EVERYWHERE {
        let (mut world, worker) = there(at);
        world.handle(Event::Terminate(Termination::WithWorkers));
        let lives = matches!(at, At::Spawning | At::Running | At::Stopping | At::Evidence);
        assert_eq!(world.goodbye().is_none(), lives, "{at:?}");
        if lives {
            settle(&mut world, worker);
            assert!(world.has_exited(), "{at:?}");
            assert_eq!(world.state("a"), LaneState::Stopped, "{at:?}");
        }
    }
}

#[test]
fn at_once_kills() {
    let (mut world, worker) = there(At::Running);
    world.handle(Event::Terminate(Termination::WithWorkers));
    assert_eq!(world.wake(), Some(world.now.boot_ms + 10_000));
    world.handle(Event::Terminate(Termination::AtOnce));
    assert_eq!(world.shape(), ["signalled Kill", "signal Kill", "wake in 5000"]);
    // Asking more softly afterwards changes nothing.
    world.handle(Event::Terminate(Termination::LeaveWorkers));
    assert_eq!(world.goodbye(), None);
    world.end(&worker.unwrap(), SIGKILLED);
    assert_eq!(world.goodbye(), Some(Goodbye { workers_left: 0 }));

    let (mut world, worker) = there(At::Spawning);
    world.handle(Event::Terminate(Termination::AtOnce));
    world.handle(Event::Spawned(Box::new(worker.unwrap())));
    assert!(world.shape().contains(&"signal Kill".to_owned()), "{:?}", world.shape());
}
