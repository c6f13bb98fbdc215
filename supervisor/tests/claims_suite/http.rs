//! Smart HTTP through `git http-backend`, with and without credentials.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
};

use super::World;

/// Whom the server asks for a password.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Asks {
    Nobody,
    Everybody,
    Writers,
}

/// `Basic` of me:s3cret.
const PASSWORD: &str = "Authorization: Basic bWU6czNjcmV0";

/// Serves the world's remote; the thread ends with the test's process.
pub(super) fn serve(world: &mut World, asks: Asks) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let root = world.dir.path().to_owned();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let root = root.clone();
            thread::spawn(move || answer(stream, root, asks));
        }
    });
    world.url = format!("http://127.0.0.1:{port}/remote.git");
}

fn answer(mut stream: TcpStream, root: PathBuf, asks: Asks) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let header = |name: &str| {
        head.iter().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then(|| value.to_owned())
        })
    };
    let mut body = vec![0; header("content-length").and_then(|n| n.parse().ok()).unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let request: Vec<&str> = head.first()?.split(' ').collect();
    let (method, target) = (*request.first()?, *request.get(1)?);
    let writes = target.contains("receive-pack");
    let known = head.iter().any(|line| line == PASSWORD);
    let asked = asks == Asks::Everybody || asks == Asks::Writers && writes;
    if asked && !known {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"x\"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        return stream.write_all(refusal.as_bytes()).ok();
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut child = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("REMOTE_USER", "me")
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("CONTENT_TYPE", header("content-type").unwrap_or_default())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding").unwrap_or_default())
        .env("GIT_PROTOCOL", header("git-protocol").unwrap_or_default())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    child.stdin.take()?.write_all(&body).ok()?;
    let output = child.wait_with_output().ok()?.stdout;
    let status = String::from_utf8_lossy(&output)
        .lines()
        .find_map(|line| line.strip_prefix("Status: ").map(|status| status.trim().to_owned()))
        .unwrap_or_else(|| "200 OK".to_owned());
    let line = format!("HTTP/1.1 {status}\r\nConnection: close\r\n");
    stream.write_all(line.as_bytes()).and_then(|()| stream.write_all(&output)).ok()
}

/// Gives the machine credentials for every remote.
fn credentials(world: &World) {
    let helper = "[credential]\nhelper = \"!f() { echo username=me; echo password=s3cret; }; f\"\n";
    fs::write(world.dir.path().join(".gitconfig"), helper).unwrap();
}

#[test]
fn cl_20_a_server_that_asks_writers_for_a_password() {
    let mut world = World::new();
    serve(&mut world, Asks::Writers);
    world
        .issue("box-a", &["claim", "7"])
        .is(1, &["reason=auth issue=7 detail=claim-push-unauthenticated", "NOT retryable"]);
    world.issue("box-a", &["smoke"]).is(1, &["reason=auth"]);
    world.claims("box-a", &["stamp", "900", "1"]).is(1, &[]);
    world.claims("box-a", &["list"]).is(0, &["no claims found"]);
    assert!(world.refs().is_empty());
    credentials(&world);
    let sha = world.issue("box-a", &["claim", "7"]).value("sha");
    world.issue("box-b", &["claim", "7"]).is(2, &["LOST", &sha]);
    fs::remove_file(world.dir.path().join(".gitconfig")).unwrap();
    let adopt = ["adopt", "7", "--expect", &sha];
    world.issue("box-b", &adopt).is(1, &["detail=adopt-cas-push-unauthenticated"]);
    world
        .issue("box-b", &["release", "7", "--force"])
        .is(1, &["detail=release-force-delete-unauthenticated"]);
    assert_eq!(world.at("refs/claims/issue-7"), Some(sha));
}

#[test]
fn a_server_that_asks_everybody_for_a_password() {
    let mut world = World::new();
    serve(&mut world, Asks::Everybody);
    for args in [&["claim", "7"][..], &["verify", "7"], &["release", "7"], &["status"]] {
        world.issue("box-a", args).is(1, &["reason=auth", "detail=ls-remote-unauthenticated"]);
    }
    credentials(&world);
    world.issue("box-a", &["smoke"]).is(0, &["SMOKE-OK"]);
    world.issue("box-a", &["claim", "7"]).is(0, &["HELD"]);
    world.claims("box-a", &["stamp", "900", "1"]).is(0, &[]);
    world.claims("box-a", &["list"]).is(0, &["900"]);
    let hook = ("CLAIM_OPEN_PR_CMD", "exit 1");
    world.run_with("box-a", &["claims", "reap", "box-a", "900"], &[hook]).is(0, &[]);
    world.run_with("box-a", &["issue", "release", "7"], &[hook]).is(0, &["(cas)"]);
    assert!(world.refs().is_empty());
}

#[test]
fn a_password_in_a_plain_url_is_refused_and_not_shown() {
    let mut world = World::new();
    serve(&mut world, Asks::Writers);
    let url = world.url.replace("http://", "http://me:s3cret@");
    let said = world.run_with("box-a", &["issue", "claim", "7"], &[("CLAIM_REMOTE", &url)]);
    said.is(64, &[]);
    assert!(!said.err.contains("s3cret"), "{said:?}");
}
