//! From `/proc/PID/cgroup` and the mounts that we see (cgroups(7)) to directories.

use crate::{Absent, Reading, Root, reading};
use procfs::{FromBufRead, ProcessCGroups, process::MountInfo};
use std::{
    ffi::OsString,
    os::unix::ffi::OsStringExt,
    path::{Component, Path, PathBuf},
};

/// Where systems mount their hierarchies; stands for [`Root::cgroup`].
const USUAL_PLACE: &str = "/sys/fs/cgroup";

/// The groups of one process, as absolute directories. `None`: not mounted where we see it, or outside of what our
/// mount or cgroup namespace shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Hierarchies {
    /// Its group in the v1 memory hierarchy.
    pub memory_v1: Option<PathBuf>,
    /// The same group as the kernel names it: comparable with `task_memcg=` of an OOM report, if our cgroup namespace
    /// is the initial one.
    pub memory_v1_rel: Option<PathBuf>,
    /// Its group in the v1 pids hierarchy.
    pub pids_v1: Option<PathBuf>,
    /// Its group in the v1 hierarchy of CPU accounting.
    pub cpuacct_v1: Option<PathBuf>,
    /// Its group in the v2 hierarchy.
    pub unified: Option<Unified>,
}

/// A place in the v2 hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unified {
    /// Where the hierarchy is mounted.
    pub mount: PathBuf,
    /// The group as the kernel names it, beginning with `/`.
    pub own: String,
    /// The group's directory.
    pub dir: PathBuf,
    /// What this group may control (`cgroup.controllers`); empty beside v1 controllers.
    pub controllers: Vec<String>,
}

impl Hierarchies {
    /// The directory in which memory is accounted: v2 if it has the controller, else v1.
    #[must_use]
    pub fn memory_dir(&self) -> Option<&Path> {
        let v2 = self.unified.as_ref().filter(|unified| unified.has("memory"));
        v2.map(|unified| unified.dir.as_path()).or(self.memory_v1.as_deref())
    }

    /// The directory of any group of the hierarchy that accounts memory, by the name that the kernel gives the group in
    /// OOM reports. Sound only in the initial cgroup namespace, as those names are.
    #[must_use]
    pub fn memory_group(&self, name: &str) -> Option<PathBuf> {
        let v2 = self.unified.as_ref().filter(|unified| unified.has("memory"));
        let root = v2.map(|unified| unified.mount.clone()).or_else(|| {
            let own = self.memory_v1_rel.as_ref()?;
            let below = own.strip_prefix("/").unwrap_or(own).components().count();
            self.memory_v1.as_ref()?.ancestors().nth(below).map(Path::to_owned)
        })?;
        Some(root.join(name.trim_start_matches('/')))
    }
}

impl Unified {
    /// Whether a controller is available here.
    #[must_use]
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|one| one == controller)
    }
}

/// The groups of `pid`, or our own.
///
/// # Errors
/// A file could not be read for another reason than absence, or has not the shape of cgroups(7).
pub fn hierarchies(root: &Root, pid: Option<u32>) -> Reading<Hierarchies> {
    let who = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
    let path = root.proc().join(who).join("cgroup");
    let groups = match reading::read_file(&path, reading::SMALL, Absent::Gone)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    // Our own mounts: the directories are for us to read, whoever is in them.
    let mounts_path = root.proc().join("self/mountinfo");
    let mounts = match reading::read_file(&mounts_path, 16 * reading::SMALL, Absent::Gone)? {
        Ok(bytes) => mounts(&bytes),
        Err(absent) => return Ok(Err(absent)),
    };
    let parsed = ProcessCGroups::from_buf_read(groups.as_slice()).ok();
    let Some(groups) = parsed.filter(|groups| !groups.0.is_empty()) else {
        return Err(reading::malformed(&path, "lines of hierarchy:controllers:path", &groups));
    };

    let mut found = Hierarchies::default();
    for group in groups {
        if group.hierarchy == 0 {
            let place = |mount: &MountInfo| mount.fs_type == "cgroup2";
            if let Some((mount, dir)) = locate(root, &mounts, place, &group.pathname) {
                let controllers = controllers(&dir)?;
                found.unified = Some(Unified { mount, own: group.pathname, dir, controllers });
            }
            continue;
        }
        for controller in &group.controllers {
            let slot = match controller.as_str() {
                "memory" => &mut found.memory_v1,
                "pids" => &mut found.pids_v1,
                "cpuacct" => &mut found.cpuacct_v1,
                _ => continue,
            };
            let place = |mount: &MountInfo| {
                mount.fs_type == "cgroup" && mount.super_options.contains_key(controller)
            };
            *slot = locate(root, &mounts, place, &group.pathname).map(|(_, dir)| dir);
            if controller == "memory" {
                found.memory_v1_rel = Some(PathBuf::from(&group.pathname));
            }
        }
    }
    Ok(Ok(found))
}

