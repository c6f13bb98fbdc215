//! The access token. It can be read from a file and put into one header; it cannot be shown, compared or serialised.

use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// More than any token has; a file larger than this is not one.
const LARGEST: u64 = 4_096;

/// An access token of a server, ntfy's or a forge's. `Debug` shows where it came from and nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    token: String,
    source: Option<Source>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Source {
    path: PathBuf,
    forbidden_bits: u32,
}

/// Why a token could not be had.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    /// The file could not be opened or read.
    #[error("read the token file {path}", path = .path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is a directory, a FIFO or a device.
    #[error("use {path} as token file: it is not a regular file", path = .path.display())]
    NotAFile {
        /// Which file.
        path: PathBuf,
    },
    /// Others could read it.
    #[error(
        "use the token file {path}: mode {mode:04o} lets others in; run `chmod 600 {path}` and \
         consider the token known",
        path = .path.display()
    )]
    TooOpen {
        /// Which file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// What it holds cannot be a token.
    #[error("use the token{from}: {fault}; a token is one line of printable ASCII")]
    Unusable {
        /// " in FILE", or nothing.
        from: String,
        /// What is wrong with it, without the text itself.
        fault: &'static str,
    },
}

impl Credential {
    /// A token at hand. Space around it is dropped.
    ///
    /// # Errors
    /// If it is empty or not printable ASCII without spaces.
    pub fn new(token: &str) -> Result<Self, CredentialError> {
        Ok(Self { token: valid(token, None)?, source: None })
    }

    /// Reads the token from a file of mode 0600 or less.
    ///
    /// # Errors
    /// If it cannot be read, others have access to it, or what it holds is not a token.
    pub fn from_file(path: &Path) -> Result<Self, CredentialError> {
        Self::read(Source { path: path.to_owned(), forbidden_bits: 0o077 })
    }

    /// Reads the token from a file below `$CREDENTIALS_DIRECTORY` (systemd.exec(5)). The service manager gives an
    /// unprivileged service access by an ACL, whose mask shows as read permission of the group.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file), but the group may have read permission.
    pub fn from_service_manager(path: &Path) -> Result<Self, CredentialError> {
        Self::read(Source { path: path.to_owned(), forbidden_bits: 0o037 })
    }

    /// Reads the token once more from where it came. A token that did not come from a file stays as it is.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file).
    pub fn reread(&self) -> Result<Self, CredentialError> {
        self.source.clone().map_or_else(|| Ok(self.clone()), Self::read)
    }

    fn read(source: Source) -> Result<Self, CredentialError> {
        let path = &source.path;
        let failed = |source| CredentialError::Read { path: path.clone(), source };
        // Looked at before it is opened: opening a FIFO would wait for a writer.
        if !path.metadata().map_err(failed)?.is_file() {
            return Err(CredentialError::NotAFile { path: path.clone() });
        }
        let file = File::open(path).map_err(failed)?;
        // And of the opened file once more, so that what was judged is what is read.
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
        if mode & source.forbidden_bits != 0 {
            return Err(CredentialError::TooOpen { path: path.clone(), mode });
        }
        let mut text = Vec::new();
        file.take(LARGEST + 1).read_to_end(&mut text).map_err(failed)?;
        let token = valid(&String::from_utf8_lossy(&text), Some(path))?;
        Ok(Self { token, source: Some(source) })
    }

    /// The value of an `Authorization` header. A secret: mark the header sensitive. ntfy compares the scheme's case.
    #[must_use]
    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.token)
    }

    /// `text` without the token, should somebody have echoed it.
    pub(crate) fn redact(&self, text: &str) -> String {
        text.replace(&self.token, "[token]")
    }
}

fn valid(text: &str, path: Option<&Path>) -> Result<String, CredentialError> {
    let token = text.trim();
    let fault = if token.is_empty() {
        "it is empty"
    } else if u64::try_from(token.len()).is_ok_and(|n| n > LARGEST) || text.len() > 4_096 {
        "it is too long"
    } else if !token.bytes().all(|b| b.is_ascii_graphic()) {
        "it has spaces, control characters or letters outside ASCII"
    } else {
        return Ok(token.to_owned());
    };
    let from = path.map(|p| format!(" in {}", p.display())).unwrap_or_default();
    Err(CredentialError::Unusable { from, fault })
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("token", &"[redacted]")
            .field("path", &self.source.as_ref().map(|s| &s.path))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    fn file(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        (dir, path)
    }

    #[test]
    fn a_private_file_gives_its_trimmed_token() {
        for mode in [0o600, 0o400] {
            let (_dir, path) = file("tk_secret\n", mode);
            let token = Credential::from_file(&path).unwrap();
            assert_eq!(token.bearer(), "Bearer tk_secret");
            assert!(!format!("{token:?}").contains("secret"), "{token:?}");
        }
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        for mode in [0o644, 0o640, 0o660, 0o602] {
            let (_dir, path) = file("tk_secret\n", mode);
            let error = Credential::from_file(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && !error.contains("tk_secret"), "{error}");
        }
        let (_dir, path) = file("tk_secret\n", 0o440);
        assert!(Credential::from_service_manager(&path).is_ok());
        let (_dir, path) = file("tk_secret\n", 0o444);
        assert!(Credential::from_service_manager(&path).is_err());
    }

    #[test]
    fn what_is_no_token_is_refused_without_being_shown() {
        for text in ["", "\n", "two words", "tk_\u{e9}", "a\nb", &"x".repeat(5_000)] {
            let (_dir, path) = file(text, 0o600);
            let error = Credential::from_file(&path).unwrap_err();
            assert!(matches!(error, CredentialError::Unusable { .. }), "{error}");
            assert!(text.trim().is_empty() || !error.to_string().contains(text), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(Credential::from_file(dir.path()), Err(CredentialError::NotAFile { .. })));
        assert!(matches!(
            Credential::from_file(&dir.path().join("none")),
            Err(CredentialError::Read { .. })
        ));
    }

    #[test]
    fn a_renewed_file_is_read_again() {
        let (_dir, path) = file("tk_old\n", 0o600);
        let old = Credential::from_file(&path).unwrap();
        fs::write(&path, "tk_new\n").unwrap();
        assert_eq!(old.reread().unwrap().bearer(), "Bearer tk_new");
    }
}
