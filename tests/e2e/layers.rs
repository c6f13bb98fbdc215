//! Who may use whom: tests -> supervisor -> {probes, notify}, and what judges does not act.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The members of the workspace that a member uses, for its code and for its tests.
fn uses(member: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let tables = ["dependencies", "dev-dependencies", "build-dependencies"];
    let names = tables.iter().filter_map(|table| manifest.get(*table)?.as_table());
    let names = names.flat_map(|table| table.keys().cloned());
    names.filter(|name| name.starts_with("lanewarden")).collect()
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn members_use_only_what_is_below_them() {
    assert_eq!(uses("probes"), names(&[]));
    assert_eq!(uses("notify"), names(&[]));
    assert_eq!(uses("supervisor"), names(&["lanewarden-notify", "lanewarden-probes"]));
    assert!(uses("tests").is_subset(&names(&["lanewarden", "lanewarden-probes"])));
}

#[test]
fn every_member_is_known_to_this_test() {
    let text = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let manifest: toml::Table = text.parse().unwrap();
    let members = manifest["workspace"]["members"].as_array().unwrap();
    let members: BTreeSet<String> =
        members.iter().map(|member| member.as_str().unwrap().to_owned()).collect();
    assert_eq!(members, names(&["probes", "notify", "supervisor", "tests"]));
}

/// The sources of a file or a folder below the supervisor.
fn sources(name: &str) -> Vec<PathBuf> {
    let path = root().join("supervisor/src").join(name);
    if path.is_file() {
        return vec![path];
    }
    let mut found = Vec::new();
    let mut folders = vec![path];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{name} has sources");
    found
}

/// A file's code without comments and white space, so that a path broken over lines is one word.
///
/// Imports are opened: `use std::{fs, io}` also reads `std::fs`, and what is nested deeper is read with its nearest name.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
    let mut code: String = code.collect::<Vec<_>>().join(" ");
    code.retain(|c| !c.is_whitespace());
    let mut opened = String::new();
    let mut parts = code.split("::{");
    let mut before = parts.next().unwrap_or_default();
    for part in parts {
        let name: Vec<char> =
            before.chars().rev().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
        let name: String = name.into_iter().rev().collect();
        for item in part.split(['{', '}']).next().unwrap_or_default().split(',') {
            opened.push_str(&format!("\n{name}::{item}"));
        }
        before = part;
    }
    code + &opened
}

/// What rooms that only judge must not touch.
const WORLD: &[&str] = &[
    "tokio::",
    "std::fs",
    "std::process",
    "std::net",
    "std::env",
    "std::thread",
    "time::Instant",
    "time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "crate::sources",
    "crate::effects",
    "crate::store::Store",
    "crate::web",
    "crate::run::",
    "crate::commands",
    "crate::claims",
    "crate::forge",
    "crate::lanes::",
    "super::sources",
    "super::effects",
    "rustix::",
    "libc::",
    "rusqlite::",
    "reqwest::",
    "git2::",
    "procfs::",
    "Now::read",
    "random_bytes",
];

fn assert_without(rooms: &[&str], banned: &[&str]) {
    for path in rooms.iter().flat_map(|room| sources(room)) {
        // The grammar of a claim is vocabulary: it parses and writes text, and touches nothing.
        let code = code(&path).replace("crate::claims::record", "");
        for word in banned {
            assert!(!code.contains(word), "{} uses {word}", path.display());
        }
    }
}

#[test]
fn what_judges_touches_nothing_of_the_world() {
    assert_without(
        &["decide", "dispatch.rs", "dispatch", "lane.rs", "event.rs", "effect.rs"],
        WORLD,
    );
    assert_without(&["verdict.rs", "view.rs"], WORLD);
}

#[test]
fn decisions_know_nothing_of_the_flow() {
    assert_without(
        &["decide"],
        &["crate::dispatch", "crate::event", "crate::effect", "crate::lane::"],
    );
}

#[test]
fn the_read_side_and_the_write_side_meet_in_the_loop_only() {
    assert_without(&["sources"], &["crate::effects", "crate::dispatch", "crate::run::"]);
    assert_without(&["effects"], &["crate::dispatch::Dispatcher", "crate::run::"]);
}

#[test]
fn the_keeper_knows_no_policy() {
    let policy = [
        "crate::decide",
        "crate::dispatch",
        "crate::store",
        "crate::config",
        "crate::effects",
        "crate::sources",
        "crate::claims",
        "crate::forge",
        "crate::verdict",
        "crate::lane::",
        "rusqlite::",
        "tokio::",
        "lanewarden_notify",
        "std::net::",
        "crate::web",
        "crate::metrics",
    ];
    assert_without(&["keeper"], &policy);
}

#[test]
fn the_scanner_sees_through_nested_imports() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.rs");
    fs::write(&file, "use std::{\n    collections::BTreeMap, // std::net\n    fs,\n    time::{Duration, Instant},\n};\n").unwrap();
    let seen = code(&file);
    assert!(seen.contains("std::fs") && !seen.contains("std::net"), "{seen}");
    assert!(seen.contains("std::collections"), "{seen}");
    assert!(seen.contains("time::Instant"), "{seen}");
}
