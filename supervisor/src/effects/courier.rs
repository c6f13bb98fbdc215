//! The task that delivers notices: from the spool, or from memory when the disk fails. It never holds the loop up.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use lanewarden_notify::{
    Courier, Delivery, Reason, delivery, next_attempt,
    spool::{self, Row, SpoolError},
};
use tokio::sync::{Notify, mpsc};

use crate::{
    clock::unix_ms,
    metrics::Metrics,
    observe::Observation,
    store::{Store, StoreError, rows::Queued},
};

/// Notices in memory that the disk did not take.
const MOST_CARRIED: usize = 500;
/// The spool is looked at again after this long without a cause: clocks are set, rows are added by commands.
const LOOK: Duration = Duration::from_secs(15);

/// A handle on the courier.
#[derive(Debug, Clone)]
pub struct Handle {
    wake: Arc<Notify>,
    carried: mpsc::Sender<Queued>,
    stop: Arc<Notify>,
    stopped: Arc<Notify>,
}

impl Handle {
    /// Something new is in the spool.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Deliver these from memory: the spool could not take them.
    pub fn carry(&self, notices: Vec<Queued>) {
        for notice in notices {
            if self.carried.try_send(notice).is_err() {
                tracing::error!("a notice that the disk did not take is lost: too many wait");
            }
        }
        self.wake();
    }

    /// One last bounded attempt at what waits; the rest stays in the spool for the next start.
    pub async fn finish(&self, within: Duration) {
        self.stop.notify_one();
        drop(tokio::time::timeout(within, self.stopped.notified()).await);
    }
}

struct Desk {
    courier: Courier,
    store: Store,
    metrics: Arc<Metrics>,
    carried: VecDeque<(Queued, u32, i64)>,
    /// Ids delivered from memory: the disk may bring them back later.
    done: HashSet<String>,
}

/// Starts the task.
#[must_use]
pub fn start(courier: Courier, store: Store, metrics: Arc<Metrics>) -> Handle {
    let (carried, inbox) = super::queue();
    let handle = Handle {
        wake: Arc::new(Notify::new()),
        carried,
        stop: Arc::new(Notify::new()),
        stopped: Arc::new(Notify::new()),
    };
    let desk = Desk { courier, store, metrics, carried: VecDeque::new(), done: HashSet::new() };
    tokio::spawn(desk.work(handle.clone(), inbox));
    handle
}

