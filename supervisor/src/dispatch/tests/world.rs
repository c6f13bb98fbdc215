//! A dispatcher with hands to feed it, and a ledger that checks what holds in every turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    time::Duration,
};

use lanewarden_notify::render::is_event_id;
use lanewarden_probes::{ending::Usage, oom::OomKill};

use crate::{
    clock::Now,
    config::{Admission, Budget, Lane, Mode, Restart},
    decide::{admission::HostReading, marker::MarkerReading},
    dispatch::{Dispatcher, Random, Setup},
    effect::{Answer, ControlId, Effect, Goodbye, Telling},
    event::{Beginning, EndedRun, Event, KernelRecord, Missed, Order, Preparation},
    ids::{LaneId, MachineName, RunId},
    keeper::protocol::{Ended, Limits, SpawnOrder, Started},
    observe::Observation,
    store::rows::{EndedRow, LaneRow, Memory, OpenRun, OpenWorker, Write},
    verdict::LaneState,
};

pub(super) const BOOT: &str = "11111111-2222-3333-4444-555555555555";
pub(super) const EXIT_0: i32 = 0;
pub(super) const SIGKILLED: i32 = 9;

pub(super) fn id(name: &str) -> LaneId {
    LaneId::new(name).unwrap()
}

pub(super) fn exit(code: i32) -> i32 {
    code << 8
}

pub(super) fn lane(name: &str) -> Lane {
    Lane {
        id: id(name),
        dir: PathBuf::from("/lanes").join(name),
        mode: Mode::Manage,
        command: vec!["/bin/worker".to_owned()],
        deadline: Duration::from_secs(7200),
        stop_grace: Duration::from_secs(10),
        restart: Restart {
            delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(300),
            min_gap: Duration::from_secs(1),
            idle_delay: Duration::from_secs(900),
            breaker: 3,
            breaker_window: Duration::from_secs(3600),
        },
        limits: Limits { memory_max: Some(1 << 30), ..Limits::default() },
        watchdog: None,
        budget: Budget::default(),
        env: BTreeMap::from([("FOO".to_owned(), "bar".to_owned())]),
        oom_score_adj: 400,
    }
}

pub(super) fn setup(remote: bool) -> Setup {
    Setup {
        machine: MachineName::new("box-a").unwrap(),
        version: "0".to_owned(),
        state_dir: PathBuf::from("/state"),
        socket: PathBuf::from("/run/control.sock"),
        boot_id: BOOT.to_owned(),
        pidns: Some(7),
        worker_env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
        admission: Admission {
            load_max: 8.0,
            disk_free_min: 2 << 30,
            memory_available_min: 1 << 30,
            memory_pressure_some_avg10_max: None,
        },
        remote_deadline: remote.then_some(Duration::from_secs(20)),
    }
}

pub(super) fn well() -> HostReading {
    HostReading {
        load: Ok(1.0),
        disk_free: Ok(50 << 30),
        memory_available: Ok(8 << 30),
        pressure: Ok(None),
    }
}

pub(super) fn started(lane: &str, run: &RunId, pid: u32, at_ms: i64) -> Started {
    Started {
        run: run.clone(),
        lane: id(lane),
        pid,
        start_ticks: u64::from(pid) * 10,
        started_at_ms: at_ms,
        cgroup: Some(format!("/lanes/{run}")),
        degraded: Vec::new(),
    }
}

/// An end by the keeper's book: a still counter, no marker, none of our signals.
pub(super) fn ended(started: &Started, wait_status: i32, at_ms: i64) -> EndedRun {
    EndedRun {
        ended: Ended {
            started: started.clone(),
            wait_status,
            usage: Usage::default(),
            ended_at_ms: at_ms,
            our_signals: Vec::new(),
            oom_kills: Some((0, 0)),
            peak_memory_bytes: None,
            leftovers: 0,
            survivors: Vec::new(),
        },
        marker: MarkerReading::Absent,
        box_counter_grew: Some(false),
    }
}

pub(super) fn marker(json: &str) -> MarkerReading {
    MarkerReading::Bytes(json.as_bytes().to_vec())
}

pub(super) fn oom_kill(pid: u32, task_memcg: Option<&str>) -> OomKill {
    let json = serde_json::json!({"pid": pid, "kind": "memcg", "task_memcg": task_memcg});
    serde_json::from_value(json).unwrap()
}

