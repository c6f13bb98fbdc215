//! Whole files: what they mean, and what is said about bad ones.

use std::{collections::BTreeMap, path::Path, time::Duration};

use proptest::prelude::*;

use super::*;
use crate::keeper::protocol::Limits;

mod refusals;

/// The example of the design document, as it stands there.
const EXAMPLE: &str = r#"
machine = "box-a"                      # default: sanitised short host name
lane_root = "/data/lanes"
state_dir = "/var/lib/lanewarden"      # default: $STATE_DIRECTORY, XDG, else this
runtime_dir = "/run/lanewarden"

[remote]                               # where claims live
url = "git@host:org/repo.git"          # URL or path; omit the table to run without claims
refresh = "5m"
deadline = "20s"
ssh_key_file = "..."                   # optional, with known_hosts_file; or token_file / credential git-token for https

[metrics]
listen = "127.0.0.1:9464"              # /metrics /healthz /readyz /api/v1/lanes and a status page at /

[ntfy]
server = "https://ntfy.example"
topic = "fleet"
token_file = "ntfy-token"              # or the systemd credential of that name

[admission]                            # may one more worker start?
load_max = 16.0                        # default: 4 per CPU
disk_free_min = "40G"                  # default: 2G
memory_available_min = "4G"            # default: 1G
memory_pressure_some_avg10_max = 20.0

[defaults]                             # every lane inherits; any key may be set per lane
command = ["agent", "--print", "/worker"]
deadline = "2h"                        # wall clock of one run
stop_grace = "10s"                     # TERM, then KILL of the whole tree
restart = { delay = "1s", max_delay = "5m", min_gap = "1s", idle_delay = "15m", breaker = 3, breaker_window = "1h" }
limits = { memory_max = "24G", memory_high = "20G", pids_max = 4096, cpu_weight = 100 }
watchdog = { prompt = ["Do you want to"], tail_lines = 20, scan = "30s", action = "page" }
budget = { runs = 0, issues = 4, hours = 8 }          # 0 = unlimited
env = { FOO = "bar" }                  # the worker gets an allow-listed environment plus these

[[lane]]
id = "lane-1"
dir = "/data/lanes/lane-1"

[[lane]]
id = "lane-tmux"
dir = "/data/lanes/lane-2"
mode = "observe"                       # somebody else starts the worker; we watch, stamp and report
"#;

fn env() -> Env {
    Env { cpus: 8, ..Env::of([("HOME", "/home/u")]) }
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("/etc/lw/config.toml"), &env())
}

#[test]
fn the_example_of_the_design_is_read() {
    let config = parse(EXAMPLE).unwrap();
    assert_eq!(config.machine.as_str(), "box-a");
    let remote = config.remote.as_ref().unwrap();
    assert_eq!(remote.refresh, Duration::from_secs(300));
    assert_eq!(remote.ssh_key_file.as_deref(), Some(Path::new("/etc/lw/...")));
    let ntfy = config.ntfy.as_ref().unwrap();
    assert_eq!(ntfy.token_file.as_deref(), Some(Path::new("/etc/lw/ntfy-token")));
    assert_eq!(config.admission.disk_free_min, 40 << 30);
    assert_eq!(config.admission.memory_pressure_some_avg10_max, Some(20.0));
    assert!(
        config.lanes.iter().all(|lane| lane.command.is_empty() == (lane.mode == Mode::Observe))
    );
    let [first, second] = config.lanes.as_slice() else { panic!("{:#?}", config.lanes) };
    assert_eq!(first.command, ["agent", "--print", "/worker"]);
    assert_eq!(first.restart.idle_delay, Duration::from_secs(900));
    assert_eq!(
        first.limits,
        Limits {
            memory_max: Some(24 << 30),
            memory_high: Some(20 << 30),
            pids_max: Some(4096),
            cpu_weight: Some(100)
        }
    );
    assert_eq!(first.budget, Budget { runs: 0, issues: 4, hours: 8 });
    assert_eq!((first.mode, second.mode), (Mode::Manage, Mode::Observe));
    assert!(config.notes.is_empty(), "an inherited command is no mistake: {:?}", config.notes);
}

#[test]
fn an_empty_file_is_a_configuration_without_lanes() {
    let config = parse("").unwrap();
    assert_eq!(config.machine.as_str(), "localhost");
    assert_eq!(config.state_dir, Path::new("/home/u/.local/state/lanewarden"));
    assert_eq!(config.runtime_dir, Path::new("/home/u/.local/state/lanewarden/run"));
    assert_eq!(config.lane_root, Path::new("/home/u/.local/state/lanewarden/lanes"));
    assert_eq!(config.metrics, Some(Metrics { listen: "127.0.0.1:9464".parse().unwrap() }));
    assert_eq!((config.remote, config.ntfy), (None, None));
    assert_eq!(
        config.admission,
        Admission {
            load_max: 32.0,
            disk_free_min: 2 << 30,
            memory_available_min: 1 << 30,
            memory_pressure_some_avg10_max: None
        }
    );
    assert!(config.lanes.is_empty());
}

