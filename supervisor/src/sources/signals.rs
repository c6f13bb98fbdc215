//! SIGTERM and SIGINT of the daemon itself.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Events;
use crate::event::{Event, Termination};

/// Listens for SIGTERM and SIGINT.
///
/// SIGTERM leaves workers to the keeper, unless `with_workers`. SIGINT is a person at a terminal: it ends workers first,
/// the second one at once.
///
/// # Errors
/// The system's, if handlers cannot be installed.
pub fn listen(events: Events, with_workers: bool) -> std::io::Result<()> {
    let terminate = signal(SignalKind::terminate())?;
    let interrupt = signal(SignalKind::interrupt())?;
    tokio::spawn(forward(terminate, interrupt, events, with_workers));
    Ok(())
}

async fn forward(mut terminate: Signal, mut interrupt: Signal, events: Events, with_workers: bool) {
    let mut interrupts = 0_u32;
    loop {
        let how = tokio::select! {
            Some(()) = terminate.recv() => {
                if with_workers { Termination::WithWorkers } else { Termination::LeaveWorkers }
            }
            Some(()) = interrupt.recv() => {
                interrupts += 1;
                if interrupts > 1 { Termination::AtOnce } else { Termination::WithWorkers }
            }
            else => return,
        };
        if events.send(Event::Terminate(how)).await.is_err() {
            return;
        }
    }
}