/// A record of the kernel log, just read.
pub(super) fn record(kill: OomKill, seq: u64, at_ms: i64) -> KernelRecord {
    KernelRecord { kill, seq, told_by: seq, at_ms, approximate: false }
}

pub(super) fn kernel(kill: OomKill, seq: u64, at_ms: i64) -> Event {
    Event::KernelKill(Box::new(record(kill, seq, at_ms)))
}

/// The first event of a daemon that finds nothing, and reads the kernel log.
pub(super) fn nothing() -> Beginning {
    Beginning { kernel_log: Some(Ok(Missed::default())), ..Beginning::default() }
}

pub(super) fn open_run(started: &Started) -> OpenRun {
    OpenRun {
        run: started.run.clone(),
        lane: started.lane.clone(),
        started_at_ms: started.started_at_ms,
        worker: Some(OpenWorker {
            pid: started.pid,
            start_ticks: started.start_ticks,
            boot_id: BOOT.to_owned(),
            pidns: Some(7),
            cgroup: started.cgroup.clone(),
        }),
    }
}

/// What a dispatcher is asked and answers; every turn is checked.
#[derive(Debug)]
pub(super) struct World {
    pub(super) dispatcher: Dispatcher,
    pub(super) now: Now,
    pub(super) effects: Vec<Effect>,
    spawned: BTreeMap<LaneId, RunId>,
    begun: BTreeSet<RunId>,
    asked: BTreeSet<ControlId>,
    answers: BTreeMap<ControlId, Answer>,
    exited: bool,
    pids: u32,
}

impl World {
    pub(super) fn new(lanes: Vec<Lane>, remote: bool) -> Self {
        let now = Now { boot_ms: 1_000_000, unix_ms: 1_700_000_000_000 };
        Self {
            dispatcher: Dispatcher::new(setup(remote), lanes, Random::new([3; 16]), now),
            now,
            effects: Vec::new(),
            spawned: BTreeMap::new(),
            begun: BTreeSet::new(),
            asked: BTreeSet::new(),
            answers: BTreeMap::new(),
            exited: false,
            pids: 100,
        }
    }

    /// One lane, `a`, and no remote.
    pub(super) fn one() -> Self {
        Self::new(vec![lane("a")], false)
    }

    pub(super) fn handle(&mut self, event: Event) -> &[Effect] {
        self.effects = self.dispatcher.handle(event, self.now);
        self.check();
        &self.effects
    }

    pub(super) fn began(&mut self, beginning: Beginning) -> &[Effect] {
        self.handle(Event::Began(Box::new(beginning)))
    }

    pub(super) fn later(&mut self, ms: u64) -> &[Effect] {
        self.pass(ms);
        self.handle(Event::Tick)
    }

    pub(super) fn pass(&mut self, ms: u64) {
        self.now.boot_ms += ms;
        self.now.unix_ms += i64::try_from(ms).unwrap();
    }

    pub(super) fn prepared(&mut self, lane: &str) -> &[Effect] {
        let answer = Preparation::Taken { reading: well(), epoch: 3 };
        self.handle(Event::Prepared { lane: id(lane), answer })
    }

    pub(super) fn order(&mut self, client: ControlId, order: Order) -> &[Effect] {
        assert!(self.asked.insert(client), "one order a client");
        self.handle(Event::Control { id: client, order })
    }

    /// The answer that a client got so far.
    pub(super) fn answer(&self, client: ControlId) -> Option<&Answer> {
        self.answers.get(&client)
    }

    pub(super) fn is_done(&self, client: ControlId) -> bool {
        matches!(self.answer(client), Some(Answer::Done(_)))
    }

    pub(super) fn unanswered(&self) -> Vec<ControlId> {
        self.asked.iter().copied().filter(|asked| !self.answers.contains_key(asked)).collect()
    }

    pub(super) fn has_exited(&self) -> bool {
        self.exited
    }

    pub(super) fn state(&self, lane: &str) -> LaneState {
        self.lane(lane).state
    }

    pub(super) fn lane(&self, name: &str) -> &crate::lane::Lane {
        self.dispatcher.lanes.get(&id(name)).unwrap()
    }

    /// The order that the last turn gave to the keeper.
    pub(super) fn spawn_order(&self) -> SpawnOrder {
        let order = |effect: &Effect| {
            if let Effect::Spawn(order) = effect { Some(order.as_ref().clone()) } else { None }
        };
        let orders: Vec<SpawnOrder> = self.effects.iter().filter_map(order).collect();
        assert_eq!(orders.len(), 1, "{:#?}", self.effects);
        orders.into_iter().next().unwrap()
    }

