//! What can go wrong with `git`, in a closed set, and the reading of its complaints.
//!
//! Git's standard error is classified and never shown: it may hold a URL with a password, or whatever the remote
//! chose to send.

use std::{error::Error, path::PathBuf, process::ExitStatus, time::Duration};

use lanewarden_probes::closed_set;

closed_set! {
    /// Why a `git` that ran failed.
    pub enum FailureClass {
        /// The remote does not accept our credentials, or there are none. A retry does not help.
        Auth = "auth",
        /// The remote, or the repository on it, could not be reached.
        Unreachable = "unreachable",
        /// A ref was not where the lease expected it.
        LeaseRefused = "lease-refused",
        /// The remote refused an update for a reason of its own.
        Rejected = "rejected",
        /// The two sides did not understand each other.
        Protocol = "protocol",
        /// Something on this machine: disk, memory, the scratch repository. Also everything unrecognised.
        Local = "local",
    }
}

closed_set! {
    /// Every way in which a call of `git` can fail, for labels and records.
    pub enum GitErrorKind {
        /// There is no `git` on `PATH`.
        MissingProgram = "missing-program",
        /// The deadline passed; the process tree was killed.
        Timeout = "timeout",
        /// More output than we accept.
        TooLarge = "too-large",
        /// Git is too old, or did not say how old it is.
        UnsupportedVersion = "unsupported-version",
        /// We asked for something that cannot be asked.
        BadRequest = "bad-request",
        /// See [`FailureClass::Auth`].
        Auth = "auth",
        /// See [`FailureClass::Unreachable`].
        Unreachable = "unreachable",
        /// See [`FailureClass::LeaseRefused`].
        LeaseRefused = "lease-refused",
        /// See [`FailureClass::Rejected`].
        Rejected = "rejected",
        /// See [`FailureClass::Protocol`].
        Protocol = "protocol",
        /// See [`FailureClass::Local`].
        Local = "local",
    }
}

/// A call of `git`, or the work around it, that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum GitError {
    /// There is no `git` on `PATH`.
    #[error("found no `git` on PATH; install git 2.29 or later")]
    MissingProgram {
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The process could not be started, or its end not be learnt.
    #[error("could not run `git {command}`")]
    Run {
        /// The subcommand.
        command: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The deadline passed. Git and everything that it started was killed.
    #[error("`git {command}` did not finish within {deadline:?} and was killed; is the remote up?")]
    Timeout {
        /// The subcommand.
        command: String,
        /// The time that it had.
        deadline: Duration,
    },
    /// More output than we accept.
    #[error("`git {command}` wrote more than {limit} bytes")]
    TooLarge {
        /// The subcommand.
        command: String,
        /// Bytes that we accept.
        limit: usize,
    },
    /// Git ran and failed.
    #[error("`git {command}` failed ({class}, {status}): {}", .class.remedy())]
    Failed {
        /// The subcommand.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What its complaints mean.
        class: FailureClass,
    },
    /// Git is older than 2.29, or its version cannot be read.
    #[error(
        "git 2.29 or later is needed to read refs without touching FETCH_HEAD; found {found:?}"
    )]
    UnsupportedVersion {
        /// What `git version` said, shortened.
        found: String,
    },
    /// A name or id that git must not be given.
    #[error("{value:?} is not {what}")]
    BadRequest {
        /// What it should have been.
        what: &'static str,
        /// What it is.
        value: String,
    },
    /// The scratch repository could not be used.
    #[error("could not {doing} the scratch repository {}", .path.display())]
    Scratch {
        /// A verb.
        doing: &'static str,
        /// Which repository.
        path: PathBuf,
        /// Why.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl GitError {
    /// The error's member of the closed set.
    #[must_use]
    pub const fn kind(&self) -> GitErrorKind {
        match self {
            Self::MissingProgram { .. } => GitErrorKind::MissingProgram,
            Self::Timeout { .. } => GitErrorKind::Timeout,
            Self::TooLarge { .. } => GitErrorKind::TooLarge,
            Self::UnsupportedVersion { .. } => GitErrorKind::UnsupportedVersion,
            Self::BadRequest { .. } => GitErrorKind::BadRequest,
            Self::Run { .. } | Self::Scratch { .. } => GitErrorKind::Local,
            Self::Failed { class, .. } => match class {
                FailureClass::Auth => GitErrorKind::Auth,
                FailureClass::Unreachable => GitErrorKind::Unreachable,
                FailureClass::LeaseRefused => GitErrorKind::LeaseRefused,
                FailureClass::Rejected => GitErrorKind::Rejected,
                FailureClass::Protocol => GitErrorKind::Protocol,
                FailureClass::Local => GitErrorKind::Local,
            },
        }
    }
}

/// Credential signatures. `403 Forbidden` and `Repository not found` are left out on purpose: hosts answer so for
/// other causes as well.
const AUTH: &[&str] = &[
    "could not read Username",
    "could not read Password",
    "Authentication failed",
    "authentication failed",
    "terminal prompts disabled",
    "Invalid username or token",
    "Invalid username or password",
    "Permission denied (publickey",
    "Write access to repository not granted",
    "Support for password authentication was removed",
    "401 Unauthorized",
];
const LOCAL: &[&str] = &[
    "No space left on device",
    "Disk quota exceeded",
    "Out of memory",
    "cannot fork",
    "Cannot allocate memory",
    "File too large",
    "not a git repository: '",
];
const LEASE: &[&str] = &["(stale info)", "but expected"];
const REJECTED: &[&str] = &["[rejected]", "[remote rejected]", "hook declined"];
const UNREACHABLE: &[&str] = &[
    "Could not resolve host",
    "unable to look up",
    "unable to connect",
    "Failed to connect",
    "Could not connect",
    "Couldn't connect",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Connection closed",
    "Network is unreachable",
    "No route to host",
    "Host key verification failed",
    "unable to access",
    "Repository not found",
    "does not appear to be a git repository",
    "does not exist",
    "Could not read from remote repository",
    "hung up unexpectedly",
    "early EOF",
];
const PROTOCOL: &[&str] = &[
    "protocol error",
    "protocol",
    "bad line length",
    "invalid server response",
    "couldn't find remote ref",
    "not our ref",
    "mismatched algorithms",
    "remote error",
];

