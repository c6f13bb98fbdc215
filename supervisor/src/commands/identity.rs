//! `lanewarden identity`.

use lanewarden_probes::{Root, identity};
use serde_json::json;

use super::{Failure, Outcome};
use crate::{
    config::Env,
    exit_code::{FAILED, OK},
    ids::MachineName,
    output,
};

pub(super) fn identity(pid: Option<u32>, json: bool) -> Outcome {
    let env = Env::current();
    let machine = env.host_name.as_deref().and_then(MachineName::from_host_name);
    let machine = machine.as_ref().map_or("-", MachineName::as_str);
    let actor = env.var("CLAIM_ACTOR").unwrap_or("flow").to_owned();
    let pid = match pid {
        Some(pid) => pid,
        None => caller()?,
    };
    let resolved = identity::resolve(&Root::live(), pid, machine, &actor)
        .map_err(|error| Failure::new(FAILED, error))?;
    let own = &resolved.identity;
    if json {
        output::json(&json!({
            "token": own.token(),
            "machine": own.machine,
            "actor": own.actor,
            "pid": own.pid,
            "boot_id": own.boot_id.as_ref().map(identity::BootId::full),
            "start_ticks": own.start_ticks,
            "pidns": own.pidns,
            "timens": own.timens,
            "pidfs_ino": own.pidfs_ino,
            "evidence": resolved.evidence,
        }));
        return Ok(OK);
    }
    output::line(&own.token());
    for fact in &resolved.evidence {
        output::line(&format!("  {}", crate::text::harmless(fact)));
    }
    Ok(OK)
}

/// Who called us: our parent.
fn caller() -> Result<u32, Failure> {
    rustix::process::getppid()
        .and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
        .ok_or_else(|| Failure::new(FAILED, "our caller is in another pid namespace; name a pid"))
}