/// The cgroup mounts among the lines of mountinfo. Lines that cannot be understood are other people's mounts.
fn mounts(bytes: &[u8]) -> Vec<MountInfo> {
    bytes
        .split(|byte| *byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter_map(|line| MountInfo::from_line(line).ok())
        .filter(|mount| matches!(mount.fs_type.as_str(), "cgroup" | "cgroup2"))
        .collect()
}

/// Mount point and directory of the group `name`, in the first mount that shows it.
fn locate(
    root: &Root,
    mounts: &[MountInfo],
    is_it: impl Fn(&MountInfo) -> bool,
    name: &str,
) -> Option<(PathBuf, PathBuf)> {
    mounts.iter().filter(|mount| is_it(mount)).find_map(|mount| {
        // A container without a cgroup namespace sees only a part of the tree and is told names of the whole.
        let shown = unescaped(&mount.root);
        let below = Path::new(name).strip_prefix(Path::new(&shown)).ok()?;
        // `/../x` names a group outside of our cgroup namespace: it has no directory here.
        below.components().all(|part| matches!(part, Component::Normal(_))).then_some(())?;
        let point = PathBuf::from(unescaped(&mount.mount_point.to_string_lossy()));
        let point = match point.strip_prefix(USUAL_PLACE) {
            Ok(rest) => root.cgroup().components().chain(rest.components()).collect(),
            Err(_) => point,
        };
        let dir = point.components().chain(below.components()).collect();
        Some((point, dir))
    })
}

/// Undoes the `\040` by which mountinfo hides blanks, tabs, newlines and backslashes.
fn unescaped(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = after
            .first_chunk::<3>()
            .filter(|_| *first == b'\\')
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes)
}

fn controllers(dir: &Path) -> Result<Vec<String>, crate::ProbeError> {
    let path = dir.join("cgroup.controllers");
    let bytes = reading::read_file(&path, reading::SMALL, Absent::NotSupported)?;
    let text = String::from_utf8(bytes.unwrap_or_default())
        .map_err(|error| reading::malformed(&path, "names", error.as_bytes()))?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    fn captured(cgroup: &str, mountinfo: &str) -> (tempfile::TempDir, Root) {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        fs::create_dir_all(root.proc().join("self")).unwrap();
        fs::write(root.proc().join("self/cgroup"), cgroup).unwrap();
        fs::write(root.proc().join("self/mountinfo"), mountinfo).unwrap();
        (dir, root)
    }

    #[test]
    fn hybrid_v1_memory_beside_a_bare_v2_tree() {
        let (_dir, root) = captured(
            "9:name=systemd:/\n8:pids:/\n4:memory:/box/lane-1\n2:cpuacct:/\n1:cpu:/\n0::/\n",
            "23 1 0:22 / / rw - ext4 /dev/vda rw\n\
             31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
             33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
             35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory\n\
             39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
             41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        );
        fs::create_dir_all(root.cgroup().join("unified")).unwrap();
        fs::write(root.cgroup().join("unified/cgroup.controllers"), "\n").unwrap();
        let found = hierarchies(&root, None).unwrap().unwrap();
        assert_eq!(found.memory_v1, Some(root.cgroup().join("memory/box/lane-1")));
        assert_eq!(found.memory_v1_rel, Some("/box/lane-1".into()));
        assert_eq!(found.pids_v1, Some(root.cgroup().join("pids")));
        assert_eq!(found.cpuacct_v1, Some(root.cgroup().join("cpuacct")));
        assert_eq!(found.memory_dir(), found.memory_v1.as_deref());
        let unified = found.unified.unwrap();
        assert_eq!((unified.own.as_str(), unified.controllers.len()), ("/", 0));
        assert_eq!(unified.dir, unified.mount);
    }

    #[test]
    fn plain_v2_with_a_blank_in_the_name() {
        let (_dir, root) = captured(
            "0::/system.slice/my lanes.service/a:b\n",
            "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
        );
        let dir = root.cgroup().join("system.slice/my lanes.service/a:b");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cgroup.controllers"), "cpu memory pids\n").unwrap();
        let found = hierarchies(&root, None).unwrap().unwrap();
        assert_eq!(found.memory_dir(), Some(dir.as_path()));
        let unified = found.unified.clone().unwrap();
        assert_eq!(unified.mount, root.cgroup());
        assert!(unified.has("pids") && !unified.has("io"));
        assert_eq!((found.memory_v1, found.pids_v1), (None, None));
    }

    #[test]
    fn a_part_of_the_tree_and_a_group_outside_of_it() {
        let mount = r"30 23 0:26 /docker/a\040b /sys/fs/cgroup ro - cgroup2 cgroup2 rw";
        let (_dir, root) = captured("0::/docker/a b/in\n", mount);
        let found = hierarchies(&root, None).unwrap().unwrap();
        assert_eq!(found.unified.unwrap().dir, root.cgroup().join("in"));
        for outside in ["0::/../../host\n", "0::/elsewhere\n", "0::/docker/a b/../../x\n"] {
            fs::write(root.proc().join("self/cgroup"), outside).unwrap();
            assert_eq!(hierarchies(&root, None).unwrap().unwrap().unified, None, "{outside}");
        }
    }

    #[test]
    fn this_process_is_somewhere() {
        let root = Root::live();
        let ours = hierarchies(&root, None).unwrap().unwrap();
        assert_eq!(hierarchies(&root, Some(std::process::id())).unwrap().unwrap(), ours);
        assert_eq!(hierarchies(&root, Some(u32::MAX)).unwrap(), Err(Absent::Gone));
    }

    proptest! {
        #[test]
        fn no_lines_make_it_panic(cgroup in "[0-9:,a-z/.\n\\\\]{0,60}", mountinfo in "[0-9:,a-z/ .\n\\\\-]{0,80}") {
            let (_dir, root) = captured(&cgroup, &mountinfo);
            let _unused = hierarchies(&root, None);
            for line in mountinfo.lines() {
                let _unused = unescaped(line);
            }
        }
    }
}
