//! Any sequence of events against two lanes and a small model of the keeper: the table of transitions holds (it is
//! asserted where lanes move), no lane ever has two workers, every run that began is judged, every client is answered
//! once, nothing spins.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::world::*;
use crate::{
    decide::{admission::HostReading, marker::MarkerReading},
    effect::Effect,
    event::{Beginning, ClaimAnswer, EndedRun, Event, Order, Preparation, Termination},
    ids::{LaneId, RunId},
    keeper::protocol::{SpawnOrder, Started},
    store::rows::Write,
};

const LANES: [&str; 2] = ["a", "b"];

/// Something that may happen next. Numbers choose among what is possible.
#[derive(Debug, Clone)]
enum Step {
    Prepare(u8),
    Claim(usize, u8),
    Spawn(bool),
    End(u8, u8),
    Seen,
    Kill(u8),
    Pass(u16),
    Sleep,
    Stop(usize),
    Start(usize),
    Restart(usize),
    Drain,
    KeeperGoes,
    KeeperBack(bool),
    Terminate(bool),
}

fn step() -> impl Strategy<Value = Step> {
    let lane = 0..LANES.len();
    prop_oneof![
        8 => (0_u8..8).prop_map(Step::Prepare),
        4 => (lane.clone(), 0_u8..4).prop_map(|(lane, how)| Step::Claim(lane, how)),
        8 => (0_u8..5).prop_map(|how| Step::Spawn(how > 0)),
        6 => (any::<u8>(), 0_u8..6).prop_map(|(which, how)| Step::End(which, how)),
        6 => Just(Step::Seen),
        2 => any::<u8>().prop_map(Step::Kill),
        6 => any::<u16>().prop_map(Step::Pass),
        2 => Just(Step::Sleep),
        3 => lane.clone().prop_map(Step::Stop),
        3 => lane.clone().prop_map(Step::Start),
        3 => lane.prop_map(Step::Restart),
        1 => (0_u8..8).prop_map(|rare| if rare == 0 { Step::Drain } else { Step::Sleep }),
        2 => Just(Step::KeeperGoes),
        3 => any::<bool>().prop_map(Step::KeeperBack),
        1 => (0_u8..16).prop_map(|rare| match rare {
            0 => Step::Terminate(true),
            1 => Step::Terminate(false),
            _ => Step::Sleep,
        }),
    ]
}

/// A worker of the model.
#[derive(Debug, Clone)]
struct Worker {
    started: Started,
    kept: bool,
}

/// The world outside of the dispatcher.
#[derive(Debug)]
struct Model {
    world: World,
    prepares: Vec<LaneId>,
    asked: Vec<SpawnOrder>,
    living: Vec<Worker>,
    /// Endings that the keeper has not been told to forget.
    book: Vec<EndedRun>,
    /// Workers that ended and of which the dispatcher has not heard yet.
    unheard: Vec<Event>,
    keeper_up: bool,
    clients: u64,
    begun: BTreeSet<RunId>,
    judged: BTreeSet<RunId>,
}

impl Model {
    fn new(remote: bool) -> Self {
        let mut model = Self {
            world: World::new(LANES.iter().map(|name| lane(name)).collect(), remote),
            prepares: Vec::new(),
            asked: Vec::new(),
            living: Vec::new(),
            book: Vec::new(),
            unheard: Vec::new(),
            keeper_up: true,
            clients: 0,
            begun: BTreeSet::new(),
            judged: BTreeSet::new(),
        };
        model.handle(Event::Began(Box::default()));
        model
    }

    fn handle(&mut self, event: Event) {
        if self.world.has_exited() {
            return;
        }
        self.world.handle(event);
        self.perform();
        // Whatever is due now is done in a few turns, or it never is.
        for _ in 0..4 {
            if self.world.wake().is_none_or(|at| at > self.world.now.boot_ms) {
                return;
            }
            self.world.handle(Event::Tick);
            self.perform();
        }
        panic!("it spins: {:#?}", self.world);
    }

