//! A lane root, the program, and processes that hold lanes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "this is test code, which the lints know only inside of test functions"
)]

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

/// A lane root and a shell's worth of helpers.
pub(crate) struct Roost {
    dir: tempfile::TempDir,
    pub(crate) program: PathBuf,
}

/// What the program said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn of(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    pub(crate) fn field(&self, key: &str) -> &str {
        let head = format!("{key}=");
        let mut words = self.out.split_ascii_whitespace();
        words
            .find_map(|word| word.strip_prefix(head.as_str()))
            .unwrap_or_else(|| panic!("{self:?}"))
    }

    #[track_caller]
    pub(crate) fn is(&self, code: i32, verdict: &str) {
        let head = format!("LANE-LOCK: {verdict} ");
        assert!(
            self.code == code && self.out.starts_with(&head),
            "wanted {code} {verdict}: {self:?}"
        );
    }
}

/// A process that lives until it is killed or dropped.
pub(crate) struct Sleeper(pub(crate) Child);

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self::inside(Path::new("/"))
    }

    pub(crate) fn inside(dir: &Path) -> Self {
        Self(Command::new("sleep").arg("600").current_dir(dir).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

impl Roost {
    pub(crate) fn new() -> Self {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_lanewarden"));
        Self { dir: tempfile::tempdir().unwrap(), program }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap()
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("lane")
            .args(args)
            .current_dir("/")
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("LANE_ROOT", self.root())
            .env("LANEWARDEN_CONFIG", self.root().join("no-configuration"));
        command
    }

    pub(crate) fn lane(&self, args: &[&str]) -> Said {
        Said::of(self.command(args).output().unwrap())
    }
}
