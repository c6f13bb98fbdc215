//! Where lane groups are made on this host, and what can be enforced there. Write side; sources: cgroups(7) and the
//! kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::hierarchy::{Hierarchies, Place, find};

/// The parents of lane groups, one for each hierarchy that we can write.
#[derive(Debug, Default)]
pub(super) struct Parents {
    /// v2: where `cgroup.kill` and `cgroup.events` are, and the limits unless a v1 hierarchy has them.
    pub(super) unified: Option<Place>,
    /// Controllers that lane groups of the v2 hierarchy have.
    pub(super) controllers: Vec<String>,
    /// v1 memory.
    pub(super) memory: Option<Place>,
    /// v1 pids.
    pub(super) pids: Option<Place>,
    /// What cannot be enforced on this host, one sentence each.
    pub(super) degraded: Vec<String>,
    /// Directories of our own that are removed at the end if they are empty.
    ours: Vec<PathBuf>,
}

impl Parents {
    /// Whether lane groups have this controller in the v2 hierarchy.
    pub(super) fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|name| name == controller)
    }

    /// Makes what can be made, below `base` or below the keeper's own group.
    pub(super) fn prepare(base: Option<&str>) -> Self {
        let Hierarchies { unified, memory, pids } = find(base);
        let mut parents = Self::default();
        parents.memory = parents.parent(memory, base.is_some());
        parents.pids = parents.parent(pids, base.is_some());
        if let Some(above) = unified {
            parents.unified = parents.parent(Some(above.clone()), base.is_some());
            if let Some(parent) = parents.unified.clone() {
                if base.is_none() {
                    enable(&above.dir, false);
                }
                enable(&parent.dir, base.is_some());
                parents.controllers = words(&parent.dir.join("cgroup.subtree_control"));
            }
        }
        parents.degraded = parents.losses();
        parents
    }

    /// Removes what we made and nobody uses.
    pub(super) fn remove(&self) {
        for dir in &self.ours {
            if let Err(error) = fs::remove_dir(dir) {
                tracing::debug!(%error, dir = %dir.display(), "a cgroup stays");
            }
        }
    }

    fn parent(&mut self, above: Option<Place>, is_base: bool) -> Option<Place> {
        let above = above?;
        let place = if is_base {
            above
        } else {
            above.below(&format!("lanewarden-keeper-{}", std::process::id()))
        };
        match fs::create_dir(&place.dir) {
            Ok(()) => self.ours.push(place.dir.clone()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                tracing::info!(%error, dir = %place.dir.display(), "no cgroup can be made here");
                return None;
            }
        }
        Some(place)
    }

    fn losses(&self) -> Vec<String> {
        let mut losses = Vec::new();
        let v2 = |controller| self.unified.is_some() && self.has(controller);
        if self.unified.is_none() && self.memory.is_none() {
            losses.push(
                "no cgroup can be made: trees are ended by session, descent and environment cookie"
                    .to_owned(),
            );
        }
        if self.memory.is_none() && !v2("memory") {
            losses.push("memory is not limited, and OOM kills are not counted by lane".to_owned());
        }
        if self.pids.is_none() && !v2("pids") {
            losses.push("the number of processes is not limited".to_owned());
        }
        if !v2("cpu") {
            losses
                .push("CPU is not weighted: that needs the cpu controller of cgroup v2".to_owned());
        }
        losses
    }
}

/// Hands the controllers on to the groups below `dir`.
///
/// A group that holds processes cannot (leaf-only rule; the root may). If we are alone in our own group we move one
/// level down; in a base that was delegated to us, whoever is there (the holder) is moved.
fn enable(dir: &Path, is_base: bool) {
    for controller in ["memory", "pids", "cpu"] {
        let hand_on = || fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
        match hand_on() {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && make_room(dir, is_base) =>
            {
                if let Err(error) = hand_on() {
                    tracing::info!(%error, controller, dir = %dir.display(), "controller not handed on");
                }
            }
            Ok(()) => {}
            Err(error) => {
                tracing::info!(%error, controller, dir = %dir.display(), "controller not handed on");
            }
        }
    }
}

fn make_room(dir: &Path, is_base: bool) -> bool {
    let inside = procs(dir);
    let alone = inside == [std::process::id()];
    if !alone && !is_base {
        return false;
    }
    let leaf = dir.join(if is_base { "holder" } else { "keeper" });
    if let Err(error) = fs::create_dir(&leaf)
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return false;
    }
    inside.iter().all(|pid| fs::write(leaf.join("cgroup.procs"), pid.to_string()).is_ok())
}

/// The pids in one group, without the groups below it. Empty if it cannot be read.
pub(super) fn procs(dir: &Path) -> Vec<u32> {
    words(&dir.join("cgroup.procs"))
        .iter()
        .filter_map(|word| word.parse().ok())
        // A process of a foreign pid namespace is printed as 0.
        .filter(|&pid| pid != 0)
        .collect()
}

fn words(file: &Path) -> Vec<String> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_ascii_whitespace().map(str::to_owned).collect()
}
