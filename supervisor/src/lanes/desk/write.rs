//! Questions whose answer changes the record.

use super::{
    Answer, Answered, Audit, Connection, Desk, Doubt, Expect, Flocks, Held, Identity, Image, Kind,
    Lane, LockError, Misuse, Path, Place, Recorded, Session, Standing, Trouble, Verdict, holder,
    infra, lease, predecessor, report::recorded_dir, rows, waits, without_images,
};
use lanewarden_probes::liveness::Liveness;

/// A writer whom anybody can recognise later.
struct Writer {
    session: Session,
    identity: Identity,
}

/// What stands in the way, or what may be swept away.
enum Ground {
    Refused(Answer),
    Ours(Box<(Held, Standing)>),
    Clear { swept: Vec<(Held, Standing)> },
}

impl Desk {
    /// Takes the lane; a dead holder's lock is replaced.
    ///
    /// # Errors
    /// A named process that is not there.
    pub fn acquire(&self, issue: u64, dir: Option<&Path>, reason: Option<&str>) -> Answered {
        self.taking(issue, dir, None, reason)
    }

    /// Adopts the lane if its holder is the one that was stated.
    ///
    /// # Errors
    /// A named process that is not there.
    pub fn reclaim(
        &self,
        issue: u64,
        dir: Option<&Path>,
        expect: &Expect,
        reason: Option<&str>,
    ) -> Answered {
        self.taking(issue, dir, Some(expect), reason)
    }

    fn taking(
        &self,
        issue: u64,
        dir: Option<&Path>,
        reclaim: Option<&Expect>,
        reason: Option<&str>,
    ) -> Answered {
        let sub = if reclaim.is_some() { "reclaim" } else { "acquire" };
        let lane = match self.lane_to_take(issue, dir, reclaim.is_some()) {
            Ok(lane) => lane,
            Err(error) => return Ok(infra(&error)),
        };
        let writer = match self.writer(&lane, sub)? {
            Ok(writer) => writer,
            Err(refusal) => return Ok(refusal),
        };
        let answered = self.take(&lane, &writer, reclaim, reason);
        Ok(answered.unwrap_or_else(|error| infra(&error).at(&lane.key)))
    }

    /// Who reclaims without naming a directory means the recorded one.
    fn lane_to_take(
        &self,
        issue: u64,
        dir: Option<&Path>,
        recorded: bool,
    ) -> Result<Lane, LockError> {
        let lane = self.lane(issue, dir)?;
        if dir.is_some() || !recorded {
            return Ok(lane);
        }
        let store = Place::open_existing(&self.lane_root)?;
        match self.find(store.as_ref(), &lane)? {
            Some(held) if held.issue == Some(issue) && !held.dir.is_empty() => {
                self.lane(issue, Some(Path::new(&held.dir)))
            }
            Some(_) | None => Ok(lane),
        }
    }

    fn writer(&self, lane: &Lane, sub: &str) -> Result<Result<Writer, Answer>, Misuse> {
        let session = self.session(&lane.dir);
        let refusal = |detail: &str, why: String| {
            Answer::new(Verdict::Error)
                .with("reason", "unresolved-identity")
                .with("detail", detail)
                .with("sub", sub)
                .with("issue", lane.issue)
                .at(&lane.key)
                .noting(why)
        };
        match (&session.doubt, &session.identity) {
            (Some(Doubt::NotLive(why)), _) => Err(Misuse(format!("{why}; name a live process"))),
            (Some(Doubt::Degraded(why)), _) => {
                Ok(Err(refusal("degraded-process-identity", format!("nothing was written: {why}"))))
            }
            (Some(Doubt::NoDurableProcess), _) | (None, None) => Ok(Err(refusal(
                "no-durable-session-process",
                format!(
                    "nothing was written: nobody who outlives this command is inside {}; run it from a shell there, or \
                     name the lasting process with --pid",
                    lane.key
                ),
            ))),
            (None, Some(identity)) => {
                let identity = identity.clone();
                Ok(Ok(Writer { session, identity }))
            }
        }
    }

