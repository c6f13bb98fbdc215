//! The task that keeps the box's claims on the coordination remote: one push in flight, newest wish wins, every ref under
//! its own lease.

mod updates;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use lanewarden_probes::{Root, identity::BootId, liveness::Recorded, liveness::judge};
use tokio::{
    sync::{Notify, mpsc},
    time::Instant,
};

use crate::{
    claims::{
        Git, GitError, LaneClaim, ParsedClaim, PushOutcome, RefUpdate, RemoteRef, Scratch,
        lane_ref, push, snapshot,
    },
    clock::{millis, unix_ms},
    effect::ClaimWish,
    event::{ClaimAnswer, Event},
    ids::{LaneId, MachineName},
    metrics::Metrics,
    observe::Observation,
    sources::Events,
    verdict::LaneState,
};

/// The first pause after a failed push; doubles up to the refresh interval.
const FIRST_RETRY: Duration = Duration::from_secs(5);
/// Changes of lanes that have a claim are gathered this long: a restart is one push, not four.
const GATHER: Duration = Duration::from_millis(250);

/// A handle on the claims task.
#[derive(Debug, Clone)]
pub struct Handle {
    wishes: mpsc::Sender<Vec<ClaimWish>>,
    stop: Arc<Notify>,
    stopped: Arc<Notify>,
}

impl Handle {
    /// What the claims of these lanes should say from now on.
    pub fn wish(&self, wishes: Vec<ClaimWish>) {
        if self.wishes.try_send(wishes).is_err() {
            tracing::error!("wishes for claims were not queued; the next refresh repairs it");
        }
    }

    /// One last push of what waits, bounded.
    pub async fn finish(&self, within: Duration) {
        self.stop.notify_one();
        drop(tokio::time::timeout(within, self.stopped.notified()).await);
    }
}

/// What the task needs to know of the world.
#[derive(Debug)]
pub struct Setting {
    /// The remote.
    pub url: String,
    /// How often every claim is stamped anew.
    pub refresh: Duration,
    /// How git is run.
    pub git: Git,
    /// Where objects are made.
    pub scratch: Scratch,
    /// The box's name.
    pub machine: MachineName,
    /// This warden, as the claims name it.
    pub warden: Recorded,
    /// What the remote had from us, by lane: ref and object.
    pub held: BTreeMap<LaneId, (String, String)>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

struct Desk {
    setting: Setting,
    wishes: BTreeMap<LaneId, ClaimWish>,
    dirty: BTreeSet<LaneId>,
    failures: u32,
    next: Instant,
    events: Events,
}

/// Starts the task.
#[must_use]
pub fn start(setting: Setting, events: Events) -> Handle {
    let (wishes, inbox) = super::queue();
    let handle = Handle { wishes, stop: Arc::new(Notify::new()), stopped: Arc::new(Notify::new()) };
    let next = Instant::now() + setting.refresh;
    let desk = Desk {
        setting,
        wishes: BTreeMap::new(),
        dirty: BTreeSet::new(),
        failures: 0,
        next,
        events,
    };
    tokio::spawn(desk.work(handle.clone(), inbox));
    handle
}

impl Desk {
    async fn work(mut self, handle: Handle, mut inbox: mpsc::Receiver<Vec<ClaimWish>>) {
        let mut ending = false;
        while !ending {
            tokio::select! {
                wishes = inbox.recv() => match wishes {
                    Some(wishes) => self.take(wishes),
                    None => break,
                },
                () = tokio::time::sleep_until(self.next) => {
                    self.dirty.extend(self.wishes.keys().cloned());
                }
                () = handle.stop.notified() => ending = true,
            }
            let standing = self.dirty.iter().all(|lane| self.setting.held.contains_key(lane));
            if standing && !self.dirty.is_empty() && !ending {
                tokio::select! {
                    () = tokio::time::sleep(GATHER) => {}
                    () = handle.stop.notified() => ending = true,
                }
            }
            // Wishes that came while a push was in flight are merged: only the newest of each lane is pushed.
            while let Ok(wishes) = inbox.try_recv() {
                self.take(wishes);
            }
            let waiting = self.failures > 0 && Instant::now() < self.next && !ending;
            if !self.dirty.is_empty() && !waiting {
                self.push().await;
            } else if self.failures == 0 && Instant::now() >= self.next {
                self.next = Instant::now() + self.setting.refresh;
            }
        }
        handle.stopped.notify_one();
    }

