//! The control socket: operators' orders in, answers out. One JSON document a line.

use std::{
    collections::HashMap,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::oneshot,
};

use super::Events;
use crate::{
    effect::{Answer, ControlId},
    event::{Event, Order},
    ids::LaneId,
    view::BoxView,
};

/// The socket below the runtime directory.
#[must_use]
pub fn socket_path(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("warden.sock")
}

/// The longest request, bytes.
const MAX_REQUEST: u64 = 64 * 1024;
/// The most clients that wait for an answer.
const MAX_WAITING: usize = 256;
/// How long a client may take to say what it wants.
const HEARING: Duration = Duration::from_secs(10);

/// A request on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "order", rename_all = "kebab-case")]
pub enum Request {
    /// Everything about the box.
    Status,
    /// End the lane's worker and keep the lane down.
    Stop {
        /// Which.
        lane: LaneId,
    },
    /// Let the lane work again.
    Start {
        /// Which.
        lane: LaneId,
    },
    /// End the lane's worker and start another.
    Restart {
        /// Which.
        lane: LaneId,
    },
    /// Start nothing more.
    Drain,
    /// A worker tells its issue.
    Issue {
        /// Which lane.
        lane: LaneId,
        /// Which issue.
        issue: u64,
    },
}

/// An answer on the wire.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// Done; one sentence.
    Done(String),
    /// Not done; one sentence with the remedy.
    Refused(String),
    /// Everything about the box.
    Status(Box<BoxView>),
}

impl From<Request> for Order {
    fn from(request: Request) -> Self {
        match request {
            Request::Status => Self::Status,
            Request::Stop { lane } => Self::Stop(lane),
            Request::Start { lane } => Self::Start(lane),
            Request::Restart { lane } => Self::Restart(lane),
            Request::Drain => Self::Drain,
            Request::Issue { lane, issue } => Self::Issue(lane, issue),
        }
    }
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Self {
        match answer {
            Answer::Done(sentence) => Self::Done(sentence),
            Answer::Refused(sentence) => Self::Refused(sentence),
            Answer::Status(view) => Self::Status(view),
        }
    }
}

/// Clients that wait, by id.
#[derive(Debug, Clone, Default)]
pub struct Clients {
    waiting: Arc<Mutex<Waiting>>,
}

#[derive(Debug, Default)]
struct Waiting {
    newest: ControlId,
    clients: HashMap<ControlId, oneshot::Sender<Answer>>,
}

impl Clients {
    fn enter(&self) -> Option<(ControlId, oneshot::Receiver<Answer>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.clients.len() >= MAX_WAITING {
            return None;
        }
        waiting.newest += 1;
        let id = waiting.newest;
        let (answer, answered) = oneshot::channel();
        waiting.clients.insert(id, answer);
        Some((id, answered))
    }

    /// Answers a client, if it still waits.
    pub fn answer(&self, id: ControlId, answer: Answer) {
        let client =
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clients.remove(&id);
        if let Some(client) = client {
            drop(client.send(answer));
        }
    }
}

/// Binds the socket and serves it. An old socket is replaced: the caller holds the lock that says it is nobody's.
///
/// # Errors
/// The system's, if the socket cannot be bound.
pub fn listen(path: &Path, events: Events, clients: Clients) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    // Anybody on the box may ask; who may order is decided by the peer's uid.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(serve(stream, events.clone(), clients.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting on the control socket");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    Ok(())
}

async fn serve(stream: UnixStream, events: Events, clients: Clients) {
    let own = rustix::process::geteuid().as_raw();
    let uid = stream.peer_cred().map(|peer| peer.uid());
    let (reader, mut writer) = stream.into_split();
    let mut line = Vec::new();
    let mut reader = BufReader::new(reader.take(MAX_REQUEST));
    let heard = tokio::time::timeout(HEARING, reader.read_until(b'\n', &mut line)).await;
    if !matches!(heard, Ok(Ok(1..))) {
        return;
    }
    let response = match serde_json::from_slice::<Request>(&line) {
        Err(error) => Response::Refused(format!("not a request: {error}")),
        Ok(request) if !may(&request, uid.ok(), own) => Response::Refused(format!(
            "only uid {own} and root give orders here; run this command as one of them"
        )),
        Ok(request) => ask(request.into(), &events, &clients).await,
    };
    let mut bytes = serde_json::to_vec(&response).unwrap_or_default();
    bytes.push(b'\n');
    drop(writer.write_all(&bytes).await);
}

/// Everybody may look; workers may tell their issue; our own user and root may order.
fn may(request: &Request, uid: Option<u32>, own: u32) -> bool {
    match request {
        Request::Status | Request::Issue { .. } => true,
        Request::Stop { .. } | Request::Start { .. } | Request::Restart { .. } | Request::Drain => {
            uid.is_some_and(|uid| uid == own || uid == 0)
        }
    }
}

async fn ask(order: Order, events: &Events, clients: &Clients) -> Response {
    let Some((id, answered)) = clients.enter() else {
        return Response::Refused(format!("{MAX_WAITING} clients wait already; try again"));
    };
    if events.send(Event::Control { id, order }).await.is_err() {
        return Response::Refused("the daemon is ending".to_owned());
    }
    answered.await.map_or_else(|_| Response::Refused("the daemon ended".to_owned()), Response::from)
}
