//! The environment that `git` gets: an allow-list of the operator's own settings, and what makes it fit for a daemon.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::Path,
};

/// Names taken over as they are. `GIT_DIR` and its kin are missing on purpose: a variable left over in the caller's
/// shell must not point us at somebody's checkout.
const ALLOWED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TMPDIR",
    "XDG_CONFIG_HOME",
    "XDG_RUNTIME_DIR",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_SSH_VARIANT",
    "GIT_ASKPASS",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
];
const ALLOWED_PREFIXES: &[&str] = &["SSH_", "GIT_CONFIG_"];

/// An environment, sorted by name.
pub type Environment = BTreeMap<OsString, OsString>;

fn is_allowed(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| {
        ALLOWED.contains(&name) || ALLOWED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    })
}

/// What of `vars` git may see, with prompts, translations and optional locks off.
#[must_use]
pub fn filtered(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Environment {
    let mut kept: Environment = vars.into_iter().filter(|(name, _)| is_allowed(name)).collect();
    for (name, value) in
        [("LC_ALL", "C"), ("GIT_TERMINAL_PROMPT", "0"), ("GIT_OPTIONAL_LOCKS", "0")]
    {
        kept.insert(name.into(), value.into());
    }
    kept
}

/// Whether the operator chose an ssh program in the environment; then it is left alone.
#[must_use]
pub fn chooses_ssh(environment: &Environment) -> bool {
    ["GIT_SSH", "GIT_SSH_COMMAND"].iter().any(|name| environment.contains_key(OsStr::new(name)))
}

/// `ssh` that asks nobody, with the key and the known hosts of our configuration, as a shell command line.
#[must_use]
pub fn ssh_command(key: Option<&Path>, known_hosts: Option<&Path>) -> OsString {
    let mut line = b"ssh -o BatchMode=yes".to_vec();
    if let Some(key) = key {
        line.extend_from_slice(b" -o IdentitiesOnly=yes -i ");
        line.extend_from_slice(&quoted(key.as_os_str()));
    }
    if let Some(known_hosts) = known_hosts {
        // ssh splits this option at blanks itself, hence the inner quotes.
        let mut option = b"UserKnownHostsFile=\"".to_vec();
        option.extend_from_slice(known_hosts.as_os_str().as_bytes());
        option.push(b'"');
        line.extend_from_slice(b" -o ");
        line.extend_from_slice(&quoted(OsStr::from_bytes(&option)));
    }
    OsString::from_vec(line)
}

/// The text as one word of a POSIX shell.
#[must_use]
pub fn quoted(text: &OsStr) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in text.as_bytes() {
        if *byte == b'\'' {
            word.extend_from_slice(b"'\\''");
        } else {
            word.push(*byte);
        }
    }
    word.push(b'\'');
    word
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vars(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn only_named_variables_pass() {
        let env = filtered(vars(&[
            ("PATH", "/bin"),
            ("GIT_DIR", "/x"),
            ("GIT_WORK_TREE", "/x"),
            ("GIT_INDEX_FILE", "/x"),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
            ("SSH_AUTH_SOCK", "/s"),
            ("SECRET_TOKEN", "t"),
            ("NOTIFY_SOCKET", "/n"),
            ("LC_ALL", "de_DE"),
        ]));
        let names: Vec<_> = env.keys().filter_map(|name| name.to_str()).collect();
        assert_eq!(
            names,
            [
                "GIT_CONFIG_GLOBAL",
                "GIT_OPTIONAL_LOCKS",
                "GIT_TERMINAL_PROMPT",
                "LC_ALL",
                "PATH",
                "SSH_AUTH_SOCK"
            ]
        );
        assert_eq!(env.get(OsStr::new("LC_ALL")).unwrap(), "C");
    }

    #[test]
    fn paths_are_one_word_each() {
        let line = ssh_command(Some(Path::new("/k e'y")), Some(Path::new("/known hosts")));
        assert_eq!(
            line,
            "ssh -o BatchMode=yes -o IdentitiesOnly=yes -i '/k e'\\''y' -o 'UserKnownHostsFile=\"/known hosts\"'"
        );
        assert_eq!(ssh_command(None, None), "ssh -o BatchMode=yes");
    }
}
