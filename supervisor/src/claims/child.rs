//! A child process with its group: fed, read, ended.

use std::{process::ExitStatus, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    process::Child,
    time::timeout,
};

/// The last bytes of standard error that are kept for classification.
const STDERR_KEPT: usize = 64 * 1024;
/// How long the tree may tidy up between TERM and KILL.
const TERM_GRACE: Duration = Duration::from_millis(300);
/// How long the pipes are read on after git itself has ended: an ssh master of the operator may hold them open.
const DRAIN: Duration = Duration::from_millis(300);

/// Why a child was not followed to its end.
pub(crate) enum StreamError {
    /// Standard output passed the limit.
    TooLarge,
    /// A pipe or the wait failed.
    Io(std::io::Error),
}

/// What a child wrote.
#[derive(Default)]
pub(crate) struct Streams {
    /// All of it.
    pub(crate) stdout: Vec<u8>,
    /// The end of it.
    pub(crate) stderr: Vec<u8>,
    limit: usize,
}

impl Streams {
    /// Nothing yet; standard output may have `limit` bytes.
    pub(crate) fn with_limit(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Feeds and reads until git has ended.
    pub(crate) async fn follow(
        &mut self,
        child: &mut Child,
        group: &mut Group,
        input: &[u8],
    ) -> Result<ExitStatus, StreamError> {
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut stdin) = stdin {
                // A git that ends without reading its input says why on standard error.
                stdin.write_all(input).await.ok();
            }
            Ok(())
        };
        let pump = async {
            tokio::try_join!(
                feed,
                read_whole(stdout, self.limit, &mut self.stdout),
                read_end(stderr, &mut self.stderr)
            )
            .map(|_| ())
        };
        tokio::pin!(pump);
        let first = tokio::select! {
            pumped = &mut pump => Err(pumped),
            status = child.wait() => Ok(status),
        };
        let status = match first {
            Err(pumped) => {
                pumped?;
                let status = child.wait().await;
                group.forget();
                status
            }
            Ok(status) => {
                group.forget();
                // What is still in the pipes; a stranger that holds them open is not waited for.
                if let Ok(pumped) = timeout(DRAIN, pump).await {
                    pumped?;
                }
                status
            }
        };
        status.map_err(StreamError::Io)
    }
}

async fn read_whole(
    pipe: Option<impl AsyncRead + Unpin>,
    limit: usize,
    into: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let Some(pipe) = pipe else { return Ok(()) };
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    pipe.take(most).read_to_end(into).await.map_err(StreamError::Io)?;
    if into.len() > limit { Err(StreamError::TooLarge) } else { Ok(()) }
}

async fn read_end(
    pipe: Option<impl AsyncRead + Unpin>,
    into: &mut Vec<u8>,
) -> Result<(), StreamError> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    while pipe.read_buf(into).await.map_err(StreamError::Io)? > 0 {
        if into.len() > 2 * STDERR_KEPT {
            into.drain(..into.len() - STDERR_KEPT);
        }
    }
    Ok(())
}

/// The process group that git leads. Killed on drop unless its leader was reaped, so that a cancelled call leaves
/// nothing behind; after the reaping the number may belong to somebody else and is not used again.
pub(crate) struct Group(Option<Pid>);

impl Group {
    /// The group of a child that was started as its leader.
    pub(crate) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn forget(&mut self) {
        self.0 = None;
    }

    /// Bounds every file that git and its children write; a huge object behind a ref must not fill the disk.
    pub(crate) fn limit_files(&self, bytes: u64) {
        if self.0.is_some() {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            // Fails only where the limit is lower already.
            rustix::process::prlimit(self.0, Resource::Fsize, limit).ok();
        }
    }

    /// TERM, a short grace, KILL to the whole group, then the leader is reaped.
    pub(crate) async fn end(&mut self, child: &mut Child) {
        if let Some(pid) = self.0 {
            rustix::process::kill_process_group(pid, Signal::TERM).ok();
            let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
            let gone = async {
                while let Ok(None) = rustix::process::waitid(WaitId::Pid(pid), look) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            };
            if timeout(TERM_GRACE, gone).await.is_err() {
                tracing::debug!(pid = pid.as_raw_nonzero().get(), "git outlived SIGTERM");
            }
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
            // A process in an uninterruptible sleep is left to the runtime's orphan queue.
            if timeout(Duration::from_secs(1), child.wait()).await.is_ok() {
                self.forget();
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            rustix::process::kill_process_group(pid, Signal::KILL).ok();
        }
    }
}
