//! Where this process is in each cgroup hierarchy, and under which directory. Sources: cgroups(7), proc_pid_mountinfo(5).

use std::{fs, path::PathBuf};

/// One group: its directory, and its name as the kernel prints it (from the hierarchy's root).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) dir: PathBuf,
    pub(super) name: String,
}

impl Place {
    /// The group of this name below.
    pub(super) fn below(&self, name: &str) -> Self {
        Self {
            dir: self.dir.join(name),
            name: format!("{}/{name}", self.name.trim_end_matches('/')),
        }
    }
}

/// The hierarchies that matter here. Each holds our own group, or the base that was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Hierarchies {
    /// The v2 hierarchy, with controllers or without.
    pub(super) unified: Option<Place>,
    /// The v1 hierarchy of the memory controller.
    pub(super) memory: Option<Place>,
    /// The v1 hierarchy of the pids controller.
    pub(super) pids: Option<Place>,
}

/// Finds them on this host.
pub(super) fn find(base: Option<&str>) -> Hierarchies {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    parse(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"), base)
}

fn parse(groups: &str, mounts: &str, base: Option<&str>) -> Hierarchies {
    let mounts: Vec<Mount> = mounts.lines().filter_map(Mount::parse).collect();
    let place = |controller: &str| {
        let path = base.map(str::to_owned).or_else(|| own_path(groups, controller))?;
        let mount = mounts.iter().find(|mount| mount.carries(controller))?;
        mount.place(&path)
    };
    Hierarchies { unified: place(""), memory: place("memory"), pids: place("pids") }
}

/// The path in the hierarchy of this controller; the empty name is the v2 hierarchy.
fn own_path(groups: &str, controller: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let (id, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let found = if controller.is_empty() {
            id == "0" && controllers.is_empty()
        } else {
            controllers.split(',').any(|name| name == controller)
        };
        found.then(|| path.to_owned())
    })
}

struct Mount {
    root: String,
    point: String,
    kind: String,
    options: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (unescape(front.next()?), unescape(front.next()?));
        let mut back = back.split(' ');
        let kind = back.next()?.to_owned();
        let options = back.nth(1).unwrap_or_default().to_owned();
        Some(Self { root, point, kind, options })
    }

    fn carries(&self, controller: &str) -> bool {
        if controller.is_empty() {
            return self.kind == "cgroup2";
        }
        self.kind == "cgroup" && self.options.split(',').any(|option| option == controller)
    }

    /// A mount may show only a part of the hierarchy: what is outside cannot be reached.
    fn place(&self, path: &str) -> Option<Place> {
        // A path with `..` lies outside of our cgroup namespace.
        if path.split('/').any(|part| part == "..") {
            return None;
        }
        let root = self.root.trim_end_matches('/');
        let rest = path.strip_prefix(root)?;
        let inside = rest.is_empty() || rest.starts_with('/');
        inside.then(|| Place {
            dir: PathBuf::from(&self.point).join(rest.trim_matches('/')),
            name: format!("/{}", path.trim_matches('/')),
        })
    }
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HYBRID_GROUPS: &str = "8:pids:/\n4:memory:/jobs/a\n2:cpu,cpuacct:/\n0::/\n";
    const HYBRID_MOUNTS: &str = "\
31 24 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:27 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory
33 31 0:28 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
34 31 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
";

    #[test]
    fn a_hybrid_host_has_three() {
        let found = parse(HYBRID_GROUPS, HYBRID_MOUNTS, None);
        let place = |dir: &str, name: &str| Some(Place { dir: dir.into(), name: name.into() });
        assert_eq!(found.memory, place("/sys/fs/cgroup/memory/jobs/a", "/jobs/a"));
        assert_eq!(found.pids, place("/sys/fs/cgroup/pids/", "/"));
        assert_eq!(found.unified, place("/sys/fs/cgroup/unified/", "/"));
        assert_eq!(found.memory.unwrap().below("x").name, "/jobs/a/x");
    }

    #[test]
    fn a_part_of_a_hierarchy_is_entered_at_its_root() {
        let mounts = "32 31 0:27 /docker/abc /sys/fs/cg\\040x rw - cgroup2 cgroup2 rw\n";
        let found = parse("0::/docker/abc/in\n", mounts, None).unified.unwrap();
        assert_eq!(found.dir, PathBuf::from("/sys/fs/cg x/in"));
        assert_eq!(parse("0::/docker/abcd\n", mounts, None).unified, None);
        assert_eq!(parse("0::/../other\n", mounts, None).unified, None);
    }

    #[test]
    fn a_base_replaces_our_own_group() {
        let found = parse(HYBRID_GROUPS, HYBRID_MOUNTS, Some("/lanes.service"));
        assert_eq!(found.memory.unwrap().name, "/lanes.service");
    }

    proptest! {
        #[test]
        fn no_text_panics(groups in ".*", mounts in "([0-9/ :-]|cgroup2?|memory|\n)*") {
            let found = parse(&groups, &mounts, None);
            prop_assert!(found.memory.is_none() || groups.contains("memory"));
        }
    }
}