#[test]
fn a_lane_of_two_keys_gets_every_default() {
    let text = "[[lane]]\nid = 'a'\ndir = '/a'\ncommand = ['x']";
    let config = parse(text).unwrap();
    let lane = config.lane(&crate::ids::LaneId::new("a").unwrap()).unwrap();
    assert_eq!(lane.deadline, Duration::from_secs(7200));
    assert_eq!(lane.stop_grace, Duration::from_secs(10));
    assert_eq!(
        lane.restart,
        Restart {
            delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(300),
            min_gap: Duration::from_secs(1),
            idle_delay: Duration::from_secs(900),
            breaker: 3,
            breaker_window: Duration::from_secs(3600)
        }
    );
    assert_eq!(lane.limits, Limits::default());
    assert_eq!((lane.watchdog.as_ref(), lane.oom_score_adj), (None, 400));
    assert_eq!(lane.budget, Budget::default());
}

#[test]
fn directories_come_from_systemd_then_root_then_xdg() {
    let dirs = |env: &Env| {
        let config = Config::parse("", Path::new("c"), env).unwrap();
        (config.state_dir, config.runtime_dir)
    };
    let systemd = Env {
        root: true,
        ..Env::of([("STATE_DIRECTORY", "/s:/t"), ("RUNTIME_DIRECTORY", "/r"), ("HOME", "/root")])
    };
    assert_eq!(dirs(&systemd), (PathBuf::from("/s"), PathBuf::from("/r")));
    let root = Env { root: true, ..Env::of([("XDG_STATE_HOME", "/x")]) };
    assert_eq!(
        dirs(&root),
        (PathBuf::from("/var/lib/lanewarden"), PathBuf::from("/run/lanewarden"))
    );
    let user = Env::of([("XDG_STATE_HOME", "/x"), ("XDG_RUNTIME_DIR", "/run/user/1")]);
    assert_eq!(
        dirs(&user),
        (PathBuf::from("/x/lanewarden"), PathBuf::from("/run/user/1/lanewarden"))
    );
    let relative = Env::of([("XDG_STATE_HOME", "x"), ("HOME", "/h")]);
    assert_eq!(dirs(&relative).0, Path::new("/h/.local/state/lanewarden"));
    let error = Config::parse("", Path::new("c"), &Env::default()).unwrap_err().to_string();
    assert_eq!(
        error,
        "c: machine: is missing, and the host name gives none; write machine = \"...\"\n\
         c: state_dir: is missing, and no home directory is known; write state_dir, or set HOME"
    );
}

#[test]
fn a_lane_replaces_single_keys_of_the_defaults() {
    let config = parse(
        r#"
[defaults]
command = ["x"]
restart = { delay = "2s", breaker = 5 }
limits = { memory_max = "8G", pids_max = 100 }
watchdog = { prompt = ["?"], scan = "10s" }
env = { A = "1", B = "2" }
[[lane]]
id = "a"
dir = "/a"
restart.breaker = 0
limits.memory_max = "max"
watchdog.tail_lines = 5
env.B = "3"
[[lane]]
id = "b"
dir = "/b"
restart.delay = "10m"
watchdog.action = "off"
"#,
    )
    .unwrap();
    let [a, b] = config.lanes.as_slice() else { panic!("{:#?}", config.lanes) };
    assert_eq!((a.restart.delay, a.restart.breaker), (Duration::from_secs(2), 0));
    assert_eq!((a.limits.memory_max, a.limits.pids_max), (None, Some(100)));
    let watchdog = a.watchdog.as_ref().unwrap();
    assert_eq!((watchdog.tail_lines, watchdog.scan), (5, Duration::from_secs(10)));
    let pairs = [("A", "1"), ("B", "3")].map(|(k, v)| (k.to_owned(), v.to_owned()));
    assert_eq!(a.env, BTreeMap::from(pairs));
    assert_eq!(b.watchdog, None);
    assert_eq!(b.restart.max_delay, Duration::from_secs(600), "never below the delay");
    assert_eq!(b.limits.memory_max, Some(8 << 30));
}

#[test]
fn a_credential_wins_over_a_file_of_its_name() {
    let text = "[ntfy]\nserver = 'https://n/'\ntopic = 't'\ntoken_file = 'ntfy-token'\n\
                [remote]\nurl = 'https://h/r'\ncredential = 'git-token'";
    let mut env = env();
    let load = |env: &Env| {
        let config = Config::parse(text, Path::new("/etc/c.toml"), env).unwrap();
        (config.ntfy.unwrap().token_file.unwrap(), config.remote.unwrap().token_file)
    };
    assert_eq!(load(&env), (PathBuf::from("/etc/ntfy-token"), None));
    env = Env::of([("HOME", "/h"), ("CREDENTIALS_DIRECTORY", "/run/c")]);
    assert_eq!(load(&env).0, Path::new("/etc/ntfy-token"));
    env.credentials.insert("ntfy-token".to_owned());
    assert_eq!(load(&env), (PathBuf::from("/run/c/ntfy-token"), Some("/run/c/git-token".into())));
}

