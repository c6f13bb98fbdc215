//! The worker that somebody else started: the warden only watches it.

use std::{path::Path, process::Stdio, time::Duration};

use tokio::{
    process::{Child, Command},
    time::Instant,
};

use super::place::{Place, WATCHED};

/// How long it is left in peace once it is observed.
const PEACE: Duration = Duration::from_millis(500);

/// A process in the observed lane. It ends with the demo, whose end of its input it waits for.
pub(super) struct ByHand {
    child: Child,
    seen: Option<Instant>,
}

impl ByHand {
    pub(super) fn start(place: &Place, program: &Path) -> std::io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["demo-worker", WATCHED]).current_dir(place.lane(WATCHED));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self { child: command.kill_on_drop(true).spawn()?, seen: None })
    }

    /// It is observed: after a while it is killed with SIGKILL. Whether that happened just now.
    pub(super) async fn observed(&mut self) -> bool {
        let since = *self.seen.get_or_insert_with(Instant::now);
        if since.elapsed() < PEACE || self.child.id().is_none() {
            return false;
        }
        self.child.kill().await.is_ok()
    }
}
