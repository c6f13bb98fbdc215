//! Programs that are made by tests.

#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "this is test code, which the lints know only inside of test functions"
)]

use std::{
    io::{Seek, Write},
    path::Path,
    process::Command,
};

/// Makes a program with these bytes that everybody may run.
///
/// Another process writes it: a descriptor for writing of our own would be inherited by whatever another thread forks at
/// this moment, and until that has executed nobody can run the file (ETXTBSY of execve(2)).
pub(crate) fn executable(path: &Path, bytes: &[u8]) {
    let mut source = tempfile::tempfile().unwrap();
    source.write_all(bytes).unwrap();
    source.rewind().unwrap();
    let mut install = Command::new("install");
    install.args(["-m", "755", "/dev/stdin"]).arg(path).stdin(source);
    assert!(install.status().unwrap().success(), "install {}", path.display());
}
