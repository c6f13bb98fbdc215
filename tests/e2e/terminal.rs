//! An agent that somebody starts by hand in a terminal, in an observed lane.

use lanewarden_tests::{
    Home,
    daemon::unix_ms,
    git::Bare,
    note,
    ntfy::Ntfy,
    proc,
    requires::{MemoryGroup, Need, has},
    tmux::Tmux,
    until, worker_program,
};
use rustix::process::Signal;

/// A box with one observed lane and a terminal in it, whose shell waits for its user.
fn scene(name: &str, ntfy: &Ntfy) -> (Home, Bare, Tmux) {
    let mut home = Home::new(name);
    let remote = Bare::make(home.path("remote.git"));
    home.plan.remote = Some(home.at("remote.git"));
    home.plan.ntfy = Some(ntfy.url());
    home.lane_with("o", &[], "mode = \"observe\"\n");
    let terminal = Tmux::open(&home.path(""), &home.plan.lanes[0].dir);
    (home, remote, terminal)
}

#[test]
fn an_agent_in_a_terminal_is_claimed_and_its_end_is_told() {
    if !has(&[Need::Tmux]) {
        return;
    }
    let ntfy = Ntfy::start();
    let (home, remote, terminal) = scene("terminal", &ntfy);
    let _warden = home.start();
    // The shell at its prompt is nobody's worker.
    let shell = terminal.shell().to_string();
    home.until_lane("o", "vacant, with a shell", |lane| {
        lane["state"] == "vacant" && lane["reason"].as_str().is_some_and(|why| why.contains(&shell))
    });

    let began = unix_ms();
    terminal.types(&format!(
        "{} pid-file {} sleep",
        worker_program().display(),
        home.at("agent.pid")
    ));
    let agent = home.until_pid("agent.pid");
    until("the agent's claim", || {
        let claim = remote.claim_of("o").ok_or("none")?;
        if claim.value("pid") == Some(&agent.to_string()) { Ok(()) } else { Err("another's") }
    });
    let claimed = unix_ms() - began;
    let report = home.run(&["dead-lanes", "--certify", "--json"]);
    assert_eq!(
        (report.code, &report.json()["lanes"][0]["verdict"]),
        (0, &"ALIVE".into()),
        "{report:?}"
    );

    let killed = unix_ms();
    proc::signal(agent, Signal::KILL);
    let lane = home.until_state("o", "vacant");
    let page = ntfy.page("o");
    assert_eq!(lane["last"]["signal"], 9, "{lane}");
    assert!(
        page.json().get("click").is_none_or(serde_json::Value::is_null),
        "nobody can follow port 0"
    );
    assert!(proc::exists(terminal.shell()), "the terminal goes on");
    note(&format!(
        "an agent in tmux: claim on the remote {claimed} ms after it was typed; vacant {} ms and page {} ms after its kill",
        lane["since_ms"].as_i64().unwrap() - killed,
        page.at_ms - killed,
    ));
    home.end();
}

#[test]
fn an_oom_kill_of_an_agent_in_a_terminal_is_named() {
    if !has(&[Need::Tmux, Need::Root, Need::MemoryCgroup, Need::Kmsg]) {
        return;
    }
    let ntfy = Ntfy::start();
    let (home, _remote, terminal) = scene("terminal-oom", &ntfy);
    let _warden = home.start();
    home.until_state("o", "vacant");
    let group = MemoryGroup::make("lanewarden-test-terminal", 32 << 20);
    terminal.types(&format!(
        "sh -c 'echo $$ > {}/cgroup.procs; exec {} pid-file {} wait-for {} eat 256'",
        group.path().display(),
        worker_program().display(),
        home.at("agent.pid"),
        home.at("go"),
    ));
    let agent = home.until_pid("agent.pid");
    assert_eq!(home.until_state("o", "observed")["pid"], agent);
    std::fs::write(home.path("go"), "").unwrap();
    terminal.until_shown("Killed");
    let lane = home.until_verdict("o", "oom-killed");
    assert_eq!(lane["last"]["end"], "oom-memcg", "{lane}");
    assert_eq!(home.until_state("o", "vacant")["pid"], serde_json::Value::Null);
    home.end();
}
