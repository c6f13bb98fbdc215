//! `claims stamp` and `claims beat`: writing. A push that did not land is a command that failed.

use lanewarden_probes::{
    Root,
    identity::{boot_id, resolve},
};

use super::{super::Failure, Room, note, twin};
use crate::{
    claims::{
        GitError, LaneClaim, Namespace, ParsedClaim, PushOutcome, RefUpdate, is_lane_component,
        listing, push, read_one, record::format_ts,
    },
    clock::unix_ms,
    exit_code::{FAILED, OK, USAGE},
    ids::MachineName,
    output,
};

/// Somebody of this machine may stamp the same ref at the same time.
const TRIES: u32 = 3;

/// What is stamped.
pub(super) struct Stamp {
    lane: String,
    pid: Option<u32>,
}

impl Stamp {
    pub(super) fn of(lane: String, pid: Option<String>) -> Result<Self, Failure> {
        if !is_lane_component(&lane) {
            return Err(Failure::new(
                USAGE,
                format!(
                    "{lane:?} is not a lane: an issue's number without leading zero, or p<digits>[-<hex>]"
                ),
            ));
        }
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = digits.then(|| text.parse::<i32>().ok()).flatten()?;
            u32::try_from(number).ok().filter(|pid| *pid > 0)
        };
        let pid = pid
            .map(|text| {
                number(&text)
                    .ok_or_else(|| Failure::new(USAGE, format!("{text:?} is not a process id")))
            })
            .transpose()?;
        Ok(Self { lane, pid })
    }
}

/// Stamps a lane and prints the object that the remote has now.
pub(super) async fn stamp(room: &Room, stamp: Stamp) -> u8 {
    let Ok(machine) = MachineName::new(&room.us) else { return FAILED };
    let caller = || {
        let parent = rustix::process::getppid()?;
        u32::try_from(parent.as_raw_nonzero().get()).ok()
    };
    // Our own process ends in a moment; whoever runs us is what lives.
    let Some(pid) = stamp.pid.or_else(caller) else {
        note("the caller is in another pid namespace; name a process id");
        return FAILED;
    };
    let seen = resolve(&Root::live(), pid, machine.as_str(), "").ok().map(|seen| seen.identity);
    let claim = LaneClaim {
        component: stamp.lane,
        machine,
        pid,
        ts: now(),
        boot: seen.as_ref().and_then(|seen| Some(seen.boot_id.as_ref()?.full().to_owned())),
        ticks: seen.as_ref().and_then(|seen| seen.start_ticks),
        pidns: seen.as_ref().and_then(|seen| seen.pidns),
        actor: None,
        run: None,
        lane: None,
        state: None,
        epoch: None,
        warden: None,
    };
    let Some(name) = claim.ref_name() else { return FAILED };
    match put(room, &name, &claim.to_message(), claim.ts).await {
        Ok(oid) => {
            output::line(&oid);
            OK
        }
        Err(why) => {
            note(&why);
            FAILED
        }
    }
}

/// Renews this machine's heartbeat.
pub(super) async fn beat(room: &Room, issue: &str) -> u8 {
    let name = format!("{}{}", Namespace::Heartbeats, room.us);
    let ts = now();
    // By the boot a clone of this box that bears its name is told from this one's past.
    let boot = boot_id(&Root::live()).ok().and_then(Result::ok);
    let boot = boot.map(|boot| format!(" boot={}", boot.full())).unwrap_or_default();
    let message = format!("heartbeat issue={issue} machine={} ts={}{boot}", room.us, format_ts(ts));
    match put(room, &name, &message, ts).await {
        Ok(_) => OK,
        Err(why) => {
            note(&why);
            FAILED
        }
    }
}

fn now() -> u64 {
    u64::try_from(unix_ms() / 1000).unwrap_or(0)
}

/// Puts a record at the ref, whatever of this machine is there, under a lease on what was read.
async fn put(room: &Room, name: &str, message: &str, ts: u64) -> Result<String, String> {
    let place = &room.place;
    let failed = |error: GitError| format!("{name} was not stamped: {error}");
    let made = place.scratch.write_commit(message, ts).map_err(failed)?;
    for _ in 0..TRIES {
        let there = there(room, name).await.map_err(failed)?;
        if there.as_ref().is_some_and(|there| there.oid == made) {
            return Ok(made);
        }
        let record = there.as_ref().and_then(|there| there.record.as_ref());
        if record.is_some_and(twin::is_other_box) {
            return Err(format!("{name} was not stamped: {}", twin::words(&room.us)));
        }
        let update = RefUpdate {
            ref_name: name.to_owned(),
            new: Some(made.clone()),
            expect: there.map(|there| there.oid),
        };
        let results = match push(&place.git, &place.scratch, &place.url, &[update], false).await {
            Ok(results) => results,
            // The answer may have been lost on its way, and the push have landed.
            Err(error) => {
                let now = self::there(room, name).await.ok().flatten();
                let landed = now.is_some_and(|now| now.oid == made);
                return if landed { Ok(made) } else { Err(failed(error)) };
            }
        };
        match results.first().map(|result| result.outcome) {
            Some(PushOutcome::Accepted | PushOutcome::UpToDate) => return Ok(made),
            // Moved, locked by a neighbour's push, refused or not told: the next read shows which.
            Some(PushOutcome::LeaseRefused | PushOutcome::Rejected | PushOutcome::Unconfirmed)
            | None => {}
        }
    }
    match there(room, name).await.map_err(failed)? {
        Some(there) if there.oid == made => Ok(made),
        Some(_) | None => Err(format!(
            "{name} was not stamped: the remote did not take it in {TRIES} tries; `lanewarden issue smoke` tells whether it takes refs of ours"
        )),
    }
}

/// What is at the ref.
struct There {
    oid: String,
    /// Unknown where git is too old to read without touching the checkout.
    record: Option<ParsedClaim>,
}

async fn there(room: &Room, name: &str) -> Result<Option<There>, GitError> {
    let place = &room.place;
    if place.git.git_version().await.is_err() {
        let found = listing(&place.git, &place.scratch, &place.url, &[name], &[]).await?;
        return Ok(found.into_iter().next().map(|(_, oid)| There { oid, record: None }));
    }
    let found = read_one(&place.git, &place.scratch, &place.url, name).await?;
    Ok(found.map(|found| There {
        record: found.message.ok().map(|message| ParsedClaim::parse(&message)),
        oid: found.oid,
    }))
}
