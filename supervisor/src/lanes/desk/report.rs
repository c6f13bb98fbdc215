//! Questions that change nothing.

use super::{
    Answer, Answered, Desk, Doubt, Held, Kind, Lane, LockError, Misuse, Path, Place, Scope,
    Session, Standing, Value, Verdict, holder, infra, predecessor, rows, without_images,
};
use lanewarden_probes::liveness::Liveness;

impl Desk {
    /// Whether the lane is exactly ours.
    ///
    /// # Errors
    /// Never; the form is that of all questions.
    pub fn verify(&self, issue: u64, dir: Option<&Path>) -> Answered {
        Ok(self.try_verify(issue, dir).unwrap_or_else(|error| infra(&error)))
    }

    fn try_verify(&self, issue: u64, dir: Option<&Path>) -> Result<Answer, LockError> {
        let lane = self.lane(issue, dir)?;
        let store = Place::open_existing(&self.lane_root)?;
        let fail = Answer::new(Verdict::VerifyFail).with("issue", issue);
        let Some(held) = self.find(store.as_ref(), &lane)? else {
            return Ok(fail.with("reason", "no-lock").at(&lane.key));
        };
        let (ours, stands) = self.compare(&lane, &held);
        let fail = fail.with("liveness", stands.verdict.as_str());
        let at = recorded_dir(&held, &lane);
        if held.issue.is_some_and(|other| other != issue) {
            let fail = fail.with("reason", "same-lane-dir-other-issue");
            return Ok(holder(fail, &held, &stands, self.now_ms).at(&at));
        }
        if stands.verdict != Liveness::OurSelf {
            let fail = fail.with("reason", "not-holder");
            let fail = holder(fail, &held, &stands, self.now_ms).noting(stands.reason.clone());
            return Ok(own(fail, &ours).at(&at));
        }
        if dir.is_some() && at != lane.key {
            return Ok(fail
                .with("reason", "lane-dir-mismatch")
                .with("asked-dir", lane.key)
                .at(&at));
        }
        let answer = Answer::new(Verdict::VerifyOk).with("issue", issue);
        Ok(holder(answer, &held, &stands, self.now_ms).at(&at))
    }

    /// Who holds the lane. Writes nothing; an occupied lane is an answer and no error.
    ///
    /// # Errors
    /// Never; the form is that of all questions.
    pub fn probe(&self, issue: u64, dir: Option<&Path>) -> Answered {
        Ok(self.try_probe(issue, dir).unwrap_or_else(|error| infra(&error)))
    }

    fn try_probe(&self, issue: u64, dir: Option<&Path>) -> Result<Answer, LockError> {
        let lane = self.lane(issue, dir)?;
        let store = Place::open_existing(&self.lane_root)?;
        let Some(held) = self.find(store.as_ref(), &lane)? else {
            return Ok(Answer::new(Verdict::Free)
                .with("issue", issue)
                .with("liveness", "NO-RECORD")
                .with("record", "absent")
                .at(&lane.key));
        };
        let (ours, stands) = self.compare(&lane, &held);
        let at = recorded_dir(&held, &lane);
        let answer = Answer::new(Verdict::Held)
            .with("issue", issue)
            .with("liveness", stands.verdict.as_str())
            .with("reclaimable", stands.is_over());
        let answer = holder(answer, &held, &stands, self.now_ms).noting(stands.reason.clone());
        let mut answer = own(answer, &ours).with("record", self.record_path(&held, store.as_ref()));
        if dir.is_some() && at != lane.key {
            answer = answer.with("lane-dir-mismatch", lane.key);
        }
        if let Some(Doubt::NotLive(why)) = &ours.doubt {
            answer = answer.noting(format!("{why}; it can match no holder"));
        }
        Ok(answer.at(&at))
    }

    /// One answer per record, and a summary. Resolves no identity, so nothing is `SELF`. `lock_root` is another lock
    /// directory than that of the lane root, for an inspection.
    ///
    /// # Errors
    /// Never; the form is that of all questions.
    pub fn status(
        &self,
        only: Option<u64>,
        lock_root: Option<&Path>,
    ) -> Result<Vec<Answer>, Misuse> {
        let own = self.lane_root.join(".lane-locks");
        let locks = lock_root.unwrap_or(&own);
        Ok(self.try_status(only, locks).unwrap_or_else(|error| vec![infra(&error)]))
    }

