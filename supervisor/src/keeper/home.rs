//! The keeper's runtime directory: one lock, one socket.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixListener,
    },
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, OFlags, flock};

use super::{KeeperError, KeeperOptions};

/// A runtime directory that is ours while this value lives.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) listener: UnixListener,
    socket: PathBuf,
    // Held, never read: the kernel lets the lock go when it closes.
    _lock: File,
}

impl Home {
    /// Makes the directory, takes its lock and listens.
    ///
    /// # Errors
    /// [`KeeperError`] with the step that failed; a second keeper is [`KeeperError::AlreadyRunning`].
    pub(super) fn open(options: &KeeperOptions) -> Result<Self, KeeperError> {
        let own = rustix::process::geteuid().as_raw();
        let foreign: Vec<u32> = options.peers.iter().copied().filter(|&uid| uid != own).collect();
        let dir = &options.runtime_dir;
        directory(dir, own, !foreign.is_empty())
            .map_err(|source| KeeperError::RuntimeDir { path: dir.clone(), source })?;
        let lock = lock(dir)?;

        let socket = dir.join("keeper.sock");
        let listen = |source| KeeperError::Listen { path: socket.clone(), source };
        // Ours by the lock: what is there was left by a keeper that is gone.
        match fs::remove_file(&socket) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(listen(error)),
        }
        let listener = UnixListener::bind(&socket).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        open_to(&socket, &foreign).map_err(listen)?;
        Ok(Self { listener, socket, _lock: lock })
    }

    /// Takes the socket away, so that peers see at once that nobody serves it.
    pub(super) fn close(self) {
        if let Err(error) = fs::remove_file(&self.socket) {
            tracing::debug!(%error, "the socket was gone already");
        }
    }
}

fn directory(dir: &Path, own: u32, shared: bool) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(if shared { 0o711 } else { 0o700 }).create(dir) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let found = fs::symlink_metadata(dir)?;
    if !found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, "it is not a directory"));
    }
    if found.uid() != own && found.uid() != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if found.mode() & 0o022 != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "others may write in it"));
    }
    Ok(())
}

fn lock(dir: &Path) -> Result<File, KeeperError> {
    let path = dir.join("keeper.lock");
    let fail = |source| KeeperError::Lock { path: path.clone(), source };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags(OFlags::NOFOLLOW))
        .open(&path)
        .map_err(fail)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => {
            return Err(KeeperError::AlreadyRunning { runtime_dir: dir.to_owned() });
        }
        Err(error) => return Err(fail(error.into())),
    }
    // For people who look; the lock alone counts.
    file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())).map_err(fail)?;
    Ok(file)
}

/// The file mode is the outer door only; who may speak is decided by `SO_PEERCRED`.
fn open_to(socket: &Path, foreign: &[u32]) -> io::Result<()> {
    let mode = match foreign {
        [] => 0o600,
        [one] if rustix::process::geteuid().is_root() => {
            // Root passes any door, so the socket can be the one peer's own.
            std::os::unix::fs::chown(socket, Some(*one), None)?;
            0o600
        }
        _ => 0o666,
    };
    fs::set_permissions(socket, fs::Permissions::from_mode(mode))
}

/// Flags for `OpenOptionsExt::custom_flags`.
pub(super) fn flags(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}
