//! `lanewarden lane acquire|verify|probe|release|reclaim|status` and `lane guard`.

pub mod args;
mod guard;

use std::path::{Path, PathBuf};

use args::{LockCommand, Which};
use serde_json::Value;

use super::{Failure, Outcome};
use crate::{
    clock::unix_ms,
    config::{Config, Env, search_path},
    exit_code::{CONFIG, FAILED, USAGE},
    ids::MachineName,
    lanes::{
        answer::Answer,
        desk::{Desk, Expect},
        names,
    },
    output,
};

/// Where lanes are if neither the environment nor a configuration says.
const LANE_ROOT: &str = "/data/lanes";

pub(super) fn lane(what: LockCommand, config: Option<&Path>) -> Outcome {
    match what {
        LockCommand::Acquire { lane, reason } => {
            let reason = reason.as_deref().map(names::reason).transpose().map_err(usage)?;
            let answer = desk(config, &lane)?.acquire(lane.issue, dir(&lane)?, reason.as_deref());
            say(&answer.map_err(usage)?, false)
        }
        LockCommand::Verify { lane, json } => {
            say(&desk(config, &lane)?.verify(lane.issue, dir(&lane)?).map_err(usage)?, json.json)
        }
        LockCommand::Probe { lane, json } => {
            say(&desk(config, &lane)?.probe(lane.issue, dir(&lane)?).map_err(usage)?, json.json)
        }
        LockCommand::Release { lane, force, expect } => {
            let expect = stated(expect.as_deref())?;
            let desk = if force { surroundings(config)?.desk()? } else { desk(config, &lane)? };
            let dir = dir(&lane)?;
            say(&desk.release(lane.issue, dir, force, expect).map_err(usage)?, false)
        }
        LockCommand::Reclaim { lane, expect, reason } => {
            let reason = reason.as_deref().map(names::reason).transpose().map_err(usage)?;
            let expect = match stated(expect.as_deref())? {
                None => Expect::Unstated,
                Some("none") => Expect::Nobody,
                Some(lease) => Expect::Lease(lease.to_owned()),
            };
            let desk = desk(config, &lane)?;
            let dir = dir(&lane)?;
            let answer = desk.reclaim(lane.issue, dir, &expect, reason.as_deref());
            say(&answer.map_err(usage)?, false)
        }
        LockCommand::Status { issue, lane_root, lock_root, json } => {
            let lock_root = lock_root.map(|locks| absolute("--lock-root", &locks)).transpose()?;
            let desk = match (&lane_root, &lock_root) {
                // An inspection of any root needs neither environment nor configuration.
                (Some(root), _) => {
                    Desk { lane_root: absolute("--lane-root", root)?, ..bare(&Env::current()) }
                }
                (None, Some(_)) => bare(&Env::current()),
                (None, None) => surroundings(config)?.desk()?,
            };
            say_all(&desk.status(issue, lock_root.as_deref()).map_err(usage)?, json.json)
        }
        LockCommand::Guard { what: args::Guard::Install { repo } } => guard::install(&repo, config),
        LockCommand::Guard { what: args::Guard::Check { dir } } => guard::check(&dir, config),
    }
}

fn usage(error: impl std::fmt::Display) -> Failure {
    Failure::new(USAGE, error)
}

/// An empty lease is a variable that was not set, and must not become an unconditional take.
fn stated(expect: Option<&str>) -> Result<Option<&str>, Failure> {
    match expect {
        Some("") => {
            Err(usage("--expect is empty: state the lease that `lane probe` prints, or none"))
        }
        Some(_) | None => Ok(expect),
    }
}

fn absolute(what: &str, path: &Path) -> Result<PathBuf, Failure> {
    if path.is_absolute() && path.to_str().is_some_and(|text| !text.contains(['\n', '\r'])) {
        return Ok(path.to_owned());
    }
    Err(usage(format!(
        "{what} is {path:?}: an absolute path in UTF-8 without line breaks is needed; a relative one would be another \
         lane for every caller"
    )))
}

fn dir(which: &Which) -> Result<Option<&Path>, Failure> {
    which.dir.as_deref().map(|dir| absolute("--dir", dir).map(|_| dir)).transpose()
}

/// What the environment and the configuration say.
struct Surroundings {
    env: Env,
    configured: Option<Config>,
}

