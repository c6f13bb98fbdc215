//! Against a real server on a real socket, which keeps the exact bytes of every request.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    sync::Arc,
};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, Method, Response, StatusCode, Uri},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::{
    notice::{Level, Notice},
    render::{Context, render},
};

/// One request as it came.
#[derive(Debug, Clone)]
struct Seen {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Bytes,
}

/// What the server answers.
#[derive(Debug, Clone)]
enum Answer {
    Status(u16, &'static str),
    RetryAfter(u16, &'static str),
    /// Echoes the `Authorization` header and the topic in its error text.
    Echo(u16),
    Redirect,
    Never,
}

#[derive(Clone)]
struct Server {
    answer: Answer,
    seen: Arc<Mutex<Vec<Seen>>>,
}

async fn answer(
    State(server): State<Server>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response<Body> {
    let authorization =
        headers.get(AUTHORIZATION).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    server.seen.lock().unwrap().push(Seen { method, path: uri.to_string(), headers, body });
    let respond = |status: u16, body: Body| {
        Response::builder().status(StatusCode::from_u16(status).unwrap()).body(body).unwrap()
    };
    match server.answer {
        Answer::Status(status, body) => respond(status, body.into()),
        Answer::RetryAfter(status, seconds) => {
            let mut response = respond(status, Body::empty());
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
            response
        }
        Answer::Echo(status) => {
            let error = format!("no entry for {authorization} on fleet");
            respond(status, serde_json::json!({ "error": error }).to_string().into())
        }
        Answer::Redirect => {
            let mut response = respond(307, Body::empty());
            response.headers_mut().insert("location", HeaderValue::from_static("/elsewhere"));
            response
        }
        Answer::Never => std::future::pending().await,
    }
}

async fn serve(answer_with: Answer) -> (SocketAddr, Arc<Mutex<Vec<Seen>>>) {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let server = Server { answer: answer_with, seen: Arc::clone(&seen) };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = Router::new().fallback(answer).with_state(server);
    drop(tokio::spawn(async move { axum::serve(listener, app).await }));
    (address, seen)
}

fn courier(server: String) -> Courier {
    let credential = Credential::new("tk_secret").unwrap();
    let mut target = Target::new(server, "fleet", Some(credential));
    target.total_timeout = Duration::from_secs(5);
    Courier::new(target).unwrap()
}

fn message() -> Message {
    let context = Context {
        machine: "box-a".into(),
        at_unix_ms: 1_796_004_845_000,
        id: "e3b0c44298fc".into(),
        ..Context::default()
    };
    let text = Notice::Text {
        level: Level::High,
        title: "\u{1F6A8} \u{65E5}\u{672C} \"q\" =?UTF-8?B?eA==?=\nsecond".into(),
        message: "line one\nline two".into(),
    };
    render(&text, &context)
}

async fn publish_against(answer_with: Answer) -> Delivery {
    let (address, _seen) = serve(answer_with).await;
    courier(format!("http://{address}")).publish(&message()).await
}

#[tokio::test]
async fn the_bytes_are_those_of_the_contract() {
    let (address, seen) = serve(Answer::Status(200, r#"{"id":"x1","topic":"fleet"}"#)).await;
    let mut said = message();
    let courier = courier(format!("http://{address}"));
    assert_eq!(courier.publish(&said).await, Delivery::Accepted { id: "x1".into() });
    said.click = Some("https://box-a.example/".into());
    assert_eq!(courier.publish(&said).await, Delivery::Accepted { id: "x1".into() });

    let seen = seen.lock().unwrap().clone();
    let [first, second] = seen.as_slice() else { panic!("two requests, not {seen:?}") };
    assert_eq!((&first.method, first.path.as_str()), (&Method::POST, "/"));
    assert_eq!(first.headers.get_all("content-type").iter().count(), 1);
    assert_eq!(first.headers["content-type"], "application/json");
    assert_eq!(first.headers["authorization"], "Bearer tk_secret");
    for header in first.headers.keys() {
        assert!(!header.as_str().starts_with("x-") && header != "title", "{header}");
    }
    assert_eq!(
        std::str::from_utf8(&first.body).unwrap(),
        "{\"topic\":\"fleet\",\"title\":\"box-a: \u{1F6A8} \u{65E5}\u{672C} \\\"q\\\" = ?UTF-8?B?eA== ?= second\",\
         \"message\":\"line one\\nline two\\nHappened 2026-11-30 02:14:05 UTC.\",\"priority\":5,\
         \"tags\":[\"rotating_light\"],\"sequence_id\":\"e3b0c44298fc\"}"
    );
    let keys = |body: &[u8]| -> Vec<String> {
        let json: serde_json::Map<_, _> = serde_json::from_slice(body).unwrap();
        json.keys().cloned().collect()
    };
    assert_eq!(
        keys(&second.body),
        ["click", "message", "priority", "sequence_id", "tags", "title", "topic"]
    );
}

#[tokio::test]
async fn a_base_address_with_a_path_is_kept() {
    let (address, seen) = serve(Answer::Status(200, r#"{"id":"x1"}"#)).await;
    drop(courier(format!("http://{address}/push")).publish(&message()).await);
    assert_eq!(seen.lock().unwrap()[0].path, "/push/");
}

#[tokio::test]
async fn answers_are_judged() {
    use Reason::{NotNtfy, Quota, RateLimited, Server as Failed, TooLarge, Unauthorized};
    let retry = |reason| (reason, true);
    let refused = |reason| (reason, false);
    let cases = [
        (Answer::Status(200, "<html>hello</html>"), retry(NotNtfy)),
        (Answer::Status(200, r#"{"id":"x1","topic":"other"}"#), retry(NotNtfy)),
        (Answer::Redirect, retry(NotNtfy)),
        (Answer::Status(429, ""), retry(RateLimited)),
        (Answer::Status(429, r#"{"code":42908,"error":"limit reached"}"#), retry(Quota)),
        (Answer::Status(500, r#"{"code":50001}"#), retry(Failed)),
        (Answer::Status(502, "<html>"), retry(Failed)),
        (Answer::Status(401, r#"{"code":40101}"#), refused(Unauthorized)),
        (Answer::Status(413, r#"{"code":41303}"#), refused(TooLarge)),
    ];
    for (answer_with, expected) in cases {
        let got = match publish_against(answer_with.clone()).await {
            Delivery::Accepted { id } => panic!("{answer_with:?} was accepted as {id}"),
            Delivery::Retry { reason, .. } => retry(reason),
            Delivery::Permanent { reason, .. } => refused(reason),
        };
        assert_eq!(got, expected, "{answer_with:?}");
    }
}

/// A server that takes one whole request, answers with these bytes and hangs up.
async fn serve_raw(bytes: &'static [u8]) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert!(
                stream.read_buf(&mut request).await.unwrap() > 0,
                "the request ends in its body"
            );
        }
        stream.write_all(bytes).await.unwrap();
    }));
    address
}

#[tokio::test]
async fn a_connection_that_breaks_is_tried_again() {
    let cases: [(&[u8], Reason); 4] = [
        (b"", Reason::Connect),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Reason::Connect),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"id\":\"x1\"}", Reason::Server),
        (b"HTTP/1.1 502 Bad\r\ncontent-length: 100\r\n\r\n{\"id\":\"x1\"}", Reason::Server),
    ];
    for (bytes, expected) in cases {
        let address = serve_raw(bytes).await;
        let got = courier(format!("http://{address}")).publish(&message()).await;
        let Delivery::Retry { reason, .. } = got else { panic!("{got:?}") };
        assert_eq!(reason, expected, "{}", String::from_utf8_lossy(bytes));
    }
}

#[tokio::test]
async fn a_proxy_may_ask_for_patience() {
    let got = publish_against(Answer::RetryAfter(503, "120")).await;
    assert!(matches!(got, Delivery::Retry { after: Some(120), .. }), "{got:?}");
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let (address, seen) = serve(Answer::Redirect).await;
    drop(courier(format!("http://{address}")).publish(&message()).await);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn nobody_there_is_no_connection() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let got = courier(format!("http://{address}")).publish(&message()).await;
    let Delivery::Retry { reason, detail, .. } = &got else { panic!("{got:?}") };
    assert_eq!(*reason, Reason::Connect, "{detail}");
    assert!(detail.contains("refused") && !detail.contains("http://"), "{detail}");
}

#[tokio::test]
async fn a_server_that_never_answers_costs_the_total_time() {
    let (address, _seen) = serve(Answer::Never).await;
    let mut target = Target::new(format!("http://{address}"), "fleet", None);
    target.total_timeout = Duration::from_millis(200);
    let courier = Courier::new(target).unwrap();
    let got = tokio::time::timeout(Duration::from_secs(10), courier.publish(&message())).await;
    let Ok(Delivery::Retry { reason: Reason::Timeout, .. }) = got else { panic!("{got:?}") };
}

#[tokio::test]
async fn a_server_without_tls_is_told_apart() {
    let (address, _seen) = serve(Answer::Status(200, "")).await;
    let got = courier(format!("https://{address}")).publish(&message()).await;
    // Without CA certificates the client itself cannot be built, and that is what is said.
    let Delivery::Retry { reason: Reason::Tls | Reason::Client, .. } = got else {
        panic!("{got:?}")
    };
}

#[tokio::test]
async fn secrets_stay_secret() {
    let (address, _seen) = serve(Answer::Echo(401)).await;
    let courier = courier(format!("http://{address}"));
    let got = format!("{:?} {courier:?}", courier.publish(&message()).await);
    assert!(got.contains("no entry for Bearer [token] on [topic]"), "{got}");
    assert!(!got.contains("tk_secret") && !got.contains("\"fleet\""), "{got}");
    let target = Target::new("https://user:pw@h", "fleet", Credential::new("tk_secret").ok());
    let shown = format!("{target:?}");
    assert!(!shown.contains("pw") && !shown.contains("tk_") && !shown.contains("fleet"), "{shown}");
}

#[tokio::test]
async fn a_renewed_token_is_used_after_it_was_read_again() {
    let (address, seen) = serve(Answer::Status(401, "")).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    std::fs::write(&path, "tk_old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let credential = Credential::from_file(&path).unwrap();
    let courier =
        Courier::new(Target::new(format!("http://{address}"), "fleet", Some(credential))).unwrap();
    drop(courier.publish(&message()).await);
    assert!(!courier.reread_credential().unwrap(), "the file is as it was");
    std::fs::write(&path, "tk_new").unwrap();
    assert!(courier.reread_credential().unwrap());
    drop(courier.publish(&message()).await);
    let tokens: Vec<_> =
        seen.lock().unwrap().iter().map(|s| s.headers["authorization"].clone()).collect();
    assert_eq!(tokens, ["Bearer tk_old", "Bearer tk_new"]);
}

#[test]
fn targets_that_cannot_be_right_are_refused() {
    for topic in ["", "a b", "a/b", "\u{e9}", &"x".repeat(65), "docs", "v1"] {
        let refused = Courier::new(Target::new("https://h", topic, None));
        assert!(refused.is_err(), "{topic:?}");
    }
    for server in
        ["", "h", "ftp://h", "https://", "https://u:p@h", "https://h/?t=1", "https://h/#f"]
    {
        let refused = Courier::new(Target::new(server, "fleet", None));
        assert!(matches!(refused, Err(CourierError::Server { .. })), "{server:?}");
    }
    let made = Courier::new(Target::new("https://h:8443/", "fleet", None)).unwrap();
    assert_eq!(made.host(), "h:8443");
}
