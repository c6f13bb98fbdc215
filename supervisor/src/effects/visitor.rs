//! Who works in an observed lane: the outermost process there that is not an interactive shell.
//!
//! Somebody opens a terminal in the lane and starts the agent from its prompt: the shell outlives the agent, so a watch on
//! the shell would never see the agent die. A shell is known by what the system says and not by its name: its program is
//! listed in shells(5), it has a controlling terminal, and it was given no script and no `-c`.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use lanewarden_probes::{
    Root,
    identity::{self, Occupancy, Occupant},
};

use crate::{
    clock::start_unix_ms,
    event::{Looked, Visitor},
};

/// Most parents that are walked.
const MOST_HOPS: usize = 64;

/// Who works in `dir`, and is neither we nor one of those that started us.
pub(crate) fn visitor(dir: &Path, ancestors: &[u32]) -> Looked {
    let root = Root::live();
    let Occupancy { occupants, unreadable } = match identity::occupants(&root, dir) {
        Ok(found) => found,
        Err(error) => return Looked::CannotTell(error.to_string()),
    };
    let shells = login_shells();
    let (mut resting, mut workers) = (None, BTreeSet::new());
    for Occupant { pid, .. } in occupants {
        if ancestors.contains(&pid) {
            continue;
        }
        if is_interactive_shell(&root, pid, &shells) {
            resting.get_or_insert(pid);
        } else if !is_terminal_server(&root, pid, &shells) {
            workers.insert(pid);
        }
    }
    // Who sits at a terminal is rather the agent than a helper that was left behind.
    let at_terminal = workers.iter().find(|pid| terminal(&root, **pid));
    let Some(&first) = at_terminal.or_else(|| workers.first()) else {
        let shell = resting.map(|pid| format!("a shell waits there for its user, pid {pid}"));
        return match (shell, unreadable) {
            (None, 0) => Looked::Nobody,
            (Some(shell), 0) => Looked::Shell(shell),
            (shell, hidden) => Looked::CannotTell(format!(
                "{hidden} processes of other users may not be asked where they work (CAP_SYS_PTRACE){}",
                shell.map(|shell| format!("; {shell}")).unwrap_or_default()
            )),
        };
    };
    let pid = outermost(&root, first, &workers);
    match identity::stat(&root, pid) {
        Ok(Ok(stat)) => {
            let name = stat.comm.escape_ascii();
            Looked::Somebody(Visitor {
                pid,
                start_ticks: stat.start_ticks,
                started_at_ms: start_unix_ms(stat.start_ticks),
                shown: format!("pid {pid} ({name})"),
            })
        }
        // It ended between two looks.
        Ok(Err(_)) => Looked::Nobody,
        Err(error) => Looked::CannotTell(error.to_string()),
    }
}

/// The last of `pid` and its ancestors that works there.
fn outermost(root: &Root, pid: u32, workers: &BTreeSet<u32>) -> u32 {
    let (mut outermost, mut at) = (pid, pid);
    for _ in 0..MOST_HOPS {
        match identity::stat(root, at) {
            Ok(Ok(stat)) if stat.ppid > 1 => at = stat.ppid,
            Ok(_) | Err(_) => break,
        }
        if workers.contains(&at) {
            outermost = at;
        }
    }
    outermost
}

/// The programs of shells(5), without symbolic links. Empty if there is no such file: then nobody is a shell.
fn login_shells() -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/etc/shells").unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with('/'));
    lines.filter_map(|line| std::fs::canonicalize(line).ok()).collect()
}

/// Whether it waits at a terminal for what its user types. What cannot be read is no shell: it counts as a worker.
fn is_interactive_shell(root: &Root, pid: u32, shells: &[PathBuf]) -> bool {
    let has_no_task = || match identity::cmdline(root, pid) {
        Ok(Ok(words)) => words.iter().skip(1).all(|word| is_mere_option(word)),
        Ok(Err(_)) | Err(_) => false,
    };
    terminal(root, pid) && is_listed(root, pid, shells) && has_no_task()
}

/// Whether it keeps terminals for others, as tmux does, which stays in the directory in which it was started: listed in
/// shells(5), without a terminal of its own, and with the other end of one.
fn is_terminal_server(root: &Root, pid: u32, shells: &[PathBuf]) -> bool {
    !terminal(root, pid) && is_listed(root, pid, shells) && keeps_terminals(root, pid)
}

fn keeps_terminals(root: &Root, pid: u32) -> bool {
    let fds = std::fs::read_dir(root.proc().join(pid.to_string()).join("fd"));
    fds.into_iter()
        .flatten()
        .flatten()
        .any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target.ends_with("ptmx")))
}

fn terminal(root: &Root, pid: u32) -> bool {
    matches!(identity::stat(root, pid), Ok(Ok(stat)) if stat.tty_nr != 0)
}

fn is_listed(root: &Root, pid: u32, shells: &[PathBuf]) -> bool {
    matches!(identity::exe(root, pid), Ok(Ok(program)) if shells.contains(&program))
}

/// `-i`, `--login`, `+o`; not `-c`, not the name of a script.
fn is_mere_option(word: &[u8]) -> bool {
    match word {
        [b'-', b'-', ..] | [b'+', ..] => true,
        [b'-', letters @ ..] => !letters.contains(&b'c'),
        [..] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_or_a_command_is_a_task() {
        for option in ["-i", "-il", "--login", "+o", "-"] {
            assert!(is_mere_option(option.as_bytes()), "{option}");
        }
        for task in ["-c", "-lc", "agent.sh", "", "./x"] {
            assert!(!is_mere_option(task.as_bytes()), "{task}");
        }
    }

    #[test]
    fn a_shell_without_a_terminal_is_a_worker() {
        let dir = tempfile::tempdir().unwrap();
        let mut shell = std::process::Command::new("setsid")
            .args(["--fork", "--wait", "sh"])
            .current_dir(dir.path())
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let seen = visitor(dir.path(), &[]);
        assert!(matches!(seen, Looked::Somebody(_)), "{seen:?}");
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
