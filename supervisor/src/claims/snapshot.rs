//! Reads whole namespaces of the remote in one connection: names, ids and messages together, so that nothing is torn.
//!
//! Each snapshot has an empty repository of its own, which is removed afterwards. No checkout, no shared ref and no
//! `FETCH_HEAD` is touched, and nothing accumulates.

#![expect(
    clippy::disallowed_methods,
    reason = "the search for unreadable refs has a deadline of its own"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use git2::{ObjectType, Repository};
use tokio::time::Instant;

use super::{
    failure::{GitError, GitErrorKind},
    git::Git,
    objects::Scratch,
};

/// Largest commit that is read, bytes. A claim has a few hundred.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// Connections that the search for unreadable refs may cost.
const SEARCH_CONNECTIONS: usize = 64;
/// The search may take this many times the deadline of one call.
const SEARCH_DEADLINES: u32 = 3;

/// Why the record behind a ref cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The ref is listed and its object cannot be fetched.
    #[error("its object cannot be fetched ({0})")]
    NotFetched(GitErrorKind),
    /// A tag, a tree or a blob.
    #[error("its object is not a commit")]
    NotACommit,
    /// Larger than [`MESSAGE_MAX`].
    #[error("its object is larger than {MESSAGE_MAX} bytes")]
    TooLarge,
    /// The object is damaged.
    #[error("its object is damaged")]
    Damaged,
    /// The ref's name is not UTF-8; the name given is an approximation and must not be written to.
    #[error("its name is not text")]
    NameNotText,
}

impl Unreadable {
    /// Whether the look itself ended early, by deadline, credentials or the like, and not because of this object.
    #[must_use]
    pub const fn is_cut_short(&self) -> bool {
        match self {
            Self::NotFetched(kind) => is_final(*kind),
            Self::NotACommit | Self::TooLarge | Self::Damaged | Self::NameNotText => false,
        }
    }
}

/// A ref of the remote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteRef {
    /// The full name.
    pub name: String,
    /// The object, 40 lower-case hex digits.
    pub oid: String,
    /// The commit's whole message.
    pub message: Result<Vec<u8>, Unreadable>,
}

/// Reads every ref below `prefixes`, sorted by name. A prefix that ends in `/` stands for everything below it; any
/// other is the full name of one ref, which may be absent.
///
/// If the one fetch fails, because a single poisoned object makes the remote give up, the refs are listed and fetched by
/// halves until the bad ones stand alone as [`Unreadable`].
///
/// # Errors
/// [`GitError`] if git could not be run or the remote not be read. An empty list means that nothing is there, never that
/// nothing could be read.
pub async fn snapshot(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    prefixes: &[&str],
) -> Result<Vec<RemoteRef>, GitError> {
    git.git_version().await?;
    for prefix in prefixes {
        check_prefix(prefix)?;
    }
    let dir = scratch.snapshot_repository()?;
    let patterns: Vec<u8> =
        prefixes.iter().flat_map(|prefix| format!("+{prefix}*:{prefix}*\n").into_bytes()).collect();
    let missing = match fetch(git, dir.path(), url, &patterns).await {
        Ok(()) => BTreeMap::new(),
        Err(error) if is_final(error.kind()) => return Err(error),
        Err(_) => search(git, dir.path(), url, prefixes).await?,
    };
    let wanted: Vec<String> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
    let path: PathBuf = dir.path().to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let read = read_refs(&path, &wanted);
        drop(dir);
        read
    });
    let mut refs = read
        .await
        .map_err(|source| scratch_error(scratch, source))?
        .map_err(|source| scratch_error(scratch, source))?;
    let known: BTreeSet<String> = refs.iter().map(|found| found.name.clone()).collect();
    refs.extend(missing.into_values().filter(|bad| !known.contains(&bad.name)));
    refs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(refs)
}

