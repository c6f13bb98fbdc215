//! Reading OOM kills, and the runs to which one that is found now may belong.

use lanewarden_probes::ending::Usage;
use rusqlite::{Connection, Row, params};

use super::read::{member, unreadable};
use crate::{
    decide::attribution::{LaneKill, Proof},
    event::{KnownKills, PastRun},
    ids::{LaneId, RunId},
    store::rows::EndedRow,
    verdict::SigkillEnd,
};

/// The sequence numbers of the kernel's records of this boot that were acted on.
///
/// # Errors
/// What SQLite says.
pub fn kill_seqs(connection: &Connection, boot_id: &str) -> rusqlite::Result<Vec<u64>> {
    let mut statement =
        connection.prepare("SELECT seq FROM oom_kill WHERE boot_id = ?1 AND seq >= 0")?;
    let rows = statement.query_map([boot_id], |row| row.get::<_, i64>(0))?;
    rows.map(|seq| seq.map(|seq| u64::try_from(seq).unwrap_or(0))).collect()
}

/// OOM kills of runs that have no end on record.
///
/// # Errors
/// What SQLite says.
pub fn kills_of_open_runs(connection: &Connection) -> rusqlite::Result<Vec<KnownKills>> {
    let mut statement = connection.prepare(
        "SELECT oom_kill.run, oom_kill.seq, oom_kill.at_ms, oom_kill.proof, oom_kill.kill FROM oom_kill \
         JOIN run ON run.run = oom_kill.run WHERE run.ended_at_ms IS NULL \
         ORDER BY oom_kill.run, oom_kill.at_ms, oom_kill.seq",
    )?;
    let mut known: Vec<KnownKills> = Vec::new();
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let run = run_id(row, 0)?;
        if known.last().is_none_or(|last| last.run != run) {
            known.push(KnownKills { run, named: Vec::new(), unnamed: 0 });
        }
        let Some(last) = known.last_mut() else { continue };
        if row.get::<_, i64>(1)? < 0 {
            last.unnamed += 1;
        } else {
            last.named.push(lane_kill(row)?);
        }
    }
    Ok(known)
}

fn lane_kill(row: &Row<'_>) -> rusqlite::Result<LaneKill> {
    let proof: Option<String> = row.get(3)?;
    let proof = proof.unwrap_or_default();
    let (proof, conflict) = proof.split_once("; ").unwrap_or((&proof, ""));
    let kill: String = row.get(4)?;
    Ok(LaneKill {
        kill: serde_json::from_str(&kill).map_err(|error| unreadable(4, error))?,
        read_at_ms: row.get(2)?,
        // A release before the proof was kept attributed by these two only, the cgroup first.
        proof: proof.parse().unwrap_or(Proof::Cgroup),
        conflict: (!conflict.is_empty()).then(|| conflict.to_owned()),
    })
}

/// Runs of this boot that ended since then, newest first.
///
/// # Errors
/// What SQLite says.
pub fn past_runs(
    connection: &Connection,
    boot_id: &str,
    since_ms: i64,
) -> rusqlite::Result<Vec<PastRun>> {
    let mut statement = connection.prepare(
        "SELECT run, lane, issue, verdict, verified, exit_code, signal, sigkill_end, started_at_ms, ended_at_ms, \
         peak_memory_bytes, user_us, system_us, max_rss_kb, leftovers, reason, evidence, pid, cgroup FROM run \
         WHERE ended_at_ms >= ?2 AND boot_id = ?1 ORDER BY ended_at_ms, rowid",
    )?;
    statement.query_map(params![boot_id, since_ms], past_run)?.collect()
}

fn past_run(row: &Row<'_>) -> rusqlite::Result<PastRun> {
    let unsigned = |index| -> rusqlite::Result<Option<u64>> {
        Ok(row.get::<_, Option<i64>>(index)?.and_then(|number| u64::try_from(number).ok()))
    };
    let usage = Usage {
        user_us: unsigned(11)?.unwrap_or(0),
        system_us: unsigned(12)?.unwrap_or(0),
        max_rss_kb: unsigned(13)?.unwrap_or(0),
    };
    let evidence: Option<String> = row.get(16)?;
    Ok(PastRun {
        row: EndedRow {
            run: run_id(row, 0)?,
            lane: LaneId::new(&row.get::<_, String>(1)?).map_err(|error| unreadable(1, error))?,
            issue: unsigned(2)?,
            verdict: member(row, 3)?,
            verified: member(row, 4)?,
            exit_code: row.get(5)?,
            signal: row.get(6)?,
            end: row
                .get::<_, Option<String>>(7)?
                .map(|text| text.parse::<SigkillEnd>().map_err(|error| unreadable(7, error)))
                .transpose()?,
            started_at_ms: row.get(8)?,
            ended_at_ms: row.get(9)?,
            peak_memory_bytes: unsigned(10)?,
            usage,
            leftovers: row.get::<_, Option<u32>>(14)?.unwrap_or(0),
            reason: row.get::<_, Option<String>>(15)?.unwrap_or_default(),
            evidence: evidence
                .and_then(|text| serde_json::from_str(&text).ok())
                .unwrap_or_default(),
        },
        pid: row.get::<_, Option<u32>>(17)?.unwrap_or(0),
        cgroup: row.get(18)?,
    })
}

fn run_id(row: &Row<'_>, index: usize) -> rusqlite::Result<RunId> {
    RunId::new(&row.get::<_, String>(index)?).map_err(|error| unreadable(index, error))
}
