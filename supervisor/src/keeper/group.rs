//! One run's cgroup: made and limited before the worker enters, read and removed after everybody left.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::PathBuf,
};

use super::{
    cgroup::{Parents, below, leaf_suffix, procs, remove_tree},
    hierarchy::Place,
    protocol::{Limits, SpawnOrder},
};

/// The groups of one run, one for each hierarchy.
#[derive(Debug, Default)]
pub(super) struct Group {
    unified: Option<Place>,
    memory: Option<Place>,
    pids: Option<Place>,
    /// Whether the v2 group has the memory controller.
    unified_memory: bool,
    entered: bool,
}

impl Group {
    /// Makes and limits the groups; the second value says what could not be enforced.
    pub(super) fn make(parents: &Parents, order: &SpawnOrder) -> (Self, Vec<String>) {
        let name = format!("{}{}", order.lane, leaf_suffix(&order.run));
        let mut degraded = Vec::new();
        let mut make = |parent: Option<&Place>| {
            let place = parent?.below(&name);
            match fs::create_dir(&place.dir) {
                Ok(()) => Some(place),
                // A leaf of an earlier life with the same name: usable only if nobody is in it.
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && procs(&place.dir).is_empty() =>
                {
                    Some(place)
                }
                Err(error) => {
                    degraded.push(format!("the cgroup {} cannot be made: {error}", place.name));
                    None
                }
            }
        };
        let wants_pids = order.limits.pids_max.is_some();
        let group = Self {
            unified: make(parents.unified.as_ref()),
            memory: make(parents.memory.as_ref()),
            pids: make(parents.pids.as_ref().filter(|_| wants_pids)),
            unified_memory: parents.has("memory"),
            entered: false,
        };
        for (what, wanted, files) in group.limits(&order.limits, parents) {
            if let Some(value) = wanted
                && let Err(why) = set(&files, value)
            {
                degraded.push(format!("{what} = {value} is not enforced: {why}"));
            }
        }
        group.share_fate();
        (group, degraded)
    }

    /// The group in the memory hierarchy, as the kernel names it in OOM reports.
    pub(super) fn kernel_name(&self) -> Option<String> {
        self.memory.as_ref().or(self.unified.as_ref()).map(|place| place.name.clone())
    }

    /// Opens the files through which the child enters. What cannot be opened is a sentence.
    pub(super) fn doors(&self) -> (Vec<File>, Vec<String>) {
        let (mut doors, mut degraded) = (Vec::new(), Vec::new());
        for place in self.places() {
            match OpenOptions::new().write(true).open(place.dir.join("cgroup.procs")) {
                Ok(door) => doors.push(door),
                Err(error) => {
                    degraded.push(format!("the cgroup {} cannot be entered: {error}", place.name));
                }
            }
        }
        (doors, degraded)
    }

    /// Says whether the worker is in every group: if not, an empty group proves nothing.
    pub(super) fn set_entered(&mut self, entered: bool) {
        self.entered = entered;
    }

    /// Whether the group holds the tree together: who is not in it is not of the tree.
    pub(super) fn holds_the_tree(&self) -> bool {
        self.entered && self.membership().is_some()
    }

    /// The pids in the group and in the groups below it.
    pub(super) fn pids(&self) -> Vec<u32> {
        let Some(place) = self.membership() else { return Vec::new() };
        below(&place.dir).iter().flat_map(|dir| procs(dir)).collect()
    }

    /// Kills everything in the group at once, against fork races; `false` where the kernel cannot (before 5.14).
    pub(super) fn kill(&self) -> bool {
        self.unified
            .as_ref()
            .is_some_and(|place| fs::write(place.dir.join("cgroup.kill"), "1").is_ok())
    }

    /// How many of its processes the kernel's OOM killer ended.
    ///
    /// v2 counts nested groups too; v1 (since 4.13) counts where the victim was.
    pub(super) fn oom_kills(&self) -> Option<u64> {
        let (place, file) = self.memory_file("memory.oom_control", "memory.events")?;
        keyed(&fs::read_to_string(place.dir.join(file)).ok()?, "oom_kill")
    }

    /// The most memory it ever used, bytes (v2: since 5.19).
    pub(super) fn peak_memory(&self) -> Option<u64> {
        let (place, file) = self.memory_file("memory.max_usage_in_bytes", "memory.peak")?;
        fs::read_to_string(place.dir.join(file)).ok()?.trim().parse().ok()
    }

    /// Removes the groups, the nested ones first. `false` if one of them is still in use.
    pub(super) fn remove(&self) -> bool {
        let mut gone = true;
        for place in self.places() {
            // Each is tried, whatever became of the others.
            gone &= remove_tree(&place.dir);
        }
        gone
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        [&self.unified, &self.memory, &self.pids].into_iter().flatten()
    }

    fn membership(&self) -> Option<&Place> {
        self.unified.as_ref().or(self.memory.as_ref())
    }

