//! From as written to as meant: defaults filled in, and the rules that hold between values.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Component, Path, PathBuf},
    time::Duration,
};

use super::{
    Admission, Budget, Compat, Config, Env, Lane, Metrics, Mode, Ntfy, Problem, Remote, Restart,
    Watchdog,
    document::{At, Document, Place, Refusal},
    raw::{RawConfig, RawLane, RawProfile, RawRemote, RawWatchdog},
    units::{format_duration, format_size},
};
use crate::{
    ids::{LaneId, MachineName},
    keeper::protocol::Limits,
};

const PORT: u16 = 9464;
const MINUTE: u64 = 60;
const HOUR: u64 = 60 * MINUTE;
const GIB: u64 = 1 << 30;

/// The configuration; `None` if something is wrong that leaves no value, which is then among the document's problems.
pub(super) fn resolve(
    doc: &Document<'_>,
    raw: RawConfig,
    path: &Path,
    env: &Env,
) -> Option<Config> {
    let mut notes = Vec::new();
    let lanes = lanes(doc, raw.lanes, &raw.defaults, &mut notes);
    let machine = machine(doc, raw.machine, raw.machine_written, env);
    let state_dir = raw.state_dir.map(|at| at.value).or_else(|| env.default_state_dir());
    if state_dir.is_none() && !raw.state_dir_written {
        missing(doc, "state_dir", "no home directory is known", "write state_dir, or set HOME");
    }
    let remote = match raw.remote {
        Some(remote) => Some(self::remote(doc, remote, path, env)?),
        None => None,
    };
    let ntfy = match raw.ntfy {
        Some(ntfy) => Some(Ntfy {
            server: ntfy.server?,
            topic: ntfy.topic?,
            token_file: ntfy.token_file.map(|file| secret_file(&file, path, env)),
        }),
        None => None,
    };
    let forge = match raw.forge {
        Some(forge) => Some(super::forge::resolve(doc, forge, path, env)?),
        None => None,
    };
    let state_dir = state_dir?;
    Some(Config {
        machine: machine?,
        lane_root: raw.lane_root.map_or_else(|| state_dir.join("lanes"), |at| at.value),
        runtime_dir: raw
            .runtime_dir
            .map_or_else(|| env.default_runtime_dir(&state_dir), |at| at.value),
        state_dir,
        remote,
        metrics: raw
            .listen
            .unwrap_or_else(|| Some(SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))))
            .map(|listen| Metrics { listen }),
        ntfy,
        forge,
        admission: Admission {
            load_max: raw.load_max.unwrap_or_else(|| 4.0 * f64::from(env.cpus.max(1))),
            disk_free_min: raw.disk_free_min.unwrap_or(2 * GIB),
            memory_available_min: raw.memory_available_min.unwrap_or(GIB),
            memory_pressure_some_avg10_max: raw.memory_pressure_some_avg10_max,
        },
        compat: Compat { shell: raw.compat_shell.unwrap_or_default() },
        lanes,
        path: path.to_owned(),
        notes,
    })
}

fn machine(
    doc: &Document<'_>,
    written: Option<At<MachineName>>,
    is_written: bool,
    env: &Env,
) -> Option<MachineName> {
    let machine = written
        .map(|at| at.value)
        .or_else(|| env.host_name.as_deref().and_then(MachineName::from_host_name));
    if machine.is_none() && !is_written {
        missing(doc, "machine", "the host name gives none", "write machine = \"...\"");
    }
    machine
}

fn missing(doc: &Document<'_>, key: &str, why: &str, remedy: &str) {
    doc.report(Problem {
        line: None,
        key: key.to_owned(),
        value: None,
        rule: format!("is missing, and {why}"),
        remedy: remedy.to_owned(),
    });
}