#[test]
fn an_observed_lane_with_a_command_of_its_own_is_noted() {
    let config = parse("[[lane]]\nid='a'\ndir='/a'\nmode='observe'\ncommand=['x']").unwrap();
    let [note] = config.notes.as_slice() else { panic!("{:?}", config.notes) };
    assert_eq!(
        note.to_string(),
        "lane[0].command: ['x']: is ignored in a lane that is only observed; remove it, or the mode"
    );
    assert!(parse("[[lane]]\nid='a'\ndir='/a'\nmode='observe'").is_ok());
}

#[test]
fn files_that_cannot_be_read_are_told_apart_from_bad_ones() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("config.toml");
    assert!(matches!(Config::load(&path, &env()), Err(ConfigError::Read { .. })));
    std::fs::write(&path, b"machine = 'a'\nlane_root = '\xff'\n").unwrap();
    let error = Config::load(&path, &env()).unwrap_err().to_string();
    assert!(error.ends_with("config.toml:2: is not UTF-8; save the file as UTF-8"), "{error}");
    std::fs::write(&path, vec![b'#'; (1 << 20) + 1]).unwrap();
    assert!(matches!(Config::load(&path, &env()), Err(ConfigError::Read { .. })));
    std::fs::write(&path, "\u{feff}machine = 'a'\r\n").unwrap();
    assert_eq!(Config::load(&path, &env()).unwrap().machine.as_str(), "a");
}

#[test]
fn the_file_is_looked_for_in_four_places() {
    let home = tempfile::tempdir().unwrap();
    let own = home.path().join("lanewarden/config.toml");
    let xdg = home.path().to_str().unwrap();
    let env = Env::of([("XDG_CONFIG_HOME", xdg)]);
    assert_eq!(search_path(None, &env), Path::new(SYSTEM_PATH));
    std::fs::create_dir(own.parent().unwrap()).unwrap();
    std::fs::write(&own, "").unwrap();
    assert_eq!(search_path(None, &env), own);
    let named = Env::of([("XDG_CONFIG_HOME", xdg), ("LANEWARDEN_CONFIG", "/gone")]);
    assert_eq!(search_path(None, &named), Path::new("/gone"));
    assert_eq!(search_path(Some(Path::new("x")), &named), Path::new("x"));
}

#[test]
fn what_is_in_force_can_be_read_again() {
    let mut config = parse(EXAMPLE).unwrap();
    for lane in &mut config.lanes {
        lane.env.clear();
    }
    assert_eq!(parse(&effective(&config)).unwrap(), config);
    let config =
        parse("metrics.listen = 'off'\n[[lane]]\nid='a'\ndir='/a'\ncommand=['x']").unwrap();
    assert_eq!(parse(&effective(&config)).unwrap(), config);
}

#[test]
fn what_is_in_force_shows_no_secret_and_no_escape() {
    let config = parse(
        "[ntfy]\nserver='https://n'\ntopic='hunter2'\n[[lane]]\nid='a'\ndir='/a'\n\
         command=['x', '--token', 'hunter2', '--auth=hunter2', \"\\u009b31m\"]\nenv={A='hunter2'}",
    )
    .unwrap();
    let text = effective(&config);
    assert!(!text.contains("hunter2") && !text.contains('\u{9b}'), "{text}");
    assert!(text.contains("env = { \"A\" = \"***\" }"), "{text}");
    assert!(parse(&text.replace("topic = \"***\"", "topic = 't'")).is_ok(), "{text}");
}

proptest! {
    #[test]
    fn no_text_panics_and_every_refusal_says_why(text in "\\PC{0,200}") {
        if let Err(error) = parse(&text) {
            prop_assert!(!error.problems().is_empty());
        }
    }

    /// The example with something else put over a piece of it: mostly TOML, mostly wrong.
    #[test]
    fn no_damaged_file_panics(
        at in 0..EXAMPLE.len(),
        length in 0_usize..40,
        with in "([a-z0-9=\\[\\]{}'\". \n-]|[\\x00-\\x1f]|\\PC){0,30}",
    ) {
        let head: String = EXAMPLE.chars().take(at).collect();
        let tail: String = EXAMPLE.chars().skip(at + length).collect();
        match parse(&format!("{head}{with}{tail}")) {
            Ok(mut config) => {
                // A masked topic is no topic.
                config.ntfy = None;
                let text = effective(&config);
                prop_assert!(parse(&text).is_ok(), "{}", text);
            }
            Err(error) => {
                prop_assert!(!error.problems().is_empty());
                let text = error.to_string();
                prop_assert_eq!(text.lines().count(), error.problems().len());
                prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{:?}", text);
            }
        }
    }
}
