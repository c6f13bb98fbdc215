//! Asking the running daemon over its control socket.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Failure, Outcome, load};
use crate::{
    config::Config,
    exit_code::{FAILED, OK},
    ids::LaneId,
    output,
    sources::control::{Request, Response, socket_path},
};

/// Sends an order and prints what came of it.
pub(super) fn order(config: &Config, request: &Request) -> Outcome {
    // An order to stop is answered when nothing of the worker is left, at the latest after its grace and the rungs
    // that follow it.
    let grace = config.lanes.iter().map(|lane| lane.stop_grace).max().unwrap_or_default();
    let patience = grace + Duration::from_secs(30);
    print(ask(&socket_path(&config.runtime_dir), request, patience)?)
}

/// A worker tells its issue.
pub(super) fn issue(
    socket: Option<PathBuf>,
    config: Option<&Path>,
    lane: LaneId,
    issue: u64,
) -> Outcome {
    let socket = match socket {
        Some(socket) => socket,
        None => socket_path(&load(config)?.runtime_dir),
    };
    print(ask(&socket, &Request::Issue { lane, issue }, Duration::from_secs(10))?)
}

fn print(response: Response) -> Outcome {
    match response {
        Response::Done(sentence) => {
            output::line(&crate::text::harmless(&sentence));
            Ok(OK)
        }
        Response::Refused(sentence) => Err(Failure::new(FAILED, sentence)),
        Response::Status(_) => Err(Failure::new(FAILED, "the daemon answered something else")),
    }
}

/// One question, one answer.
pub(super) fn ask(
    socket: &Path,
    request: &Request,
    patience: Duration,
) -> Result<Response, Failure> {
    let failed = |doing: &str, error: &dyn std::fmt::Display| {
        Failure::new(
            FAILED,
            format!(
                "{doing} the daemon at {}: {error}; is `lanewarden run` running with this configuration?",
                socket.display()
            ),
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(|error| failed("reaching", &error))?;
    stream.set_read_timeout(Some(patience)).map_err(|error| failed("asking", &error))?;
    let mut line = serde_json::to_vec(request).map_err(|error| failed("asking", &error))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(|error| failed("asking", &error))?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).map_err(|error| failed("hearing", &error))?;
    serde_json::from_str(&answer).map_err(|error| failed("understanding", &error))
}
