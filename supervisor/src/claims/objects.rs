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
        let written = self.write_commits(&[message.to_owned()], ts)?;
        written.into_iter().next().ok_or_else(|| {
            self.error(
                "write to",
                git2::Error::from_str("one commit was asked for and none written"),
            )
        })
    }

    /// As [`Scratch::write_commit`], a commit for each message, in their order. Opening the repository costs as much as
    /// writing a commit.
    ///
    /// # Errors
    /// As there; then none of them may be used.
    pub fn write_commits(&self, messages: &[String], ts: u64) -> Result<Vec<String>, GitError> {
        let count = u32::try_from(messages.len()).unwrap_or(SWEEP_EVERY);
        let before = self.written.fetch_add(count, Ordering::Relaxed);
        if before % SWEEP_EVERY + count >= SWEEP_EVERY {
            self.sweep();
        }
        let written = self.try_write(messages, ts).or_else(|error| {
            tracing::debug!(%error, path = %self.path.display(), "scratch repository is made anew");
            self.recreate()?;
            self.try_write(messages, ts).map_err(|source| self.error("write to", source))
        })?;
        Ok(written.iter().map(Oid::to_string).collect())
    }

    /// Whether the commit is in the repository.
    #[must_use]
    pub fn contains(&self, oid: &str) -> bool {
        self.first_absent(&[oid]).is_none()
    }

    /// The first of these that is not the id of a commit in the repository.
    #[must_use]
    pub(super) fn first_absent<'a>(&self, oids: &[&'a str]) -> Option<&'a str> {
        let Ok(repo) = self.repository() else { return oids.first().copied() };
        let is_there = |oid: &str| {
            let found = Oid::from_str(oid).and_then(|id| Ok(repo.find_commit(id)?.id()));
            found.is_ok_and(|id| id.to_string() == oid)
        };
        oids.iter().copied().find(|oid| !is_there(oid))
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

    fn try_write(&self, messages: &[String], ts: u64) -> Result<Vec<Oid>, git2::Error> {
        let repo = self.repository()?;
        let tree = repo.find_tree(repo.treebuilder(None)?.write()?)?;
        let time = Time::new(i64::try_from(ts).unwrap_or(i64::MAX), 0);
        let who = Signature::new(NAME, EMAIL, &time)?;
        let mut written = Vec::with_capacity(messages.len());
        for message in messages {
            written.push(repo.commit(None, &who, &who, message, &tree, &[])?);
        }
        // Opened anew so that nothing is answered from the cache.
        let repo = self.repository()?;
        for (oid, message) in written.iter().zip(messages) {
            if repo.find_commit(*oid)?.message_raw_bytes() != message.as_bytes() {
                return Err(git2::Error::from_str("the commit reads back differently"));
            }
        }
        Ok(written)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_no_parent_no_files_and_its_dates_are_ts() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(dir.path()).unwrap();
        let oid = scratch.write_commit("claim issue=1", 1_700_000_000).unwrap();
        let repo = Repository::open_bare(scratch.path()).unwrap();
        let commit = repo.find_commit(Oid::from_str(&oid).unwrap()).unwrap();
        assert_eq!(commit.parent_count(), 0);
        assert_eq!(commit.tree_id().to_string(), "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
        assert_eq!(commit.message_bytes(), b"claim issue=1");
        for (who, time) in [(commit.author(), commit.time()), (commit.committer(), commit.time())] {
            assert_eq!(who.name_bytes(), NAME.as_bytes());
            assert_eq!(who.when().seconds(), 1_700_000_000);
            assert_eq!((time.seconds(), time.offset_minutes()), (1_700_000_000, 0));
        }
        assert_eq!(scratch.write_commit("claim issue=1", 1_700_000_000).unwrap(), oid);
        assert_ne!(scratch.write_commit("claim issue=1", 1_700_000_001).unwrap(), oid);
        assert!(
            scratch.contains(&oid) && !scratch.contains("") && !scratch.contains(&"1".repeat(40))
        );
    }

    #[test]
    fn damage_is_survived() {
        type Damage = fn(&Path);
        let damages: [(&str, Damage); 6] = [
            ("removed", |path| fs::remove_dir_all(path).unwrap()),
            ("a file in its place", |path| {
                fs::remove_dir_all(path).unwrap();
                fs::write(path, b"x").unwrap();
            }),
            ("no HEAD", |path| fs::remove_file(path.join("HEAD")).unwrap()),
            ("bad HEAD", |path| fs::write(path.join("HEAD"), b"\0\0\0").unwrap()),
            ("bad config", |path| fs::write(path.join("config"), b"[[[").unwrap()),
            ("no objects", |path| fs::remove_dir_all(path.join("objects")).unwrap()),
        ];
        for (name, damage) in damages {
            let dir = tempfile::tempdir().unwrap();
            let scratch = Scratch::open(dir.path()).unwrap();
            scratch.write_commit("before", 1).unwrap();
            damage(scratch.path());
            let oid = scratch.write_commit("after", 2).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(scratch.contains(&oid), "{name}");
            damage(scratch.path());
            let again = Scratch::open(dir.path()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert!(again.contains(&again.write_commit("again", 3).unwrap()), "{name}");
        }
    }

    #[test]
    fn a_truncated_object_of_a_crash_is_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(dir.path()).unwrap();
        let oid = scratch.write_commit("same", 1).unwrap();
        let (fan, rest) = oid.split_at(2);
        let path = scratch.path().join("objects").join(fan).join(rest);
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"").unwrap();
        assert!(!scratch.contains(&oid));
        assert_eq!(scratch.write_commit("same", 1).unwrap(), oid);
        assert!(scratch.contains(&oid));
    }

    #[test]
    fn only_the_old_is_swept() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::open(dir.path()).unwrap();
        let (old, new) =
            (scratch.write_commit("old", 1).unwrap(), scratch.write_commit("new", 2).unwrap());
        let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        let (fan, rest) = old.split_at(2);
        let object = fs::File::open(scratch.path().join("objects").join(fan).join(rest)).unwrap();
        object.set_modified(long_ago).unwrap();
        let forgotten = dir.path().join("claims-snapshot-x.git");
        let stranger = dir.path().join("stranger");
        for path in [&forgotten, &stranger] {
            fs::create_dir(path).unwrap();
            fs::File::open(path).unwrap().set_modified(long_ago).unwrap();
        }
        let current = scratch.snapshot_repository().unwrap();
        let scratch = Scratch::open(dir.path()).unwrap();
        assert!(!scratch.contains(&old) && scratch.contains(&new));
        assert!(!forgotten.exists() && stranger.exists() && current.path().exists());
    }
}
