//! A value, or its absence with a closed reason; and the one way in which this crate reads a small kernel file.

use crate::ProbeError;
use rustix::io::Errno;
use std::{fs::File, io, io::Read, path::Path};

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

/// Largest file that is read unless a caller says otherwise; kernel files that we parse are far smaller.
pub(crate) const SMALL: u64 = 1 << 20;

/// Reads at most `limit` bytes of `path`. `missing` is what ENOENT means for this file.
pub(crate) fn read_file(path: &Path, limit: u64, missing: Absent) -> Reading<Vec<u8>> {
    // One read for nearly every kernel file, where an empty buffer would grow from 32 bytes.
    let mut bytes = Vec::with_capacity(4096);
    match File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Ok(bytes)),
        Err(error) => absent(path, error, missing),
    }
}

/// Sorts an I/O error into absence and failure.
pub(crate) fn absent<T>(path: &Path, error: io::Error, missing: Absent) -> Reading<T> {
    let errno = Errno::from_io_error(&error);
    let is = |set: &[Errno]| errno.is_some_and(|errno| set.contains(&errno));
    if is(&[Errno::NOENT, Errno::NOTDIR]) {
        Ok(Err(missing))
    } else if is(&[Errno::SRCH, Errno::NODEV]) {
        // ESRCH: the process was reaped under an open file. ENODEV: the cgroup was removed under one.
        Ok(Err(Absent::Gone))
    } else if is(&[Errno::ACCESS, Errno::PERM]) {
        Ok(Err(Absent::Denied))
    } else if is(&[Errno::OPNOTSUPP, Errno::NOSYS]) {
        Ok(Err(Absent::NotSupported))
    } else {
        Err(ProbeError::Io { path: path.to_owned(), source: error })
    }
}

/// What could be parsed, or [`ProbeError::Malformed`] with the first bytes, escaped.
pub(crate) fn parsed<T>(
    path: &Path,
    expected: &'static str,
    bytes: &[u8],
    value: Option<T>,
) -> Reading<T> {
    value.map(Ok).ok_or_else(|| malformed(path, expected, bytes))
}

/// A [`ProbeError::Malformed`] about `bytes`.
pub(crate) fn malformed(path: &Path, expected: &'static str, bytes: &[u8]) -> ProbeError {
    ProbeError::Malformed { path: path.to_owned(), expected, found: excerpt(bytes) }
}

/// The first 80 bytes, escaped for a terminal.
pub(crate) fn excerpt(bytes: &[u8]) -> String {
    bytes.get(..80).unwrap_or(bytes).escape_ascii().to_string()
}

/// A decimal number as the kernel prints it: digits only, surrounding white space allowed.
pub(crate) fn number<T: std::str::FromStr>(bytes: &[u8]) -> Option<T> {
    let digits = bytes.trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}
