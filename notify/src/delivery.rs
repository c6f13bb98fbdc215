//! What a server's answer means, and when to try again. Pure: no clock, no network, no randomness of its own.

use serde_json::Value;

use crate::{closed_set::closed_set, text};

closed_set! {
    /// Why a notice did not go through.
    pub enum Reason {
        /// No answer within the deadline, or the server said so itself (408).
        Timeout = "timeout",
        /// No connection, or it broke before an answer came.
        Connect = "connect",
        /// The server's name has no address.
        Dns = "dns",
        /// The server's certificate or its protocol was refused.
        Tls = "tls",
        /// The token is missing or wrong (401).
        Unauthorized = "unauthorized",
        /// The token may not write to the topic (403).
        Forbidden = "forbidden",
        /// The server refuses this request whoever sends it.
        BadRequest = "bad-request",
        /// The message is larger than the server takes.
        TooLarge = "too-large",
        /// Too many requests just now.
        RateLimited = "rate-limited",
        /// The day's messages are used up, until 00:00 UTC.
        Quota = "quota",
        /// The server failed (5xx). The message may have been delivered all the same.
        Server = "server",
        /// Whoever answered is not an ntfy server: a proxy, a portal, a login page.
        NotNtfy = "not-ntfy",
        /// Our own HTTP client could not be made, for instance without CA certificates.
        Client = "client",
    }
}

impl Reason {
    /// Whether going on with *any* notice would make it worse: the server counts requests and bans addresses that do
    /// not stop. Then even a page that was never tried waits.
    #[must_use]
    pub const fn silences_channel(self) -> bool {
        match self {
            Self::Unauthorized | Self::Forbidden | Self::RateLimited | Self::Quota => true,
            Self::Timeout
            | Self::Connect
            | Self::Dns
            | Self::Tls
            | Self::BadRequest
            | Self::TooLarge
            | Self::Server
            | Self::NotNtfy
            | Self::Client => false,
        }
    }

    /// What an operator does about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::Timeout | Self::Connect => {
                "check that the server runs and that this machine may reach it"
            }
            Self::Dns => "check the spelling of ntfy.server and this machine's name resolution",
            Self::Tls => "check the server's certificate, and the CA certificates and clock here",
            Self::Unauthorized => "renew the token in ntfy.token_file, then reload",
            Self::Forbidden => "allow the token's user to write to ntfy.topic, then reload",
            Self::BadRequest => "check ntfy.server (its root, without the topic) and ntfy.topic",
            Self::TooLarge => "raise message-size-limit on the server to its default of 4K",
            Self::RateLimited => "use an account of its own or an own server: limits go by address",
            Self::Quota => "wait for 00:00 UTC, or use an account or server with a larger quota",
            Self::Server => "look into the server's log; the message may have been delivered",
            Self::NotNtfy => {
                "not an ntfy server: check ntfy.server, and proxies or portals on the way"
            }
            Self::Client => "install CA certificates (package ca-certificates)",
        }
    }
}

/// What became of one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The server has it.
    Accepted {
        /// The server's id of the message.
        id: String,
    },
    /// It may go through later.
    Retry {
        /// Why not now.
        reason: Reason,
        /// Seconds that somebody on the way asked us to wait, at most an hour.
        after: Option<u64>,
        /// What was said, without addresses and secrets.
        detail: String,
    },
    /// It never goes through as it is.
    Permanent {
        /// Why not.
        reason: Reason,
        /// What was said, without addresses and secrets.
        detail: String,
    },
}

/// The longest pause that a `Retry-After` header may ask for, in seconds.
const RETRY_AFTER_CAP_S: u64 = 3_600;

/// Error codes of ntfy (server/errors.go) that say more than their status.
const CODE_MESSAGE_TOO_LARGE: u64 = 40_014;
const CODE_DAILY_LIMIT: u64 = 42_908;