fn surroundings(config: Option<&Path>) -> Result<Surroundings, Failure> {
    let env = Env::current();
    let path = search_path(config, &env);
    // "Cannot tell" counts as there: another root than the daemon's would be a second lock for each lane.
    let wanted = config.is_some() || path.try_exists().unwrap_or(true);
    let configured = if wanted && (config.is_some() || env.var("LANE_ROOT").is_none()) {
        Some(Config::load(&path, &env).map_err(|error| Failure::new(CONFIG, error))?)
    } else if wanted {
        Config::load(&path, &env).ok()
    } else {
        None
    };
    Ok(Surroundings { env, configured })
}

impl Surroundings {
    /// A desk for nobody in particular.
    fn desk(&self) -> Result<Desk, Failure> {
        let configured = self.configured.as_ref();
        let lane_root = match (self.env.var("LANE_ROOT"), configured) {
            (Some(root), _) => absolute("LANE_ROOT", Path::new(root))?,
            (None, Some(config)) => config.lane_root.clone(),
            (None, None) => PathBuf::from(LANE_ROOT),
        };
        if let Some(config) = configured.filter(|config| config.lane_root != lane_root) {
            note(&format!(
                "$LANE_ROOT is {}, the configuration says {}: the daemon's locks are elsewhere",
                lane_root.display(),
                config.lane_root.display()
            ));
        }
        let mut desk = Desk { lane_root, ..bare(&self.env) };
        if let Some(config) = configured {
            let at = usize::from(self.env.var("LANE_LOCK_MACHINE").is_some());
            desk.machines.insert(at, config.machine.to_string());
            desk.shell = config.compat.shell;
        }
        Ok(desk)
    }
}

fn bare(env: &Env) -> Desk {
    let host = env.host_name.as_deref().and_then(MachineName::from_host_name);
    let mut machines: Vec<String> =
        env.var("LANE_LOCK_MACHINE").map(names::word).into_iter().collect();
    machines.push(host.map_or_else(|| "unknown-host".to_owned(), |host| host.to_string()));
    let mut bytes = [0; 8];
    // Without randomness the writer's pid and the second still tell leases apart.
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).ok();
    Desk {
        lane_root: PathBuf::from(LANE_ROOT),
        machines,
        actor: "flow".to_owned(),
        pid: None,
        from: None,
        now_ms: unix_ms(),
        nonce: u64::from_ne_bytes(bytes),
        shell: false,
    }
}

/// A desk for who asks.
fn desk(config: Option<&Path>, which: &Which) -> Result<Desk, Failure> {
    let around = surroundings(config)?;
    let mut desk = around.desk()?;
    let actor = which.actor.as_deref().or_else(|| around.env.var("LANE_LOCK_ACTOR"));
    desk.actor = names::actor(actor.unwrap_or("flow")).map_err(usage)?;
    desk.pid = match which.pid {
        Some(pid) => Some(pid),
        None => named_by(&around.env)?,
    };
    Ok(desk)
}

/// A desk for a command that only wants to know, on behalf of `pid` if it names one. `None`: no lane root is known.
///
/// Without environment and configuration the predecessor's place is looked at, if it is there.
pub(super) fn inquirer(config: Option<&Path>, pid: Option<u32>) -> Result<Option<Desk>, Failure> {
    let mut desk = desk(config, &Which { issue: 0, dir: None, pid, actor: None })?;
    desk.now_ms = unix_ms();
    Ok(desk.lane_root.is_dir().then_some(desk))
}

/// The process that `LANE_LOCK_PID` names.
fn named_by(env: &Env) -> Result<Option<u32>, Failure> {
    let Some(text) = env.var("LANE_LOCK_PID") else { return Ok(None) };
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.map(Some).ok_or_else(|| usage(format!("LANE_LOCK_PID is {text:?}, which is no pid")))
}

fn note(text: &str) {
    output::note(&format!("[lane-lock] {}", crate::text::harmless(text)));
}

fn say(answer: &Answer, json: bool) -> Outcome {
    if json {
        output::json(&answer.json());
    } else {
        output::line(&answer.line());
    }
    answer.notes.iter().for_each(|text| note(text));
    Ok(answer.verdict.exit())
}

fn say_all(answers: &[Answer], json: bool) -> Outcome {
    if json {
        let all: Vec<Value> = answers.iter().map(Answer::json).collect();
        output::json(&all);
    }
    for answer in answers {
        if !json {
            output::line(&answer.line());
        }
        answer.notes.iter().for_each(|text| note(text));
    }
    Ok(answers.iter().map(|answer| answer.verdict.exit()).max().unwrap_or(FAILED))
}
