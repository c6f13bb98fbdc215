//! Everything that is done once before the loop turns, and what the loop needs from outside between turns.

use std::{
    collections::BTreeMap,
    fs::File,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    sync::{Arc, Once},
    time::Duration,
};

use lanewarden_notify::{Courier, Credential, Target};
use lanewarden_probes::{Root, identity, liveness::Recorded};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{
    claims::Scratch,
    clock::{Now, random_bytes},
    config::{Config, check_environment},
    dispatch::{Dispatcher, Random, Setup},
    effects::{claims, courier},
    ids::LaneId,
    metrics::{Metrics, Restored},
    sources::{Events, control, keeper::LinkError},
    store::{self, Store, StoreError},
    view::{BoxView, SpoolView},
    web::{self, Shared},
};

/// The warden could not begin. Each variant has an exit code.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A directory or file of ours cannot be made or used.
    #[error("using {}: {source}; check that it can be written by uid {}", path.display(), rustix::process::geteuid().as_raw())]
    Place {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Another warden has the place.
    #[error("another warden runs with {}; stop it first, or give this one another directory", path.display())]
    AlreadyRunning {
        /// The directory that it holds.
        path: PathBuf,
    },
    /// What the configuration names does not fit this machine.
    #[error("{0}")]
    Environment(String),
    /// The store cannot be used.
    #[error(transparent)]
    Store(StoreError),
    /// There is no keeper.
    #[error(transparent)]
    Keeper(LinkError),
    /// Claims cannot be made.
    #[error("preparing claims: {0}")]
    Claims(crate::claims::GitError),
    /// Notices cannot be sent as configured.
    #[error("preparing notices: {0}")]
    Notices(String),
    /// The system refuses threads or handlers.
    #[error("starting {what}: {source}")]
    Thread {
        /// What.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// We could not find out who we are.
    #[error("reading our own identity: {0}; is /proc mounted?")]
    Identity(String),
}

impl RunError {
    pub(super) fn place(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Place { path, source }
    }

    pub(super) fn thread(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Thread { what, source }
    }

    /// 78 for what an operator has to change before another start can succeed, else 1.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Place { .. } | Self::Environment(_) | Self::Store(_) | Self::Notices(_) => {
                crate::exit_code::CONFIG
            }
            Self::AlreadyRunning { .. }
            | Self::Keeper(_)
            | Self::Claims(_)
            | Self::Thread { .. }
            | Self::Identity(_) => crate::exit_code::FAILED,
        }
    }
}

/// Who we are.
#[derive(Debug)]
pub(super) struct OwnIdentity {
    pub(super) boot_id: String,
    pub(super) pidns: Option<u64>,
    pub(super) recorded: Recorded,
}

/// Makes our directories and holds a lock in each place that two wardens must not share.
pub(super) fn claim_places(config: &Config) -> Result<Vec<File>, RunError> {
    let mut locks = Vec::new();
    for dir in [&config.state_dir, &config.runtime_dir] {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(dir)
            .map_err(RunError::place(dir))?;
        let path = dir.join("warden.lock");
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(RunError::place(&path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => locks.push(file),
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(RunError::AlreadyRunning { path: dir.clone() });
            }
            Err(error) => return Err(RunError::place(&path)(error.into())),
        }
    }
    std::fs::create_dir_all(&config.lane_root).map_err(RunError::place(&config.lane_root))?;
    for finding in check_environment(config) {
        tracing::debug!(?finding, "environment");
    }
    shared_directories(config)?;
    Ok(locks)
}

/// Two lanes in one directory, also through a link, would be two workers in one checkout.
fn shared_directories(config: &Config) -> Result<(), RunError> {
    let mut seen: BTreeMap<PathBuf, &LaneId> = BTreeMap::new();
    for lane in &config.lanes {
        let Ok(canonical) = std::fs::canonicalize(&lane.dir) else { continue };
        if let Some(other) = seen.insert(canonical.clone(), &lane.id) {
            return Err(RunError::Environment(format!(
                "{}: lanes {other} and {} are one directory, {}; give each lane a checkout of its own",
                config.path.display(),
                lane.id,
                canonical.display()
            )));
        }
    }
    Ok(())
}