/// Judges an answer.
///
/// Success is 200 with a JSON object that has a non-empty `id` and, if it names a topic, ours: proxies, portals and
/// login pages answer 200 too. `retry_after` is understood as a number of seconds; ntfy never sends it, proxies do.
#[must_use]
pub fn classify(status: u16, retry_after: Option<&str>, body: &[u8], topic: &str) -> Delivery {
    let json = serde_json::from_slice::<Value>(body).ok();
    let field = |name: &str| json.as_ref().and_then(|j| j.get(name));
    let code = field("code").and_then(Value::as_u64);
    let detail = describe(status, code, field("error").and_then(Value::as_str), topic);
    let after =
        retry_after.and_then(|s| s.trim().parse::<u64>().ok()).map(|s| s.min(RETRY_AFTER_CAP_S));
    let retry = |reason, detail| Delivery::Retry { reason, after, detail };
    let permanent = |reason, detail| Delivery::Permanent { reason, detail };
    match status {
        200 => match (field("id").and_then(Value::as_str), field("topic")) {
            (Some(id), None) if !id.is_empty() => Delivery::Accepted { id: server_id(id) },
            (Some(id), Some(said)) if !id.is_empty() && said == topic => {
                Delivery::Accepted { id: server_id(id) }
            }
            _ => retry(Reason::NotNtfy, format!("{detail} without a message id of our topic")),
        },
        408 => retry(Reason::Timeout, detail),
        425 | 500..=599 => retry(Reason::Server, detail),
        429 if code == Some(CODE_DAILY_LIMIT) => retry(Reason::Quota, detail),
        429 => retry(Reason::RateLimited, detail),
        401 => permanent(Reason::Unauthorized, detail),
        403 => permanent(Reason::Forbidden, detail),
        413 => permanent(Reason::TooLarge, detail),
        400 if code == Some(CODE_MESSAGE_TOO_LARGE) => permanent(Reason::TooLarge, detail),
        400..=499 => permanent(Reason::BadRequest, detail),
        // Redirects are not followed, and no other success or information is an answer of ntfy.
        _ => retry(Reason::NotNtfy, detail),
    }
}

fn describe(status: u16, code: Option<u64>, error: Option<&str>, topic: &str) -> String {
    let mut said = format!("HTTP {status}");
    if let Some(code) = code {
        said.push_str(&format!(" code {code}"));
    }
    if let Some(error) = error {
        // A server that echoes the topic must not carry it into a log.
        let error =
            if topic.is_empty() { error.to_owned() } else { error.replace(topic, "[topic]") };
        said.push_str(": ");
        said.push_str(&text::cut(&text::line(&error), 200));
    }
    said
}

fn server_id(id: &str) -> String {
    text::prefix(&text::line(id), 64).to_owned()
}

const SECOND_MS: i64 = 1_000;
const HOUR_MS: i64 = 3_600 * SECOND_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
const FIRST_MS: i64 = 5 * SECOND_MS;
const LONGEST_MS: i64 = 600 * SECOND_MS;
const SHORTEST_MS: i64 = SECOND_MS;
const RATE_LIMITED_MS: i64 = 10 * SECOND_MS;

