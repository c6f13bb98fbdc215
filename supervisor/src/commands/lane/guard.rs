//! The commit guard: a pre-commit hook, and what it asks.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use lanewarden_probes::{
    Root,
    identity::{self, Identity},
    liveness::Liveness,
};

use super::{Failure, Outcome, note, surroundings};
use crate::{
    effects::prepare::ancestors,
    exit_code::{FAILED, OK},
    lanes::{
        answer::Verdict,
        desk::Desk,
        names,
        predecessor::{canonical_number, issue_of_dir},
        rows::Kind,
        standing::Judge,
    },
    output,
};

/// By this our hook is known again.
const MARK: &str = "# lanewarden lane guard";

/// Where the hook that was there before goes on living.
const KEPT: &str = "pre-commit.before-lanewarden";

/// What becomes of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ruling {
    Allow,
    Warn,
    Acquire { gap: bool },
    Refuse,
}

/// Pure: what is known of the lane's holder, to what becomes of the commit. `None`: nobody holds it.
fn rule(liveness: Option<Liveness>, our_process: bool, we_are_known: bool) -> Ruling {
    let Some(liveness) = liveness else { return Ruling::Acquire { gap: true } };
    if our_process {
        return Ruling::Allow;
    }
    match liveness {
        Liveness::OurSelf => Ruling::Allow,
        Liveness::DeadReboot | Liveness::DeadNoProcess | Liveness::DeadPidReused => {
            Ruling::Acquire { gap: false }
        }
        Liveness::Alive if we_are_known => Ruling::Refuse,
        Liveness::Alive
        | Liveness::NoWorker
        | Liveness::UnknownUnreadable
        | Liveness::UnknownForeign
        | Liveness::UnknownNoProc
        | Liveness::UnknownNoBootId
        | Liveness::UnknownEphemeral
        | Liveness::UnknownNoPid
        | Liveness::UnknownNoStartTicks
        | Liveness::UnknownState
        | Liveness::UnknownProbe
        | Liveness::UnknownIdentity
        | Liveness::UnknownHidden
        | Liveness::UnknownNamespace
        | Liveness::UnknownClock => Ruling::Warn,
    }
}

/// Judges the commit that is about to be made in `dir`.
pub(super) fn check(dir: &Path, config: Option<&Path>) -> Outcome {
    let Ok(dir) = fs::canonicalize(dir) else { return Ok(OK) };
    let desk = match surroundings(config).and_then(|around| asking(&around)) {
        Ok(desk) => desk,
        Err(failure) => {
            note(&format!("the lane lock is not asked: {}", failure.words));
            return Ok(OK);
        }
    };
    for place in dir.ancestors() {
        let issue = issue_of(&desk, place);
        match desk.at_directory(place) {
            Ok(None) if issue.is_none() => {}
            Ok(found) => return Ok(judge(&desk, place, issue, found)),
            Err(error) => {
                note(&format!(
                    "it cannot be told who holds this lane, the commit goes on: {error}"
                ));
                return Ok(OK);
            }
        }
    }
    Ok(OK)
}

/// A desk for whoever commits: not the hook's shell and not git, which are gone in a moment.
fn asking(around: &super::Surroundings) -> Result<Desk, Failure> {
    let root = Root::live();
    let is_git = |pid: u32| {
        let program = identity::exe(&root, pid).ok().and_then(Result::ok);
        let name = program.as_deref().and_then(Path::file_name);
        name.and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("git"))
    };
    let mut desk = around.desk()?;
    if let Some(actor) = around.env.var("LANE_LOCK_ACTOR") {
        desk.actor = names::actor(actor).map_err(super::usage)?;
    }
    desk.pid = super::named_by(&around.env)?;
    // We, the hook, git (perhaps twice), who commits.
    desk.from = ancestors().into_iter().skip(2).find(|pid| !is_git(*pid));
    Ok(desk)
}

type Found = Option<(
    crate::lanes::rows::Held,
    crate::lanes::session::Session,
    crate::lanes::standing::Standing,
)>;

