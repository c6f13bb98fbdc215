//! Puts what the messages of one event say together: constraint, announcement, kill, group.
//!
//! Joined by order, never by equal pids: the kill line may print a thread's id. But where the order is broken (a gap,
//! two reports mixed, limits of different kinds) nothing is joined, and what is missing stays `None`.

use std::collections::VecDeque;

use super::{
    OomKill, OomKind,
    bytes::{contains, legible},
    constraint::{self, Constraint},
    grammar::{KillLine, Said, Shape},
};

/// Announcements whose kill line is still to come. More than two are never seen together.
const ANNOUNCED: usize = 8;

/// A constraint line as it is put together from fragments: the longest record with a few fragments.
pub(super) const CONSTRAINT_MAX: usize = 8192;

/// The members of a group die in one go. A kill that comes later than this after the one before is not of the group: in a
/// storm the kernel prints kill lines of other events without anything before them.
const GROUP_PAUSE_USEC: u64 = 100_000;

/// The constraint line of the event at hand.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    text: Vec<u8>,
    joints: Vec<usize>,
    /// Sequence number of its last fragment.
    seq: Option<u64>,
    /// Records were lost after it.
    gap: bool,
}

impl Pending {
    /// Reads it; with the victim's name if that is known.
    fn parse(&self, comm: Option<&[u8]>) -> Constraint {
        constraint::parse(&self.text, comm, &self.joints)
    }
}

/// What the event's first kill line leaves for those after it.
#[derive(Debug, Clone)]
struct Tail {
    kind: OomKind,
    constraint: Option<String>,
    memcg: Option<String>,
    /// The cgroup that is killed as a whole, and the printk clock of the last record of that.
    group: Option<(String, Option<u64>)>,
}

/// `Task in X killed as a result of limit of Y`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Limit {
    task: Vec<u8>,
    owner: Vec<u8>,
}

/// The event at hand.
#[derive(Debug, Default)]
pub(super) struct Joiner {
    constraint: Option<Pending>,
    announced: VecDeque<(OomKind, u32)>,
    limit: Option<Limit>,
    /// Two limits were named before a kill: reports are mixed, or one was cut.
    limits_clash: bool,
    tail: Option<Tail>,
    /// A name in this report holds what looks like our fields: the constraint line alone could be cut inside it.
    deceptive: bool,
}

/// What a message led to.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// A constraint line whose kill line will not come.
    pub(super) unfinished: Option<OomKill>,
    /// A kill.
    pub(super) kill: Option<OomKill>,
    /// The kill before was that of a whole cgroup, with this path.
    pub(super) group: Option<String>,
}

impl Joiner {
    /// Takes one message, with the text that it was read from, and number and printk clock of its record.
    pub(super) fn take(
        &mut self,
        said: Said,
        text: &[u8],
        seq: Option<u64>,
        usec: Option<u64>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        match said {
            Said::Header => {
                outcome.unfinished = self.give_up();
                self.announced.clear();
                self.tail = None;
                self.deceptive = names_fields(text);
            }
            Said::Constraint => {
                outcome.unfinished = self.give_up();
                self.announced.clear();
                self.tail = None;
                let text = text.get(..CONSTRAINT_MAX).unwrap_or(text).to_vec();
                self.constraint = Some(Pending { text, joints: Vec::new(), seq, gap: false });
            }
            Said::Announced { kind, pid } => {
                self.tail = None;
                if self.announced.len() >= ANNOUNCED {
                    self.announced.pop_front();
                }
                self.announced.push_back((kind, pid));
            }
            Said::Limit { task, limit } => {
                let limit = Limit { task, owner: limit };
                self.limits_clash |= self.limit.as_ref().is_some_and(|before| *before != limit);
                self.limit = Some(limit);
            }
            Said::Killed(line) => self.killed(&line, seq, usec, &mut outcome),
            Said::Sharing { pid, comm } => outcome.kill = Some(self.sharing(pid, &comm, seq)),
            Said::Group { path } => outcome.group = Some(self.group(&path, usec)),
            // Nobody was killed by this event, so its constraint names no victim.
            Said::Spared => self.constraint = None,
        }
        outcome
    }

    /// Records were lost: nothing that comes may be joined by order alone.
    pub(super) fn gap(&mut self) {
        self.unseen();
        self.announced.clear();
        self.limit = None;
        self.limits_clash = false;
        self.tail = None;
    }

    /// A line of the report that is no message: a row of the table of candidates has names too.
    pub(super) fn glance(&mut self, text: &[u8]) {
        self.deceptive |= names_fields(text);
    }

    /// Whether the constraint line at hand lacks its end.
    pub(super) fn wants_more(&self) -> bool {
        self.constraint.as_ref().is_some_and(|pending| !constraint::is_whole(&pending.text))
    }

