//! Every excerpt of `testdata/oom` gives exactly the kills that its JSON names.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::super::read_log;

/// An excerpt and its expected kills.
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) log: Vec<u8>,
    pub(super) kills: Vec<Value>,
}

/// All samples, in order.
pub(super) fn samples() -> Vec<Sample> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/oom");
    let mut logs: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    logs.sort();
    logs.iter()
        .map(|path| {
            let expected: Value =
                serde_json::from_slice(&fs::read(path.with_extension("json")).unwrap()).unwrap();
            Sample {
                name: path.file_stem().unwrap().to_string_lossy().into_owned(),
                log: fs::read(path).unwrap(),
                kills: expected["kills"].as_array().unwrap().clone(),
            }
        })
        .collect()
}

/// The differences between what was found and what was expected, key by key.
fn differences(sample: &Sample) -> Vec<String> {
    let report = read_log(sample.log.as_slice()).unwrap();
    let found = serde_json::to_value(&report.kills).unwrap();
    let found = found.as_array().unwrap();
    let mut all = Vec::new();
    if found.len() != sample.kills.len() {
        let pids: Vec<u32> = report.kills.iter().map(|kill| kill.pid).collect();
        all.push(format!(
            "{}: {} kills, not {}: {pids:?}",
            sample.name,
            found.len(),
            sample.kills.len()
        ));
    }
    for (at, (found, expected)) in found.iter().zip(&sample.kills).enumerate() {
        for (key, value) in expected.as_object().unwrap() {
            if &found[key] != value {
                all.push(format!("{} [{at}] {key}: {} not {value}", sample.name, found[key]));
            }
        }
        for key in ["tgid", "shared_mm", "group", "truncated", "constraint_only"] {
            if expected.get(key).is_none() && found.get(key).is_some() {
                all.push(format!("{} [{at}] {key}: {} not expected", sample.name, found[key]));
            }
        }
    }
    if !report.complete || report.lost_records > 0 {
        all.push(format!("{}: not complete, lost {}", sample.name, report.lost_records));
    }
    all
}

#[test]
fn every_sample_gives_its_kills() {
    let samples = samples();
    assert!(samples.len() >= 57, "only {} samples", samples.len());
    let all: Vec<String> = samples.iter().flat_map(differences).collect();
    assert!(all.is_empty(), "{} differences:\n{}", all.len(), all.join("\n"));
}
