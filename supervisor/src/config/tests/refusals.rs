//! What is said about bad files.

use super::{super::problem::shown, *};

/// The message about a bad text, without the path in front of each line.
fn said(text: &str) -> String {
    let error = parse(text).expect_err("a bad text was taken");
    assert!(!error.problems().is_empty());
    error.to_string().replace("/etc/lw/config.toml:", "")
}

/// Whole files, and how the one line about each begins.
const FILES: &[(&str, &str)] = &[
    ("machine = 'a b'", "1: machine: 'a b': is not a machine name: 1 to 64 of"),
    ("\nmachina = 'a'", "2: machina: 'a': is not a known key; did you mean machine?"),
    ("[[lanes]]\nid='a'", "1: lanes: [[lanes]]: is not a known key; did you mean lane?"),
    (
        "[remote]\nurl='/r'\ncolour=1",
        "3: remote.colour: 1: is not a known key; remove it; known here: url,",
    ),
    (
        "[remote]\nurl='/r'\ntoken_file='a'\ncredential='b'",
        "4: remote.credential: (not shown): excludes remote.token_file (line 3); ",
    ),
    ("lane = 'a'", "1: lane: 'a': must be an array of tables; write [[lane]]"),
    ("lane_root = 'x'", "1: lane_root: 'x': must be an absolute path; "),
    ("remote = 'x'", "1: remote: 'x': must be a table, not string; "),
    ("[remote]\nrefresh='1m'", "1: remote.url: is missing; name the remote"),
    ("[remote]\nurl='-x'", "2: remote.url: '-x': must not start with -; "),
    (
        "[remote]\nurl='https://u:hunter2@h/r'",
        "2: remote.url: (not shown): must not carry a secret, ",
    ),
    ("[metrics]\nlisten='x:1'", "2: metrics.listen: 'x:1': must be an IP address"),
    ("[ntfy]\nserver='https://x'\ntopic='a/b'", "3: ntfy.topic: 'a/b': must be 1 to"),
    ("[ntfy]\nserver='x'\ntopic='a'", "2: ntfy.server: 'x': must start with https"),
    (
        "[ntfy]\nserver='https://x'\ntopic='a'\ntoken='tk_1'",
        "4: ntfy.token: (not shown): is not a known key; did you mean token_file?",
    ),
    ("[admission]\nload_max = nan", "2: admission.load_max: nan: must be a number"),
    ("[admission]\nload_max = 0", "2: admission.load_max: 0: must be a number above"),
    ("[admission]\nload_max = inf", "2: admission.load_max: inf: must be a number"),
    ("[admission]\nload_max = '4'", "2: admission.load_max: '4': must be a decimal"),
    ("[admission]\ndisk_free_min = -1", "2: admission.disk_free_min: -1: must be 0 or"),
    ("[admission]\ndisk_free_min = '2GB'", "2: admission.disk_free_min: '2GB': has a"),
    (
        "[admission]\nmemory_pressure_some_avg10_max = 101",
        "2: admission.memory_pressure_some_avg10_max: 101: must be a number above 0 and at most 100",
    ),
    ("[[lane]]\nid='a'\ncommand=['x']", "1: lane[0].dir: is missing; "),
    ("[[lane]]\ndir='/a'\ncommand=['x']", "1: lane[0].id: is missing; "),
    ("[[lane]]\nid='a'\ndir='/a'", "1: lane[0].command: is missing, and the lane is"),
    ("[[lane]]\nid='A'\ndir='/a'\ncommand=['x']", "2: lane[0].id: 'A': is not a lane id"),
    ("[[lane]]\nid='a'\ndir='a'\ncommand=['x']", "3: lane[0].dir: 'a': must be an abs"),
    ("[[lane]]\nid='a'\ndir='/a'\ncommand=[]", "4: lane[0].command: []: must not be e"),
    ("[[lane]]\nid='a'\ndir='/a'\ncommand='x y'", "4: lane[0].command: 'x y': must be a"),
    ("machine = 08", "1: is not TOML: "),
    ("machine = 'a'\nmachine = 'b'", "2: is not TOML: duplicate key"),
    ("x = \"\u{1b}[31m\"", "1: is not TOML: "),
];

