//! One POST to an ntfy server, and what came of it.
//!
//! Everything goes to the server's root with the topic in the body: the same object posted to the topic's own address
//! would show on the phone as JSON. Text never travels in a header or an address. Must be called within a tokio
//! runtime with time and network.

use std::{
    error::Error as StdError,
    fmt, io,
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use reqwest::{
    Client, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
    redirect::Policy,
};
use serde::Serialize;

use crate::{
    credential::{Credential, CredentialError},
    delivery::{Delivery, Reason, classify},
    render::Message,
    text,
};

/// Largest part of an answer that is read. ntfy's own answers repeat the message and stay far below.
const ANSWER_LIMIT: usize = 64 * 1_024;

/// Where notices go, and how long one attempt may take.
#[derive(Clone)]
pub struct Target {
    /// The server's root, `https://ntfy.example`.
    pub server: String,
    /// The topic, 1 to 64 of `[-_A-Za-z0-9]`. On a server without accounts it is as good as a password, so it is shown
    /// shortened.
    pub topic: String,
    /// The access token, if the server wants one.
    pub credential: Option<Credential>,
    /// Longest time for a connection.
    pub connect_timeout: Duration,
    /// Longest time for the whole attempt, the answer included.
    pub total_timeout: Duration,
}

impl Target {
    /// A target with the usual times: 5 s to connect, 15 s in all.
    #[must_use]
    pub fn new(
        server: impl Into<String>,
        topic: impl Into<String>,
        credential: Option<Credential>,
    ) -> Self {
        Self {
            server: server.into(),
            topic: topic.into(),
            credential,
            connect_timeout: Duration::from_secs(5),
            total_timeout: Duration::from_secs(15),
        }
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            // The address may carry a password until it has been checked.
            .field("server", &"[not shown]")
            .field("topic", &format_args!("{}...", text::prefix(&self.topic, 3)))
            .field("credential", &self.credential)
            .field("connect_timeout", &self.connect_timeout)
            .field("total_timeout", &self.total_timeout)
            .finish()
    }
}

/// Why a target cannot be used. Not one of these shows the address or the topic.
#[derive(Debug, thiserror::Error)]
pub enum CourierError {
    /// The topic has no legal spelling.
    #[error("use the ntfy topic: it is 1 to 64 of A-Z, a-z, 0-9, `-` and `_`; check ntfy.topic")]
    Topic,
    /// The topic is a page of the server.
    #[error("use the ntfy topic: the server keeps this name for itself; choose another ntfy.topic")]
    ReservedTopic,
    /// The address is none, or not one of the web.
    #[error("use the ntfy server: {fault}; ntfy.server is its root, such as https://ntfy.example")]
    Server {
        /// What is wrong with it.
        fault: &'static str,
    },
}

/// Names that ntfy's server answers itself (server/server.go, `disallowedTopics` and its routes).
const RESERVED: [&str; 10] =
    ["docs", "static", "file", "app", "metrics", "account", "settings", "signup", "login", "v1"];

/// Posts messages to one topic of one server.
pub struct Courier {
    root: Url,
    topic: String,
    credential: Mutex<Option<Credential>>,
    connect_timeout: Duration,
    total_timeout: Duration,
    client: OnceLock<Client>,
}

impl fmt::Debug for Courier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Courier")
            .field("host", &self.host())
            .field("topic", &format_args!("{}...", text::prefix(&self.topic, 3)))
            .finish_non_exhaustive()
    }
}

impl Courier {
    /// Checks the target. Nothing is connected and no client is built yet.
    ///
    /// # Errors
    /// If topic or server cannot be right.
    pub fn new(target: Target) -> Result<Self, CourierError> {
        let Target { server, topic, credential, connect_timeout, total_timeout } = target;
        check_topic(&topic)?;
        Ok(Self {
            root: root(&server)?,
            topic,
            credential: Mutex::new(credential),
            connect_timeout,
            total_timeout,
            client: OnceLock::new(),
        })
    }

