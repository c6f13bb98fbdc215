//! Open pull requests by the configuration, from the commands that ask.

use std::{fs, os::unix::fs::PermissionsExt};

use super::{Said, Sleeper, World, ago};
use crate::forge_support::{Server, answer, pulls};

const TOKEN: &str = "ghp_s3cretS3cret";

/// Writes a configuration with this table and runs a command under it.
struct Here<'a> {
    world: &'a World,
    config: String,
}

impl<'a> Here<'a> {
    fn new(world: &'a World, forge: &str) -> Self {
        let dir = world.dir.path();
        let token = dir.join("token");
        fs::write(&token, TOKEN).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let config = dir.join("config.toml");
        let text = format!(
            "machine = \"box-a\"\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}/run\"\n[remote]\nurl = \"{1}\"\n[metrics]\nlisten = \"off\"\n[forge]\n{forge}\n",
            dir.display(),
            world.url
        );
        fs::write(&config, text).unwrap();
        Self { world, config: config.to_str().unwrap().to_owned() }
    }

    fn github(world: &'a World, server: &Server) -> Self {
        let api = &server.url;
        Self::new(
            world,
            &format!(
                "kind = \"github\"\napi = \"{api}\"\nrepo = \"o/n\"\ntoken_file = \"token\"\ndeadline = \"5s\""
            ),
        )
    }

    fn run(&self, args: &[&str]) -> Said {
        let said = self.world.run_with("box-a", args, &[("LANEWARDEN_CONFIG", &self.config)]);
        assert!(!said.out.contains(TOKEN) && !said.err.contains(TOKEN), "{said:?}");
        said
    }
}

#[test]
fn cl_05_11_13_release_asks_for_exactly_this_issue() {
    let world = World::new();
    let heads = ["issue-266", "issue-99", "issue-12-x", "main"];
    let server = Server::start(move |_, _| answer("200 OK", &[], &pulls(&heads)));
    let here = Here::github(&world, &server);
    for (issue, code, part) in
        [("11", 0, "(cas)"), ("12", 2, "reason=open-pr"), ("99", 2, "reason=open-pr")]
    {
        here.run(&["issue", "claim", issue]).is(0, &["HELD"]);
        here.run(&["issue", "release", issue]).is(code, &[part]);
        let stays = world.at(&format!("refs/claims/issue-{issue}")).is_some();
        assert_eq!(stays, code == 2);
    }
    here.run(&["issue", "release", "12", "--force"]).is(0, &["(force)"]);
    assert_eq!(server.asked().len(), 3, "forced without a question");
}

#[test]
fn cl_08_a_forge_that_fails_refuses_the_release_and_says_why() {
    let world = World::new();
    let server = Server::start(|_, _| answer("500 Oops", &[], ""));
    let here = Here::github(&world, &server);
    here.run(&["issue", "claim", "7"]).is(0, &[]);
    let said = here.run(&["issue", "release", "7"]);
    said.is(2, &["reason=open-pr-check-unavailable"]);
    assert!(said.err.contains("(server)"), "{said:?}");
    assert!(world.at("refs/claims/issue-7").is_some());
    here.run(&["claims", "beat", "7"]).is(0, &[]);
    here.run(&["claims", "clear", "box-a"]).is(3, &[]);
}

#[test]
fn a_sweep_asks_the_forge_once_and_removes_nothing_when_it_fails() {
    let world = World::new();
    let issues: Vec<String> = (1..=40).map(|issue| issue.to_string()).collect();
    for issue in &issues {
        let name = format!("refs/lane-claims/box-b/{issue}");
        world.plant(&name, &format!("claim issue={issue} pid=1 ts={}", ago(20_000)));
    }
    let down = Server::start(|_, _| answer("403 Forbidden", &["Retry-After: 60"], ""));
    let said = Here::github(&world, &down).run(&["claims", "reap", "--sweep"]);
    said.is(1, &["keep-open-pr-unknown"]);
    assert!(said.err.contains("(rate-limited)"), "{said:?}");
    assert_eq!((down.asked().len(), world.refs().len()), (1, 40));
    let up = Server::start(|_, _| answer("200 OK", &[], &pulls(&["issue-40-rest"])));
    let said = Here::github(&world, &up).run(&["claims", "reap", "--sweep", "--json"]);
    said.is(0, &["\"removed\": 39", "\"open_pr\": \"yes\"", "\"open_pr_age_s\": 0"]);
    assert_eq!((up.asked().len(), world.refs()), (1, vec!["refs/lane-claims/box-b/40".to_owned()]));
}

#[test]
fn an_own_command_is_run_without_a_shell() {
    let world = World::new();
    world.plant("refs/heartbeats/box-b", &format!("heartbeat issue=7 ts={}", ago(20_000)));
    let marker = world.dir.path().join("marker");
    let command = format!("open_pr_command = [\"touch\", \"{};x\"]", marker.display());
    // `touch FILE 7` ends with 0, which is yes.
    Here::new(&world, &command).run(&["claims", "reap", "--sweep"]).is(0, &["keep-open-pr"]);
    assert!(!marker.exists() && world.dir.path().join("marker;x").exists());
    Here::new(&world, "open_pr_command = [\"false\"]")
        .run(&["claims", "reap", "--sweep"])
        .is(0, &["removed"]);
}

#[test]
fn hb_25_32_37_dead_lanes_report_pull_requests_in_three_words() {
    let world = World::new();
    let mut dead = Sleeper::start(world.dir.path());
    let pid = dead.pid();
    dead.end();
    let lane = "refs/lane-claims/box-a/900";
    world.plant(lane, &format!("claim issue=900 machine=box-a pid={pid} ts={}", ago(30)));
    let server = Server::start(|_, _| answer("200 OK", &[], &pulls(&["issue-900-x"])));
    let here = Here::github(&world, &server);
    here.run(&["dead-lanes"]).is(3, &["DEAD-NO-PROCESS", "open-pr=yes", "do not reap"]);
    here.run(&["dead-lanes", "--json"]).is(3, &["\"open_pr\": true"]);
    here.run(&["claims", "reap", "box-a", "900"]).is(3, &[]);
    let failing = Here::new(&world, "open_pr_command = [\"sh\", \"-c\", \"exit 7\"]");
    failing.run(&["dead-lanes"]).is(3, &["open-pr=unknown"]);
    failing.run(&["dead-lanes", "--json"]).is(3, &["\"open_pr\": null"]);
    Here::new(&world, "open_pr_command = [\"false\"]")
        .run(&["dead-lanes", "--json"])
        .is(3, &["\"open_pr\": false", "open-pr=no"]);
    // An issue 0 names none, and nobody is asked about it.
    world.remote.find_reference(lane).unwrap().delete().unwrap();
    let legacy = "refs/machine-claims/box-a";
    let marker = world.dir.path().join("asked");
    let command = format!("open_pr_command = [\"touch\", \"{}\"]", marker.display());
    let here = Here::new(&world, &command);
    for (issue, asked) in [("0", false), ("7", true)] {
        world.plant(legacy, &format!("claim issue={issue} machine=box-a pid={pid} ts={}", ago(30)));
        here.run(&["dead-lanes"]).is(3, &["DEAD-NO-PROCESS", "open-pr="]);
        assert_eq!(marker.exists(), asked, "issue {issue}");
    }
}
