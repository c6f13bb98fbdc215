//! `lanewarden status`.

use std::time::Duration;

use super::{Failure, Outcome, client::ask};
use crate::{
    clock::unix_ms,
    config::Config,
    exit_code::{FAILED, OK},
    output::{self, Tone},
    sources::control::{Request, Response, socket_path},
    text::duration,
    verdict::LaneState,
    view::{BoxView, LaneView},
};

pub(super) fn status(config: &Config, json: bool) -> Outcome {
    let view = view(config)?;
    if json {
        output::json(&view);
        return Ok(OK);
    }
    let ready = if view.ready { ("ready", Tone::Good) } else { ("not ready", Tone::Warn) };
    output::line(&format!(
        "{} is {}, lanewarden {}, {} notices wait{}",
        view.machine,
        output::toned(ready.0, ready.1),
        view.version,
        view.spool.pending,
        if view.spool.dead > 0 { format!(", {} given up", view.spool.dead) } else { String::new() }
    ));
    for sentence in &view.degraded {
        output::line(&format!("  degraded: {}", crate::text::harmless(sentence)));
    }
    let rows: Vec<_> = view.lanes.iter().map(row).collect();
    output::table(&["LANE", "STATE", "SINCE", "PID", "CLAIM", "LAST", "REASON"], &rows);
    Ok(OK)
}

/// The running daemon's picture of the box.
pub(super) fn view(config: &Config) -> Result<BoxView, Failure> {
    let socket = socket_path(&config.runtime_dir);
    match ask(&socket, &Request::Status, Duration::from_secs(5))? {
        Response::Status(view) => Ok(*view),
        Response::Refused(why) => Err(Failure::new(FAILED, why)),
        Response::Done(_) => Err(Failure::new(FAILED, "the daemon answered something else")),
    }
}

fn row(lane: &LaneView) -> Vec<(String, Tone)> {
    let plain = |text: String| (text, Tone::Plain);
    let ago = |at_ms: i64| duration(seconds(unix_ms().saturating_sub(at_ms)));
    let claim = lane.claim.as_ref().map_or_else(
        || "-".to_owned(),
        |claim| duration(f64::from(u32::try_from(claim.age_s).unwrap_or(u32::MAX))),
    );
    let last = lane.last.as_ref().map_or_else(
        || "-".to_owned(),
        |last| {
            let how = match (last.exit_code, last.signal, last.end) {
                (_, _, Some(end)) => format!(" ({end})"),
                (Some(code), _, None) if code != 0 => format!(" (exit {code})"),
                (_, Some(signal), None) => format!(" (signal {signal})"),
                (_, None, None) => String::new(),
            };
            format!("{}{how}", last.verdict)
        },
    );
    let mut reason = lane.reason.clone().unwrap_or_default();
    if let Some(next) = lane.next_start_ms {
        let wait = duration(seconds(next.saturating_sub(unix_ms())));
        reason = format!("next try in {wait}; {reason}");
    }
    vec![
        plain(lane.id.clone()),
        (lane.state.to_string(), tone(lane.state)),
        plain(ago(lane.since_ms)),
        plain(lane.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string())),
        plain(claim),
        plain(last),
        plain(reason),
    ]
}

fn seconds(ms: i64) -> f64 {
    f64::from(u32::try_from(ms.max(0)).unwrap_or(u32::MAX)) / 1000.0
}

/// How a state looks.
pub(super) fn tone(state: LaneState) -> Tone {
    match state {
        LaneState::Running | LaneState::Observed => Tone::Good,
        LaneState::Tripped | LaneState::Exhausted | LaneState::Occupied => Tone::Bad,
        LaneState::Held | LaneState::Parked | LaneState::Stopping | LaneState::Cooling => {
            Tone::Warn
        }
        LaneState::Starting => Tone::Plain,
        LaneState::Stopped | LaneState::Vacant => Tone::Dim,
    }
}