fn remote(doc: &Document<'_>, raw: RawRemote, path: &Path, env: &Env) -> Option<Remote> {
    if let (Some(file), Some(credential)) = (&raw.token_file, &raw.credential) {
        let rule = format!("excludes remote.token_file (line {})", file.place.line);
        doc.refuse(&credential.place, Refusal::new(rule, "keep one of the two"));
    }
    let file = |name: String| beside(&name, path);
    let token_file = raw.token_file.map(|at| secret_file(&at.value, path, env)).or_else(|| {
        let name = &raw.credential.as_ref()?.value;
        env.credentials_dir().map(|dir| dir.join(name))
    });
    Some(Remote {
        url: raw.url?.value,
        refresh: raw.refresh.unwrap_or(Duration::from_secs(5 * MINUTE)),
        deadline: raw.deadline.unwrap_or(Duration::from_secs(20)),
        ssh_key_file: raw.ssh_key_file.map(file),
        known_hosts_file: raw.known_hosts_file.map(|name| beside(&name, path)),
        token_file,
        credential: raw.credential.map(|at| at.value),
    })
}

/// A secret's file: the systemd credential of that name where there is one, else a path from the configuration on.
pub(super) fn secret_file(name: &str, config: &Path, env: &Env) -> PathBuf {
    match env.credentials_dir() {
        Some(dir) if env.credentials.contains(name) => dir.join(name),
        Some(_) | None => beside(name, config),
    }
}

/// A path that is relative to the configuration's directory.
fn beside(name: &str, config: &Path) -> PathBuf {
    config.parent().unwrap_or(Path::new("")).join(name)
}

fn lanes(
    doc: &Document<'_>,
    raw: Vec<RawLane>,
    defaults: &RawProfile,
    notes: &mut Vec<Problem>,
) -> Vec<Lane> {
    // A contradiction within [defaults] is one even where no lane inherits it.
    profile_rules(doc, defaults);
    let mut ids: BTreeMap<LaneId, usize> = BTreeMap::new();
    let mut dirs: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut lanes = Vec::new();
    for lane in raw {
        if let Some(at) = &lane.id
            && let Some(first) = ids.insert(at.value.clone(), at.place.line)
        {
            refuse_twice(doc, &at.place, "is another lane's id", first);
        }
        if let Some(at) = &lane.dir
            && let Some(first) = dirs.insert(normal(&at.value), at.place.line)
        {
            refuse_twice(doc, &at.place, "is another lane's directory", first);
        }
        let own_command = lane.profile.command.as_ref().map(|at| at.place.clone());
        let profile = lane.profile.over(defaults);
        profile_rules(doc, &profile);
        let mode = profile.mode.as_ref().map(|at| at.value).unwrap_or_default();
        match (mode, own_command) {
            (Mode::Observe, Some(place)) => notes.push(Problem {
                line: Some(place.line),
                key: place.key,
                value: Some(place.shown),
                rule: "is ignored in a lane that is only observed".to_owned(),
                remedy: "remove it, or the mode".to_owned(),
            }),
            (Mode::Manage, _) if !profile.command_written => doc.report(Problem {
                line: lane.line,
                key: lane.command_key,
                value: None,
                rule: "is missing, and the lane is managed".to_owned(),
                remedy: "write it here or in [defaults], or write mode = \"observe\"".to_owned(),
            }),
            (Mode::Manage | Mode::Observe, _) => {}
        }
        if let (Some(id), Some(dir)) = (lane.id, lane.dir) {
            lanes.push(meant(id.value, dir.value, mode, profile));
        }
    }
    lanes
}

fn refuse_twice(doc: &Document<'_>, place: &Place, rule: &str, first: usize) {
    let rule = format!("{rule} (line {first})");
    doc.refuse(place, Refusal::new(rule, "each lane needs its own"));
}

/// The path without `.`, doubled slashes and `..`, by its text alone.
pub(super) fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(component),
        }
    }
    out
}

