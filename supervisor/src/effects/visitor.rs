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
    identity::{self, Occupant},
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
    let occupants = match identity::occupants(&root, dir) {
        Ok(found) => found.occupants,
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
        } else {
            workers.insert(pid);
        }
    }
    let Some(&first) = workers.first() else {
        return match resting {
            Some(pid) => Looked::Shell(format!("a shell waits there for its user, pid {pid}")),
            None => Looked::Nobody,
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
    let has_terminal = matches!(identity::stat(root, pid), Ok(Ok(stat)) if stat.tty_nr != 0);
    let is_listed =
        || matches!(identity::exe(root, pid), Ok(Ok(program)) if shells.contains(&program));
    let has_no_task = || match identity::cmdline(root, pid) {
        Ok(Ok(words)) => words.iter().skip(1).all(|word| is_mere_option(word)),
        Ok(Err(_)) | Err(_) => false,
    };
    has_terminal && is_listed() && has_no_task()
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
