//! The lenient way in: a log as somebody kept or pasted it.

use std::io::{self, BufRead};

use super::{
    OomKill,
    bytes::{contains, leading_number, split_once},
    collect::Collector,
    constraint,
    grammar::{Said, Shape, is_header, said},
    join::Joiner,
    journal::{self, Entry, Found},
    lines::{self, LINE_MAX, Line},
    locate::{Located, locate, says_more},
    wrapper::{body, is_own_line, without_colour, without_quotes},
};
use crate::kmsg::KmsgRecord;

/// Over how many lines a record may have been wrapped.
const WRAPPED_LINES: u8 = 8;

/// A log could not be read to its end.
#[derive(Debug, thiserror::Error)]
#[error("reading the kernel log after line {line}")]
pub struct OomLogError {
    /// The last line that was read, from 1; 0 when none was.
    pub line: u64,
    /// What went wrong.
    pub source: io::Error,
}

/// What a log tells.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct OomReport {
    /// The kills, in the order of the log, each once.
    pub kills: Vec<OomKill>,
    /// Records that the log itself says were lost.
    pub lost_records: u64,
    /// Whether all of the log was understood: nothing lost, no line too long, no kernel message held back.
    pub complete: bool,
}

/// Reads a kernel log in any of the wrappings that are in use and finds the kills in it.
///
/// Raw records, dmesg with all its options and in any language, syslog of any kind, the journal as text or JSON, events
/// of Kubernetes, quotations of mailers, records glued together or wrapped over lines. Records that the wrapping shows to
/// be of user space are not believed, nor is a message inside another program's sentence. Where the wrapping shows
/// nothing, a forgery cannot be told from the real thing: for decisions use [`super::LiveParser`].
///
/// Memory is bounded but for the kills themselves: a line is read up to 64 KiB.
///
/// # Errors
/// When the input cannot be read.
pub fn read_log(mut input: impl BufRead) -> Result<OomReport, OomLogError> {
    let mut log = Log { complete: true, ..Log::default() };
    let mut line = Vec::new();
    let mut number: u64 = 0;
    loop {
        match lines::read(&mut input, &mut line) {
            Ok(Line::End) => break,
            Ok(Line::Whole) => {}
            Ok(Line::Cut) => log.complete = false,
            Err(source) => return Err(OomLogError { line: number, source }),
        }
        number = number.saturating_add(1);
        log.line(&line);
    }
    Ok(log.finish())
}

/// A record that may go on in the next line.
#[derive(Debug)]
struct Open {
    located: Located,
    /// Lines that may belong to it, so far without proof.
    maybe: Vec<u8>,
    lines: u8,
}

/// The state between lines.
#[derive(Debug, Default)]
struct Log {
    joiner: Joiner,
    kills: Collector,
    open: Option<Open>,
    /// A JSON object over several lines, and its indentation.
    object: Option<(Vec<u8>, usize)>,
    last_seq: Option<u64>,
    boot: Option<String>,
    lost: u64,
    complete: bool,
}

impl Log {
    /// Takes a line.
    fn line(&mut self, line: &[u8]) {
        let coloured = contains(line, b"\x1b[");
        let plain = if coloured { without_colour(line) } else { Vec::new() };
        let line = if coloured { plain.as_slice() } else { line };
        if self.object.is_some() {
            self.object_line(line);
            return;
        }
        let start = line.trim_ascii_start();
        let start =
            start.strip_prefix(b"\x1e").or_else(|| start.strip_prefix(b"data: ")).unwrap_or(start);
        if start.trim_ascii_end() == b"{" {
            self.object =
                Some((line.to_vec(), line.len().saturating_sub(line.trim_ascii_start().len())));
            return;
        }
        if start.starts_with(b"{")
            && let Ok(value) = serde_json::from_slice::<serde_json::Value>(start)
        {
            self.json(&value);
            return;
        }
        self.text_line(line);
    }

    /// A line inside a JSON object: to its closing brace.
    fn object_line(&mut self, line: &[u8]) {
        let Some((mut text, indent)) = self.object.take() else { return };
        text.push(b'\n');
        text.extend_from_slice(line);
        let own = line.len().saturating_sub(line.trim_ascii_start().len());
        let closes = own <= indent && matches!(line.trim_ascii(), b"}" | b"}," | b"}]");
        if !closes && text.len() <= LINE_MAX {
            self.object = Some((text, indent));
            return;
        }
        self.object_text(&text);
    }

