//! A second writer in a running lane.

use super::world::*;
use crate::{
    effect::{Effect, Post},
    event::{Event, Intruder},
    keeper::protocol::Started,
};

fn posts(world: &World) -> Option<Vec<Post>> {
    world.effects.iter().find_map(|effect| match effect {
        Effect::Patrol(posts) => Some(posts.clone()),
        Effect::Record { .. }
        | Effect::Claim(_)
        | Effect::Observe(_)
        | Effect::Notify
        | Effect::Prepare(_)
        | Effect::Look(_)
        | Effect::Sample(_)
        | Effect::WakeToSample(_)
        | Effect::Spawn(_)
        | Effect::Watch { .. }
        | Effect::Signal { .. }
        | Effect::Forget(_)
        | Effect::Release(_)
        | Effect::Reply(..)
        | Effect::Wake(_)
        | Effect::Exit(_) => None,
    })
}

fn intruder(worker: &Started) -> Intruder {
    Intruder {
        lane: worker.lane.clone(),
        run: worker.run.clone(),
        pid: 4_242,
        start_ticks: 7,
        started_at_ms: 0,
        command: "vim".to_owned(),
    }
}

/// Lets ten seconds pass and answers the walk that is asked for then.
fn walk(world: &mut World, intruders: Vec<Intruder>) {
    world.later(10_000);
    let posts = posts(world).expect("a walk is due");
    world.handle(Event::Patrolled { posts, intruders });
}

#[test]
fn nobody_is_looked_for_where_no_worker_runs() {
    let mut world = World::one();
    world.began(crate::event::Beginning::default());
    world.later(10_000);
    assert_eq!(posts(&world), None);
}

#[test]
fn who_stays_is_shown_at_once_and_told_once() {
    let (mut world, worker) = World::one().running();
    walk(&mut world, vec![intruder(&worker)]);
    assert_eq!(world.told(), Vec::<&str>::new(), "it may only pass by");
    let view = world.dispatcher.view(world.now);
    assert_eq!(view.lanes[0].intruders[0].pid, 4_242);
    walk(&mut world, vec![intruder(&worker)]);
    assert_eq!(world.told(), ["intruder"]);
    walk(&mut world, vec![intruder(&worker)]);
    assert_eq!(world.told(), Vec::<&str>::new());
    walk(&mut world, Vec::new());
    assert!(world.dispatcher.view(world.now).lanes[0].intruders.is_empty());
}

#[test]
fn what_was_seen_beside_an_older_run_proves_nothing() {
    let (mut world, worker) = World::one().running();
    world.later(10_000);
    let posts = posts(&world).unwrap();
    world.end(&worker, exit(1));
    world.handle(Event::Patrolled { posts, intruders: vec![intruder(&worker)] });
    assert!(world.dispatcher.view(world.now).lanes[0].intruders.is_empty());
}
