//! Entries of the journal as JSON, and other JSON in which a kernel message may be quoted.

use serde_json::{Map, Value};

use super::wrapper::MESSAGE_KEYS;

/// How deep we look for quoted messages.
const DEPTH: u8 = 6;

/// A kernel message of the journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The message; `None` when the journal held it back as too big.
    pub(super) message: Option<Vec<u8>>,
    /// The printk clock in microseconds.
    pub(super) stamp: Option<u64>,
    /// The boot that it is of.
    pub(super) boot: Option<String>,
}

/// What a JSON value has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    /// A journal entry of the kernel.
    Entry(Entry),
    /// Text under a key for messages, wrapped in whatever its writer wrapped it.
    Quoted(String),
}

/// All that is in `value`.
pub(super) fn found(value: &Value) -> Vec<Found> {
    let mut all = Vec::new();
    walk(value, DEPTH, &mut all);
    all
}

/// Collects from a value and what is in it.
fn walk(value: &Value, depth: u8, all: &mut Vec<Found>) {
    let Some(depth) = depth.checked_sub(1) else { return };
    match value {
        Value::Array(items) => items.iter().for_each(|item| walk(item, depth, all)),
        Value::Object(fields) => object(fields, depth, all),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Collects from an object.
fn object(fields: &Map<String, Value>, depth: u8, all: &mut Vec<Found>) {
    if is_journal(fields) {
        all.extend(entry(fields).map(Found::Entry));
        return;
    }
    if is_other_program(fields) {
        return;
    }
    for (key, field) in fields {
        match field {
            Value::String(text) if MESSAGE_KEYS.contains(&key.as_str()) => {
                all.push(Found::Quoted(text.clone()));
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_) => walk(field, depth, all),
        }
    }
}

/// Whether the journal wrote this object.
fn is_journal(fields: &Map<String, Value>) -> bool {
    ["MESSAGE", "__CURSOR", "_TRANSPORT", "SYSLOG_FACILITY", "SYSLOG_IDENTIFIER"]
        .iter()
        .any(|key| fields.contains_key(*key))
}

/// A structured log names its writer, and it is not the kernel.
fn is_other_program(fields: &Map<String, Value>) -> bool {
    let named = ["program", "appname", "app-name", "ident", "tag", "syslog_identifier"];
    let other =
        named.iter().filter_map(|key| fields.get(*key)?.as_str()).any(|name| name != "kernel");
    let facility = fields.get("facility").and_then(scalar);
    other || facility.is_some_and(|facility| facility != "0" && facility != "kern")
}

/// The entry, if the kernel wrote it: `_TRANSPORT=kernel` does not prove it, it stands for all of `/dev/kmsg`.
fn entry(fields: &Map<String, Value>) -> Option<Entry> {
    if fields.get("SYSLOG_FACILITY").and_then(scalar)? != "0"
        || fields.get("SYSLOG_IDENTIFIER").and_then(scalar)? != "kernel"
    {
        return None;
    }
    let stamp = fields.get("_SOURCE_MONOTONIC_TIMESTAMP").and_then(scalar);
    Some(Entry {
        message: fields.get("MESSAGE").and_then(bytes),
        stamp: stamp.and_then(|usec| usec.parse().ok()),
        boot: fields.get("_BOOT_ID").and_then(scalar),
    })
}

/// A string or a number as a string.
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

/// A message: a string, or an array of byte numbers where it is not UTF-8.
fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.clone().into_bytes()),
        Value::Array(numbers) => {
            numbers.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}