    fn take(&mut self, wishes: Vec<ClaimWish>) {
        for wish in wishes {
            // A lane that never had a claim and wants none needs no word with the remote.
            let nothing = wish.remove && !self.setting.held.contains_key(&wish.lane);
            if nothing {
                self.wishes.remove(&wish.lane);
                self.dirty.remove(&wish.lane);
            } else if self.wishes.get(&wish.lane) != Some(&wish) {
                self.dirty.insert(wish.lane.clone());
                self.wishes.insert(wish.lane.clone(), wish);
            }
        }
    }

    async fn push(&mut self) {
        let lanes: Vec<LaneId> = std::mem::take(&mut self.dirty).into_iter().collect();
        let began = Instant::now();
        match self.push_lanes(&lanes).await {
            Ok((accepted, refused)) => {
                self.failures = 0;
                self.next = Instant::now() + self.setting.refresh;
                self.observe(&Observation::ClaimsPushed {
                    accepted,
                    refused,
                    took_ms: millis(began.elapsed()),
                });
            }
            Err(error) => {
                let pause = FIRST_RETRY
                    .saturating_mul(1 << self.failures.min(10))
                    .min(self.setting.refresh);
                self.failures = self.failures.saturating_add(1);
                self.next = Instant::now() + pause;
                self.observe(&Observation::ClaimsFailed {
                    class: error.kind(),
                    lanes: lanes.len(),
                });
                tracing::warn!(%error, "pushing claims");
                for lane in lanes {
                    let answer = ClaimAnswer::Failed(error.to_string());
                    self.answer(lane.clone(), answer).await;
                    self.dirty.insert(lane);
                }
            }
        }
    }

    fn observe(&self, observation: &Observation) {
        observation.log();
        self.setting.metrics.observe(observation);
    }

    async fn answer(&self, lane: LaneId, answer: ClaimAnswer) {
        drop(self.events.send(Event::ClaimAnswered { lane, answer }).await);
    }

    /// Pushes these lanes' claims; refs that moved are read, judged and tried once more.
    async fn push_lanes(&mut self, lanes: &[LaneId]) -> Result<(usize, usize), GitError> {
        let moved = self.round(lanes).await?;
        let accepted = lanes.len().saturating_sub(moved.len());
        if moved.is_empty() {
            return Ok((accepted, 0));
        }
        let again = self.reread(&moved).await?;
        let still = self.round(&again).await?;
        for lane in &still {
            let answer = ClaimAnswer::Failed("the remote did not take the ref, twice".to_owned());
            self.answer(lane.clone(), answer).await;
            self.dirty.insert(lane.clone());
        }
        Ok((accepted + again.len() - still.len(), moved.len() - again.len() + still.len()))
    }

    /// One push; the lanes whose ref was not where we left it.
    async fn round(&mut self, lanes: &[LaneId]) -> Result<Vec<LaneId>, GitError> {
        let ts = u64::try_from(unix_ms() / 1000).unwrap_or(0);
        let (owners, updates) = self.wanted(lanes, ts)?;
        if updates.is_empty() {
            return Ok(Vec::new());
        }
        let results =
            push(&self.setting.git, &self.setting.scratch, &self.setting.url, &updates, false)
                .await?;
        let mut moved = Vec::new();
        for ((lane, update), result) in owners.into_iter().zip(updates).zip(results) {
            match result.outcome {
                PushOutcome::Accepted | PushOutcome::UpToDate => self.landed(lane, update).await,
                // Old servers call a lost race a plain rejection: whatever was not taken is read again.
                PushOutcome::LeaseRefused | PushOutcome::Unconfirmed | PushOutcome::Rejected => {
                    if !moved.contains(&lane) {
                        moved.push(lane);
                    }
                }
            }
        }
        Ok(moved)
    }

    fn claim(&self, wish: &ClaimWish, ts: u64) -> LaneClaim {
        let warden = &self.setting.warden;
        let own = (warden.pid.unwrap_or(0), warden.ticks.unwrap_or(0));
        let (pid, ticks) = wish.worker.unwrap_or(own);
        LaneClaim {
            component: self.component(wish),
            machine: self.setting.machine.clone(),
            pid,
            ts,
            boot: warden.boot.as_ref().map(|boot| boot.full().to_owned()),
            ticks: Some(ticks),
            pidns: warden.pidns,
            actor: Some(format!("flow-{}", wish.lane)),
            run: wish.run.clone(),
            lane: Some(wish.lane.clone()),
            state: Some(wish.state.to_string()),
            epoch: wish.epoch,
            warden: Some(own),
        }
    }

