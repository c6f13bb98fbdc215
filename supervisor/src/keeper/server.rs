//! The keeper's one loop: peers, signals and time. Nothing here blocks, and nothing here is policy.

use std::{
    collections::BTreeMap,
    fs, io,
    io::Read,
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::sockopt::socket_peercred,
    process::{Pid, Resource, Rlimit, getrlimit, set_child_subreaper, setrlimit},
};
use signal_hook::{
    SigId,
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    low_level::{pipe, unregister},
};

use super::{
    KeeperError, KeeperOptions,
    cgroup::Parents,
    conn::{Conn, Parting},
    home::Home,
    protocol::{Answer, Ask, Ended, Notification, PROTOCOL, Reply, Request, decode},
    reap::harvest,
    runs::{ForgetOutcome, Runs, SignalOutcome},
    start::{Peer, start},
};

/// The most peers at a time: a warden, its successor, and people who look.
const MOST_PEERS: usize = 16;

/// Reaping and sweeping go on even if a wake-up was lost.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Runs a keeper until SIGTERM or SIGINT. Workers live on.
///
/// It makes this process a subreaper, sets its umask to 022, lowers its `oom_score_adj` if it may, and expects to be the
/// process's only thread.
///
/// # Errors
/// [`KeeperError`] if it cannot start. Once it serves, it goes on.
pub fn run(options: KeeperOptions) -> Result<(), KeeperError> {
    let home = Home::open(&options)?;
    let process = |what| move |source| KeeperError::Process { what, source };
    let mut signals = Signals::register().map_err(process("listen for signals"))?;
    set_child_subreaper(Some(Pid::INIT))
        .map_err(|error| process("become a subreaper")(error.into()))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    protect();
    let parents = Parents::prepare(options.cgroup_base.as_deref());
    for loss in &parents.degraded {
        tracing::warn!("{loss}");
    }

    let mut keeper =
        Keeper { options, parents, runs: Runs::default(), peers: BTreeMap::new(), next: 0 };
    while !signals.asked_to_end() {
        let ended = keeper.runs.turn(&harvest());
        keeper.tell(ended);
        keeper.wait(&home, &mut signals).map_err(process("wait for something to do"))?;
    }
    for peer in keeper.peers.values_mut() {
        // What does not fit now is asked for again by `list`, of nobody.
        if let Err(why) = peer.flush() {
            tracing::debug!(%why, "a peer left first");
        }
    }
    if !keeper.runs.any_living() {
        keeper.parents.remove();
    }
    home.close();
    Ok(())
}

/// Workers die before we do, and each of them costs us a descriptor. Whatever is refused here changes no promise.
fn protect() {
    if let Err(error) = fs::write("/proc/self/oom_score_adj", "-900") {
        tracing::debug!(%error, "the keeper's own oom_score_adj stays");
    }
    let files = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }) {
        tracing::debug!(%error, "the keeper's own limit of open files stays");
    }
}

struct Keeper {
    options: KeeperOptions,
    parents: Parents,
    runs: Runs,
    peers: BTreeMap<u64, Conn>,
    next: u64,
}

