//! What a test needs of the host, asked for by name. What is missing is said loudly and passes; what is named in
//! `LANEWARDEN_TEST_DEMAND` (a comma list, or `all`) and missing fails.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Something that not every host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Uid 0 with the right to mount.
    Root,
    /// A memory cgroup (v1 or v2) that we may write.
    MemoryCgroup,
    /// A readable kernel log.
    Kmsg,
    /// `git daemon`.
    GitDaemon,
    /// Prometheus' checker.
    Promtool,
    /// A terminal multiplexer.
    Tmux,
}

impl Need {
    /// Every member.
    pub const ALL: [Self; 6] =
        [Self::Root, Self::MemoryCgroup, Self::Kmsg, Self::GitDaemon, Self::Promtool, Self::Tmux];

    /// Its name in the demand variable.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::MemoryCgroup => "memory-cgroup",
            Self::Kmsg => "kmsg",
            Self::GitDaemon => "git-daemon",
            Self::Promtool => "promtool",
            Self::Tmux => "tmux",
        }
    }

    /// Why it is not there; nothing if it is.
    fn missing(self) -> Option<String> {
        match self {
            Self::Root if !rustix::process::geteuid().is_root() => Some("not uid 0".to_owned()),
            Self::Root => runs("unshare", &["--mount", "true"], &[0]),
            Self::MemoryCgroup => memory_cgroup(),
            Self::Kmsg => kmsg(),
            Self::GitDaemon => runs("git", &["daemon", "--help"], &[0, 129]),
            Self::Promtool => runs("promtool", &["--version"], &[0]),
            Self::Tmux => runs("tmux", &["-V"], &[0]),
        }
    }
}

/// Whether the host has all of these; says loudly what it has not.
///
/// # Panics
/// If something is missing that is demanded.
#[must_use]
pub fn has(needs: &[Need]) -> bool {
    let mut all = true;
    for need in needs {
        let Some(why) = need.missing() else { continue };
        all = false;
        let test = std::thread::current().name().unwrap_or("?").to_owned();
        eprintln!("\n*** NOT TESTED: {test}: this host has no {}: {why} ***\n", need.as_str());
        assert!(!demanded(*need), "{} is demanded and missing: {why}", need.as_str());
    }
    all
}

fn demanded(need: Need) -> bool {
    let demand = std::env::var("LANEWARDEN_TEST_DEMAND").unwrap_or_default();
    demand.split(',').map(str::trim).any(|word| word == "all" || word == need.as_str())
}

fn runs(program: &str, args: &[&str], codes: &[i32]) -> Option<String> {
    let status =
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    match status {
        Ok(status) if status.code().is_some_and(|code| codes.contains(&code)) => None,
        Ok(status) => Some(format!("{program}: {status}")),
        Err(error) => Some(format!("{program}: {error}")),
    }
}

/// Where groups with a memory limit can be made: our own group in the hierarchy that has the controller.
fn memory_place() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?.trim_start_matches('/'));
        if controllers.split(',').any(|name| name == "memory") {
            return Some(Path::new("/sys/fs/cgroup/memory").join(path));
        }
        let unified = Path::new("/sys/fs/cgroup").join(path);
        let has = std::fs::read_to_string(unified.join("cgroup.controllers")).ok()?;
        (controllers.is_empty() && has.split(' ').any(|name| name.trim() == "memory"))
            .then_some(unified)
    })
}

/// A memory cgroup of a test's own, limited; removed in the end.
#[derive(Debug)]
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// Makes one with this limit.
    ///
    /// # Panics
    /// If it cannot be made; ask for [`Need::MemoryCgroup`] first.
    #[must_use]
    pub fn make(name: &str, limit: u64) -> Self {
        let path = memory_place().unwrap().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        let file = ["memory.max", "memory.limit_in_bytes"].map(|file| path.join(file));
        let file = file.into_iter().find(|file| file.exists()).unwrap();
        std::fs::write(file, limit.to_string()).unwrap();
        Self(path)
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        drop(std::fs::remove_dir(&self.0));
    }
}

/// Asks by doing: makes a group below our own, where the keeper makes its, and takes it away.
fn memory_cgroup() -> Option<String> {
    let Some(place) = memory_place() else {
        return Some("no hierarchy has the memory controller".to_owned());
    };
    let probe = place.join(format!("lanewarden-test-{}", std::process::id()));
    match std::fs::create_dir(&probe) {
        Ok(()) => std::fs::remove_dir(&probe).err().map(|error| error.to_string()),
        // Another test of this process asks at the same time.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => None,
        Err(error) => Some(format!("{}: {error}", probe.display())),
    }
}

fn kmsg() -> Option<String> {
    std::fs::File::open("/dev/kmsg").err().map(|error| error.to_string())
}
