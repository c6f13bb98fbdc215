//! The command line: help, exit codes, and what is printed for people and for programs.

use std::collections::BTreeSet;

use lanewarden_tests::{Home, command::run_shell, proc, program, until};
use rustix::process::Signal;
use serde_json::Value;

/// The subcommands that a help text lists.
fn listed(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    lines
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .filter(|word| word != "help")
        .collect()
}

#[test]
fn every_subcommand_has_a_help_that_exits_0() {
    let home = Home::new("help");
    let top = home.run(&["--help"]);
    assert_eq!(top.code, 0);
    let commands = listed(&top.stdout);
    assert!(commands.len() >= 19, "{commands:?}");
    for command in commands {
        let help = home.run(&[&command, "--help"]);
        assert_eq!((help.code, help.stderr.as_str()), (0, ""), "{command}");
        assert!(help.stdout.contains("Usage:"), "{command}: {}", help.stdout);
        for below in listed(&help.stdout) {
            assert_eq!(home.run(&[&command, &below, "--help"]).code, 0, "{command} {below}");
        }
    }
    assert_eq!(home.run(&["--version"]).code, 0);
}

#[test]
fn usage_errors_exit_64() {
    let home = Home::new("usage");
    for args in [
        &[][..],
        &["no-such-command"],
        &["--no-such-option"],
        &["stop"],
        &["stop", "Not A Lane"],
        &["lane", "issue", "0", "--lane", "a"],
        &["completions", "tcsh"],
        &["demo", "--seconds", "soon"],
        &["notify", "gate"],
    ] {
        let refused = home.run(args);
        assert_eq!(refused.code, 64, "{args:?}: {refused:?}");
        assert!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_daemon_orders_say_so() {
    let mut home = Home::new("nodaemon");
    home.lane("a", &["sleep"]);
    home.configure();
    for args in [&["status"][..], &["stop", "a"], &["start", "a"], &["restart", "a"], &["drain"]] {
        let refused = home.run(args);
        assert_eq!(refused.code, 1, "{args:?}: {refused:?}");
        assert!(refused.stderr.contains("is `lanewarden run` running"), "{refused:?}");
    }
}

fn keys(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn assert_keys(value: &Value, wanted: &[&str]) {
    for key in wanted {
        assert!(keys(value).contains(key), "no {key} in {value}");
    }
}

#[test]
fn json_has_the_keys_of_the_contract() {
    let mut home = Home::new("json");
    home.plan.remote =
        Some(lanewarden_tests::git::Bare::make(home.path("r.git")).path.display().to_string());
    home.lane("a", &["sleep"]);
    home.lane_with("b", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    let worker = home.until_running("a");
    home.until_state("b", "tripped");
    home.until_lane("a", "its claim", |lane| lane["claim"].is_object());
    let status = home.run(&["status", "--json"]).json();
    assert_keys(&status, &["machine", "version", "ready", "lanes", "spool"]);
    assert_keys(&status["spool"], &["pending"]);
    let lane =
        ["id", "dir", "mode", "state", "reason", "pid", "token", "run", "issue", "last", "claim"];
    assert_keys(&status["lanes"][0], &lane);
    assert_keys(&status["lanes"][0]["claim"], &["ref", "oid", "age_s"]);
    assert_keys(
        &status["lanes"][1]["last"],
        &["verdict", "exit_code", "signal", "end", "duration_s"],
    );

    let run = &home.history("b")[0];
    let wanted = [
        "run",
        "lane",
        "issue",
        "verdict",
        "verified",
        "exit_code",
        "signal",
        "end",
        "started_at",
        "ended_at",
        "duration_s",
        "peak_memory_bytes",
        "evidence",
    ];
    assert_keys(run, &wanted);

    let identity = home.run(&["identity", &worker.to_string(), "--json"]).json();
    assert_keys(
        &identity,
        &["token", "machine", "actor", "pid", "boot_id", "start_ticks", "evidence"],
    );
    assert_eq!(identity["start_ticks"], proc::stat(worker).unwrap().1);
    let token = status["lanes"][0]["token"].as_str().unwrap();
    let end = |token: &str| token.splitn(3, ':').nth(2).unwrap().to_owned();
    assert_eq!(end(token), end(identity["token"].as_str().unwrap()));
    assert!(token.starts_with(&format!("{}:flow-a:{worker}:", home.plan.machine)), "{token}");
    home.end();
}

#[test]
fn nothing_but_text_goes_into_a_pipe() {
    let mut home = Home::new("pipe");
    home.lane("a", &["sleep"]);
    home.lane_with("b", &["marker", "garbage"], "restart = { breaker = 1 }");
    let warden = home.start();
    let worker = home.until_running("a");
    home.until_state("b", "tripped");
    let commands = [
        &["status"][..],
        &["history"],
        &["check"],
        &["dead-lanes", "--certify"],
        &["metrics"],
        &["identity"],
        &["stop", "c"],
        &["--help"],
        &["no-such"],
    ];
    for command in commands {
        let output = home.run(command);
        let all = format!("{}{}", output.stdout, output.stderr);
        assert!(!all.is_empty() && !all.contains('\u{1b}'), "{command:?}: {all:?}");
    }
    warden.kill9();
    proc::signal(worker, Signal::KILL);
    proc::until_gone(worker);
    let report = home.run(&["dead-lanes"]);
    assert!(report.code == 3 && !report.stdout.contains('\u{1b}'), "{report:?}");
    assert!(!home.log().contains('\u{1b}'));
}

#[test]
fn a_terminal_gets_colours_unless_no_color_is_set() {
    let mut home = Home::new("colour");
    home.lane_with("a", &["exit", "1"], "restart = { breaker = 1 }");
    home.start();
    home.until_state("a", "tripped");
    let on_terminal = |environment: &str| {
        let command = format!("{} --config {} status", program().display(), home.at("config.toml"));
        let shown =
            run_shell(&format!("TERM=xterm {environment} script -qec '{command}' /dev/null"));
        assert!(shown.stdout.contains("tripped"), "{shown:?}");
        shown.stdout.contains('\u{1b}')
    };
    assert!(on_terminal(""));
    assert!(!on_terminal("NO_COLOR=1"));
    home.end();
}

#[test]
fn completions_and_manual_are_well_formed() {
    let home = Home::new("man");
    let bash = home.run(&["completions", "bash"]);
    assert_eq!(bash.code, 0);
    std::fs::write(home.path("lanewarden.bash"), &bash.stdout).unwrap();
    let checked = run_shell(&format!("bash -n {}", home.at("lanewarden.bash")));
    assert_eq!((checked.code, checked.stderr.as_str()), (0, ""));
    for shell in ["zsh", "fish", "elvish", "powershell"] {
        let text = home.run(&["completions", shell]);
        assert!(text.code == 0 && text.stdout.contains("dead-lanes"), "{shell}");
    }
    let man = home.run(&["man"]);
    assert_eq!(man.code, 0);
    assert!(man.stdout.contains(".TH ") && man.stdout.contains("dead\\-lanes"), "{}", man.stdout);
    let page = home.run(&["man", "dead-lanes"]).stdout;
    for part in
        [".TH lanewarden-dead-lanes 1", "DEAD LANES FROM CRON", "*/5 * * * *", "\\-\\-certify"]
    {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert_eq!(home.run(&["man", "no-such"]).code, 64);
}

#[test]
fn oom_reads_a_log_and_says_what_it_found() {
    let home = Home::new("oom");
    let log = "[1.0] a quiet line\n\
        [2.0] Memory cgroup out of memory: Killed process 4242 (agent) total-vm:900kB, anon-rss:800kB, \
        file-rss:4kB, shmem-rss:0kB, UID:0 pgtables:100kB oom_score_adj:400\n";
    std::fs::write(home.path("log"), log).unwrap();
    let found = home.run(&["oom", "--file", &home.at("log"), "--json"]);
    assert_eq!(found.code, 3, "{found:?}");
    let json = found.json();
    assert_keys(&json, &["kills", "lost_records", "complete"]);
    let wanted = [
        "pid",
        "comm",
        "uid",
        "constraint",
        "memcg",
        "task_memcg",
        "total_vm_kb",
        "anon_rss_kb",
        "file_rss_kb",
        "shmem_rss_kb",
        "oom_score_adj",
        "kind",
        "lane",
    ];
    assert_keys(&json["kills"][0], &wanted);
    assert_eq!(
        (&json["kills"][0]["pid"], &json["kills"][0]["comm"]),
        (&4242.into(), &"agent".into())
    );
    std::fs::write(home.path("log"), "[1.0] a quiet line\n").unwrap();
    let none = home.run(&["oom", "--file", &home.at("log")]);
    assert_eq!(none.code, 0, "{none:?}");
    let unread = home.run(&["oom", "--file", &home.at("no-such-log")]);
    assert_eq!(unread.code, 1, "{unread:?}");
}

#[test]
fn check_tells_what_is_wrong_as_json_too() {
    let mut home = Home::new("check");
    home.lane("a", &["sleep"]);
    home.configure();
    let good = home.run(&["check", "--json"]);
    assert_eq!((good.code, &good.json()["valid"]), (0, &Value::Bool(true)), "{good:?}");
    home.plan.lanes[0].command = vec!["no-such-program".to_owned()];
    home.configure();
    let bad = home.run(&["check", "--json"]);
    assert_eq!((bad.code, &bad.json()["valid"]), (78, &Value::Bool(false)), "{bad:?}");
    let effective = home.run(&["check", "--effective"]);
    assert!(effective.stdout.contains("breaker = 3"), "{effective:?}");
}

#[test]
fn the_configuration_is_found_where_the_contract_says() {
    let mut home = Home::new("find");
    home.lane("a", &["sleep"]);
    home.configure();
    let bare = |name: &str, value: String| {
        let mut command = lanewarden_tests::command::command(&program());
        command.arg("check").env_remove("LANEWARDEN_CONFIG").env("XDG_CONFIG_HOME", "/no/such");
        command.env(name, value);
        lanewarden_tests::command::run(command)
    };
    let named = bare("LANEWARDEN_CONFIG", home.at("config.toml"));
    assert_eq!(named.code, 0, "{named:?}");
    std::fs::create_dir(home.path("lanewarden")).unwrap();
    std::fs::copy(home.config(), home.path("lanewarden/config.toml")).unwrap();
    let xdg = bare("XDG_CONFIG_HOME", home.at(""));
    assert_eq!(xdg.code, 0, "{xdg:?}");
    assert_eq!(bare("HOME", home.at("")).code, 78);
}

#[test]
fn status_for_people_names_state_and_reason() {
    let mut home = Home::new("status");
    home.lane("a", &["sleep"]);
    home.lane_with("b", &["exit", "7"], "restart = { breaker = 1 }");
    home.start();
    home.until_running("a");
    home.until_state("b", "tripped");
    let status = until("a whole status", || {
        let status = home.run(&["status"]);
        if status.code == 0 { Ok(status.stdout) } else { Err(status) }
    });
    for word in ["ready", "running", "tripped", "failed (exit 7)", "lanewarden start b"] {
        assert!(status.contains(word), "no {word:?} in {status}");
    }
    let history = home.run(&["history", "b"]);
    assert!(history.stdout.contains("failed") && history.stdout.contains("exit 7"), "{history:?}");
    home.end();
}
