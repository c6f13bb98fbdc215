//! Figures of the whole box: load, memory, disks, and the kernel's count of its OOM kills.

use crate::{Absent, ProbeError, Reading, Root, reading};
use rustix::{fs::statvfs, io::Errno};
use std::{io, path::Path};
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, System};

/// Load and memory at one moment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostSample {
    /// Load average of one minute.
    pub load1: f64,
    /// CPUs that are online.
    pub cpus: usize,
    /// Memory of the box, bytes.
    pub memory_total: u64,
    /// What could be had without swapping (`MemAvailable`), bytes.
    pub memory_available: u64,
    /// Swap space, bytes; 0 if there is none.
    pub swap_total: u64,
    /// Swap space that is free, bytes.
    pub swap_free: u64,
}

/// Measures the running system, through `sysinfo`.
///
/// # Errors
/// A file could not be read. `sysinfo` shows unread memory and CPUs as 0, which no box has; that is an error here.
pub fn sample() -> Result<HostSample, ProbeError> {
    let failed =
        |file: &str, source| ProbeError::Io { path: Path::new("/proc").join(file), source };
    let unread = || io::Error::other("no figures in it");
    let load = System::load_average()
        .map_err(|error| failed("loadavg", io::Error::other(error.to_string())))?;
    let mut system =
        System::new().map_err(|error| failed("stat", io::Error::other(error.to_string())))?;
    system.refresh_memory_specifics(MemoryRefreshKind::everything());
    system.refresh_cpu_list(CpuRefreshKind::nothing());
    let sample = HostSample {
        load1: load.one,
        cpus: system.cpus().len(),
        memory_total: system.total_memory(),
        memory_available: system.available_memory(),
        swap_total: system.total_swap(),
        swap_free: system.free_swap(),
    };
    if sample.memory_total == 0 {
        return Err(failed("meminfo", unread()));
    }
    if sample.cpus == 0 {
        return Err(failed("stat", unread()));
    }
    Ok(sample)
}

/// Bytes that an unprivileged user may still write on the file system of `path`, or of its nearest ancestor that
/// exists (statvfs(3), `f_bavail`). May block on a network file system that does not answer.
///
/// # Errors
/// The file system could not be asked for another reason than absence.
pub fn disk_free(path: &Path) -> Reading<u64> {
    for place in path.ancestors() {
        // The last ancestor of a relative path is empty and means the current directory.
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        match statvfs(place) {
            Ok(found) => return Ok(Ok(found.f_bavail.saturating_mul(found.f_frsize))),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return reading::absent(place, errno.into(), Absent::Gone),
        }
    }
    Ok(Err(Absent::Gone))
}

/// Processes that the kernel killed for want of memory since boot, in whatever group (`oom_kill` of `/proc/vmstat`,
/// 4.13). One for each address space, so two that share one count once. Never attribute it to a lane.
///
/// # Errors
/// The file could not be read for another reason than absence, or the number is none.
pub fn vmstat_oom_kills(root: &Root) -> Reading<u64> {
    let path = root.proc().join("vmstat");
    let bytes = match reading::read_file(&path, reading::SMALL, Absent::NotSupported)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    match bytes.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"oom_kill ")) {
        Some(count) => {
            reading::parsed(&path, "a number after oom_kill", count, reading::number(count))
        }
        None => Ok(Err(Absent::NotSupported)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_box_has_memory_and_cpus() {
        let sample = sample().unwrap();
        assert!(sample.cpus >= 1 && sample.load1 >= 0.0);
        assert!(sample.memory_available <= sample.memory_total);
        assert!(sample.swap_free <= sample.swap_total);
    }

    #[test]
    fn a_place_that_is_not_there_yet_has_the_disk_of_its_parent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for place in [dir.path().to_owned(), dir.path().join("a/b/c"), file.join("below")] {
            assert!(disk_free(&place).unwrap().is_ok(), "{}", place.display());
        }
        assert!(disk_free(Path::new("relative/nowhere")).unwrap().is_ok());
    }

    #[test]
    fn kills_are_counted_only_where_the_kernel_counts_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(vmstat_oom_kills(&root).unwrap(), Err(Absent::NotSupported));
        std::fs::create_dir(root.proc()).unwrap();
        let vmstat = root.proc().join("vmstat");
        std::fs::write(&vmstat, "pgfault 4\noom_kill 17\n").unwrap();
        assert_eq!(vmstat_oom_kills(&root).unwrap(), Ok(17));
        std::fs::write(&vmstat, "pgfault 4\noom_killed 17\n").unwrap();
        assert_eq!(vmstat_oom_kills(&root).unwrap(), Err(Absent::NotSupported));
        std::fs::write(&vmstat, "oom_kill many\n").unwrap();
        assert!(vmstat_oom_kills(&root).is_err());
    }
}