/// What follows [`LANE`], and how the one line about it begins.
const LANES: &[(&str, &str)] = &[
    ("deadline = 90", "5: lane[0].deadline: 90: is a duration and needs a unit; write \"90s\""),
    ("deadline = '90'", "5: lane[0].deadline: '90': has no unit; add a unit"),
    ("deadline = '0s'", "5: lane[0].deadline: '0s': must be longer than zero; "),
    ("dedline = '2h'", "5: lane[0].dedline: '2h': is not a known key; did you mean deadline?"),
    ("mode = 'watch'", "5: lane[0].mode: 'watch': is not a known value; write one of: manage,"),
    ("oom_score_adj = -500", "5: lane[0].oom_score_adj: -500: must be 0 to 1000; "),
    (
        "restart = { delay = '10s', max_delay = '5s' }",
        "5: lane[0].restart.max_delay: '5s': must not be below restart.delay (10s, line 5); ",
    ),
    (
        "restart = { max_delay = '5ms' }",
        "5: lane[0].restart.max_delay: '5ms': must not be below restart.delay (1s, the default)",
    ),
    ("restart.breaker = -1", "5: lane[0].restart.breaker: -1: must be 0 to 4294967295; "),
    (
        "limits.memory_max = '1G'\nlimits.memory_high = '2G'",
        "6: lane[0].limits.memory_high: '2G': must not be above limits.memory_max (1G, line 5); ",
    ),
    ("limits.cpu_weight = 0", "5: lane[0].limits.cpu_weight: 0: must be 1 to 10000; "),
    ("limits.cpu_weight = 10001", "5: lane[0].limits.cpu_weight: 10001: must be 1 to"),
    ("limits.memory_max = 0", "5: lane[0].limits.memory_max: 0: must be more than zero; "),
    ("limits.pids_max = 99999999999999999999", "5: lane[0].limits.pids_max: 9999999999"),
    ("watchdog = {}", "5: lane[0].watchdog.prompt: is missing; "),
    ("watchdog.prompt = []", "5: lane[0].watchdog.prompt: []: must not be empty; "),
    ("watchdog.prompt = ['']", "5: lane[0].watchdog.prompt: ['']: must not contain an empty"),
    (
        "watchdog = { prompt = ['?'], action = 'x' }",
        "5: lane[0].watchdog.action: 'x': is not a known value; write one of: page, off",
    ),
    ("env = { LANE_ID = 'x' }", "5: lane[0].env.LANE_ID: (not shown): is set by us"),
    ("env = { LANEWARDEN_X = 'x' }", "5: lane[0].env.LANEWARDEN_X: (not shown): is set"),
    ("env = { 'a=b' = 'x' }", "5: lane[0].env.a=b: (not shown): is no name for"),
    ("env = { A = \"\\u0000\" }", "5: lane[0].env.A: (not shown): must not contain NUL; "),
    ("env = { A = 1 }", "5: lane[0].env.A: (not shown): must be text, not integer; "),
    (
        "[[lane]]\nid='a'\ndir='/b'\ncommand=['x']",
        "6: lane[1].id: 'a': is another lane's id (line 2); ",
    ),
    (
        "[[lane]]\nid='b'\ndir='/x/../a/.'\ncommand=['x']",
        "7: lane[1].dir: '/x/../a/.': is another lane's directory (line 3); ",
    ),
];

/// A good lane of four lines.
const LANE: &str = "[[lane]]\nid='a'\ndir='/a'\ncommand=['x']\n";

#[test]
fn bad_files_are_refused_with_line_key_value_and_rule() {
    let files = FILES.iter().map(|(text, expected)| ((*text).to_owned(), *expected));
    let lanes = LANES.iter().map(|(text, expected)| (format!("{LANE}{text}"), *expected));
    for (text, expected) in files.chain(lanes) {
        let said = said(&text);
        assert!(said.starts_with(expected), "{text}\nsays {said}\nnot {expected}");
        assert_eq!(said.lines().count(), 1, "{text}\nsays {said}");
        for secret in ["\u{1b}", "hunter2", "tk_1"] {
            assert!(!said.contains(secret), "{said:?}");
        }
    }
}

#[test]
fn every_problem_is_told_once_and_by_line() {
    let said = said(
        "[defaults]\ndeadline = '2 hours'\nrestart = { delay = '9m', max_delay = '1m' }\n\
         [[lane]]\nid = 'a'\ndir = 'x'\ncommand = ['x']\n[[lane]]\nid = 'a'\ndirr = '/b'\n[metric]\n",
    );
    let starts: Vec<String> = said
        .lines()
        .map(|line| line.splitn(3, ": ").take(2).collect::<Vec<_>>().join(": "))
        .collect();
    let expected = [
        "2: defaults.deadline",
        "3: defaults.restart.max_delay",
        "6: lane[0].dir",
        "8: lane[1].command",
        "8: lane[1].dir",
        "9: lane[1].id",
        "10: lane[1].dirr",
        "11: metric",
    ];
    assert_eq!(starts, expected, "{said}");
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    for text in [
        format!("machine = {}", "[".repeat(500_000)),
        format!("machine = {}", "{a=".repeat(300_000)),
        format!("{}a = 1", "a.".repeat(400_000)),
        format!("[{}a]", "a.".repeat(400_000)),
    ] {
        // The parser names no line for its recursion limit.
        let said = said(&text);
        assert!(said.contains("is not"), "{}", shown(&said));
    }
}
