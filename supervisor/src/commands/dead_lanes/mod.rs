//! `lanewarden dead-lanes`: what is dead on this box right now, with and without a running daemon.

mod gather;
mod pulls;
mod report;
mod rows;
mod textfile;

use std::path::Path;

use serde::Serialize;

use super::{Failure, Outcome};
use crate::{
    clock::unix_ms,
    config::Config,
    exit_code::{FAILED, FOUND, OK},
    output,
};
pub(super) use rows::Row;

/// The report. Its JSON is a contract: fields may be added, never renamed.
#[derive(Debug, Serialize)]
struct Report {
    machine: String,
    lanes: Vec<Row>,
    dead: usize,
    unknown: usize,
    foreign: usize,
    certified: bool,
    /// Why the report does not cover everything that it should.
    incomplete: Vec<String>,
}

pub(super) fn dead_lanes(
    config: &Config,
    certify: bool,
    textfile: Option<&Path>,
    json: bool,
) -> Outcome {
    let began = unix_ms();
    let (mut lanes, incomplete) = gather::gather(config)?;
    pulls::ask(config, &mut lanes)?;
    let report = rows::count(config, lanes, incomplete, certify);
    let written = textfile.map(|path| {
        textfile::write(path, &report, began, unix_ms())
            .map_err(|error| format!("writing {}: {error}", path.display()))
    });
    // The findings first: a file that cannot be written must not hide them.
    if json {
        output::json(&report);
    } else {
        report::print(&report, certify);
    }
    let lost = match written {
        Some(Err(words)) => Some(Failure::new(FAILED, words)),
        Some(Ok(())) | None => None,
    };
    match (report.dead > 0, lost) {
        (true, lost) => {
            if let Some(failure) = lost {
                output::error(&failure.words);
            }
            Ok(FOUND)
        }
        (false, Some(failure)) => Err(failure),
        (false, None) => Ok(if report.certified { OK } else { FAILED }),
    }
}
