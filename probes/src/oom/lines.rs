//! Lines of a log, of bounded length.

use std::io::{self, BufRead};

/// The longest line that is read. A line that is longer is cut here, and reading goes on at the next one.
pub(super) const LINE_MAX: usize = 65_536;

/// What one read gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A line, whole.
    Whole,
    /// The beginning of a line that was too long.
    Cut,
    /// The end of the input.
    End,
}

/// Reads the next line into `line`, without its end.
pub(super) fn read(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<Line> {
    line.clear();
    let mut any = false;
    let mut cut = false;
    loop {
        let chunk = match input.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            break;
        }
        any = true;
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let part = chunk.get(..end.unwrap_or(chunk.len())).unwrap_or_default();
        let room = LINE_MAX.saturating_sub(line.len());
        cut |= part.len() > room;
        line.extend_from_slice(part.get(..room).unwrap_or(part));
        let used = end.map_or(chunk.len(), |end| end.saturating_add(1));
        input.consume(used);
        if end.is_some() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(match (any, cut) {
        (false, _) => Line::End,
        (true, true) => Line::Cut,
        (true, false) => Line::Whole,
    })
}
