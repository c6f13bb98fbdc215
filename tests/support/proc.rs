//! Processes of a test, known by what they carry and never by name: every process of a home has the home's path in its
//! environment.

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path, time::Duration};

use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal, test_kill_process,
};

/// The variable that every process of a home carries.
pub const COOKIE: &str = "E2E_HOME";

/// A number as a process id.
///
/// # Panics
/// If it is none.
#[must_use]
pub fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// State letter and start ticks of a process (proc(5), fields 3 and 22 of `stat`); nothing if it is gone.
#[must_use]
pub fn stat(number: u32) -> Option<(char, u64)> {
    let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some((fields.first()?.chars().next()?, fields.get(19)?.parse().ok()?))
}

/// Whether a process runs: zombies do not.
#[must_use]
pub fn runs(number: u32) -> bool {
    stat(number).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Sends a signal.
///
/// # Panics
/// If there is no such process.
pub fn signal(number: u32, signal: Signal) {
    kill_process(pid(number), signal)
        .unwrap_or_else(|error| panic!("{signal:?} {number}: {error}"));
}

/// Whether the number is taken, by a zombie too.
#[must_use]
pub fn exists(number: u32) -> bool {
    test_kill_process(pid(number)).is_ok()
}

/// Waits until a process is gone.
pub fn until_gone(number: u32) {
    crate::until(&format!("the end of process {number}"), || {
        if runs(number) { Err(command_line(number)) } else { Ok(()) }
    });
}

/// The words that a process was started with.
#[must_use]
pub fn command_line(number: u32) -> String {
    let bytes = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
    let words: Vec<_> = bytes
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(|word| word.escape_ascii().to_string())
        .collect();
    words.join(" ")
}

/// The running processes of a home.
#[must_use]
pub fn of_home(home: &Path) -> Vec<u32> {
    with_environment(COOKIE, home)
}

/// The running processes that have this variable with this value in their environment.
#[must_use]
pub fn with_environment(name: &str, value: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    numbers.filter(|number| carries(*number, name, value.as_os_str()) && runs(*number)).collect()
}

fn carries(number: u32, name: &str, value: &OsStr) -> bool {
    let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
    let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
    environment.split(|byte| *byte == 0).any(|entry| entry == wanted)
}

/// Kills every process of a home until a look finds none: those that carry it, and those whose temporary files are in it.
pub fn end_all(home: &Path) {
    let place = home.join("tmp");
    let cookies = [(COOKIE, home), ("TMPDIR", place.as_path())];
    for _ in 0..500 {
        let mut left = false;
        for (name, value) in cookies {
            for number in with_environment(name, value) {
                left = true;
                // The pidfd holds the process; that it is still the home's is asked again after it was opened.
                let Ok(pidfd) = pidfd_open(pid(number), PidfdFlags::empty()) else { continue };
                if carries(number, name, value.as_os_str()) {
                    // It may be gone by now, which is as good.
                    pidfd_send_signal(&pidfd, Signal::KILL).unwrap_or_default();
                }
            }
        }
        if !left {
            return;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    eprintln!("processes of {} cannot be ended: {:?}", home.display(), of_home(home));
}
