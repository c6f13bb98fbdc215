//! The words of a claim: one line of `key=value` tokens in the message of a commit.
//!
//! Readers of the predecessor skip keys that they do not know, so ours are added after theirs. Everything that is read
//! here was written by somebody else and is kept only if it has the right form; otherwise it is unknown, never zero.

use crate::ids::{LaneId, MachineName, RunId};

/// The namespace of lane claims.
pub const LANE_CLAIMS: &str = "refs/lane-claims/";

/// Longest text value, bytes.
const VALUE_MAX: usize = 120;
/// What stands where nothing usable was given.
const UNSPECIFIED: &str = "unspecified";
/// 9999-12-31T23:59:59Z, the last second that four digits of year can say.
const LAST_SECOND: u64 = 253_402_300_799;

/// A claim that we write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneClaim {
    /// The last component of the ref: an issue number or a placeholder, see [`is_lane_component`].
    pub component: String,
    /// This box.
    pub machine: MachineName,
    /// The worker, or the warden while there is none.
    pub pid: u32,
    /// When this was true, seconds since 1970 UTC.
    pub ts: u64,
    /// The kernel's boot id, a full UUID (`/proc/sys/kernel/random/boot_id`).
    pub boot: Option<String>,
    /// Start time of `pid`, clock ticks since boot (proc(5), field 22 of `stat`).
    pub ticks: Option<u64>,
    /// Inode number of the pid namespace (`/proc/PID/ns/pid`).
    pub pidns: Option<u64>,
    /// Who works.
    pub actor: Option<String>,
    /// The run.
    pub run: Option<RunId>,
    /// The lane.
    pub lane: Option<LaneId>,
    /// The lane's state.
    pub state: Option<String>,
    /// The number of the warden's life, rising.
    pub epoch: Option<u64>,
    /// The warden's pid and start ticks.
    pub warden: Option<(u32, u64)>,
}

/// A claim as it was read. `None` is unknown: missing or malformed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedClaim {
    /// The issue as the message has it: a decimal without leading zero, not zero. A lane claim's path outranks it.
    pub issue: Option<u64>,
    /// The machine as the message has it. The path outranks it.
    pub machine: Option<String>,
    /// From 1 to the largest that Linux can give.
    pub pid: Option<u32>,
    /// Seconds since 1970 UTC.
    pub ts: Option<u64>,
    /// A full UUID, lower case.
    pub boot: Option<String>,
    /// Clock ticks since boot.
    pub ticks: Option<u64>,
    /// Inode number.
    pub pidns: Option<u64>,
    /// Who works.
    pub actor: Option<String>,
    /// The run.
    pub run: Option<RunId>,
    /// The lane.
    pub lane: Option<LaneId>,
    /// The lane's state, in the writer's words.
    pub state: Option<String>,
    /// The number of the warden's life.
    pub epoch: Option<u64>,
    /// The warden's pid and start ticks.
    pub warden: Option<(u32, u64)>,
}

impl LaneClaim {
    /// The message: the predecessor's tokens first, then ours. Text values go through [`sanitise`].
    #[must_use]
    pub fn to_message(&self) -> String {
        let mut line = format!(
            "claim issue={} machine={} pid={} ts={}",
            sanitise(&self.component),
            self.machine,
            self.pid,
            format_ts(self.ts)
        );
        let mut add = |key: &str, value: Option<String>| {
            if let Some(value) = value {
                line.push_str(&format!(" {key}={value}"));
            }
        };
        add("boot", self.boot.as_deref().map(sanitise));
        add("ticks", self.ticks.map(|ticks| ticks.to_string()));
        add("pidns", self.pidns.map(|inode| inode.to_string()));
        add("actor", self.actor.as_deref().map(sanitise));
        add("run", self.run.as_ref().map(ToString::to_string));
        add("lane", self.lane.as_ref().map(ToString::to_string));
        add("state", self.state.as_deref().map(sanitise));
        add("epoch", self.epoch.map(|epoch| epoch.to_string()));
        add("warden", self.warden.map(|(pid, ticks)| format!("{pid}/{ticks}")));
        line
    }

    /// The ref of this claim, or `None` if its component has not the right form.
    #[must_use]
    pub fn ref_name(&self) -> Option<String> {
        lane_ref(&self.machine, &self.component)
    }
}

