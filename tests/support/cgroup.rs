//! The cgroups that keepers make below ours: what is left of them, and taking that away.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The existing cgroups of a keeper, in every hierarchy, children before parents.
#[must_use]
pub fn of_keeper(pid: u32) -> Vec<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = Vec::new();
    for path in own.lines().filter_map(|line| line.splitn(3, ':').nth(2)) {
        for root in roots() {
            let place = root.join(path.trim_start_matches('/'));
            found.extend(tree(&place.join(format!("lanewarden-keeper-{pid}"))));
        }
    }
    found.sort_by_key(|path| (std::cmp::Reverse(path.components().count()), path.clone()));
    found.dedup();
    found
}

/// The cgroups of runs in which a process is, and their parents that are a keeper's: a keeper that was killed leaves them.
#[must_use]
pub fn of_process(pid: u32) -> Vec<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let keeper = |path: &str| {
        let (above, _) = path.rsplit_once('/')?;
        above.rsplit('/').next()?.strip_prefix("lanewarden-keeper-")?.parse::<u32>().ok()
    };
    paths.filter_map(keeper).flat_map(of_keeper).collect()
}

/// Takes away what is empty.
pub fn remove(groups: &[PathBuf]) {
    for group in groups {
        // Not empty, or gone already: either way there is nothing to take away.
        fs::remove_dir(group).unwrap_or_default();
    }
}

fn roots() -> Vec<PathBuf> {
    let below = fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = below.map(|entry| entry.path()).collect();
    roots.retain(|path| path.is_dir());
    roots.push(PathBuf::from("/sys/fs/cgroup"));
    roots
}

fn tree(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let below = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let mut found: Vec<PathBuf> = below.flat_map(|path| tree(&path)).collect();
    found.push(dir.to_owned());
    found
}
