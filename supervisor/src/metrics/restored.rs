//! What earlier daemons counted, as the store has it.

use std::collections::BTreeMap;

use lanewarden_probes::UnknownMember;
use rusqlite::{Connection, types::Type};

use super::has_no_record;
use crate::{
    ids::LaneId,
    verdict::{RunVerdict, SigkillEnd},
};

/// Counters that alerts read over a restart of the daemon. Rows of lanes that are no longer configured do no harm.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Restored {
    /// OOM kills by lane and class; `None` for processes of no lane.
    pub oom_kills: Vec<(Option<LaneId>, SigkillEnd, u64)>,
    /// Judged runs.
    pub runs_finished: Vec<(LaneId, RunVerdict, u64)>,
    /// Workers that SIGKILL ended.
    pub sigkill_ends: Vec<(LaneId, SigkillEnd, u64)>,
    /// Trips of the breaker.
    pub breaker_trips: Vec<(LaneId, u64)>,
}

impl Restored {
    /// Counts the rows of the store. Trips of the breaker have no rows and stay empty.
    ///
    /// # Errors
    /// What SQLite says, or a row that this release cannot read: nothing is counted smaller than it is.
    pub fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let mut restored = Self::default();
        let mut runs = connection.prepare(
            "SELECT lane, verdict, count(*) FROM run WHERE verdict IS NOT NULL GROUP BY lane, verdict",
        )?;
        for row in runs.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))? {
            let (lane, verdict, count): (String, String, i64) = row?;
            restored.runs_finished.push((
                lane_id(0, &lane)?,
                member(1, &verdict)?,
                positive(count),
            ));
        }
        let mut kills: BTreeMap<(Option<LaneId>, SigkillEnd), u64> = BTreeMap::new();
        let mut ends = connection.prepare(
            "SELECT lane, sigkill_end, count(*) FROM run WHERE sigkill_end IS NOT NULL GROUP BY lane, sigkill_end",
        )?;
        for row in ends.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))? {
            let (lane, end, count): (String, String, i64) = row?;
            let (lane, end) = (lane_id(0, &lane)?, member::<SigkillEnd>(1, &end)?);
            restored.sigkill_ends.push((lane.clone(), end, positive(count)));
            if has_no_record(end) {
                *kills.entry((Some(lane), end)).or_default() += positive(count);
            }
        }
        // What could not be placed is counted where the counters placed it.
        let mut records = connection.prepare(
            "SELECT lane, class, json_extract(kill, '$.kind'), count(*) FROM oom_kill \
             WHERE proof IS NULL OR proof NOT LIKE 'cannot tell%' GROUP BY 1, 2, 3",
        )?;
        let rows = records
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?;
        for row in rows {
            let (lane, class, kind, count): (Option<String>, Option<String>, Option<String>, i64) =
                row?;
            let lane = lane.map(|lane| lane_id(0, &lane)).transpose()?;
            // Releases before the class was kept have only what the kernel said.
            let end = match (class, kind.as_deref()) {
                (Some(class), _) => member::<SigkillEnd>(1, &class)?,
                (None, Some("memcg")) => SigkillEnd::OomMemcg,
                (None, Some("global")) => SigkillEnd::OomGlobal,
                (None, Some(_) | None) => SigkillEnd::OomUnnamed,
            };
            *kills.entry((lane, end)).or_default() += positive(count);
        }
        restored.oom_kills =
            kills.into_iter().map(|((lane, end), count)| (lane, end, count)).collect();
        Ok(restored)
    }
}

fn positive(count: i64) -> u64 {
    u64::try_from(count).unwrap_or(0)
}

fn lane_id(column: usize, text: &str) -> rusqlite::Result<LaneId> {
    LaneId::new(text).map_err(|error| unreadable(column, error))
}

fn member<T: std::str::FromStr<Err = UnknownMember>>(
    column: usize,
    text: &str,
) -> rusqlite::Result<T> {
    text.parse().map_err(|error| unreadable(column, error))
}

fn unreadable(
    column: usize,
    error: impl std::error::Error + Send + Sync + 'static,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(error))
}