impl ParsedClaim {
    /// Reads a message. Never fails: what is not understood is unknown.
    #[must_use]
    pub fn parse(message: &[u8]) -> Self {
        let first = |key: &str| {
            let mut tokens = message.split(u8::is_ascii_whitespace);
            let value = tokens.find_map(|token| {
                token.strip_prefix(key.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            });
            value.and_then(|value| std::str::from_utf8(value).ok())
        };
        let text = |key: &str| first(key).filter(|value| is_clean(value)).map(str::to_owned);
        Self {
            issue: first("issue").and_then(issue_of),
            machine: text("machine"),
            pid: first("pid").and_then(pid),
            ts: first("ts").and_then(parse_ts),
            boot: first("boot").filter(|value| is_uuid(value)).map(str::to_owned),
            ticks: first("ticks").and_then(number),
            pidns: first("pidns").and_then(number),
            actor: text("actor"),
            run: first("run").and_then(|value| RunId::new(value).ok()),
            lane: first("lane").and_then(|value| LaneId::new(value).ok()),
            state: text("state"),
            epoch: first("epoch").and_then(number),
            warden: first("warden").and_then(|value| {
                let (id, ticks) = value.split_once('/')?;
                Some((pid(id)?, number(ticks)?))
            }),
        }
    }
}

/// Whether this is the last component of a lane claim's ref: an issue number without leading zero, or a placeholder
/// `p<digits>` or `p<digits>-<lower-case hex>`.
#[must_use]
pub fn is_lane_component(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match text.strip_prefix('p') {
        None => issue_of(text).is_some(),
        Some(rest) => match rest.split_once('-') {
            None => digits(rest),
            Some((number, token)) => {
                digits(number)
                    && !token.is_empty()
                    && token.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
            }
        },
    }
}

/// The issue that a component names; a placeholder names none.
#[must_use]
pub fn issue_of(component: &str) -> Option<u64> {
    number(component).filter(|issue| *issue != 0 && !component.starts_with('0'))
}

/// The ref of a lane claim, or `None` if the component has not the right form.
#[must_use]
pub fn lane_ref(machine: &MachineName, component: &str) -> Option<String> {
    is_lane_component(component).then(|| format!("{LANE_CLAIMS}{machine}/{component}"))
}

/// Makes one token of any text: `[A-Za-z0-9._:/#-]` stay, other bytes become `-`, runs of `-` become one, none at
/// either end, at most 120 bytes; `unspecified` if nothing is left.
#[must_use]
pub fn sanitise(text: &str) -> String {
    let mut clean = String::new();
    for byte in text.bytes() {
        let c = if is_kept(byte) { char::from(byte) } else { '-' };
        if !(c == '-' && (clean.is_empty() || clean.ends_with('-'))) && clean.len() <= VALUE_MAX {
            clean.push(c);
        }
    }
    clean.truncate(VALUE_MAX);
    let clean = clean.trim_end_matches('-');
    if clean.is_empty() { UNSPECIFIED.to_owned() } else { clean.to_owned() }
}

const fn is_kept(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b':' | b'/' | b'#' | b'-')
}

fn is_clean(value: &str) -> bool {
    (1..=VALUE_MAX).contains(&value.len()) && value.bytes().all(is_kept)
}

fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn pid(text: &str) -> Option<u32> {
    let id = i32::try_from(number(text)?).ok()?;
    u32::try_from(id).ok().filter(|id| *id != 0)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte),
        })
}

/// `YYYY-MM-DDTHH:MM:SSZ` of seconds since 1970 UTC. Seconds after the year 9999 are the last of it.
#[must_use]
pub fn format_ts(seconds: u64) -> String {
    let seconds = seconds.min(LAST_SECOND);
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    // 400 years have the same length everywhere in the calendar.
    year += 400 * (days / 146_097);
    days %= 146_097;
    while days >= year_days(year) {
        days -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while days >= month_days(year, month) {
        days -= month_days(year, month);
        month += 1;
    }
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}Z", days + 1)
}

