//! The warden's end of the keeper's socket: orders out, answers and endings in; reconnects, and starts a keeper where
//! none runs.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use lanewarden_probes::{Root, host};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
};

use super::{Events, marker};
use crate::{
    event::{EndedRun, Event},
    ids::{LaneId, RunId},
    keeper::protocol::{
        self, Answer, Ask, Ended, FromKeeper, Notification, PROTOCOL, Request, Started,
    },
};

/// Who starts the keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeeperMode {
    /// We do, detached, if none answers.
    Auto,
    /// A unit of the service manager does; we wait for its socket.
    Unit,
}

/// The keeper cannot be reached or does not speak our protocol.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No answer on the socket.
    #[error("reaching the keeper at {}: {source}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It could not be started.
    #[error("starting a keeper: {0}")]
    Start(std::io::Error),
    /// It speaks another protocol.
    #[error(
        "the keeper speaks protocol {found}, this warden {PROTOCOL}; stop it when its workers are done, or run the release that it is of"
    )]
    Protocol {
        /// Its number.
        found: u32,
    },
    /// It closed the connection or said something else than an answer.
    #[error("the keeper broke off: {0}")]
    Broken(String),
}

/// What a keeper has at the moment of connecting.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Runs whose worker lives.
    pub living: Vec<Started>,
    /// Runs that ended.
    pub ended: Vec<EndedRun>,
    /// What it cannot enforce on this host.
    pub degraded: Vec<String>,
}

/// Where the keeper's files are, and where markers are.
#[derive(Debug, Clone)]
pub struct Places {
    /// The keeper's own runtime directory.
    pub keeper_dir: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Who starts it.
    pub mode: KeeperMode,
}

impl Places {
    fn socket(&self) -> PathBuf {
        self.keeper_dir.join("keeper.sock")
    }

    /// The path of a run's marker.
    #[must_use]
    pub fn marker(&self, run: &RunId) -> PathBuf {
        self.state_dir.join("runs").join(run.as_str()).join("marker.json")
    }
}

/// Sends orders to the keeper. Orders that cannot be sent are dropped: what became of them is settled when it is back.
#[derive(Debug, Clone)]
pub struct Link {
    orders: mpsc::Sender<Outgoing>,
}

/// What a keeper still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Left {
    /// Its pid: that of the keeper that answers now, not of the first one.
    pub keeper_pid: u32,
    /// Runs that live or are not forgotten.
    pub runs: usize,
}

/// What goes to the keeper.
#[derive(Debug)]
enum Outgoing {
    /// An order.
    Order(Request),
    /// Tell how many runs the keeper still has, once everything before this is done.
    Settle(oneshot::Sender<Left>),
}

impl Link {
    /// Queues an order.
    pub fn send(&self, request: Request) {
        if self.orders.try_send(Outgoing::Order(request)).is_err() {
            tracing::error!("an order to the keeper was not queued: it does not keep up");
        }
    }

    /// Waits, bounded, until every order before this is done; what the keeper still has, if it answered.
    pub async fn settle(&self, within: Duration) -> Option<Left> {
        let (answer, answered) = oneshot::channel();
        self.orders.try_send(Outgoing::Settle(answer)).ok()?;
        tokio::time::timeout(within, answered).await.ok()?.ok()
    }
}

/// Connects, starting a keeper if need be, and serves the connection from then on.
///
/// # Errors
/// [`LinkError`], if there is no keeper at all: then nothing can be supervised.
pub async fn connect(places: Places, events: Events) -> Result<(Link, Inventory), LinkError> {
    let mut counter = BoxCounter::default();
    counter.grew();
    let (connection, inventory) = reach(&places, &mut counter).await?;
    let (orders, inbox) = mpsc::channel(1024);
    tokio::spawn(serve(places, connection, inbox, events, counter));
    Ok((Link { orders }, inventory))
}

/// The box's OOM counter, to tell at once that no OOM killer was at work.
#[derive(Debug, Default)]
struct BoxCounter {
    last: Option<u64>,
}

impl BoxCounter {
    /// Whether it grew since it was last asked; `None` if that cannot be told.
    fn grew(&mut self) -> Option<bool> {
        let now = host::vmstat_oom_kills(&Root::live()).ok().and_then(Result::ok);
        let before = std::mem::replace(&mut self.last, now);
        Some(now? > before?)
    }
}

