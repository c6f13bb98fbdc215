//! The small HTTP server: metrics, health, readiness, the lanes as JSON and a status page.
//!
//! Everything is answered from the newest picture that the loop published; no request waits for the loop, the store, git
//! or the keeper. The server is advisory: if it cannot listen, supervision goes on and it tries again.

mod guard;
mod listener;
mod page;
#[cfg(test)]
mod tests;

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};

use self::{guard::Hosts, listener::Bounded};
use crate::{clock::Now, metrics::Metrics, view::BoxView};

/// Content type of Prometheus' text format; a newer Prometheus refuses a page that does not say it exactly.
const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const TEXT_TYPE: &str = "text/plain; charset=utf-8";
const HTML_TYPE: &str = "text/html; charset=utf-8";
/// The status page runs nothing and loads nothing; its style stands in it.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// A loop that has not finished a turn for this long is not healthy, milliseconds.
const TURN_WITHIN_MS: u64 = 30_000;
/// Between two tries to listen.
const RETRY: Duration = Duration::from_secs(5);
/// A connection on which no byte moves for this long is closed. Scrapes come more often.
const IDLE: Duration = Duration::from_secs(75);

/// What the loop and the server share.
#[derive(Debug)]
pub struct Shared {
    view: RwLock<Arc<BoxView>>,
    metrics: Arc<Metrics>,
    /// When the loop last finished a turn, milliseconds on the boot clock; 0 before the first.
    last_turn: AtomicU64,
}

impl Shared {
    /// Nothing published yet.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Self { view: RwLock::default(), metrics, last_turn: AtomicU64::new(0) }
    }

    /// Shows this picture from now on.
    pub fn publish(&self, view: BoxView) {
        let view = Arc::new(view);
        *self.view.write().unwrap_or_else(PoisonError::into_inner) = view;
    }

    /// The newest picture.
    #[must_use]
    pub fn view(&self) -> Arc<BoxView> {
        Arc::clone(&self.view.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The loop finished a turn at `now` that took this long. Counts it too: call this, not [`Metrics::loop_turn`].
    ///
    /// An idle loop must turn at least every ten seconds, or it will be taken for one that hangs.
    pub fn turned(&self, now: Now, took: Duration) {
        self.last_turn.store(now.boot_ms.max(1), Ordering::Relaxed);
        self.metrics.loop_turn(took);
    }

    /// Why the loop is not healthy at `now`; `None` if it is.
    fn stalled(&self, now: Now) -> Option<String> {
        let last = self.last_turn.load(Ordering::Relaxed);
        if last == 0 {
            return Some("the supervision loop has not finished its first turn".to_owned());
        }
        let silent = now.boot_ms.saturating_sub(last);
        (silent > TURN_WITHIN_MS).then(|| {
            format!(
                "the supervision loop has not finished a turn for {} seconds; see the log of `lanewarden run`",
                silent / 1000
            )
        })
    }
}

/// The routes. GET and HEAD only; everything else is answered as text.
pub fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/", get(status_page))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/lanes", get(lanes))
        .method_not_allowed_fallback(async || {
            let allow = [(header::ALLOW, "GET, HEAD")];
            (
                allow,
                plain(
                    StatusCode::METHOD_NOT_ALLOWED,
                    "only GET and HEAD are answered here".to_owned(),
                ),
            )
        })
        .fallback(async || {
            let places = "nothing is here; try /, /metrics, /healthz, /readyz or /api/v1/lanes";
            plain(StatusCode::NOT_FOUND, places.to_owned())
        })
        .with_state(shared)
}

fn plain(status: StatusCode, mut text: String) -> Response {
    text.push('\n');
    let headers = [(header::CONTENT_TYPE, TEXT_TYPE), (header::CACHE_CONTROL, "no-store")];
    (status, headers, text).into_response()
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    match shared.metrics.page(&shared.view()) {
        Ok(page) => ([(header::CONTENT_TYPE, METRICS_TYPE)], page).into_response(),
        Err(error) => {
            tracing::error!(%error, "the metrics page cannot be written");
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the metrics page cannot be written".to_owned(),
            )
        }
    }
}

async fn healthz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.stalled(Now::read()) {
        None => plain(StatusCode::OK, "ok".to_owned()),
        Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn readyz(State(shared): State<Arc<Shared>>) -> Response {
    match shared.stalled(Now::read()).or_else(|| not_ready(&shared.view())) {
        None => plain(StatusCode::OK, "ready".to_owned()),
        Some(why) => plain(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

/// Why the box is not ready; `None` if it is.
fn not_ready(view: &BoxView) -> Option<String> {
    if view.ready {
        return None;
    }
    let mut why = Vec::new();
    if !view.keeper_up {
        why.push("the keeper does not answer; see `systemctl status lanewarden-keeper`".to_owned());
    }
    why.extend(view.degraded.iter().map(|text| crate::text::harmless(text)));
    if why.is_empty() {
        why.push("survivors are still being adopted".to_owned());
    }
    Some(format!("not ready: {}", why.join("; ")))
}

async fn lanes(State(shared): State<Arc<Shared>>) -> Response {
    let headers =
        [(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, Json(shared.view().as_ref())).into_response()
}

async fn status_page(State(shared): State<Arc<Shared>>) -> Response {
    let now = Now::read();
    let headers = [
        (header::CONTENT_TYPE, HTML_TYPE),
        (header::CACHE_CONTROL, "no-store"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    let page = page::page(&shared.view(), shared.stalled(now).as_deref(), now.unix_ms);
    (headers, page).into_response()
}

/// Starts the server on a thread of its own, so that it answers while the loop is busy or hangs. The address comes
/// through the watch once it is bound; the thread ends with the process.
///
/// # Errors
/// The thread or its runtime could not be made.
pub fn start(
    listen: SocketAddr,
    shared: Arc<Shared>,
) -> io::Result<watch::Receiver<Option<SocketAddr>>> {
    let (bound, address) = watch::channel(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("web".to_owned()).spawn(move || {
        runtime.block_on(serve(listen, shared, bound));
    })?;
    Ok(address)
}

/// Serves for ever. While the address is taken it says so once, and tries again every five seconds.
pub async fn serve(
    listen: SocketAddr,
    shared: Arc<Shared>,
    bound: watch::Sender<Option<SocketAddr>>,
) -> Infallible {
    serve_at(listen, shared, bound, RETRY, IDLE).await
}

async fn serve_at(
    listen: SocketAddr,
    shared: Arc<Shared>,
    bound: watch::Sender<Option<SocketAddr>>,
    retry: Duration,
    idle: Duration,
) -> Infallible {
    let mut told = None;
    loop {
        if let Err(error) = serve_once(listen, &shared, &bound, idle).await
            && told != Some(error.kind())
        {
            told = Some(error.kind());
            tracing::error!(
                %listen, %error,
                "no metrics and status page: the address cannot be listened on; free it or change [metrics] listen. \
                 Supervision goes on, and it is tried again every 5 seconds"
            );
        }
        bound.send_replace(None);
        tokio::time::sleep(retry).await;
    }
}

async fn serve_once(
    listen: SocketAddr,
    shared: &Arc<Shared>,
    bound: &watch::Sender<Option<SocketAddr>>,
    idle: Duration,
) -> io::Result<()> {
    let listener = TcpListener::bind(listen).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "metrics and status page");
    bound.send_replace(Some(address));
    let app = router(Arc::clone(shared))
        .layer(middleware::from_fn_with_state(Hosts::of(address), guard::check));
    axum::serve(Bounded::new(listener, idle), app).await
}