impl FailureClass {
    /// What the complaints on git's standard error mean.
    #[must_use]
    pub fn of_stderr(stderr: &[u8]) -> Self {
        let text = String::from_utf8_lossy(stderr);
        let any = |signatures: &[&str]| signatures.iter().any(|sign| text.contains(sign));
        let ours = |signatures: &[&str]| {
            text.lines()
                .filter(|line| !line.starts_with("remote:"))
                .any(|line| signatures.iter().any(|sign| line.contains(sign)))
        };
        let denied = text.lines().any(|line| {
            line.split_once("Permission to ").is_some_and(|(_, rest)| rest.contains(" denied"))
        });
        if any(AUTH) || denied {
            Self::Auth
        } else if ours(LOCAL) {
            Self::Local
        } else if any(LEASE) {
            Self::LeaseRefused
        } else if any(REJECTED) {
            Self::Rejected
        } else if ours(UNREACHABLE) {
            Self::Unreachable
        } else if ours(PROTOCOL) {
            Self::Protocol
        } else {
            Self::Local
        }
    }

    /// What a person can do about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Auth => {
                "no working credentials for the remote on this machine; a retry will not help, set up the key, token or credential helper"
            }
            Self::Unreachable => {
                "the remote could not be reached; check its URL, its host key and the network"
            }
            Self::LeaseRefused => "the ref moved meanwhile; read it again",
            Self::Rejected => {
                "the remote refused the update; it must accept pushes and deletes below refs/lane-claims"
            }
            Self::Protocol => {
                "the remote's answer was not understood; is the URL a git repository?"
            }
            Self::Local => {
                "a problem on this machine; check free disk, memory and the state directory"
            }
        }
    }
}

/// The URL without user, password and query, for people and logs. Control characters are replaced.
#[must_use]
pub fn redact_url(url: &str) -> String {
    let clean: String = url.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    let Some((scheme, rest)) = clean.split_once("://") else {
        // A path, or host:path as ssh writes it, where a user name is no secret.
        return clean.split_once('?').map_or(clean.as_str(), |(head, _)| head).to_owned();
    };
    let rest = rest.split_once(['?', '#']).map_or(rest, |(head, _)| head);
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Whether the URL carries a password. Git hands the URL to its helpers as an argument, where every user of the box
/// can read it, so such a URL belongs into a credential helper or a token file instead.
#[must_use]
pub fn has_password(url: &str) -> bool {
    url.split_once("://")
        .and_then(|(_, rest)| rest.split('/').next())
        .and_then(|authority| authority.rsplit_once('@'))
        .is_some_and(|(user, _)| user.contains(':'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn credential_signatures_are_told_from_outages() {
        let auth = [
            "fatal: could not read Username for 'https://h': terminal prompts disabled",
            "git@h: Permission denied (publickey).\nfatal: Could not read from remote repository.",
            "remote: Permission to a/b.git denied to c.\nfatal: unable to access 'x': error: 403",
            "git@h: Permission denied (publickey,password).",
        ];
        for text in auth {
            assert_eq!(FailureClass::of_stderr(text.as_bytes()), FailureClass::Auth, "{text}");
        }
        for text in [
            "fatal: unable to access 'https://h/': Could not resolve host: h",
            "remote: Repository not found.\nfatal: repository 'https://h/' not found\nfatal: unable to access",
            "fatal: unable to access 'https://h/': The requested URL returned error: 403 Forbidden",
            "fatal: '/x' does not appear to be a git repository",
        ] {
            assert_eq!(
                FailureClass::of_stderr(text.as_bytes()),
                FailureClass::Unreachable,
                "{text}"
            );
        }
    }

    #[test]
    fn a_full_disk_here_is_local_and_there_is_not() {
        let here = b"fatal: write error: No space left on device\nfatal: early EOF";
        assert_eq!(FailureClass::of_stderr(here), FailureClass::Local);
        let there = b"remote: No space left on device\nfatal: the remote end hung up unexpectedly";
        assert_eq!(FailureClass::of_stderr(there), FailureClass::Unreachable);
    }

    #[test]
    fn secrets_leave_a_url() {
        assert_eq!(redact_url("https://u:p@h:8/r.git?token=x"), "https://h:8/r.git");
        assert_eq!(redact_url("https://u:p@x@h/r"), "https://h/r");
        assert_eq!(redact_url("git@h:o/r.git"), "git@h:o/r.git");
        assert_eq!(redact_url("/srv/r.git"), "/srv/r.git");
        assert!(has_password("https://u:p@h/r") && !has_password("ssh://git@h/r"));
    }

    proptest! {
        #[test]
        fn classifying_and_redacting_never_panic(bytes in any::<Vec<u8>>(), url in ".*") {
            prop_assert!(FailureClass::ALL.contains(&FailureClass::of_stderr(&bytes)));
            prop_assert!(!redact_url(&url).chars().any(char::is_control));
        }

        #[test]
        fn no_password_survives(secret in "[A-Z]{8}", path in "[a-z/@]{0,12}") {
            let shown = redact_url(&format!("https://u:{secret}@host/{path}?k={secret}"));
            prop_assert!(!shown.contains(&secret), "{}", shown);
        }
    }
}