    fn perform(&mut self) {
        for write in self.world.writes() {
            match write {
                Write::RunStarting { run, .. } => drop(self.begun.insert(run.clone())),
                Write::RunEnded(row) => drop(self.judged.insert(row.run.clone())),
                Write::Lane(_)
                | Write::RunStarted(_)
                | Write::OomKill(_)
                | Write::ClaimStamped { .. }
                | Write::ClaimRemoved { .. }
                | Write::Remember { .. }
                | Write::Audit { .. } => {}
            }
        }
        for effect in &self.world.effects {
            match effect {
                Effect::Prepare(lane) => self.prepares.push(lane.clone()),
                Effect::Spawn(order) => {
                    assert!(
                        !self.living.iter().any(|worker| worker.started.lane == order.lane),
                        "a second worker in {}",
                        order.lane
                    );
                    self.asked.push(order.as_ref().clone());
                }
                Effect::Forget(run) => self.book.retain(|end| end.ended.started.run != *run),
                Effect::Signal { run, stray, .. } => {
                    let orphan = self.living.iter().find(|one| one.started.run == *run);
                    if let Some(worker) = orphan.filter(|_| self.keeper_up) {
                        assert_eq!(stray.is_none(), worker.kept, "signalled by whoever can");
                    }
                }
                Effect::Record { .. }
                | Effect::Claim(_)
                | Effect::Observe(_)
                | Effect::Notify
                | Effect::Look(_)
                | Effect::Patrol(_)
                | Effect::Sample(_)
                | Effect::WakeToSample(_)
                | Effect::Watch { .. }
                | Effect::Release(_)
                | Effect::Reply(..)
                | Effect::Wake(_)
                | Effect::Exit(_) => {}
            }
        }
    }

