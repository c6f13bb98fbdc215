//! What the configuration needs to know of its surroundings, taken once and passed in as a value.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

/// Environment variables and the few facts of the host that defaults depend on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Env {
    /// Environment variables; those that are no UTF-8 are left out.
    pub vars: BTreeMap<String, String>,
    /// True if this process's effective uid is 0.
    pub root: bool,
    /// The host's name, where the kernel gives one.
    pub host_name: Option<String>,
    /// CPUs that this process may use; 0 if that cannot be told.
    pub cpus: u32,
    /// Names of the files in `$CREDENTIALS_DIRECTORY` (systemd.exec(5), LoadCredential=).
    pub credentials: BTreeSet<String>,
}

impl Env {
    /// The environment of this process. Variables that are no UTF-8 are left out.
    #[must_use]
    pub fn current() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let mut env = Self {
            vars,
            root: rustix::process::geteuid().is_root(),
            host_name: Some(host).filter(|host| !host.is_empty()),
            cpus: std::thread::available_parallelism()
                .ok()
                .and_then(|count| u32::try_from(count.get()).ok())
                .unwrap_or(0),
            credentials: BTreeSet::new(),
        };
        if let Some(entries) = env.credentials_dir().and_then(|dir| std::fs::read_dir(dir).ok()) {
            env.credentials =
                entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        }
        env
    }

    /// An environment of exactly these variables, not root, on a host `localhost` with one CPU.
    pub fn of<K: Into<String>, V: Into<String>>(vars: impl IntoIterator<Item = (K, V)>) -> Self {
        Self {
            vars: vars.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
            root: false,
            host_name: Some("localhost".to_owned()),
            cpus: 1,
            credentials: BTreeSet::new(),
        }
    }

    /// A variable; one that is set to nothing counts as not set.
    #[must_use]
    pub fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// `$CREDENTIALS_DIRECTORY`.
    #[must_use]
    pub fn credentials_dir(&self) -> Option<PathBuf> {
        self.absolute("CREDENTIALS_DIRECTORY")
    }

    /// Where the store goes if nothing is configured; `None` if not even a home directory is known.
    pub(super) fn default_state_dir(&self) -> Option<PathBuf> {
        if let Some(dir) = self.first_of_list("STATE_DIRECTORY") {
            return Some(dir);
        }
        if self.root {
            return Some(PathBuf::from("/var/lib/lanewarden"));
        }
        self.absolute("XDG_STATE_HOME")
            .or_else(|| Some(self.absolute("HOME")?.join(".local/state")))
            .map(|dir| dir.join("lanewarden"))
    }

    /// Where sockets go if nothing is configured.
    pub(super) fn default_runtime_dir(&self, state_dir: &Path) -> PathBuf {
        if let Some(dir) = self.first_of_list("RUNTIME_DIRECTORY") {
            return dir;
        }
        if self.root {
            return PathBuf::from("/run/lanewarden");
        }
        self.absolute("XDG_RUNTIME_DIR")
            .map_or_else(|| state_dir.join("run"), |dir| dir.join("lanewarden"))
    }

    /// Where a user's configuration is looked for.
    pub(super) fn user_config(&self) -> Option<PathBuf> {
        self.absolute("XDG_CONFIG_HOME")
            .or_else(|| Some(self.absolute("HOME")?.join(".config")))
            .map(|dir| dir.join("lanewarden/config.toml"))
    }

    /// A variable that must be an absolute path; the XDG base directory specification says to ignore others.
    fn absolute(&self, name: &str) -> Option<PathBuf> {
        self.var(name).map(PathBuf::from).filter(|path| path.is_absolute())
    }

    /// systemd joins several directories with colons; ours is the first.
    fn first_of_list(&self, name: &str) -> Option<PathBuf> {
        self.var(name)
            .and_then(|list| list.split(':').next())
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    }
}
