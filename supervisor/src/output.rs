//! The one place that prints: results to standard output, everything else to standard error.
//!
//! Colours only on a terminal and never against NO_COLOR; a closed pipe ends quietly.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::text::harmless;

/// Prints a line of result.
pub fn line(text: &str) {
    put(&mut anstream::stdout().lock(), text);
}

/// Prints a line for people beside the result.
pub fn note(text: &str) {
    put(&mut anstream::stderr().lock(), text);
}

/// Prints an error in the one form that all commands use.
pub fn error(text: &str) {
    let style = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
    for (index, one) in text.lines().enumerate() {
        let head =
            if index == 0 { format!("{style}error:{style:#} ") } else { "       ".to_owned() };
        note(&format!("{head}{}", harmless(one)));
    }
}

/// Prints one JSON document.
pub fn json<T: Serialize>(value: &T) {
    match serde_json::to_string_pretty(value) {
        Ok(text) => line(&text),
        Err(failure) => error(&format!("encoding the answer as JSON: {failure}")),
    }
}

fn put(stream: &mut impl Write, text: &str) {
    // Whoever closed the pipe has read enough.
    drop(writeln!(stream, "{text}").and_then(|()| stream.flush()));
}

/// Writes bytes as they are; false once nobody reads any more.
pub fn raw(bytes: &[u8]) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok()
}

/// Whether a person looks at standard output.
#[must_use]
pub fn on_terminal() -> bool {
    io::stdout().is_terminal()
}

/// How a word is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// As it should be.
    Good,
    /// Worth a look.
    Warn,
    /// Wrong.
    Bad,
    /// Beside the point.
    Dim,
    /// Nothing special.
    Plain,
}

/// A word in its tone.
#[must_use]
pub fn toned(text: &str, tone: Tone) -> String {
    let colour = match tone {
        Tone::Good => Style::new().fg_color(Some(AnsiColor::Green.into())),
        Tone::Warn => Style::new().fg_color(Some(AnsiColor::Yellow.into())),
        Tone::Bad => Style::new().bold().fg_color(Some(AnsiColor::Red.into())),
        Tone::Dim => Style::new().dimmed(),
        Tone::Plain => return text.to_owned(),
    };
    format!("{colour}{text}{colour:#}")
}

/// Prints rows under a head, columns aligned. Cells are made harmless before they are coloured.
pub fn table(head: &[&str], rows: &[Vec<(String, Tone)>]) {
    let rows: Vec<Vec<(String, Tone)>> = rows
        .iter()
        .map(|row| row.iter().map(|(text, tone)| (harmless(text), *tone)).collect())
        .collect();
    let width = |column: usize| {
        let cells =
            rows.iter().filter_map(|row| row.get(column)).map(|(text, _)| text.chars().count());
        cells.chain(head.get(column).map(|title| title.len())).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let titles: Vec<String> =
        head.iter().zip(&widths).map(|(title, width)| format!("{title:<width$}")).collect();
    line(&toned(titles.join("  ").trim_end(), Tone::Dim));
    for row in &rows {
        let last = row.len().saturating_sub(1);
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .enumerate()
            .map(|(index, ((text, tone), width))| {
                let fill =
                    if index == last { 0 } else { width.saturating_sub(text.chars().count()) };
                format!("{}{}", toned(text, *tone), " ".repeat(fill))
            })
            .collect();
        line(&cells.join("  "));
    }
}