struct Connection {
    keeper_pid: u32,
    lines: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    next_id: u64,
}

/// What waits for an answer.
#[derive(Debug)]
enum Waiting {
    /// A worker that was asked for and not confirmed.
    Spawn(LaneId, RunId),
    /// Somebody who wants to know what is left.
    Settled(oneshot::Sender<Left>),
}

type Pending = HashMap<u64, Waiting>;

async fn reach(
    places: &Places,
    counter: &mut BoxCounter,
) -> Result<(Connection, Inventory), LinkError> {
    const TRIES: u32 = 200;
    let socket = places.socket();
    let mut started = false;
    let mut tries = 0;
    let stream = loop {
        match UnixStream::connect(&socket).await {
            Ok(stream) => break stream,
            Err(source) => {
                if places.mode == KeeperMode::Auto && !started {
                    start(places).map_err(LinkError::Start)?;
                    started = true;
                }
                tries += 1;
                if places.mode == KeeperMode::Auto && tries >= TRIES {
                    return Err(LinkError::Connect { path: socket, source });
                }
                tokio::time::sleep(Duration::from_millis(25)).await;
            }
        }
    };
    let (reader, writer) = stream.into_split();
    let mut connection =
        Connection { keeper_pid: 0, lines: BufReader::new(reader), writer, next_id: 1 };
    let hello = connection.ask(Request::Hello { protocol: PROTOCOL }).await?;
    let Answer::Hello { protocol: found, pid, degraded, .. } = hello else {
        return Err(LinkError::Broken(format!("answered {hello:?} to hello")));
    };
    if found != PROTOCOL {
        return Err(LinkError::Protocol { found });
    }
    connection.keeper_pid = pid;
    let listing = connection.ask(Request::List).await?;
    let Answer::Runs { living, ended } = listing else {
        return Err(LinkError::Broken(format!("answered {listing:?} to list")));
    };
    let ended = ended.into_iter().map(|end| with_marker(places, end, counter)).collect();
    Ok((connection, Inventory { living, ended, degraded }))
}

impl Connection {
    async fn send(&mut self, request: Request) -> Result<u64, LinkError> {
        let id = self.next_id;
        self.next_id += 1;
        let line = protocol::encode(&Ask { id, request });
        self.writer.write_all(&line).await.map_err(|error| LinkError::Broken(error.to_string()))?;
        Ok(id)
    }

    async fn receive(&mut self) -> Result<FromKeeper, LinkError> {
        let mut line = Vec::new();
        match self.lines.read_until(b'\n', &mut line).await {
            Ok(0) => Err(LinkError::Broken("the connection is closed".to_owned())),
            Ok(_) => protocol::decode(&line).map_err(|error| LinkError::Broken(error.to_string())),
            Err(error) => Err(LinkError::Broken(error.to_string())),
        }
    }

    /// Asks and waits; endings that come in between are in the next listing too.
    async fn ask(&mut self, request: Request) -> Result<Answer, LinkError> {
        let id = self.send(request).await?;
        loop {
            match self.receive().await? {
                FromKeeper::Reply(reply) if reply.id == id => return Ok(reply.answer),
                FromKeeper::Reply(_) | FromKeeper::Notification(_) => {}
            }
        }
    }
}

