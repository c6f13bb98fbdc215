//! The shell tools that came before, on boxes in transition: their lock records and their supervisors' lock
//! directories are read, their two file locks are taken while we write. Nothing of theirs is ever changed.

use std::{
    ffi::OsStr,
    fs, io,
    io::Read,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use lanewarden_probes::liveness::{Judged, Liveness, Recorded};
use sha2::{Digest, Sha256};

use super::{
    names,
    rows::{Held, Kind},
};

/// The largest record that is read; theirs have some hundred bytes.
const RECORD_MAX: u64 = 64 * 1024;

/// The longest name of a file, bytes (NAME_MAX).
const NAME_MAX: usize = 255;

/// The two files that the predecessor locks while it decides: the directory's, then the issue's.
#[must_use]
pub fn lock_files(locks: &Path, dir: &Path, issue: Option<u64>) -> Vec<PathBuf> {
    let flat: String = dir.to_string_lossy().trim_start_matches('/').replace('/', "_");
    let mut name = format!("dir-{flat}.flock");
    if name.len() > NAME_MAX {
        let sum: String = Sha256::digest(flat.as_bytes())
            .iter()
            .take(6)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut tail = flat.len().saturating_sub(180);
        while !flat.is_char_boundary(tail) {
            tail += 1;
        }
        name = format!("dir-x{sum}-{}.flock", flat.get(tail..).unwrap_or_default());
    }
    let mut files = vec![locks.join(name)];
    files.extend(issue.map(|issue| locks.join(format!("lane-{issue}.flock"))));
    files
}

/// The issue of a directory that is named after one: `<lane root>/lane-<N>`.
#[must_use]
pub fn issue_of_dir(lane_root: &Path, dir: &Path) -> Option<u64> {
    let root = names::canonical(lane_root).ok()?;
    (dir.parent()? == root).then(|| number(dir.file_name()?, "lane-", ""))?
}

/// The number in `<head>N<tail>`, written without leading zeros.
fn number(name: &OsStr, head: &str, tail: &str) -> Option<u64> {
    canonical_number(name.to_str()?.strip_prefix(head)?.strip_suffix(tail)?)
}

/// A decimal number of at least 1 without sign and leading zeros.
#[must_use]
pub fn canonical_number(text: &str) -> Option<u64> {
    let good = text.bytes().all(|byte| byte.is_ascii_digit()) && !text.starts_with('0');
    good.then(|| text.parse().ok())?
}

/// The record of an issue, if there is one.
#[must_use]
pub fn record(locks: &Path, issue: u64) -> Option<Held> {
    let path = locks.join(format!("lane-{issue}.lock"));
    match read(&path) {
        Ok(bytes) => Some(parse(&bytes, issue)),
        Err(error)
            if error.kind() == io::ErrorKind::NotFound && fs::symlink_metadata(&path).is_err() =>
        {
            None
        }
        Err(error) => Some(unreadable(issue, error.to_string())),
    }
}

/// All records, by issue.
///
/// # Errors
/// The directory cannot be listed.
pub fn records(locks: &Path) -> io::Result<Vec<Held>> {
    let mut issues = Vec::new();
    for entry in fs::read_dir(locks)? {
        issues.extend(number(&entry?.file_name(), "lane-", ".lock"));
    }
    issues.sort_unstable();
    Ok(issues.into_iter().filter_map(|issue| record(locks, issue)).collect())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Their records are files; a FIFO must not make us wait.
    let file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(RECORD_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unreadable(issue: u64, cause: String) -> Held {
    Held {
        dir: String::new(),
        kind: Kind::Predecessor,
        lane: String::new(),
        issue: Some(issue),
        scope: "-".to_owned(),
        holder: Recorded::default(),
        worker: None,
        nonce: "-".to_owned(),
        epoch: 0,
        taken_at_ms: 0,
        unreadable: Some(cause),
    }
}

/// Reads a record: `key=value` lines whose key is of lower-case letters and hyphens, other lines skipped, unknown keys
/// ignored, any key twice spoils it, and so does a missing machine.
#[must_use]
pub fn parse(bytes: &[u8], issue: u64) -> Held {
    if u64::try_from(bytes.len()).map_or(true, |length| length > RECORD_MAX) {
        return unreadable(issue, "it is larger than 64 KiB".to_owned());
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return unreadable(issue, "it is not UTF-8".to_owned());
    };
    let mut fields: Vec<(&str, &str)> = Vec::new();
    for (key, value) in text.split('\n').filter_map(|line| line.split_once('=')) {
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') {
            continue;
        }
        if fields.iter().any(|(seen, _)| *seen == key) {
            return unreadable(issue, "a key stands in it twice".to_owned());
        }
        fields.push((key, value));
    }
    let field = |key| fields.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let Some(machine) = field("machine").filter(|machine| !machine.is_empty()) else {
        return unreadable(issue, "it names no machine".to_owned());
    };
    if field("issue").is_some_and(|written| written != issue.to_string()) {
        return unreadable(issue, "it is of another issue than its name".to_owned());
    }
    let digits = |key| field(key).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    Held {
        dir: field("lane-dir").unwrap_or_default().to_owned(),
        scope: names::word(field("pid-scope").unwrap_or("-")),
        holder: Recorded {
            machine: names::word(machine),
            actor: field("actor").map(names::word),
            pid: digits("pid").and_then(|text| text.parse().ok()),
            boot: field("boot-id").and_then(|text| text.parse().ok()),
            ticks: digits("start-ticks").and_then(|text| text.parse().ok()),
            ephemeral: field("pid-scope") == Some("ephemeral"),
            ..Recorded::default()
        },
        nonce: names::word(field("nonce").unwrap_or("-")),
        taken_at_ms: digits("acquired-epoch")
            .and_then(|text| text.parse::<i64>().ok()?.checked_mul(1000))
            .unwrap_or(0),
        unreadable: None,
        ..unreadable(issue, String::new())
    }
}

/// Whether a supervisor of the predecessor holds a lane by its lock directory: who, by what evidence. Only ESRCH says
/// that nobody does; a pid of an ancestor of ours is our own supervisor.
#[must_use]
pub fn supervisor(lane: &str, ours: &[u32]) -> Option<Judged> {
    let mut places = vec![PathBuf::from("/tmp")];
    places.extend(std::env::var_os("TMPDIR").map(PathBuf::from).filter(|dir| dir.is_absolute()));
    places.iter().find_map(|place| supervisor_in(place, lane, ours))
}

fn supervisor_in(place: &Path, lane: &str, ours: &[u32]) -> Option<Judged> {
    if lane.is_empty() || lane.contains('/') {
        return None;
    }
    let dir = place.join(format!("cqlite-worker-supervisor-{lane}.lock"));
    fs::symlink_metadata(&dir).ok()?;
    let shown = dir.display();
    let unknown = |why: String| {
        Some(Judged { verdict: Liveness::UnknownNoPid, reason: format!("{shown}: {why}") })
    };
    let bytes = match read(&dir.join("pid")) {
        Ok(bytes) => bytes,
        Err(error) => return unknown(format!("its pid cannot be read: {error}")),
    };
    let text = std::str::from_utf8(&bytes).unwrap_or_default();
    let pid = canonical_number(text.strip_suffix('\n').unwrap_or(text));
    let Some(pid) = pid.and_then(|pid| u32::try_from(pid).ok()) else {
        return unknown("it names no pid".to_owned());
    };
    use lanewarden_probes::identity::{PidfdOutcome, open_pidfd};
    match open_pidfd(pid).0 {
        PidfdOutcome::NoProcess => None,
        PidfdOutcome::Opened { exited: true, .. } => None,
        _ if ours.contains(&pid) => None,
        PidfdOutcome::Opened { exited: false, .. } | PidfdOutcome::Denied => Some(Judged {
            verdict: Liveness::Alive,
            reason: format!("{shown} names pid {pid}, which runs; its identity is not recorded"),
        }),
        PidfdOutcome::IsThread | PidfdOutcome::Failed(_) => {
            unknown(format!("it cannot be told whether pid {pid} runs"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanewarden_probes::{Root, liveness::judge};
    use proptest::prelude::*;

    fn verdict(text: &str) -> Liveness {
        let held = parse(text.as_bytes(), 7);
        super::super::standing::standing(&held, &|one| judge(&Root::live(), one, "box-a")).verdict
    }

    const BOOT: &str = "boot-id=0f6b1c9e-1234-4abc-8def-0123456789ab\n";

    #[test]
    fn bad_records_have_their_own_verdicts() {
        let ours = lanewarden_probes::identity::boot_id(&Root::live()).unwrap().unwrap();
        let ours = format!("machine=box-a\nboot-id={ours}\n");
        for (text, expected) in [
            (String::new(), Liveness::UnknownUnreadable),
            ("machine=\n".to_owned(), Liveness::UnknownUnreadable),
            ("machine=box-a\npid=1\npid=1\n".to_owned(), Liveness::UnknownUnreadable),
            ("machine=box-a\nissue=8\n".to_owned(), Liveness::UnknownUnreadable),
            ("machine=box-b\npid=1\n".to_owned(), Liveness::UnknownForeign),
            ("machine=box-a\npid=1\n".to_owned(), Liveness::UnknownNoBootId),
            (format!("machine=box-a\n{BOOT}"), Liveness::DeadReboot),
            (format!("machine=box-a\npid-scope=ephemeral\n{BOOT}"), Liveness::DeadReboot),
            (format!("{ours}pid-scope=ephemeral\npid=1\n"), Liveness::UnknownEphemeral),
            (format!("{ours}pid=0\nstart-ticks=1\n"), Liveness::UnknownNoPid),
            (format!("{ours}pid=-1\nstart-ticks=1\n"), Liveness::UnknownNoPid),
            (format!("{ours}pid=99999999999\nstart-ticks=1\n"), Liveness::UnknownNoPid),
            (format!("{ours}pid=1\n"), Liveness::UnknownNoStartTicks),
            (format!("{ours}pid=1\nstart-ticks=x\n"), Liveness::UnknownNoStartTicks),
            (format!("{ours}pid=1\nstart-ticks=18446744073709551615\n"), Liveness::DeadPidReused),
        ] {
            assert_eq!(verdict(&text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_file_is_unreadable_and_not_absent() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(record(dir.path(), 1), None);
        fs::create_dir(dir.path().join("lane-1.lock")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("lane-2.lock")).unwrap();
        fs::write(dir.path().join("lane-03.lock"), "machine=x\n").unwrap();
        let found = records(dir.path()).unwrap();
        assert_eq!(found.iter().filter_map(|one| one.issue).collect::<Vec<_>>(), [1, 2]);
        assert!(found.iter().all(|one| one.unreadable.is_some()));
    }

    #[test]
    fn a_supervisors_lock_counts_unless_its_process_is_proven_gone() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("cqlite-worker-supervisor-a.lock");
        assert_eq!(supervisor_in(dir.path(), "a", &[]), None);
        fs::create_dir(&lock).unwrap();
        let verdict = |ours: &[u32]| supervisor_in(dir.path(), "a", ours).map(|one| one.verdict);
        assert_eq!(verdict(&[]), Some(Liveness::UnknownNoPid), "a starting one has no pid yet");
        let us = std::process::id();
        fs::write(lock.join("pid"), format!("{us}\n")).unwrap();
        assert_eq!(verdict(&[]), Some(Liveness::Alive));
        assert_eq!(verdict(&[us]), None, "our own supervisor");
        fs::write(lock.join("pid"), "2147483646\n").unwrap();
        assert_eq!(verdict(&[]), None);
        fs::write(lock.join("pid"), "1 2\n").unwrap();
        assert_eq!(verdict(&[]), Some(Liveness::UnknownNoPid));
    }

    #[test]
    fn names_of_lock_files_fit() {
        let deep = format!("/{}", "d\u{e4}/".repeat(200));
        for path in lock_files(Path::new("/l"), Path::new(&deep), Some(7)) {
            assert!(path.file_name().unwrap().len() <= NAME_MAX, "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_garbage_is_never_dead(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let held = parse(&bytes, 7);
            let judged = super::super::standing::standing(&held, &|one| judge(&Root::live(), one, "box-a"));
            prop_assert!(!judged.verdict.is_dead(), "{:?}", judged);
        }

        #[test]
        fn lines_in_any_order_read_the_same(
            lines in Just(vec!["machine=m", "pid=12", "start-ticks=5", "lane-dir=/a b=c", "new-key=x", "X=1", "junk"]).prop_shuffle()
        ) {
            let held = parse(lines.join("\n").as_bytes(), 7);
            prop_assert_eq!((held.dir.as_str(), held.holder.pid, held.holder.ticks), ("/a b=c", Some(12), Some(5)));
            prop_assert!(held.unreadable.is_none());
        }
    }
}
