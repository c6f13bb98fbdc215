//! What GitHub's answers say. Pure.

use std::collections::BTreeSet;

use serde::Deserialize;

use super::Trouble;

/// Pull requests on a page: the most that the interface gives.
pub const PER_PAGE: usize = 100;
/// Pages that are read: a thousand pull requests, as the predecessor read.
pub const PAGES: usize = 10;
/// The longest pause that is believed, seconds. GitHub's windows are an hour long.
const LONGEST_PAUSE_S: u64 = 2 * 3600;
/// The pause after a limit that names none ("wait for at least one minute", docs.github.com, "Rate limits for the
/// REST API").
const DEFAULT_PAUSE_S: u64 = 60;

/// The head branches of the open pull requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The branches' names.
    pub heads: BTreeSet<String>,
    /// There are more than were read.
    pub more: bool,
}

impl Listing {
    /// Whether one belongs to the issue.
    ///
    /// # Errors
    /// [`Trouble::TooMany`] if none was found, and not all were read.
    pub fn has(&self, issue: u64) -> Result<bool, Trouble> {
        let found = self.heads.iter().any(|head| belongs(head, issue));
        if !found && self.more { Err(Trouble::TooMany) } else { Ok(found) }
    }
}

/// Whether a head branch is an issue's: `issue-N`, or `issue-N-` and whatever follows.
#[must_use]
pub fn belongs(head: &str, issue: u64) -> bool {
    let rest = head.strip_prefix("issue-").and_then(|rest| rest.strip_prefix(&issue.to_string()));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// The head branches on one page; `None` if it is no list of pull requests.
#[must_use]
pub fn heads(body: &[u8]) -> Option<Vec<String>> {
    #[derive(Deserialize)]
    struct Pull {
        head: Head,
    }
    #[derive(Deserialize)]
    struct Head {
        #[serde(rename = "ref")]
        name: String,
    }
    let pulls: Vec<Pull> = serde_json::from_slice(body).ok()?;
    Some(pulls.into_iter().map(|pull| pull.head.name).collect())
}

/// The next page by the `Link` header (RFC 8288): `<url>; rel="next", <url>; rel="last"`.
///
/// # Errors
/// [`Trouble::Garbage`] if it cannot be read: whether there are more pages is then not known.
pub fn next(link: &str) -> Result<Option<String>, Trouble> {
    let mut rest = link.trim();
    while !rest.is_empty() {
        let inside = rest.strip_prefix('<').ok_or(Trouble::Garbage)?;
        let (url, tail) = inside.split_once('>').ok_or(Trouble::Garbage)?;
        let mut quoted = false;
        let end = tail
            .char_indices()
            .find(|(_, c)| {
                quoted ^= *c == '"';
                *c == ',' && !quoted
            })
            .map_or(tail.len(), |(at, _)| at);
        let (params, after) = tail.split_at_checked(end).ok_or(Trouble::Garbage)?;
        let is_next =
            params.split(';').filter_map(|param| param.split_once('=')).any(|(key, rel)| {
                let mut kinds = rel.trim().trim_matches('"').split_ascii_whitespace();
                key.trim().eq_ignore_ascii_case("rel")
                    && kinds.any(|k| k.eq_ignore_ascii_case("next"))
            });
        if is_next {
            return Ok(Some(url.to_owned()));
        }
        rest = after.trim_start_matches([',', ' ', '\t']);
    }
    Ok(None)
}

/// What an answer says about limits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// `Retry-After`.
    pub retry_after: Option<String>,
    /// `x-ratelimit-remaining`.
    pub remaining: Option<String>,
    /// `x-ratelimit-reset`, seconds since 1970.
    pub reset: Option<String>,
}

/// Seconds for which nothing more may be asked: after a refusal for a limit, and after an answer that used up the last
/// request. `None`: no limit was met.
#[must_use]
pub fn pause(status: u16, limits: &Limits, body: &[u8], now_s: i64) -> Option<u64> {
    let number = |text: &Option<String>| text.as_ref()?.trim().parse::<i64>().ok();
    let used_up = limits.remaining.as_deref().map(str::trim) == Some("0");
    let until_reset = || {
        let left = number(&limits.reset)?.saturating_sub(now_s);
        u64::try_from(left.max(1)).ok()
    };
    let refused = matches!(status, 403 | 429);
    let seconds = if refused && limits.retry_after.is_some() {
        // As a date it is not read; GitHub gives seconds.
        number(&limits.retry_after).and_then(|s| u64::try_from(s).ok()).unwrap_or(DEFAULT_PAUSE_S)
    } else if used_up {
        until_reset().unwrap_or(DEFAULT_PAUSE_S)
    } else if status == 429 || (refused && says_limit(body)) {
        DEFAULT_PAUSE_S
    } else {
        return None;
    };
    Some(seconds.clamp(1, LONGEST_PAUSE_S))
}

