//! The values that the dispatcher is given once.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use sha2::{Digest, Sha256};

use crate::{
    config::Admission,
    ids::{LaneId, MachineName, RunId},
};

/// Places and values that do not change while the daemon runs.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The box's name.
    pub machine: MachineName,
    /// The daemon's version.
    pub version: String,
    /// Where state lives.
    pub state_dir: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// The full boot id.
    pub boot_id: String,
    /// Our pid namespace, if it could be read.
    pub pidns: Option<u64>,
    /// The allow-listed part of our environment that workers get.
    pub worker_env: BTreeMap<String, String>,
    /// When one more worker may start.
    pub admission: Admission,
    /// How long a lane's first spawn waits for its claim; `None` without a coordination remote.
    pub remote_deadline: Option<Duration>,
}

impl Setup {
    /// A run's output.
    #[must_use]
    pub fn log_path(&self, lane: &LaneId, run: &RunId) -> PathBuf {
        log_path(&self.state_dir, lane, run)
    }

    /// The directory into which a run's worker writes its marker.
    #[must_use]
    pub fn marker_dir(&self, run: &RunId) -> PathBuf {
        self.state_dir.join("runs").join(run.as_str())
    }
}

/// A run's output below a state directory.
#[must_use]
pub fn log_path(state_dir: &std::path::Path, lane: &LaneId, run: &RunId) -> PathBuf {
    state_dir.join("logs").join(lane.as_str()).join(format!("{run}.log"))
}

/// Numbers that cannot be guessed from each other, from one seed: nonces and jitter without reading anything.
#[derive(Debug, Clone)]
pub struct Random {
    seed: [u8; 16],
    drawn: u64,
}

impl Random {
    /// Starts from 16 random bytes.
    #[must_use]
    pub const fn new(seed: [u8; 16]) -> Self {
        Self { seed, drawn: 0 }
    }

    fn draw(&mut self) -> [u8; 16] {
        self.drawn = self.drawn.wrapping_add(1);
        let digest =
            Sha256::new().chain_update(self.seed).chain_update(self.drawn.to_le_bytes()).finalize();
        let mut half = [0_u8; 16];
        half.iter_mut().zip(digest.iter()).for_each(|(to, from)| *to = *from);
        half
    }

    /// A run's nonce.
    pub fn run_id(&mut self) -> RunId {
        RunId::from_bytes(self.draw())
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.draw().iter().take(8).fold(0, |sum, &byte| sum << 8 | u64::from(byte))
    }
}
