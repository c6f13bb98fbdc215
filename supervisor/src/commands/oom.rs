//! `lanewarden oom`.

use std::{
    fs::File,
    io::{BufReader, stdin},
    path::Path,
};

use lanewarden_probes::{
    Root,
    kmsg::{From, KmsgRead, KmsgReader},
    oom::{LiveParser, OomKill, OomReport, read_log},
};
use serde_json::{Value, json};

use super::{Failure, Outcome};
use crate::{
    exit_code::{FAILED, FOUND, OK},
    output::{self, Tone},
    text::size,
};

pub(super) fn oom(file: Option<&Path>, json: bool) -> Outcome {
    let report = match file {
        None => ring()?,
        Some(path) if path == Path::new("-") => {
            read_log(stdin().lock()).map_err(|error| Failure::new(FAILED, error))?
        }
        Some(path) => {
            let failed = |error: &dyn std::fmt::Display| {
                Failure::new(FAILED, format!("reading {}: {error}", path.display()))
            };
            let file = File::open(path).map_err(|error| failed(&error))?;
            read_log(BufReader::new(file)).map_err(|error| failed(&error))?
        }
    };
    if json {
        let kills: Vec<Value> = report.kills.iter().map(with_lane).collect();
        output::json(&json!({
            "kills": kills,
            "lost_records": report.lost_records,
            "complete": report.complete,
        }));
    } else {
        let rows: Vec<_> = report.kills.iter().map(row).collect();
        output::table(&["PID", "NAME", "KIND", "RESIDENT", "CGROUP"], &rows);
    }
    if !report.complete {
        output::note("the log was not read whole: records were lost or cut");
    }
    Ok(match (report.kills.is_empty(), report.complete) {
        (false, _) => FOUND,
        (true, true) => OK,
        (true, false) => FAILED,
    })
}

/// The kernel's own ring buffer.
fn ring() -> Result<OomReport, Failure> {
    let mut reader = KmsgReader::open(&Root::live(), From::Oldest).map_err(|state| {
        Failure::new(
            FAILED,
            format!("the kernel log is {state}; run as root, or give a log with --file"),
        )
    })?;
    let mut parser = LiveParser::new();
    let mut report = OomReport { kills: Vec::new(), lost_records: 0, complete: true };
    loop {
        match reader.next().map_err(|error| Failure::new(FAILED, error))? {
            KmsgRead::Record(record) => report.kills.extend(parser.take(&record)),
            KmsgRead::Lost(count) => {
                report.lost_records += count;
                report.complete = false;
            }
            KmsgRead::Empty => return Ok(report),
        }
    }
}

/// The kill with the key of the contract that only a daemon can fill in.
fn with_lane(kill: &OomKill) -> Value {
    let mut value = serde_json::to_value(kill).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("lane".to_owned(), Value::Null);
    }
    value
}

fn row(kill: &OomKill) -> Vec<(String, Tone)> {
    let resident = [kill.anon_rss_kb, kill.file_rss_kb, kill.shmem_rss_kb];
    let known: Vec<u64> = resident.into_iter().flatten().collect();
    let resident =
        if known.is_empty() { "-".to_owned() } else { size(known.iter().sum::<u64>() << 10) };
    vec![
        (kill.pid.to_string(), Tone::Plain),
        (kill.comm.clone().unwrap_or_else(|| "-".to_owned()), Tone::Plain),
        (kill.kind.to_string(), Tone::Bad),
        (resident, Tone::Plain),
        (kill.task_memcg.clone().unwrap_or_else(|| "-".to_owned()), Tone::Plain),
    ]
}
