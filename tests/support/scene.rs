//! A lane root without a daemon, processes that hold lanes in it, and questions about them from any vantage point.

use std::{
    fs,
    io::{BufRead, BufReader},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::{command, proc};

/// The group that shares the locks. Not root's, for which `hidepid` makes an exception.
pub const LANE_GROUP: u32 = 61_003;

/// A process of a test's; killed and reaped in the end.
#[derive(Debug)]
pub struct Actor {
    child: Child,
    /// The number that it printed first, or its own.
    pub number: u32,
}

impl Actor {
    /// A process that sleeps.
    #[must_use]
    pub fn sleeping() -> Self {
        Self::silent(Command::new("sleep").arg("1000"))
    }

    /// A process that sleeps as another user.
    #[must_use]
    pub fn sleeping_as(user: u32) -> Self {
        Self::silent(Command::new("sleep").arg("1000").uid(user).gid(user).current_dir("/"))
    }

    fn silent(command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        Self { number: child.id(), child }
    }

    /// The fixture in one of its situations, once it printed its number.
    #[must_use]
    pub fn in_situation(words: &[&str]) -> Self {
        let mut command = Command::new(crate::situation_program());
        let mut child =
            command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let number = line.trim().parse().unwrap_or_else(|_| panic!("{words:?} said {line:?}"));
        Self { child, number }
    }

    /// Kills it and leaves it unreaped.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Kills and reaps it.
    pub fn end(&mut self) {
        self.kill();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // The number may be that of a child of the fixture, which only lives as long as somebody lets it.
        if self.number != self.child.id() && proc::runs(self.number) {
            proc::signal(self.number, rustix::process::Signal::KILL);
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A lane root.
#[derive(Debug)]
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Default for Scene {
    fn default() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // Other users ask here too.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let locks = dir.path().join(".lane-locks");
        fs::create_dir(&locks).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&locks, None, Some(LANE_GROUP)).unwrap();
        }
        fs::set_permissions(&locks, fs::Permissions::from_mode(0o2770)).unwrap();
        let program = dir.path().join("lanewarden");
        // Copied by another process: a descriptor for writing of our own would be inherited by whatever another thread
        // forks at this moment, and until that has executed nobody can run the file (ETXTBSY of execve(2)).
        let mut copy = command::command(Path::new("install"));
        copy.args(["-m", "755"]).arg(crate::program()).arg(&program);
        assert_eq!(command::run(copy).code, 0, "install {}", program.display());
        Self { dir }
    }
}

impl Scene {
    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// `lanewarden lane ...` behind other words, such as `unshare --mount`.
    #[must_use]
    pub fn lane_from(&self, vantage: &[&str], args: &[&str]) -> command::Output {
        let program = self.path().join("lanewarden").display().to_string();
        let mut words =
            vantage.iter().copied().chain([program.as_str(), "lane"]).chain(args.iter().copied());
        let mut command = command::command(Path::new(words.next().unwrap()));
        command.args(words).current_dir("/").env("LANE_ROOT", self.path());
        command.env("LANEWARDEN_CONFIG", self.path().join("none"));
        command::run(command)
    }

    /// Lane 7 is held by this process.
    pub fn held_by(&self, number: u32) {
        let taken = self.lane_from(&[], &["acquire", "7", "--pid", &number.to_string()]);
        assert_eq!(taken.code, 0, "{taken:?}");
    }

    /// Lane 7 has a record of the shell tools with these lines.
    pub fn recorded(&self, lines: &[String]) {
        fs::write(self.path().join(".lane-locks/lane-7.lock"), lines.concat()).unwrap();
    }

    /// The lines of such a record about a process.
    #[must_use]
    pub fn lines_about(&self, number: u32) -> Vec<String> {
        let (_, ticks) = proc::stat(number).unwrap();
        vec![
            format!("lane-dir={}\n", self.path().join("lane-7").display()),
            format!("machine={}\nactor=flow\n", self.machine()),
            format!("pid={number}\n"),
            format!("boot-id={}\n", boot_id()),
            format!("start-ticks={ticks}\n"),
        ]
    }

    fn machine(&self) -> String {
        let mut command = command::command(&self.path().join("lanewarden"));
        command.args(["identity", "--json"]);
        command::run(command).json()["machine"].as_str().unwrap().to_owned()
    }

    /// What is said of lane 7's holder from there: the verdict, and the whole output for a message.
    #[must_use]
    pub fn liveness_from(&self, vantage: &[&str]) -> (String, command::Output) {
        let output = self.lane_from(vantage, &["probe", "7"]);
        (field(&output.stdout, "liveness"), output)
    }
}

/// A field of a verdict line.
#[must_use]
pub fn field(line: &str, key: &str) -> String {
    let head = format!("{key}=");
    let mut words = line.split_ascii_whitespace();
    words.find_map(|word| word.strip_prefix(&head)).unwrap_or_default().to_owned()
}

/// This boot's id.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// A file below the scene with this text.
#[must_use]
pub fn file(scene: &Scene, name: &str, text: &str) -> PathBuf {
    let path = scene.path().join(name);
    fs::write(&path, text).unwrap();
    path
}
