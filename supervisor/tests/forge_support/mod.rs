//! A server that answers what it is told to, and keeps what it was asked, byte by byte.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard},
    thread,
};

/// How a request is answered: the bytes, or nothing for as long as the asker waits.
pub(crate) type Answer = Option<Vec<u8>>;

/// A forge on a free port of this host. Its threads end with the test's process.
pub(crate) struct Server {
    pub(crate) url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Answers by `answer`, which gets a request's head and its number, from 1.
    pub(crate) fn start(answer: impl Fn(&str, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (kept, answer) = (Arc::clone(&asked), Arc::new(answer));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || serve(stream, &kept, answer.as_ref()));
            }
        });
        Self { url, asked }
    }

    /// The heads of the requests so far.
    pub(crate) fn asked(&self) -> MutexGuard<'_, Vec<String>> {
        self.asked.lock().unwrap()
    }
}

fn serve(mut stream: TcpStream, kept: &Mutex<Vec<String>>, answer: &dyn Fn(&str, usize) -> Answer) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.extend_from_slice(&byte);
    }
    let head = String::from_utf8(head).unwrap();
    let number = {
        let mut kept = kept.lock().unwrap();
        kept.push(head.clone());
        kept.len()
    };
    match answer(&head, number) {
        Some(bytes) => drop(stream.write_all(&bytes)),
        // Until the asker hangs up.
        None => drop(stream.read(&mut byte)),
    }
}

/// An answer with a status line, further header lines and a body.
pub(crate) fn answer(status: &str, headers: &[&str], body: &str) -> Answer {
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    let text = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    );
    Some(text.into_bytes())
}

/// A page of pull requests with these head branches.
pub(crate) fn pulls(heads: &[&str]) -> String {
    let pulls: Vec<String> = heads
        .iter()
        .enumerate()
        .map(|(n, head)| {
            format!(
                r#"{{"number":{n},"title":"issue-8 \u0000","head":{{"ref":"{head}","sha":"a"}}}}"#
            )
        })
        .collect();
    format!("[{}]", pulls.join(","))
}