    /// A fragment that goes on where the constraint line ended. `true` when it was taken.
    pub(super) fn extend(&mut self, fragment: &[u8], seq: Option<u64>) -> bool {
        if !self.wants_more() {
            return false;
        }
        let Some(pending) = self.constraint.as_mut() else { return false };
        if pending.text.len().saturating_add(fragment.len()) > CONSTRAINT_MAX {
            return false;
        }
        pending.joints.push(pending.text.len());
        pending.text.extend_from_slice(fragment);
        pending.seq = seq;
        true
    }

    /// The owner's path in the last `Task in` line may have been cut.
    pub(super) fn limit_was_cut(&mut self) {
        if let Some(limit) = self.limit.as_mut() {
            limit.owner.clear();
        }
    }

    /// Records were left out of a text: a kill line may be among them.
    pub(super) fn unseen(&mut self) {
        if let Some(pending) = self.constraint.as_mut() {
            pending.gap = true;
        }
    }

    /// The constraint line at hand, as a kill of its own, if it names its victim.
    pub(super) fn give_up(&mut self) -> Option<OomKill> {
        let pending = self.constraint.take()?;
        self.alone(&pending)
    }

    /// Whether records were lost after the constraint line at hand.
    pub(super) fn has_gap(&self) -> bool {
        self.constraint.as_ref().is_some_and(|pending| pending.gap)
    }

    /// A kill line.
    fn killed(
        &mut self,
        line: &KillLine,
        seq: Option<u64>,
        usec: Option<u64>,
        outcome: &mut Outcome,
    ) {
        let announced = self.announcement(line.pid);
        if line.shape != Shape::Whole && line.kind.is_none() && announced.is_none() {
            return;
        }
        let mut kill = OomKill::of(line.pid);
        kill.seq = seq;
        kill.comm = line.comm.as_deref().map(legible);
        kill.uid = line.uid;
        kill.total_vm_kb = line.sizes.total_vm_kb;
        kill.anon_rss_kb = line.sizes.anon_rss_kb;
        kill.file_rss_kb = line.sizes.file_rss_kb;
        kill.shmem_rss_kb = line.sizes.shmem_rss_kb;
        kill.oom_score_adj = line.sizes.oom_score_adj;
        kill.truncated = match line.shape {
            Shape::Whole => kill.file_rss_kb.is_none(),
            Shape::Old => false,
            Shape::Cut => true,
        };
        let mut kind = line.kind.or(announced);
        if let Some(pending) = self.constraint.take() {
            let mut found = pending.parse(line.comm.as_deref());
            distrust(&mut found, line);
            if belongs(&found, pending.gap, kind, line) {
                kind = kind.or(found.kind);
                apply(&found, line.kind.is_some(), &mut kill);
            } else {
                outcome.unfinished = self.alone(&pending);
            }
        }
        self.apply_limit(&mut kind, &mut kill);
        kill.kind = kind.unwrap_or(OomKind::Unknown);
        self.deceptive = false;
        let group = self.inherit(&mut kill, usec);
        self.tail = Some(Tail {
            kind: kill.kind,
            constraint: kill.constraint.clone(),
            memcg: kill.memcg.clone(),
            group: group.map(|path| (path, usec)),
        });
        outcome.kill = Some(kill);
    }

    /// The limit of the announcement for this pid, else of the only one that is open: a child or a thread's leader may
    /// die for the task that was announced.
    fn announcement(&mut self, pid: u32) -> Option<OomKind> {
        let own = self.announced.iter().position(|&(_, announced)| announced == pid);
        if let Some(own) = own {
            return self.announced.remove(own).map(|(kind, _)| kind);
        }
        let (first, _) = *self.announced.front()?;
        let agreed = self.announced.iter().all(|&(kind, _)| kind == first);
        self.announced.pop_front();
        agreed.then_some(first)
    }

    /// What the kernels before 5.0 say about cgroups.
    fn apply_limit(&mut self, kind: &mut Option<OomKind>, kill: &mut OomKill) {
        if *kind == Some(OomKind::Global) {
            return;
        }
        let clash = std::mem::take(&mut self.limits_clash);
        let Some(limit) = self.limit.take() else { return };
        *kind = Some(OomKind::Memcg);
        if clash || kill.constraint.is_some() {
            return;
        }
        if limit.owner.starts_with(b"/") && constraint::is_ancestor(&limit.owner, &limit.task) {
            kill.memcg = Some(legible(&limit.owner));
        }
        if limit.task.starts_with(b"/") {
            kill.task_memcg = Some(legible(&limit.task));
        }
    }

