//! A home's configuration, as values that a test changes before it starts the daemon.

use std::{fmt::Write, path::Path, path::PathBuf};

/// What is written into `config.toml`. Delays are short; a test lengthens those that it waits for.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The box's name, another for each home.
    pub machine: String,
    /// Where lanes and their locks live.
    pub lane_root: PathBuf,
    /// The store.
    pub state_dir: PathBuf,
    /// Sockets.
    pub runtime_dir: PathBuf,
    /// The coordination remote.
    pub remote: Option<String>,
    /// `[remote] refresh`.
    pub refresh: String,
    /// `[remote] deadline`.
    pub remote_deadline: String,
    /// The page server's root.
    pub ntfy: Option<String>,
    /// `[metrics] listen`.
    pub listen: String,
    /// More lines of `[admission]`.
    pub admission: String,
    /// More lines of `[defaults]`.
    pub defaults: String,
    /// Lines before all tables.
    pub top: String,
    /// The lanes.
    pub lanes: Vec<LanePlan>,
}

/// One lane.
#[derive(Debug, Clone)]
pub struct LanePlan {
    /// Its name.
    pub id: String,
    /// Its directory.
    pub dir: PathBuf,
    /// Program and arguments.
    pub command: Vec<String>,
    /// More lines.
    pub extra: String,
}

impl Plan {
    pub(crate) fn new(home: &Path, machine: &str) -> Self {
        Self {
            machine: machine.to_owned(),
            lane_root: home.join("lanes"),
            state_dir: home.join("state"),
            runtime_dir: home.join("run"),
            remote: None,
            refresh: "1h".to_owned(),
            remote_deadline: "5s".to_owned(),
            ntfy: None,
            listen: "127.0.0.1:0".to_owned(),
            admission: String::new(),
            defaults: String::new(),
            top: String::new(),
            lanes: Vec::new(),
        }
    }

    /// The file's text. Every worker carries `cookie` in its environment.
    #[must_use]
    pub fn toml(&self, cookie: (&str, &str)) -> String {
        let mut text = format!(
            "machine = {}\nlane_root = {}\nstate_dir = {}\nruntime_dir = {}\n{}\n",
            quoted(&self.machine),
            quoted(&self.lane_root.display().to_string()),
            quoted(&self.state_dir.display().to_string()),
            quoted(&self.runtime_dir.display().to_string()),
            self.top,
        );
        let mut add = |table: std::fmt::Arguments<'_>| text.write_fmt(table).unwrap_or_default();
        if let Some(url) = &self.remote {
            add(format_args!(
                "[remote]\nurl = {}\nrefresh = {}\ndeadline = {}\n",
                quoted(url),
                quoted(&self.refresh),
                quoted(&self.remote_deadline)
            ));
        }
        if let Some(server) = &self.ntfy {
            add(format_args!("[ntfy]\nserver = {}\ntopic = \"fleet\"\n", quoted(server)));
        }
        add(format_args!("[metrics]\nlisten = {}\n", quoted(&self.listen)));
        add(format_args!("[admission]\nload_max = 1000.0\nmemory_available_min = \"16M\"\n"));
        if self.admission.is_empty() {
            add(format_args!("disk_free_min = \"1K\"\n"));
        }
        add(format_args!("{}\n[defaults]\nstop_grace = \"500ms\"\n", self.admission));
        add(format_args!(
            "restart = {{ delay = \"50ms\", max_delay = \"200ms\", min_gap = \"50ms\", idle_delay = \"1h\" }}\n"
        ));
        add(format_args!("env = {{ {} = {} }}\n{}\n", cookie.0, quoted(cookie.1), self.defaults));
        for lane in &self.lanes {
            let words: Vec<String> = lane.command.iter().map(|word| quoted(word)).collect();
            add(format_args!(
                "[[lane]]\nid = {}\ndir = {}\n",
                quoted(&lane.id),
                quoted(&lane.dir.display().to_string())
            ));
            if !words.is_empty() {
                add(format_args!("command = [{}]\n", words.join(", ")));
            }
            add(format_args!("{}\n", lane.extra));
        }
        text
    }
}

/// A text as a TOML string.
#[must_use]
pub fn quoted(text: &str) -> String {
    format!("{text:?}")
}
