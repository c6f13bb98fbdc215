//! The store's own thread: the only one that touches the connection.

#![expect(clippy::disallowed_methods, reason = "the retry of what waits is timed here")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use tokio::sync::oneshot;

use super::{
    PATIENCE, StoreError,
    backlog::{Backlog, Record},
    rows::{Queued, Write},
    write,
};

/// How often records that could not be written are tried again.
const RETRY: Duration = Duration::from_secs(2);

/// What became of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// It is on disk, and so is everything before it.
    Committed,
    /// It is not; it waits in memory and is tried again.
    Waiting(String),
}

type Reading = Box<dyn FnOnce(&mut Connection) + Send>;

enum Job {
    Record(Record, oneshot::Sender<Written>),
    Call(Reading),
}

/// A handle on the store's thread.
#[derive(Debug, Clone)]
pub struct Store {
    jobs: SyncSender<Job>,
    /// A record was given up on, and the thread has not come back since: nobody waits for it again.
    hung: Arc<AtomicBool>,
}

impl Store {
    /// Starts the thread on an open connection. `boot_id` goes into rows whose moments are on the boot clock.
    ///
    /// # Errors
    /// The system's, if no thread can be made.
    pub fn start(connection: Connection, boot_id: String) -> std::io::Result<Self> {
        let (jobs, inbox) = sync_channel(1024);
        let hung = Arc::new(AtomicBool::new(false));
        let back = Arc::clone(&hung);
        thread::Builder::new()
            .name("store".to_owned())
            .stack_size(512 * 1024)
            .spawn(move || work(connection, &boot_id, &inbox, &back))?;
        Ok(Self { jobs, hung })
    }

    /// Records, and waits for it no longer than [`PATIENCE`].
    pub async fn record(&self, writes: Vec<Write>, notices: Vec<Queued>) -> Written {
        let (answer, answered) = oneshot::channel();
        match self.jobs.try_send(Job::Record(Record { writes, notices }, answer)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Written::Waiting("the store does not keep up: 1024 jobs wait".to_owned());
            }
            Err(TrySendError::Disconnected(_)) => {
                return Written::Waiting(StoreError::Closed.to_string());
            }
        }
        let patience = if self.hung.load(Ordering::Relaxed) { Duration::ZERO } else { PATIENCE };
        match tokio::time::timeout(patience, answered).await {
            Ok(Ok(written)) => written,
            Ok(Err(_)) => Written::Waiting(StoreError::Closed.to_string()),
            Err(_) => {
                self.hung.store(true, Ordering::Relaxed);
                Written::Waiting(format!("the disk did not answer within {} s", PATIENCE.as_secs()))
            }
        }
    }

    /// As [`Store::call`], for callers that must not wait for a hung disk.
    ///
    /// # Errors
    /// [`StoreError::Closed`] also if there is no answer within [`PATIENCE`].
    pub async fn ask<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        if self.hung.load(Ordering::Relaxed) {
            return Err(StoreError::Closed);
        }
        let answer = tokio::time::timeout(PATIENCE, self.call(doing, work)).await;
        answer.unwrap_or_else(|_| {
            self.hung.store(true, Ordering::Relaxed);
            Err(StoreError::Closed)
        })
    }

    /// Runs `work` on the connection and gives back what it returns, however long that takes.
    ///
    /// # Errors
    /// [`StoreError::Closed`] if the thread is gone or overwhelmed, else what `work` says.
    pub async fn call<T, F>(&self, doing: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let job = Job::Call(Box::new(move |connection| {
            // The asker may have gone; then nobody wants the answer.
            drop(answer.send(work(connection)));
        }));
        self.jobs.try_send(job).map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?.map_err(StoreError::sql(doing))
    }
}

fn work(mut connection: Connection, boot_id: &str, inbox: &Receiver<Job>, hung: &AtomicBool) {
    let mut backlog = Backlog::default();
    let mut tried = Instant::now();
    loop {
        let next = if backlog.len() == 0 {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            inbox.recv_timeout(RETRY)
        };
        hung.store(false, Ordering::Relaxed);
        match next {
            Ok(Job::Record(record, answer)) => {
                backlog.push(record);
                let written = drain(&mut connection, boot_id, &mut backlog);
                drop(answer.send(written));
            }
            Ok(Job::Call(job)) => {
                job(&mut connection);
                // Readers must not keep what waits from being tried.
                if backlog.len() > 0 && tried.elapsed() >= RETRY {
                    tried = Instant::now();
                    drop(drain(&mut connection, boot_id, &mut backlog));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                tried = Instant::now();
                drop(drain(&mut connection, boot_id, &mut backlog));
            }
            Err(RecvTimeoutError::Disconnected) => {
                drop(drain(&mut connection, boot_id, &mut backlog));
                return;
            }
        }
    }
}

/// Writes what waits, oldest first, and stops at the first failure.
fn drain(connection: &mut Connection, boot_id: &str, backlog: &mut Backlog) -> Written {
    while let Some(record) = backlog.front() {
        if let Err(error) = write::record(connection, boot_id, &record.writes, &record.notices) {
            let (waiting, lost) = (backlog.len(), backlog.dropped());
            return Written::Waiting(format!("{error} ({waiting} records wait, {lost} lost)"));
        }
        backlog.pop();
    }
    Written::Committed
}