/// When to try again, in Unix milliseconds, after `attempts` attempts (the failed one included).
///
/// The pause is drawn by `random` from one second up to a ceiling that doubles from 5 s to 10 min, so that boxes
/// which lost the server together do not come back together. Being rate limited costs at least 10 s, the first failure
/// to connect only 1 to 2 s, a spent quota lasts until the next 00:00 UTC, and bad credentials wait an hour: thirty
/// refusals would ban the address.
#[must_use]
pub fn next_attempt(attempts: u32, reason: Reason, random: u64, now_ms: i64) -> i64 {
    let doublings = attempts.saturating_sub(1).min(7);
    let ceiling = (FIRST_MS << doublings).min(LONGEST_MS);
    let pause = match reason {
        Reason::Quota => return next_midnight(now_ms).saturating_add(draw(random, 0, LONGEST_MS)),
        Reason::Unauthorized | Reason::Forbidden => HOUR_MS,
        Reason::RateLimited => draw(random, RATE_LIMITED_MS, ceiling.max(2 * RATE_LIMITED_MS)),
        Reason::Connect if attempts <= 1 => draw(random, SHORTEST_MS, 2 * SHORTEST_MS),
        Reason::Connect
        | Reason::Timeout
        | Reason::Dns
        | Reason::Tls
        | Reason::BadRequest
        | Reason::TooLarge
        | Reason::Server
        | Reason::NotNtfy
        | Reason::Client => draw(random, SHORTEST_MS, ceiling),
    };
    now_ms.saturating_add(pause)
}

/// The later of `at_ms` and the pause of `after_s` seconds that an answer asked for.
#[must_use]
pub fn honour_retry_after(at_ms: i64, after_s: Option<u64>, now_ms: i64) -> i64 {
    let asked = i64::try_from(after_s.unwrap_or(0).min(RETRY_AFTER_CAP_S)).unwrap_or(0);
    at_ms.max(now_ms.saturating_add(asked.saturating_mul(SECOND_MS)))
}

fn next_midnight(now_ms: i64) -> i64 {
    now_ms.div_euclid(DAY_MS).saturating_add(1).saturating_mul(DAY_MS)
}

