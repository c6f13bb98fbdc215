//! Configuration: one TOML file, read once into typed values, refused with every problem it has.
//!
//! Two types: what is written (`raw`, each value with its line) and what is meant ([`Config`], defaults filled in, rules
//! held). Whoever has a [`Config`] need not check anything again, except what only the machine can say: that is
//! [`check_environment`]. This module knows nothing of lanes' lives.

mod document;
mod effective;
mod env;
mod environment;
mod forge;
mod model;
mod problem;
mod raw;
mod resolve;
pub mod units;
mod value;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

pub use effective::effective;
pub use env::Env;
pub use environment::{Finding, Level, check_environment, check_environment_in};
pub use model::{
    Admission, Budget, Compat, Config, Forge, ForgeKind, Lane, Metrics, Mode, Ntfy, Pulls, Remote,
    Restart, Watchdog, WatchdogAction,
};
pub use problem::{ConfigError, Problem};

/// Where the configuration is if neither the command line nor the environment says, and no user has their own.
pub const SYSTEM_PATH: &str = "/etc/lanewarden/config.toml";

/// The largest file that is read, bytes.
const FILE_MAX: u64 = 1 << 20;

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] if the file cannot be read, or with everything that is wrong with it.
    pub fn load(path: &Path, env: &Env) -> Result<Self, ConfigError> {
        let bytes =
            read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Self::parse(text, path, env),
            Err(error) => {
                let good = bytes.get(..error.valid_up_to()).unwrap_or_default();
                let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
                Err(ConfigError::Invalid {
                    path: path.to_owned(),
                    problems: vec![Problem {
                        line: Some(line),
                        key: String::new(),
                        value: None,
                        rule: "is not UTF-8".to_owned(),
                        remedy: "save the file as UTF-8".to_owned(),
                    }],
                })
            }
        }
    }

    /// The configuration in a text; `path` names it in messages and anchors relative names of secret files.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that is wrong with it.
    pub fn parse(text: &str, path: &Path, env: &Env) -> Result<Self, ConfigError> {
        // Editors of another system put a byte order mark in front.
        let doc = document::Document::new(text.strip_prefix('\u{feff}').unwrap_or(text));
        let config = doc.tree().and_then(|tree| {
            let raw = raw::read(&doc, &tree);
            resolve::resolve(&doc, raw, path, env)
        });
        let problems = doc.into_problems();
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            Some(_) | None => Err(ConfigError::Invalid { path: path.to_owned(), problems }),
        }
    }

    /// The lane of this name.
    #[must_use]
    pub fn lane(&self, id: &crate::ids::LaneId) -> Option<&Lane> {
        self.lanes.iter().find(|lane| lane.id == *id)
    }
}

/// Which file to read: what the command line names, else `$LANEWARDEN_CONFIG`, else the user's own file if there is one,
/// else the system's.
#[must_use]
pub fn search_path(cli: Option<&Path>, env: &Env) -> PathBuf {
    if let Some(path) = cli {
        return path.to_owned();
    }
    if let Some(path) = env.var("LANEWARDEN_CONFIG") {
        return PathBuf::from(path);
    }
    // "Cannot tell" (a directory that may not be entered) counts as there: reading it then says what is wrong.
    env.user_config()
        .filter(|path| path.try_exists().unwrap_or(true))
        .unwrap_or_else(|| PathBuf::from(SYSTEM_PATH))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).map_or(true, |length| length > FILE_MAX) {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
