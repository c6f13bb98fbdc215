//! The status page: one HTML document, no script, nothing loaded, readable on a phone. Pure: a picture in, a text out.

use crate::{
    text::{duration, harmless, rfc3339},
    verdict::LaneState,
    view::{BoxView, LaneView},
};

/// How much a lane needs somebody, worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Tone {
    Bad,
    Warn,
    Idle,
    Good,
}

impl Tone {
    const fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Idle => "idle",
            Self::Good => "good",
        }
    }

    fn of(lane: &LaneView) -> Self {
        let failed = lane.last.as_ref().is_some_and(|last| last.verdict.is_failure());
        match lane.state {
            LaneState::Tripped | LaneState::Vacant => Self::Bad,
            LaneState::Cooling if failed => Self::Bad,
            LaneState::Held | LaneState::Exhausted | LaneState::Parked | LaneState::Occupied => {
                Self::Warn
            }
            LaneState::Cooling | LaneState::Stopped | LaneState::Stopping => Self::Idle,
            LaneState::Starting | LaneState::Running | LaneState::Observed => Self::Good,
        }
    }
}

const STYLE: &str = "
:root{color-scheme:light dark;--back:#f6f7f9;--card:#fff;--text:#1b1f24;--soft:#59636e;--line:#d5dae0;
--bad:#b3261e;--warn:#8a5a00;--good:#1a6b35;--idle:#59636e}
@media(prefers-color-scheme:dark){:root{--back:#12151a;--card:#1b2027;--text:#e6e9ed;--soft:#9aa5b1;--line:#323a44;
--bad:#ff8f85;--warn:#f0bd5a;--good:#76d391;--idle:#9aa5b1}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1rem;max-width:76rem;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.4rem;margin:0 .75rem 0 0;display:inline-block}
h2{font-size:1.05rem;margin:0;overflow-wrap:anywhere}
header p{margin:.35rem 0}
.pill{display:inline-block;border:1px solid;border-radius:1rem;padding:0 .6rem;font-size:.9rem;font-weight:600}
.bad{color:var(--bad)}.warn{color:var(--warn)}.good{color:var(--good)}.idle{color:var(--idle)}
.note{border-left:4px solid var(--warn);padding:.3rem .7rem;background:var(--card);overflow-wrap:anywhere}
main{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,20rem),1fr));gap:.75rem;margin:1rem 0}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid currentColor;border-radius:.4rem;
padding:.7rem .8rem}
article>*{color:var(--text)}
.top{display:flex;justify-content:space-between;gap:.5rem;align-items:baseline}
.top .bad,article.bad .pill{color:var(--bad)}article.warn .pill{color:var(--warn)}
article.good .pill{color:var(--good)}article.idle .pill{color:var(--idle)}
article p{margin:.4rem 0;overflow-wrap:anywhere;unicode-bidi:isolate}
dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .7rem;margin:.5rem 0 0;font-size:.9rem}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere;unicode-bidi:isolate}
footer{color:var(--soft);font-size:.85rem}a{color:inherit}
";

/// The page at `now_ms`; `stalled` says why the loop is not healthy.
pub(super) fn page(view: &BoxView, stalled: Option<&str>, now_ms: i64) -> String {
    let machine =
        if view.machine.is_empty() { "lanewarden".to_owned() } else { escape(&view.machine) };
    let mut lanes: Vec<(Tone, &LaneView)> =
        view.lanes.iter().map(|lane| (Tone::of(lane), lane)).collect();
    lanes.sort_by(|(one, a), (other, b)| one.cmp(other).then_with(|| a.id.cmp(&b.id)));
    let troubled = lanes.iter().filter(|(tone, _)| *tone <= Tone::Warn).count();
    let title = match troubled {
        0 => machine.clone(),
        count => format!("({count}) {machine}"),
    };
    let cards: String = lanes.iter().map(|(tone, lane)| card(*tone, lane, now_ms)).collect();
    let cards = if cards.is_empty() { "<p>No lanes.</p>".to_owned() } else { cards };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\"><meta http-equiv=\"refresh\" content=\"10\">\
         <title>{title} - Lanewarden</title><style>{STYLE}</style></head><body>\n{}\n<main>\n{cards}</main>\n{}\
         </body></html>\n",
        head(view, &machine, stalled, troubled),
        foot(view, now_ms),
    )
}

fn head(view: &BoxView, machine: &str, stalled: Option<&str>, troubled: usize) -> String {
    let (class, word) = match (stalled, view.ready) {
        (Some(_), _) => ("bad", "loop stands still"),
        (None, true) => ("good", "ready"),
        (None, false) => ("bad", "not ready"),
    };
    let lanes = view.lanes.len();
    let working = view.lanes.iter().filter(|lane| lane.state.has_worker()).count();
    let mut notes: Vec<String> = stalled.map(escape).into_iter().collect();
    if let Some(why) = super::not_ready(view) {
        notes.push(escape(&why));
    } else {
        notes.extend(view.degraded.iter().map(|text| escape(text)));
    }
    if view.spool.dead > 0 {
        notes.push(format!(
            "{} notices were given up: the server will not take them",
            view.spool.dead
        ));
    }
    let notes: String = notes.iter().map(|note| format!("<p class=\"note\">{note}</p>")).collect();
    format!(
        "<header><h1>{machine}</h1><span class=\"pill {class}\">{word}</span>\
         <p>{lanes} lanes, {working} with a worker, {troubled} in need of a look; {} notices wait</p>{notes}</header>",
        view.spool.pending,
    )
}

