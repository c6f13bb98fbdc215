//! Before a start: take the lane, look for an occupant, measure the box. On a thread of its own, since file systems hang.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread,
    time::Duration,
};

use lanewarden_probes::{
    Root, host,
    identity::{self, Occupant},
    liveness::{Recorded, judge},
    pressure::{self, Resource},
};

use super::{
    patrol::{patrol, sweep},
    visitor::visitor,
};
use crate::{
    clock::unix_ms,
    config::Config,
    decide::admission::HostReading,
    effect::Post,
    event::{Event, Looked, Preparation},
    ids::LaneId,
    keeper::protocol::StopSignal,
    lanes::lock::{LaneLocks, LockError, Taking},
    sources::Events,
    store::rows::OpenWorker,
};

/// How long a process must have lived to count as an observed lane's occupant, milliseconds.
const SETTLED_MS: i64 = 1000;

enum Job {
    Prepare(LaneId),
    Look(LaneId),
    Patrol(Vec<Post>),
    Sweep(Post, StopSignal),
    NameWorker(LaneId, OpenWorker),
    NoWorker(LaneId),
    Release(LaneId),
}

/// A handle on the thread that takes lanes.
#[derive(Debug, Clone)]
pub struct Preparer {
    jobs: SyncSender<Job>,
}

struct Bench {
    locks: Option<LaneLocks>,
    lane_root: PathBuf,
    shell: bool,
    lanes: Vec<(LaneId, PathBuf)>,
    warden: Recorded,
    ancestors: Vec<u32>,
    wants_pressure: bool,
    events: Events,
}

impl Preparer {
    /// Starts the thread. `warden` is our own identity: the holder of the lanes that we take.
    ///
    /// # Errors
    /// The system's, if no thread can be made.
    pub fn start(config: &Config, warden: Recorded, events: Events) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(1024);
        let bench = Bench {
            locks: None,
            lane_root: config.lane_root.clone(),
            shell: config.compat.shell,
            lanes: config.lanes.iter().map(|lane| (lane.id.clone(), lane.dir.clone())).collect(),
            warden,
            ancestors: ancestors(),
            wants_pressure: config.admission.memory_pressure_some_avg10_max.is_some(),
            events,
        };
        thread::Builder::new()
            .name("lanes".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || bench.work(&inbox))?;
        Ok(Self { jobs })
    }

    /// Takes the lane and measures the box; answers with an event.
    pub fn prepare(&self, lane: &LaneId) {
        self.send(Job::Prepare(lane.clone()));
    }

    /// Looks who is in an observed lane; answers with an event.
    pub fn look(&self, lane: &LaneId) {
        self.send(Job::Look(lane.clone()));
    }

    /// Walks running lanes for strangers; answers with an event.
    pub fn patrol(&self, posts: Vec<Post>) {
        self.send(Job::Patrol(posts));
    }

    /// Signals the tree of a worker that has no keeper.
    pub fn sweep(&self, post: Post, how: StopSignal) {
        self.send(Job::Sweep(post, how));
    }

    /// Writes into the lane's lock who lives there now.
    pub fn name_worker(&self, lane: &LaneId, worker: OpenWorker) {
        self.send(Job::NameWorker(lane.clone(), worker));
    }

    /// Takes the worker's name out of the lane's lock: it is gone.
    pub fn no_worker(&self, lane: &LaneId) {
        self.send(Job::NoWorker(lane.clone()));
    }

    /// Gives the lane back.
    pub fn release(&self, lane: &LaneId) {
        self.send(Job::Release(lane.clone()));
    }

    fn send(&self, job: Job) {
        if self.jobs.try_send(job).is_err() {
            tracing::error!("the thread that takes lanes does not keep up; is a file system hung?");
        }
    }
}

impl Bench {
    fn work(mut self, inbox: &Receiver<Job>) {
        while let Ok(job) = inbox.recv() {
            match job {
                Job::Prepare(lane) => {
                    let answer = self.prepare(&lane);
                    if self.events.blocking_send(Event::Prepared { lane, answer }).is_err() {
                        return;
                    }
                }
                Job::Look(lane) => {
                    let looked = self.look(&lane);
                    if self.events.blocking_send(Event::Looked { lane, looked }).is_err() {
                        return;
                    }
                }
                Job::Patrol(posts) => {
                    let beat = posts
                        .iter()
                        .filter_map(|post| Some((post.clone(), self.canonical(&post.lane)?)))
                        .collect();
                    let intruders = patrol(&beat, &self.ancestors);
                    if self.events.blocking_send(Event::Patrolled { posts, intruders }).is_err() {
                        return;
                    }
                }
                Job::Sweep(post, how) => {
                    let signalled = sweep(&post, how, &self.ancestors);
                    tracing::info!(run = %post.run, ?how, signalled, "a tree without a keeper was signalled");
                }
                Job::NameWorker(lane, worker) => {
                    let named =
                        self.canonical(&lane).zip(self.locks.as_mut()).map(|(dir, locks)| {
                            locks.name_worker(&dir, &worker, &self.warden, |recorded| {
                                judge(&Root::live(), recorded, &self.warden.machine)
                            })
                        });
                    self.told(named, &lane, "the lane's lock does not name its worker");
                }
                Job::NoWorker(lane) => {
                    let done =
                        self.canonical(&lane).zip(self.locks.as_mut()).map(|(dir, locks)| {
                            locks.no_worker(&dir, &self.warden, |recorded| {
                                judge(&Root::live(), recorded, &self.warden.machine)
                            })
                        });
                    self.told(done, &lane, "the lane's lock names a worker that is gone");
                }
                Job::Release(lane) => self.release(&lane),
            }
        }
    }

