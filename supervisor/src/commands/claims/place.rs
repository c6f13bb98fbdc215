//! Where claims live, seen from wherever the command is typed: environment, checkout and configuration.

use std::{
    io::Write,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use super::super::Failure;
use crate::{
    claims::{Git, GitOptions, HttpsToken, Scratch, has_password, redact_url, sanitise},
    config::{Config, Env, search_path},
    exit_code::{CONFIG, FAILED, USAGE},
    forge::OpenPulls,
};

/// The remote's name where none is given.
const DEFAULT_REMOTE: &str = "origin";

/// What is known before the remote is asked anything.
#[derive(Debug)]
pub(in crate::commands) struct Surroundings {
    pub(in crate::commands) env: Env,
    pub(in crate::commands) config: Option<Config>,
}

impl Surroundings {
    /// Takes the environment and the configuration, if there is one. A command that is told its remote needs none; one
    /// that was named explicitly must be right.
    pub(in crate::commands) fn take(path: Option<&Path>, remote: &[&str]) -> Result<Self, Failure> {
        let env = Env::current();
        let explicit = path.is_some() || env.var("LANEWARDEN_CONFIG").is_some();
        let told = remote.iter().any(|name| env.var(name).is_some());
        let path = search_path(path, &env);
        let config = if explicit || path.try_exists().unwrap_or(false) {
            match Config::load(&path, &env) {
                Ok(config) => Some(config),
                Err(error) if told && !explicit => {
                    tracing::warn!(path = %path.display(), %error, "configuration is not used");
                    None
                }
                Err(error) => return Err(Failure::new(CONFIG, error)),
            }
        } else {
            None
        };
        Ok(Self { env, config })
    }

    /// The first of these variables that is set.
    pub(in crate::commands) fn first(&self, names: &[&str]) -> Option<&str> {
        names.iter().find_map(|name| self.env.var(name))
    }
}

impl Surroundings {
    /// Who knows the open pull requests: the hook of the environment, else the configuration.
    pub(in crate::commands) fn open_pulls(&self, deadline: Duration) -> OpenPulls {
        let forge = self.config.as_ref().and_then(|config| config.forge.as_ref());
        OpenPulls::new(self.env.var("CLAIM_OPEN_PR_CMD"), forge, deadline)
    }
}

/// The remote and what is needed to talk to it. The scratch directory goes with it.
#[derive(Debug)]
pub(in crate::commands) struct Place {
    pub(in crate::commands) git: Git,
    pub(in crate::commands) scratch: Scratch,
    pub(in crate::commands) url: String,
    /// Removed when dropped.
    _dir: TempDir,
}

/// The remote as it is shown: one harmless token without secrets.
pub(in crate::commands) fn shown(name: &str) -> String {
    let name = redact_url(name);
    let plain = |c: char| c.is_ascii_graphic() && c != '=';
    if !name.is_empty() && name.chars().all(plain) { name } else { sanitise(&name) }
}

/// What the remote is called: by one of these variables, by the configuration, else `origin`.
pub(in crate::commands) fn remote_name(around: &Surroundings, variables: &[&str]) -> String {
    let configured = || around.config.as_ref()?.remote.as_ref().map(|remote| remote.url.clone());
    around
        .first(variables)
        .map(str::to_owned)
        .or_else(configured)
        .unwrap_or_else(|| DEFAULT_REMOTE.to_owned())
}

impl Place {
    /// Makes ready to talk to the remote of that name, URL or path.
    pub(in crate::commands) async fn open(
        around: &Surroundings,
        name: &str,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(FAILED, error);
        let dir = tempfile::Builder::new()
            .prefix("lanewarden-claims-")
            .tempdir()
            .map_err(|error| failed(&format!("making a scratch directory: {error}")))?;
        let scratch = Scratch::open(dir.path()).map_err(|error| failed(&error))?;
        let remote = around.config.as_ref().and_then(|config| config.remote.as_ref());
        if let Some(remote) = remote.filter(|remote| remote.url == name) {
            let url = remote.url.clone();
            return Ok(Self { git: crate::run::git(remote), scratch, url, _dir: dir });
        }
        let deadline = remote.map_or(Duration::from_secs(20), |remote| remote.deadline);
        let url = match resolve(name).await {
            Some(url) => url,
            None => {
                let configured = remote.filter(|_| name == DEFAULT_REMOTE);
                let Some(remote) = configured else {
                    return Err(Failure::new(
                        FAILED,
                        format!(
                            "the checkout here has no git remote {:?}; run this in a checkout that has it, name a URL, or configure [remote]",
                            shown(name)
                        ),
                    ));
                };
                let url = remote.url.clone();
                return Ok(Self { git: crate::run::git(remote), scratch, url, _dir: dir });
            }
        };
        let (url, https_token) = without_password(&url, dir.path())?;
        let options = GitOptions {
            deadline,
            ssh_key_file: remote.and_then(|remote| remote.ssh_key_file.clone()),
            known_hosts_file: remote.and_then(|remote| remote.known_hosts_file.clone()),
            https_token,
            ..GitOptions::default()
        };
        Ok(Self { git: Git::new(options), scratch, url, _dir: dir })
    }
}

/// The URL or absolute path that a remote is given by, or that a remote of that name has in the checkout here.
async fn resolve(name: &str) -> Option<String> {
    let here = std::env::current_dir().ok()?;
    if !is_local(name) || name.starts_with(['/', '.']) {
        return Some(absolute(name, &here));
    }
    let git = Git::new(GitOptions { deadline: Duration::from_secs(10), ..GitOptions::default() });
    let here_text = here.to_str()?;
    let ask = async |words: &[&str]| -> Option<String> {
        let args: Vec<&str> = ["-C", here_text].into_iter().chain(words.iter().copied()).collect();
        let answer = git.run(&args, None, b"").await.ok()?;
        let text = String::from_utf8(answer.stdout).ok()?;
        Some(text.lines().next()?.to_owned()).filter(|line| !line.is_empty())
    };
    // Claims are written where the checkout pushes to; a remote that is read elsewhere is the same repository.
    let Some(url) = ask(&["remote", "get-url", "--push", "--", name]).await else {
        // As git itself does, a name that is no remote's may be a path.
        return here.join(name).is_dir().then(|| absolute(name, &here));
    };
    if is_local(&url) {
        let top = ask(&["rev-parse", "--show-toplevel"]).await.map_or(here, PathBuf::from);
        return Some(absolute(&url, &top));
    }
    Some(url)
}

/// A path: no scheme, and no `host:` before the first slash.
fn is_local(url: &str) -> bool {
    let head = url.split('/').next().unwrap_or_default();
    !head.contains(':')
}

/// Paths are made absolute, because git runs in `/`.
fn absolute(url: &str, base: &Path) -> String {
    if is_local(url) && !url.starts_with('/') {
        base.join(url).to_string_lossy().into_owned()
    } else {
        url.to_owned()
    }
}

/// Takes a password out of an https URL and puts it into a file that only we can read: git would hand the URL to its
/// helpers as an argument, for all of the box to read.
fn without_password(url: &str, dir: &Path) -> Result<(String, Option<HttpsToken>), Failure> {
    if url.starts_with('-') {
        return Err(Failure::new(USAGE, "a remote's URL does not start with '-'"));
    }
    if !has_password(url) {
        return Ok((url.to_owned(), None));
    }
    let refused = || {
        Failure::new(
            USAGE,
            "the remote's URL carries a password and is not https; take it out and set up a credential helper",
        )
    };
    let rest = url.strip_prefix("https://").ok_or_else(refused)?;
    let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let (user, host) = authority.rsplit_once('@').ok_or_else(refused)?;
    let (user, password) = user.split_once(':').ok_or_else(refused)?;
    let file = dir.join("password");
    std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)
        .and_then(|mut open| open.write_all(&percent_decoded(password)))
        .map_err(|error| {
            Failure::new(FAILED, format!("keeping the remote's password in a file: {error}"))
        })?;
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    let url = format!("https://{user}{host}{path}");
    Ok((url.clone(), Some(HttpsToken { url, file })))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digit = |at: usize| {
            let c = char::from(*tail.get(at)?);
            u8::try_from(c.to_digit(16)?).ok()
        };
        match (*first == b'%').then(|| digit(0).zip(digit(1))).flatten() {
            Some((high, low)) => {
                out.push(high * 16 + low);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn urls_paths_and_names_are_told_apart() {
        for url in ["https://h/r", "git@h:r.git", "file:///r", "h:r"] {
            assert!(!is_local(url), "{url}");
        }
        for path in ["origin", "/srv/r.git", "../r.git", "./a:b"] {
            assert!(is_local(path), "{path}");
        }
        assert_eq!(absolute("../r", Path::new("/a/b")), "/a/b/../r");
        assert_eq!(absolute("h:r", Path::new("/a/b")), "h:r");
    }

    #[test]
    fn a_password_leaves_the_url() {
        let dir = tempfile::tempdir().unwrap();
        let (url, token) = without_password("https://me:s%65cret@h:1/r", dir.path()).unwrap();
        assert_eq!(url, "https://me@h:1/r");
        assert_eq!(std::fs::read(token.unwrap().file).unwrap(), b"secret");
        assert!(without_password("http://me:secret@h/r", dir.path()).is_err());
        assert!(without_password("-x", dir.path()).is_err());
        assert_eq!(shown("https://me:secret@h/r"), "https://h/r");
        assert_eq!(shown("a b=c"), "a-b-c");
    }

    proptest! {
        #[test]
        fn any_text_is_shown_as_one_token(text in "\\PC{0,80}") {
            let token = shown(&text);
            prop_assert!(!token.is_empty() && token.chars().all(|c| c.is_ascii_graphic()));
            prop_assert!(percent_decoded(&text).len() <= text.len());
        }
    }
}
