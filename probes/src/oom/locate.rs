//! Finds the kernel's messages in one line of text.

use super::{
    OomKind,
    bytes::find,
    constraint,
    grammar::{CONSTRAINT, KillLine, Said, Shape, is_header, killed, said},
    wrapper::{Wrapper, accept, body, inner_stamp, unescape_syslog},
};

/// How messages of interest begin. The header is not here: it begins with a name.
const ANCHORS: [&[u8]; 9] = [
    b"oom-kill:constraint=",
    b"Memory cgroup out of memory",
    b"Out of memory",
    b"Out of Memory",
    b"No available memory",
    b"Killed process ",
    b"Kill process ",
    b"Task in ",
    b"Tasks in ",
];

/// A line with more beginnings than this is not looked at further.
const CANDIDATES: usize = 16;

/// A name longer than this is two records that were glued together.
const COMM_MAX: usize = 64;

/// A message that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Located {
    /// What it says.
    pub(super) said: Said,
    /// The message.
    pub(super) text: Vec<u8>,
    /// Its wrapping.
    pub(super) wrapper: Wrapper,
    /// How many bytes stood before it in its line.
    pub(super) width: usize,
}

/// The kernel's messages in a line, in order; none when it holds none that can be believed.
pub(super) fn locate(line: &[u8]) -> Vec<Located> {
    let mut from = 0;
    for _ in 0..CANDIDATES {
        let Some(at) = next_anchor(line, from) else { break };
        let (prefix, text) = line.split_at_checked(at).unwrap_or_default();
        let all = match accept(prefix) {
            Some(wrapper) => messages(text, wrapper, at),
            None => head_cut(prefix, text, at).into_iter().collect(),
        };
        if !all.is_empty() {
            return all;
        }
        from = at.saturating_add(1);
    }
    glued_report(line)
}

/// Where the next possible message begins.
fn next_anchor(line: &[u8], from: usize) -> Option<usize> {
    let rest = line.get(from..)?;
    let first = ANCHORS.iter().filter_map(|anchor| find(rest, anchor)).min()?;
    Some(from.saturating_add(first))
}

/// A kill line whose message lost its first letters when it was copied.
fn head_cut(prefix: &[u8], text: &[u8], width: usize) -> Option<Located> {
    let head = prefix.trim_ascii_start();
    let text = text.trim_ascii_end();
    let rest = text.strip_prefix(b"Killed process ")?;
    let message: &[u8] = b"Memory cgroup out of memory: ";
    if head.len() < 3 || !message.ends_with(head) {
        return None;
    }
    let kind = find(head, b"group ").map(|_| OomKind::Memcg);
    let line = killed(rest, kind).filter(|line| line.shape == Shape::Whole)?;
    let said = Said::Killed(line);
    Some(Located { said, text: text.to_vec(), wrapper: Wrapper::default(), width })
}

/// The messages in a text that begins with one.
fn messages(text: &[u8], wrapper: Wrapper, width: usize) -> Vec<Located> {
    let text = if wrapper.quoted { unquoted(text) } else { text };
    let text = if wrapper.syslog { unescape_syslog(text) } else { text.to_vec() };
    let mut all = Vec::new();
    for text in lines_of(&text, wrapper.quoted) {
        unglue(text.trim_ascii_end(), wrapper, width, &mut all);
    }
    all
}

/// A quoted text may hold several lines, written `\n`.
fn lines_of(text: &[u8], quoted: bool) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = text;
    while quoted && let Some((line, after)) = super::bytes::split_once(rest, b"\\n") {
        lines.push(line);
        rest = after;
    }
    lines.push(rest);
    lines
}

/// Up to the closing quotation mark, if that ends the line.
fn unquoted(text: &[u8]) -> &[u8] {
    let closing = |byte: &u8| matches!(byte, b'"' | b'\'' | b'`' | b'\\' | b',' | b'}' | b']');
    let end = text.iter().rposition(|byte| !closing(byte)).map_or(0, |at| at.saturating_add(1));
    text.get(..end).unwrap_or(text)
}

/// Reads a message, and those that were glued to it.
fn unglue(text: &[u8], wrapper: Wrapper, width: usize, all: &mut Vec<Located>) {
    let mut text = text;
    let mut wrapper = wrapper;
    let mut from = 1;
    for _ in 0..CANDIDATES {
        if is_one(text) {
            break;
        }
        let Some(joint) = next_joint(text, from) else { break };
        // A name may hold what looks like a joint: what is before it must be a message by itself.
        let before = text.get(..joint.end).unwrap_or(text);
        if !is_whole(before) {
            from = joint.start.max(from).saturating_add(1);
            continue;
        }
        push(before, wrapper, width, all);
        text = text.get(joint.start..).unwrap_or_default();
        wrapper.stamp = joint.stamp;
        from = 1;
    }
    push(text, wrapper, width, all);
}

