//! What was there before us: the store's memory, the keeper's runs, and whether recorded workers still live.

use lanewarden_probes::{
    Root,
    kmsg::ChannelState,
    liveness::{Judged, Recorded, judge},
};

use super::{
    Events,
    keeper::Inventory,
    kernel_log::{KernelLog, Since},
};
use crate::{
    clock::unix_ms,
    event::{Beginning, KnownKills, PastRun},
    ids::MachineName,
    store::{
        self, Store, StoreError,
        rows::{Memory, OpenRun},
    },
    view::LastView,
};

/// Evidence is still looked for of runs that were judged so lately, milliseconds.
const PAST_MS: i64 = 600_000;

/// Gathers the first event.
///
/// # Errors
/// [`StoreError`]: what a daemon does not remember it must not guess.
pub async fn gather(
    store: &Store,
    inventory: Inventory,
    boot_id: &str,
    machine: &MachineName,
    events: &Events,
) -> Result<Beginning, StoreError> {
    let memory = remembered_kills(store, boot_id).await?;
    // After the inventory: whatever the keeper has seen end, the log has a line about by now.
    let kernel_log = match KernelLog::open(&Root::live(), memory.since) {
        Ok((log, mut missed)) => {
            missed.kills.retain(|kill| !memory.seqs.contains(&kill.seq));
            // Its events wait in the queue until what is gathered here was handled.
            log.follow(events.clone()).map(|()| missed).map_err(|_| ChannelState::Lost)
        }
        Err(state) => Err(state),
    };
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
        past: memory.past,
        known_kills: memory.known,
        kernel_log: Some(kernel_log),
        last,
        same_boot,
    })
}

/// What the store knows of OOM kills.
struct KillMemory {
    since: Since,
    /// The records of this boot that were acted on.
    seqs: Vec<u64>,
    known: Vec<KnownKills>,
    past: Vec<PastRun>,
}

async fn remembered_kills(store: &Store, boot_id: &str) -> Result<KillMemory, StoreError> {
    let boot = boot_id.to_owned();
    let since_ms = unix_ms().saturating_sub(PAST_MS);
    store
        .call("reading OOM kills", move |connection| {
            let position = store::remembered(connection, Memory::KernelLog)?;
            let since = match position {
                None => Since::Now,
                Some((then, seq)) if then == boot => seq.parse().map_or(Since::Boot, Since::Record),
                Some(_) => Since::Boot,
            };
            Ok(KillMemory {
                since,
                seqs: store::kill_seqs(connection, &boot)?,
                known: store::kills_of_open_runs(connection)?,
                past: store::past_runs(connection, &boot, since_ms)?,
            })
        })
        .await
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