impl Desk {
    async fn work(mut self, handle: Handle, mut inbox: mpsc::Receiver<Queued>) {
        let mut ending = false;
        loop {
            while let Ok(queued) = inbox.try_recv() {
                if self.carried.len() < MOST_CARRIED {
                    self.carried.push_back((queued, 0, 0));
                }
            }
            self.deliver_carried().await;
            let next = match self.deliver_spooled().await {
                Ok(next) => next,
                Err(error) => {
                    tracing::debug!(%error, "the notice spool cannot be read");
                    None
                }
            };
            if ending {
                handle.stopped.notify_one();
                return;
            }
            let pause = self.pause(next);
            tokio::select! {
                () = handle.wake.notified() => {}
                () = handle.stop.notified() => ending = true,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    fn pause(&self, next: Option<i64>) -> Duration {
        let carried = self.carried.iter().map(|(_, _, at)| *at).min();
        let at = [next, carried].into_iter().flatten().min();
        let until = at.map_or(i64::MAX, |at| at.saturating_sub(unix_ms()).max(20));
        LOOK.min(Duration::from_millis(u64::try_from(until).unwrap_or(0)))
    }

    /// Sends what is due from the spool; when the next one is due.
    async fn deliver_spooled(&mut self) -> Result<Option<i64>, StoreError> {
        loop {
            let now = unix_ms();
            let limits = spool::Limits::default();
            let rows = self
                .store
                .ask("reading the notice spool", move |connection| {
                    sql(spool::bound(connection, now, &limits))?;
                    sql(spool::due(connection, now, 16))
                })
                .await?;
            if rows.is_empty() {
                break;
            }
            for row in rows {
                if !self.deliver(row).await? {
                    // The server asked for silence: nothing more until the next look.
                    return self.next_due().await;
                }
            }
        }
        self.next_due().await
    }

    async fn next_due(&self) -> Result<Option<i64>, StoreError> {
        self.store
            .ask("reading the notice spool", |connection| sql(spool::next_due_at(connection)))
            .await
    }

    /// One attempt; false if the whole channel is to be quiet now.
    async fn deliver(&mut self, row: Row) -> Result<bool, StoreError> {
        let (key, now) = (row.row, unix_ms());
        if self.done.remove(&row.id) {
            self.store
                .ask("noting a delivery", move |connection| {
                    sql(spool::delivered(connection, key, now, "from-memory"))
                })
                .await?;
            return Ok(true);
        }
        // Counted before it is sent: a crash in between costs an attempt, it makes no loop.
        let attempts = self
            .store
            .ask("counting an attempt", move |connection| {
                sql(spool::record_attempt(connection, key, now))
            })
            .await?;
        self.metrics.notice_attempted();
        let delivery = self.courier.publish(&row.message).await;
        let answered = unix_ms();
        self.note(&delivery, row.raised_at_ms, answered);
        self.reread_token(&delivery).await;
        let quiet = reason_of(&delivery).is_some_and(Reason::silences_channel);
        self.store
            .ask("noting a delivery", move |connection| {
                sql(settle(connection, &row, &delivery, attempts, answered))
            })
            .await?;
        Ok(!quiet)
    }

    async fn reread_token(&self, delivery: &Delivery) {
        if reason_of(delivery) == Some(Reason::Unauthorized) {
            if let Err(error) = self.courier.reread_credential() {
                tracing::warn!(%error, "the ntfy token cannot be read again");
            }
            tokio::task::yield_now().await;
        }
    }

    async fn deliver_carried(&mut self) {
        for _ in 0..self.carried.len() {
            let Some((queued, attempts, at)) = self.carried.pop_front() else { return };
            if at > unix_ms() {
                self.carried.push_back((queued, attempts, at));
                continue;
            }
            self.metrics.notice_attempted();
            let delivery = self.courier.publish(&queued.message).await;
            let now = unix_ms();
            self.note(&delivery, queued.at_ms, now);
            match delivery {
                Delivery::Accepted { .. } => {
                    self.done.insert(queued.id);
                }
                Delivery::Permanent { .. } => {}
                Delivery::Retry { reason, after, .. } => {
                    let at = next_attempt(attempts + 1, reason, random(), now);
                    let at = delivery::honour_retry_after(at, after, now);
                    self.carried.push_back((queued, attempts + 1, at));
                }
            }
        }
    }

    fn note(&self, delivery: &Delivery, raised_at_ms: i64, now: i64) {
        let observation = match delivery {
            Delivery::Accepted { .. } => Observation::NoticeDelivered {
                after_ms: u64::try_from(now - raised_at_ms).unwrap_or(0),
            },
            Delivery::Retry { reason, detail, .. } => Observation::NoticeDelayed {
                reason: format!("{reason}: {detail}; {}", reason.remedy()),
            },
            Delivery::Permanent { reason, detail } => Observation::NoticeDropped {
                reason: format!("{reason}: {detail}; {}", reason.remedy()),
            },
        };
        observation.log();
        self.metrics.observe(&observation);
    }
}

fn reason_of(delivery: &Delivery) -> Option<Reason> {
    match delivery {
        Delivery::Accepted { .. } => None,
        Delivery::Retry { reason, .. } | Delivery::Permanent { reason, .. } => Some(*reason),
    }
}

/// What the spool keeps of one attempt.
pub(crate) fn settle(
    connection: &rusqlite::Connection,
    row: &Row,
    delivery: &Delivery,
    attempts: u32,
    now: i64,
) -> Result<(), SpoolError> {
    match delivery {
        Delivery::Accepted { id } => spool::delivered(connection, row.row, now, id),
        Delivery::Retry { reason, after, .. } => {
            let at = next_attempt(attempts, *reason, random(), now);
            let at = delivery::honour_retry_after(at, *after, now);
            spool::retry(connection, row.row, at, *reason)
        }
        Delivery::Permanent { reason: Reason::TooLarge, .. }
            if spool::shorten_once(connection, row.row)? =>
        {
            Ok(())
        }
        Delivery::Permanent { reason, .. } => spool::dead_letter(connection, row.row, now, *reason),
    }
}

fn random() -> u64 {
    u64::from_le_bytes(crate::clock::random_bytes().first_chunk::<8>().copied().unwrap_or_default())
}

/// The spool's errors as the store's: what is not SQLite's own cannot come from a row that was read.
pub(crate) fn sql<T>(result: Result<T, SpoolError>) -> rusqlite::Result<T> {
    result.map_err(|error| match error {
        SpoolError::Database { source, .. } => source,
        SpoolError::Id | SpoolError::Encode { .. } => {
            rusqlite::Error::ToSqlConversionFailure(Box::new(error))
        }
    })
}
