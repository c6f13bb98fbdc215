//! Lanes whose worker somebody else starts.

use lanewarden_notify::Notice;

use super::world::*;
use crate::{
    config::{Lane, Mode},
    decide::marker::MarkerReading,
    effect::Effect,
    event::{Beginning, Event, Looked, Termination, Visitor},
    verdict::{LaneState, RunVerdict, SigkillEnd},
};

const PID: u32 = 4_242;

fn observed() -> World {
    let lane = Lane { mode: Mode::Observe, command: Vec::new(), ..lane("a") };
    let mut world = World::new(vec![lane], true);
    world.began(Beginning { same_boot: true, ..Beginning::default() });
    world
}

fn look(world: &mut World, looked: Looked) {
    world.handle(Event::Looked { lane: id("a"), looked });
}

fn occupied() -> World {
    let mut world = observed();
    let visitor = Visitor {
        pid: PID,
        start_ticks: 99,
        started_at_ms: world.now.unix_ms - 5_000,
        shown: format!("pid {PID} (agent)"),
    };
    look(&mut world, Looked::Somebody(visitor));
    world
}

fn gone(world: &mut World, wait_status: Option<i32>) {
    gone_beside(world, wait_status, None);
}

fn gone_beside(world: &mut World, wait_status: Option<i32>, box_counter_grew: Option<bool>) {
    let run = world.lane("a").run.as_ref().unwrap().id.clone();
    world.handle(Event::WorkerGone {
        run,
        wait_status,
        marker: MarkerReading::Absent,
        box_counter_grew,
    });
}

fn told(world: &World) -> Vec<Notice> {
    world.notices().into_iter().map(|telling| telling.notice.clone()).collect()
}

#[test]
fn a_vacant_lane_is_looked_at_each_second_and_nothing_is_started_there() {
    let mut world = observed();
    for _ in 0..3 {
        assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Look(_))));
        look(&mut world, Looked::Nobody);
        assert_eq!(world.lane("a").state, LaneState::Vacant);
        assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Record { .. })));
        world.later(1_000);
    }
    // Somebody has only just come: looked at again when they have stayed, and until then nothing is said.
    look(&mut world, Looked::Young { left: std::time::Duration::from_millis(300) });
    assert_eq!(world.lane("a").state, LaneState::Vacant);
    world.later(300);
    assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Look(_))));
    look(&mut world, Looked::Shell("a shell, pid 5".to_owned()));
    let lane = world.lane("a");
    assert_eq!((lane.state, lane.reason.as_deref()), (LaneState::Vacant, Some("a shell, pid 5")));
    world.later(1_000);
    look(&mut world, Looked::CannotTell("EIO".to_owned()));
    let reason = world.lane("a").reason.clone().unwrap();
    assert!(reason.contains("cannot tell"), "{reason}");
}

#[test]
fn an_occupant_is_recorded_claimed_and_watched() {
    let world = occupied();
    assert_eq!(world.lane("a").state, LaneState::Observed);
    let claimed = world.effects.iter().any(|effect| {
        matches!(effect, Effect::Claim(wishes) if wishes.iter().any(|wish| wish.worker == Some((PID, 99))))
    });
    let watched =
        world.effects.iter().any(|effect| matches!(effect, Effect::Watch { pid: PID, .. }));
    assert!(claimed && watched, "{:?}", world.effects);
}

#[test]
fn its_end_by_sigkill_waits_for_the_kernel_log_and_is_paged() {
    let mut world = occupied();
    gone(&mut world, Some(SIGKILLED));
    assert_eq!(world.lane("a").state, LaneState::Observed, "the kernel log may still tell");
    world.later(250);
    let last = world.lane("a").last.clone().unwrap();
    assert_eq!((last.verdict, last.end), (RunVerdict::Signalled, Some(SigkillEnd::Unexplained)));
    assert_eq!(world.lane("a").state, LaneState::Vacant);
    assert!(matches!(told(&world)[..], [Notice::LaneDead { .. }]), "{:?}", told(&world));
}

#[test]
fn where_no_oom_killer_was_at_work_nobody_waits_for_its_record() {
    let mut world = occupied();
    gone_beside(&mut world, Some(SIGKILLED), Some(false));
    let last = world.lane("a").last.clone().unwrap();
    assert_eq!((last.verdict, last.end), (RunVerdict::Signalled, Some(SigkillEnd::Unexplained)));
    assert_eq!(world.lane("a").state, LaneState::Vacant);
}

#[test]
fn an_oom_kill_of_the_occupant_is_named_at_once() {
    let mut world = occupied();
    gone(&mut world, Some(SIGKILLED));
    let kill = oom_kill(PID, Some("/user.slice/tmux"));
    world.handle(kernel(kill, 1, world.now.unix_ms));
    let last = world.lane("a").last.clone().unwrap();
    assert_eq!((last.verdict, last.end), (RunVerdict::OomKilled, Some(SigkillEnd::OomMemcg)));
}

#[test]
fn somebody_elses_worker_is_never_signalled_and_never_waited_for() {
    for how in [Termination::WithWorkers, Termination::AtOnce] {
        let mut world = occupied();
        world.handle(Event::Terminate(how));
        assert!(!world.effects.iter().any(|effect| matches!(effect, Effect::Signal { .. })));
        assert!(world.effects.iter().any(|effect| matches!(effect, Effect::Exit(_))));
    }
    let mut world = occupied();
    world.later(10 * 3_600_000);
    assert!(
        !world.effects.iter().any(|effect| matches!(effect, Effect::Signal { .. })),
        "no deadline"
    );
}
