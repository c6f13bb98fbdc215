//! Looking at a few refs: their names alone, or one of them with its message.

use super::{
    failure::GitError,
    git::Git,
    objects::Scratch,
    snapshot::{RemoteRef, list, snapshot},
};

/// Lists refs in one connection without fetching anything: those whose full name is in `exact` or starts with one of
/// `starts`. Name and object id each.
///
/// Works with every git. The patterns of `git ls-remote` match the tails of names, so the answer is filtered here.
///
/// # Errors
/// [`GitError`] if the remote could not be read. An empty list means that nothing is there.
pub async fn listing(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    exact: &[&str],
    starts: &[&str],
) -> Result<Vec<(String, String)>, GitError> {
    let patterns: Vec<String> = exact
        .iter()
        .map(|name| (*name).to_owned())
        .chain(starts.iter().map(|start| format!("{start}*")))
        .collect();
    let listed = list(git, scratch.path(), url, &patterns).await?;
    Ok(listed
        .into_iter()
        .map(|(name, oid)| (String::from_utf8_lossy(&name).into_owned(), oid))
        .filter(|(name, _)| {
            exact.contains(&name.as_str()) || starts.iter().any(|start| name.starts_with(start))
        })
        .collect())
}

/// Reads one ref with its message in one connection; `None` if it is not there.
///
/// # Errors
/// As [`snapshot`].
pub async fn read_one(
    git: &Git,
    scratch: &Scratch,
    url: &str,
    name: &str,
) -> Result<Option<RemoteRef>, GitError> {
    let found = snapshot(git, scratch, url, &[name]).await?;
    Ok(found.into_iter().find(|found| found.name == name))
}

#[cfg(test)]
mod tests {
    use super::{super::testing::World, *};

    #[tokio::test]
    async fn tails_and_longer_names_do_not_count() {
        let world = World::new();
        for name in [
            "refs/claims/issue-7",
            "refs/claims/issue-70",
            "refs/heads/refs/claims/issue-7",
            "refs/heads/issue-7-a",
            "refs/heads/issue-70-a",
            "refs/heads/feat/issue-7-y",
        ] {
            world.plant(name, "claim issue=7 machine=a actor=b");
        }
        let (exact, starts) = (["refs/claims/issue-7"], ["refs/heads/issue-7-"]);
        let found = listing(&world.git, &world.scratch, &world.url, &exact, &starts).await.unwrap();
        let mut names: Vec<_> = found.into_iter().map(|(name, _)| name).collect();
        names.sort();
        assert_eq!(names, ["refs/claims/issue-7", "refs/heads/issue-7-a"]);
        let one =
            read_one(&world.git, &world.scratch, &world.url, "refs/claims/issue-7").await.unwrap();
        assert!(one.unwrap().message.is_ok());
        let none = read_one(&world.git, &world.scratch, &world.url, "refs/claims/issue-8").await;
        assert_eq!(none.unwrap(), None);
    }
}
