//! The program under test: the same short main as the real one, built beside the tests that start it.

use std::process::ExitCode;

fn main() -> ExitCode {
    lanewarden::main_impl()
}