fn card(tone: Tone, lane: &LaneView, now_ms: i64) -> String {
    let reason =
        lane.reason.as_ref().map_or_else(String::new, |text| format!("<p>{}</p>", escape(text)));
    let weaker: String = lane
        .degraded
        .iter()
        .map(|text| format!("<p class=\"note\">{}</p>", escape(text)))
        .collect();
    format!(
        "<article class=\"{}\"><div class=\"top\"><h2>{}</h2><span class=\"pill\">{}</span></div>{reason}{weaker}\
         <dl>{}</dl></article>\n",
        tone.class(),
        escape(&lane.id),
        lane.state,
        rows(lane, now_ms),
    )
}

fn rows(lane: &LaneView, now_ms: i64) -> String {
    let mut rows = vec![("since", Some(ago(lane.since_ms, now_ms)))];
    rows.push(("next start", lane.next_start_ms.map(|at| ahead(at, now_ms))));
    rows.push(("worker", lane.pid.map(|pid| format!("pid {pid}"))));
    rows.push(("running for", lane.run_started_ms.map(|at| between(at, now_ms))));
    rows.push(("issue", lane.issue.map(|issue| format!("#{issue}"))));
    rows.push(("failures", (lane.failures > 0).then(|| lane.failures.to_string())));
    if let Some(last) = &lane.last {
        let end = last.end.map_or_else(String::new, |end| format!(" ({end})"));
        let lived = duration(last.duration_s);
        rows.push(("last run", Some(format!("{}{end} after {lived}", last.verdict))));
        rows.push(("", (!last.reason.is_empty()).then(|| last.reason.clone())));
    }
    rows.push(("claim", lane.claim.as_ref().map(|claim| ago(claim.stamped_at_ms, now_ms))));
    rows.push(("directory", Some(lane.dir.clone())));
    rows.push(("mode", Some(lane.mode.clone())));
    rows.into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .map(|(name, value)| format!("<dt>{name}</dt><dd>{}</dd>", escape(&value)))
        .collect()
}

fn foot(view: &BoxView, now_ms: i64) -> String {
    let taken = match view.taken_at_ms {
        0 => "nothing was measured yet".to_owned(),
        at => format!("as of {}, {}", rfc3339(at), ago(at, now_ms)),
    };
    format!(
        "<footer><p>Lanewarden {}, {taken}. <a href=\"/metrics\">metrics</a> <a href=\"/api/v1/lanes\">JSON</a> \
         <a href=\"/readyz\">readiness</a></p></footer>",
        escape(&view.version),
    )
}

/// The time between two moments, for people; never negative.
fn between(from_ms: i64, to_ms: i64) -> String {
    let ms = u64::try_from(to_ms.saturating_sub(from_ms)).unwrap_or(0);
    duration(std::time::Duration::from_millis(ms).as_secs_f64())
}

fn ago(at_ms: i64, now_ms: i64) -> String {
    format!("{} ago", between(at_ms, now_ms))
}

fn ahead(at_ms: i64, now_ms: i64) -> String {
    if at_ms > now_ms { format!("in {}", between(now_ms, at_ms)) } else { "now".to_owned() }
}

/// Text as HTML text or attribute value, without control characters.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in harmless(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::web::tests::{lane, view};

    fn order(page: &str) -> Vec<&str> {
        page.split("<h2>").skip(1).filter_map(|rest| rest.split("</h2>").next()).collect()
    }

    #[test]
    fn lanes_in_need_come_first() {
        let shown = page(
            &view(vec![
                lane("a-runs", LaneState::Running),
                lane("b-held", LaneState::Held),
                lane("c-tripped", LaneState::Tripped),
                lane("d-stopped", LaneState::Stopped),
            ]),
            None,
            5_000,
        );
        assert_eq!(order(&shown), ["c-tripped", "b-held", "d-stopped", "a-runs"]);
        assert!(shown.contains("<title>(2) box-a - Lanewarden</title>"), "{shown}");
        assert!(
            !shown.contains("<script") && !shown.contains("http://") && !shown.contains("https://")
        );
    }

    #[test]
    fn a_loop_that_stands_still_is_said_aloud() {
        let shown = page(&view(Vec::new()), Some("the loop <hangs>"), 5_000);
        assert!(shown.contains("loop stands still") && shown.contains("the loop &lt;hangs&gt;"));
    }

    #[test]
    fn every_state_has_a_card() {
        for &state in LaneState::ALL {
            let shown = page(&view(vec![lane("a", state)]), None, 5_000);
            assert!(shown.contains(&format!("<span class=\"pill\">{state}</span>")), "{state}");
        }
    }

    proptest! {
        #[test]
        fn no_text_leaves_its_element(text in "[\\PC<>&\"'\u{0}-\u{1f}]{0,60}", at in any::<i64>()) {
            let mut hostile = lane("a", LaneState::Held);
            hostile.reason = Some(text.clone());
            hostile.dir.clone_from(&text);
            hostile.degraded = vec![text.clone()];
            hostile.next_start_ms = Some(at);
            hostile.since_ms = at;
            let mut hostile = view(vec![hostile]);
            hostile.machine.clone_from(&text);
            hostile.degraded = vec![text];
            let plain = page(&view(vec![lane("a", LaneState::Held)]), None, 0);
            let shown = page(&hostile, None, 0);
            prop_assert!(shown.chars().all(|c| !c.is_control() || c == '\n'));
            let tags = |page: &str, tag: &str| page.matches(tag).count();
            for tag in ["<main", "<article", "<h1", "<footer", "<style", "<title", "<script", "<img"] {
                prop_assert_eq!(tags(&shown, tag), tags(&plain, tag), "{}", tag);
            }
        }
    }
}
