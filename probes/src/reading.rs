//! A value, or its absence with a closed reason.

use crate::ProbeError;

/// Why the kernel gave no value. Absence is an answer, not an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Absent {
    /// This kernel has no such file.
    NotSupported,
    /// The thing that was asked about is gone, or its process is hidden from us.
    Gone,
    /// We may not look (EACCES, EPERM).
    Denied,
}

/// What a probe answers: a value, an absence with its reason, or a failure of the probe itself.
pub type Reading<T> = Result<Result<T, Absent>, ProbeError>;