impl Keeper {
    /// Waits for the next thing and serves every peer that is ready.
    fn wait(&mut self, home: &Home, signals: &mut Signals) -> io::Result<()> {
        let pause = self.runs.pause().unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE);
        let ids: Vec<u64> = self.peers.keys().copied().collect();
        let ready: Vec<PollFlags> = {
            let mut fds = vec![
                PollFd::new(&signals.child, PollFlags::IN),
                PollFd::new(&signals.end, PollFlags::IN),
                PollFd::new(&home.listener, PollFlags::IN),
            ];
            fds.extend(self.peers.values().map(|peer| {
                let write = if peer.wants_write() { PollFlags::OUT } else { PollFlags::empty() };
                PollFd::from_borrowed_fd(peer.stream.as_fd(), PollFlags::IN | write)
            }));
            match poll(&mut fds, Some(&timespec(pause))) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            fds.iter().map(PollFd::revents).collect()
        };
        signals.drain();
        if ready.get(2).is_some_and(|flags| !flags.is_empty()) {
            self.accept(home);
        }
        for (id, flags) in ids.into_iter().zip(ready.into_iter().skip(3)) {
            if !flags.is_empty() {
                self.serve(id, flags);
            }
        }
        Ok(())
    }

    fn accept(&mut self, home: &Home) {
        while let Ok((stream, _)) = home.listener.accept() {
            let Ok(who) = socket_peercred(&stream) else { continue };
            let (uid, gid) = (who.uid.as_raw(), who.gid.as_raw());
            let Ok(mut peer) = Conn::new(stream, uid, gid) else { continue };
            let refusal = if !self.options.peers.contains(&uid) {
                format!(
                    "uid {uid} is not a peer of this keeper: start it with --peer for that user"
                )
            } else if self.peers.len() >= MOST_PEERS {
                format!("{MOST_PEERS} peers are connected: close one")
            } else {
                self.peers.insert(self.next, peer);
                self.next += 1;
                continue;
            };
            tracing::warn!(uid, refusal, "a connection is refused");
            say(&mut peer, 0, Answer::Refused { message: refusal });
        }
    }

    fn serve(&mut self, id: u64, flags: PollFlags) {
        // Taken out, so that it and the table can both be changed; put back if it stays.
        let Some(mut peer) = self.peers.remove(&id) else { return };
        match self.exchange(&mut peer, flags) {
            Ok(()) => {
                self.peers.insert(id, peer);
            }
            Err(Parting::Gone) => {}
            Err(why) => {
                tracing::warn!(uid = peer.uid, %why, "a peer is dropped");
                say(&mut peer, 0, Answer::Refused { message: why.to_string() });
            }
        }
    }

    fn exchange(&mut self, peer: &mut Conn, flags: PollFlags) -> Result<(), Parting> {
        if flags.contains(PollFlags::OUT) {
            peer.flush()?;
        }
        let end = if flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
            peer.fill()
        } else {
            Ok(())
        };
        while let Some(line) = peer.next_line()? {
            let (id, answer) = match decode::<Ask>(&line) {
                Ok(ask) => (ask.id, self.answer(peer, ask.request)),
                Err(error) => (0, Answer::Refused { message: error.to_string() }),
            };
            peer.say(&Reply { id, answer })?;
        }
        end
    }

    fn answer(&mut self, peer: &mut Conn, request: Request) -> Answer {
        if let Request::Hello { protocol } = request {
            peer.greeted = protocol == PROTOCOL || protocol.checked_add(1) == Some(PROTOCOL);
            return Answer::Hello {
                protocol: PROTOCOL,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                degraded: self.parents.degraded.clone(),
            };
        }
        if !peer.greeted {
            let message = format!("say hello first, with protocol {PROTOCOL} or the one before");
            return Answer::Refused { message };
        }
        match request {
            Request::Hello { .. } => Answer::Refused { message: "hello was said".to_owned() },
            Request::Spawn(order) => {
                let outcome = match self.runs.objection(&order.run, &order.lane) {
                    Some(message) => Err(super::prepare::NotStarted::refused(message)),
                    None => {
                        let by = Peer { uid: peer.uid, gid: peer.gid };
                        start(&order, by, &self.options, &self.parents)
                    }
                };
                match outcome {
                    Ok(worker) => {
                        let started = worker.started.clone();
                        self.runs.insert(worker);
                        Answer::Spawned(Box::new(started))
                    }
                    Err(why) => Answer::NotSpawned {
                        run: order.run.clone(),
                        step: why.step.to_string(),
                        errno: why.errno,
                        message: why.message,
                    },
                }
            }
            Request::Signal { run, how } => match self.runs.signal(&run, how) {
                SignalOutcome::Sent(processes) => Answer::Signalled { processes },
                SignalOutcome::UnknownRun => {
                    let message = format!("this keeper does not know the run {run}: ask `list`");
                    Answer::Refused { message }
                }
            },
            Request::List => {
                let (living, ended) = self.runs.list();
                Answer::Runs { living, ended }
            }
            Request::Forget { run } => match self.runs.forget(&run) {
                ForgetOutcome::Forgotten => Answer::Forgotten,
                ForgetOutcome::Unknown => {
                    self.parents.remove_of_earlier_keepers(&run);
                    Answer::Forgotten
                }
                ForgetOutcome::Lives => {
                    let message = format!("the run {run} has not ended: stop it first");
                    Answer::Refused { message }
                }
            },
        }
    }

    /// Tells every peer of these endings.
    fn tell(&mut self, ended: Vec<Ended>) {
        for ended in ended {
            let notice = Notification::Ended(Box::new(ended));
            self.peers.retain(|_, peer| {
                let heard = if peer.greeted { peer.say(&notice) } else { Ok(()) };
                if let Err(why) = &heard {
                    tracing::warn!(uid = peer.uid, %why, "a peer is dropped");
                }
                heard.is_ok()
            });
        }
    }
}

/// The last word to a peer that is dropped: whether it hears it does not matter.
fn say(peer: &mut Conn, id: u64, answer: Answer) {
    if let Err(why) = peer.say(&Reply { id, answer }) {
        tracing::debug!(%why, "a peer did not hear why");
    }
}

fn timespec(pause: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(pause.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: pause.subsec_nanos().into(),
    }
}

/// Signals, turned into bytes in two pipes.
struct Signals {
    child: UnixStream,
    end: UnixStream,
    ended: bool,
    registered: Vec<SigId>,
}

impl Signals {
    fn register() -> io::Result<Self> {
        let (child, child_writer) = UnixStream::pair()?;
        let (end, end_writer) = UnixStream::pair()?;
        child.set_nonblocking(true)?;
        end.set_nonblocking(true)?;
        let mut registered = Vec::new();
        // A hangup is no reason to leave: it only wakes us.
        for (signal, writer) in [
            (SIGCHLD, &child_writer),
            (SIGHUP, &child_writer),
            (SIGTERM, &end_writer),
            (SIGINT, &end_writer),
        ] {
            registered.push(pipe::register(signal, writer.try_clone()?)?);
        }
        Ok(Self { child, end, ended: false, registered })
    }

    fn drain(&mut self) {
        empty(&mut self.child);
        self.ended |= empty(&mut self.end);
    }

    fn asked_to_end(&self) -> bool {
        self.ended
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            unregister(id);
        }
    }
}

/// Whether there was something.
fn empty(pipe: &mut UnixStream) -> bool {
    let mut buffer = [0; 64];
    let mut some = false;
    while pipe.read(&mut buffer).is_ok_and(|count| count > 0) {
        some = true;
    }
    some
}
