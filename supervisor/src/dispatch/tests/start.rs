//! The way up: taken, admitted, claimed, spawned.

use super::world::*;
use crate::{
    effect::{ClaimWish, Effect},
    event::{Beginning, ClaimAnswer, Event, Order, Preparation},
    store::rows::{OpenRun, OpenWorker, Write},
    verdict::LaneState,
};

fn claim(answer: ClaimAnswer) -> Event {
    Event::ClaimAnswered { lane: id("a"), answer }
}

fn stamped(at_ms: i64) -> ClaimAnswer {
    let (name, oid) = ("refs/machine-claims/box-a".to_owned(), "0".repeat(40));
    ClaimAnswer::Stamped { name, oid, at_ms }
}

/// A lane whose first claim is being stamped.
fn claiming() -> World {
    let mut world = World::new(vec![lane("a")], true);
    world.began(Beginning::default());
    world.prepared("a");
    assert_eq!(
        world.shape(),
        ["record lane starting", "claim starting", "moved starting starting", "wake in 20000"]
    );
    world
}

#[test]
fn without_a_remote_the_way_up_has_three_turns() {
    let mut world = World::one();
    world.began(Beginning::default());
    assert_eq!(
        world.shape(),
        ["record lane starting", "adopted 0 0 0", "moved stopped starting", "prepare"]
    );
    world.prepared("a");
    assert_eq!(world.shape(), ["record starting, lane starting", "spawn"]);
    let order = world.spawn_order();
    let worker = world.spawned();
    assert_eq!(
        world.shape(),
        [
            "record started, lane running",
            "run started",
            "moved starting running",
            "watch",
            "wake in 7200000"
        ]
    );
    let open = OpenRun {
        run: order.run.clone(),
        lane: id("a"),
        started_at_ms: world.now.unix_ms,
        worker: Some(OpenWorker {
            pid: worker.pid,
            start_ticks: worker.start_ticks,
            boot_id: BOOT.to_owned(),
            pidns: Some(7),
            cgroup: worker.cgroup.clone(),
        }),
    };
    assert_eq!(world.writes()[0], &Write::RunStarted(open));
    assert_eq!(
        world.effects[3],
        Effect::Watch { run: order.run, pid: worker.pid, start_ticks: worker.start_ticks }
    );
}

#[test]
fn the_order_to_the_keeper_has_everything_that_a_worker_sees() {
    let mut world = World::one();
    world.began(Beginning::default());
    world.prepared("a");
    let order = world.spawn_order();
    let run = order.run.as_str();
    assert_eq!(order.argv, ["/bin/worker"]);
    assert_eq!(order.marker_dir, std::path::Path::new("/state/runs").join(run));
    assert_eq!(order.log, std::path::Path::new("/state/logs/a").join(format!("{run}.log")));
    let expected = [
        ("PATH", "/bin"),
        ("FOO", "bar"),
        ("LANEWARDEN_LANE", "a"),
        ("LANEWARDEN_RUN", run),
        ("LANEWARDEN_MARKER", &format!("/state/runs/{run}/marker.json")),
        ("LANEWARDEN_SOCKET", "/run/control.sock"),
        ("LANEWARDEN_EPOCH", "3"),
        ("LANE_ID", "a"),
        ("CLAIM_ACTOR", "flow-a"),
        ("MARKER_FILE", &format!("/state/runs/{run}/marker.json")),
    ];
    assert_eq!(order.env.len(), expected.len());
    for (key, value) in expected {
        assert_eq!(order.env.get(key).map(String::as_str), Some(value), "{key}");
    }
}

#[test]
fn the_first_spawn_waits_for_its_claim_and_the_next_does_not() {
    let mut world = claiming();
    let at_ms = world.now.unix_ms;
    world.handle(claim(stamped(at_ms)));
    assert_eq!(world.shape()[0], "record stamped, starting, lane starting");
    let worker = world.spawned();
    let wish = ClaimWish {
        lane: id("a"),
        state: LaneState::Running,
        issue: None,
        worker: Some((worker.pid, worker.start_ticks)),
        run: Some(worker.run.clone()),
        epoch: Some(3),
        remove: false,
    };
    assert_eq!(world.effects[1], Effect::Claim(vec![wish]));
    world.end(&worker, exit(1));
    world.later(1000);
    world.prepared("a");
    world.spawn_order();
}

#[test]
fn a_remote_that_fails_or_never_answers_holds_nobody_up() {
    let mut world = claiming();
    world.handle(claim(ClaimAnswer::Failed("no route".to_owned())));
    world.spawn_order();

    let mut world = claiming();
    world.later(19_999);
    assert_eq!(world.shape(), ["wake in 1"]);
    world.later(1);
    world.spawned();
    // The late answer is remembered, and starts nothing.
    world.handle(claim(stamped(5)));
    assert_eq!(world.shape(), ["record stamped", "wake in 7200000"]);
    assert_eq!(world.lane("a").claim.as_ref().map(|claim| claim.2), Some(5));
}

#[test]
fn a_claim_that_somebody_else_holds_starts_nothing_and_is_told() {
    let mut world = claiming();
    world.handle(claim(ClaimAnswer::Lost("box-b".to_owned())));
    assert_eq!(
        world.shape(),
        [
            "record lane occupied, tell claim-lost",
            "claim occupied",
            "moved starting occupied",
            "notify",
            "wake in 10000"
        ]
    );
    world.later(10_000);
    assert!(world.shape().contains(&"prepare".to_owned()));

    // While a worker runs, a lost claim is told and touches nothing.
    let mut world = claiming();
    world.later(20_000);
    world.spawned();
    world.handle(claim(ClaimAnswer::Lost("box-b".to_owned())));
    assert_eq!(world.shape(), ["record tell claim-lost", "notify", "wake in 7200000"]);
    assert_eq!(world.state("a"), LaneState::Running);
}

