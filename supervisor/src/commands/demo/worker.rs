//! What the demo's lanes run.

use std::{io::Write, path::PathBuf, time::Duration};

use super::super::{Failure, Outcome};
use crate::exit_code::{FAILED, OK, USAGE};

/// One worker of the demo, by the name of its lane.
pub(in crate::commands) fn worker(kind: &str) -> Outcome {
    match kind {
        "finishes" => finishes(),
        "crashes" => {
            crate::output::line("about to exit 7");
            Ok(7)
        }
        "hangs" => hangs(),
        "leaks" => leaks(),
        "watched" => waits(),
        _ => Err(Failure::new(USAGE, format!("the demo has no worker {kind:?}"))),
    }
}

/// The first run finishes an issue, the next finds nothing more to do.
fn finishes() -> Outcome {
    let marker = std::env::var_os("LANEWARDEN_MARKER").map(PathBuf::from);
    let marker = marker.ok_or_else(|| Failure::new(FAILED, "LANEWARDEN_MARKER is not set"))?;
    let run = std::env::var("LANEWARDEN_RUN").unwrap_or_default();
    let done = std::path::Path::new("issue-42-is-done");
    let failed = |error: std::io::Error| Failure::new(FAILED, format!("working: {error}"));
    let outcome = if done.exists() {
        serde_json::json!({"outcome": "no-work", "run": run})
    } else {
        crate::output::line("working on issue 42");
        std::thread::sleep(Duration::from_secs(1));
        std::fs::write(done, "").map_err(failed)?;
        serde_json::json!({"outcome": "finalized", "issue": 42, "pr": 7, "run": run})
    };
    std::fs::write(&marker, outcome.to_string()).map_err(failed)?;
    Ok(OK)
}

/// Works until the demo, which holds the other end of its input, is gone.
fn waits() -> Outcome {
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())
        .map_err(|error| Failure::new(FAILED, format!("waiting: {error}")))?;
    Ok(OK)
}

fn hangs() -> Outcome {
    let flag = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, flag)
        .map_err(|error| Failure::new(FAILED, format!("ignoring TERM: {error}")))?;
    crate::output::line("waiting for something that never comes; TERM is ignored");
    loop {
        std::thread::sleep(Duration::from_secs(60));
    }
}

fn leaks() -> Outcome {
    const STEP: usize = 4 << 20;
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    // Without a limit the kernel would not stop it in time: it stops by itself well before it hurts the box.
    while hoard.len() * STEP < 256 << 20 {
        // Every page is written, so that it is resident.
        hoard.push(vec![1; STEP]);
        crate::output::line(&format!("{} MiB", (hoard.len() * STEP) >> 20));
        drop(std::io::stdout().flush());
        std::thread::sleep(Duration::from_millis(40));
    }
    Err(Failure::new(FAILED, "no limit is in force on this host"))
}