fn judge(desk: &Desk, place: &Path, issue: Option<u64>, found: Found) -> u8 {
    let me = found.as_ref().and_then(|(_, ours, _)| ours.identity.clone());
    let our_process = found.as_ref().is_some_and(|(_, _, stands)| {
        let is_above = stands.verdict == Liveness::Alive
            && stands.who.pid.is_some_and(|pid| ancestors().contains(&pid));
        is_above
            || Judge { names: desk.machines.clone(), me: me.clone() }.is_our_process(&stands.who)
    });
    let liveness = found.as_ref().map(|(_, _, stands)| stands.verdict);
    let pid = found.as_ref().and_then(|(_, _, stands)| stands.who.pid).unwrap_or(0);
    let reason = found.as_ref().map_or("", |(_, _, stands)| stands.reason.as_str());
    let told = liveness.map_or("NO-RECORD", Liveness::as_str);
    let shown = place.display();
    match rule(liveness, our_process, me.is_some()) {
        Ruling::Allow => OK,
        Ruling::Warn => {
            note(&format!("the holder of {shown} is {told} ({reason}); the commit goes on"));
            OK
        }
        Ruling::Refuse => {
            let us = me.as_ref().map(Identity::token).unwrap_or_default();
            output::error(&format!(
                "the commit is refused: another live session, pid {pid}, holds {shown} ({reason}); we are {us}\n\
                 see `lanewarden lane status`; work in a lane of your own, or end that session first"
            ));
            FAILED
        }
        Ruling::Acquire { gap } => {
            let held = found.as_ref().filter(|(held, _, _)| held.kind == Kind::Session);
            let issue = issue.or_else(|| held.and_then(|(held, _, _)| held.issue));
            acquire(desk, place, issue, gap)
        }
    }
}

fn acquire(desk: &Desk, place: &Path, issue: Option<u64>, gap: bool) -> u8 {
    // A daemon's lane whose daemon and worker are gone has no issue to take it for.
    let Some(issue) = issue else { return OK };
    match desk.acquire(issue, Some(place), None) {
        Ok(answer) if answer.verdict.exit() == OK => {
            if gap {
                note(&format!("{} was not locked until now", place.display()));
            }
            note(&answer.line());
            OK
        }
        // Nobody to take it for is no ownership of somebody else.
        Ok(answer) if answer.verdict == Verdict::Error => {
            note(&answer.line());
            answer.notes.iter().for_each(|text| note(text));
            output::error("the commit is refused: the lane could not be locked");
            FAILED
        }
        Ok(answer) => {
            note(&answer.line());
            output::error("the commit is refused: somebody else took the lane just now");
            FAILED
        }
        Err(misuse) => {
            output::error(&format!("the commit is refused: {misuse}"));
            FAILED
        }
    }
}

/// The issue of a lane directory, by its place and never by a branch: `<lane root>/lane-N`, or `issue-N-slug` below
/// a `.claude/worktrees`.
fn issue_of(desk: &Desk, place: &Path) -> Option<u64> {
    issue_of_dir(&desk.lane_root, place).or_else(|| {
        let mut parts = place.components().rev();
        let Component::Normal(name) = parts.next()? else { return None };
        let named = |part: Option<Component<'_>>, wanted: &str| {
            matches!(part, Some(Component::Normal(name)) if name == wanted)
        };
        if !named(parts.next(), "worktrees") || !named(parts.next(), ".claude") {
            return None;
        }
        let (number, slug) = name.to_str()?.strip_prefix("issue-")?.split_once('-')?;
        (!slug.is_empty()).then(|| canonical_number(number))?
    })
}

