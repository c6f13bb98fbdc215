//! A connection that breaks between a push that landed and its answer, and a server that is gone when the ref is read
//! again: a proxy in front of a real `git daemon`.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};

use super::{World, ago, races::Daemon};

const LOCK: &str = "refs/claims/issue-7";

/// What becomes of the answer to a push that the server has taken.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    /// It is kept back, and the connection closed.
    Answer,
    /// It is given, and from then on nobody answers.
    Server,
    /// Both.
    Both,
}

/// Between the world and its daemon.
struct Proxy {
    is_on: Arc<AtomicBool>,
    is_dead: Arc<AtomicBool>,
    pushes: Arc<AtomicUsize>,
    _daemon: Daemon,
}

impl Proxy {
    fn start(world: &mut World, cut: Cut) -> Self {
        let daemon = Daemon::serve(world);
        let behind = world.url.trim_start_matches("git://").split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        world.url = format!("git://127.0.0.1:{port}/remote.git");
        let is_on = Arc::new(AtomicBool::new(false));
        let is_dead = Arc::new(AtomicBool::new(false));
        let pushes = Arc::new(AtomicUsize::new(0));
        let one =
            Passage { is_on: is_on.clone(), is_dead: is_dead.clone(), pushes: pushes.clone(), cut };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (one, behind) = (one.clone(), behind.clone());
                thread::spawn(move || one.pass(stream, &behind));
            }
        });
        Self { is_on, is_dead, pushes, _daemon: daemon }
    }

    /// From now on, or not any more.
    fn cuts(&self, yes: bool) {
        self.is_on.store(yes, Ordering::SeqCst);
        self.is_dead.store(false, Ordering::SeqCst);
    }

    fn pushes(&self) -> usize {
        self.pushes.load(Ordering::SeqCst)
    }
}

#[derive(Clone)]
struct Passage {
    is_on: Arc<AtomicBool>,
    is_dead: Arc<AtomicBool>,
    pushes: Arc<AtomicUsize>,
    cut: Cut,
}

impl Passage {
    fn pass(&self, mut client: TcpStream, behind: &str) -> Option<()> {
        if self.is_dead.load(Ordering::SeqCst) {
            return None;
        }
        let mut server = TcpStream::connect(behind).ok()?;
        let request = packet(&mut client)?;
        server.write_all(&request).ok()?;
        let cuts = self.is_on.load(Ordering::SeqCst)
            && String::from_utf8_lossy(&request).contains("git-receive-pack");
        let (mut from, mut to) = (client.try_clone().ok()?, server.try_clone().ok()?);
        thread::spawn(move || {
            std::io::copy(&mut from, &mut to).ok();
            to.shutdown(Shutdown::Write).ok();
        });
        if !cuts {
            std::io::copy(&mut server, &mut client).ok();
            client.shutdown(Shutdown::Both).ok();
            return Some(());
        }
        // What refs there are, which ends with a flush; behind it comes the answer to the push.
        loop {
            let packet = packet(&mut server)?;
            client.write_all(&packet).ok()?;
            if packet == b"0000" {
                break;
            }
        }
        let mut answer = Vec::new();
        server.read_to_end(&mut answer).ok()?;
        if !answer.is_empty() {
            self.pushes.fetch_add(1, Ordering::SeqCst);
            self.is_dead.store(self.cut != Cut::Answer, Ordering::SeqCst);
        }
        if self.cut == Cut::Server {
            client.write_all(&answer).ok();
        }
        client.shutdown(Shutdown::Both).ok();
        Some(())
    }
}

/// One packet of git's protocol with its length (gitprotocol-common(5), "pkt-line").
fn packet(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut packet = vec![0; 4];
    stream.read_exact(&mut packet).ok()?;
    let length = usize::from_str_radix(std::str::from_utf8(&packet).ok()?, 16).ok()?;
    let mut rest = vec![0; length.saturating_sub(4)];
    stream.read_exact(&mut rest).ok()?;
    packet.extend(rest);
    Some(packet)
}

#[test]
fn a_push_whose_answer_is_lost_is_decided_by_reading_again() {
    let mut world = World::new();
    let proxy = Proxy::start(&mut world, Cut::Answer);
    proxy.cuts(true);
    let sha = world.issue("box-a", &["claim", "7"]).is(0, &["HELD"]).value("sha");
    assert_eq!((world.at(LOCK), proxy.pushes()), (Some(sha.clone()), 1));
    world.issue("box-b", &["claim", "7"]).is(2, &["LOST"]);
    let adopt = ["adopt", "7", "--expect", &sha, "--reason", "its box is gone"];
    let new = world.issue("box-b", &adopt).is(0, &["ADOPTED"]).value("sha");
    assert_eq!(world.at(LOCK), Some(new));
    let hook = [("CLAIM_OPEN_PR_CMD", "exit 1")];
    world.run_with("box-b", &["issue", "release", "7"], &hook).is(0, &["RELEASED"]);
    assert_eq!(world.at(LOCK), None);
    let made = world.claims("box-a", &["stamp", "900", "1"]);
    made.is(0, &[]);
    assert_eq!(world.at("refs/lane-claims/box-a/900").as_deref(), Some(made.out.trim()));
    world.claims("box-a", &["beat", "7"]).is(0, &[]);
    world.run_with("box-a", &["claims", "reap", "box-a", "900"], &hook).is(0, &[]);
    assert_eq!(world.refs(), ["refs/heartbeats/box-a"]);
    world.plant("refs/heartbeats/box-c", &format!("heartbeat issue=7 ts={}", ago(20_000)));
    world.run_with("box-a", &["claims", "reap", "--sweep"], &hook).is(0, &["removed"]);
    assert_eq!((world.refs(), proxy.pushes()), (vec!["refs/heartbeats/box-a".to_owned()], 7));
}

#[test]
fn cl_14_15_a_server_that_dies_between_push_and_reading_again_is_no_loss() {
    for (cut, claim, adopt) in [
        (Cut::Server, "push-succeeded-but-confirm-ls-remote-unreachable", "adopt-cas-and-confirm"),
        (Cut::Both, "push-failed-and-ls-remote-unreachable", "adopt-cas-and-confirm"),
    ] {
        let mut world = World::new();
        let proxy = Proxy::start(&mut world, cut);
        proxy.cuts(true);
        let said = world.issue("box-a", &["claim", "7"]);
        said.is(1, &["reason=infra", claim, "retry"]);
        let landed = world.at(LOCK).unwrap();
        // The server is back: the command that was told to try again resolves it, and nobody else gets in between.
        proxy.cuts(false);
        world.issue("box-b", &["claim", "7"]).is(2, &["LOST"]);
        world.issue("box-a", &["claim", "7"]).is(0, &["(re-entrant)", &landed]);
        proxy.cuts(true);
        let take = ["adopt", "7", "--expect", &landed, "--reason", "its box is gone"];
        world.issue("box-b", &take).is(1, &["reason=infra", adopt]);
        let landed = world.at(LOCK).unwrap();
        proxy.cuts(false);
        world.issue("box-b", &take).is(0, &["ADOPTED", &landed, "re-entrant"]);
        proxy.cuts(true);
        let hook = [("CLAIM_OPEN_PR_CMD", "exit 1")];
        let release = ["issue", "release", "7"];
        let said = world.run_with("box-b", &release, &hook);
        assert_eq!(said.code, i32::from(cut == Cut::Both), "{said:?}");
        assert_eq!(world.at(LOCK), None);
        proxy.cuts(false);
        world.run_with("box-b", &release, &hook).is(0, &["(already absent)"]);
        assert_eq!(proxy.pushes(), 3);
    }
}
