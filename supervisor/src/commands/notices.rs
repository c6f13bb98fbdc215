//! `lanewarden notify`: publishing by hand, with and without a daemon.

use std::time::Duration;

use lanewarden_notify::{
    Context, Courier, Delivery, Level, Notice, render,
    spool::{self, Enqueue},
};

use super::{Failure, Outcome, runtime};
use crate::{
    cli::Notify,
    clock::{random_bytes, unix_ms},
    config::Config,
    effects::courier::{settle, sql},
    exit_code::{CONFIG, FAILED, OK},
    ids::RunId,
    output,
    run::target,
    store,
};

/// How long a notice is tried before it is left in the spool.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn notify(config: &Config, what: Notify) -> Outcome {
    match what {
        Notify::Test => test(config),
        Notify::Send { title, message, level } => {
            publish(config, Notice::Text { level: Level::from_word(&level), title, message })
        }
        Notify::Gate { result, branch, sha, failing } => {
            publish(config, Notice::GateResult { result, branch, sha, failing })
        }
    }
}

fn courier(config: &Config) -> Result<Courier, Failure> {
    let mut target =
        target(config).map_err(|error| Failure::new(CONFIG, error))?.ok_or_else(|| {
            Failure::new(
                CONFIG,
                format!("{} has no [ntfy] table; add server and topic", config.path.display()),
            )
        })?;
    target.total_timeout = PATIENCE;
    Courier::new(target).map_err(|error| Failure::new(CONFIG, error))
}

fn context(config: &Config) -> Context {
    Context {
        machine: config.machine.to_string(),
        at_unix_ms: unix_ms(),
        id: format!("by-hand-{}", RunId::from_bytes(random_bytes())),
        ..Context::default()
    }
}

fn test(config: &Config) -> Outcome {
    let courier = courier(config)?;
    let mut accepted = true;
    for &level in Level::ALL {
        let message = render(&Notice::Test { level }, &context(config));
        let began = unix_ms();
        let delivery = runtime()?.block_on(courier.publish(&message));
        let took = unix_ms() - began;
        match delivery {
            Delivery::Accepted { id } => {
                let id: String = id.chars().take(40).collect();
                output::line(&format!(
                    "{level}: accepted by {} in {took} ms, id {}",
                    courier.host(),
                    crate::text::harmless(&id)
                ));
            }
            Delivery::Retry { reason, detail, .. } | Delivery::Permanent { reason, detail } => {
                accepted = false;
                let words =
                    format!("{level}: not accepted: {reason}: {detail}; {}", reason.remedy());
                output::error(&words);
            }
        }
    }
    Ok(if accepted { OK } else { FAILED })
}

/// Spools the notice, tries to deliver it at once, and leaves it to the daemon if that fails.
fn publish(config: &Config, notice: Notice) -> Outcome {
    let courier = courier(config)?;
    let failed = |error: &dyn std::fmt::Display| Failure::new(FAILED, error);
    std::fs::create_dir_all(&config.state_dir).map_err(|error| failed(&error))?;
    let connection =
        store::open(&store::path(&config.state_dir)).map_err(|error| failed(&error))?;
    let context = context(config);
    let message = render(&notice, &context);
    let enqueue = Enqueue {
        id: &context.id,
        subject: &context.id,
        kind: notice.kind(),
        level: notice.level(),
        at_ms: context.at_unix_ms,
        unrecorded: false,
        message: &message,
    };
    spool::enqueue(&connection, &enqueue).map_err(|error| failed(&error))?;
    let due = sql(spool::due(&connection, unix_ms(), 500)).map_err(|error| failed(&error))?;
    let Some(row) = due.into_iter().find(|row| row.id == context.id) else {
        output::line("spooled; the server asked for a pause");
        return Ok(OK);
    };
    let attempts =
        spool::record_attempt(&connection, row.row, unix_ms()).map_err(|error| failed(&error))?;
    let delivery = runtime()?.block_on(courier.publish(&row.message));
    settle(&connection, &row, &delivery, attempts, unix_ms()).map_err(|error| failed(&error))?;
    output::line(match delivery {
        Delivery::Accepted { .. } => "accepted",
        Delivery::Retry { .. } => "spooled; the daemon tries again",
        Delivery::Permanent { .. } => "refused by the server; `lanewarden notify test` says why",
    });
    Ok(OK)
}