#[test]
fn a_removed_claim_is_forgotten() {
    let mut world = claiming();
    world.handle(claim(stamped(1)));
    world.spawned();
    world.handle(claim(ClaimAnswer::Removed { name: "x".to_owned() }));
    assert_eq!(world.shape()[0], "record removed");
    assert_eq!(world.lane("a").claim, None);
}

#[test]
fn a_lane_that_cannot_be_used_counts_as_not_started_whatever_it_was_before() {
    let unusable = || Preparation::Unusable("no such directory".to_owned());
    let mut world = World::one();
    world.began(Beginning::default());
    world.handle(Event::Prepared { lane: id("a"), answer: unusable() });
    assert_eq!(world.verdicts(), ["not-started"]);
    assert_eq!(world.state("a"), LaneState::Cooling);
    for before in
        [Preparation::Occupied("vim".to_owned()), Preparation::Taken { reading: busy(), epoch: 3 }]
    {
        let mut world = World::one();
        world.began(Beginning::default());
        world.handle(Event::Prepared { lane: id("a"), answer: before });
        world.later(10_000);
        world.handle(Event::Prepared { lane: id("a"), answer: unusable() });
        assert_eq!(world.verdicts(), ["not-started"]);
    }
}

fn busy() -> crate::decide::admission::HostReading {
    crate::decide::admission::HostReading { load: Ok(99.0), ..well() }
}

#[test]
fn answers_that_nobody_waits_for_change_nothing() {
    let (mut world, worker) = World::one().running();
    let wake = "wake in 7200000";
    world.prepared("a");
    assert_eq!(world.shape(), [wake]);
    world.handle(Event::Prepared {
        lane: id("x"),
        answer: Preparation::Taken { reading: well(), epoch: 3 },
    });
    world.handle(Event::ClaimAnswered { lane: id("x"), answer: stamped(1) });
    assert_eq!(world.shape(), [wake]);
    let run = crate::ids::RunId::from_bytes([9; 16]);
    let (step, message) = ("fork".to_owned(), String::new());
    world.handle(Event::NotSpawned { lane: id("a"), run: run.clone(), step, message });
    assert_eq!(world.shape(), [wake]);
    // A stranger's worker is left alone; the end of one is forgotten.
    let other = started("a", &run, 4000, world.now.unix_ms);
    world.handle(Event::Spawned(Box::new(other.clone())));
    assert_eq!(world.shape(), ["Stranger", wake]);
    world.end(&other, EXIT_0);
    assert_eq!(world.shape(), ["forget", wake]);
    assert_eq!(world.lane("a").run.as_ref().map(|run| &run.id), Some(&worker.run));
}

#[test]
fn whatever_a_lane_is_called_its_notices_can_be_queued() {
    let name = format!("a.b_{}", "c".repeat(36));
    let mut world = World::new(vec![lane(&name)], true);
    world.began(Beginning::default());
    let answer = Preparation::Taken { reading: busy(), epoch: 3 };
    world.handle(Event::Prepared { lane: id(&name), answer });
    assert_eq!(world.told(), ["hold-began"]);
    let answer = ClaimAnswer::Lost("box-b".to_owned());
    world.handle(Event::ClaimAnswered { lane: id(&name), answer });
    assert_eq!(world.told(), ["claim-lost"]);
}

#[test]
fn nothing_is_asked_of_a_lost_keeper() {
    let mut world = claiming();
    world.handle(Event::KeeperLost);
    world.later(20_000);
    assert_eq!(world.state("a"), LaneState::Held);
    assert_eq!(world.wake(), None, "nothing is due until it is back");
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert!(world.shape().contains(&"prepare".to_owned()), "{:?}", world.shape());
}

#[test]
fn a_worker_that_came_up_after_all_is_taken_back() {
    let mut world = World::one();
    world.began(Beginning::default());
    world.prepared("a");
    let order = world.spawn_order();
    let late = world.worker(&order);
    world.handle(Event::KeeperLost);
    world.handle(Event::KeeperBack { living: Vec::new(), ended: Vec::new() });
    assert_eq!(world.verdicts(), ["vanished"]);
    world.handle(Event::Spawned(Box::new(late.clone())));
    assert_eq!(world.state("a"), LaneState::Running);
    world.later(60_000);
    assert!(!world.shape().contains(&"prepare".to_owned()), "{:?}", world.shape());
    world.end(&late, exit(1));
    assert_eq!(world.verdicts(), ["failed"]);
}

#[test]
fn nothing_starts_before_the_first_event_or_in_an_observed_lane() {
    let mut world = World::one();
    world.later(1000);
    assert_eq!(world.shape(), Vec::<String>::new());
    let observed = crate::config::Lane { mode: crate::config::Mode::Observe, ..lane("a") };
    let mut world = World::new(vec![observed], false);
    world.began(Beginning::default());
    assert_eq!(world.shape(), ["record lane vacant", "adopted 0 0 0", "look"]);
    for (client, order) in [Order::Start(id("a")), Order::Stop(id("a")), Order::Restart(id("a"))]
        .into_iter()
        .enumerate()
    {
        world.order(client as u64, order);
        assert!(matches!(
            world.answer(client as u64),
            Some(crate::effect::Answer::Refused(why)) if why.contains("observed")
        ));
    }
}
