//! A page sink on a real socket: what ntfy's server would get.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{Router, extract::State, routing::post};
use serde::Deserialize;
use tokio::net::TcpListener;

use crate::clock::unix_ms;

/// A page that arrived.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) title: String,
    pub(super) first_line: String,
    pub(super) at_ms: i64,
}

#[derive(Debug, Deserialize)]
struct Published {
    topic: String,
    title: String,
    message: String,
}

/// Pages so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Sink {
    pages: Arc<Mutex<Vec<Page>>>,
}

impl Sink {
    /// Listens on a free port.
    pub(super) async fn listen(&self) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let router = Router::new().route("/", post(take)).with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(address)
    }

    /// The pages after the first `seen`.
    pub(super) fn after(&self, seen: usize) -> Vec<Page> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.get(seen..).unwrap_or_default().to_vec()
    }
}

async fn take(State(sink): State<Sink>, body: String) -> Result<String, axum::http::StatusCode> {
    let published: Published =
        serde_json::from_str(&body).map_err(|_| axum::http::StatusCode::BAD_REQUEST)?;
    let mut pages = sink.pages.lock().unwrap_or_else(PoisonError::into_inner);
    pages.push(Page {
        title: published.title,
        first_line: published.message.lines().next().unwrap_or_default().to_owned(),
        at_ms: unix_ms(),
    });
    let id = format!("demo{:08}", pages.len());
    Ok(serde_json::json!({"id": id, "topic": published.topic}).to_string())
}