/// Rules between the values of one profile.
fn profile_rules(doc: &Document<'_>, profile: &RawProfile) {
    let restart = &profile.restart;
    if let Some(max) = &restart.max_delay {
        let (delay, from) = match &restart.delay {
            Some(at) => (at.value, format!("line {}", at.place.line)),
            None => (RESTART_DELAY, "the default".to_owned()),
        };
        if max.value < delay {
            let rule =
                format!("must not be below restart.delay ({}, {from})", format_duration(delay));
            doc.refuse(&max.place, Refusal::new(rule, "raise it, or lower restart.delay"));
        }
    }
    if let (Some(high), Some(max)) = (&profile.limits.memory_high, &profile.limits.memory_max)
        && let (Some(high_bytes), Some(max_bytes)) = (high.value, max.value)
        && high_bytes > max_bytes
    {
        let rule = format!(
            "must not be above limits.memory_max ({}, line {})",
            format_size(max_bytes),
            max.place.line
        );
        doc.refuse(&high.place, Refusal::new(rule, "lower it: throttling comes before the kill"));
    }
    let watchdog = &profile.watchdog;
    if let Some(place) = &watchdog.place
        && !watchdog.prompt_written
        && !is_off(watchdog)
    {
        doc.report(Problem {
            line: Some(place.line),
            key: format!("{}.prompt", place.key),
            value: None,
            rule: "is missing".to_owned(),
            remedy: "name the texts that mean a question".to_owned(),
        });
    }
}

const RESTART_DELAY: Duration = Duration::from_secs(1);

fn is_off(watchdog: &RawWatchdog) -> bool {
    watchdog.action.as_ref().is_some_and(|action| action.value.is_none())
}

fn meant(id: LaneId, dir: PathBuf, mode: Mode, profile: RawProfile) -> Lane {
    let seconds = |at: Option<At<Duration>>, default: u64| {
        at.map_or(Duration::from_secs(default), |at| at.value)
    };
    let restart = profile.restart;
    let delay = restart.delay.map_or(RESTART_DELAY, |at| at.value);
    let limit = |at: Option<At<Option<u64>>>| at.and_then(|at| at.value);
    let budget = |at: Option<At<u64>>| at.map_or(0, |at| at.value);
    Lane {
        id,
        dir,
        mode,
        command: match mode {
            Mode::Manage => profile.command.map(|at| at.value).unwrap_or_default(),
            Mode::Observe => Vec::new(),
        },
        deadline: seconds(profile.deadline, 2 * HOUR),
        stop_grace: seconds(profile.stop_grace, 10),
        restart: Restart {
            delay,
            max_delay: restart
                .max_delay
                .map_or_else(|| delay.max(Duration::from_secs(5 * MINUTE)), |at| at.value),
            min_gap: seconds(restart.min_gap, 1),
            idle_delay: seconds(restart.idle_delay, 15 * MINUTE),
            breaker: restart.breaker.map_or(3, |at| at.value),
            breaker_window: seconds(restart.breaker_window, HOUR),
        },
        limits: Limits {
            memory_max: limit(profile.limits.memory_max),
            memory_high: limit(profile.limits.memory_high),
            pids_max: limit(profile.limits.pids_max),
            cpu_weight: profile.limits.cpu_weight.map(|at| at.value),
        },
        watchdog: watchdog(profile.watchdog),
        budget: Budget {
            runs: budget(profile.budget.runs),
            issues: budget(profile.budget.issues),
            hours: budget(profile.budget.hours),
        },
        env: profile.env,
        oom_score_adj: profile.oom_score_adj.map_or(400, |at| at.value),
    }
}

fn watchdog(raw: RawWatchdog) -> Option<Watchdog> {
    if is_off(&raw) {
        return None;
    }
    Some(Watchdog {
        prompt: raw.prompt?.value,
        tail_lines: raw.tail_lines.map_or(20, |at| at.value),
        scan: raw.scan.map_or(Duration::from_secs(30), |at| at.value),
        action: raw.action.and_then(|at| at.value).unwrap_or_default(),
    })
}
