//! A notice as a person reads it: title, text, priority, tag. Pure, and within the server's limits whatever comes in.
//!
//! The title starts with machine and lane. The text begins with the fact, gives the evidence, says when it happened (a
//! notice may reach its reader hours later) and ends with what to do next; what is too long is taken from the
//! evidence. The words are in `wording`.

mod wording;

use serde::{Deserialize, Serialize};

use crate::{notice::Notice, text};

/// Largest title in bytes.
pub const TITLE_LIMIT: usize = 200;
/// Largest text in bytes; the server takes 4096.
pub const MESSAGE_LIMIT: usize = 3_500;
/// Largest encoded request in bytes; the server takes 8192.
pub const ENCODED_LIMIT: usize = 8_000;
/// Largest `click` address in bytes.
pub const CLICK_LIMIT: usize = 300;

const FACT_LIMIT: usize = 800;
const NEXT_LIMIT: usize = 600;

/// What the notice itself does not know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Context {
    /// Name of this box.
    pub machine: String,
    /// When it happened, in Unix milliseconds.
    pub at_unix_ms: i64,
    /// The event's identity, see [`is_event_id`]: the same event has the same one, over restarts. Anything else is left
    /// out of the message.
    pub id: String,
    /// Address that a tap opens. Anything but a plain http or https address is left out.
    pub click: Option<String>,
    /// Whether the record behind it could not be written, which the text then says.
    pub unrecorded: bool,
}

/// What is sent. Everything in it is harmless text within its limit when it comes from [`render`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// One line.
    pub title: String,
    /// Several lines of plain text.
    pub message: String,
    /// ntfy's priority, 1 to 5.
    pub priority: u8,
    /// ntfy's tags.
    pub tags: Vec<String>,
    /// Address that a tap opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub click: Option<String>,
    /// The event's identity: servers from 2.16 on replace an earlier message of the same one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence_id: Option<String>,
}

/// Whether `id` may serve as an event's identity: 1 to 64 of `[-_A-Za-z0-9]`, so that it fits ntfy's `sequence_id`.
#[must_use]
pub fn is_event_id(id: &str) -> bool {
    (1..=64).contains(&id.len())
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// Puts a notice into words.
///
/// ```
/// use lanewarden_notify::{Context, Level, Notice, render};
///
/// let context = Context { machine: "box-a".into(), id: "t-1".into(), ..Context::default() };
/// let message = render(&Notice::Test { level: Level::Info }, &context);
/// assert_eq!(message.title, "box-a: test notice");
/// assert_eq!(message.priority, 3);
/// assert_eq!(message.sequence_id.as_deref(), Some("t-1"));
/// ```
#[must_use]
pub fn render(notice: &Notice, context: &Context) -> Message {
    let level = notice.level();
    let words = wording::words(notice);
    Message {
        title: title(notice, context, &words.headline),
        message: body(&words, context),
        priority: level.priority(),
        tags: vec![level.tag().to_owned()],
        click: context.click.clone().filter(|address| is_plain_address(address)),
        sequence_id: Some(context.id.clone()).filter(|id| is_event_id(id)),
    }
}

/// The message once more with a text of at most `limit` bytes, for a server that takes less than others; none if it
/// is short enough already. The last line, which says what to do, is kept.
#[must_use]
pub fn shorten(message: &Message, limit: usize) -> Option<Message> {
    if message.message.len() <= limit {
        return None;
    }
    let shorter = match message.message.rsplit_once('\n') {
        Some((head, last)) if last.len() < limit / 2 => {
            let room = limit.saturating_sub(last.len()).saturating_sub(1);
            format!("{}\n{last}", text::cut(head, room))
        }
        Some(_) | None => text::cut(&message.message, limit),
    };
    Some(Message { message: shorter, ..message.clone() })
}

fn title(notice: &Notice, context: &Context, headline: &str) -> String {
    let machine = text::prefix(&text::line(&context.machine), 64).to_owned();
    let whole = match notice.lane() {
        Some(lane) => format!("{machine} {}: {headline}", wording::short(lane, 48)),
        None => format!("{machine}: {headline}"),
    };
    // Encoded words are broken up before the cut: breaking them adds bytes, and cutting cannot make one.
    text::cut(&text::no_encoded_words(&text::line(&whole)), TITLE_LIMIT)
}

fn body(words: &wording::Words, context: &Context) -> String {
    let fact = text::cut(text::lines(&words.fact).trim(), FACT_LIMIT);
    let mut end = format!("Happened {}.", text::utc(context.at_unix_ms));
    if context.unrecorded {
        end.push_str(" Unrecorded: the store did not take it.");
    }
    if !words.next.is_empty() {
        end.push_str("\nNext: ");
        end.push_str(&text::cut(&text::line(&words.next), NEXT_LIMIT));
    }
    let room = MESSAGE_LIMIT
        .saturating_sub(fact.len())
        .saturating_sub(end.len())
        // Two newlines between the parts, and room for the prefix below.
        .saturating_sub(2 + NOT_A_DOCUMENT.len());
    let evidence = text::cut(text::lines(&words.evidence).trim(), room);
    let parts = [fact.as_str(), evidence.as_str(), end.as_str()];
    let whole: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let whole = whole.join("\n");
    if whole.starts_with(['{', '[']) { format!("{NOT_A_DOCUMENT}{whole}") } else { whole }
}

/// Set before a text that begins like a serialised document: a phone that shows one hides a broken publisher.
const NOT_A_DOCUMENT: &str = "text: ";

fn is_plain_address(address: &str) -> bool {
    let rest = address.strip_prefix("https://").or_else(|| address.strip_prefix("http://"));
    address.len() <= CLICK_LIMIT
        && rest.is_some_and(|rest| {
            !rest.is_empty()
                && rest.bytes().all(|b| b.is_ascii_graphic() && b != b'"' && b != b'\\')
        })
}

#[cfg(test)]
mod tests;