    fn release(&mut self, lane: &LaneId) {
        let released = self
            .canonical(lane)
            .zip(self.locks.as_mut())
            .map(|(dir, locks)| locks.release(&dir, &self.warden, unix_ms()));
        self.told(released, lane, "the lane's lock was not released");
    }

    /// A store that failed is opened anew by whoever needs it next: it may have been removed or replaced.
    fn told(&mut self, done: Option<Result<(), LockError>>, lane: &LaneId, what: &str) {
        if let Some(Err(error)) = done {
            tracing::warn!(%error, %lane, "{what}");
            self.locks = None;
        }
    }

    fn canonical(&self, lane: &LaneId) -> Option<PathBuf> {
        let (_, dir) = self.lanes.iter().find(|(id, _)| id == lane)?;
        std::fs::canonicalize(dir).ok()
    }

    fn prepare(&mut self, lane: &LaneId) -> Preparation {
        let Some((_, dir)) = self.lanes.iter().find(|(id, _)| id == lane).cloned() else {
            return Preparation::Unusable("it is not configured".to_owned());
        };
        let canonical = match std::fs::canonicalize(&dir) {
            Ok(canonical) if canonical.is_dir() => canonical,
            Ok(_) => return Preparation::Unusable(format!("{} is not a directory", dir.display())),
            Err(error) => {
                let place = dir.display();
                return Preparation::Unusable(format!(
                    "the lane directory {place} cannot be entered: {error}; create the checkout or correct `dir`"
                ));
            }
        };
        let epoch = match self.take(lane, &canonical) {
            Ok(Taking::Taken { epoch }) => epoch,
            Ok(Taking::Held(by)) => return Preparation::Occupied(by),
            Err(why) => {
                return Preparation::Occupied(format!("it cannot be told who holds it: {why}"));
            }
        };
        if let Some(by) = self.occupant(&canonical) {
            // Whoever is there must be able to lock it.
            self.release(lane);
            return Preparation::Occupied(by);
        }
        Preparation::Taken { reading: measure(&canonical, self.wants_pressure), epoch }
    }

    fn take(&mut self, lane: &LaneId, dir: &Path) -> Result<Taking, String> {
        let locks = match self.locks.take() {
            Some(locks) => locks,
            None => {
                LaneLocks::open(&self.lane_root, self.shell).map_err(|error| error.to_string())?
            }
        };
        let machine = self.warden.machine.clone();
        let locks = self.locks.insert(locks);
        let taken = locks.take(dir, lane, &self.warden, unix_ms(), |recorded| {
            judge(&Root::live(), recorded, &machine)
        });
        taken.map_err(|error| {
            self.locks = None;
            error.to_string()
        })
    }

    fn look(&self, lane: &LaneId) -> Looked {
        let Some((_, dir)) = self.lanes.iter().find(|(id, _)| id == lane) else {
            return Looked::CannotTell("it is not configured".to_owned());
        };
        match std::fs::canonicalize(dir) {
            Ok(dir) => settled(visitor(&dir, &self.ancestors)),
            Err(error) => Looked::CannotTell(format!("{}: {error}", dir.display())),
        }
    }

    /// Somebody whose working directory is in the lane, and who is neither we nor the shell that started us.
    fn occupant(&self, dir: &Path) -> Option<String> {
        match identity::occupants(&Root::live(), dir) {
            Ok(found) => found
                .occupants
                .into_iter()
                .find(|one| !self.ancestors.contains(&one.pid))
                .map(shown),
            Err(error) => Some(format!("it cannot be told whether somebody works there: {error}")),
        }
    }
}

/// Who has only just come may be a command that its user typed: it is looked at again once it has stayed.
fn settled(looked: Looked) -> Looked {
    let Looked::Somebody(visitor) = &looked else { return looked };
    let age_ms = unix_ms().saturating_sub(visitor.started_at_ms).max(0);
    match u64::try_from(SETTLED_MS.saturating_sub(age_ms)) {
        Ok(left) if left > 0 => Looked::Young { left: Duration::from_millis(left) },
        Ok(_) | Err(_) => looked,
    }
}

fn shown(occupant: Occupant) -> String {
    let name = occupant.comm.escape_ascii();
    format!(
        "pid {} ({name}) has its working directory there; end it, or let it leave the directory",
        occupant.pid
    )
}

/// This process and its ancestors: the terminal from which the daemon was started may sit in a lane.
pub(crate) fn ancestors() -> Vec<u32> {
    let mut chain = vec![std::process::id()];
    while let Some(&newest) = chain.last()
        && chain.len() < 64
    {
        match identity::stat(&Root::live(), newest) {
            Ok(Ok(stat)) if stat.ppid > 1 => chain.push(stat.ppid),
            Ok(_) | Err(_) => break,
        }
    }
    chain
}

fn measure(dir: &Path, wants_pressure: bool) -> HostReading {
    let sample = host::sample().map_err(|error| error.to_string());
    let absent = |what: &str| format!("{what} is not told");
    let pressure = if wants_pressure {
        match pressure::of_box(&Root::live(), Resource::Memory) {
            Ok(Ok(pressure)) => Ok(Some(pressure.some.avg10)),
            Ok(Err(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    } else {
        Ok(None)
    };
    HostReading {
        load: sample.as_ref().map(|sample| sample.load1).map_err(Clone::clone),
        memory_available: sample.map(|sample| sample.memory_available),
        disk_free: match host::disk_free(dir) {
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(_)) => Err(absent("free space")),
            Err(error) => Err(error.to_string()),
        },
        pressure,
    }
}