/// Puts the hook into a repository.
pub(super) fn install(repo: &Path, config: Option<&Path>) -> Outcome {
    let failed = |doing: &str, error: &dyn std::fmt::Display| {
        Failure::new(FAILED, format!("{doing}: {error}"))
    };
    let repository = git2::Repository::discover(repo)
        .map_err(|error| failed(&format!("opening {repo:?}"), &error.message()))?;
    let hooks = hooks_dir(&repository)
        .map_err(|error| failed("reading core.hooksPath", &error.message()))?;
    let place = hooks.display();
    fs::create_dir_all(&hooks).map_err(|error| failed(&format!("making {place}"), &error))?;
    let exe = std::env::current_exe().map_err(|error| failed("finding this program", &error))?;
    let config = config.map(std::path::absolute).transpose();
    let config = config.map_err(|error| failed("finding the configuration", &error))?;
    let lane_root = std::env::var_os("LANE_ROOT").map(PathBuf::from);
    let call = Call { exe: &exe, config: config.as_deref(), lane_root: lane_root.as_deref() };
    let done = put(&hooks, &call)
        .map_err(|error| failed(&format!("writing the hook in {place}"), &error))?;
    output::line(&crate::text::harmless(&format!("{done} in {place}")));
    Ok(OK)
}

/// Where git looks for hooks: `core.hooksPath`, relative to the worktree's top, else `hooks` in the directory that all
/// worktrees share.
fn hooks_dir(repository: &git2::Repository) -> Result<PathBuf, git2::Error> {
    match repository.config()?.get_path("core.hooksPath") {
        Ok(path) => Ok(repository.workdir().unwrap_or(repository.path()).join(path)),
        Err(error) if error.code() == git2::ErrorCode::NotFound => {
            Ok(repository.commondir().join("hooks"))
        }
        Err(error) => Err(error),
    }
}

/// How the hook calls us.
#[derive(Debug, Clone, Copy)]
struct Call<'a> {
    exe: &'a Path,
    config: Option<&'a Path>,
    lane_root: Option<&'a Path>,
}

/// One pair of quotes; a quote inside ends it, stands escaped, and starts another.
fn quoted(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mut text = vec![b'\''];
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\'' => text.extend(b"'\\''"),
            other => text.push(*other),
        }
    }
    text.push(b'\'');
    text
}

