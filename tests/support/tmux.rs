//! A real tmux of a test's own, whose pane somebody types into.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::until;

/// A server with one pane, on a socket of its own.
#[derive(Debug)]
pub struct Tmux {
    socket: String,
    from: PathBuf,
}

impl Tmux {
    /// Opens a terminal in `dir`, with a shell at its prompt.
    ///
    /// # Panics
    /// If tmux does not start; ask for [`crate::requires::Need::Tmux`] first.
    #[must_use]
    pub fn open(home: &Path, dir: &Path) -> Self {
        // The server is started from within the directory too, and stays there.
        let tmux = Self { socket: home.join("tmux").display().to_string(), from: dir.to_owned() };
        let dir = dir.display().to_string();
        tmux.command(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            "80",
            "-y",
            "24",
            "-c",
            &dir,
            "sh",
        ]);
        tmux
    }

    /// Types a line.
    pub fn types(&self, line: &str) {
        self.command(&["send-keys", "-l", line]);
        self.command(&["send-keys", "Enter"]);
    }

    /// Waits until the pane shows this.
    pub fn until_shown(&self, part: &str) {
        until(&format!("{part:?} in the pane"), || {
            let shown = self.command(&["capture-pane", "-p"]);
            if shown.contains(part) { Ok(()) } else { Err(shown) }
        });
    }

    /// The pid of the pane's shell.
    #[must_use]
    pub fn shell(&self) -> u32 {
        self.command(&["display-message", "-p", "#{pane_pid}"]).trim().parse().unwrap()
    }

    fn command(&self, args: &[&str]) -> String {
        let mut command = Command::new("tmux");
        // Whoever runs the tests may sit in a tmux.
        command.env_remove("TMUX").env("TERM", "screen").arg("-S").arg(&self.socket).args(args);
        command.stdin(Stdio::null()).current_dir(&self.from);
        let output = until(&format!("tmux {args:?}"), || {
            let output = command.output().map_err(|error| error.to_string())?;
            if output.status.success() { Ok(output) } else { Err(format!("{output:?}")) }
        });
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").args(["-S", &self.socket, "kill-server"]);
        drop(command.stderr(Stdio::null()).status());
    }
}
