//! What loggers, terminals, mailers and runtimes put before a kernel message, and whether it can be the kernel's.
//!
//! The message is found by its own words; then what stands before it is taken apart from right to left. Dates are never
//! read, only recognised by their colons, so any language will do. What cannot be explained as wrapping (a sentence, the
//! tag of another program, a facility of user space) makes the message somebody's quotation, and it is not believed.

use super::bytes::{contains, find, leading_number, number, rsplit_once, split_once};

/// Facility names of syslog other than `kern`, as `dmesg -x` and some syslogs print them.
const USER_FACILITIES: [&[u8]; 20] = [
    b"user",
    b"mail",
    b"daemon",
    b"auth",
    b"syslog",
    b"lpr",
    b"news",
    b"uucp",
    b"cron",
    b"authpriv",
    b"ftp",
    b"security",
    b"local0",
    b"local1",
    b"local2",
    b"local3",
    b"local4",
    b"local5",
    b"local6",
    b"local7",
];

/// JSON or YAML keys under which a message is kept.
pub(super) const MESSAGE_KEYS: [&str; 8] =
    ["message", "Message", "msg", "log", "note", "text", "line", "body"];

/// What is known from the wrapping.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "observations that do not exclude each other")]
pub(super) struct Wrapper {
    /// The printk clock in microseconds.
    pub(super) stamp: Option<u64>,
    /// Something of a logger was there, not only quotation marks.
    pub(super) stamped: bool,
    /// A syslog wrote it: control characters are `#ooo`.
    pub(super) syslog: bool,
    /// It is inside quotation marks of some kind: the closing one follows the message.
    pub(super) quoted: bool,
    /// A level in angle brackets was there, as on a raw console.
    level: bool,
}

/// Takes `prefix` apart. `None` when a message after it is not the kernel's own.
pub(super) fn accept(prefix: &[u8]) -> Option<Wrapper> {
    let mut wrapper = Wrapper::default();
    let mut left = prefix;
    loop {
        left = left.trim_ascii_end();
        let (&last, before) = match left.split_last() {
            Some(split) => split,
            None => return Some(wrapper),
        };
        left = match last {
            b']' => bracket(before, &mut wrapper)?,
            b'>' => match level(before) {
                Some((level, before)) if level < 8 => {
                    wrapper.level = true;
                    wrapper.stamped = true;
                    before
                }
                Some(_) => return None,
                None => before,
            },
            b'"' | b'\'' | b'`' | b'\\' => {
                wrapper.quoted = true;
                if is_message_key(before) {
                    return Some(wrapper);
                }
                before
            }
            b'|' | b'*' | b'-' | b'#' | b'+' | b'~' => before,
            b':' => match tag(before, wrapper)? {
                Tag::Done(syslog) => {
                    wrapper.syslog = syslog;
                    wrapper.stamped = true;
                    return Some(wrapper);
                }
                Tag::More(rest) => rest,
            },
            _ => return remainder(left, wrapper),
        };
    }
}

/// A bracket that a kernel log has before its text: uptime, caller, or a date in any language. Gives what is before it.
fn bracket<'a>(inside: &'a [u8], wrapper: &mut Wrapper) -> Option<&'a [u8]> {
    let (before, content) = match rsplit_once(inside, b"[") {
        Some((before, content)) => (before, content),
        // The opening bracket was lost when the text was copied.
        None => (&b""[..], without_quotes(inside)),
    };
    let content = content.trim_ascii();
    if let Some(usec) = uptime(content) {
        wrapper.stamp.get_or_insert(usec);
    } else if !is_caller(content) && !is_relative(content) && !is_date(content) {
        return None;
    }
    wrapper.stamped = true;
    Some(before)
}

/// `N` of a `<N>` whose closing bracket was just taken off, and what is before it.
fn level(before: &[u8]) -> Option<(u64, &[u8])> {
    let (rest, digits) = rsplit_once(before, b"<")?;
    Some((number(digits)?, rest))
}

/// Whether the text ends in `"message":` or `message:`.
fn is_message_key(before: &[u8]) -> bool {
    let before = before.trim_ascii_end();
    before.strip_suffix(b":").is_some_and(ends_in_key)
}

