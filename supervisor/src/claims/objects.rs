//! A scratch repository of our own, in which claims are made into commits. Nothing in it is precious.
//!
//! Objects are written in process with libgit2, so that a host that cannot fork can still prepare them, and no checkout
//! of a person or a worker is ever touched.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime},
};

use git2::{Oid, Repository, RepositoryInitOptions, Signature, Time};
use tempfile::TempDir;

use super::failure::GitError;

const NAME: &str = "lanewarden-heartbeat";
const EMAIL: &str = "heartbeat@lanewarden.invalid";
const REPOSITORY: &str = "claims.git";
const SNAPSHOT_PREFIX: &str = "claims-snapshot-";
/// Objects and snapshots of this age are of no use to anybody.
const STALE: Duration = Duration::from_hours(24);
/// Commits between two sweeps.
const SWEEP_EVERY: u32 = 256;

/// The scratch repository `claims.git` below the state directory.
#[derive(Debug)]
pub struct Scratch {
    state_dir: PathBuf,
    path: PathBuf,
    written: AtomicU32,
}

impl Scratch {
    /// Opens the scratch repository, making it anew if it is absent or damaged. What crashed processes left behind is
    /// swept.
    ///
    /// # Errors
    /// [`GitError::Scratch`] if it can be neither opened nor made.
    pub fn open(state_dir: &Path) -> Result<Self, GitError> {
        let state_dir = std::path::absolute(state_dir)
            .map_err(|source| scratch_error("find", state_dir, source))?;
        let path = state_dir.join(REPOSITORY);
        let scratch = Self { state_dir, path, written: AtomicU32::new(0) };
        if scratch.repository().is_err() {
            scratch.recreate()?;
        }
        scratch.sweep();
        Ok(scratch)
    }

    /// The repository's git directory, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a commit without parents on the empty tree and returns its id, 40 lower-case hex digits.
    ///
    /// `ts`, seconds since 1970 UTC, is the date of author and committer; equal messages of one second are one object.
    /// The commit is read back before its id is told: an id that stands for nothing would turn a push into something else.
    ///
    /// # Errors
    /// [`GitError::Scratch`] if it cannot be written even after the repository was made anew.
    pub fn write_commit(&self, message: &str, ts: u64) -> Result<String, GitError> {
        if self.written.fetch_add(1, Ordering::Relaxed) % SWEEP_EVERY == SWEEP_EVERY - 1 {
            self.sweep();
        }
        let written = self.try_write(message, ts).or_else(|error| {
            tracing::debug!(%error, path = %self.path.display(), "scratch repository is made anew");
            self.recreate()?;
            self.try_write(message, ts).map_err(|source| self.error("write to", source))
        })?;
        Ok(written.to_string())
    }

    /// Whether the commit is in the repository.
    #[must_use]
    pub fn contains(&self, oid: &str) -> bool {
        let found =
            self.repository().and_then(|repo| Ok(repo.find_commit(Oid::from_str(oid)?)?.id()));
        found.is_ok_and(|id| id.to_string() == oid)
    }

    /// Removes the repository and makes it anew. Objects that were written but not pushed are lost.
    ///
    /// # Errors
    /// [`GitError::Scratch`] if the directory cannot be removed or made.
    pub fn recreate(&self) -> Result<(), GitError> {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&self.path),
            Ok(_) => fs::remove_file(&self.path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(|source| self.error("remove", source))?;
        init(&self.path).map_err(|source| self.error("make", source))
    }

    /// An empty repository of its own for one snapshot; removed when dropped.
    pub(super) fn snapshot_repository(&self) -> Result<TempDir, GitError> {
        let dir = tempfile::Builder::new()
            .prefix(SNAPSHOT_PREFIX)
            .suffix(".git")
            .tempdir_in(&self.state_dir)
            .map_err(|source| self.error("make a snapshot beside", source))?;
        init(dir.path()).map_err(|source| scratch_error("make", dir.path(), source))?;
        Ok(dir)
    }

    fn repository(&self) -> Result<Repository, git2::Error> {
        let repo = Repository::open_bare(&self.path)?;
        // The git program refuses a repository whose HEAD makes no sense; libgit2 does not look.
        repo.find_reference("HEAD")?;
        Ok(repo)
    }

    fn try_write(&self, message: &str, ts: u64) -> Result<Oid, git2::Error> {
        let repo = self.repository()?;
        let tree = repo.find_tree(repo.treebuilder(None)?.write()?)?;
        let time = Time::new(i64::try_from(ts).unwrap_or(i64::MAX), 0);
        let who = Signature::new(NAME, EMAIL, &time)?;
        let oid = repo.commit(None, &who, &who, message, &tree, &[])?;
        // Opened anew so that nothing is answered from the cache.
        if self.repository()?.find_commit(oid)?.message_raw_bytes() == message.as_bytes() {
            Ok(oid)
        } else {
            Err(git2::Error::from_str("the commit reads back differently"))
        }
    }

    fn error(
        &self,
        doing: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> GitError {
        GitError::Scratch { doing, path: self.path.clone(), source: source.into() }
    }

    /// Removes old loose objects and forgotten snapshots, by age, so that a neighbour's work in hand is left alone.
    /// Best effort: what cannot be removed today is tried again.
    fn sweep(&self) {
        #[expect(
            clippy::disallowed_methods,
            reason = "compared with file times, decides nothing else"
        )]
        let Some(limit) = SystemTime::now().checked_sub(STALE) else { return };
        let is_old = |entry: &fs::DirEntry| {
            entry.metadata().and_then(|meta| meta.modified()).is_ok_and(|time| time < limit)
        };
        for entry in entries(&self.state_dir).filter(is_old) {
            if entry.file_name().to_string_lossy().starts_with(SNAPSHOT_PREFIX) {
                fs::remove_dir_all(entry.path()).ok();
            }
        }
        for fan in entries(&self.path.join("objects")).filter(|entry| entry.file_name().len() == 2)
        {
            for object in entries(&fan.path()).filter(is_old) {
                fs::remove_file(object.path()).ok();
            }
        }
    }
}

fn entries(dir: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok)
}

fn init(path: &Path) -> Result<(), git2::Error> {
    let mut options = RepositoryInitOptions::new();
    options.bare(true).mkpath(true).external_template(false).initial_head("scratch");
    Repository::init_opts(path, &options).map(drop)
}

fn scratch_error(
    doing: &'static str,
    path: &Path,
    source: impl Into<Box<dyn Error + Send + Sync>>,
) -> GitError {
    GitError::Scratch { doing, path: path.to_owned(), source: source.into() }
}
