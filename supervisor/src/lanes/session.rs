//! Which process asks: the one that is named, else the outermost of our ancestors that is inside the lane.

use std::path::Path;

use lanewarden_probes::{
    Root,
    identity::{self, Identity, ResolveError},
};

lanewarden_probes::closed_set! {
    /// How the process was found.
    pub enum Scope {
        /// It was named.
        Explicit = "explicit",
        /// Its working directory is in the lane.
        CwdMatch = "cwd-match",
        /// Nobody lasting was found; such a one never writes.
        Ephemeral = "ephemeral",
    }
}

/// Who asks.
#[derive(Debug, Clone)]
pub struct Session {
    /// How it was found.
    pub scope: Scope,
    /// Who it is; `None` if it could not be told.
    pub identity: Option<Identity>,
    /// Why it could not be told, or why it may not write.
    pub doubt: Option<Doubt>,
}

/// Why a process may not hold a lane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// No ancestor is in the lane.
    NoDurableProcess,
    /// Boot id or start ticks could not be read: nobody could recognise it later.
    Degraded(String),
    /// The named process is not there, is a thread, or has exited.
    NotLive(String),
}

/// Finds out who asks: `named`, else the outermost inside `dir` of `from` (our parent) and its ancestors. Writes nothing, refuses nothing: what follows from a doubt is the caller's matter.
#[must_use]
pub fn session(
    machine: &str,
    actor: &str,
    named: Option<u32>,
    from: Option<u32>,
    dir: &Path,
) -> Session {
    let root = Root::live();
    if let Some(pid) = named {
        return resolved(&root, Scope::Explicit, pid, machine, actor);
    }
    let parent = from.or_else(|| {
        rustix::process::getppid().and_then(|pid| u32::try_from(pid.as_raw_nonzero().get()).ok())
    });
    let none = |doubt| Session { scope: Scope::Ephemeral, identity: None, doubt: Some(doubt) };
    let Some(parent) = parent else { return none(Doubt::NoDurableProcess) };
    match identity::outermost_ancestor_inside(&root, parent, dir) {
        Ok(Some(pid)) => resolved(&root, Scope::CwdMatch, pid, machine, actor),
        Ok(None) => none(Doubt::NoDurableProcess),
        Err(error) => none(Doubt::Degraded(error.to_string())),
    }
}

fn resolved(root: &Root, scope: Scope, pid: u32, machine: &str, actor: &str) -> Session {
    let resolved = match identity::resolve(root, pid, machine, actor) {
        Ok(resolved) => resolved,
        Err(error @ (ResolveError::NoProcess { .. } | ResolveError::IsThread { .. })) => {
            let doubt = Some(Doubt::NotLive(error.to_string()));
            return Session { scope, identity: None, doubt };
        }
        Err(error @ (ResolveError::Pidfd { .. } | ResolveError::Probe { .. })) => {
            let doubt = Some(Doubt::Degraded(error.to_string()));
            return Session { scope, identity: None, doubt };
        }
    };
    let own = resolved.identity;
    let doubt = if resolved.stat.as_ref().is_some_and(identity::ProcStat::is_kernel_thread) {
        Some(Doubt::NotLive(format!("process {pid} is a thread of the kernel")))
    } else if resolved.stat.as_ref().is_some_and(identity::ProcStat::is_over) {
        Some(Doubt::NotLive(format!("process {pid} is a zombie")))
    } else if own.boot_id.is_none() || own.start_ticks.is_none() {
        Some(Doubt::Degraded(resolved.evidence.join("; ")))
    } else {
        None
    };
    Session { scope, identity: Some(own), doubt }
}
