//! One fixture worker: its arguments say, one after the other, how it behaves. It exits 0 when it runs out of them.
//!
//! | words | what it does |
//! |---|---|
//! | `exit N` | exits N at once |
//! | `die N` | dies of signal N |
//! | `sleep` | sleeps for ever |
//! | `ignore-term` | ignores SIGTERM from now on |
//! | `pid-file F` | writes its own pid into F, whole or not at all |
//! | `report F` | writes its directory, session, group, environment and open descriptors into F |
//! | `touch F` | makes F |
//! | `say T` | prints T |
//! | `wait-for F` | goes on once F exists |
//! | `once F` | sleeps for ever if F exists, else makes it and goes on |
//! | `grandchild F` | leaves a child in a session of its own that ignores SIGTERM and writes its pid into F |
//! | `eat M` | holds up to M MiB, all of it touched |
//! | `child-eats M` | a child eats M MiB; goes on when that child is gone |
//! | `marker KIND` | leaves a marker: see `marker` below |

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's worker: it fails loudly, and the test reads its end"
)]

use std::{
    env, fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, ExitCode, Stdio},
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::Duration,
};

use rustix::process::{Signal, getpid, kill_process};

const STEP_MIB: usize = 2;

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("a word is missing");
        match word.as_str() {
            "exit" => return ExitCode::from(next().parse::<u8>().unwrap()),
            "die" => die(next().parse().unwrap()),
            "sleep" => sleep_for_ever(),
            "ignore-term" => ignore_term(),
            "pid-file" => write_whole(&PathBuf::from(next()), &std::process::id().to_string()),
            "report" => write_whole(&PathBuf::from(next()), &report()),
            "touch" => fs::write(next(), "").unwrap(),
            "say" => println!("{}", next()),
            "wait-for" => wait_for(&PathBuf::from(next())),
            "once" => once(&PathBuf::from(next())),
            "grandchild" => grandchild(&next()),
            "eat" => eat(next().parse().unwrap(), &mut hoard),
            "child-eats" => child_eats(&next()),
            "marker" => marker(&next()),
            other => panic!("the fixture worker knows no {other:?}"),
        }
    }
    ExitCode::SUCCESS
}

fn die(number: i32) {
    let signal = Signal::from_named_raw(number).expect("a signal's number");
    // Rust's own handler of SIGSEGV and SIGBUS takes itself away at the first one.
    loop {
        kill_process(getpid(), signal).unwrap();
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn sleep_for_ever() {
    loop {
        thread::park();
    }
}

fn ignore_term() {
    let flag = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGTERM, flag).unwrap();
}

/// A reader never sees half of it.
fn write_whole(path: &Path, text: &str) {
    let beside = path.with_extension("part");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

fn wait_for(path: &Path) {
    while !path.exists() {
        thread::park_timeout(Duration::from_millis(5));
    }
}

fn once(path: &Path) {
    if path.exists() {
        sleep_for_ever();
    }
    fs::write(path, "").unwrap();
}

fn own() -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.stdin(Stdio::null());
    command
}

/// In a session of its own: neither process group nor session leads to it any more.
fn grandchild(pid_file: &str) {
    let mut command = Command::new("setsid");
    command.arg(env::current_exe().unwrap());
    command.args(["ignore-term", "pid-file", pid_file, "sleep"]);
    command.stdin(Stdio::null()).process_group(0);
    drop(command.spawn().unwrap());
    wait_for(Path::new(pid_file));
}

fn eat(mib: usize, hoard: &mut Vec<Vec<u8>>) {
    while hoard.len() * STEP_MIB < mib {
        // Not zero, so that every page is written and resident.
        hoard.push(vec![1; STEP_MIB << 20]);
    }
}

fn child_eats(mib: &str) {
    let status = own().args(["eat", mib]).status().unwrap();
    println!("the child that ate ended with {status}");
}

fn marker(kind: &str) {
    let path = PathBuf::from(env::var_os("LANEWARDEN_MARKER").expect("LANEWARDEN_MARKER"));
    let run = env::var("LANEWARDEN_RUN").expect("LANEWARDEN_RUN");
    let text = match kind {
        "finalized" => {
            serde_json::json!({"outcome": "finalized", "issue": 42, "pr": 7, "run": run})
        }
        "no-work" => serde_json::json!({"outcome": "no-work", "run": run}),
        "blocked" => {
            serde_json::json!({"outcome": "blocked", "issue": 42, "reason": "CI is down", "run": run})
        }
        "needs-decision" => serde_json::json!({
            "outcome": "blocked", "issue": 42, "reason": "needs-decision",
            "question": "Blue or green?", "run": run,
        }),
        "stale" => serde_json::json!({"outcome": "no-work", "run": "0".repeat(32)}),
        "garbage" => return fs::write(path, b"\x1b[31m\xff\xfe{not json").unwrap(),
        "huge" => return fs::write(path, vec![b' '; 1 << 20]).unwrap(),
        "fifo" => {
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            let fifo = rustix::fs::FileType::Fifo;
            return rustix::fs::mknodat(rustix::fs::CWD, path, fifo, mode, 0).unwrap();
        }
        other => panic!("the fixture worker knows no marker {other:?}"),
    };
    write_whole(&path, &text.to_string());
}

/// What a worker sees of the world, as JSON.
fn report() -> String {
    let environment: std::collections::BTreeMap<String, String> = env::vars().collect();
    let fds: std::collections::BTreeMap<String, String> = fs::read_dir("/proc/self/fd")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let target = fs::read_link(entry.path()).ok()?;
            Some((entry.file_name().display().to_string(), target.display().to_string()))
        })
        // The descriptor of this very listing.
        .filter(|(_, target)| !target.starts_with("/proc/"))
        .collect();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
    serde_json::json!({
        "cwd": env::current_dir().unwrap(),
        "pid": std::process::id(),
        "sid": rustix::process::getsid(None).unwrap().as_raw_nonzero().get(),
        "pgid": rustix::process::getpgid(None).unwrap().as_raw_nonzero().get(),
        "oom_score_adj": fs::read_to_string("/proc/self/oom_score_adj").unwrap().trim(),
        "cgroup": cgroup,
        "status": status,
        "env": environment,
        "fds": fds,
    })
    .to_string()
}