/// The secondary limit may be told by the message alone.
fn says_limit(body: &[u8]) -> bool {
    String::from_utf8_lossy(body).to_ascii_lowercase().contains("rate limit")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_branch_belongs_to_exactly_one_issue() {
        for (head, issue, is) in [
            ("issue-11", 11, true),
            ("issue-11-x", 11, true),
            ("issue-110", 11, false),
            ("issue-011", 11, false),
            ("issue-1", 11, false),
            ("feat/issue-11-x", 11, false),
            ("Issue-11", 11, false),
            ("issue-11x", 11, false),
        ] {
            assert_eq!(belongs(head, issue), is, "{head}");
        }
        let part = Listing { heads: ["issue-7-x".to_owned()].into(), more: true };
        assert_eq!((part.has(7), part.has(8)), (Ok(true), Err(Trouble::TooMany)));
    }

    #[test]
    fn links_are_read_and_a_strange_one_is_no_end() {
        let last = r#"<https://h/a?page=1>; rel="prev", <https://h/a?page=1>; rel="first""#;
        let middle = r#"<https://h/a?x=1,2&page=1>; title="a, b"; rel="prev", <https://h/a?page=3>; rel="x next""#;
        assert_eq!(next(last), Ok(None));
        assert_eq!(next(middle).unwrap().as_deref(), Some("https://h/a?page=3"));
        assert_eq!(next(""), Ok(None));
        for bad in ["https://h/a; rel=next", "<https://h/a; rel=next", "x"] {
            assert_eq!(next(bad), Err(Trouble::Garbage), "{bad}");
        }
    }

    #[test]
    fn every_kind_of_limit_gives_a_pause() {
        let limits = |retry: Option<&str>, remaining: Option<&str>, reset: Option<&str>| Limits {
            retry_after: retry.map(str::to_owned),
            remaining: remaining.map(str::to_owned),
            reset: reset.map(str::to_owned),
        };
        let none = limits(None, None, None);
        let said = br#"{"message":"You have exceeded a secondary rate limit."}"#;
        for (status, limits, body, pause_s) in [
            (200, none.clone(), &b"[]"[..], None),
            (200, limits(None, Some("0"), Some("1090")), b"[]", Some(90)),
            (403, none.clone(), b"{}", None),
            (403, none.clone(), said, Some(60)),
            (403, limits(Some("7"), None, None), b"", Some(7)),
            (403, limits(None, Some("0"), Some("1090")), b"", Some(90)),
            (403, limits(None, Some("0"), Some("1")), b"", Some(1)),
            (403, limits(None, Some("0"), None), b"", Some(60)),
            (429, none, b"", Some(60)),
            (429, limits(Some("Fri, 31 Dec 1999 23:59:59 GMT"), None, None), b"", Some(60)),
            (429, limits(Some("99999999999"), None, None), b"", Some(LONGEST_PAUSE_S)),
        ] {
            assert_eq!(pause(status, &limits, body, 1000), pause_s, "{status} {limits:?}");
        }
    }

    #[test]
    fn a_page_is_a_list_of_pull_requests_or_nothing() {
        let body = br#"[{"number":1,"head":{"ref":"issue-7-x","sha":"a"}},{"head":{"ref":"b"}}]"#;
        assert_eq!(heads(body).unwrap(), ["issue-7-x", "b"]);
        assert_eq!(heads(b"[]").unwrap(), [] as [&str; 0]);
        for bad in [&b"{}"[..], b"", b"[1]", br#"[{"head":{}}]"#, br#"[{"head":null}]"#, b"<html>"]
        {
            assert_eq!(heads(bad), None);
        }
    }

    proptest! {
        #[test]
        fn anything_is_read(
            body in any::<Vec<u8>>(),
            link in "(<[a-z:/]{0,5}>|; ?rel=\"?next\"?|,|\"| |\\PC){0,20}",
            field in proptest::option::of("[0-9]{0,20}|\\PC{0,8}"),
            status in 100_u16..600,
            now in any::<i64>(),
        ) {
            prop_assert!(heads(&body).is_none_or(|heads| heads.len() <= body.len()));
            if let Ok(Some(url)) = next(&link) {
                prop_assert!(link.contains(&url));
            }
            let limits = Limits { retry_after: field.clone(), remaining: field.clone(), reset: field };
            let pause = pause(status, &limits, &body, now);
            prop_assert!(pause.is_none_or(|pause| (1..=LONGEST_PAUSE_S).contains(&pause)));
        }

        #[test]
        fn only_its_own_branches_belong(issue in 1_u64..100_000, head in "\\PC{0,20}") {
            let one = format!("issue-{issue}-{head}");
            prop_assert!(belongs(&one, issue) && !belongs(&one, issue + 1));
        }
    }
}
