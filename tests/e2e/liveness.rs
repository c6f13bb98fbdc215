//! Every verdict on a process, each from a real situation and by the real program.

use lanewarden_probes::liveness::Liveness;
use lanewarden_tests::{
    Home, command, proc,
    requires::{Need, has},
    scene::{Actor, Scene, boot_id, field, file},
    situation_program, until,
};
use rustix::process::Signal;

/// A user who is nobody's, and may read the locks by their group.
const STRANGER: [&str; 6] =
    ["setpriv", "--reuid=61001", "--regid=61003", "--clear-groups", "--no-new-privs", "--"];

/// What is said of the holder, and the output for a message.
type Seen = (String, command::Output);

struct Situation {
    verdict: Liveness,
    name: &'static str,
    needs: &'static [Need],
    see: fn(&Scene) -> Seen,
}

const fn situation(
    verdict: Liveness,
    name: &'static str,
    needs: &'static [Need],
    see: fn(&Scene) -> Seen,
) -> Situation {
    Situation { verdict, name, needs, see }
}

const ROOT: &[Need] = &[Need::Root];

/// The verdicts whose situation is a daemon's and has a test of its own below.
const ELSEWHERE: [Liveness; 1] = [Liveness::NoWorker];

static SITUATIONS: &[Situation] = &[
    situation(Liveness::Alive, "it sleeps", &[], |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        scene.liveness_from(&[])
    }),
    situation(Liveness::Alive, "it is stopped", &[], |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        proc::signal(holder.number, Signal::STOP);
        scene.liveness_from(&[])
    }),
    situation(Liveness::Alive, "its first thread has exited, another runs", &[], |scene| {
        let holder = Actor::in_situation(&["leader-exits"]);
        until("the zombie leader", || {
            proc::stat(holder.number).filter(|stat| stat.0 == 'Z').ok_or("none")
        });
        // Written by the shell tools, which would have called it dead.
        scene.recorded(&scene.lines_about(holder.number));
        scene.liveness_from(&[])
    }),
    situation(Liveness::Alive, "it calls itself as if it were a zombie", &[], |scene| {
        let holder = Actor::in_situation(&["named", "x) Z 1 (\n)"]);
        scene.held_by(holder.number);
        scene.liveness_from(&[])
    }),
    situation(Liveness::Alive, "another of its threads became another program", &[], |scene| {
        let holder = Actor::in_situation(&["thread-exec", "sh", "-c", "echo $$; exec sleep 1000"]);
        scene.held_by(holder.number);
        scene.liveness_from(&[])
    }),
    situation(
        Liveness::Alive,
        "EPERM: another user's, and no pidfds are to be had",
        ROOT,
        |scene| {
            let holder = Actor::sleeping_as(61_002);
            scene.held_by(holder.number);
            let program = situation_program().display().to_string();
            // kill(2) with signal 0 is all that is left, and it is not permitted: the process exists.
            let seccomp = [program.as_str(), "errno-pidfd", "38"];
            scene.liveness_from(&[STRANGER.as_slice(), seccomp.as_slice()].concat())
        },
    ),
    situation(Liveness::Alive, "hidden, and known by its pidfs inode", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        hidden(scene, "invisible")
    }),
    situation(Liveness::OurSelf, "it asks itself", &[], |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        let output = scene.lane_from(&[], &["probe", "7", "--pid", &holder.number.to_string()]);
        (field(&output.stdout, "liveness"), output)
    }),
    situation(Liveness::DeadReboot, "the boot id is another", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        over_boot_id(scene, "0f6b1c9e-ffff-4abc-8def-0123456789ab\n")
    }),
    situation(Liveness::DeadNoProcess, "killed and reaped", &[], |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        scene.liveness_from(&[])
    }),
    situation(Liveness::DeadNoProcess, "killed, and nobody waits for it", &[], |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.kill();
        until("the zombie", || {
            proc::stat(holder.number).filter(|stat| stat.0 == 'Z').ok_or("none")
        });
        scene.liveness_from(&[])
    }),
    situation(Liveness::DeadNoProcess, "killed, asked for from a hidden table", ROOT, |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        hidden(scene, "invisible")
    }),
    situation(Liveness::DeadPidReused, "its number was given to another", ROOT, |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        let _other = Actor::in_situation(&["reuse", &holder.number.to_string()]);
        scene.liveness_from(&[])
    }),
    situation(Liveness::DeadPidReused, "its number is a kernel thread's now", ROOT, |scene| {
        let holder = Actor::sleeping();
        let mut lines = scene.lines_about(holder.number);
        lines[2] = "pid=2\n".to_owned();
        scene.recorded(&lines);
        scene.liveness_from(&[])
    }),
    situation(Liveness::UnknownUnreadable, "a key stands in the record twice", &[], |scene| {
        let holder = Actor::sleeping();
        let mut lines = scene.lines_about(holder.number);
        lines.push("pid=1\n".to_owned());
        scene.recorded(&lines);
        scene.liveness_from(&[])
    }),
    situation(Liveness::UnknownForeign, "taken under another machine's name", &[], |scene| {
        let mut holder = Actor::sleeping();
        let pid = holder.number.to_string();
        let taken =
            scene.lane_from(&["env", "LANE_LOCK_MACHINE=box-b"], &["acquire", "7", "--pid", &pid]);
        assert_eq!(taken.code, 0, "{taken:?}");
        holder.end();
        scene.liveness_from(&[])
    }),
    situation(Liveness::UnknownNoProc, "no process table", ROOT, |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        mounted(scene, "mount -t tmpfs none /proc", &[])
    }),
    situation(Liveness::UnknownNoProc, "a container without boot id", ROOT, |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        over_boot_id(scene, "")
    }),
    situation(Liveness::UnknownNoBootId, "the record has no boot id", &[], |scene| {
        without(scene, 3)
    }),
    situation(
        Liveness::UnknownEphemeral,
        "the record says that it was not to last",
        &[],
        |scene| {
            let mut holder = Actor::sleeping();
            let mut lines = scene.lines_about(holder.number);
            lines.push("pid-scope=ephemeral\n".to_owned());
            scene.recorded(&lines);
            holder.end();
            scene.liveness_from(&[])
        },
    ),
    situation(Liveness::UnknownNoPid, "the record has no pid", &[], |scene| without(scene, 2)),
    situation(Liveness::UnknownNoStartTicks, "the record has no ticks", &[], |scene| {
        without(scene, 4)
    }),
    situation(Liveness::UnknownState, "its entry may not be read", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.recorded(&scene.lines_about(holder.number));
        hidden(scene, "noaccess")
    }),
    situation(Liveness::UnknownProbe, "the kernel is out of descriptors", &[], |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        let program = situation_program().display().to_string();
        scene.liveness_from(&[&program, "errno-pidfd", "24"])
    }),
    situation(Liveness::UnknownIdentity, "its number is a thread's", &[], |scene| {
        let holder = Actor::in_situation(&["thread"]);
        scene.recorded(&scene.lines_about(holder.number));
        scene.liveness_from(&[])
    }),
    situation(Liveness::UnknownHidden, "its entry is not shown to us", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.recorded(&scene.lines_about(holder.number));
        hidden(scene, "invisible")
    }),
    situation(Liveness::UnknownNamespace, "asked from another pid namespace", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        scene.liveness_from(&["unshare", "--pid", "--fork", "--mount-proc"])
    }),
    situation(Liveness::UnknownNamespace, "with the process table of another", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.held_by(holder.number);
        scene.liveness_from(&["unshare", "--pid", "--fork"])
    }),
    situation(Liveness::UnknownNamespace, "asked from another time namespace", ROOT, |scene| {
        let holder = Actor::sleeping();
        scene.recorded(&scene.lines_about(holder.number));
        scene.liveness_from(&["unshare", "--time", "--fork", "--boottime", "1000000"])
    }),
    situation(Liveness::UnknownClock, "this boot's clock was further once", &[], |scene| {
        let mut holder = Actor::sleeping();
        scene.held_by(holder.number);
        holder.end();
        let store = rusqlite::Connection::open(scene.path().join(".lane-locks/locks.db")).unwrap();
        // A snapshot that was resumed finds this on a disk that went on.
        store.execute("UPDATE lane_clock SET boottime_ms = boottime_ms + 3600000", []).unwrap();
        scene.liveness_from(&[])
    }),
];