    /// A JSON object, or what was taken for one.
    fn object_text(&mut self, text: &[u8]) {
        let trimmed = text.trim_ascii();
        let trimmed = trimmed.strip_suffix(b",").unwrap_or(trimmed);
        let trimmed = trimmed.strip_prefix(b"\x1e").unwrap_or(trimmed);
        match serde_json::from_slice::<serde_json::Value>(trimmed) {
            Ok(value) => self.json(&value),
            Err(_) => text.split(|&byte| byte == b'\n').for_each(|line| self.text_line(line)),
        }
    }

    /// A line that is not JSON.
    fn text_line(&mut self, line: &[u8]) {
        self.count_losses(line);
        if let Some(record) = KmsgRecord::parse(without_quotes(line)) {
            self.commit();
            self.record(&record);
            return;
        }
        let indented = line.first().is_some_and(u8::is_ascii_whitespace) && !is_own_line(line);
        if indented && self.open.is_some() && self.continues(line) {
            return;
        }
        let all = locate(line);
        if all.is_empty() && self.open.is_some() && !is_own_line(line) && self.continues(line) {
            return;
        }
        self.commit();
        if all.is_empty() {
            self.other(line);
        }
        for located in all {
            self.commit();
            if goes_on(&located) {
                self.open = Some(Open { located, maybe: Vec::new(), lines: 0 });
            } else {
                self.located(&located);
            }
        }
    }

    /// Takes a line as the rest of the open record, perhaps. `false` when it cannot be.
    fn continues(&mut self, line: &[u8]) -> bool {
        let Some(open) = self.open.as_mut() else { return false };
        let line = if line.starts_with(b">") { without_quotes(line) } else { line };
        if open.lines >= WRAPPED_LINES || line.trim_ascii().is_empty() {
            return false;
        }
        open.lines = open.lines.saturating_add(1);
        // dmesg and journalctl print the rest of a text with a newline in it under its beginning.
        let indent = line.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
        let under = line.get(indent.min(open.located.width)..).unwrap_or(line);
        if let Said::Limit { .. } = open.located.said {
            return open.located.wrapper.stamped;
        }
        let start = [open.located.text.as_slice(), &open.maybe].concat();
        let rest = line.trim_ascii_start();
        let mut ways = Vec::new();
        if indent > 0 {
            ways.push([start.as_slice(), b"\n", under].concat());
        }
        ways.push([start.as_slice(), rest].concat());
        ways.push([start.as_slice(), b" ", rest].concat());
        for joined in &ways {
            if joined.len() <= LINE_MAX && says_more(&open.located.text, joined) {
                if let Some(said) = said(joined) {
                    open.located.said = said;
                }
                open.located.text.clone_from(joined);
                open.maybe.clear();
                return true;
            }
        }
        let may = open.located.said == Said::Constraint || is_cut(&open.located.said);
        if may && let Some(joined) = ways.first().filter(|joined| joined.len() <= LINE_MAX) {
            open.maybe = joined.get(open.located.text.len()..).unwrap_or_default().to_vec();
        }
        may
    }

    /// The open record gets nothing more.
    fn commit(&mut self) {
        let Some(open) = self.open.take() else { return };
        self.located(&open.located);
        if let Said::Limit { .. } = open.located.said
            && open.lines > 0
        {
            self.joiner.limit_was_cut();
        }
    }

    /// A line without a message: it may still begin a report, a boot, or go on where a long record was broken.
    fn other(&mut self, line: &[u8]) {
        if is_header(line) || contains(line, b" invoked oom-killer: ") {
            self.said(Said::Header, line, None, None);
        } else if contains(line, b"Linux version ") && body(line).starts_with(b"Linux version ") {
            self.boot_begins();
        } else {
            let rest = body(line).trim_ascii_end();
            let fragment = rest.starts_with(b"/") || rest.starts_with(b",");
            if !(fragment && self.joiner.extend(rest, None)) {
                self.joiner.glance(line);
            }
        }
    }

    /// A message with its wrapping.
    fn located(&mut self, located: &Located) {
        self.said(located.said.clone(), &located.text, None, located.wrapper.stamp);
    }

