//! `lanewarden logs`: a run's output, and what comes after it.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::mpsc::{RecvTimeoutError, sync_channel},
    time::Duration,
};

use notify::{RecursiveMode, Watcher};

use super::{
    Failure, Outcome,
    history::{failed, open},
};
use crate::{
    config::Config,
    dispatch::log_path,
    exit_code::{FAILED, OK},
    ids::{LaneId, RunId},
    output, store,
};

/// File events are hints: some file systems send none, so the file is looked at this often anyway.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn logs(config: &Config, lane: &LaneId, run: Option<&str>, follow: bool) -> Outcome {
    let newest = newest(config, lane, run)?;
    let path = log_path(&config.state_dir, lane, &newest);
    let mut tail = Tail::open(&path)?;
    if !tail.copy()? || !follow {
        return Ok(OK);
    }
    let (hint, hints) = sync_channel(1);
    let mut watcher = notify::recommended_watcher(move |_| {
        // One waiting hint is as good as many.
        let _full: Result<(), _> = hint.try_send(());
    })
    .map_err(|error| Failure::new(FAILED, format!("watching for output: {error}")))?;
    let place = path.parent().unwrap_or(&path);
    watcher
        .watch(place, RecursiveMode::NonRecursive)
        .map_err(|error| Failure::new(FAILED, format!("watching {}: {error}", place.display())))?;
    let mut current = newest;
    loop {
        if !tail.copy()? {
            return Ok(OK);
        }
        if run.is_none() {
            let next = self::newest(config, lane, None)?;
            let path = log_path(&config.state_dir, lane, &next);
            if next != current && path.exists() {
                output::note(&format!("--- run {next} ---"));
                tail = Tail::open(&path)?;
                current = next;
                continue;
            }
        }
        match hints.recv_timeout(LOOK) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::new(FAILED, "the file watcher ended"));
            }
        }
    }
}

fn newest(config: &Config, lane: &LaneId, wanted: Option<&str>) -> Result<RunId, Failure> {
    let connection = open(config)?;
    let found = match wanted {
        Some(start) => store::started_run(&connection, lane, start).map_err(failed)?,
        None => store::newest_runs(&connection, lane, 1).map_err(failed)?.into_iter().next(),
    };
    let Some(found) = found else {
        let words = wanted.map_or_else(
            || format!("{lane} has no run yet"),
            |start| format!("{lane} has no run {start:?}; `lanewarden history {lane}` lists them"),
        );
        return Err(Failure::new(FAILED, words));
    };
    RunId::new(&found).map_err(|error| Failure::new(FAILED, error))
}

/// A file that grows.
struct Tail {
    file: File,
    path: PathBuf,
    at: u64,
}

impl Tail {
    fn open(path: &Path) -> Result<Self, Failure> {
        let file = File::open(path).map_err(|error| {
            Failure::new(FAILED, format!("reading the output at {}: {error}", path.display()))
        })?;
        Ok(Self { file, path: path.to_owned(), at: 0 })
    }

    /// Copies what is new; false once nobody reads any more.
    fn copy(&mut self) -> Result<bool, Failure> {
        let path = self.path.clone();
        let failed = |error| {
            Failure::new(FAILED, format!("reading the output at {}: {error}", path.display()))
        };
        let length = self.file.metadata().map_err(failed)?.len();
        if length < self.at {
            self.at = 0;
        }
        let path = self.path.clone();
        let failed = |error| {
            Failure::new(FAILED, format!("reading the output at {}: {error}", path.display()))
        };
        let mut buffer = vec![0; 64 * 1024];
        self.file.seek(SeekFrom::Start(self.at)).map_err(failed)?;
        loop {
            let count = self.file.read(&mut buffer).unwrap_or(0);
            if count == 0 {
                return Ok(true);
            }
            self.at += u64::try_from(count).unwrap_or(0);
            if !output::raw(buffer.get(..count).unwrap_or_default()) {
                return Ok(false);
            }
        }
    }
}
