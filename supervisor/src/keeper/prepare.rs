//! What must be there before a worker is forked: its directory, log, marker directory and program.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use lanewarden_probes::closed_set;
use rustix::fs::{OFlags, fchown, fcntl_setfl};

use super::home::flags;

/// Where programs are looked for if the order's environment has no PATH.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

closed_set! {
    /// The step at which a start failed.
    pub(super) enum Step {
        /// The lane's directory.
        Directory = "directory",
        /// The run's log.
        Log = "log",
        /// The run's marker directory.
        MarkerDir = "marker-dir",
        /// The run's cgroup.
        Cgroup = "cgroup",
        /// The new process.
        Fork = "fork",
        /// The program.
        Exec = "exec",
        /// The keeper may not, or the order makes no sense.
        Refused = "refused",
    }
}

/// A program that never ran.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NotStarted {
    pub(super) step: Step,
    pub(super) errno: Option<i32>,
    pub(super) message: String,
}

impl NotStarted {
    pub(super) fn refused(message: impl Into<String>) -> Self {
        Self { step: Step::Refused, errno: None, message: message.into() }
    }

    pub(super) fn failed(step: Step, error: &io::Error, message: impl Into<String>) -> Self {
        Self { step, errno: error.raw_os_error(), message: message.into() }
    }
}

/// The uid that owns the lane's directory, which must be one.
pub(super) fn directory(dir: &Path) -> Result<u32, NotStarted> {
    let fail = |error: &io::Error, remedy| {
        let text = format!("use {} as the worker's directory: {error}; {remedy}", dir.display());
        NotStarted::failed(Step::Directory, error, text)
    };
    if !dir.is_absolute() {
        return Err(NotStarted::refused(format!("{} is not an absolute path", dir.display())));
    }
    let found = fs::metadata(dir).map_err(|error| fail(&error, "create the lane's checkout"))?;
    if found.is_dir() {
        return Ok(found.uid());
    }
    Err(fail(&io::Error::from(rustix::io::Errno::NOTDIR), "give the lane a directory"))
}

/// The run's log, opened for appending; made with mode 0640, its parents with 0750.
pub(super) fn log(path: &Path) -> Result<File, NotStarted> {
    let open = || {
        parents(path)?;
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o640)
            // A FIFO without a reader must not block us.
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY))
            .open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        fcntl_setfl(&file, OFlags::APPEND)?;
        Ok(file)
    };
    open().map_err(|error: io::Error| {
        let text = format!(
            "open the log {}: {error}; it must be a regular file, no link, that the warden's user may write",
            path.display()
        );
        NotStarted::failed(Step::Log, &error, text)
    })
}

/// The run's marker directory: new, or left from the same run.
///
/// `owner` is who asks; the directory belongs to the worker afterwards. If that is another user, the asker's group may
/// read it, since the asker has to read the marker.
pub(super) fn marker_dir(
    path: &Path,
    worker: u32,
    owner: u32,
    group: u32,
) -> Result<(), NotStarted> {
    let fail = |error: &io::Error| {
        let text = format!(
            "make the marker directory {}: {error}; it must be new, or a directory of the worker's own user",
            path.display()
        );
        NotStarted::failed(Step::MarkerDir, error, text)
    };
    super::account::acting_as(owner, group, || make_private(path)).map_err(|error| fail(&error))?;
    let open = || {
        let dir = OpenOptions::new()
            .read(true)
            .custom_flags(flags(OFlags::NOFOLLOW | OFlags::DIRECTORY))
            .open(path)?;
        let found = dir.metadata()?;
        if found.uid() != owner && found.uid() != worker {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "it belongs to somebody else",
            ));
        }
        let mode = if worker == owner { 0o700 } else { 0o750 };
        if found.uid() != worker {
            fchown(&dir, Some(rustix::process::Uid::from_raw(worker)), None)?;
        }
        if found.mode() & 0o7777 != mode {
            dir.set_permissions(fs::Permissions::from_mode(mode))?;
        }
        Ok(())
    };
    open().map_err(|error| fail(&error))
}

