//! The constraint line: parsed from both ends, because paths and names in its middle are hostile.
//!
//! `oom-kill:constraint=C,nodemask=L[,cpuset=N,mems_allowed=L](,oom_memcg=PATH|,global_oom),task_memcg=PATH,task=COMM,pid=P,uid=U`

use super::{
    OomKind,
    bytes::{contains, find, leading_pid, number, rsplit_once},
    grammar::CONSTRAINT,
};

const TASK_MEMCG: &[u8] = b",task_memcg=";

/// What a constraint line says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Constraint {
    pub(super) name: Option<String>,
    pub(super) kind: Option<OomKind>,
    pub(super) memcg: Option<Vec<u8>>,
    pub(super) task_memcg: Option<Vec<u8>>,
    /// Pid, name and uid of the chosen task; `None` when the line was cut before its end.
    pub(super) task: Option<Task>,
}

/// The end of a constraint line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Task {
    pub(super) pid: u32,
    pub(super) comm: Vec<u8>,
    pub(super) uid: u32,
}

/// Whether the line has its end, `,pid=N,uid=N`.
pub(super) fn is_whole(text: &[u8]) -> bool {
    end(text).is_some()
}

/// Reads a constraint line. `comm` is the victim's name where the kill line told it: it settles where a hostile name
/// begins. `joints` are the offsets at which fragments were put together: a path that touches one may have been cut by
/// the kernel and is not believed.
pub(super) fn parse(text: &[u8], comm: Option<&[u8]>, joints: &[usize]) -> Constraint {
    let mut found = Constraint::default();
    let Some(rest) = text.strip_prefix(CONSTRAINT) else { return found };
    let name: Vec<u8> = rest
        .iter()
        .copied()
        .take_while(|byte| byte.is_ascii_uppercase() || *byte == b'_')
        .collect();
    if rest.get(name.len()) == Some(&b',') && name.starts_with(b"CONSTRAINT_") {
        found.name = String::from_utf8(name).ok();
    }
    let body = match end(text) {
        Some((body, pid, uid)) => {
            let (body, comm) = split_comm(body, comm);
            found.task = Some(Task { pid, comm: comm.to_vec(), uid });
            (body, true)
        }
        None => (text, false),
    };
    memcgs(body.0, body.1, joints, &mut found);
    if found.kind.is_none() {
        found.kind = match found.name.as_deref() {
            Some("CONSTRAINT_MEMCG") => Some(OomKind::Memcg),
            Some("CONSTRAINT_NONE" | "CONSTRAINT_CPUSET" | "CONSTRAINT_MEMORY_POLICY") => {
                Some(OomKind::Global)
            }
            Some(_) | None => None,
        };
    }
    found
}

/// What is before `,pid=N,uid=N` at the end, and the two numbers.
fn end(text: &[u8]) -> Option<(&[u8], u32, u32)> {
    let (text, uid) = rsplit_once(text.trim_ascii_end(), b",uid=")?;
    let uid = u32::try_from(number(uid)?).ok()?;
    let (body, pid) = rsplit_once(text, b",pid=")?;
    match leading_pid(pid)? {
        (pid, []) => Some((body, pid, uid)),
        (_, [_, ..]) => None,
    }
}

/// Splits `...,task=COMM`.
fn split_comm<'a>(body: &'a [u8], comm: Option<&[u8]>) -> (&'a [u8], &'a [u8]) {
    if let Some(comm) = comm
        && let Some(before) = body.strip_suffix(comm).and_then(|body| body.strip_suffix(b",task="))
        && let Some(comm) = body.get(body.len().saturating_sub(comm.len())..)
    {
        return (before, comm);
    }
    rsplit_once(body, b",task=").unwrap_or((body, b""))
}

/// The two paths. `whole` when the text ends where the second path ends.
fn memcgs(body: &[u8], whole: bool, joints: &[usize], found: &mut Constraint) {
    // A cpuset's name is one path component: it holds no slash, so the first of these is the kernel's.
    let own = find(body, b",oom_memcg=/");
    let global = find(body, b",global_oom,task_memcg=");
    let owner_at = match (own, global) {
        (Some(own), Some(global)) if global < own => None,
        (own, _) => own,
    };
    let Some(at) = owner_at else {
        if contains(body, b",global_oom") {
            found.kind = Some(OomKind::Global);
        }
        if let Some(at) = global.filter(|_| whole) {
            let from = at.saturating_add(b",global_oom,task_memcg=".len());
            found.task_memcg = path(body, from, body.len(), joints);
        }
        return;
    };
    found.kind = Some(OomKind::Memcg);
    let from = at.saturating_add(b",oom_memcg=".len());
    let Some(split) = owner_end(body, from, whole) else { return };
    found.memcg = path(body, from, split, joints);
    if whole {
        let from = split.saturating_add(TASK_MEMCG.len());
        found.task_memcg = path(body, from, body.len(), joints);
    }
}

/// Where the owner's path ends. A path may hold our key word: then the owner must be an ancestor of the other, and if
/// that does not settle it, nobody can tell.
fn owner_end(body: &[u8], from: usize, whole: bool) -> Option<usize> {
    let mut candidates = Vec::new();
    let mut at = from;
    while let Some(next) = body.get(at..).and_then(|rest| find(rest, TASK_MEMCG)) {
        at = at.saturating_add(next);
        candidates.push(at);
        at = at.saturating_add(1);
        if candidates.len() > 16 {
            return None;
        }
    }
    if let [only] = candidates.as_slice() {
        return Some(*only);
    }
    let mut fitting = candidates.iter().copied().filter(|&at| {
        let owner = body.get(from..at);
        let task = body.get(at.saturating_add(TASK_MEMCG.len())..);
        whole && owner.zip(task).is_some_and(|(owner, task)| is_ancestor(owner, task))
    });
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

/// Whether `owner` is `task` or one of the cgroups above it.
pub(super) fn is_ancestor(owner: &[u8], task: &[u8]) -> bool {
    owner == b"/"
        || task.strip_prefix(owner).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// A path that no fragment's border touches.
fn path(body: &[u8], from: usize, to: usize, joints: &[usize]) -> Option<Vec<u8>> {
    if joints.iter().any(|&joint| joint >= from && joint <= to) {
        return None;
    }
    body.get(from..to).filter(|path| path.starts_with(b"/")).map(<[u8]>::to_vec)
}
