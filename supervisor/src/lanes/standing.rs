//! Whether a holder still stands: the worker first, then whoever took the lane.

use lanewarden_probes::{
    Root,
    identity::Identity,
    liveness::{Judged, Liveness, Recorded, judge, judge_as},
};

use super::rows::{Held, Kind};

/// What became of a lane's holder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The verdict on the process that counts.
    pub verdict: Liveness,
    /// Why, in one fragment.
    pub reason: String,
    /// That process.
    pub who: Recorded,
    /// What it is to the lane.
    pub role: &'static str,
}

impl Standing {
    /// Whether the lane may be taken from it without asking anybody.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.verdict.is_dead()
    }
}

/// Judges a lock. A lane that a daemon manages is held by its worker; without one by the warden, as `NO-WORKER`.
#[must_use]
pub fn standing(held: &Held, judge: &dyn Fn(&Recorded) -> Judged) -> Standing {
    if let Some(cause) = &held.unreadable {
        let judged = Judged::unreadable(cause.clone());
        let who = held.holder.clone();
        return Standing { verdict: judged.verdict, reason: judged.reason, who, role: "record" };
    }
    if let Some(worker) = &held.worker {
        let judged = judge(worker);
        if !judged.verdict.is_dead() {
            let who = worker.clone();
            return Standing {
                verdict: judged.verdict,
                reason: judged.reason,
                who,
                role: "worker",
            };
        }
    }
    let (no_worker, role) = match held.kind {
        Kind::Daemon => (true, "warden"),
        Kind::Session | Kind::Predecessor => (false, "session"),
    };
    let who = Recorded { no_worker, ..held.holder.clone() };
    let judged = judge(&who);
    Standing { verdict: judged.verdict, reason: judged.reason, who, role }
}

/// Who asks, and under which names this machine is known.
#[derive(Debug, Clone)]
pub struct Judge {
    /// This machine's names: as told, as configured, as the kernel knows it. Never empty.
    pub names: Vec<String>,
    /// The process that we act for; `None` if it could not be told.
    pub me: Option<Identity>,
}

impl Judge {
    /// Judges a record. Lane locks never leave the box, so each of its names is ours.
    #[must_use]
    pub fn of(&self, recorded: &Recorded, any_actor: bool) -> Judged {
        let known = self.names.iter().find(|name| **name == recorded.machine);
        let machine = known.or(self.names.first()).map_or("-", String::as_str);
        let Some(me) = &self.me else { return judge(&Root::live(), recorded, machine) };
        let actor = recorded.actor.as_ref().filter(|_| any_actor).unwrap_or(&me.actor).clone();
        let me = Identity { machine: machine.to_owned(), actor, ..me.clone() };
        judge_as(&Root::live(), recorded, &me)
    }

    /// Judges a lock. In a daemon's lane the process counts and not the actor, which the daemon chose.
    #[must_use]
    pub fn standing(&self, held: &Held) -> Standing {
        let any_actor = held.kind == Kind::Daemon;
        standing(held, &|recorded| self.of(recorded, any_actor))
    }

    /// Whether the process is ours, whoever acts.
    #[must_use]
    pub fn is_our_process(&self, who: &Recorded) -> bool {
        self.of(who, true).verdict == Liveness::OurSelf
    }
}