/// Whether the text ends in one of the keys, and is JSON or YAML from its start: not a program's line with JSON in it.
fn ends_in_key(text: &[u8]) -> bool {
    let quote = |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\');
    let text = without_quotes(text).trim_ascii_end();
    let text = text.strip_prefix(b"- ").unwrap_or(text).trim_ascii_start();
    let structured = text.first().is_some_and(|first| matches!(first, b'{' | b'[') || quote(first));
    let end = text.iter().rposition(|byte| !quote(byte)).map_or(0, |at| at.saturating_add(1));
    let text = text.get(..end).unwrap_or(text);
    MESSAGE_KEYS.iter().any(|key| {
        text.strip_suffix(key.as_bytes()).is_some_and(|rest| match rest.last() {
            Some(last) => structured && quote(last),
            None => true,
        })
    })
}

/// What a colon before the message closes.
enum Tag<'a> {
    /// The kernel's tag: done. `true` for a syslog.
    Done(bool),
    /// Something that says nothing; go on with what is before it.
    More(&'a [u8]),
}

/// The word before a colon: only the kernel's tag, and what grep and `dmesg -x` print, may stand there.
fn tag(before: &[u8], wrapper: Wrapper) -> Option<Tag<'_>> {
    let (rest, word) = last_word(before);
    if word == b"kernel" {
        return plain(rest).then_some(Tag::Done(true));
    }
    if word.ends_with(b":kernel") || number(word).is_some() {
        return Some(Tag::More(rest));
    }
    // dmesg -x: `kern  :err   : `
    let level = word.strip_prefix(b":").unwrap_or(word);
    let is_level =
        [&b"emerg"[..], b"alert", b"crit", b"err", b"warn", b"notice", b"info", b"debug"]
            .contains(&level);
    if is_level {
        let rest = match word.strip_prefix(b":") {
            Some(_) => rest.trim_ascii_end(),
            None => rest.trim_ascii_end().strip_suffix(b":")?.trim_ascii_end(),
        };
        let (rest, facility) = last_word(rest);
        return (facility == b"kern").then_some(Tag::More(rest));
    }
    if ends_in_key(before) {
        return Some(Tag::Done(false));
    }
    // `file:` of grep
    if word.contains(&b'/') || word.ends_with(b".log") || word.ends_with(b".txt") {
        return rest.trim_ascii().is_empty().then_some(Tag::More(rest));
    }
    // A relayed raw console (a hypervisor's log of its guest): some tag, then level and uptime.
    let relayed = wrapper.level && wrapper.stamp.is_some() && !word.contains(&b'[');
    relayed.then_some(Tag::Done(false))
}

/// The last word, and what is before it.
fn last_word(text: &[u8]) -> (&[u8], &[u8]) {
    let text = text.trim_ascii_end();
    let start =
        text.iter().rposition(u8::is_ascii_whitespace).map_or(0, |blank| blank.saturating_add(1));
    text.split_at_checked(start).unwrap_or((b"", text))
}

/// Whether nothing in the text is the tag of a program or a facility of user space: a date, a host and the like.
fn plain(text: &[u8]) -> bool {
    let text = without_quotes(text.trim_ascii_end());
    if let Some(rest) = text.strip_prefix(b"<")
        && let Some((priority, _)) = leading_number(rest)
        && priority >= 8
    {
        return false;
    }
    text.split(u8::is_ascii_whitespace).all(|word| {
        let facility = split_once(word, b".").map(|(facility, _)| facility);
        let tag = word.strip_suffix(b":").is_some_and(|word| number(word).is_none());
        !tag && !facility.is_some_and(|facility| USER_FACILITIES.contains(&facility))
    })
}

/// What is left when neither stamp, tag nor quotation mark is next: a date and a host without a tag, or an event list.
fn remainder(left: &[u8], mut wrapper: Wrapper) -> Option<Wrapper> {
    let (before, word) = last_word(left);
    if word == b"kernel" && plain(before) {
        // RFC 5424: `<3>1 DATE HOST kernel - - - `
        wrapper.syslog = true;
        wrapper.stamped = true;
        return Some(wrapper);
    }
    // node-problem-detector's reason, in a listing of Kubernetes events.
    if contains(left, b"OOMKilling") {
        return Some(wrapper);
    }
    let words = left.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()).count();
    let dated = wrapper.stamped || is_date(left);
    let believable = dated && words <= 8 && left.len() <= 120 && plain(left);
    wrapper.stamped = true;
    believable.then_some(wrapper)
}

