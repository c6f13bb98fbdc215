//! The demo: a newcomer's first command.

use std::fs;

use lanewarden_tests::{
    Home,
    command::{background, command, run},
    proc, program,
    requires::{Need, has},
    until,
};

#[test]
fn the_demo_shows_its_verdicts_and_leaves_nothing() {
    let home = Home::new("demo");
    let place = home.path("tmp");
    fs::create_dir(&place).unwrap();
    let mut demo = command(&program());
    demo.arg("demo").env("TMPDIR", &place).env_remove("LANEWARDEN_CONFIG");
    let shown = run(demo);
    assert_eq!(shown.code, 0, "{shown:?}");
    let text = &shown.stdout;
    assert!(!text.contains('\u{1b}'), "{text}");
    for word in [
        "finalized",
        "no-work",
        "failed",
        "deadline",
        "tripped",
        "observed, pid",
        "signalled",
        "page:",
        "refs/lane-claims/demo/",
    ] {
        assert!(text.contains(word), "no {word:?} in\n{text}");
    }
    assert!(text.contains("/metrics"), "{text}");
    if has(&[Need::MemoryCgroup, Need::Kmsg]) {
        assert!(text.contains("oom-killed (oom-memcg)"), "{text}");
    } else {
        assert!(text.contains("No OOM kill was shown"), "{text}");
    }
    let left: Vec<_> = fs::read_dir(&place).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    until("no process of the demo", || {
        let left = proc::with_environment("TMPDIR", &place);
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() {
    let home = Home::new("interrupt");
    let place = home.path("tmp");
    fs::create_dir(&place).unwrap();
    let mut demo = command(&program());
    demo.arg("demo").env("TMPDIR", &place).env_remove("LANEWARDEN_CONFIG");
    let demo = background(demo, &home.path("out"));
    until("the demo to be under way", || {
        let text = demo.text();
        if text.contains("running, pid") { Ok(()) } else { Err(text) }
    });
    demo.interrupt();
    until("nothing of the demo", || {
        let left: Vec<_> = fs::read_dir(&place).unwrap().flatten().collect();
        let processes = proc::with_environment("TMPDIR", &place);
        if left.is_empty() && processes.is_empty() { Ok(()) } else { Err((left, processes)) }
    });
}
