//! A remote, machines that share it, and a git that fails on request.

mod cuts;
mod dead_lanes;
mod forges;
mod heartbeats;
mod http;
mod lane_locks;
mod locks;
mod races;
mod reaping;
mod resume;
mod sweeping;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::executable_support::executable;
use git2::{Repository, Signature, Time};
use lanewarden::claims::record::format_ts;
use tempfile::TempDir;

/// How tests that do not say otherwise reach their remote: `path` (default), `git` (a daemon) or `http`.
const TRANSPORT: &str = "LANEWARDEN_CLAIMS_TRANSPORT";

/// What a command said.
#[derive(Debug)]
struct Said {
    code: i32,
    out: String,
    err: String,
}

impl Said {
    /// Holds the exit code and parts of what was printed.
    #[track_caller]
    fn is(&self, code: i32, parts: &[&str]) -> &Self {
        assert_eq!(self.code, code, "{self:?}");
        for part in parts {
            assert!(self.out.contains(part), "no {part:?} in {self:?}");
        }
        self
    }

    /// The value of a key in the verdict line.
    #[track_caller]
    fn value(&self, key: &str) -> String {
        let key = format!("{key}=");
        let found = self.out.split_whitespace().find_map(|token| token.strip_prefix(&key));
        found.unwrap_or_else(|| panic!("no {key} in {self:?}")).to_owned()
    }
}

/// One coordination remote.
struct World {
    dir: TempDir,
    remote: Repository,
    url: String,
    /// The server before it, unless the remote is a path.
    _server: Option<races::Daemon>,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("remote.git");
        let remote = Repository::init_bare(&path).unwrap();
        fs::create_dir(dir.path().join("bin")).unwrap();
        let mut world = Self { url: path.to_str().unwrap().to_owned(), remote, dir, _server: None };
        match std::env::var(TRANSPORT).as_deref() {
            Ok("git") => world._server = Some(races::Daemon::serve(&mut world)),
            Ok("http") => http::serve(&mut world, http::Asks::Nobody),
            Ok("path") | Err(_) => {}
            Ok(other) => panic!("{TRANSPORT}={other}: path, git or http"),
        }
        world
    }

    fn command(&self, machine: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lanewarden"));
        let path = format!("{}:{}", self.bin().display(), std::env::var("PATH").unwrap());
        command
            .args(["--log", "off"])
            .args(args)
            .env_clear()
            .current_dir(self.dir.path())
            .env("PATH", path)
            .env("HOME", self.dir.path())
            // What a killed one leaves behind goes with its world.
            .env("TMPDIR", self.dir.path())
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("CLAIM_REMOTE", &self.url)
            .env("CLAIM_MACHINE", machine)
            .stdin(Stdio::null());
        command
    }

    fn run_with(&self, machine: &str, args: &[&str], vars: &[(&str, &str)]) -> Said {
        said(self.command(machine, args).envs(vars.iter().copied()))
    }

    fn run(&self, machine: &str, args: &[&str]) -> Said {
        self.run_with(machine, args, &[])
    }

    fn issue(&self, machine: &str, args: &[&str]) -> Said {
        self.run(machine, &[&["issue"], args].concat())
    }

    fn claims(&self, machine: &str, args: &[&str]) -> Said {
        self.run(machine, &[&["claims"], args].concat())
    }

    fn bin(&self) -> PathBuf {
        self.dir.path().join("bin")
    }

    /// What the remote has at the ref.
    fn at(&self, name: &str) -> Option<String> {
        self.remote.find_reference(name).ok()?.target().map(|oid| oid.to_string())
    }

    fn message(&self, name: &str) -> String {
        let commit = self.remote.find_reference(name).unwrap().peel_to_commit().unwrap();
        commit.message().unwrap().to_owned()
    }

    /// Puts a record there by hand.
    fn plant(&self, name: &str, message: &str) -> String {
        let tree = self.remote.treebuilder(None).unwrap().write().unwrap();
        let tree = self.remote.find_tree(tree).unwrap();
        let who = Signature::new("x", "x@example.invalid", &Time::new(1, 0)).unwrap();
        let oid = self.remote.commit(None, &who, &who, message, &tree, &[]).unwrap();
        self.remote.reference(name, oid, true, "").unwrap();
        oid.to_string()
    }

    /// Makes the object unreadable, and its ref still listed.
    fn poison(&self, oid: &str) {
        let (fan, rest) = oid.split_at(2);
        let path = self.remote.path().join("objects").join(fan).join(rest);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"garbage").unwrap();
    }

    /// From now on the `n`th call of that git command, or `all`, runs this shell text first. `real "$@"` is git itself.
    fn fault(&self, verb: &str, n: &str, text: &str) {
        let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|dir| dir.join("git"))
            .find(|git| git.exists())
            .unwrap();
        let script = format!(
            "#!/bin/sh\nd='{}'\nreal() {{ '{1}' \"$@\"; }}\nfor a in \"$@\"; do case $a in push|ls-remote|fetch|version) verb=$a; break;; esac; done\nif test -n \"$verb\"; then\n n=$(($(cat \"$d/$verb.n\" 2>/dev/null || echo 0)+1)); echo $n >\"$d/$verb.n\"\n for f in \"$d/$verb.$n\" \"$d/$verb.all\"; do if test -f \"$f\"; then . \"$f\"; fi; done\nfi\nexec '{1}' \"$@\"\n",
            self.bin().display(),
            real.display()
        );
        let git = self.bin().join("git");
        executable(&git, script.as_bytes());
        fs::write(self.bin().join(format!("{verb}.{n}")), text).unwrap();
    }

    /// No fault any more, and calls are counted from one again.
    fn mend(&self) {
        fs::remove_dir_all(self.bin()).unwrap();
        fs::create_dir(self.bin()).unwrap();
    }

    /// A hook of the remote.
    fn hook(&self, name: &str, text: &str) {
        let path = self.remote.path().join("hooks");
        fs::create_dir_all(&path).unwrap();
        let path = path.join(name);
        executable(&path, format!("#!/bin/sh\n{text}\n").as_bytes());
    }

    fn refs(&self) -> Vec<String> {
        let names = self.remote.references().unwrap();
        names.map(|found| found.unwrap().name().unwrap().to_owned()).collect()
    }
}

fn said(command: &mut Command) -> Said {
    let output = command.output().unwrap();
    Said {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A stamp of so many seconds ago.
fn ago(seconds: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    format_ts(now - seconds)
}

/// A process that runs until it is dropped.
struct Sleeper(std::process::Child);

impl Sleeper {
    fn start(dir: &Path) -> Self {
        Self(Command::new("sleep").arg("600").current_dir(dir).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Ends it; its number names nobody for a while.
    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