    pub(super) fn flocks(&self, place: &Place, lane: &Lane) -> Result<Flocks, LockError> {
        waits::flocks(&predecessor::lock_files(&place.dir, &lane.dir, Some(lane.issue)))
    }

    fn take(
        &self,
        lane: &Lane,
        writer: &Writer,
        reclaim: Option<&Expect>,
        reason: Option<&str>,
    ) -> Result<Answer, LockError> {
        let mut place = Place::open(&self.lane_root)?;
        let _flocks = self.flocks(&place, lane)?;
        let (refused, partial) = self.predecessors(&place, lane, writer)?;
        if let Some(refused) = refused {
            return Ok(refused);
        }
        let path = place.path().display().to_string();
        let image = self.image(&place);
        let answer = place.write("taking a lane", |store| {
            let swept = match self.ground(store, &image, lane, writer, reclaim)? {
                Ground::Refused(answer) => return Ok(answer),
                Ground::Ours(ours) => {
                    let (held, stands) = *ours;
                    rows::set_issue(store, &held.dir, Some(lane.issue))?;
                    let now = Held { issue: Some(lane.issue), ..held.clone() };
                    image.replace(Some(&held), &now)?;
                    return Ok(self.again(lane, &held, &stands, reclaim));
                }
                Ground::Clear { swept } => swept,
            };
            for (held, _) in &swept {
                rows::delete(store, &held.dir)?;
                image.remove(held)?;
            }
            let held = self.fresh(lane, writer);
            let epoch = rows::insert(store, &held)?;
            image.replace(None, &held)?;
            let before = swept.first();
            let (verdict, audited) = match (reclaim, before) {
                (Some(_), _) => (Verdict::Reclaimed, "RECLAIMED"),
                (None, Some(_)) => (Verdict::AcquiredReclaimed, "ACQUIRED-RECLAIMED"),
                (None, None) => (Verdict::Acquired, "ACQUIRED"),
            };
            let reason = reason.unwrap_or(match before {
                Some(_) => "auto-reclaim-dead-holder",
                None => "free-lane",
            });
            let token = writer.identity.token();
            let before =
                before.map(|(_, stands)| (rows::token(&stands.who), stands.verdict.to_string()));
            rows::audit(
                store,
                &Audit {
                    at_ms: self.now_ms,
                    verdict: audited,
                    dir: &held.dir,
                    issue: held.issue,
                    epoch,
                    token: Some(token),
                    before: before.clone(),
                    reason,
                },
            )?;
            let mut answer = granted(Answer::new(verdict), lane.issue, &held, epoch);
            if let Some((token, liveness)) = before {
                answer = answer.with("prev-token", token).with("prev-liveness", liveness);
            }
            Ok(answer.with("record", path))
        })?;
        let granted = answer.verdict.exit() == crate::exit_code::OK;
        let answer =
            if granted && partial { answer.with("dir-guard", "NOT-EXHAUSTIVE") } else { answer };
        Ok(if answer.lane_dir.is_some() { answer } else { answer.at(&lane.key) })
    }

    fn fresh(&self, lane: &Lane, writer: &Writer) -> Held {
        Held {
            dir: lane.key.clone(),
            kind: Kind::Session,
            lane: format!("lane-{}", lane.issue),
            issue: Some(lane.issue),
            scope: writer.session.scope.as_str().to_owned(),
            holder: Recorded::of(&writer.identity),
            worker: None,
            nonce: format!("{}-{:016x}-{}", std::process::id(), self.nonce, self.now_ms / 1000),
            epoch: 0,
            taken_at_ms: self.now_ms,
            unreadable: None,
        }
    }