/// `SECONDS.MICROSECONDS` as microseconds.
fn uptime(content: &[u8]) -> Option<u64> {
    let (seconds, fraction) = split_once(content, b".")?;
    if fraction.len() != 6 {
        return None;
    }
    number(seconds)?.checked_mul(1_000_000)?.checked_add(number(fraction)?)
}

/// `T1308` or `C2`, of `CONFIG_PRINTK_CALLER`.
fn is_caller(content: &[u8]) -> bool {
    let digits = content.strip_prefix(b"T").or_else(|| content.strip_prefix(b"C"));
    digits.and_then(number).is_some()
}

/// `+0.000012` or `659.353375 <    0.000012>` of `dmesg -d` and `dmesg -e`.
fn is_relative(content: &[u8]) -> bool {
    content.iter().any(u8::is_ascii_digit)
        && content.iter().all(|byte| byte.is_ascii_digit() || b" .+<>".contains(byte))
}

/// Whether a time of day is in it. The rest of a date is in any language.
fn is_date(content: &[u8]) -> bool {
    content.len() <= 120
        && content.windows(5).any(|window| match window {
            [a, b, colon, c, d] => {
                [a, b, c, d].iter().all(|digit| digit.is_ascii_digit())
                    && matches!(colon, b':' | b'.')
            }
            _ => false,
        })
}

/// Whether a line begins like a line of its own in some log, and so is not the rest of the line before.
pub(super) fn is_own_line(line: &[u8]) -> bool {
    let line = without_quotes(line);
    matches!(line.first(), Some(b'[' | b'<' | b'{'))
        || contains(line, b"kernel: ")
        || is_date(line.get(..48).unwrap_or(line))
}

/// What follows the wrapping of a line whose message is not known: after the tag and the brackets.
pub(super) fn body(line: &[u8]) -> &[u8] {
    let mut rest = match split_once(line, b"kernel: ") {
        Some((before, rest)) if plain(before) => rest,
        Some(_) | None => without_quotes(line),
    };
    while let Some(inside) = rest.trim_ascii_start().strip_prefix(b"[") {
        let Some((content, after)) = split_once(inside, b"]") else { break };
        let content = content.trim_ascii();
        if uptime(content).is_none() && !is_caller(content) && !is_date(content) {
            break;
        }
        rest = after.strip_prefix(b" ").unwrap_or(after);
    }
    rest
}

/// Where a further record, glued to the one before, begins: its bracket, and its text.
pub(super) fn inner_stamp(text: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let mut from = 0;
    while let Some((before, inside)) = text.get(from..).and_then(|rest| split_once(rest, b"[")) {
        let at = from.saturating_add(before.len());
        if let Some((content, after)) = split_once(inside.get(..24).unwrap_or(inside), b"]")
            && let Some(usec) = uptime(content.trim_ascii())
        {
            let rest = inside.get(content.len().saturating_add(1)..).unwrap_or(after);
            return Some((text.get(..at)?, usec, rest.trim_ascii_start()));
        }
        from = at.saturating_add(1);
    }
    None
}

/// Decodes what rsyslog makes of control characters: `#` and three octal digits.
pub(super) fn unescape_syslog(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let code =
            tail.split_at_checked(3).filter(|_| first == b'#').and_then(|(digits, after)| {
                let digits = std::str::from_utf8(digits).ok()?;
                let octal = digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
                let code = u8::from_str_radix(digits, 8).ok().filter(|_| octal)?;
                code.is_ascii_control().then_some((code, after))
            });
        if let Some((code, after)) = code {
            plain.push(code);
            rest = after;
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

/// Removes the colour sequences of a terminal.
pub(super) fn without_colour(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = find(rest, b"\x1b[") {
        plain.extend_from_slice(rest.get(..at).unwrap_or_default());
        let after = rest.get(at.saturating_add(2)..).unwrap_or_default();
        let end = after
            .iter()
            .position(u8::is_ascii_alphabetic)
            .map_or(after.len(), |at| at.saturating_add(1));
        rest = after.get(end..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    plain
}

/// Without the marks of a quoting mailer and blanks at the start.
pub(super) fn without_quotes(line: &[u8]) -> &[u8] {
    let start = line.iter().position(|byte| !matches!(byte, b'>' | b' ' | b'\t'));
    start.and_then(|start| line.get(start..)).unwrap_or_default()
}
