//! Real directories, programs, files and ports.

use std::os::unix::fs::symlink;

use super::*;

/// What is found, as `level subject` lines, for a configuration below a fresh directory that `@` stands for.
fn found(text: &str, prepare: impl FnOnce(&Path)) -> Vec<(Level, String, String)> {
    let home = tempfile::tempdir().unwrap();
    prepare(home.path());
    let text = format!(
        "state_dir = \"@/state\"\nruntime_dir = \"@/run\"\nmetrics.listen = \"off\"\n{text}"
    );
    let text = text.replace('@', home.path().to_str().unwrap());
    let env = Env::of([("PATH", "/usr/bin:/bin")]);
    let config = Config::parse(&text, &home.path().join("config.toml"), &env).unwrap();
    check_environment_in(&config, &env)
        .into_iter()
        .map(|finding| {
            assert_eq!(finding.level == Level::Ok, finding.remedy.is_empty(), "{finding:?}");
            (finding.level, finding.subject, finding.detail)
        })
        .collect()
}

fn level(found: &[(Level, String, String)], subject: &str) -> Level {
    found
        .iter()
        .filter(|(_, name, _)| name == subject)
        .map(|(level, _, _)| *level)
        .max()
        .unwrap_or_else(|| panic!("nothing about {subject} in {found:#?}"))
}

const LANE: &str = "[[lane]]\nid = \"a\"\ndir = \"@/a\"\ncommand = [\"sh\"]\n";

#[test]
fn a_checkout_and_a_known_program_are_well() {
    let found = found(LANE, |home| {
        git2::Repository::init(home.join("a")).unwrap();
    });
    assert!(found.iter().all(|(level, _, _)| *level == Level::Ok), "{found:#?}");
}

#[test]
fn a_directory_that_is_missing_or_a_file_fails_and_one_without_git_warns() {
    let subject = "lane a: directory";
    assert_eq!(level(&found(LANE, |_| {}), subject), Level::Failure);
    let file = found(LANE, |home| fs::write(home.join("a"), "").unwrap());
    assert_eq!(level(&file, subject), Level::Failure);
    let plain = found(LANE, |home| fs::create_dir(home.join("a")).unwrap());
    assert_eq!(level(&plain, subject), Level::Warning);
    let broken = found(LANE, |home| {
        git2::Repository::init(home.join("a")).unwrap();
        fs::write(
            home.join("a/.git/config"),
            "[core]\nrepositoryformatversion = 1\n[extensions]\nrefstorage = reftable\n",
        )
        .unwrap();
    });
    assert_eq!(level(&broken, subject), Level::Warning, "{broken:#?}");
}

#[test]
fn two_lanes_that_meet_through_a_symlink_fail() {
    let text = format!("{LANE}{}", LANE.replace("\"a\"", "\"b\"").replace("@/a", "@/b"));
    let found = found(&text, |home| {
        git2::Repository::init(home.join("a")).unwrap();
        symlink("a", home.join("b")).unwrap();
    });
    assert_eq!(level(&found, "lane b: directory"), Level::Failure);
    assert_eq!(level(&found, "lane a: directory"), Level::Ok);
}

#[test]
fn a_program_is_looked_for_where_the_worker_would() {
    let subject = "lane a: program";
    let prepare = |home: &Path| {
        fs::create_dir_all(home.join("a/bin")).unwrap();
        fs::write(home.join("a/bin/agent"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(home.join("a/bin/agent"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(home.join("a/bin/plain"), "").unwrap();
    };
    for (command, env, expected) in [
        ("agent", "", Level::Failure),
        ("agent", "env = { PATH = \"@/a/bin\" }\n", Level::Ok),
        ("plain", "env = { PATH = \"@/a/bin\" }\n", Level::Failure),
        ("bin/agent", "", Level::Ok),
        ("@/a/bin/agent", "", Level::Ok),
    ] {
        let text = LANE.replace("\"sh\"", &format!("{command:?}")) + env;
        assert_eq!(level(&found(&text, prepare), subject), expected, "{command}");
    }
}

#[test]
fn a_token_must_be_there_and_for_the_owner_only() {
    let text = "[ntfy]\nserver = \"http://x\"\ntopic = \"t\"\ntoken_file = \"tok\"\n";
    let with = |content: &'static str, mode: u32| {
        found(text, move |home| {
            fs::write(home.join("tok"), content).unwrap();
            fs::set_permissions(home.join("tok"), fs::Permissions::from_mode(mode)).unwrap();
        })
    };
    assert_eq!(level(&with("x", 0o600), "ntfy.token_file"), Level::Ok);
    assert_eq!(level(&with("x", 0o644), "ntfy.token_file"), Level::Warning);
    assert_eq!(level(&with("", 0o600), "ntfy.token_file"), Level::Failure);
    assert_eq!(level(&found(text, |_| {}), "ntfy.token_file"), Level::Failure);
    let fifo = found(text, |home| {
        rustix::fs::mknodat(
            CWD,
            home.join("tok"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from(0o600),
            0,
        )
        .unwrap();
    });
    assert_eq!(level(&fifo, "ntfy.token_file"), Level::Failure);
}

#[test]
fn the_remote_needs_git_and_its_directory() {
    let text = "[remote]\nurl = \"@/remote.git\"\n";
    assert_eq!(level(&found(text, |_| {}), "remote.url"), Level::Warning);
    let there = found(text, |home| fs::create_dir(home.join("remote.git")).unwrap());
    assert_eq!(level(&there, "remote.url"), Level::Ok);
    assert_eq!(level(&there, "remote"), Level::Ok);
}

#[test]
fn a_file_in_the_way_of_a_directory_and_a_long_socket_path_fail() {
    let state = found("", |home| fs::write(home.join("state"), "").unwrap());
    assert_eq!(level(&state, "state_dir"), Level::Failure);
    assert_eq!(level(&state, "runtime_dir"), Level::Ok);
    assert_eq!(level(&state, "lane_root"), Level::Failure);
    let text = format!("state_dir = \"/tmp\"\nruntime_dir = \"/tmp/{}\"", "x".repeat(80));
    let env = Env::of([("HOME", "/")]);
    let config = Config::parse(&text, Path::new("c"), &env).unwrap();
    let long = check_environment_in(&config, &env);
    assert!(
        long.iter().any(|f| f.subject == "runtime_dir" && f.level == Level::Failure),
        "{long:#?}"
    );
}

#[test]
fn a_taken_port_warns() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(bindable(taken.local_addr().unwrap()).level, Level::Warning);
    assert_eq!(bindable("127.0.0.1:0".parse().unwrap()).level, Level::Ok);
    // TEST-NET-1 (RFC 5737) is no address of this host.
    assert_eq!(bindable("192.0.2.1:0".parse().unwrap()).level, Level::Failure);
}