    /// The keeper carries out the order of the last turn.
    pub(super) fn spawned(&mut self) -> Started {
        let order = self.spawn_order();
        let worker = self.worker(&order);
        self.handle(Event::Spawned(Box::new(worker.clone())));
        worker
    }

    pub(super) fn worker(&mut self, order: &SpawnOrder) -> Started {
        self.pids += 1;
        started(order.lane.as_str(), &order.run, self.pids, self.now.unix_ms)
    }

    /// From nothing to a running worker in lane `a`.
    pub(super) fn running(mut self) -> (Self, Started) {
        self.began(nothing());
        self.prepared("a");
        let worker = self.spawned();
        assert_eq!(self.state("a"), LaneState::Running);
        (self, worker)
    }

    /// The keeper tells the end of this worker.
    pub(super) fn end(&mut self, worker: &Started, wait_status: i32) -> &[Effect] {
        let end = ended(worker, wait_status, self.now.unix_ms);
        self.handle(Event::Ended(Box::new(end)))
    }

    pub(super) fn writes(&self) -> Vec<&Write> {
        let Some(Effect::Record { writes, .. }) = self.effects.first() else { return Vec::new() };
        writes.iter().collect()
    }

    pub(super) fn notices(&self) -> Vec<&Telling> {
        let Some(Effect::Record { notices, .. }) = self.effects.first() else { return Vec::new() };
        notices.iter().collect()
    }

    /// The kinds of what the last turn told.
    pub(super) fn told(&self) -> Vec<&'static str> {
        self.notices().iter().map(|telling| telling.notice.kind().as_str()).collect()
    }

    /// The runs that the last turn judged.
    pub(super) fn judged(&self) -> Vec<&EndedRow> {
        let mut rows = Vec::new();
        for write in self.writes() {
            if let Write::RunEnded(row) = write {
                rows.push(row.as_ref());
            }
        }
        rows
    }

    pub(super) fn verdicts(&self) -> Vec<&'static str> {
        self.judged().iter().map(|row| row.verdict.as_str()).collect()
    }

    pub(super) fn lane_row(&self) -> &LaneRow {
        for write in self.writes() {
            if let Write::Lane(row) = write {
                return row;
            }
        }
        panic!("no lane was recorded: {:#?}", self.effects);
    }

    pub(super) fn wake(&self) -> Option<u64> {
        let wake = |effect: &Effect| if let Effect::Wake(at) = effect { Some(*at) } else { None };
        self.effects.iter().find_map(wake)
    }

    pub(super) fn goodbye(&self) -> Option<Goodbye> {
        let last = self.effects.last()?;
        if let Effect::Exit(goodbye) = last { Some(*goodbye) } else { None }
    }

    /// The last turn's effects, each in a few words.
    pub(super) fn shape(&self) -> Vec<String> {
        // Patrols and passes go on beside everything else, and have chapters of their own.
        let aside = |effect: &&Effect| {
            matches!(effect, Effect::Patrol(_) | Effect::Sample(_) | Effect::WakeToSample(_))
        };
        let shown = self.effects.iter().filter(|effect| !aside(effect));
        shown.map(|effect| shape(effect, self.now)).collect()
    }

    /// What holds in every turn.
    fn check(&mut self) {
        let ranks: Vec<u8> = self.effects.iter().map(Effect::rank).collect();
        assert!(ranks.is_sorted(), "the fixed order: {:#?}", self.effects);
        let records = ranks.iter().filter(|&&rank| rank == 0).count();
        assert!(records <= 1, "one record a turn: {:#?}", self.effects);
        for lane in self.dispatcher.lanes.values() {
            let answered = lane.down || lane.again || self.dispatcher.ending.winds_down();
            assert!(answered || lane.waiting.is_empty(), "nobody answers: {lane:#?}");
        }
        for telling in self.notices() {
            assert!(is_event_id(&telling.id), "the spool refuses {:?}", telling.id);
        }
        self.check_runs();
        for effect in &self.effects {
            if let Effect::Reply(client, answer) = effect {
                let before = self.answers.insert(*client, answer.clone());
                assert_eq!(before, None, "client {client} was answered twice: {answer:?}");
            }
            if let Effect::Exit(_) = effect {
                assert!(!self.exited, "one goodbye");
                self.exited = true;
            }
        }
    }

    /// A run is recorded before it is asked for, and a lane has one worker at a time.
    fn check_runs(&mut self) {
        let effects = std::mem::take(&mut self.effects);
        for effect in &effects {
            if let Effect::Record { writes, .. } = effect {
                writes.iter().for_each(|write| self.book(write));
            }
            if let Effect::Spawn(order) = effect {
                assert!(self.begun.contains(&order.run), "recorded before it is asked for");
                let before = self.spawned.insert(order.lane.clone(), order.run.clone());
                assert_eq!(before, None, "a second worker: {effects:#?}");
                assert!(!self.exited, "nothing is started after the goodbye");
            }
        }
        self.effects = effects;
    }

    fn book(&mut self, write: &Write) {
        if let Write::RunStarting { run, .. } = write {
            assert!(self.begun.insert(run.clone()), "a nonce names one run");
        }
        if let Write::RunStarted(open) = write {
            self.spawned.insert(open.lane.clone(), open.run.clone());
        }
        if let Write::RunEnded(row) = write
            && self.spawned.get(&row.lane) == Some(&row.run)
        {
            self.spawned.remove(&row.lane);
        }
    }
}

