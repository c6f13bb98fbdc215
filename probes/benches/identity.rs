//! What it costs to say who a process is and whether it lives, beside the bare cost of reading `/proc/PID/stat`, and to
//! look for whoever works in a lane on a box with many processes. Prints; asserts nothing. `cargo bench -p
//! lanewarden-probes`; `N` in the environment is the number of processes.

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a benchmark: it starts processes, reads clocks and prints"
)]

use std::{
    hint::black_box,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use lanewarden_probes::{
    Root,
    identity::{occupants, parse_stat, pids, resolve},
    liveness::{Recorded, Sight, judge},
};

const ROUNDS: usize = 15;

/// Best and median of some rounds, microseconds for one of `n`.
fn measure(n: usize, mut pass: impl FnMut()) -> (f64, f64) {
    let mut took: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let began = Instant::now();
            pass();
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    let each = |took: &Duration| took.as_secs_f64() * 1e6 / n as f64;
    (took.first().map_or(0.0, each), took.get(ROUNDS / 2).map_or(0.0, each))
}

fn main() {
    let n = std::env::var("N").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let root = Root::live();
    let lane = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..n)
        .map(|_| {
            Command::new("sleep").arg("1000").current_dir("/").stdin(Stdio::null()).spawn().unwrap()
        })
        .collect();
    let numbers: Vec<u32> = children.iter().map(Child::id).collect();
    let identity = |pid| resolve(&root, pid, "box", "flow").unwrap().identity;
    let records: Vec<Recorded> = numbers.iter().map(|pid| Recorded::of(&identity(*pid))).collect();
    // As the shell tools and claims record: without the pidfs inode, so that the entry decides.
    let plain: Vec<Recorded> =
        records.iter().map(|one| Recorded { pidfs_ino: None, ..one.clone() }).collect();

    let raw = measure(n, || {
        for pid in &numbers {
            let bytes = std::fs::read(format!("/proc/{pid}/stat")).unwrap();
            black_box(parse_stat(&bytes).unwrap());
        }
    });
    println!("{n} processes, {ROUNDS} rounds; microseconds for one process, best and median");
    let show = |what: &str, (best, median): (f64, f64)| {
        let (over_best, over_median) = (best / raw.0, median / raw.1);
        println!("{what:42} {best:7.2} {median:7.2}   {over_best:5.2}x {over_median:5.2}x");
    };
    show("fs::read of /proc/PID/stat, and its parse", raw);
    let each = |records: &[Recorded]| {
        measure(n, || {
            let sight = Sight::new(&root);
            for record in records {
                black_box(sight.judge(record, "box"));
            }
        })
    };
    show("a verdict, one sight for all", each(&records));
    show("the same without pidfs inodes", each(&plain));
    show(
        "a verdict alone, its own sight",
        measure(n, || {
            for record in &records {
                black_box(judge(&root, record, "box"));
            }
        }),
    );
    show(
        "an identity with its evidence",
        measure(n, || {
            for pid in &numbers {
                black_box(identity(*pid));
            }
        }),
    );
    let on_box = pids(&root).unwrap().len();
    let (best, median) = measure(1, || {
        black_box(occupants(&root, lane.path()).unwrap());
    });
    println!(
        "a scan of {on_box} processes for those in a lane: {best:.0} us best, {median:.0} us median"
    );
    for mut child in children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