pub(super) fn own_identity(config: &Config) -> Result<OwnIdentity, RunError> {
    let root = Root::live();
    let resolved = identity::resolve(&root, std::process::id(), config.machine.as_str(), "warden")
        .map_err(|error| RunError::Identity(error.to_string()))?;
    let recorded = Recorded::of(&resolved.identity);
    let boot_id = recorded
        .boot
        .as_ref()
        .map(|boot| boot.full().to_owned())
        .ok_or_else(|| RunError::Identity("the boot id is not readable".to_owned()))?;
    Ok(OwnIdentity { boot_id, pidns: recorded.pidns, recorded })
}

pub(super) async fn metrics(config: &Config, store: &Store) -> Result<Metrics, RunError> {
    let lanes: Vec<_> = config.lanes.iter().map(|lane| (lane.id.clone(), lane.mode)).collect();
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"), &lanes);
    let restored = store
        .call("counting past runs", |connection| Restored::read(connection))
        .await
        .map_err(RunError::Store)?;
    metrics.restore(restored);
    Ok(metrics)
}

pub(super) fn serve_http(config: &Config, shared: &Arc<Shared>) -> Result<(), RunError> {
    let Some(metrics) = config.metrics else { return Ok(()) };
    let mut bound = web::start(metrics.listen, Arc::clone(shared))
        .map_err(RunError::thread("the HTTP server"))?;
    let place = config.runtime_dir.join("http-address");
    tokio::spawn(async move {
        while bound.changed().await.is_ok() {
            let Some(address) = *bound.borrow_and_update() else { continue };
            // Port 0 takes a free one: whoever wants to know finds it here.
            if let Err(error) = std::fs::write(&place, format!("{address}\n")) {
                tracing::warn!(%error, "the HTTP address could not be written down");
            }
        }
    });
    Ok(())
}

pub(super) async fn held_claims(
    store: &Store,
) -> Result<BTreeMap<LaneId, (String, String, i64)>, RunError> {
    let rows = store
        .call("reading claims", |connection| store::claims(connection))
        .await
        .map_err(RunError::Store)?;
    Ok(rows
        .into_iter()
        .filter_map(|(lane, name, oid, at)| Some((LaneId::new(&lane).ok()?, (name, oid, at))))
        .collect())
}

pub(super) fn claims(
    config: &Config,
    us: &OwnIdentity,
    held: &BTreeMap<LaneId, (String, String, i64)>,
    metrics: &Arc<Metrics>,
    events: &Events,
) -> Result<Option<claims::Handle>, RunError> {
    let Some(remote) = &config.remote else { return Ok(None) };
    let setting = claims::Setting {
        url: remote.url.clone(),
        refresh: remote.refresh,
        git: super::git(remote),
        scratch: Scratch::open(&config.state_dir).map_err(RunError::Claims)?,
        machine: config.machine.clone(),
        warden: us.recorded.clone(),
        held: held
            .iter()
            .map(|(lane, (name, oid, _))| (lane.clone(), (name.clone(), oid.clone())))
            .collect(),
        metrics: Arc::clone(metrics),
    };
    Ok(Some(claims::start(setting, events.clone())))
}

pub(super) fn courier(
    config: &Config,
    store: &Store,
    metrics: &Arc<Metrics>,
) -> Result<Option<courier::Handle>, RunError> {
    let Some(target) = target(config).map_err(RunError::Notices)? else {
        tracing::info!("no [ntfy] is configured: notices go to the log only");
        return Ok(None);
    };
    let courier = Courier::new(target).map_err(|error| RunError::Notices(error.to_string()))?;
    Ok(Some(courier::start(courier, store.clone(), Arc::clone(metrics))))
}