    /// What the shell tools hold: a refusal, and whether a record could not be read.
    fn predecessors(
        &self,
        place: &Place,
        lane: &Lane,
        writer: &Writer,
    ) -> Result<(Option<Answer>, bool), LockError> {
        let judge = self.judge(Some(writer.identity.clone()));
        let records = predecessor::records(&place.dir)
            .map_err(|source| LockError::Directory { path: place.dir.clone(), source })?;
        let records = without_images(records, &place.read("listing lane locks", rows::all)?);
        let mut partial = false;
        for held in records {
            let same_issue = held.issue == Some(lane.issue);
            partial |= held.unreadable.is_some() && !same_issue;
            let stands = judge.standing(&held);
            if (!same_issue && held.dir != lane.key)
                || stands.is_over()
                || stands.verdict == Liveness::OurSelf
            {
                continue;
            }
            return Ok((Some(self.occupied(lane, &held, &stands)), partial));
        }
        let ours = ancestors(writer.identity.pid);
        let name = lane.dir.file_name().map(|name| name.to_string_lossy().into_owned());
        let supervisor = predecessor::supervisor(name.as_deref().unwrap_or_default(), &ours);
        let refused = supervisor.map(|judged| {
            Answer::new(Verdict::Occupied)
                .with("issue", lane.issue)
                .with("liveness", judged.verdict.as_str())
                .with("reason", "predecessor-supervisor")
                .at(&lane.key)
                .noting(judged.reason)
        });
        Ok((refused, partial))
    }

    /// Looks at the locks of the directory and of the issue.
    fn ground(
        &self,
        store: &Connection,
        image: &Image,
        lane: &Lane,
        writer: &Writer,
        expect: Option<&Expect>,
    ) -> Result<Ground, Trouble> {
        let judge = self.judge(Some(writer.identity.clone()));
        let here = rows::by_dir(store, &lane.key)?;
        let by_issue = rows::by_issue(store, lane.issue)?;
        let elsewhere = by_issue.filter(|held| held.dir != lane.key);
        let mut swept = Vec::new();
        if let Some(held) = here {
            let stands = judge.standing(&held);
            let other = held.issue.filter(|other| *other != lane.issue);
            if other.is_some() && !stands.is_over() {
                return Ok(Ground::Refused(self.other_issue(lane, &held, &stands)));
            }
            if stands.verdict == Liveness::OurSelf {
                if let Some(other) = elsewhere {
                    let theirs = judge.standing(&other);
                    if !theirs.is_over() {
                        return Ok(Ground::Refused(self.occupied(lane, &other, &theirs)));
                    }
                    rows::delete(store, &other.dir)?;
                    image.remove(&other)?;
                }
                return Ok(Ground::Ours(Box::new((held, stands))));
            }
            if let Some(refused) = self.refusal(lane, &held, &stands, expect) {
                return Ok(Ground::Refused(refused));
            }
            swept.push((held, stands));
        }
        if let Some(held) = elsewhere {
            let stands = judge.standing(&held);
            if stands.verdict == Liveness::OurSelf {
                let answer = Answer::new(Verdict::Occupied)
                    .with("issue", lane.issue)
                    .with("reason", "reentrant-lane-dir-mismatch")
                    .with("recorded-lane-dir", held.dir.clone());
                return Ok(Ground::Refused(answer.at(&lane.key)));
            }
            if let Some(refused) = self.refusal(lane, &held, &stands, expect) {
                return Ok(Ground::Refused(refused));
            }
            swept.push((held, stands));
        }
        if swept.is_empty()
            && let Some(Expect::Lease(stated)) = expect
        {
            let lost = Answer::new(Verdict::ReclaimLost)
                .with("issue", lane.issue)
                .with("reason", "no-lock")
                .with("expected", stated.clone());
            return Ok(Ground::Refused(lost.at(&lane.key)));
        }
        Ok(Ground::Clear { swept })
    }

