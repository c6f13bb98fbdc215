//! A page server on a real socket: records every request byte by byte, and answers as the test says.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::wait::PATIENCE;

/// How a request is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// As ntfy does: 200 with a message id and the topic.
    Accept,
    /// With this status and body.
    Status(u16, String),
    /// 200 with a login page, as a captive portal does.
    Html,
    /// Never.
    Hang,
    /// The connection is closed before a byte is read: the server is down.
    Down,
}

/// A request that came.
#[derive(Debug, Clone)]
pub struct Page {
    /// Such as `POST`.
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body, byte by byte.
    pub body: Vec<u8>,
    /// When it was read whole, milliseconds since the epoch.
    pub at_ms: i64,
    /// Whether it was answered with [`Answer::Accept`].
    pub accepted: bool,
}

impl Page {
    /// The body as JSON; null if it is none.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// A text field of the body.
    #[must_use]
    pub fn text(&self, key: &str) -> String {
        self.json()[key].as_str().unwrap_or_default().to_owned()
    }
}

#[derive(Debug)]
struct Desk {
    pages: Vec<Page>,
    script: VecDeque<Answer>,
    usual: Answer,
    connections: usize,
}

/// The server. Its port stays bound while it is down.
#[derive(Debug, Clone)]
pub struct Ntfy {
    address: SocketAddr,
    desk: Arc<Mutex<Desk>>,
}

impl Ntfy {
    /// Listens on a free port.
    ///
    /// # Panics
    /// If the system gives none.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let desk = Desk {
            pages: Vec::new(),
            script: VecDeque::new(),
            usual: Answer::Accept,
            connections: 0,
        };
        let server = Self { address, desk: Arc::new(Mutex::new(desk)) };
        let own = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || own.serve(stream));
            }
        });
        server
    }

    /// Its address as a URL without a slash at the end.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Answers so from now on, once the script is used up.
    pub fn answer(&self, usual: Answer) {
        self.desk.lock().unwrap().usual = usual;
    }

    /// Answers the next requests so, one each.
    pub fn script(&self, answers: impl IntoIterator<Item = Answer>) {
        self.desk.lock().unwrap().script.extend(answers);
    }

    /// Everything that came.
    #[must_use]
    pub fn pages(&self) -> Vec<Page> {
        self.desk.lock().unwrap().pages.clone()
    }

    /// Connections so far, also those that were closed at once.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.desk.lock().unwrap().connections
    }

    /// Waits for an accepted page whose title contains `part`.
    pub fn page(&self, part: &str) -> Page {
        self.page_within(PATIENCE, part)
    }

    /// Waits at most this long for an accepted page whose title contains `part`.
    pub fn page_within(&self, patience: Duration, part: &str) -> Page {
        crate::until_within(patience, &format!("a page with {part:?} in its title"), || {
            let pages = self.pages();
            let found =
                pages.iter().find(|page| page.accepted && page.text("title").contains(part));
            found.cloned().ok_or_else(|| titles(&pages))
        })
    }

    /// Accepted pages whose title contains `part`.
    #[must_use]
    pub fn accepted(&self, part: &str) -> Vec<Page> {
        let pages = self.pages().into_iter();
        pages.filter(|page| page.accepted && page.text("title").contains(part)).collect()
    }

    fn next(&self) -> Answer {
        let mut desk = self.desk.lock().unwrap();
        desk.connections += 1;
        let usual = desk.usual.clone();
        desk.script.pop_front().unwrap_or(usual)
    }

    fn serve(&self, stream: TcpStream) {
        let answer = self.next();
        if answer == Answer::Down {
            drop(stream.shutdown(Shutdown::Both));
            return;
        }
        let Some(mut page) = read(&stream) else { return };
        page.accepted = answer == Answer::Accept;
        let topic = page.text("topic");
        let count = {
            let mut desk = self.desk.lock().unwrap();
            desk.pages.push(page);
            desk.pages.len()
        };
        match answer {
            Answer::Accept => {
                let body = serde_json::json!({
                    "id": format!("page{count:06}"), "time": 1, "event": "message", "topic": topic,
                });
                write(stream, 200, "application/json", &body.to_string());
            }
            Answer::Status(status, body) => write(stream, status, "application/json", &body),
            Answer::Html => write(stream, 200, "text/html", "<html>Please sign in</html>"),
            // Until the other side gives up.
            Answer::Hang => {
                drop(stream.set_read_timeout(Some(Duration::from_secs(120))));
                drop((&stream).read(&mut [0]));
            }
            Answer::Down => {}
        }
    }
}

/// The titles of pages, for messages of failed tests.
#[must_use]
pub fn titles(pages: &[Page]) -> Vec<String> {
    pages.iter().map(|page| format!("{} ({})", page.text("title"), page.accepted)).collect()
}

fn read(stream: &TcpStream) -> Option<Page> {
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let length = headers.iter().find(|(name, _)| name == "content-length");
    let length = length.and_then(|(_, value)| value.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Page { method, path, headers, body, at_ms: crate::daemon::unix_ms(), accepted: false })
}

fn write(mut stream: TcpStream, status: u16, kind: &str, body: &str) {
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())));
}