/// Asks us, and lets only a refusal of ours stop the commit.
const ASK: &[u8] = b"lane guard check || code=$?
fi
case $code in
0) ;;
1) exit 1 ;;
*) echo \"lanewarden: the lane guard could not be asked ($code); the commit goes on\" >&2 ;;
esac
kept=${0%/*}/";

/// The hook. `kept` is the one that was there before: a shell's is read into ours, so that `$0` stays what git called.
fn script(call: &Call<'_>, kept: Option<&[u8]>) -> Vec<u8> {
    let shell = kept.and_then(shell_of);
    let mut text = shell.unwrap_or(b"#!/bin/sh").to_vec();
    text.extend(format!("\n{MARK}\nwarden=").into_bytes());
    text.extend(quoted(call.exe));
    text.push(b'\n');
    if let Some(root) = call.lane_root {
        text.extend(b"lane_root=");
        text.extend(quoted(root));
        text.extend(b"\nLANE_ROOT=${LANE_ROOT-$lane_root}\nexport LANE_ROOT\n");
    }
    text.extend(
        b"[ -f \"$warden\" ] && [ -x \"$warden\" ] || warden=$(command -v lanewarden) || warden=\n",
    );
    text.extend(b"code=0\nif [ -n \"$warden\" ]; then\n    \"$warden\" --log error ");
    if let Some(config) = call.config {
        text.extend(b"--config ");
        text.extend(quoted(config));
        text.push(b' ');
    }
    text.extend(ASK);
    text.extend(KEPT.as_bytes());
    text.extend(b"\n[ -x \"$kept\" ] || exit 0\n");
    let run: &[u8] = if shell.is_some() { b". \"$kept\"\n" } else { b"exec \"$kept\" \"$@\"\n" };
    text.extend(run);
    text
}

/// The first line of a script for a shell that can read another one into itself.
fn shell_of(script: &[u8]) -> Option<&[u8]> {
    let line = script.split(|byte| *byte == b'\n').next()?;
    let mut words = line.strip_prefix(b"#!")?.split(|byte| *byte == b' ' || *byte == b'/');
    let shells: [&[u8]; 5] = [b"sh", b"bash", b"dash", b"ash", b"ksh"];
    words.any(|word| shells.contains(&word)).then_some(line)
}

/// Writes the hook; says what was done.
fn put(hooks: &Path, call: &Call<'_>) -> io::Result<&'static str> {
    let hook = hooks.join("pre-commit");
    let kept = hooks.join(KEPT);
    let mut before = fs::read(&kept).ok();
    let mut done = "installed the lane guard";
    match fs::symlink_metadata(&hook) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(metadata) => {
            let old = fs::read(&hook).unwrap_or_default();
            if metadata.is_file() && old == script(call, before.as_deref()) {
                return Ok("the lane guard is installed already");
            }
            let ours = metadata.is_file()
                && old.split(|byte| *byte == b'\n').any(|line| line == MARK.as_bytes());
            if ours {
                done = "renewed the lane guard";
            } else if metadata.is_file() && before.as_ref() == Some(&old) {
                // Whoever made the hook has made it again.
                done = "installed the lane guard again before the present hook";
            } else {
                before = Some(old);
                // A second name, not a move: at no moment is there no hook.
                fs::hard_link(&hook, &kept).map_err(|error| {
                    let why = format!(
                        "keeping the present hook as {KEPT}: {error}; move one of them away"
                    );
                    io::Error::new(error.kind(), why)
                })?;
                done = "installed the lane guard before the present hook";
            }
        }
    }
    let mut fresh = tempfile::Builder::new().prefix(".pre-commit.").tempfile_in(hooks)?;
    fresh.write_all(&script(call, before.as_deref()))?;
    fresh.as_file().set_permissions(fs::Permissions::from_mode(0o755))?;
    fresh.persist(&hook).map_err(|error| error.error)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_live_stranger_is_refused() {
        assert_eq!(rule(None, false, false), Ruling::Acquire { gap: true });
        for &liveness in Liveness::ALL {
            let expected = match liveness.as_str() {
                "SELF" => Ruling::Allow,
                "ALIVE" => Ruling::Refuse,
                dead if dead.starts_with("DEAD-") => Ruling::Acquire { gap: false },
                _ => Ruling::Warn,
            };
            assert_eq!(rule(Some(liveness), false, true), expected, "{liveness}");
            assert_eq!(
                rule(Some(liveness), true, true),
                Ruling::Allow,
                "another actor, {liveness}"
            );
        }
        assert_eq!(rule(Some(Liveness::Alive), false, false), Ruling::Warn);
    }

    #[test]
    fn lanes_are_known_by_their_place() {
        let root = tempfile::tempdir().unwrap();
        let top = root.path().canonicalize().unwrap();
        let desk =
            Desk { lane_root: top.clone(), ..super::super::bare(&crate::config::Env::current()) };
        let of = |place: &str| issue_of(&desk, &top.join(place));
        assert_eq!(of("lane-7"), Some(7));
        assert_eq!(of("repo/.claude/worktrees/issue-12-fix-it"), Some(12));
        for other in [
            "lane-07",
            "lane-x",
            "lane-7/sub",
            "repo/lane-7",
            "repo/.claude/worktrees/issue-12",
            "repo/worktrees/issue-12-x",
            "repo/.claude/worktrees/issue-0-x",
            "",
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }

    #[test]
    fn only_a_shells_script_is_read_into_ours() {
        let cases: [(&[u8], Option<&[u8]>); 7] = [
            (b"#!/bin/sh\nexit 1\n", Some(b"#!/bin/sh")),
            (b"#!/usr/bin/env bash\n", Some(b"#!/usr/bin/env bash")),
            (b"#!/bin/bash -e\n", Some(b"#!/bin/bash -e")),
            (b"#!/usr/bin/env python3\n", None),
            (b"#!/usr/bin/fish\n", None),
            (b"exit 1\n", None),
            (b"\x7fELF", None),
        ];
        for (script, shell) in cases {
            assert_eq!(shell_of(script), shell, "{script:?}");
        }
    }

    #[test]
    fn a_quote_in_our_path_stays_in_the_script() {
        let exe = Path::new("/o'pt/$(x)/lanewarden");
        let script = script(&Call { exe, config: None, lane_root: None }, None);
        let text = String::from_utf8(script).unwrap();
        assert!(text.contains("warden='/o'\\''pt/$(x)/lanewarden'"), "{text}");
    }
}
