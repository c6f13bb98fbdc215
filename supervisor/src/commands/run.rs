//! `lanewarden run`.

use super::{Failure, Outcome, runtime};
use crate::{
    cli::Keeper,
    config::Config,
    exit_code::OK,
    run::{RunOptions, run as warden},
    sources::keeper::KeeperMode,
};

pub(super) fn run(config: Config, keeper: Keeper, with_workers: bool) -> Outcome {
    let keeper = match keeper {
        Keeper::Auto => KeeperMode::Auto,
        Keeper::Unit => KeeperMode::Unit,
    };
    protect_ourselves();
    let goodbye = runtime()?
        .block_on(warden(config, RunOptions { keeper, with_workers }))
        .map_err(|error| Failure::new(error.exit_code(), error))?;
    if goodbye.workers_left > 0 {
        tracing::info!(workers = goodbye.workers_left, "ended; workers go on under the keeper");
    } else {
        tracing::info!("ended; no worker is left");
    }
    Ok(OK)
}

/// Workers die before we do. Lowering the score needs a privilege; without it the service manager's setting holds.
fn protect_ourselves() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-500") {
        tracing::debug!(%error, "our own oom_score_adj stays as it is");
    }
}