    fn try_status(&self, only: Option<u64>, locks: &Path) -> Result<Vec<Answer>, LockError> {
        let store = Place::open_directory(locks)?;
        let mut found = match &store {
            Some(place) => place.read("listing lane locks", rows::all)?,
            None => Vec::new(),
        };
        match predecessor::records(locks) {
            Ok(records) => {
                let others = without_images(records, &found);
                found.extend(others);
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(LockError::Directory { path: locks.to_owned(), source }),
        }
        found.retain(|held| only.is_none() || held.issue == only);
        let judge = self.judge(None);
        let mut answers = Vec::new();
        let mut reclaimable = 0_u64;
        for held in &found {
            let stands = judge.standing(held);
            reclaimable += u64::from(stands.is_over());
            let answer = Answer::new(Verdict::Status)
                .with("issue", held.issue)
                .with("liveness", stands.verdict.as_str())
                .with("reclaimable", stands.is_over());
            answers.push(holder(answer, held, &stands, self.now_ms).at(&held.dir));
        }
        let summary = Answer::new(Verdict::Status)
            .with("locks", found.len())
            .with("reclaimable-locks", reclaimable)
            .with("scope", "lock-takers-only")
            .with("lock-root", locks.display().to_string())
            .noting("a count of locks is not a count of occupied lanes: who asked for none is not in it");
        answers.push(summary);
        Ok(answers)
    }

    /// The lock that governs a directory, whatever its issue, with who we are there and whether it stands.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn at_directory(&self, dir: &Path) -> Result<Option<(Held, Session, Standing)>, LockError> {
        let name = super::key(dir)?.to_owned();
        let own = match Place::open_existing(&self.lane_root)? {
            None => None,
            Some(place) => place.read("reading a lane lock", |store| rows::by_dir(store, &name))?,
        };
        let locks = self.lane_root.join(".lane-locks");
        let held = own.or_else(|| {
            predecessor::records(&locks).ok()?.into_iter().find(|held| Path::new(&held.dir) == dir)
        });
        Ok(held.map(|held| {
            let lane = Lane { issue: held.issue.unwrap_or(0), dir: dir.to_owned(), key: name };
            let (ours, stands) = self.compare(&lane, &held);
            (held, ours, stands)
        }))
    }

    /// Who we are in the recorded directory, and whether the holder stands.
    pub(super) fn compare(&self, lane: &Lane, held: &Held) -> (Session, Standing) {
        let dir = if held.dir.is_empty() { &lane.dir } else { Path::new(&held.dir) };
        let ours = self.session(dir);
        // A zombie, or a process that is gone, is nobody that could hold a lane.
        let me = ours.identity.clone().filter(|_| ours.doubt.is_none());
        let stands = self.judge(me).standing(held);
        (ours, stands)
    }

    fn record_path(&self, held: &Held, store: Option<&Place>) -> String {
        let place = match (held.kind, held.issue, store) {
            (Kind::Daemon | Kind::Session, _, Some(place)) => place.path().to_owned(),
            (_, Some(issue), _) => self.lane_root.join(format!(".lane-locks/lane-{issue}.lock")),
            (_, None, _) => self.lane_root.join(".lane-locks"),
        };
        place.display().to_string()
    }
}

/// The directory that the record names, which readers prefer to any other.
pub(super) fn recorded_dir(held: &Held, lane: &Lane) -> String {
    if held.dir.is_empty() { lane.key.clone() } else { held.dir.clone() }
}

fn own(answer: Answer, ours: &Session) -> Answer {
    let identity = ours.identity.as_ref();
    let scope = match ours.scope {
        Scope::Explicit | Scope::CwdMatch => ours.scope.as_str(),
        Scope::Ephemeral => "UNRESOLVED",
    };
    answer
        .with("our-token", identity.map(lanewarden_probes::identity::Identity::token))
        .with("our-machine", identity.map(|own| own.machine.clone()))
        .with("our-pid", identity.map(|own| own.pid))
        .with("our-start-ticks", Value::from(identity.and_then(|own| own.start_ticks)))
        .with("our-identity", if identity.is_some() { scope } else { "UNRESOLVED" })
}
