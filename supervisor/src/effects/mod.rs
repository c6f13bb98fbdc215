//! The write side of the world: performs what the dispatcher decided, one exhaustive match, a file per outside thing.
//!
//! The record is awaited before the rest of its batch; claims and notices go to tasks of their own and may be slow.

#![expect(
    clippy::disallowed_methods,
    reason = "the edge: this is where processes and clocks are used"
)]

pub mod claims;
pub mod courier;
mod patrol;
pub mod prepare;
pub mod sample;
pub(crate) mod visitor;

use std::sync::Arc;

use lanewarden_notify::{Context, render};
use tokio::sync::mpsc;

use crate::{
    clock::Now,
    config::Config,
    effect::{Answer, Effect, Goodbye, Telling},
    event::Event,
    ids::RunId,
    keeper::protocol::Request,
    metrics::Metrics,
    sources::{
        Events,
        control::Clients,
        keeper::{Link, Places},
        pidfd::Watches,
    },
    store::{
        Store, Written,
        rows::{Queued, Write},
    },
    view::{BoxView, SpoolView},
};

/// Everything that deeds are done with.
#[derive(Debug)]
pub struct Performer {
    /// The configuration.
    pub config: Arc<Config>,
    /// The store.
    pub store: Store,
    /// The keeper.
    pub keeper: Link,
    /// Where markers are.
    pub places: Places,
    /// The claims task; absent without a remote.
    pub claims: Option<claims::Handle>,
    /// The courier task; absent without a target.
    pub courier: Option<courier::Handle>,
    /// Clients of the control socket.
    pub clients: Clients,
    /// Lane locks and admission.
    pub preparer: prepare::Preparer,
    /// Passes over box and runs.
    pub sampler: sample::Sampler,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Pidfds of living workers.
    pub watches: Watches,
    /// Where answers go.
    pub events: Events,
    /// The next moment at which something is due.
    pub wake: Option<u64>,
    /// Whether the last record could be written.
    pub store_well: bool,
    /// Endings that the keeper may forget once their record is on disk.
    pub unforgotten: Vec<RunId>,
    /// What the dispatcher does not know of the box.
    pub surroundings: Surroundings,
}

/// What belongs into the picture of the box and is none of the dispatcher's business.
#[derive(Debug, Default)]
pub struct Surroundings {
    /// What this host does not let us do, one sentence each.
    pub degraded: Vec<String>,
    /// The notices that wait.
    pub spool: SpoolView,
}

impl Surroundings {
    /// Completes a picture.
    pub fn dress(&self, view: &mut BoxView) {
        view.degraded.extend_from_slice(&self.degraded);
        view.spool = self.spool;
    }
}

impl Performer {
    /// Performs one turn's effects in their order; a goodbye ends the loop.
    pub async fn perform(&mut self, effects: Vec<Effect>, now: Now) -> Option<Goodbye> {
        self.wake = None;
        let mut goodbye = None;
        for effect in effects {
            match effect {
                Effect::Record { writes, notices } => self.record(writes, notices, now).await,
                Effect::Claim(wishes) => {
                    if let Some(claims) = &self.claims {
                        claims.wish(wishes);
                    }
                }
                Effect::Observe(observation) => {
                    observation.log();
                    self.metrics.observe(&observation);
                }
                Effect::Notify => {
                    if let Some(courier) = &self.courier {
                        courier.wake();
                    }
                }
                Effect::Watch { run, pid, start_ticks } => {
                    let marker = self.places.marker(&run);
                    self.watches.watch(run, pid, start_ticks, marker, self.events.clone());
                }
                Effect::Signal { run, how, stray: None } => {
                    self.keeper.send(Request::Signal { run, how });
                }
                Effect::Signal { how, stray: Some(post), .. } => self.preparer.sweep(post, how),
                Effect::Forget(run) => {
                    self.watches.forget(&run);
                    if self.store_well {
                        self.keeper.send(Request::Forget { run });
                    } else {
                        // Until the record is on disk the keeper is the only one that knows how it ended.
                        self.unforgotten.push(run);
                    }
                }
                Effect::Release(lane) => self.preparer.release(&lane),
                Effect::Prepare(lane) => self.preparer.prepare(&lane),
                Effect::Look(lane) => self.preparer.look(&lane),
                Effect::Patrol(posts) => self.preparer.patrol(posts),
                Effect::Sample(posts) => self.sampler.sample(posts),
                Effect::Spawn(order) => self.keeper.send(Request::Spawn(order)),
                Effect::Wake(at) | Effect::WakeToSample(at) => {
                    self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
                }
                Effect::Reply(client, mut answer) => {
                    if let Answer::Status(view) = &mut answer {
                        self.surroundings.dress(view);
                    }
                    self.clients.answer(client, answer);
                }
                Effect::Exit(farewell) => goodbye = Some(farewell),
            }
        }
        goodbye
    }