fn shape(effect: &Effect, now: Now) -> String {
    match effect {
        Effect::Record { writes, notices } => {
            // Where the kernel's log was read to is written with every kill; it has its own test.
            let place =
                |write: &&Write| !matches!(write, Write::Remember { key: Memory::KernelLog, .. });
            let rows = writes.iter().filter(place).map(|write| match write {
                Write::Lane(row) => format!("lane {}", row.state),
                Write::RunStarting { .. } => "starting".to_owned(),
                Write::RunStarted(_) => "started".to_owned(),
                Write::RunEnded(row) => format!("ended {}", row.verdict),
                Write::OomKill(row) => {
                    format!("kill in {}", row.lane.as_ref().map_or("-", LaneId::as_str))
                }
                Write::ClaimStamped { .. } => "stamped".to_owned(),
                Write::ClaimRemoved { .. } => "removed".to_owned(),
                Write::Remember { key, .. } => format!("remember {key}"),
                Write::Audit { .. } => "audit".to_owned(),
            });
            let told = notices.iter().map(|telling| format!("tell {}", telling.notice.kind()));
            format!("record {}", rows.chain(told).collect::<Vec<_>>().join(", "))
        }
        Effect::Claim(wishes) => {
            let wishes: Vec<String> = wishes
                .iter()
                .map(|wish| format!("{}{}", wish.state, if wish.remove { " (remove)" } else { "" }))
                .collect();
            format!("claim {}", wishes.join(", "))
        }
        Effect::Observe(Observation::LaneMoved { from, to, .. }) => format!("moved {from} {to}"),
        Effect::Observe(Observation::RunStarted { .. }) => "run started".to_owned(),
        Effect::Observe(Observation::RunEnded { verdict, .. }) => format!("run {verdict}"),
        Effect::Observe(Observation::Adopted { living, ended, lost }) => {
            format!("adopted {living} {ended} {lost}")
        }
        Effect::Observe(Observation::StartRefused { check, again, .. }) => {
            format!("refused {check}{}", if *again { " again" } else { "" })
        }
        Effect::Observe(Observation::Signalled { how, .. }) => format!("signalled {how:?}"),
        Effect::Observe(other) => {
            format!("{other:?}").split([' ', '(']).next().unwrap_or_default().to_owned()
        }
        Effect::Notify => "notify".to_owned(),
        Effect::Prepare(_) => "prepare".to_owned(),
        Effect::Look(_) => "look".to_owned(),
        Effect::Patrol(_) => "patrol".to_owned(),
        Effect::Sample(_) => "sample".to_owned(),
        Effect::WakeToSample(_) => "wake to sample".to_owned(),
        Effect::Spawn(_) => "spawn".to_owned(),
        Effect::Watch { .. } => "watch".to_owned(),
        Effect::Signal { how, stray, .. } => {
            format!("signal {how:?}{}", if stray.is_some() { " stray" } else { "" })
        }
        Effect::Forget(_) => "forget".to_owned(),
        Effect::Release(_) => "release".to_owned(),
        Effect::Reply(client, answer) => {
            let how = match answer {
                Answer::Done(_) => "done",
                Answer::Refused(_) => "refused",
                Answer::Status(_) => "status",
            };
            format!("reply {client} {how}")
        }
        Effect::Wake(at) => format!("wake in {}", at.saturating_sub(now.boot_ms)),
        Effect::Exit(goodbye) => format!("exit {}", goodbye.workers_left),
    }
}