/// Seconds since 1970 UTC of exactly `YYYY-MM-DDTHH:MM:SSZ`. Anything else, a date that does not exist, a leap second
/// and a year before 1970 are `None`.
#[must_use]
pub fn parse_ts(text: &str) -> Option<u64> {
    let shape = text.len() == 20
        && text.bytes().enumerate().all(|(at, byte)| match at {
            4 | 7 => byte == b'-',
            10 => byte == b'T',
            13 | 16 => byte == b':',
            19 => byte == b'Z',
            _ => byte.is_ascii_digit(),
        });
    if !shape {
        return None;
    }
    let field = |from: usize, to: usize| text.get(from..to).and_then(number);
    let (year, month, day) = (field(0, 4)?, field(5, 7)?, field(8, 10)?);
    let (hour, minute, second) = (field(11, 13)?, field(14, 16)?, field(17, 19)?);
    let exists = year >= 1970
        && (1..=12).contains(&month)
        && (1..=month_days(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !exists {
        return None;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let mut days = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    days += (1..month).map(|month| month_days(year, month)).sum::<u64>() + day - 1;
    Some(days * 86_400 + hour * 3600 + minute * 60 + second)
}

const fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

const fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

const fn month_days(year: u64, month: u64) -> u64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim() -> LaneClaim {
        LaneClaim {
            component: "900".into(),
            machine: MachineName::new("box-a").unwrap(),
            pid: 4242,
            ts: 1_700_000_000,
            boot: Some("0f8fad5b-d9cb-469f-a165-70867728950e".into()),
            ticks: Some(77),
            pidns: Some(4_026_531_836),
            actor: Some("flow lane=1\n".into()),
            run: Some(RunId::from_bytes([7; 16])),
            lane: Some(LaneId::new("lane-1").unwrap()),
            state: Some("running".into()),
            epoch: Some(3),
            warden: Some((12, 34)),
        }
    }

    #[test]
    fn the_predecessors_tokens_come_first() {
        let message = claim().to_message();
        let head = "claim issue=900 machine=box-a pid=4242 ts=2023-11-14T22:13:20Z boot=0f8fad5b-";
        assert!(message.starts_with(head), "{message}");
        assert!(message.contains(" actor=flow-lane-1 run="), "{message}");
        assert!(message.ends_with(" lane=lane-1 state=running epoch=3 warden=12/34"), "{message}");
    }

    #[test]
    fn lane_components_have_an_exact_grammar() {
        for good in ["3367", "p123", "p123-abc12345", "p0-0123456789ab"] {
            assert!(is_lane_component(good), "{good}");
        }
        for bad in
            ["0", "00", "pdead", "p-", "p", "", "007", "12x", "p1-", "p1-XY", "p1-a-b", "-1", "+1"]
        {
            assert!(!is_lane_component(bad), "{bad}");
        }
        assert_eq!(issue_of("900"), Some(900));
        assert_eq!(issue_of("p900"), None);
    }

    #[test]
    fn the_first_whole_key_decides_and_a_bad_value_is_unknown() {
        let parsed =
            ParsedClaim::parse(b"claim holder-pid=1 pid=5x pid=7 issue=12x ts=now ticks=\n");
        assert_eq!(parsed, ParsedClaim::default());
        let parsed =
            ParsedClaim::parse(b"claim xmachine=b machine=a machine=c pid=0 warden=1/ epoch=+1");
        assert_eq!(parsed, ParsedClaim { machine: Some("a".into()), ..ParsedClaim::default() });
        let hostile =
            ParsedClaim::parse(b"claim machine=\x1b[31m actor=\xff state=a=b pid=4294967296");
        assert_eq!(hostile, ParsedClaim::default());
        let largest = ParsedClaim::parse(b"pid=2147483647").pid;
        assert_eq!(
            (largest, ParsedClaim::parse(b"pid=2147483648").pid),
            (Some(2_147_483_647), None)
        );
    }

    #[test]
    fn timestamps_are_strict() {
        assert_eq!(parse_ts("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_ts("2000-02-29T23:59:59Z"), Some(951_868_799));
        assert_eq!(parse_ts("9999-12-31T23:59:59Z"), Some(LAST_SECOND));
        for bad in [
            "now",
            "@0",
            "1",
            "",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-00-01T00:00:00Z",
            "2023-01-00T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:00:60Z",
            "2023-01-01 00:00:00Z",
            "2023-01-01T00:00:00",
            "2023-01-01T00:00:00+",
            "1969-12-31T23:59:59Z",
            "+023-01-01T00:00:00Z",
        ] {
            assert_eq!(parse_ts(bad), None, "{bad}");
        }
    }

    #[test]
    fn values_are_sanitised_as_the_predecessor_does() {
        for (text, clean) in [
            ("a b=c", "a-b-c"),
            ("--x--", "x"),
            ("", "unspecified"),
            ("\u{2026}", "unspecified"),
            ("ok._:/#-Z", "ok._:/#-Z"),
        ] {
            assert_eq!(sanitise(text), clean, "{text:?}");
        }
        assert_eq!(sanitise(&"x".repeat(200)).len(), 120);
        assert_eq!(sanitise(&format!("{} y", "x".repeat(119))), "x".repeat(119));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in any::<Vec<u8>>()) {
            let read = ParsedClaim::parse(&bytes);
            prop_assert!(read.machine.is_none_or(|machine| is_clean(&machine)));
        }

        #[test]
        fn any_text_is_read(text in "(claim |pid=|ts=|warden=|boot=|[0-9TZ:/-]|\\PC| ){0,40}") {
            let read = ParsedClaim::parse(text.as_bytes());
            prop_assert!(read.pid != Some(0));
            prop_assert_eq!(parse_ts(&text).map(format_ts).is_none_or(|shown| shown == text), true);
            prop_assert!(!is_lane_component(&text) || sanitise(&text) == text);
        }

        #[test]
        fn what_is_written_is_read(
            issue in 1_u64.., id in 1_u32..=i32::MAX.unsigned_abs(), ts in 0..=LAST_SECOND,
            ticks in any::<Option<u64>>(), actor in proptest::option::of("\\PC{0,200}"),
        ) {
            let written = LaneClaim { component: issue.to_string(), pid: id, ts, ticks, actor, ..claim() };
            let read = ParsedClaim::parse(written.to_message().as_bytes());
            prop_assert_eq!(read, ParsedClaim {
                issue: Some(issue), machine: Some("box-a".into()), pid: Some(id), ts: Some(ts), ticks,
                boot: written.boot, pidns: written.pidns, actor: written.actor.as_deref().map(sanitise),
                run: written.run, lane: written.lane, state: written.state, epoch: written.epoch,
                warden: written.warden,
            });
        }

        #[test]
        fn a_sanitised_value_is_one_token_and_stays(text in ".*") {
            let once = sanitise(&text);
            prop_assert!(is_clean(&once), "{}", once);
            prop_assert_eq!(sanitise(&once), once);
        }
    }
}
