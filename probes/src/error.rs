//! Failures of a probe: which place, what was expected, what was seen.

use std::{io, path::PathBuf};

/// A probe could not answer. Not the same as [`crate::Absent`].
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A file could not be read for a reason that is not absence (EIO, EMFILE, ENOMEM).
    #[error("reading {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file was read and does not have the expected shape.
    #[error("{}: expected {expected}, found {found:?}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What should have been there.
        expected: &'static str,
        /// The first bytes of what was there, escaped.
        found: String,
    },
}
