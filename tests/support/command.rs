//! Commands and what became of them: run to their end, bounded, or left to go on.

use std::{
    fs::{self, File},
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
};

use rustix::process::{Signal, kill_process_group};
use serde_json::Value;

use crate::{proc, until_within, wait::PATIENCE};

/// What a command printed, and how it ended.
#[derive(Debug)]
pub struct Output {
    /// The exit code; -1 if a signal ended it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Output {
    /// Standard output as JSON.
    ///
    /// # Panics
    /// If it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// A command that goes on.
#[derive(Debug)]
pub struct Follower {
    child: Child,
    path: PathBuf,
}

impl Follower {
    /// What it printed so far.
    #[must_use]
    pub fn text(&self) -> String {
        fs::read_to_string(&self.path).unwrap_or_default()
    }

    /// Sends its whole process group what Ctrl-C on a terminal sends.
    pub fn interrupt(&self) {
        kill_process_group(proc::pid(self.child.id()), Signal::INT).unwrap();
    }

    /// Ends it.
    pub fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A program, ready for arguments; its input is empty.
#[must_use]
pub fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null());
    command
}

/// Starts a command that goes on, in a process group of its own, its standard output in a file.
#[must_use]
pub fn background(mut command: Command, out: &Path) -> Follower {
    command.stdout(File::create(out).unwrap()).process_group(0);
    Follower { child: command.spawn().unwrap(), path: out.to_owned() }
}

/// Runs a line of shell to its end, bounded.
#[must_use]
pub fn run_shell(line: &str) -> Output {
    let mut shell = command(Path::new("/bin/sh"));
    shell.args(["-c", line]);
    run(shell)
}

/// Runs a command to its end, bounded.
///
/// # Panics
/// If it does not end in time.
#[must_use]
pub fn run(mut command: Command) -> Output {
    let shown = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let read = |mut pipe: Box<dyn Read + Send>| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            drop(pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        })
    };
    let out = read(Box::new(child.stdout.take().unwrap()));
    let err = read(Box::new(child.stderr.take().unwrap()));
    let status = until_within(PATIENCE * 3, &shown, || {
        child.try_wait().map_err(|error| error.to_string())?.ok_or_else(|| "it runs".to_owned())
    });
    Output {
        code: status.code().unwrap_or(-1),
        stdout: out.join().unwrap(),
        stderr: err.join().unwrap(),
    }
}