    /// What a member of a group has from the event, and the group: there is one constraint line for all.
    fn inherit(&self, kill: &mut OomKill, usec: Option<u64>) -> Option<String> {
        let tail = self.tail.as_ref()?;
        let (group, then) = tail.group.as_ref()?;
        let pause = usec.zip(*then).map_or(0, |(now, then)| now.abs_diff(then));
        let other = |kind: OomKind| kind != OomKind::Unknown && kind != tail.kind;
        if pause > GROUP_PAUSE_USEC || other(kill.kind) && tail.kind != OomKind::Unknown {
            return None;
        }
        kill.group = true;
        if kill.kind == OomKind::Unknown {
            kill.kind = tail.kind;
        }
        if kill.constraint.is_none() {
            kill.constraint.clone_from(&tail.constraint);
            kill.memcg.clone_from(&tail.memcg);
        }
        if kill.task_memcg.is_none() {
            kill.task_memcg = Some(group.clone());
        }
        Some(group.clone())
    }

    /// One more victim, because of shared memory. Where it lived is not said.
    fn sharing(&self, pid: u32, comm: &[u8], seq: Option<u64>) -> OomKill {
        let mut kill = OomKill::of(pid);
        kill.comm = Some(legible(comm));
        kill.shared_mm = true;
        kill.seq = seq;
        if let Some(tail) = &self.tail {
            kill.kind = tail.kind;
            kill.constraint.clone_from(&tail.constraint);
            kill.memcg.clone_from(&tail.memcg);
        }
        kill
    }

    /// The whole cgroup dies.
    fn group(&mut self, path: &[u8], usec: Option<u64>) -> String {
        let path = legible(path);
        let tail = self.tail.get_or_insert(Tail {
            kind: OomKind::Unknown,
            constraint: None,
            memcg: None,
            group: None,
        });
        tail.group = Some((path.clone(), usec));
        path
    }

    /// A constraint line without a kill line.
    fn alone(&self, pending: &Pending) -> Option<OomKill> {
        if self.deceptive {
            return None;
        }
        let found = pending.parse(None);
        let task = found.task?;
        let mut kill = OomKill::of(task.pid);
        kill.comm = Some(legible(&task.comm));
        kill.uid = Some(task.uid);
        kill.constraint = found.name;
        kill.memcg = found.memcg.as_deref().map(legible);
        kill.task_memcg = found.task_memcg.as_deref().map(legible);
        kill.kind = found.kind.unwrap_or(OomKind::Unknown);
        kill.constraint_only = true;
        kill.seq = pending.seq;
        Some(kill)
    }
}

/// Whether the constraint line before is that of this kill line.
fn belongs(found: &Constraint, gap: bool, kind: Option<OomKind>, line: &KillLine) -> bool {
    if found.kind.zip(kind).is_some_and(|(constraint, kill)| constraint != kill) {
        return false;
    }
    match &found.task {
        Some(task) if task.pid == line.pid => true,
        Some(task) => !gap && line.uid.is_none_or(|uid| uid == task.uid),
        None => !gap,
    }
}

/// Whether a text holds what ends a constraint line. A name of 15 bytes has room for it.
pub(super) fn names_fields(text: &[u8]) -> bool {
    contains(text, b",pid=") || contains(text, b",uid=")
}

/// A line that was cut inside a name that looks like our fields: its end is not the kernel's.
fn distrust(found: &mut Constraint, line: &KillLine) {
    let other = found.task.as_ref().is_some_and(|task| task.pid != line.pid);
    if other && line.comm.as_deref().is_some_and(names_fields) {
        found.task = None;
        found.task_memcg = None;
    }
}

/// Puts the constraint's fields into the kill. `merged` when the kill line carried its message.
fn apply(found: &Constraint, merged: bool, kill: &mut OomKill) {
    kill.constraint.clone_from(&found.name);
    kill.memcg = found.memcg.as_deref().map(legible);
    kill.task_memcg = found.task_memcg.as_deref().map(legible);
    let Some(task) = &found.task else { return };
    if task.pid == kill.pid {
        kill.uid = kill.uid.or(Some(task.uid));
        kill.comm = kill.comm.take().or_else(|| Some(legible(&task.comm)));
    } else if merged {
        // From 5.3 on the message is part of the kill line and no child is sacrificed in the chosen task's place: two
        // pids are a thread and its process.
        kill.tgid = Some(task.pid);
        kill.tgid_comm = Some(legible(&task.comm));
        kill.uid = kill.uid.or(Some(task.uid));
    }
}

/// Puts a constraint line that was printed right before the kill, and read after it, into the kill.
pub(super) fn complete(text: &[u8], kill: &mut OomKill) {
    let found = constraint::parse(text, kill.comm.as_deref().map(str::as_bytes), &[]);
    apply(&found, kill.kind != OomKind::Unknown, kill);
    if kill.kind == OomKind::Unknown {
        kill.kind = found.kind.unwrap_or(OomKind::Unknown);
    }
}
