//! What is typed becomes what is done: one file a command, each small.

#![expect(
    clippy::disallowed_methods,
    reason = "commands are the edge: they read clocks and start programs"
)]

mod check;
mod claims;
mod client;
mod dead_lanes;
mod demo;
mod history;
mod identity;
mod issue;
mod keep;
pub mod lane;
mod logs;
mod man;
mod notices;
mod oom;
mod run;
mod status;

pub use claims::ClaimsCommand;
pub use issue::{ClaimantArgs, IssueCommand, OneIssue};

use std::{path::Path, process::ExitCode};

use clap::CommandFactory;
use tracing_subscriber::filter::LevelFilter;

use crate::{
    cli::{Cli, Command, LaneCommand, LogLevel},
    config::{Config, Env, search_path},
    exit_code::{self, CONFIG, FAILED, OK},
    output,
    sources::control::Request,
};

/// A command's end: its exit code, or an error to print with its code.
type Outcome = Result<u8, Failure>;

/// What went wrong, in words for people, and the exit code that says of which kind it is.
#[derive(Debug)]
struct Failure {
    code: u8,
    words: String,
}

impl Failure {
    fn new(code: u8, words: impl std::fmt::Display) -> Self {
        Self { code, words: words.to_string() }
    }
}

/// Runs the command.
#[must_use]
pub fn dispatch(cli: Cli) -> ExitCode {
    start_logging(cli.log, cli.log_json);
    let code = perform(cli).unwrap_or_else(|failure| {
        output::error(&failure.words);
        failure.code
    });
    exit_code::exit(code)
}

fn perform(cli: Cli) -> Outcome {
    let config = cli.config.as_deref();
    match cli.command {
        Command::Demo { seconds, keep } => demo::demo(seconds, keep),
        Command::DemoWorker { kind } => demo::worker(&kind),
        Command::Run { keeper, with_workers } => run::run(load(config)?, keeper, with_workers),
        Command::Keep(args) => keep::keep(args, config),
        Command::Hold => keep::hold(),
        Command::Check { effective, json } => check::check(config, effective, json.json),
        Command::Status(json) => status::status(&load(config)?, json.json),
        Command::Stop(lane) => client::order(&load(config)?, &Request::Stop { lane: lane.lane }),
        Command::Start(lane) => client::order(&load(config)?, &Request::Start { lane: lane.lane }),
        Command::Restart(lane) => {
            client::order(&load(config)?, &Request::Restart { lane: lane.lane })
        }
        Command::Drain => client::order(&load(config)?, &Request::Drain),
        Command::Logs { lane, run, follow } => {
            logs::logs(&load(config)?, &lane.lane, run.as_deref(), follow)
        }
        Command::History { lane, limit, json } => {
            history::history(&load(config)?, lane.as_ref(), limit, json.json)
        }
        Command::DeadLanes { certify, textfile, json } => {
            dead_lanes::dead_lanes(&load(config)?, certify, textfile.as_deref(), json.json)
        }
        Command::Claims { what } => claims::claims(what, config),
        Command::Issue { what } => issue::issue(what, config),
        Command::Identity { pid, json } => identity::identity(pid, json.json),
        Command::Oom { file, json } => oom::oom(file.as_deref(), json.json),
        Command::Notify { what } => notices::notify(&load(config)?, what),
        Command::Lane { what: LaneCommand::Issue { issue, lane, socket } } => {
            client::issue(socket, config, lane, issue)
        }
        Command::Lane { what: LaneCommand::Lock(what) } => lane::lane(what, config),
        Command::Metrics(json) => Ok(metrics(json.json)),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "lanewarden", &mut text);
            output::raw(&text);
            Ok(OK)
        }
        Command::Man { command } => man::man(command.as_deref()),
    }
}

fn load(path: Option<&Path>) -> Result<Config, Failure> {
    let env = Env::current();
    let path = search_path(path, &env);
    let config = Config::load(&path, &env).map_err(|error| Failure::new(CONFIG, error))?;
    for note in &config.notes {
        tracing::warn!("{note}");
    }
    Ok(config)
}

fn metrics(json: bool) -> u8 {
    let catalogue = crate::metrics::catalogue();
    if json {
        output::json(&catalogue);
        return OK;
    }
    for series in catalogue {
        let labels = series.labels.join(",");
        let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
        output::line(&format!("{}{labels}  ({})", series.name, series.kind));
        let absent = series.absent_when.map(|when| format!(" Absent while {when}."));
        output::line(&format!("    {}{}", series.help, absent.unwrap_or_default()));
    }
    OK
}

fn start_logging(level: LogLevel, json: bool) {
    let level = match level {
        LogLevel::Off => LevelFilter::OFF,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    };
    let colour = std::io::IsTerminal::is_terminal(&std::io::stderr())
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(colour)
        .with_target(false);
    // A second subscriber in one process is only possible in tests; the first stays.
    if json { drop(builder.json().try_init()) } else { drop(builder.try_init()) }
}

/// A small runtime on this thread: the daemon and the commands need no more.
fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .thread_stack_size(512 * 1024)
        .build()
        .map_err(|error| Failure::new(FAILED, format!("starting the runtime: {error}")))
}