fn make_private(path: &Path) -> io::Result<()> {
    parents(path)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Not through a link: the link's target is not what the worker is told.
            if fs::symlink_metadata(path)?.is_dir() { Ok(()) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}

fn parents(path: &Path) -> io::Result<()> {
    if !path.is_absolute() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not an absolute path"));
    }
    match path.parent() {
        Some(parent) => DirBuilder::new().recursive(true).mode(0o750).create(parent),
        None => Ok(()),
    }
}

/// The program's file: as named if the name has a slash (from the lane's directory on), else the first in PATH.
pub(super) fn program(name: &str, dir: &Path, path: Option<&str>) -> Result<PathBuf, NotStarted> {
    if name.is_empty() {
        return Err(NotStarted::refused("the command is empty"));
    }
    let search = path.unwrap_or(DEFAULT_PATH);
    let candidates: Vec<PathBuf> = if name.contains('/') {
        vec![dir.join(name)]
    } else {
        // An empty part means the current directory, which for the worker is the lane's.
        search.split(':').map(|part| dir.join(part).join(name)).collect()
    };
    let mut forbidden = None;
    for candidate in candidates {
        match fs::metadata(&candidate) {
            Ok(found) if found.is_file() && found.mode() & 0o111 != 0 => return Ok(candidate),
            Ok(_) => forbidden = forbidden.or(Some(candidate)),
            Err(_) => {}
        }
    }
    let (error, text) = match forbidden {
        Some(file) => (
            rustix::io::Errno::ACCESS,
            format!("{} is not an executable file: chmod +x it", file.display()),
        ),
        None if name.contains('/') => {
            (rustix::io::Errno::NOENT, format!("there is no program {name:?}: install it"))
        }
        None => (
            rustix::io::Errno::NOENT,
            format!(
                "there is no program {name:?} in the worker's PATH: install it, or name it by its path ({search})"
            ),
        ),
    };
    Err(NotStarted::failed(Step::Exec, &error.into(), text))
}

/// What an exec error means for the one who wrote the command.
pub(super) fn exec_sentence(program: &Path, error: &io::Error) -> String {
    let hint = match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
        Some(rustix::io::Errno::NOENT) => {
            "its interpreter is missing: look at its first line, or at its ELF loader with `file`"
        }
        Some(rustix::io::Errno::NOEXEC) => {
            "it is neither a binary for this machine nor starts with #!"
        }
        Some(rustix::io::Errno::ACCESS) => {
            "the worker's user may not execute it, or its file system is mounted noexec"
        }
        Some(rustix::io::Errno::TXTBSY) => "somebody still writes it: try again",
        Some(rustix::io::Errno::TOOBIG) => "arguments and environment are too long",
        _ => "see execve(2)",
    };
    format!("execute {}: {error}; {hint}", program.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_path_or_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("tool");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let path = dir.path().to_str();
        let lost = program("tool", Path::new("/"), path).unwrap_err();
        assert_eq!((lost.step, lost.errno), (Step::Exec, Some(13)), "{lost:?}");
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(program("tool", Path::new("/"), path), Ok(script.clone()));
        assert_eq!(program("./tool", dir.path(), None), Ok(dir.path().join("./tool")));
        let lost = program("no-such", Path::new("/"), path).unwrap_err();
        assert_eq!((lost.step, lost.errno), (Step::Exec, Some(2)));
    }

    #[test]
    fn a_log_is_never_opened_through_a_link_or_a_fifo() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert_eq!(log(&link).unwrap_err().step, Step::Log);
        let fifo = dir.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(log(&fifo).unwrap_err().step, Step::Log);
        let deep = dir.path().join("a/b/run.log");
        let file = log(&deep).unwrap();
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn a_marker_directory_is_private_and_no_link() {
        let own = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x/m");
        assert_eq!(marker_dir(&path, own, own, group), Ok(()));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        assert_eq!(marker_dir(&path, own, own, group), Ok(()), "the same run again");
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(marker_dir(&link, own, own, group).unwrap_err().step, Step::MarkerDir);
    }
}
