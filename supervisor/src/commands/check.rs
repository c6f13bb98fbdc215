//! `lanewarden check`.

use std::path::Path;

use serde_json::json;

use super::{Outcome, load};
use crate::{
    config::{Level, check_environment, effective},
    exit_code::{CONFIG, OK},
    output::{self, Tone},
};

pub(super) fn check(path: Option<&Path>, show: bool, json: bool) -> Outcome {
    let config = load(path)?;
    if show {
        output::line(&effective(&config));
    }
    let findings = check_environment(&config);
    let failed = findings.iter().any(|finding| finding.level == Level::Failure);
    if json {
        let rows: Vec<_> = findings
            .iter()
            .map(|finding| {
                json!({
                    "level": finding.level.as_str(),
                    "subject": finding.subject,
                    "detail": finding.detail,
                    "remedy": finding.remedy,
                })
            })
            .collect();
        output::json(&json!({"path": config.path, "valid": !failed, "findings": rows}));
    } else {
        for finding in &findings {
            let tone = match finding.level {
                Level::Ok => Tone::Good,
                Level::Warning => Tone::Warn,
                Level::Failure => Tone::Bad,
            };
            let level = output::toned(&format!("{:7}", finding.level.as_str()), tone);
            let detail = crate::text::harmless(&format!("{}: {}", finding.subject, finding.detail));
            output::line(&format!("{level} {detail}"));
            if !finding.remedy.is_empty() && finding.level != Level::Ok {
                output::line(&format!("        {}", crate::text::harmless(&finding.remedy)));
            }
        }
        let verdict = if failed { "cannot be used as it is" } else { "can be used" };
        output::line(&format!(
            "{}: {} lanes; {verdict}",
            config.path.display(),
            config.lanes.len()
        ));
    }
    Ok(if failed { CONFIG } else { OK })
}