    /// The issue, unless another lane of this box has it already; else the lane's placeholder.
    fn component(&self, wish: &ClaimWish) -> String {
        let taken = |issue| {
            self.wishes.values().any(|other| {
                other.lane < wish.lane
                    && other.issue == Some(issue)
                    && other.state != LaneState::Stopped
            })
        };
        match wish.issue {
            Some(issue) if !taken(issue) => issue.to_string(),
            Some(_) | None => wish.lane.placeholder(),
        }
    }

    async fn landed(&mut self, lane: LaneId, update: RefUpdate) {
        let name = update.ref_name;
        let held = self.setting.held.get(&lane).map(|(own, _)| own.clone());
        match update.new {
            Some(oid) => {
                self.setting.held.insert(lane.clone(), (name.clone(), oid.clone()));
                let answer = ClaimAnswer::Stamped { name, oid, at_ms: unix_ms() };
                self.answer(lane, answer).await;
            }
            // The old ref of a lane that changed its issue: the new one is held by now.
            None if held.as_deref() != Some(name.as_str()) => {}
            None => {
                self.setting.held.remove(&lane);
                self.wishes.remove(&lane);
                self.answer(lane, ClaimAnswer::Removed { name }).await;
            }
        }
    }

    /// Reads the refs of these lanes and learns their leases; those that may be tried again.
    async fn reread(&mut self, lanes: &[LaneId]) -> Result<Vec<LaneId>, GitError> {
        let names: BTreeMap<String, LaneId> = lanes
            .iter()
            .filter_map(|lane| {
                let wish = self.wishes.get(lane)?;
                Some((lane_ref(&self.setting.machine, &self.component(wish))?, lane.clone()))
            })
            .collect();
        let prefixes: Vec<&str> = names.keys().map(String::as_str).collect();
        let setting = &self.setting;
        let found = snapshot(&setting.git, &setting.scratch, &setting.url, &prefixes).await?;
        let mut again = Vec::new();
        for (name, lane) in &names {
            let there = found.iter().find(|there| there.name == *name);
            match there {
                None => {
                    self.setting.held.remove(lane);
                    again.push(lane.clone());
                }
                Some(there) => match self.stranger(there) {
                    Some(detail) => {
                        self.setting.held.remove(lane);
                        self.wishes.remove(lane);
                        self.answer(lane.clone(), ClaimAnswer::Lost(detail)).await;
                    }
                    None => {
                        let lease = (name.clone(), there.oid.clone());
                        self.setting.held.insert(lane.clone(), lease);
                        again.push(lane.clone());
                    }
                },
            }
        }
        Ok(again)
    }

    /// Another live warden that stamps this very ref: a second box with our name, or a second daemon.
    fn stranger(&self, there: &RemoteRef) -> Option<String> {
        let claim = ParsedClaim::parse(there.message.as_ref().ok()?);
        let us = &self.setting.warden;
        // Stamped by hand: nobody answers for it, and yet it may be of another box.
        let Some((pid, ticks)) = claim.warden else { return self.twin(&claim, there) };
        if us.pid == Some(pid) && us.ticks == Some(ticks) {
            return None;
        }
        let recorded = Recorded {
            machine: self.setting.machine.to_string(),
            pid: Some(pid),
            boot: claim.boot.as_ref().and_then(|boot| boot.parse().ok()),
            ticks: Some(ticks),
            pidns: claim.pidns,
            ..Recorded::default()
        };
        let judged = judge(&Root::live(), &recorded, self.setting.machine.as_str());
        let oid = &there.oid;
        if !judged.verdict.is_dead() {
            return Some(format!(
                "{} at {oid} is stamped by a warden with pid {pid}: {} ({})",
                there.name, judged.verdict, judged.reason
            ));
        }
        self.twin(&claim, there)
    }

    /// Another box with our name. A foreign boot id is our own past unless it was stamped after this boot began.
    fn twin(&self, claim: &ParsedClaim, there: &RemoteRef) -> Option<String> {
        let boot: Option<BootId> = claim.boot.as_ref().and_then(|boot| boot.parse().ok());
        let foreign = boot.is_some() && boot != self.setting.warden.boot;
        let oid = &there.oid;
        let stamped = i64::try_from(claim.ts?).unwrap_or(0).saturating_mul(1000);
        let booted = unix_ms() - i64::try_from(crate::clock::Now::read().boot_ms).unwrap_or(0);
        (foreign && stamped > booted.saturating_add(60_000)).then(|| {
            format!(
                "{} at {oid} was stamped after this box booted, by another boot: another box bears the name {}; give one of them another `machine`",
                there.name, self.setting.machine
            )
        })
    }
}