fn scratch_error(
    scratch: &Scratch,
    source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> GitError {
    GitError::Scratch {
        doing: "read a snapshot beside",
        path: scratch.path().to_owned(),
        source: source.into(),
    }
}

fn check_prefix(prefix: &str) -> Result<(), GitError> {
    let name = prefix.strip_suffix('/').unwrap_or(prefix);
    // `refs/x` is valid as a name and, with the slash, as a namespace; `refs/` alone is neither.
    if name.starts_with("refs/") && git2::Reference::is_valid_name(name) {
        Ok(())
    } else {
        let value = prefix.chars().take(200).collect();
        Err(GitError::BadRequest { what: "a namespace below refs/", value })
    }
}

fn matches_prefix(name: &[u8], prefix: &str) -> bool {
    if prefix.ends_with('/') {
        name.starts_with(prefix.as_bytes())
    } else {
        name == prefix.as_bytes()
    }
}

/// Errors that no smaller fetch can avoid.
const fn is_final(kind: GitErrorKind) -> bool {
    match kind {
        GitErrorKind::MissingProgram
        | GitErrorKind::Timeout
        | GitErrorKind::UnsupportedVersion
        | GitErrorKind::BadRequest
        | GitErrorKind::Auth => true,
        GitErrorKind::TooLarge
        | GitErrorKind::Unreachable
        | GitErrorKind::LeaseRefused
        | GitErrorKind::Rejected
        | GitErrorKind::Protocol
        | GitErrorKind::Local => false,
    }
}

async fn fetch(git: &Git, dir: &Path, url: &str, refspecs: &[u8]) -> Result<(), GitError> {
    const ARGS: &[&str] = &[
        "fetch",
        "--quiet",
        "--no-tags",
        "--no-write-fetch-head",
        "--no-auto-maintenance",
        "--stdin",
        "--",
    ];
    let args: Vec<&str> = ARGS.iter().copied().chain([url]).collect();
    git.run(&args, Some(dir), refspecs).await.map(drop)
}

/// Name and object id.
pub(super) type Listed = (Vec<u8>, String);

/// Lists the refs, fetches them by halves and returns those that cannot be fetched.
async fn search(
    git: &Git,
    dir: &Path,
    url: &str,
    prefixes: &[&str],
) -> Result<BTreeMap<Vec<u8>, RemoteRef>, GitError> {
    let patterns: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}*")).collect();
    let listing = list(git, dir, url, &patterns).await?;
    // Patterns match the tails of names, so that the exact prefix is looked at here.
    let listed: Vec<Listed> = listing
        .into_iter()
        .filter(|(name, _)| prefixes.iter().any(|prefix| matches_prefix(name, prefix)))
        .collect();
    let mut bad = BTreeMap::new();
    let mut left: Vec<&[Listed]> = vec![&listed];
    let end = Instant::now() + git.deadline() * SEARCH_DEADLINES;
    let mut connections = 0;
    while let Some(part) = left.pop() {
        if part.is_empty() {
            continue;
        }
        let kind = if connections < SEARCH_CONNECTIONS && Instant::now() < end {
            connections += 1;
            let refspecs: Vec<u8> = part.iter().flat_map(|(name, _)| refspec(name)).collect();
            match fetch(git, dir, url, &refspecs).await {
                Ok(()) => continue,
                Err(error) => error.kind(),
            }
        } else {
            GitErrorKind::Timeout
        };
        if part.len() > 1 && !is_final(kind) {
            let (head, tail) = part.split_at(part.len() / 2);
            left.extend([tail, head]);
            continue;
        }
        for (name, oid) in part {
            let message = Err(Unreadable::NotFetched(kind));
            let shown = String::from_utf8_lossy(name).into_owned();
            bad.insert(name.clone(), RemoteRef { name: shown, oid: oid.clone(), message });
        }
    }
    Ok(bad)
}

/// Lists refs of the remote. Patterns match the tails of names: the answer may hold more than was meant.
pub(super) async fn list(
    git: &Git,
    dir: &Path,
    url: &str,
    patterns: &[String],
) -> Result<Vec<Listed>, GitError> {
    let args: Vec<&str> = ["ls-remote", "--quiet", "--", url]
        .into_iter()
        .chain(patterns.iter().map(String::as_str))
        .collect();
    Ok(parse_listing(&git.run(&args, Some(dir), b"").await?.stdout))
}

fn refspec(name: &[u8]) -> Vec<u8> {
    [b"+", name, b":", name, b"\n"].concat()
}

/// Reads `git ls-remote`: `oid TAB name`. Lines of another form, and the peeled entries of tags, are skipped.
fn parse_listing(stdout: &[u8]) -> Vec<Listed> {
    stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let at = line.iter().position(|byte| *byte == b'\t')?;
            let (oid, name) = line.split_at_checked(at)?;
            let oid = std::str::from_utf8(oid).ok().filter(|oid| super::push::is_oid(oid))?;
            let name = name.strip_prefix(b"\t")?;
            (!name.ends_with(b"^{}")).then(|| (name.to_vec(), oid.to_owned()))
        })
        .collect()
}

