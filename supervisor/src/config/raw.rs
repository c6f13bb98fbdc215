//! The configuration as written: what stands in the file, each value with its place, nothing filled in.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use toml::de::DeTable;

use super::{
    document::{At, Document, Place, Refusal, Section},
    forge::{self, RawForge},
    model::{Mode, WatchdogAction},
    value,
};
use crate::ids::{BadName, LaneId, MachineName};

const TOP: &[&str] = &[
    "machine",
    "lane_root",
    "state_dir",
    "runtime_dir",
    "remote",
    "metrics",
    "ntfy",
    "forge",
    "admission",
    "compat",
    "defaults",
    "lane",
];
const REMOTE: &[&str] =
    &["url", "refresh", "deadline", "ssh_key_file", "known_hosts_file", "token_file", "credential"];
const METRICS: &[&str] = &["listen"];
const NTFY: &[&str] = &["server", "topic", "token_file"];
const ADMISSION: &[&str] =
    &["load_max", "disk_free_min", "memory_available_min", "memory_pressure_some_avg10_max"];
const COMPAT: &[&str] = &["shell"];
const PROFILE: &[&str] = &[
    "mode",
    "command",
    "deadline",
    "stop_grace",
    "restart",
    "limits",
    "watchdog",
    "budget",
    "env",
    "oom_score_adj",
];
const LANE: &[&str] = &[
    "id",
    "dir",
    "mode",
    "command",
    "deadline",
    "stop_grace",
    "restart",
    "limits",
    "watchdog",
    "budget",
    "env",
    "oom_score_adj",
];
const RESTART: &[&str] =
    &["delay", "max_delay", "min_gap", "idle_delay", "breaker", "breaker_window"];
const LIMITS: &[&str] = &["memory_max", "memory_high", "pids_max", "cpu_weight"];
const WATCHDOG: &[&str] = &["prompt", "tail_lines", "scan", "action"];
const BUDGET: &[&str] = &["runs", "issues", "hours"];

/// Most processes that a limit may allow: the kernel's own ceiling on 64 bits (PID_MAX_LIMIT, include/linux/threads.h).
const PIDS_MAX: i64 = 4_194_304;

pub(super) struct RawConfig {
    pub(super) machine: Option<At<MachineName>>,
    /// True if the key is there, however wrong its value.
    pub(super) machine_written: bool,
    pub(super) lane_root: Option<At<PathBuf>>,
    pub(super) state_dir: Option<At<PathBuf>>,
    pub(super) state_dir_written: bool,
    pub(super) runtime_dir: Option<At<PathBuf>>,
    pub(super) remote: Option<RawRemote>,
    /// `Some(None)` is a listener that is switched off.
    pub(super) listen: Option<Option<SocketAddr>>,
    pub(super) ntfy: Option<RawNtfy>,
    pub(super) forge: Option<RawForge>,
    pub(super) load_max: Option<f64>,
    pub(super) disk_free_min: Option<u64>,
    pub(super) memory_available_min: Option<u64>,
    pub(super) memory_pressure_some_avg10_max: Option<f64>,
    pub(super) compat_shell: Option<bool>,
    pub(super) defaults: RawProfile,
    pub(super) lanes: Vec<RawLane>,
}

pub(super) struct RawRemote {
    pub(super) url: Option<At<String>>,
    pub(super) refresh: Option<Duration>,
    pub(super) deadline: Option<Duration>,
    pub(super) ssh_key_file: Option<String>,
    pub(super) known_hosts_file: Option<String>,
    pub(super) token_file: Option<At<String>>,
    pub(super) credential: Option<At<String>>,
}

pub(super) struct RawNtfy {
    pub(super) server: Option<String>,
    pub(super) topic: Option<String>,
    pub(super) token_file: Option<String>,
}

pub(super) struct RawLane {
    /// Where the lane is written.
    pub(super) line: Option<usize>,
    /// Dotted path of the command, whether or not it is there.
    pub(super) command_key: String,
    pub(super) id: Option<At<LaneId>>,
    pub(super) dir: Option<At<PathBuf>>,
    pub(super) profile: RawProfile,
}