    fn memory_file(&self, v1: &'static str, v2: &'static str) -> Option<(&Place, &'static str)> {
        match (&self.memory, &self.unified) {
            (Some(place), _) => Some((place, v1)),
            (None, Some(place)) if self.unified_memory => Some((place, v2)),
            (None, _) => None,
        }
    }

    /// Each limit: its key, the wish, and the files that all must take it. No file means that there is no such control.
    fn limits(
        &self,
        wanted: &Limits,
        parents: &Parents,
    ) -> [(&'static str, Option<u64>, Vec<PathBuf>); 4] {
        let v2 = |controller: &str, file: &str| -> Vec<PathBuf> {
            let place = self.unified.as_ref().filter(|_| parents.has(controller));
            place.map(|place| place.dir.join(file)).into_iter().collect()
        };
        let memory = match &self.memory {
            // memsw may not be below the plain limit, so that comes first; it is absent without swap accounting.
            Some(place) => ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
                .into_iter()
                .map(|file| place.dir.join(file))
                .filter(|file| file.exists() || file.ends_with("memory.limit_in_bytes"))
                .collect(),
            None => v2("memory", "memory.max"),
        };
        let pids = match &self.pids {
            Some(place) => vec![place.dir.join("pids.max")],
            None => v2("pids", "pids.max"),
        };
        [
            ("memory_max", wanted.memory_max, memory),
            ("memory_high", wanted.memory_high, v2("memory", "memory.high")),
            ("pids_max", wanted.pids_max, pids),
            ("cpu_weight", wanted.cpu_weight, v2("cpu", "cpu.weight")),
        ]
    }

    /// One lane dies as a whole: half a worker is worse than none. v1 has no such switch.
    fn share_fate(&self) {
        if self.unified_memory
            && let Some(place) = &self.unified
            && let Err(error) = fs::write(place.dir.join("memory.oom.group"), "1")
        {
            tracing::debug!(%error, group = place.name, "memory.oom.group not set");
        }
    }
}

fn set(files: &[PathBuf], value: u64) -> Result<(), String> {
    if files.is_empty() {
        return Err("this host has no control for it".to_owned());
    }
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        fs::write(file, value.to_string()).map_err(|error| format!("write {name}: {error}"))?;
    }
    Ok(())
}

/// The number beside a key, in a file of `key number` lines.
fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        (name == key).then(|| value.trim().parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_whole_key() {
        let text = "low 0\nhigh 3\nmax 9\noom 2\noom_kill 4\noom_group_kill 1\n";
        assert_eq!(keyed(text, "oom_kill"), Some(4));
        assert_eq!(keyed(text, "oom"), Some(2));
        assert_eq!(keyed("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n", "oom_kill"), Some(7));
        assert_eq!(keyed("oom_kill_disable 0\n", "oom_kill"), None);
    }

    fn order(limits: Limits) -> SpawnOrder {
        SpawnOrder {
            run: crate::ids::RunId::from_bytes([0xab; 16]),
            lane: crate::ids::LaneId::new("lane-1").unwrap(),
            argv: vec![],
            dir: "/".into(),
            env: std::collections::BTreeMap::new(),
            log: "/log".into(),
            marker_dir: "/marker".into(),
            limits,
            oom_score_adj: 0,
        }
    }

    const LIMITS: Limits = Limits {
        memory_max: Some(4096),
        memory_high: Some(2048),
        pids_max: Some(7),
        cpu_weight: Some(50),
    };

    #[test]
    fn a_v2_group_gets_every_limit_and_shares_its_fate() {
        let dir = tempfile::tempdir().unwrap();
        let mut parents = Parents::default();
        parents.unified = Some(Place { dir: dir.path().into(), name: "/lanes".into() });
        parents.controllers = ["memory", "pids", "cpu"].map(str::to_owned).into();
        let (group, degraded) = Group::make(&parents, &order(LIMITS));
        assert_eq!(degraded, Vec::<String>::new());
        assert_eq!(group.kernel_name().unwrap(), "/lanes/lane-1.abababab");
        let read =
            |file| fs::read_to_string(dir.path().join("lane-1.abababab").join(file)).unwrap();
        assert_eq!((read("memory.max"), read("memory.high")), ("4096".into(), "2048".into()));
        assert_eq!((read("pids.max"), read("cpu.weight")), ("7".into(), "50".into()));
        assert_eq!(read("memory.oom.group"), "1");
    }

    #[test]
    fn a_v1_group_says_what_it_cannot() {
        let dir = tempfile::tempdir().unwrap();
        let mut parents = Parents::default();
        parents.memory = Some(Place { dir: dir.path().into(), name: "/jobs".into() });
        let (group, degraded) = Group::make(&parents, &order(LIMITS));
        let lost: Vec<&str> = degraded.iter().filter_map(|text| text.split(' ').next()).collect();
        assert_eq!(lost, ["memory_high", "pids_max", "cpu_weight"]);
        let limit = dir.path().join("lane-1.abababab/memory.limit_in_bytes");
        assert_eq!(fs::read_to_string(limit).unwrap(), "4096");
        assert_eq!(group.oom_kills(), None, "no counter is not zero kills");
    }
}