/// Where two records were glued together.
#[derive(Clone, Copy)]
struct Joint {
    /// Where the first one ends.
    end: usize,
    /// Where the second one begins.
    start: usize,
    /// The second one's clock.
    stamp: Option<u64>,
}

/// The next place at which a further record may begin: a stamp, or the words of a message after what can end one.
fn next_joint(text: &[u8], from: usize) -> Option<Joint> {
    let stamped = text.get(from..).and_then(inner_stamp).map(|(before, usec, after)| Joint {
        end: from.saturating_add(before.len()),
        start: text.len().saturating_sub(after.len()),
        stamp: Some(usec),
    });
    let worded = next_worded(text, from).map(|at| Joint { end: at, start: at, stamp: None });
    match (stamped, worded) {
        (Some(stamped), Some(worded)) if worded.start < stamped.end => Some(worded),
        (Some(stamped), _) => Some(stamped),
        (None, worded) => worded,
    }
}

/// Where the words of a message stand after what can end another one.
fn next_worded(text: &[u8], from: usize) -> Option<usize> {
    let ends: [&[u8]; 6] = [b"child", b"children.", b"kB", b"kernel:", b"]", b"\\n"];
    let mut from = from;
    for _ in 0..CANDIDATES {
        let at = next_anchor(text, from)?;
        let before = text.get(..at)?.trim_ascii_end();
        let numbered = before.last().is_some_and(u8::is_ascii_digit);
        if numbered || ends.iter().any(|end| before.ends_with(end)) {
            return Some(at);
        }
        from = at.saturating_add(1);
    }
    None
}

/// A whole report on one line: it begins with the header, and each record has its stamp.
fn glued_report(line: &[u8]) -> Vec<Located> {
    let mut all = Vec::new();
    let text = body(line);
    if !is_header(text.get(..64).unwrap_or(text)) {
        return all;
    }
    let mut wrapper = Wrapper::default();
    let mut rest = text;
    while let Some((before, usec, after)) = inner_stamp(rest) {
        push(before, wrapper, 0, &mut all);
        wrapper.stamp = Some(usec);
        rest = after;
    }
    unglue(rest, wrapper, 0, &mut all);
    all
}

/// Adds a message if the text is one.
fn push(text: &[u8], wrapper: Wrapper, width: usize, all: &mut Vec<Located>) {
    let text = text.trim_ascii_end();
    if let Some(said) = said(text) {
        all.push(Located { said, text: text.to_vec(), wrapper, width });
    }
}

/// Whether the text, to its very end, is one message: then no stamp in it means anything.
fn is_one(text: &[u8]) -> bool {
    match said(text) {
        Some(Said::Constraint) => constraint::is_whole(text),
        Some(Said::Killed(line)) => has_sizes(&line) && !super::bytes::contains(text, b"] "),
        Some(
            Said::Header
            | Said::Announced { .. }
            | Said::Sharing { .. }
            | Said::Limit { .. }
            | Said::Group { .. }
            | Said::Spared,
        )
        | None => false,
    }
}

/// Whether the text is a message that needs nothing more.
fn is_whole(text: &[u8]) -> bool {
    match said(text) {
        Some(Said::Constraint) => constraint::is_whole(text),
        Some(Said::Killed(line)) => has_sizes(&line),
        Some(Said::Announced { .. }) => find(text, b") score ").is_some(),
        Some(
            Said::Header
            | Said::Sharing { .. }
            | Said::Limit { .. }
            | Said::Group { .. }
            | Said::Spared,
        ) => true,
        None => false,
    }
}

/// Whether a kill line has all its sizes, and a name that is one name.
fn has_sizes(line: &KillLine) -> bool {
    line.sizes.file_rss_kb.is_some()
        && line.comm.as_ref().is_some_and(|comm| comm.len() <= COMM_MAX)
}

/// Whether a text may be followed by its rest on the next line, and if so whether `joined` says more than it.
pub(super) fn says_more(text: &[u8], joined: &[u8]) -> bool {
    if text.starts_with(CONSTRAINT) {
        return constraint::is_whole(joined);
    }
    match (said(text), said(joined)) {
        (Some(Said::Killed(before)), Some(Said::Killed(after))) => {
            before.pid == after.pid
                && (before.shape != Shape::Whole && after.shape == Shape::Whole
                    || before.shape == after.shape && after.sizes.known() > before.sizes.known())
        }
        _ => false,
    }
}
