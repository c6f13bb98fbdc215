//! The demo's directory: lanes, a bare remote, a configuration. Gone afterwards.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use git2::Repository;
use tempfile::TempDir;

/// The memory that the leaking lane may use.
pub(super) const LIMIT: &str = "64M";
/// The wall clock of the lane that ignores TERM.
pub(super) const DEADLINE_S: u64 = 4;
/// The lane whose worker the warden does not start.
pub(super) const WATCHED: &str = "watched";
/// The lanes: id and what the demo says of it.
pub(super) const LANES: [(&str, &str); 5] = [
    ("finishes", "finishes an issue, then finds nothing more to do"),
    ("crashes", "exits 7 every time, until its breaker trips"),
    ("hangs", "ignores TERM past its deadline"),
    ("leaks", "grows until the kernel kills it"),
    (WATCHED, "is only observed: somebody starts its worker by hand, and kills it"),
];

/// The directory.
#[derive(Debug)]
pub(super) struct Place {
    dir: TempDir,
    keep: bool,
}

impl Place {
    pub(super) fn make(keep: bool) -> io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("lanewarden-demo-").tempdir()?;
        let place = Self { dir, keep };
        let other = |error: git2::Error| io::Error::other(error.message().to_owned());
        Repository::init_bare(place.remote()).map_err(other)?;
        for (lane, _) in LANES {
            Repository::init(place.lane(lane)).map_err(other)?;
        }
        Ok(place)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn remote(&self) -> PathBuf {
        self.path().join("remote.git")
    }

    pub(super) fn lane(&self, lane: &str) -> PathBuf {
        self.path().join("lanes").join(lane)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.path().join("config.toml")
    }

    /// Writes the configuration; the pages go to `sink`.
    pub(super) fn configure(&self, sink: SocketAddr, program: &Path) -> io::Result<()> {
        std::fs::write(self.config(), self.toml(sink, program))
    }

    fn toml(&self, sink: SocketAddr, program: &Path) -> String {
        let base = self.path();
        let quoted = |path: &Path| format!("{:?}", path.display().to_string());
        let path = |name: &str| quoted(&base.join(name));
        let worker = |kind: &str| format!("[{}, \"demo-worker\", \"{kind}\"]", quoted(program));
        let mut text = format!(
            "# A box with five lanes. `lanewarden --config THIS check --effective` shows every default.\n\
             machine = \"demo\"\nlane_root = {}\nstate_dir = {}\nruntime_dir = {}\n\n\
             [remote]\nurl = {}\n\n[metrics]\nlisten = \"127.0.0.1:0\"\n\n\
             [ntfy]\nserver = \"http://{sink}\"\ntopic = \"demo\"\n\n\
             [admission]\nload_max = 1000.0\ndisk_free_min = \"1M\"\nmemory_available_min = \"64M\"\n\n\
             [defaults]\nstop_grace = \"1s\"\n\
             restart = {{ delay = \"500ms\", min_gap = \"500ms\", idle_delay = \"10m\" }}\n",
            path("lanes"),
            path("state"),
            path("run"),
            quoted(&self.remote()),
        );
        for (lane, what) in LANES {
            let extra = match lane {
                "hangs" => format!("deadline = \"{DEADLINE_S}s\"\nrestart = {{ breaker = 1 }}\n"),
                "leaks" => {
                    format!(
                        "limits = {{ memory_max = \"{LIMIT}\" }}\nrestart = {{ breaker = 1 }}\n"
                    )
                }
                _ => String::new(),
            };
            let who = match lane {
                WATCHED => "mode = \"observe\"".to_owned(),
                _ => format!("command = {}", worker(lane)),
            };
            text.push_str(&format!(
                "\n# {what}\n[[lane]]\nid = \"{lane}\"\ndir = {}\n{who}\n{extra}",
                quoted(&self.lane(lane)),
            ));
        }
        text
    }

    /// Removes everything, or says where it is.
    pub(super) fn clean(self) {
        if self.keep {
            let path = self.dir.keep();
            crate::output::line(&format!(
                "Kept: {0}; look with `lanewarden --config {0}/config.toml history`",
                path.display()
            ));
        } else if let Err(error) = self.dir.close() {
            crate::output::error(&format!("removing the demo's directory: {error}"));
        }
    }
}
