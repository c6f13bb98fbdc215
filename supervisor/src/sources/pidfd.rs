//! One pidfd for each worker: its end is seen even when nobody is its parent.

use std::{collections::HashMap, os::fd::OwnedFd, path::PathBuf, sync::Arc, time::Duration};

use lanewarden_probes::{Root, host, identity};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::{Interest, unix::AsyncFd};

use super::{Events, marker};
use crate::{event::Event, ids::RunId};

/// The pidfds of living workers. Each is proven to be the worker's: opened first, then the start was compared.
#[derive(Debug, Default)]
pub struct Watches {
    held: HashMap<RunId, Arc<OwnedFd>>,
}

impl Watches {
    /// Watches a worker; sends `WorkerGone` when it ends, and at once if it is gone already.
    pub fn watch(
        &mut self,
        run: RunId,
        pid: u32,
        start_ticks: u64,
        marker: PathBuf,
        events: Events,
    ) {
        let counted = oom_kills();
        let Some((fd, lives)) = proven(pid, start_ticks) else {
            tokio::spawn(gone(run, None, marker, None, events));
            return;
        };
        // Whoever was dead by now may have been counted before.
        let counted = counted.filter(|_| lives);
        let fd = Arc::new(fd);
        self.held.insert(run.clone(), Arc::clone(&fd));
        tokio::spawn(wait(run, fd, marker, counted, events));
    }

    /// Lets a worker go.
    pub fn forget(&mut self, run: &RunId) {
        self.held.remove(run);
    }
}

/// A pidfd of the process that started at `start_ticks` and whether it lives, or nothing.
fn proven(pid: u32, start_ticks: u64) -> Option<(OwnedFd, bool)> {
    let raw = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    let fd = pidfd_open(raw, PidfdFlags::empty()).ok()?;
    let stat = identity::stat(&Root::live(), pid).ok()?.ok()?;
    (stat.start_ticks == start_ticks).then(|| (fd, !stat.is_over()))
}

/// OOM kills on the box so far.
fn oom_kills() -> Option<u64> {
    host::vmstat_oom_kills(&Root::live()).ok().and_then(Result::ok)
}

async fn wait(run: RunId, fd: Arc<OwnedFd>, marker: PathBuf, counted: Option<u64>, events: Events) {
    #[expect(unsafe_code, reason = "tokio cannot see that a shared descriptor stays the same")]
    // SAFETY: the Arc that is handed over keeps this very descriptor open until the registration is dropped.
    let watched = unsafe { AsyncFd::register_with_interest(Arc::clone(&fd), Interest::READABLE) };
    match watched {
        Ok(watched) => match watched.readable().await {
            Ok(mut guard) => guard.clear_ready(),
            Err(error) => tracing::warn!(%error, %run, "waiting for a worker's end"),
        },
        Err(error) => {
            tracing::warn!(%error, %run, "a worker's end cannot be watched; its keeper tells");
            return;
        }
    }
    let grew = oom_kills().zip(counted).map(|(now, before)| now > before);
    gone(run, status_after_reaping(&fd).await, marker, grew, events).await;
}

/// The kernel tells a wait status once the parent has reaped, which for an orphan is init, in a moment.
async fn status_after_reaping(fd: &OwnedFd) -> Option<i32> {
    for _ in 0..20 {
        if let Some(status) = super::exit_info::wait_status(fd) {
            return Some(status);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}

async fn gone(
    run: RunId,
    wait_status: Option<i32>,
    at: PathBuf,
    box_counter_grew: Option<bool>,
    events: Events,
) {
    let marker = marker::read(&at);
    drop(events.send(Event::WorkerGone { run, wait_status, marker, box_counter_grew }).await);
}