fn read_refs(dir: &Path, prefixes: &[String]) -> Result<Vec<RemoteRef>, git2::Error> {
    let repo = Repository::open_bare(dir)?;
    let odb = repo.odb()?;
    let mut found = Vec::new();
    for reference in repo.references()? {
        let reference = reference?;
        let Some(oid) = reference.target() else { continue };
        let name = reference.name_bytes();
        if !prefixes.iter().any(|prefix| matches_prefix(name, prefix)) {
            continue;
        }
        let message = if std::str::from_utf8(name).is_err() {
            Err(Unreadable::NameNotText)
        } else {
            match odb.read_header(oid) {
                Err(_) => Err(Unreadable::Damaged),
                Ok((size, _)) if size > MESSAGE_MAX => Err(Unreadable::TooLarge),
                Ok((_, kind)) if kind != ObjectType::Commit => Err(Unreadable::NotACommit),
                Ok(_) => repo
                    .find_commit(oid)
                    .map(|commit| commit.message_raw_bytes().to_vec())
                    .map_err(|_| Unreadable::Damaged),
            }
        };
        let name = String::from_utf8_lossy(name).into_owned();
        found.push(RemoteRef { name, oid: oid.to_string(), message });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::{fs, net::TcpListener, time::Duration};

    use proptest::prelude::*;

    use super::{
        super::{
            GitOptions,
            testing::{NAMESPACES, World},
        },
        *,
    };

    fn named<'a>(refs: &'a [RemoteRef], name: &str) -> &'a RemoteRef {
        refs.iter().find(|found| found.name == name).unwrap_or_else(|| panic!("{name}: {refs:?}"))
    }

    #[tokio::test]
    async fn exactly_the_namespaces_asked_for_are_read() {
        let world = World::new();
        assert_eq!(world.snapshot().await, []);
        let lane = world.plant("refs/lane-claims/box-a/900", "claim issue=900\n\nmore");
        world.plant("refs/machine-claims/old", "claim issue=7");
        world.plant("refs/heartbeats/box-a", "heartbeat issue=7");
        world.plant("refs/heads/refs/lane-claims/box-a/901", "no");
        world.plant("refs/lane-claims-not/box-a/1", "no");
        let refs = world.snapshot().await;
        let names: Vec<_> = refs.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["refs/lane-claims/box-a/900", "refs/machine-claims/old"]);
        assert_eq!(refs[0].oid, lane);
        assert_eq!(refs[0].message.as_deref(), Ok(b"claim issue=900\n\nmore".as_slice()));
    }

    #[tokio::test]
    async fn one_exact_name_is_read_and_may_be_absent() {
        let world = World::new();
        world.plant("refs/claims/issue-70", "claim issue=70");
        let only = ["refs/claims/issue-7"];
        let read = || snapshot(&world.git, &world.scratch, &world.url, &only);
        assert_eq!(read().await.unwrap(), []);
        let oid = world.plant("refs/claims/issue-7", "claim issue=7");
        let refs = read().await.unwrap();
        assert_eq!((refs.len(), &refs[0].oid), (1, &oid));
    }

    #[tokio::test]
    async fn what_is_no_claim_commit_is_unreadable_and_named() {
        let world = World::new();
        let good = world.plant("refs/lane-claims/box-a/1", "claim issue=1");
        let tag =
            format!("object {good}\ntype commit\ntag t\ntagger x <x@x> 1 +0000\n\nclaim issue=2\n");
        world.plant_raw("refs/lane-claims/box-a/2", ObjectType::Tag, tag.as_bytes());
        world.plant_raw("refs/lane-claims/box-a/3", ObjectType::Blob, b"claim issue=3");
        world.plant("refs/lane-claims/box-a/4", &"x".repeat(MESSAGE_MAX + 1));
        let refs = world.snapshot().await;
        let messages: Vec<_> = refs.iter().map(|found| found.message.clone()).collect();
        let expected = [
            Ok(b"claim issue=1".to_vec()),
            Err(Unreadable::NotACommit),
            Err(Unreadable::NotACommit),
            Err(Unreadable::TooLarge),
        ];
        assert_eq!(messages, expected);
    }

    #[tokio::test]
    async fn a_poisoned_ref_stands_alone_beside_healthy_ones() {
        let world = World::new();
        for issue in 1..=9 {
            world
                .plant(&format!("refs/lane-claims/box-a/{issue}"), &format!("claim issue={issue}"));
        }
        let bad = world.plant("refs/lane-claims/box-b/5", "claim issue=5 poisoned");
        world.poison(&bad);
        let refs = world.snapshot().await;
        assert_eq!(refs.len(), 10);
        let poisoned = named(&refs, "refs/lane-claims/box-b/5");
        assert_eq!(poisoned.oid, bad);
        assert!(matches!(poisoned.message, Err(Unreadable::NotFetched(_))), "{poisoned:?}");
        assert_eq!(refs.iter().filter(|found| found.message.is_ok()).count(), 9);
    }

    #[tokio::test]
    async fn an_object_that_would_fill_the_disk_stands_alone() {
        let options = GitOptions { file_limit: 1 << 20, ..GitOptions::default() };
        let world = World::with(options, &[]);
        world.plant("refs/lane-claims/box-a/1", "claim issue=1");
        // Not compressible: a pseudo-random sequence.
        let mut state = 1_u64;
        let noise: Vec<u8> = (0..(3 << 20))
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                state.to_be_bytes()[0]
            })
            .collect();
        world.plant_raw("refs/lane-claims/box-a/2", ObjectType::Blob, &noise);
        let refs = world.snapshot().await;
        assert!(named(&refs, "refs/lane-claims/box-a/1").message.is_ok());
        let large = named(&refs, "refs/lane-claims/box-a/2");
        assert!(matches!(large.message, Err(Unreadable::NotFetched(_))), "{large:?}");
    }

    #[tokio::test]
    async fn a_remote_that_cannot_be_read_is_never_an_empty_one() {
        let world = World::new();
        let read = snapshot(&world.git, &world.scratch, "/nowhere/r.git", NAMESPACES).await;
        assert_eq!(read.unwrap_err().kind(), GitErrorKind::Unreachable);
        for bad in ["refs/", "refs", "--all", "refs/a/*", "refs//a/", "HEAD"] {
            let read = snapshot(&world.git, &world.scratch, &world.url, &[bad]).await;
            assert_eq!(read.unwrap_err().kind(), GitErrorKind::BadRequest, "{bad}");
        }
        world.assert_tidy();
    }

    #[tokio::test]
    async fn a_remote_that_never_answers_costs_the_deadline_and_leaves_no_process() {
        let options = GitOptions { deadline: Duration::from_millis(600), ..GitOptions::default() };
        let world = World::with(options, &[]);
        // The kernel accepts the connection; nobody reads it.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("git://{}/r.git", silent.local_addr().unwrap());
        let start = Instant::now();
        let read = snapshot(&world.git, &world.scratch, &url, NAMESPACES).await;
        assert_eq!(read.unwrap_err().kind(), GitErrorKind::Timeout);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        world.assert_no_process_left();
        world.assert_tidy();
    }

    #[tokio::test]
    async fn a_checkout_named_by_the_environment_is_not_touched() {
        let elsewhere = tempfile::tempdir().unwrap();
        let checkout = Repository::init(elsewhere.path()).unwrap();
        let look = || {
            let mut seen: Vec<_> = fs::read_dir(checkout.path())
                .unwrap()
                .map(|entry| entry.unwrap())
                .map(|entry| (entry.file_name(), entry.metadata().unwrap().modified().unwrap()))
                .collect();
            seen.sort();
            (seen, fs::read_dir(checkout.path().join("refs")).unwrap().count())
        };
        let before = look();
        let vars = [("GIT_DIR", checkout.path()), ("GIT_WORK_TREE", elsewhere.path())];
        let world = World::with(GitOptions::default(), &vars);
        world.plant("refs/lane-claims/box-a/1", "claim issue=1");
        assert_eq!(world.snapshot().await.len(), 1);
        let oid = world.scratch.write_commit("x", 1).unwrap();
        let update = super::super::testing::update("refs/lane-claims/box-a/2", Some(&oid), None);
        world.push(&[update]).await;
        assert_eq!(look(), before);
    }

    proptest! {
        #[test]
        fn any_listing_is_read(bytes in any::<Vec<u8>>(), names in proptest::collection::vec("[^\n\t]{1,20}", 0..5)) {
            prop_assert!(parse_listing(&bytes).len() <= bytes.len());
            let text: String = names.iter().map(|name| format!("{}\t{name}\n", "a1".repeat(20))).collect();
            let kept = names.iter().filter(|name| !name.ends_with("^{}")).count();
            prop_assert_eq!(parse_listing(text.as_bytes()).len(), kept);
        }
    }
}