    fn order(&mut self, order: Order) {
        if self.world.has_exited() {
            return;
        }
        self.clients += 1;
        let client = self.clients;
        self.world.order(client, order);
        self.perform();
        self.handle(Event::Tick);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Prepare(how) => self.prepare(*how),
            Step::Claim(index, how) => {
                let answer = match how {
                    0 => ClaimAnswer::Failed("no route".to_owned()),
                    1 => ClaimAnswer::Lost("box-b".to_owned()),
                    2 => ClaimAnswer::Removed { name: "r".to_owned() },
                    _ => ClaimAnswer::Stamped {
                        name: "r".to_owned(),
                        oid: "0".repeat(40),
                        at_ms: self.world.now.unix_ms,
                    },
                };
                self.handle(Event::ClaimAnswered { lane: id(LANES[*index]), answer });
            }
            Step::Spawn(runs) => self.spawn(*runs),
            Step::End(which, how) => self.end(usize::from(*which), *how),
            Step::Seen => {
                if !self.unheard.is_empty() {
                    let event = self.unheard.remove(0);
                    self.handle(event);
                }
            }
            Step::Kill(which) => {
                let worker = self.living.get(usize::from(*which) % self.living.len().max(1));
                let Some(Worker { started, .. }) = worker else { return };
                let kill = oom_kill(started.pid, started.cgroup.as_deref());
                let event = kernel(kill, 1, self.world.now.unix_ms);
                self.handle(event);
            }
            Step::Pass(ms) => self.pass(u64::from(*ms)),
            Step::Sleep => {
                let wait =
                    self.world.wake().map_or(0, |at| at.saturating_sub(self.world.now.boot_ms));
                self.pass(wait);
            }
            Step::Stop(index) => self.order(Order::Stop(id(LANES[*index]))),
            Step::Start(index) => self.order(Order::Start(id(LANES[*index]))),
            Step::Restart(index) => self.order(Order::Restart(id(LANES[*index]))),
            Step::Drain => self.order(Order::Drain),
            Step::KeeperGoes => self.keeper_goes(),
            Step::KeeperBack(same) => self.keeper_back(*same),
            Step::Terminate(with_workers) => self.handle(Event::Terminate(if *with_workers {
                Termination::WithWorkers
            } else {
                Termination::LeaveWorkers
            })),
        }
    }

    fn pass(&mut self, ms: u64) {
        self.world.pass(ms);
        self.handle(Event::Tick);
    }

    fn prepare(&mut self, how: u8) {
        if self.prepares.is_empty() {
            return;
        }
        let lane = self.prepares.remove(0);
        let lived_in = self.living.iter().any(|worker| worker.started.lane == lane);
        let answer = match how {
            _ if lived_in => Preparation::Occupied("its own worker".to_owned()),
            0 => Preparation::Occupied("vim".to_owned()),
            1 => Preparation::Unusable("gone".to_owned()),
            2 => Preparation::Taken { reading: HostReading { load: Ok(99.0), ..well() }, epoch: 3 },
            _ => Preparation::Taken { reading: well(), epoch: 3 },
        };
        self.handle(Event::Prepared { lane, answer });
    }

    fn spawn(&mut self, runs: bool) {
        if self.asked.is_empty() || !self.keeper_up {
            return;
        }
        let order = self.asked.remove(0);
        if runs {
            let started = self.world.worker(&order);
            self.living.push(Worker { started: started.clone(), kept: true });
            self.handle(Event::Spawned(Box::new(started)));
        } else {
            let (step, message) = ("exec".to_owned(), "no such program".to_owned());
            let (lane, run) = (order.lane, order.run);
            self.handle(Event::NotSpawned { lane, run, step, message });
        }
    }

    /// A worker ends; who is to tell has told nothing yet.
    fn end(&mut self, which: usize, how: u8) {
        if self.living.is_empty() {
            return;
        }
        let worker = self.living.remove(which % self.living.len());
        let (status, counter) = match how {
            0 => (EXIT_0, Some((0, 0))),
            1 => (exit(1), Some((0, 0))),
            2 => (SIGKILLED, Some((0, 1))),
            3 => (SIGKILLED, None),
            _ => (15, Some((0, 0))),
        };
        let run = worker.started.run.clone();
        let gone = Event::WorkerGone {
            run,
            wait_status: None,
            marker: MarkerReading::Absent,
            box_counter_grew: None,
        };
        self.unheard.push(gone);
        if worker.kept {
            let mut end = ended(&worker.started, status, self.world.now.unix_ms);
            end.ended.oom_kills = counter;
            end.box_counter_grew = None;
            self.book.push(end.clone());
            if self.keeper_up {
                self.unheard.push(Event::Ended(Box::new(end)));
            }
        }
    }

    fn keeper_goes(&mut self) {
        if self.keeper_up {
            self.keeper_up = false;
            // What it had sent is read before the connection's end is seen.
            while !self.unheard.is_empty() {
                self.take(&Step::Seen);
            }
            self.handle(Event::KeeperLost);
        }
    }

    /// The connection is there again: to the same keeper, or to a new one that knows nothing.
    fn keeper_back(&mut self, same: bool) {
        if self.keeper_up {
            return;
        }
        self.keeper_up = true;
        // Orders that were under way: the same keeper may have carried them out.
        for order in std::mem::take(&mut self.asked) {
            if same {
                let started = self.world.worker(&order);
                self.living.push(Worker { started, kept: true });
            }
        }
        if !same {
            self.book.clear();
            self.living.iter_mut().for_each(|worker| worker.kept = false);
        }
        let living: Vec<Started> = self
            .living
            .iter()
            .filter(|worker| worker.kept)
            .map(|worker| worker.started.clone())
            .collect();
        self.handle(Event::KeeperBack { living, ended: self.book.clone() });
    }

    /// Brings everything to rest: whatever was asked is answered, whatever lives ends.
    fn rest(&mut self) {
        self.keeper_back(true);
        for name in LANES {
            self.order(Order::Stop(id(name)));
        }
        for _ in 0..8 {
            while !self.prepares.is_empty() {
                self.prepare(7);
            }
            while !self.asked.is_empty() && !self.world.has_exited() {
                self.spawn(true);
            }
            while !self.living.is_empty() {
                self.end(0, 4);
            }
            while !self.unheard.is_empty() {
                self.take(&Step::Seen);
            }
            self.pass(1000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens(remote in any::<bool>(), steps in proptest::collection::vec(step(), 1..120)) {
        let mut model = Model::new(remote);
        for step in &steps {
            model.take(step);
        }
        model.rest();
        prop_assert_eq!(model.world.unanswered(), [0_u64; 0], "every client is answered");
        if !model.world.has_exited() {
            prop_assert_eq!(&model.begun, &model.judged, "every run that began is judged");
            for name in LANES {
                prop_assert_eq!(model.world.state(name), crate::verdict::LaneState::Stopped);
            }
            prop_assert_eq!(model.world.wake(), None, "nothing is due any more");
        }
    }

    #[test]
    fn a_daemon_that_begins_anew_has_at_most_one_worker_a_lane(
        lives in any::<bool>(), ends in any::<bool>(), opens in 0_u8..4, steps in proptest::collection::vec(step(), 0..40)
    ) {
        let mut model = Model::new(false);
        model.world = World::new(LANES.iter().map(|name| lane(name)).collect(), false);
        model.prepares.clear();
        let run = |byte| RunId::from_bytes([byte; 16]);
        let mut beginning = Beginning { same_boot: true, ..Beginning::default() };
        if lives {
            let started = started("a", &run(1), 51, model.world.now.unix_ms);
            beginning.living.push(started.clone());
            model.living.push(Worker { started, kept: true });
        }
        if ends {
            let started = started("a", &run(2), 52, model.world.now.unix_ms);
            let mut end = ended(&started, SIGKILLED, model.world.now.unix_ms);
            end.ended.oom_kills = Some((0, 1));
            beginning.ended.push(end.clone());
            model.book.push(end);
        }
        for byte in 0..opens {
            let open = open_run(&started("a", &run(10 + byte), 60, model.world.now.unix_ms));
            beginning.open.push((crate::store::rows::OpenRun { worker: None, ..open }, None));
        }
        model.handle(Event::Began(Box::new(beginning)));
        for step in &steps {
            model.take(step);
        }
        model.rest();
        prop_assert_eq!(model.world.unanswered(), [0_u64; 0]);
    }
}
