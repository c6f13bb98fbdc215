//! Exit codes, named. 64, 69, 70 and 78 are those of sysexits.h.

use std::process::ExitCode;

/// Done, or nothing was found.
pub const OK: u8 = 0;
/// It was not done, or it could not be told.
pub const FAILED: u8 = 1;
/// A finding: a dead lane, an OOM kill.
pub const FOUND: u8 = 3;
/// The command line is wrong (EX_USAGE).
pub const USAGE: u8 = 64;
/// The configuration, or what it names, is wrong (EX_CONFIG). A service manager must not restart us.
pub const CONFIG: u8 = 78;

/// The code as the program's end.
#[must_use]
pub fn exit(code: u8) -> ExitCode {
    ExitCode::from(code)
}
