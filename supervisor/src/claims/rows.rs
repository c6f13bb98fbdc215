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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(name: &str, message: &str) -> Option<ClaimRow> {
        let message = Ok(message.as_bytes().to_vec());
        ClaimRow::of(&RemoteRef { name: name.to_owned(), oid: "a".repeat(40), message })
    }

    #[test]
    fn the_path_outranks_the_message() {
        let row =
            row("refs/lane-claims/box-a-1/5555", "claim issue=9999 machine=else pid=4").unwrap();
        assert_eq!((row.machine.as_str(), row.component.as_deref()), ("box-a-1", Some("5555")));
        assert_eq!(row.issue, Some(5555));
        assert_eq!(row.parsed.unwrap().pid, Some(4));
    }

    #[test]
    fn everything_between_is_the_machine_and_a_placeholder_names_no_issue() {
        let nested = row("refs/lane-claims/a/b/p0-0123456789ab", "claim issue=7").unwrap();
        assert_eq!((nested.machine.as_str(), nested.issue), ("a/b", None));
        let bare = row("refs/lane-claims/7", "").unwrap();
        assert_eq!((bare.machine.as_str(), bare.issue), ("", Some(7)));
        assert_eq!(row("refs/lane-claims/m/007", "").unwrap().issue, None);
    }

    #[test]
    fn a_legacy_claim_takes_its_issue_from_the_message() {
        let legacy = row("refs/machine-claims/box-a", "claim issue=42 pid=9").unwrap();
        assert_eq!((legacy.namespace, legacy.component.clone()), (Namespace::MachineClaims, None));
        assert_eq!((legacy.machine.as_str(), legacy.issue), ("box-a", Some(42)));
        for message in
            ["claim issue=abc", "claim issue=0", "claim issue=007", "claim issue=12x", "claim"]
        {
            assert_eq!(row("refs/machine-claims/box-a", message).unwrap().issue, None, "{message}");
        }
    }

    #[test]
    fn other_refs_are_no_rows_and_an_unreadable_one_is() {
        assert_eq!(row("refs/claims/issue-7", "claim issue=7 pid=1"), None);
        let name = "refs/lane-claims/box-a/7".to_owned();
        let bad = RemoteRef { name, oid: "a".repeat(40), message: Err(Unreadable::NotACommit) };
        let row = ClaimRow::of(&bad).unwrap();
        assert_eq!((row.issue, row.parsed), (Some(7), Err(Unreadable::NotACommit)));
    }

    proptest! {
        #[test]
        fn any_name_makes_a_row_or_none(path in "\\PC{0,40}", message in any::<Vec<u8>>()) {
            for namespace in Namespace::ALL {
                let name = format!("{namespace}{path}");
                let found = RemoteRef { name: name.clone(), oid: String::new(), message: Ok(message.clone()) };
                prop_assert_eq!(ClaimRow::of(&found).map(|row| row.ref_name), Some(name));
            }
            let found = RemoteRef { name: path, oid: String::new(), message: Ok(message) };
            prop_assert!(ClaimRow::of(&found).is_none_or(|row| found.name.contains(&row.machine)));
        }
    }
}