/// Starts a keeper that outlives us: its own session, no terminal, its output in a file.
fn start(places: &Places) -> std::io::Result<()> {
    std::fs::create_dir_all(&places.keeper_dir)?;
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(places.state_dir.join("keeper.log"))?;
    let mut command = tokio::process::Command::new(crate::own_program()?);
    command
        .arg("keep")
        .arg("--runtime-dir")
        .arg(&places.keeper_dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .current_dir("/");
    if rustix::process::geteuid().is_root() {
        command.arg("--allow-root");
    }
    let mut child = command.spawn()?;
    // It is our child until we end; reap it should it end first.
    tokio::spawn(async move {
        match child.wait().await {
            Ok(status) => tracing::warn!(%status, "the keeper that we started ended"),
            Err(error) => tracing::warn!(%error, "waiting for the keeper"),
        }
    });
    Ok(())
}

fn with_marker(places: &Places, ended: Ended, counter: &mut BoxCounter) -> EndedRun {
    let marker = marker::read(&places.marker(&ended.started.run));
    EndedRun { ended, marker, box_counter_grew: counter.grew() }
}

async fn serve(
    places: Places,
    mut connection: Connection,
    mut inbox: mpsc::Receiver<Outgoing>,
    events: Events,
    mut counter: BoxCounter,
) {
    let mut pending = Pending::new();
    loop {
        let broken = loop {
            tokio::select! {
                order = inbox.recv() => {
                    let Some(order) = order else { return };
                    if let Err(error) = send_order(&mut connection, order, &mut pending).await {
                        break error;
                    }
                }
                message = connection.receive() => match message {
                    Ok(message) => {
                        let pid = connection.keeper_pid;
                        let event = event_of(&places, message, pid, &mut pending, &mut counter);
                        if let Some(event) = event && events.send(event).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => break error,
                },
            }
        };
        tracing::warn!(%broken, "lost the keeper");
        pending.clear();
        let mut kept = without_spawns(&mut inbox);
        if events.send(Event::KeeperLost).await.is_err() {
            return;
        }
        connection = loop {
            match reach(&places, &mut counter).await {
                Ok((connection, inventory)) => {
                    kept.extend(without_spawns(&mut inbox));
                    let Inventory { living, ended, .. } = inventory;
                    if events.send(Event::KeeperBack { living, ended }).await.is_err() {
                        return;
                    }
                    break connection;
                }
                Err(error) => {
                    tracing::error!(%error, "no keeper; trying again");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        };
        for outgoing in kept {
            if let Err(error) = send_order(&mut connection, outgoing, &mut pending).await {
                tracing::warn!(%error, "an order to the new keeper was lost");
            }
        }
    }
}

/// Orders that wait, without those to start: the dispatcher has given these up and would not know them again.
fn without_spawns(inbox: &mut mpsc::Receiver<Outgoing>) -> Vec<Outgoing> {
    let mut kept = Vec::new();
    while let Ok(outgoing) = inbox.try_recv() {
        if !matches!(outgoing, Outgoing::Order(Request::Spawn(_))) {
            kept.push(outgoing);
        }
    }
    kept
}

async fn send_order(
    connection: &mut Connection,
    outgoing: Outgoing,
    pending: &mut Pending,
) -> Result<(), LinkError> {
    let (request, waiting) = match outgoing {
        Outgoing::Settle(answer) => (Request::List, Some(Waiting::Settled(answer))),
        Outgoing::Order(Request::Spawn(order)) => {
            let waiting = Waiting::Spawn(order.lane.clone(), order.run.clone());
            (Request::Spawn(order), Some(waiting))
        }
        Outgoing::Order(request) => (request, None),
    };
    let id = connection.send(request).await?;
    pending.extend(waiting.map(|waiting| (id, waiting)));
    Ok(())
}

fn event_of(
    places: &Places,
    message: FromKeeper,
    keeper_pid: u32,
    pending: &mut Pending,
    counter: &mut BoxCounter,
) -> Option<Event> {
    let reply = match message {
        FromKeeper::Notification(Notification::Ended(ended)) => {
            return Some(Event::Ended(Box::new(with_marker(places, *ended, counter))));
        }
        FromKeeper::Reply(reply) => reply,
    };
    let waiting = pending.remove(&reply.id);
    match (reply.answer, waiting) {
        (Answer::Spawned(started), _) => Some(Event::Spawned(started)),
        (Answer::NotSpawned { run, step, message, .. }, Some(Waiting::Spawn(lane, _))) => {
            Some(Event::NotSpawned { lane, run, step, message })
        }
        (Answer::Refused { message }, Some(Waiting::Spawn(lane, run))) => {
            Some(Event::NotSpawned { lane, run, step: "refused".to_owned(), message })
        }
        (Answer::Refused { message }, _) => {
            tracing::error!(message, "the keeper refused an order");
            None
        }
        (Answer::Runs { living, ended }, Some(Waiting::Settled(asker))) => {
            // Whoever asked may have given up.
            let left = Left { keeper_pid, runs: living.len() + ended.len() };
            let _gone: Result<(), Left> = asker.send(left);
            None
        }
        (
            Answer::Hello { .. }
            | Answer::NotSpawned { .. }
            | Answer::Signalled { .. }
            | Answer::Runs { .. }
            | Answer::Forgotten,
            _,
        ) => None,
    }
}

/// Where a keeper of this runtime directory has its files.
#[must_use]
pub fn keeper_dir(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("keeper")
}