/// A number from `low` to `high`, both included.
fn draw(random: u64, low: i64, high: i64) -> i64 {
    let width = high.abs_diff(low).saturating_add(1);
    low.saturating_add_unsigned(random % width)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(delivery: &Delivery) -> (&'static str, Option<Reason>) {
        match delivery {
            Delivery::Accepted { .. } => ("accepted", None),
            Delivery::Retry { reason, .. } => ("retry", Some(*reason)),
            Delivery::Permanent { reason, .. } => ("permanent", Some(*reason)),
        }
    }

    #[test]
    fn the_matrix() {
        let cases: &[(u16, &str, &str, Option<Reason>)] = &[
            (200, r#"{"id":"abc","topic":"fleet"}"#, "accepted", None),
            (200, r#"{"id":"abc"}"#, "accepted", None),
            (200, r#"{"id":"abc","topic":"other"}"#, "retry", Some(Reason::NotNtfy)),
            (200, r#"{"id":"abc","topic":7}"#, "retry", Some(Reason::NotNtfy)),
            (200, r#"{"id":"","topic":"fleet"}"#, "retry", Some(Reason::NotNtfy)),
            (200, r#"{"id":"abc","top"#, "retry", Some(Reason::NotNtfy)),
            (200, r#"["id"]"#, "retry", Some(Reason::NotNtfy)),
            (200, "<html>sign in</html>", "retry", Some(Reason::NotNtfy)),
            (200, "", "retry", Some(Reason::NotNtfy)),
            (204, "", "retry", Some(Reason::NotNtfy)),
            (302, "", "retry", Some(Reason::NotNtfy)),
            (
                400,
                r#"{"code":40024,"error":"body must be JSON"}"#,
                "permanent",
                Some(Reason::BadRequest),
            ),
            (400, r#"{"code":40014}"#, "permanent", Some(Reason::TooLarge)),
            (401, r#"{"code":40101}"#, "permanent", Some(Reason::Unauthorized)),
            (403, r#"{"code":40301}"#, "permanent", Some(Reason::Forbidden)),
            (404, "", "permanent", Some(Reason::BadRequest)),
            (408, "", "retry", Some(Reason::Timeout)),
            (413, r#"{"code":41303}"#, "permanent", Some(Reason::TooLarge)),
            (425, "", "retry", Some(Reason::Server)),
            (429, r#"{"code":42901}"#, "retry", Some(Reason::RateLimited)),
            (429, r#"{"code":42908}"#, "retry", Some(Reason::Quota)),
            (429, r#"{"code":42909}"#, "retry", Some(Reason::RateLimited)),
            (429, "", "retry", Some(Reason::RateLimited)),
            (500, r#"{"code":50001}"#, "retry", Some(Reason::Server)),
            (502, "<html>", "retry", Some(Reason::Server)),
            (507, r#"{"code":50701}"#, "retry", Some(Reason::Server)),
        ];
        for (status, body, outcome, why) in cases {
            let got = classify(*status, None, body.as_bytes(), "fleet");
            assert_eq!(reason(&got), (*outcome, *why), "{status} {body}");
        }
    }

    #[test]
    fn what_the_server_says_is_kept_without_the_topic() {
        let body = br#"{"code":42901,"error":"limit reached\u001b[2J for fleet"}"#;
        let got = classify(429, Some(" 90 "), body, "fleet");
        assert_eq!(
            got,
            Delivery::Retry {
                reason: Reason::RateLimited,
                after: Some(90),
                detail: "HTTP 429 code 42901: limit reached\u{FFFD}[2J for [topic]".into(),
            }
        );
        let Delivery::Retry { after, .. } = classify(503, Some("999999"), b"", "fleet") else {
            panic!("503 is tried again")
        };
        assert_eq!(after, Some(3_600));
        let Delivery::Retry { after, .. } =
            classify(503, Some("Wed, 21 Oct 2026 07:28:00 GMT"), b"", "fleet")
        else {
            panic!("503 is tried again")
        };
        assert_eq!(after, None);
    }

    #[test]
    fn a_spent_quota_waits_for_midnight_utc() {
        let evening = 1_796_004_845_000; // 2026-11-30 02:14:05 UTC
        let at = next_attempt(1, Reason::Quota, 0, evening);
        assert_eq!(text::utc(at), "2026-12-01 00:00:00 UTC");
        assert!(next_attempt(1, Reason::Quota, u64::MAX, evening) - at <= LONGEST_MS);
    }

    #[test]
    fn a_pause_that_was_asked_for_is_kept() {
        assert_eq!(honour_retry_after(5_000, Some(60), 1_000), 61_000);
        assert_eq!(honour_retry_after(90_000, Some(60), 1_000), 90_000);
        assert_eq!(honour_retry_after(5_000, None, 1_000), 5_000);
    }

    proptest! {
        #[test]
        fn no_answer_breaks_it(
            status in any::<u16>(),
            header in any::<Option<String>>(),
            body in any::<Vec<u8>>(),
        ) {
            let got = classify(status, header.as_deref(), &body, "fleet");
            if status != 200 { prop_assert_ne!(reason(&got).0, "accepted"); }
        }

        #[test]
        fn pauses_stay_within_their_bounds(
            attempts in any::<u32>(),
            random in any::<u64>(),
            now in 0_i64..4_000_000_000_000,
        ) {
            for why in Reason::ALL {
                let pause = next_attempt(attempts, *why, random, now) - now;
                prop_assert!(pause >= SECOND_MS || *why == Reason::Quota, "{} {}", why, pause);
                prop_assert!(pause > 0);
                match why {
                    Reason::Quota => prop_assert!(pause <= DAY_MS + LONGEST_MS),
                    Reason::Unauthorized | Reason::Forbidden => prop_assert_eq!(pause, HOUR_MS),
                    Reason::RateLimited => {
                        prop_assert!((RATE_LIMITED_MS..=LONGEST_MS).contains(&pause));
                    }
                    Reason::Connect if attempts <= 1 => prop_assert!(pause <= 2_000),
                    Reason::Timeout | Reason::Connect | Reason::Dns | Reason::Tls | Reason::BadRequest
                    | Reason::TooLarge | Reason::Server | Reason::NotNtfy | Reason::Client => {
                        prop_assert!(pause <= LONGEST_MS);
                    }
                }
            }
        }
    }
}