/// Where notices go, with the credential.
///
/// # Errors
/// A sentence if the token's file cannot be used.
pub(crate) fn target(config: &Config) -> Result<Option<Target>, String> {
    let Some(ntfy) = &config.ntfy else { return Ok(None) };
    let credential = ntfy
        .token_file
        .as_deref()
        .map(Credential::from_file)
        .transpose()
        .map_err(|error| error.to_string())?;
    Ok(Some(Target::new(ntfy.server.clone(), ntfy.topic.clone(), credential)))
}

pub(super) fn dispatcher(
    config: &Config,
    us: &OwnIdentity,
    held: BTreeMap<LaneId, (String, String, i64)>,
) -> Dispatcher {
    let setup = Setup {
        machine: config.machine.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        state_dir: config.state_dir.clone(),
        socket: control::socket_path(&config.runtime_dir),
        boot_id: us.boot_id.clone(),
        pidns: us.pidns,
        worker_env: worker_env(std::env::vars()),
        admission: config.admission,
        remote_deadline: config.remote.as_ref().map(|remote| remote.deadline),
    };
    let random = Random::new(random_bytes());
    let mut dispatcher = Dispatcher::new(setup, config.lanes.clone(), random, Now::read());
    dispatcher.remember_claims(held);
    dispatcher
}

/// The part of our environment that workers get: what a login gives, never what a service manager tells its service.
#[must_use]
pub fn worker_env(vars: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    const NAMES: [&str; 22] = [
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TERM",
        "TMPDIR",
        "SSH_AUTH_SOCK",
        "SSH_AGENT_PID",
        "http_proxy",
        "https_proxy",
        "no_proxy",
        "all_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "NO_PROXY",
        "ALL_PROXY",
        "CARGO_HOME",
        "RUSTUP_HOME",
    ];
    vars.into_iter()
        .filter(|(name, _)| {
            NAMES.contains(&name.as_str()) || name.starts_with("LC_") || name.starts_with("XDG_")
        })
        .collect()
}

pub(super) async fn spool_view(store: &Store) -> Option<SpoolView> {
    let counts = store
        .ask("counting notices", |connection| {
            courier::sql(lanewarden_notify::spool::counts(connection))
        })
        .await
        .ok()?;
    Some(SpoolView { pending: counts.pending.into(), dead: counts.dead.into() })
}

/// Tells a service manager, once, that we are ready.
pub(super) fn tell_ready(view: &BoxView) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let status = format!("{} lanes", view.lanes.len());
        let told = sd_notify::notify(&[
            sd_notify::NotifyState::Ready,
            sd_notify::NotifyState::Status(&status),
        ]);
        if let Err(error) = told {
            tracing::debug!(%error, "no service manager heard that we are ready");
        }
        tracing::info!(lanes = view.lanes.len(), "ready");
    });
}

/// Within which time a service manager wants a sign of life, if it does (`WatchdogSec=`).
pub(super) fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Tells a service manager, if there is one.
pub(super) fn tell_manager(state: sd_notify::NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::debug!(%error, "no service manager heard it");
    }
}

/// Waits, bounded, until everything that was recorded is on disk.
pub(super) async fn settle_store(store: &Store) {
    let written = store.record(Vec::new(), Vec::new()).await;
    tracing::debug!(?written, "the store is settled");
}

/// Ends the keeper that we started and that has nothing left to keep.
pub(super) fn end_keeper(pid: u32) {
    let Some(raw) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    let Ok(pidfd) = pidfd_open(raw, PidfdFlags::empty()) else { return };
    // The number is only believed if it is still a keeper's.
    let keeps = identity::cmdline(&Root::live(), pid)
        .ok()
        .and_then(Result::ok)
        .is_some_and(|words| words.iter().any(|word| word == b"keep"));
    if keeps && let Err(error) = pidfd_send_signal(pidfd, Signal::TERM) {
        tracing::warn!(%error, pid, "the keeper could not be ended");
    }
}
