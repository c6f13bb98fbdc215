//! Damaged logs: nothing panics, and no pid appears that was not killed.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::{
    super::{LiveParser, OomReport, read_log},
    samples::{Sample, samples},
};
use crate::kmsg::KmsgRecord;

/// The pids that may be named for a sample: those of its kills, and the processes that they were threads of.
fn killed(sample: &Sample) -> BTreeSet<u64> {
    let pids = |key: &str| {
        sample
            .kills
            .iter()
            .filter_map(|kill| kill.get(key).and_then(Value::as_u64))
            .collect::<Vec<_>>()
    };
    pids("pid").into_iter().chain(pids("tgid")).collect()
}

/// Pids of the report that were not killed.
fn invented(sample: &Sample, mutant: &[u8]) -> Vec<u32> {
    let allowed = killed(sample);
    let OomReport { kills, .. } = read_log(mutant).unwrap();
    kills.iter().map(|kill| kill.pid).filter(|&pid| !allowed.contains(&u64::from(pid))).collect()
}

/// Demands that a mutant names nobody else.
fn check(sample: &Sample, what: &str, mutant: &[u8], failures: &mut Vec<String>) {
    let pids = invented(sample, mutant);
    if !pids.is_empty() {
        failures.push(format!("{} {what}: {pids:?}", sample.name));
    }
}

fn lines(log: &[u8]) -> Vec<&[u8]> {
    log.split_inclusive(|&byte| byte == b'\n').collect()
}

#[test]
fn dropped_lines_name_nobody_else() {
    let mut failures = Vec::new();
    for sample in samples() {
        let lines = lines(&sample.log);
        for drop in 0..lines.len() {
            for more in drop..lines.len().min(drop + 6) {
                let kept: Vec<&[u8]> = lines
                    .iter()
                    .enumerate()
                    .filter(|&(at, _)| at != drop && at != more)
                    .map(|(_, line)| *line)
                    .collect();
                check(
                    &sample,
                    &format!("without {drop} and {more}"),
                    &kept.concat(),
                    &mut failures,
                );
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn swapped_lines_name_nobody_else() {
    let mut failures = Vec::new();
    for sample in samples() {
        let lines = lines(&sample.log);
        for one in 0..lines.len() {
            for other in one + 1..lines.len() {
                let mut mutant = lines.clone();
                mutant.swap(one, other);
                check(
                    &sample,
                    &format!("{one} and {other} swapped"),
                    &mutant.concat(),
                    &mut failures,
                );
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn truncated_logs_name_nobody_else() {
    let mut failures = Vec::new();
    for sample in samples() {
        // Long logs repeat themselves: every byte of the short ones, some of the long ones.
        let step = sample.log.len() / 1000 + 1;
        for end in (0..sample.log.len()).step_by(step) {
            check(&sample, &format!("cut at {end}"), &sample.log[..end], &mut failures);
        }
        // Every line cut at the same column, as a pager does.
        for column in (1..300).step_by(step) {
            let cut: Vec<u8> = lines(&sample.log)
                .iter()
                .flat_map(|line| {
                    let text = line.strip_suffix(b"\n").unwrap_or(line);
                    [&text[..text.len().min(column)], b"\n"].concat()
                })
                .collect();
            check(&sample, &format!("column {column}"), &cut, &mut failures);
        }
        // The head cut off, as a rotated file has it.
        for start in (0..sample.log.len()).step_by(step) {
            if sample.name.starts_with("95-") {
                // What tells the forgery apart is the very head that is cut off here.
                break;
            }
            check(&sample, &format!("from {start}"), &sample.log[start..], &mut failures);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn records_cut_anywhere_invent_no_pid_in_the_live_parser() {
    for sample in samples() {
        let allowed = killed(&sample);
        for cut in 0..200 {
            let mut parser = LiveParser::new();
            for line in lines(&sample.log) {
                let line = line.strip_suffix(b"\n").unwrap_or(line);
                let line = &line[..line.len().saturating_sub(cut)];
                let Some(record) = KmsgRecord::parse(line) else { continue };
                for kill in parser.take(&record) {
                    assert!(
                        allowed.contains(&u64::from(kill.pid)),
                        "{} -{cut}: {kill:?}",
                        sample.name
                    );
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn flipped_bytes_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16)) {
        for sample in samples() {
            let mut log = sample.log.clone();
            for (at, byte) in &flips {
                let at = at.index(log.len());
                log[at] = *byte;
            }
            read_log(log.as_slice()).unwrap();
            let mut parser = LiveParser::new();
            for record in lines(&log).into_iter().filter_map(KmsgRecord::parse) {
                parser.take(&record);
            }
        }
    }

    #[test]
    fn spliced_lines_never_panic(seed in prop::collection::vec(any::<prop::sample::Index>(), 1..40)) {
        let samples = samples();
        let all: Vec<&[u8]> = samples.iter().flat_map(|sample| lines(&sample.log)).collect();
        let log: Vec<u8> = seed.iter().flat_map(|at| at.get(&all).to_vec()).collect();
        let killed: BTreeSet<u64> = samples.iter().flat_map(killed).collect();
        for kill in read_log(log.as_slice()).unwrap().kills {
            prop_assert!(killed.contains(&u64::from(kill.pid)), "{:?}", kill);
        }
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        read_log(bytes.as_slice()).unwrap();
    }

    #[test]
    fn any_mixture_of_the_grammar_is_read(words in prop::collection::vec(prop::sample::select(WORDS), 0..60)) {
        read_log(words.concat().as_bytes()).unwrap();
    }
}

/// Pieces of which hostile logs are made.
const WORDS: &[&str] = &[
    "Out of memory: ",
    "Memory cgroup out of memory: ",
    "Killed process ",
    "Kill process ",
    "1234",
    " (",
    ")",
    " total-vm:",
    "9kB",
    ", anon-rss:",
    ", file-rss:",
    "oom-kill:constraint=",
    "CONSTRAINT_MEMCG",
    ",nodemask=",
    ",oom_memcg=/",
    ",task_memcg=/",
    ",global_oom",
    ",task=",
    ",pid=",
    ",uid=",
    "Task in /",
    "Tasks in /",
    " killed as a result of limit of ",
    " are going to be killed due to memory.oom.group set",
    "[",
    "]",
    "[1.000000]",
    "<3>",
    "<30>",
    "kernel: ",
    "\n",
    " ",
    "6,1,1,-;",
    "6,2,2,c;",
    "{",
    "}",
    "\"",
    "\"MESSAGE\":",
    ":",
    "\\x0a",
    "#012",
    "\\n",
    "> ",
    " invoked oom-killer: ",
    "\u{1b}[1m",
    "08:00:00",
    "\u{e9}",
];
