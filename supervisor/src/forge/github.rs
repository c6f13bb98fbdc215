//! GitHub's REST interface: `GET /repos/OWNER/NAME/pulls?state=open`, page by page.

#![expect(
    clippy::disallowed_methods,
    reason = "a listing has a deadline over all of its pages, and a reset of limits is a moment of the wall clock"
)]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use lanewarden_notify::credential::Credential;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{
        ACCEPT, AUTHORIZATION, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH, LINK,
        RETRY_AFTER,
    },
    redirect::Policy,
};
use tokio::time::Instant;

use super::{
    Trouble,
    page::{self, Limits, Listing, PAGES, PER_PAGE},
};
use crate::clock::unix_ms;

/// Largest page that is read. A pull request takes some 20 KiB, and its text may have 64 KiB.
const BODY_MAX: usize = 32 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One repository. Its token is read when it is asked.
#[derive(Debug)]
pub struct Github {
    api: String,
    repo: String,
    token_file: Option<PathBuf>,
    from_service_manager: bool,
    client: OnceLock<Client>,
    /// Pages by their address, to be asked for again only if they changed.
    known: Mutex<BTreeMap<String, Known>>,
}

#[derive(Debug, Clone)]
struct Known {
    etag: String,
    page: Page,
}

#[derive(Debug, Clone)]
struct Page {
    heads: Vec<String>,
    next: Option<Url>,
}

/// What stops a listing, and for how long nothing more may be asked.
struct Stop(Trouble, Option<Duration>);

impl From<Trouble> for Stop {
    fn from(trouble: Trouble) -> Self {
        Self(trouble, None)
    }
}

impl Github {
    /// A repository below an interface's root. Nothing is read or connected yet.
    #[must_use]
    pub fn new(
        api: &str,
        repo: &str,
        token_file: Option<PathBuf>,
        from_service_manager: bool,
    ) -> Self {
        Self {
            api: api.to_owned(),
            repo: repo.to_owned(),
            token_file,
            from_service_manager,
            client: OnceLock::new(),
            known: Mutex::default(),
        }
    }

    /// The head branches of the open pull requests, whole or not at all; and for how long the server wants no more
    /// requests, if it said so.
    pub async fn list(&self, end: Instant) -> (Result<Listing, Trouble>, Option<Duration>) {
        match self.read(end).await {
            Ok((listing, pause)) => (Ok(listing), pause),
            Err(Stop(trouble, pause)) => {
                tracing::debug!(%trouble, ?pause, "open pull requests cannot be told");
                (Err(trouble), pause)
            }
        }
    }

    async fn read(&self, end: Instant) -> Result<(Listing, Option<Duration>), Stop> {
        let token = self.token()?;
        let first =
            format!("{}/repos/{}/pulls?state=open&per_page={PER_PAGE}", self.api, self.repo);
        let first = Url::parse(&first).map_err(|_| Trouble::Client)?;
        let mut listing = Listing::default();
        let mut seen = Vec::new();
        let mut next = Some(first.clone());
        let mut pause = None;
        while let Some(url) = next.take() {
            if seen.len() == PAGES {
                listing.more = true;
                break;
            }
            if pause.is_some() {
                // That was the last request of the window, and there are more pages.
                return Err(Stop(Trouble::RateLimited, pause));
            }
            let page;
            (page, pause) = self.page(&url, token.as_ref(), end).await?;
            listing.heads.extend(page.heads);
            next = page.next;
            if next.as_ref().is_some_and(|next| next.origin() != first.origin()) {
                // The token goes to nobody else, and without the next page nothing is known.
                return Err(Trouble::Garbage.into());
            }
            seen.push(url);
        }
        // A pull request that is closed between two pages moves those behind it forward, over the gap. What is found in
        // a second look at all but the last page counts too; an unchanged page costs nothing of the limit.
        seen.pop();
        for url in seen {
            if pause.is_some() {
                return Err(Stop(Trouble::RateLimited, pause));
            }
            let page;
            (page, pause) = self.page(&url, token.as_ref(), end).await?;
            listing.heads.extend(page.heads);
        }
        Ok((listing, pause))
    }

    fn token(&self) -> Result<Option<Credential>, Trouble> {
        let Some(file) = &self.token_file else { return Ok(None) };
        let token = if self.from_service_manager {
            Credential::from_service_manager(file)
        } else {
            Credential::from_file(file)
        };
        token.map(Some).map_err(|error| {
            tracing::warn!(%error, "the forge's token cannot be used");
            Trouble::Token
        })
    }