    /// The server's host and port, for people: no path, no topic, no secret.
    #[must_use]
    pub fn host(&self) -> String {
        let host = self.root.host_str().unwrap_or_default();
        self.root.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Reads the token's file again; true if it holds another token now. Worth a call after
    /// [`Reason::Unauthorized`]. Reads a file, so not on a thread that must not wait.
    ///
    /// # Errors
    /// If the file cannot be read or is no token file; the token at hand stays.
    pub fn reread_credential(&self) -> Result<bool, CredentialError> {
        let Some(old) = self.credential() else { return Ok(false) };
        let new = old.reread()?;
        let changed = new != old;
        *self.credential.lock().unwrap_or_else(PoisonError::into_inner) = Some(new);
        Ok(changed)
    }

    /// Makes one attempt, which takes at most the target's total time. Never fails, never panics.
    pub async fn publish(&self, message: &Message) -> Delivery {
        let credential = self.credential();
        let delivery = match self.attempt(message, credential.as_ref()).await {
            Ok(delivery) => delivery,
            Err(failure) => failure.into_delivery(),
        };
        let delivery = credential.map_or(delivery.clone(), |c| without_token(delivery, &c));
        tracing::debug!(?delivery, "attempt to publish a notice");
        delivery
    }

    fn credential(&self) -> Option<Credential> {
        self.credential.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn attempt(
        &self,
        message: &Message,
        credential: Option<&Credential>,
    ) -> Result<Delivery, Failure> {
        let mut request = self
            .client()?
            .post(self.root.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(encode(&self.topic, message));
        if let Some(credential) = credential {
            let mut value = HeaderValue::from_str(&credential.bearer())
                .map_err(|_| Failure::client("the token does not fit a header"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let mut answer = request.send().await.map_err(Failure::sending)?;
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| value.to_str().ok())
            .map(str::to_owned);
        let mut body = Vec::new();
        while body.len() < ANSWER_LIMIT {
            match answer.chunk().await {
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                // An error needs no body to be understood; a success without its whole body is none.
                Err(_) if status != 200 => break,
                Err(error) => return Err(Failure::answering(error)),
            }
        }
        Ok(classify(status, retry_after.as_deref(), &body, &self.topic))
    }

    /// The client, built at the first use that succeeds: without CA certificates that fails, and is tried
    /// again with the next notice.
    fn client(&self) -> Result<&Client, Failure> {
        if let Some(client) = self.client.get() {
            return Ok(client);
        }
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Somebody else may have been quicker, which is as good.
            drop(rustls::crypto::ring::default_provider().install_default());
        }
        let mut builder = Client::builder();
        if self.root.scheme() == "http" {
            // Nothing is encrypted and no redirect is followed, so missing CA certificates are no reason to be quiet.
            builder = builder.tls_certs_only([]);
        }
        let client = builder
            .user_agent(concat!("lanewarden/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.connect_timeout)
            .timeout(self.total_timeout)
            .redirect(Policy::none())
            .build()
            .map_err(|error| Failure::client(&chain(&error.without_url())))?;
        Ok(self.client.get_or_init(|| client))
    }
}

/// The request body: one JSON object with the keys of ntfy's publish API, in this order.
#[must_use]
pub fn encode(topic: &str, message: &Message) -> Vec<u8> {
    #[derive(Serialize)]
    struct Payload<'a> {
        topic: &'a str,
        #[serde(flatten)]
        message: &'a Message,
    }
    // Strings, numbers and lists of strings cannot fail to be encoded into memory.
    serde_json::to_vec(&Payload { topic, message }).unwrap_or_default()
}

/// Whether `topic` is one that ntfy takes.
///
/// # Errors
/// If it has an illegal spelling or is a name that the server keeps for itself.
pub fn check_topic(topic: &str) -> Result<(), CourierError> {
    // An event's identity and a topic follow the same grammar.
    if !crate::render::is_event_id(topic) {
        return Err(CourierError::Topic);
    }
    if RESERVED.contains(&topic) {
        return Err(CourierError::ReservedTopic);
    }
    Ok(())
}

fn root(server: &str) -> Result<Url, CourierError> {
    let fault = |fault| CourierError::Server { fault };
    let mut url = Url::parse(server.trim()).map_err(|_| fault("it is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(fault("it is neither http nor https"));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(fault("it has no host"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(fault("it has a user or password, which belongs into ntfy.token_file"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(fault("it has a query or fragment"));
    }
    if !url.path().ends_with('/') {
        let path = format!("{}/", url.path());
        url.set_path(&path);
    }
    Ok(url)
}

/// An attempt that brought no answer.
struct Failure {
    reason: Reason,
    detail: String,
}

impl Failure {
    fn client(detail: &str) -> Self {
        Self { reason: Reason::Client, detail: detail.to_owned() }
    }

    fn sending(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let reason = if error.is_builder() {
            Reason::Client
        } else if error.is_timeout() {
            Reason::Timeout
        } else if error.is_dns() {
            Reason::Dns
        } else if is_tls(&error) {
            Reason::Tls
        } else {
            // Refused, unreachable, or broken before an answer: the same to whoever has to wait.
            Reason::Connect
        };
        Self { reason, detail: chain(&error) }
    }

    fn answering(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let reason = if error.is_timeout() { Reason::Timeout } else { Reason::Server };
        Self { reason, detail: chain(&error) }
    }

    fn into_delivery(self) -> Delivery {
        Delivery::Retry { reason: self.reason, after: None, detail: text::cut(&self.detail, 300) }
    }
}

/// Whether rustls refused. An `io::Error` hides what it wraps from `source`, so it is asked for it.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<rustls::Error>() {
            return true;
        }
        next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        };
    }
    false
}

fn chain(error: &dyn StdError) -> String {
    let mut said = text::line(&error.to_string());
    let mut next = error.source();
    while let Some(error) = next {
        let more = text::line(&error.to_string());
        // Several layers of the client repeat their source's text.
        if !said.ends_with(&more) {
            said.push_str(": ");
            said.push_str(&more);
        }
        next = error.source();
    }
    said
}

fn without_token(delivery: Delivery, credential: &Credential) -> Delivery {
    match delivery {
        Delivery::Accepted { id } => Delivery::Accepted { id: credential.redact(&id) },
        Delivery::Retry { reason, after, detail } => {
            Delivery::Retry { reason, after, detail: credential.redact(&detail) }
        }
        Delivery::Permanent { reason, detail } => {
            Delivery::Permanent { reason, detail: credential.redact(&detail) }
        }
    }
}

#[cfg(test)]
mod tests;
