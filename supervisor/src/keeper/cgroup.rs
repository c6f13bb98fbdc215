//! Where lane groups are made on this host, and what can be enforced there. Write side; sources: cgroups(7) and the
//! kernel's admin-guide/cgroup-v2 and cgroup-v1/memory.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use super::hierarchy::{Hierarchies, Place, find};
use crate::ids::RunId;

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
    /// Where parents are made, ours and those of earlier keepers.
    above: Vec<PathBuf>,
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

    /// Removes the groups of a run whose keeper is gone: whoever forgets it has read its counters.
    ///
    /// Only what is empty goes; a group in use refuses.
    pub(super) fn remove_of_earlier_keepers(&self, run: &RunId) {
        let suffix = leaf_suffix(run);
        for parent in
            self.above.iter().flat_map(|above| named(above, |name| name.starts_with(PREFIX)))
        {
            for leaf in named(&parent, |name| name.ends_with(&suffix)) {
                remove_tree(&leaf);
            }
            let earlier = !self.ours.contains(&parent);
            // Refused as long as another run is in it.
            if earlier && fs::remove_dir(&parent).is_ok() {
                tracing::debug!(dir = %parent.display(), "the cgroup of an earlier keeper is removed");
            }
        }
    }

    fn parent(&mut self, above: Option<Place>, is_base: bool) -> Option<Place> {
        let above = above?;
        let place = if is_base {
            above
        } else {
            self.above.push(above.dir.clone());
            above.below(&format!("{PREFIX}{}", std::process::id()))
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
            losses.push("memory is not limited, and OOM kills are not counted by lane: start the keeper alone in a cgroup, or \
name one that is delegated to it".to_owned());
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

/// How the parent of a keeper's lane groups is called; its pid follows.
const PREFIX: &str = "lanewarden-keeper-";

/// How deep nested groups are followed: deeper ones are made only to confuse.
const DEPTH: usize = 32;

/// The end of the name of a run's group; the lane stands before it.
pub(super) fn leaf_suffix(run: &RunId) -> String {
    let short: String = run.as_str().chars().take(8).collect();
    format!(".{short}")
}

/// The directory and all below it, parents first.
pub(super) fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let mut level = vec![dir.to_owned()];
    for _ in 0..DEPTH {
        level = level.iter().flat_map(|dir| named(dir, |_| true)).collect();
        if level.is_empty() {
            break;
        }
        found.extend(level.iter().cloned());
    }
    found
}

/// The directories in `dir` that have such a name.
fn named(dir: &Path, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    entries
        .filter_map(Result::ok)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter(|entry| is_wanted(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes a group, the nested ones first. `false` if one of them is still in use.
pub(super) fn remove_tree(dir: &Path) -> bool {
    let mut gone = true;
    for dir in below(dir).iter().rev() {
        match fs::remove_dir(dir) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => gone = false,
        }
    }
    gone
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_walked_from_the_top() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("a/b")).unwrap();
        assert_eq!(below(dir.path()).last(), Some(&dir.path().join("a/b")));
        assert_eq!(below(dir.path()).len(), 3);
        assert!(remove_tree(dir.path()));
        assert!(!dir.path().exists());
    }

    #[test]
    fn a_forgotten_run_takes_its_groups_of_earlier_keepers_along() {
        let dir = tempfile::tempdir().unwrap();
        let (old, shared) = ("lanewarden-keeper-1", "lanewarden-keeper-2");
        for leaf in ["1/a.abababab/nested", "2/a.abababab", "2/b.cdcdcdcd"] {
            fs::create_dir_all(dir.path().join(format!("lanewarden-keeper-{leaf}"))).unwrap();
        }
        let parents = Parents { above: vec![dir.path().into()], ..Parents::default() };
        parents.remove_of_earlier_keepers(&RunId::from_bytes([0xab; 16]));
        assert!(!dir.path().join(old).exists());
        assert!(!dir.path().join(shared).join("a.abababab").exists());
        assert!(dir.path().join(shared).join("b.cdcdcdcd").exists(), "another run's");
    }
}