/// What a lane inherits and may replace.
#[derive(Debug, Clone, Default)]
pub(super) struct RawProfile {
    pub(super) mode: Option<At<Mode>>,
    pub(super) command: Option<At<Vec<String>>>,
    /// True if the key is there, however wrong its value.
    pub(super) command_written: bool,
    pub(super) deadline: Option<At<Duration>>,
    pub(super) stop_grace: Option<At<Duration>>,
    pub(super) restart: RawRestart,
    pub(super) limits: RawLimits,
    pub(super) watchdog: RawWatchdog,
    pub(super) budget: RawBudget,
    pub(super) env: BTreeMap<String, String>,
    pub(super) oom_score_adj: Option<At<i32>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RawRestart {
    pub(super) delay: Option<At<Duration>>,
    pub(super) max_delay: Option<At<Duration>>,
    pub(super) min_gap: Option<At<Duration>>,
    pub(super) idle_delay: Option<At<Duration>>,
    pub(super) breaker: Option<At<u32>>,
    pub(super) breaker_window: Option<At<Duration>>,
}

/// Each limit may be written as `"max"`, which is `None` inside.
#[derive(Debug, Clone, Default)]
pub(super) struct RawLimits {
    pub(super) memory_max: Option<At<Option<u64>>>,
    pub(super) memory_high: Option<At<Option<u64>>>,
    pub(super) pids_max: Option<At<Option<u64>>>,
    pub(super) cpu_weight: Option<At<u64>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RawWatchdog {
    /// Where a watchdog table was opened, if anywhere.
    pub(super) place: Option<Place>,
    pub(super) prompt: Option<At<Vec<String>>>,
    pub(super) prompt_written: bool,
    pub(super) tail_lines: Option<At<u32>>,
    pub(super) scan: Option<At<Duration>>,
    /// `None` inside is `"off"`.
    pub(super) action: Option<At<Option<WatchdogAction>>>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct RawBudget {
    pub(super) runs: Option<At<u64>>,
    pub(super) issues: Option<At<u64>>,
    pub(super) hours: Option<At<u64>>,
}

impl RawProfile {
    /// This profile with what it leaves open taken from `defaults`, key by key.
    pub(super) fn over(self, defaults: &Self) -> Self {
        let base = defaults.clone();
        let mut env = base.env;
        env.extend(self.env);
        Self {
            mode: self.mode.or(base.mode),
            command: if self.command_written { self.command } else { base.command },
            command_written: self.command_written || base.command_written,
            deadline: self.deadline.or(base.deadline),
            stop_grace: self.stop_grace.or(base.stop_grace),
            restart: RawRestart {
                delay: self.restart.delay.or(base.restart.delay),
                max_delay: self.restart.max_delay.or(base.restart.max_delay),
                min_gap: self.restart.min_gap.or(base.restart.min_gap),
                idle_delay: self.restart.idle_delay.or(base.restart.idle_delay),
                breaker: self.restart.breaker.or(base.restart.breaker),
                breaker_window: self.restart.breaker_window.or(base.restart.breaker_window),
            },
            limits: RawLimits {
                memory_max: self.limits.memory_max.or(base.limits.memory_max),
                memory_high: self.limits.memory_high.or(base.limits.memory_high),
                pids_max: self.limits.pids_max.or(base.limits.pids_max),
                cpu_weight: self.limits.cpu_weight.or(base.limits.cpu_weight),
            },
            watchdog: RawWatchdog {
                place: self.watchdog.place.or(base.watchdog.place),
                prompt: self.watchdog.prompt.or(base.watchdog.prompt),
                prompt_written: self.watchdog.prompt_written || base.watchdog.prompt_written,
                tail_lines: self.watchdog.tail_lines.or(base.watchdog.tail_lines),
                scan: self.watchdog.scan.or(base.watchdog.scan),
                action: self.watchdog.action.or(base.watchdog.action),
            },
            budget: RawBudget {
                runs: self.budget.runs.or(base.budget.runs),
                issues: self.budget.issues.or(base.budget.issues),
                hours: self.budget.hours.or(base.budget.hours),
            },
            env,
            oom_score_adj: self.oom_score_adj.or(base.oom_score_adj),
        }
    }
}

/// Reads the whole tree; every problem goes to the document.
pub(super) fn read<'t>(doc: &Document<'t>, tree: &DeTable<'t>) -> RawConfig {
    let top = Section::top(doc, tree, TOP);
    let admission = top.section("admission", ADMISSION);
    let admission = admission.as_ref();
    let size = |key| admission.and_then(|table| table.read(key, value::size)).map(|at| at.value);
    let number = |key, max| {
        admission
            .and_then(|table| table.read(key, |v| value::positive_number(v, max)))
            .map(|at| at.value)
    };
    RawConfig {
        machine: top.read("machine", |v| named(MachineName::new(&value::text(v)?))),
        machine_written: top.has("machine"),
        lane_root: top.read("lane_root", value::directory),
        state_dir: top.read("state_dir", value::directory),
        state_dir_written: top.has("state_dir"),
        runtime_dir: top.read("runtime_dir", value::directory),
        remote: top.section("remote", REMOTE).map(|table| remote(&table)),
        listen: top
            .section("metrics", METRICS)
            .and_then(|table| table.read("listen", value::listen))
            .map(|at| at.value),
        ntfy: top.section("ntfy", NTFY).map(|table| ntfy(&table)),
        forge: top.section("forge", forge::KEYS).map(|table| forge::read(&table)),
        load_max: number("load_max", 1e6),
        disk_free_min: size("disk_free_min"),
        memory_available_min: size("memory_available_min"),
        memory_pressure_some_avg10_max: number("memory_pressure_some_avg10_max", 100.0),
        compat_shell: top
            .section("compat", COMPAT)
            .and_then(|table| table.read("shell", value::truth))
            .map(|at| at.value),
        defaults: top.section("defaults", PROFILE).map(|table| profile(&table)).unwrap_or_default(),
        lanes: top.sections("lane", LANE).iter().map(lane).collect(),
    }
}

fn named<T>(name: Result<T, BadName>) -> value::Rule<T> {
    name.map_err(|error| {
        // "VALUE is not a KIND: RULE": the value is shown already.
        let text = error.to_string();
        let rule = text.rsplit_once(" is not a ").map_or(text.as_str(), |(_, rule)| rule);
        Refusal::new(format!("is not a {rule}"), "choose another name")
    })
}

fn remote(table: &Section<'_, '_>) -> RawRemote {
    table.require("url", "name the remote, or remove [remote] to run without claims");
    let plain = |key| table.read(key, value::name).map(|at| at.value);
    RawRemote {
        url: table.read("url", value::remote_url),
        refresh: table.read("refresh", value::positive_duration).map(|at| at.value),
        deadline: table.read("deadline", value::positive_duration).map(|at| at.value),
        ssh_key_file: plain("ssh_key_file"),
        known_hosts_file: plain("known_hosts_file"),
        token_file: table.read("token_file", value::name),
        credential: table.read("credential", |v| {
            let name = value::name(v)?;
            if name.contains('/') || name == "." || name == ".." {
                return Err(Refusal::new("must be a name", "for a path use token_file"));
            }
            Ok(name)
        }),
    }
}

fn ntfy(table: &Section<'_, '_>) -> RawNtfy {
    table.require("server", "name the ntfy server, or remove [ntfy] to page nobody");
    table.require("topic", "name the topic that the pages go to");
    RawNtfy {
        server: table.read("server", value::server).map(|at| at.value),
        topic: table.read("topic", value::topic).map(|at| at.value),
        token_file: table.read("token_file", value::name).map(|at| at.value),
    }
}

fn lane(table: &Section<'_, '_>) -> RawLane {
    table.require("id", "give the lane a name, such as id = \"lane-1\"");
    table.require("dir", "name the lane's checkout, such as dir = \"/data/lanes/lane-1\"");
    RawLane {
        line: table.line(),
        command_key: table.path("command"),
        id: table.read("id", |v| named(LaneId::new(&value::text(v)?))),
        dir: table.read("dir", value::directory),
        profile: profile(table),
    }
}

fn profile(table: &Section<'_, '_>) -> RawProfile {
    RawProfile {
        mode: table.read("mode", |v| value::member(v, &Mode::ALL, Mode::as_str)),
        command: table.read("command", value::command),
        command_written: table.has("command"),
        deadline: table.read("deadline", value::positive_duration),
        stop_grace: table.read("stop_grace", value::duration),
        restart: table.section("restart", RESTART).map(|t| restart(&t)).unwrap_or_default(),
        limits: table.section("limits", LIMITS).map(|t| limits(&t)).unwrap_or_default(),
        watchdog: table
            .section("watchdog", WATCHDOG)
            .map(|t| watchdog(table, &t))
            .unwrap_or_default(),
        budget: table.section("budget", BUDGET).map(|t| budget(&t)).unwrap_or_default(),
        env: table.free_section("env").map(|t| environment(&t)).unwrap_or_default(),
        oom_score_adj: table.read("oom_score_adj", |v| {
            let number = value::integer(v, 0, 1000)?;
            i32::try_from(number).map_err(|_| Refusal::new("must be 0 to 1000", ""))
        }),
    }
}

fn restart(table: &Section<'_, '_>) -> RawRestart {
    RawRestart {
        delay: table.read("delay", value::duration),
        max_delay: table.read("max_delay", value::duration),
        min_gap: table.read("min_gap", value::duration),
        idle_delay: table.read("idle_delay", value::duration),
        breaker: table.read("breaker", |v| value::small(v, 0, u32::MAX)),
        breaker_window: table.read("breaker_window", value::positive_duration),
    }
}

fn limits(table: &Section<'_, '_>) -> RawLimits {
    RawLimits {
        memory_max: table.read("memory_max", value::memory_limit),
        memory_high: table.read("memory_high", value::memory_limit),
        pids_max: table.read("pids_max", |v| value::limit(v, |v| value::count(v, 1, PIDS_MAX))),
        cpu_weight: table.read("cpu_weight", |v| value::count(v, 1, 10_000)),
    }
}

fn watchdog(parent: &Section<'_, '_>, table: &Section<'_, '_>) -> RawWatchdog {
    let action = |v: &toml::de::DeValue<'_>| {
        if v.as_str() == Some("off") {
            return Ok(None);
        }
        value::member(v, &WatchdogAction::ALL, WatchdogAction::as_str)
            .map(Some)
            .map_err(|refusal| Refusal { remedy: format!("{}, off", refusal.remedy), ..refusal })
    };
    RawWatchdog {
        place: parent.read("watchdog", |_| Ok(())).map(|at| at.place),
        prompt: table.read("prompt", value::prompts),
        prompt_written: table.has("prompt"),
        tail_lines: table.read("tail_lines", |v| value::small(v, 1, 10_000)),
        scan: table.read("scan", value::positive_duration),
        action: table.read("action", action),
    }
}

fn budget(table: &Section<'_, '_>) -> RawBudget {
    let count = |key| table.read(key, |v| value::count(v, 0, i64::from(u32::MAX)));
    RawBudget { runs: count("runs"), issues: count("issues"), hours: count("hours") }
}

fn environment(table: &Section<'_, '_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (key, item) in table.entries() {
        let place = Place {
            // Values of an environment may be secrets whatever their names.
            shown: "(not shown)".to_owned(),
            ..table.doc.place(table.path(key), item)
        };
        match env_key(key).and_then(|()| value::text(item.get_ref())) {
            Ok(text) => {
                env.insert(key.to_owned(), text);
            }
            Err(refusal) => table.doc.refuse(&place, refusal),
        }
    }
    env
}

fn env_key(key: &str) -> Result<(), Refusal> {
    if key.is_empty() || key.contains(['=', '\0']) {
        return Err(Refusal::new(
            "is no name for a variable",
            "a name is not empty and has neither = nor NUL",
        ));
    }
    if key.starts_with("LANEWARDEN_") || ["LANE_ID", "CLAIM_ACTOR", "MARKER_FILE"].contains(&key) {
        return Err(Refusal::new("is set by us for every run", "choose another variable"));
    }
    Ok(())
}