    /// Asks a store that failed whether it works again; nobody else may have anything to record for hours.
    pub async fn probe_store(&mut self, now: Now) {
        if !self.store_well {
            self.record(Vec::new(), Vec::new(), now).await;
        }
    }

    async fn record(&mut self, writes: Vec<Write>, notices: Vec<Telling>, now: Now) {
        for write in &writes {
            if let Write::RunStarted(open) = write
                && let Some(worker) = &open.worker
            {
                self.preparer.name_worker(&open.lane, worker.clone());
            }
            if let Write::RunEnded(row) = write {
                self.preparer.no_worker(&row.lane);
            }
        }
        let notices = self.rendered(notices, now, false);
        let told = notices.clone();
        match self.store.record(writes, notices).await {
            Written::Committed => self.set_store(None),
            Written::Waiting(why) => {
                self.metrics.store_failed();
                self.set_store(Some(why));
                // A full or hung disk never silences a page: it goes out from memory, and says so.
                if let Some(courier) = &self.courier {
                    let unrecorded =
                        told.into_iter().map(|queued| self.unrecorded(queued, now)).collect();
                    courier.carry(unrecorded);
                }
            }
        }
    }

    fn rendered(&self, notices: Vec<Telling>, now: Now, unrecorded: bool) -> Vec<Queued> {
        // Nobody can follow port 0, or the address of every interface.
        let listener = self
            .config
            .metrics
            .filter(|metrics| metrics.listen.port() != 0 && !metrics.listen.ip().is_unspecified());
        let click = listener.map(|metrics| format!("http://{}/", metrics.listen));
        notices
            .into_iter()
            .map(|telling| {
                let context = Context {
                    machine: self.config.machine.to_string(),
                    at_unix_ms: now.unix_ms,
                    id: telling.id.clone(),
                    click: click.clone(),
                    unrecorded,
                };
                let message = render(&telling.notice, &context);
                tracing::warn!(title = message.title, "notice");
                self.metrics.notice_raised(telling.notice.level());
                Queued { id: telling.id, notice: telling.notice, at_ms: now.unix_ms, message }
            })
            .filter(|_| self.courier.is_some())
            .collect()
    }

    fn unrecorded(&self, queued: Queued, now: Now) -> Queued {
        let context = Context {
            machine: self.config.machine.to_string(),
            at_unix_ms: now.unix_ms,
            id: queued.id.clone(),
            click: queued.message.click.clone(),
            unrecorded: true,
        };
        let message = render(&queued.notice, &context);
        Queued { message, ..queued }
    }

    /// Tells the loop when the store fails and when it works again, once each.
    fn set_store(&mut self, failure: Option<String>) {
        let well = failure.is_none();
        if well {
            for run in std::mem::take(&mut self.unforgotten) {
                self.keeper.send(Request::Forget { run });
            }
        }
        if well != self.store_well {
            self.store_well = well;
            let observation = match &failure {
                Some(error) => crate::observe::Observation::StoreFailed { error: error.clone() },
                None => crate::observe::Observation::StoreRecovered,
            };
            observation.log();
            if self.events.try_send(Event::Store { failure }).is_err() {
                // The loop is far behind; the next record says it again.
                self.store_well = !well;
            }
        }
    }
}

/// A bounded queue to a task of ours.
pub(crate) fn queue<T>() -> (mpsc::Sender<T>, mpsc::Receiver<T>) {
    mpsc::channel(1024)
}
