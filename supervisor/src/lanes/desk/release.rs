//! Giving a lane back.

use lanewarden_probes::liveness::Liveness;

use super::{
    Answer, Answered, Audit, Desk, Held, Kind, Lane, LockError, Path, Place, Verdict, holder,
    infra, lease, predecessor, report::recorded_dir, rows,
};

impl Desk {
    /// Gives the lane back. `force` asks for no identity at all; a stated lease binds also then.
    ///
    /// # Errors
    /// Never; the form is that of all questions.
    pub fn release(
        &self,
        issue: u64,
        dir: Option<&Path>,
        force: bool,
        expect: Option<&str>,
    ) -> Answered {
        Ok(self.try_release(issue, dir, force, expect).unwrap_or_else(|error| infra(&error)))
    }

    fn try_release(
        &self,
        issue: u64,
        dir: Option<&Path>,
        force: bool,
        expect: Option<&str>,
    ) -> Result<Answer, LockError> {
        let lane = self.lane(issue, dir)?;
        let free = Answer::new(Verdict::AlreadyFree).with("issue", issue).at(&lane.key);
        if let Some(theirs) = predecessor::record(&self.lane_root.join(".lane-locks"), issue) {
            let stands = self.judge(None).standing(&theirs);
            let answer = Answer::new(Verdict::ReleaseRefused)
                .with("issue", issue)
                .with("reason", "predecessor-record");
            let answer = holder(answer, &theirs, &stands, self.now_ms);
            if self.own_lock(&lane)?.is_none() {
                let remedy = "the lock was written by the shell tools; release it with them";
                return Ok(answer.at(&recorded_dir(&theirs, &lane)).noting(remedy));
            }
        }
        let Some(mut place) = Place::open_existing(&self.lane_root)? else { return Ok(free) };
        let _flocks = self.flocks(&place, &lane)?;
        let image = self.image(&place);
        place.write("releasing a lane", |store| {
            let found = match rows::by_issue(store, issue)? {
                Some(held) => Some(held),
                None => rows::by_dir(store, &lane.key)?.filter(|held| held.issue.is_none()),
            };
            let Some(held) = found else { return Ok(free) };
            let stands =
                if force { self.judge(None).standing(&held) } else { self.compare(&lane, &held).1 };
            let refused = |verdict, reason: &str| {
                let answer = Answer::new(verdict)
                    .with("issue", issue)
                    .with("reason", reason)
                    .with("liveness", stands.verdict.as_str());
                holder(answer, &held, &stands, self.now_ms).at(&held.dir).noting(&stands.reason)
            };
            if expect.is_some_and(|stated| stated != lease(&held, &stands.who)) {
                return Ok(refused(Verdict::ReleaseLost, "lease-mismatch"));
            }
            let ours = stands.verdict == Liveness::OurSelf;
            if held.kind == Kind::Daemon && !stands.is_over() {
                if !ours {
                    return Ok(refused(Verdict::ReleaseRefused, "held-by-daemon")
                        .noting("stop the lane with `lanewarden stop`"));
                }
                // The worker gives back its issue; the directory stays the daemon's.
                rows::set_issue(store, &held.dir, None)?;
                image.replace(Some(&held), &Held { issue: None, ..held.clone() })?;
            } else if force || ours {
                rows::delete(store, &held.dir)?;
                image.remove(&held)?;
            } else {
                return Ok(refused(Verdict::ReleaseRefused, "not-holder"));
            }
            let reason = if force { "forced-release" } else { "holder-release" };
            rows::audit(
                store,
                &Audit {
                    at_ms: self.now_ms,
                    verdict: "RELEASED",
                    dir: &held.dir,
                    issue: held.issue,
                    epoch: held.epoch,
                    token: None,
                    before: Some((rows::token(&stands.who), stands.verdict.to_string())),
                    reason,
                },
            )?;
            Ok(Answer::new(Verdict::Released)
                .with("issue", issue)
                .with("reason", reason)
                .with("prev-token", rows::token(&stands.who))
                .with("prev-liveness", stands.verdict.as_str())
                .at(&held.dir))
        })
    }

    fn own_lock(&self, lane: &Lane) -> Result<Option<Held>, LockError> {
        let store = Place::open_existing(&self.lane_root)?;
        Ok(self.find(store.as_ref(), lane)?.filter(|held| held.kind != Kind::Predecessor))
    }
}