/// Asks with something mounted, in a mount namespace of its own.
fn mounted(scene: &Scene, mount: &str, vantage: &[&str]) -> Seen {
    let line = format!("{mount} && exec \"$@\"");
    let words = ["unshare", "--mount", "sh", "-c", &line, "sh"];
    scene.liveness_from(&[words.as_slice(), vantage].concat())
}

/// Asks as another user with a process table that hides what is not theirs (proc(5), `hidepid`).
fn hidden(scene: &Scene, how: &str) -> Seen {
    mounted(scene, &format!("mount -t proc -o hidepid={how} proc /proc"), &STRANGER)
}

fn over_boot_id(scene: &Scene, text: &str) -> Seen {
    let file = file(scene, "boot-id", text);
    let mount = format!("mount --bind {} /proc/sys/kernel/random/boot_id", file.display());
    mounted(scene, &mount, &[])
}

/// Asks about a record of a dead process without one of its lines.
fn without(scene: &Scene, line: usize) -> Seen {
    let mut holder = Actor::sleeping();
    let mut lines = scene.lines_about(holder.number);
    lines.remove(line);
    scene.recorded(&lines);
    holder.end();
    scene.liveness_from(&[])
}

#[test]
fn every_verdict_is_given_in_its_situation() {
    let mut wrong = Vec::new();
    for situation in SITUATIONS {
        if !has(situation.needs) {
            continue;
        }
        let (seen, output) = (situation.see)(&Scene::default());
        if seen != situation.verdict.as_str() {
            wrong.push(format!("{} in {:?}: {output:?}", situation.verdict, situation.name));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_verdict_is_without_a_situation() {
    let with: Vec<Liveness> = SITUATIONS.iter().map(|one| one.verdict).chain(ELSEWHERE).collect();
    let without: Vec<_> = Liveness::ALL.iter().filter(|one| !with.contains(one)).collect();
    assert!(without.is_empty(), "{without:?}");
}

#[test]
fn a_lane_between_two_workers_has_none() {
    let mut home = Home::new("no-worker");
    home.lane("a", &["marker", "no-work"]);
    let _warden = home.start();
    home.until_state("a", "cooling");
    let dir = home.plan.lanes[0].dir.display().to_string();
    let probe = home.run(&["lane", "probe", "7", "--dir", &dir]);
    assert_eq!(field(&probe.stdout, "liveness"), "NO-WORKER", "{probe:?}");
    assert_eq!(field(&probe.stdout, "reclaimable"), "no", "{probe:?}");
}

/// Start ticks are 10 ms wide: a process that follows another within one has all five parts in common with it.
#[test]
fn a_number_that_is_used_again_within_a_tick_is_told_apart() {
    if !has(&[Need::Root]) {
        return;
    }
    let mut command = command::command(&situation_program());
    command.args(["reuse-rounds", "200"]);
    let output = command::run(command);
    let said = output.stdout.trim();
    lanewarden_tests::note(&format!("200 reuses: {said}"));
    if said.contains(" no-pidfs ") {
        lanewarden_tests::note(
            "*** NOT TESTED: reuse within a tick: no pidfs before Linux 6.9 ***",
        );
        return;
    }
    assert!(said.ends_with("{\"DEAD-PID-REUSED\": 200}"), "{output:?}");
}

/// Whatever runs out at whatever moment, a living process is never called dead.
#[test]
fn nobody_dies_of_our_being_out_of_descriptors() {
    let scene = Scene::default();
    let holder = Actor::sleeping();
    scene.held_by(holder.number);
    let mut seen = Vec::new();
    for limit in 3..=24 {
        let limit = format!("--nofile={limit}");
        let output = scene.lane_from(&["prlimit", &limit], &["probe", "7"]);
        let verdict = field(&output.stdout, "liveness");
        assert!(!verdict.starts_with("DEAD"), "{limit}: {output:?}");
        seen.push(verdict);
    }
    assert!(seen.iter().any(|verdict| verdict == "ALIVE"), "{seen:?}");
    assert!(seen.iter().any(|verdict| verdict != "ALIVE"), "no limit was too low: {seen:?}");
}

#[test]
fn an_identity_names_process_boot_and_evidence() {
    let holder = Actor::sleeping();
    let pid = holder.number.to_string();
    let mut command = command::command(&lanewarden_tests::program());
    command.args(["identity", &pid, "--json"]);
    let output = command::run(command);
    let json = output.json();
    assert_eq!(json["boot_id"], boot_id().as_str());
    assert_eq!(json["start_ticks"], proc::stat(holder.number).unwrap().1);
    let token = json["token"].as_str().unwrap();
    let short: String = boot_id().chars().take(8).collect();
    assert!(token.contains(&format!(":{pid}:{short}:")), "{token}");
    assert!(json["evidence"].as_array().is_some_and(|facts| facts.len() >= 4), "{json}");
}
