//! The counts for node_exporter's textfile collector: written beside, synced, renamed, readable by everybody.

use std::{
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use lanewarden_probes::liveness::Liveness;

use super::Report;

pub(super) fn write(path: &Path, report: &Report, began_ms: i64, ended_ms: i64) -> io::Result<()> {
    // Renaming over a device or a link would take it away from whoever needs it.
    match std::fs::symlink_metadata(path) {
        Ok(there) if !there.is_file() => {
            return Err(io::Error::other(
                "there is something that is no regular file; name another",
            ));
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let place =
        path.parent().filter(|place| !place.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The collector reads *.prom only: a half-written file must not bear that name.
    let mut file =
        tempfile::Builder::new().prefix(".lanewarden-").suffix(".tmp").tempfile_in(place)?;
    file.write_all(text(report, began_ms, ended_ms).as_bytes())?;
    file.as_file().sync_all()?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn text(report: &Report, began_ms: i64, ended_ms: i64) -> String {
    let mut out = String::new();
    let mut family = |name: &str, help: &str, samples: &[(String, String)]| {
        out.push_str(&format!("# HELP lanewarden_cron_{name} {help}\n"));
        out.push_str(&format!("# TYPE lanewarden_cron_{name} gauge\n"));
        for (labels, value) in samples {
            out.push_str(&format!("lanewarden_cron_{name}{labels} {value}\n"));
        }
    };
    let by_verdict: Vec<(String, String)> = Liveness::ALL
        .iter()
        .map(|verdict| {
            let count = report
                .lanes
                .iter()
                .filter(|row| row.machine == report.machine && row.verdict == *verdict)
                .count();
            (format!("{{verdict=\"{verdict}\"}}"), count.to_string())
        })
        .collect();
    family(
        "dead_lanes",
        "Lanes of this box in the newest report, by liveness verdict.",
        &by_verdict,
    );
    let measured = report.lanes.iter().filter(|row| !row.verdict.is_unknown()).count();
    let one = |value: String| [(String::new(), value)];
    family(
        "lanes_measured",
        "Lanes that the newest report could measure.",
        &one(measured.to_string()),
    );
    family(
        "certified",
        "1 if every configured lane was measured and none is dead or unknown.",
        &one(u8::from(report.certified).to_string()),
    );
    family(
        "last_run_timestamp_seconds",
        "When the newest report ended.",
        &one((ended_ms / 1000).to_string()),
    );
    family(
        "last_run_success",
        "1 if the newest report read everything it wanted to.",
        &one(u8::from(report.incomplete.is_empty()).to_string()),
    );
    let took = ended_ms.saturating_sub(began_ms);
    family(
        "duration_seconds",
        "Duration of the newest report.",
        &one(format!("{}.{:03}", took / 1000, took % 1000)),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_appears_whole_and_readable() {
        let report = Report {
            machine: "box-a".to_owned(),
            lanes: Vec::new(),
            dead: 0,
            unknown: 0,
            foreign: 0,
            certified: true,
            incomplete: Vec::new(),
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.prom");
        write(&path, &report, 1000, 2234).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("lanewarden_cron_duration_seconds 1.234\n"), "{text}");
        assert_eq!(text.matches("lanewarden_cron_dead_lanes{").count(), Liveness::ALL.len());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
        // No timestamps of ours: the collector would drop the whole file.
        assert!(
            text.lines()
                .filter(|line| !line.starts_with('#'))
                .all(|line| line.split(' ').count() == 2)
        );
    }
}