    /// Why this holder's lock may not be swept away; `None` if it may.
    fn refusal(
        &self,
        lane: &Lane,
        held: &Held,
        stands: &Standing,
        expect: Option<&Expect>,
    ) -> Option<Answer> {
        let lost = |reason: &str| {
            let answer = Answer::new(Verdict::ReclaimLost)
                .with("issue", lane.issue)
                .with("reason", reason)
                .with("liveness", stands.verdict.as_str());
            Some(
                holder(answer, held, stands, self.now_ms)
                    .at(&held.dir)
                    .noting(stands.reason.clone()),
            )
        };
        match expect {
            None if stands.is_over() => None,
            None => Some(self.occupied(lane, held, stands)),
            Some(Expect::Unstated) if stands.is_over() => None,
            Some(Expect::Unstated) => lost("holder-not-proven-dead"),
            Some(Expect::Nobody) => lost("held"),
            Some(Expect::Lease(stated)) if *stated != lease(held, &stands.who) => {
                lost("lease-mismatch")
            }
            // Its daemon would go on writing there: it must be stopped through the daemon.
            Some(Expect::Lease(_)) if held.kind == Kind::Daemon && !stands.is_over() => {
                lost("held-by-daemon")
            }
            Some(Expect::Lease(_)) => None,
        }
    }

    fn again(
        &self,
        lane: &Lane,
        held: &Held,
        stands: &Standing,
        expect: Option<&Expect>,
    ) -> Answer {
        let current = lease(held, &stands.who);
        let verdict = match expect {
            None => Verdict::Reentrant,
            Some(Expect::Unstated) => Verdict::ReclaimedReentrant,
            Some(Expect::Lease(stated)) if *stated == current => Verdict::ReclaimedReentrant,
            Some(Expect::Lease(_) | Expect::Nobody) => Verdict::ReclaimLeaseMismatch,
        };
        granted(Answer::new(verdict), lane.issue, held, held.epoch)
    }

    fn occupied(&self, lane: &Lane, held: &Held, stands: &Standing) -> Answer {
        if held.issue.is_some_and(|other| other != lane.issue) {
            return self.other_issue(lane, held, stands);
        }
        let answer = Answer::new(Verdict::Occupied)
            .with("issue", lane.issue)
            .with("liveness", stands.verdict.as_str());
        holder(answer, held, stands, self.now_ms)
            .at(&recorded_dir(held, lane))
            .noting(stands.reason.clone())
    }

    fn other_issue(&self, lane: &Lane, held: &Held, stands: &Standing) -> Answer {
        let answer = Answer::new(Verdict::Occupied)
            .with("issue", lane.issue)
            .with("reason", "same-lane-dir-other-issue")
            .with("conflicting-issue", held.issue)
            .with("conflicting-pid", stands.who.pid)
            .with("conflicting-acquired-ts", crate::text::rfc3339(held.taken_at_ms))
            .with("liveness", stands.verdict.as_str());
        holder(answer, held, stands, self.now_ms)
            .at(&recorded_dir(held, lane))
            .noting(stands.reason.clone())
    }
}

/// The holder as itself: token, process, lease, epoch.
fn granted(answer: Answer, issue: u64, held: &Held, epoch: u64) -> Answer {
    let who = held.worker.as_ref().unwrap_or(&held.holder);
    answer
        .with("issue", issue)
        .with("token", rows::token(who))
        .with("machine", who.machine.clone())
        .with("actor", who.actor.clone())
        .with("pid", who.pid)
        .with("pid-scope", held.scope.clone())
        .with("start-ticks", who.ticks)
        .with("lease", lease(held, &held.holder))
        .with("epoch", epoch)
        .at(&held.dir)
}

/// The process and those that started it.
fn ancestors(pid: u32) -> Vec<u32> {
    use lanewarden_probes::{Root, identity::stat};
    let mut chain = vec![pid];
    while let Some(&newest) = chain.last()
        && chain.len() < 64
    {
        match stat(&Root::live(), newest) {
            Ok(Ok(stat)) if stat.ppid > 1 => chain.push(stat.ppid),
            Ok(_) | Err(_) => break,
        }
    }
    chain
}
