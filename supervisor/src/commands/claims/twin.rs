//! Another box that bears our name, as clones of one image do.

use lanewarden_probes::{
    Root,
    identity::{BootId, boot_id},
};

use super::super::issue::stamped_in_this_boot;
use crate::claims::ParsedClaim;

/// Whether a record that bears our name is another box's: of another boot, and stamped after ours began. Without a boot id
/// on either side nothing of the kind can be said: the predecessor writes none.
pub(super) fn is_other_box(record: &ParsedClaim) -> bool {
    let theirs: Option<BootId> = record.boot.as_ref().and_then(|boot| boot.parse().ok());
    let ours = boot_id(&Root::live()).ok().and_then(Result::ok);
    theirs.is_some() && ours.is_some() && theirs != ours && stamped_in_this_boot(record.ts)
}

/// What is said about it, with the remedy.
pub(super) fn words(machine: &str) -> String {
    format!(
        "another box stamped it after this one booted: two boxes bear the name {machine:?}; give one of them another `machine` in its configuration (or HEARTBEAT_MACHINE)"
    )
}
