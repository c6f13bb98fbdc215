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
    if let Some(path) = textfile {
        textfile::write(path, &report, began, unix_ms()).map_err(|error| {
            Failure::new(FAILED, format!("writing {}: {error}", path.display()))
        })?;
    }
    if json {
        output::json(&report);
    } else {
        report::print(&report, certify);
    }
    Ok(match (report.dead > 0, report.certified) {
        (true, _) => FOUND,
        (false, true) => OK,
        (false, false) => FAILED,
    })
}