    /// A raw record.
    fn record(&mut self, record: &KmsgRecord) {
        if self.last_seq.is_some_and(|last| record.seq != last.saturating_add(1)) {
            self.joiner.unseen();
        }
        self.last_seq = Some(record.seq);
        if record.is_from_kernel() {
            let continuation = record.continuation;
            self.message(&record.text, continuation, Some(record.seq), Some(record.usec));
        }
    }

    /// The text of a record, whole.
    fn message(&mut self, text: &[u8], continuation: bool, seq: Option<u64>, usec: Option<u64>) {
        match said(text) {
            Some(said) => self.said(said, text, seq, usec),
            None if text.starts_with(b"Linux version ") => self.boot_begins(),
            None if continuation => {
                self.joiner.extend(text, seq);
            }
            None => self.joiner.glance(text),
        }
    }

    /// Pids begin anew.
    fn boot_begins(&mut self) {
        self.give_up();
        self.joiner = Joiner::default();
        self.kills.new_boot();
    }

    /// What a message says.
    fn said(&mut self, said: Said, text: &[u8], seq: Option<u64>, usec: Option<u64>) {
        if said == Said::Constraint
            && let Some(seq) = seq
            && self.kills.complete(text, seq)
        {
            return;
        }
        let outcome = self.joiner.take(said, text, seq, usec);
        if let Some(kill) = outcome.unfinished {
            self.kills.add(kill, None);
        }
        if let Some(kill) = outcome.kill {
            self.kills.add(kill, usec);
        }
        if let Some(path) = outcome.group {
            self.kills.mark_group(&path);
        }
    }

    /// JSON: entries of the journal are held to their facility, quoted text to its wrapping.
    fn json(&mut self, value: &serde_json::Value) {
        self.commit();
        for found in journal::found(value) {
            match found {
                Found::Entry(entry) => self.entry(entry),
                Found::Quoted(text) => {
                    for line in text.split('\n') {
                        self.text_line(line.as_bytes());
                    }
                    self.commit();
                }
            }
        }
    }

    /// A kernel message of the journal.
    fn entry(&mut self, entry: Entry) {
        if entry.boot.is_some() && entry.boot != self.boot {
            self.boot_begins();
            self.boot = entry.boot;
        }
        match entry.message {
            Some(text) => {
                let fragment = text.starts_with(b"/") || text.starts_with(b",");
                self.message(&text, fragment, None, entry.stamp);
            }
            None => self.complete = false,
        }
    }

    /// `** 23 printk messages dropped **` of the kernel, `Missed 23 kernel messages` of the journal.
    fn count_losses(&mut self, line: &[u8]) {
        let dropped =
            split_once(line, b"** ").filter(|(_, rest)| contains(rest, b"printk messages dropped"));
        let missed =
            split_once(line, b"Missed ").filter(|(_, rest)| contains(rest, b" kernel messages"));
        let count = dropped.or(missed).and_then(|(_, rest)| leading_number(rest));
        self.lost = self.lost.saturating_add(count.map_or(0, |(count, _)| count));
    }

    /// A constraint line that no kill line followed still names a victim, in a log that may be an excerpt.
    fn give_up(&mut self) {
        if let Some(kill) = self.joiner.give_up() {
            self.kills.add(kill, None);
        }
    }

    /// The end of the log.
    fn finish(mut self) -> OomReport {
        if let Some((text, _)) = self.object.take() {
            self.object_text(&text);
        }
        self.commit();
        self.give_up();
        OomReport {
            kills: self.kills.into_kills(),
            lost_records: self.lost,
            complete: self.complete && self.lost == 0,
        }
    }
}

/// Whether the rest of a record may be in the next line.
fn goes_on(located: &Located) -> bool {
    match &located.said {
        Said::Constraint => !constraint::is_whole(&located.text),
        Said::Killed(line) => line.sizes.oom_score_adj.is_none(),
        Said::Limit { .. } => located.wrapper.stamped,
        Said::Header
        | Said::Announced { .. }
        | Said::Sharing { .. }
        | Said::Group { .. }
        | Said::Spared => false,
    }
}

/// Whether a kill line ends before its sizes.
fn is_cut(said: &Said) -> bool {
    match said {
        Said::Killed(line) => line.shape == Shape::Cut,
        Said::Header
        | Said::Constraint
        | Said::Announced { .. }
        | Said::Sharing { .. }
        | Said::Limit { .. }
        | Said::Group { .. }
        | Said::Spared => false,
    }
}
