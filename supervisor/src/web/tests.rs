//! Over a real socket.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use super::*;
use crate::{verdict::LaneState, view::LaneView};

pub(super) fn lane(id: &str, state: LaneState) -> LaneView {
    LaneView {
        id: id.to_owned(),
        dir: format!("/data/lanes/{id}"),
        mode: "manage".to_owned(),
        state,
        reason: None,
        since_ms: 1_000,
        next_start_ms: None,
        pid: None,
        token: None,
        run: None,
        run_started_ms: None,
        issue: None,
        failures: 0,
        cannot_tell: false,
        intruders: Vec::new(),
        degraded: Vec::new(),
        last: None,
        claim: None,
    }
}

pub(super) fn view(lanes: Vec<LaneView>) -> BoxView {
    BoxView {
        machine: "box-a".to_owned(),
        version: "0.1.0".to_owned(),
        ready: true,
        keeper_up: true,
        lanes,
        taken_at_ms: 2_000,
        ..BoxView::default()
    }
}

fn shared() -> Arc<Shared> {
    Arc::new(Shared::new(Arc::new(Metrics::new("0.1.0", &[]))))
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

async fn ask(address: SocketAddr, method: &str, path: &str, host: &str) -> Answer {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        head: head.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

async fn bound(mut address: watch::Receiver<Option<SocketAddr>>) -> SocketAddr {
    let wait = address.wait_for(Option::is_some);
    let found = tokio::time::timeout(Duration::from_secs(20), wait).await.expect("never bound");
    found.unwrap().unwrap()
}

async fn started(shared: &Arc<Shared>) -> SocketAddr {
    let any = "127.0.0.1:0".parse().unwrap();
    bound(start(any, Arc::clone(shared)).unwrap()).await
}

#[tokio::test]
async fn every_page_has_its_type() {
    let shared = shared();
    shared.publish(view(vec![lane("lane-1", LaneState::Running)]));
    shared.turned(Now::read(), Duration::from_millis(1));
    let address = started(&shared).await;

    let metrics = ask(address, "GET", "/metrics", "localhost").await;
    assert_eq!(metrics.status, 200);
    assert!(metrics.head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"));
    assert!(metrics.body.contains("lanewarden_lane_state{lane=\"lane-1\",state=\"running\"} 1\n"));

    let json = ask(address, "GET", "/api/v1/lanes", "127.0.0.1").await;
    assert!(json.head.contains("content-type: application/json"), "{}", json.head);
    let read: BoxView = serde_json::from_str(&json.body).unwrap();
    assert_eq!(read, *shared.view());

    let page = ask(address, "GET", "/", "[::1]:80").await;
    assert!(
        page.head.contains("content-type: text/html") && page.head.contains("default-src 'none'")
    );
    assert!(page.body.contains("<h2>lane-1</h2>"));

    let head = ask(address, "HEAD", "/metrics", "localhost").await;
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}

#[tokio::test]
async fn other_paths_methods_and_names_are_refused_in_words() {
    let address = started(&shared()).await;
    let missing = ask(address, "GET", "/metricz", "localhost").await;
    assert!(missing.status == 404 && missing.body.contains("/metrics"), "{}", missing.body);
    let posted = ask(address, "POST", "/metrics", "localhost").await;
    assert!(posted.status == 405 && posted.head.contains("allow: get, head"), "{}", posted.head);
    assert!(posted.body.contains("GET and HEAD"), "{}", posted.body);
    for path in ["/", "/metrics", "/api/v1/lanes", "/nothing"] {
        let foreign = ask(address, "GET", path, "evil.example").await;
        assert!(foreign.status == 403 && foreign.body.contains("localhost"), "{path}");
    }
}

#[tokio::test]
async fn health_follows_the_loop_and_readiness_the_picture() {
    let shared = shared();
    let address = started(&shared).await;
    let health = ask(address, "GET", "/healthz", "localhost").await;
    assert!(health.status == 503 && health.body.contains("first turn"), "{}", health.body);

    shared.turned(Now::read(), Duration::from_millis(1));
    let health = ask(address, "GET", "/healthz", "localhost").await;
    assert_eq!((health.status, health.body.as_str()), (200, "ok\n"));
    let ready = ask(address, "GET", "/readyz", "localhost").await;
    assert!(ready.status == 503 && ready.body.contains("keeper"), "{}", ready.body);

    shared.publish(view(Vec::new()));
    assert_eq!(ask(address, "GET", "/readyz", "localhost").await.status, 200);

    let now = Now::read();
    let before = Now { boot_ms: now.boot_ms.saturating_sub(31_000).max(1), ..now };
    shared.turned(before, Duration::from_millis(1));
    for path in ["/healthz", "/readyz"] {
        let answer = ask(address, "GET", path, "localhost").await;
        assert!(answer.status == 503 && answer.body.contains("for 3"), "{path}: {}", answer.body);
    }
}

#[tokio::test]
async fn many_readers_do_not_wait_for_a_loop_that_hangs() {
    let shared = shared();
    shared
        .publish(view((0..200).map(|n| lane(&format!("lane-{n}"), LaneState::Running)).collect()));
    let address = started(&shared).await;
    // More than may be connected at one time: the rest waits its turn.
    let readers: Vec<_> =
        (0..100).map(|_| tokio::spawn(ask(address, "GET", "/metrics", "localhost"))).collect();
    for reader in readers {
        let answer = tokio::time::timeout(Duration::from_secs(60), reader).await.unwrap().unwrap();
        assert!(answer.status == 200 && answer.body.contains("lane-199"));
    }
}

#[tokio::test]
async fn a_taken_port_is_tried_again() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = taken.local_addr().unwrap();
    let (sender, receiver) = watch::channel(None);
    let soon = Duration::from_millis(20);
    let server = tokio::spawn(serve_at(listen, shared(), sender, soon, IDLE));
    let mut tried = receiver.clone();
    // A failed try says that nothing is bound.
    tokio::time::timeout(Duration::from_secs(20), tried.changed()).await.unwrap().unwrap();
    assert_eq!(*tried.borrow(), None);
    drop(taken);
    assert_eq!(bound(receiver).await, listen);
    server.abort();
}

#[tokio::test]
async fn a_silent_connection_is_closed() {
    let (sender, receiver) = watch::channel(None);
    let any = "127.0.0.1:0".parse().unwrap();
    let idle = Duration::from_millis(50);
    let server = tokio::spawn(serve_at(any, shared(), sender, RETRY, idle));
    let mut stream = TcpStream::connect(bound(receiver).await).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: lo").await.unwrap();
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "still open");
    server.abort();
}
