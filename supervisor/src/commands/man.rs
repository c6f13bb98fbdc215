//! `lanewarden man`: the manual pages, made from the command line's own description.

use clap::CommandFactory;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use super::{Failure, Outcome};
use crate::{
    cli::Cli,
    exit_code::{FAILED, OK, USAGE},
    output,
};

/// The page of the program, or of one command.
pub(super) fn man(command: Option<&str>) -> Outcome {
    let mut program = Cli::command();
    program.build();
    let page = match command {
        None => program,
        Some(name) => {
            let found = program.find_subcommand(name).cloned();
            found.ok_or_else(|| {
                Failure::new(
                    USAGE,
                    format!("there is no command {name:?}; see `lanewarden --help`"),
                )
            })?
        }
    };
    let mut text = Vec::new();
    let rendered = Man::new(page).render(&mut text).and_then(|()| match command {
        None | Some("dead-lanes") => dead_lanes().to_writer(&mut text),
        Some(_) => Ok(()),
    });
    rendered
        .map_err(|error| Failure::new(FAILED, format!("rendering the manual page: {error}")))?;
    output::raw(&text);
    Ok(OK)
}

const ABOUT: &str = "It judges this box by the daemon's own store, the keeper and /proc, also while no daemon runs, and \
adds what the coordination remote says. Lanes that somebody else works in (mode = \"observe\") are judged like managed ones. \
It prints nothing when there is nothing to report and --json was not asked for, so that cron mails findings only.";

const CRON: [&str; 3] = [
    "*/5 * * * * lanewarden dead-lanes",
    "*/5 * * * * lanewarden dead-lanes --textfile /var/lib/node_exporter/lanewarden.prom",
    "0 8 * * * lanewarden dead-lanes --certify || echo \"this box is not certified\"",
];

const CODES: [(&str, &str); 5] = [
    (
        "0",
        "only with --certify: every configured lane was measured on this box, none is dead or unknown, and none was given \
         up (tripped, exhausted).",
    ),
    (
        "1",
        "no dead lane was reported. This is no clean bill: something may not have been measured, such as an unreachable \
         remote, and the report then says that it is incomplete. With --certify: not certified.",
    ),
    ("3", "at least one lane is dead; its row names the verdict and the evidence."),
    ("64", "the command line is wrong."),
    ("78", "the configuration is wrong."),
];

fn dead_lanes() -> Roff {
    let mut page = Roff::new();
    page.control("SH", ["DEAD LANES FROM CRON"]);
    page.text([
        bold("lanewarden dead-lanes"),
        roman(" reports what is dead right now. "),
        roman(ABOUT),
    ]);
    page.control("PP", []).text([roman("Lines for crontab(5):")]);
    page.control("PP", []).control("nf", []);
    for line in CRON {
        page.text([roman(line)]);
    }
    page.control("fi", []);
    page.control("PP", []).text([roman("Its exit codes:")]);
    for (code, meaning) in CODES {
        page.control("TP", ["6"]).text([bold(code)]).text([roman(meaning)]);
    }
    page.control("PP", []).text([roman(
        "The textfile is replaced by rename, so that a collector never reads half of it. A clean run of the report is told \
         by lanewarden_cron_last_run_timestamp_seconds: alert on its age, not only on dead lanes.",
    )]);
    page
}
