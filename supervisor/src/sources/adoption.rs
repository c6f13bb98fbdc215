//! What was there before us: the store's memory, the keeper's runs, and whether recorded workers still live.

use lanewarden_probes::{
    Root,
    liveness::{Judged, Recorded, judge},
};

use super::keeper::Inventory;
use crate::{
    event::Beginning,
    ids::MachineName,
    store::{self, Store, StoreError, rows::OpenRun},
    view::LastView,
};

/// Gathers the first event.
///
/// # Errors
/// [`StoreError`]: what a daemon does not remember it must not guess.
pub async fn gather(
    store: &Store,
    inventory: Inventory,
    boot_id: &str,
    machine: &MachineName,
) -> Result<Beginning, StoreError> {
    let nonces: Vec<String> =
        inventory.ended.iter().map(|end| end.ended.started.run.to_string()).collect();
    let (rows, open, judged, last) = store
        .call("reading what was there", move |connection| {
            let judged = store::judged_runs(connection, &nonces)?;
            let lanes = store::lanes(connection)?;
            let mut last = Vec::new();
            for (row, _) in &lanes {
                let newest = store::history(connection, Some(&row.lane), 1)?.into_iter().next();
                last.extend(newest.map(|run| (row.lane.clone(), LastView::from(run))));
            }
            Ok((lanes, store::open_runs(connection)?, judged, last))
        })
        .await?;
    let (recorded, ended): (Vec<_>, Vec<_>) = inventory
        .ended
        .into_iter()
        .partition(|end| judged.iter().any(|run| run == end.ended.started.run.as_str()));
    let same_boot = rows.iter().all(|(_, boot)| boot == boot_id);
    let open = open
        .into_iter()
        .map(|run| {
            let judged = judge_worker(&run, machine);
            (run, judged)
        })
        .collect();
    Ok(Beginning {
        lanes: rows.into_iter().map(|(row, _)| row).collect(),
        open,
        living: inventory.living,
        ended,
        recorded: recorded.into_iter().map(|end| end.ended.started.run).collect(),
        last,
        same_boot,
    })
}

/// Whether a recorded worker lives; nothing if there never was one on record.
#[must_use]
pub fn judge_worker(run: &OpenRun, machine: &MachineName) -> Option<Judged> {
    let worker = run.worker.as_ref()?;
    let recorded = Recorded {
        machine: machine.to_string(),
        pid: Some(worker.pid),
        boot: worker.boot_id.parse().ok(),
        ticks: Some(worker.start_ticks),
        pidns: worker.pidns,
        ..Recorded::default()
    };
    Some(judge(&Root::live(), &recorded, machine.as_str()))
}