    /// One page; and the pause that is wanted after it.
    async fn page(
        &self,
        url: &Url,
        token: Option<&Credential>,
        end: Instant,
    ) -> Result<(Page, Option<Duration>), Stop> {
        let known = self.known().get(url.as_str()).cloned();
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/vnd.github+json"));
        headers.insert("x-github-api-version", HeaderValue::from_static("2022-11-28"));
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&token.bearer()).map_err(|_| Trouble::Token)?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(known) = &known {
            let etag = HeaderValue::from_str(&known.etag).map_err(|_| Trouble::Garbage)?;
            headers.insert(IF_NONE_MATCH, etag);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Trouble::Timeout.into());
        }
        let request = self.client()?.get(url.clone()).headers(headers).timeout(left);
        let answer = request.send().await.map_err(|error| sending(&error))?;
        let status = answer.status();
        let head = answer.headers().clone();
        let body = body(answer, status).await?;
        let limits = Limits {
            retry_after: text(&head, &RETRY_AFTER),
            remaining: text(&head, &HeaderName::from_static("x-ratelimit-remaining")),
            reset: text(&head, &HeaderName::from_static("x-ratelimit-reset")),
        };
        let pause = page::pause(status.as_u16(), &limits, &body, unix_ms() / 1000);
        let pause = pause.map(Duration::from_secs);
        match (status, known) {
            (StatusCode::OK, _) => Ok((self.keep(url, &head, &body)?, pause)),
            (StatusCode::NOT_MODIFIED, Some(known)) => Ok((known.page, pause)),
            _ => Err(Stop(refusal(status, pause.is_some()), pause)),
        }
    }

    /// Reads a page and remembers it under its tag.
    fn keep(&self, url: &Url, head: &HeaderMap, body: &[u8]) -> Result<Page, Trouble> {
        let heads = page::heads(body).ok_or(Trouble::Garbage)?;
        let next = match head.get(LINK) {
            None => None,
            Some(link) => page::next(link.to_str().map_err(|_| Trouble::Garbage)?)?,
        };
        let next = next.map(|next| url.join(&next)).transpose().map_err(|_| Trouble::Garbage)?;
        let page = Page { heads, next };
        // A full last page may get a successor without changing itself: it is always asked for whole.
        let can_end_unseen = page.next.is_none() && page.heads.len() >= PER_PAGE;
        match text(head, &ETAG).filter(|_| !can_end_unseen) {
            Some(etag) => {
                self.known().insert(url.to_string(), Known { etag, page: page.clone() });
            }
            None => {
                self.known().remove(url.as_str());
            }
        }
        Ok(page)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn client(&self) -> Result<&Client, Trouble> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may have been quicker, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut builder = Client::builder();
        if self.api.starts_with("http://") {
            // This very host, unencrypted: it needs no CA certificates.
            builder = builder.tls_certs_only([]);
        }
        let client = builder
            .user_agent(concat!("lanewarden/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(Policy::none())
            .build()
            .map_err(|_| Trouble::Client)?;
        Ok(self.client.get_or_init(|| client))
    }
}

fn text(head: &HeaderMap, name: &HeaderName) -> Option<String> {
    head.get(name)?.to_str().ok().map(str::to_owned)
}

/// The whole body: half a list would read as a shorter one.
async fn body(mut answer: Response, status: StatusCode) -> Result<Vec<u8>, Trouble> {
    let mut body = Vec::new();
    loop {
        match answer.chunk().await {
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Ok(None) => return Ok(body),
            // A refusal is understood without its text.
            Err(_) if status != StatusCode::OK => return Ok(body),
            Err(error) => return Err(sending(&error)),
        }
        if body.len() > BODY_MAX {
            return Err(Trouble::Garbage);
        }
    }
}

fn sending(error: &reqwest::Error) -> Trouble {
    if error.is_builder() {
        Trouble::Client
    } else if error.is_timeout() {
        Trouble::Timeout
    } else {
        Trouble::Connect
    }
}

fn refusal(status: StatusCode, is_limit: bool) -> Trouble {
    match status.as_u16() {
        403 | 429 if is_limit => Trouble::RateLimited,
        401 | 403 => Trouble::Unauthorized,
        404 | 410 => Trouble::NotFound,
        301 | 302 | 307 | 308 => Trouble::Moved,
        500..=599 => Trouble::Server,
        _ => Trouble::Garbage,
    }
}
