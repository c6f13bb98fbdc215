//! A ref's name and its message together. The name is authoritative: the server guards it, the message anybody can write.

use lanewarden_probes::closed_set;

use super::{
    record::{ParsedClaim, issue_of},
    snapshot::{RemoteRef, Unreadable},
};

closed_set! {
    /// The namespaces that hold evidence of life.
    pub enum Namespace {
        /// `refs/lane-claims/<machine>/<lane>`, one ref for each lane.
        LaneClaims = "refs/lane-claims/",
        /// `refs/machine-claims/<machine>`: the predecessor's older form. Read so that it drains, never written.
        MachineClaims = "refs/machine-claims/",
        /// `refs/heartbeats/<machine>`: one slot for a machine, says nothing about a lane.
        Heartbeats = "refs/heartbeats/",
    }
}

/// One claim of the fleet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimRow {
    /// Where it was found.
    pub namespace: Namespace,
    /// The full name of the ref.
    pub ref_name: String,
    /// The object that was read; the lease for every later write.
    pub oid: String,
    /// The machine by the ref's name: everything between the namespace and the last component, or all of it where there
    /// is no lane. Not escaped.
    pub machine: String,
    /// The last component of a lane claim; `None` in the other namespaces. Need not be of the right form. Not escaped.
    pub component: Option<String>,
    /// The issue: by the ref's name for a lane claim, by the message elsewhere. `None`: none, or unknown.
    pub issue: Option<u64>,
    /// What the message says.
    pub parsed: Result<ParsedClaim, Unreadable>,
}

impl ClaimRow {
    /// The row of a ref, or `None` if the ref is in none of the namespaces.
    #[must_use]
    pub fn of(found: &RemoteRef) -> Option<Self> {
        let (namespace, path) = Namespace::ALL.iter().find_map(|namespace| {
            Some((*namespace, found.name.strip_prefix(namespace.as_str())?))
        })?;
        let parsed = found.message.clone().map(|message| ParsedClaim::parse(&message));
        let said = || parsed.as_ref().ok().and_then(|parsed| parsed.issue);
        let (machine, component, issue) = match namespace {
            Namespace::LaneClaims => {
                let (machine, component) = path.rsplit_once('/').unwrap_or(("", path));
                (machine, Some(component.to_owned()), issue_of(component))
            }
            Namespace::MachineClaims | Namespace::Heartbeats => (path, None, said()),
        };
        Some(Self {
            namespace,
            ref_name: found.name.clone(),
            oid: found.oid.clone(),
            machine: machine.to_owned(),
            component,
            issue,
            parsed,
        })
    }
}
