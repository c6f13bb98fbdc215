//! A small client for what the daemon serves: one request a connection, everything of the answer.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// An answer.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, with their values.
    pub headers: Vec<(String, String)>,
    /// The body as text.
    pub body: String,
}

impl Response {
    /// The first header of this lower-case name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }
}

/// GETs a path.
///
/// # Errors
/// Whatever keeps an answer from coming, in words.
pub fn get(address: SocketAddr, path: &str) -> Result<Response, String> {
    let failed = |error: std::io::Error| format!("GET {path} from {address}: {error}");
    let mut stream =
        TcpStream::connect_timeout(&address, Duration::from_secs(5)).map_err(failed)?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(failed)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").ok_or("no end of the headers")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let response = Response { status: status.ok_or("no status")?, headers, body: body.to_owned() };
    if response.header("transfer-encoding").is_some() {
        return Err("the answer comes in chunks, which this client does not read".to_owned());
    }
    Ok(response)
}

/// The value of the first sample of a page whose name and labels are exactly these.
#[must_use]
pub fn sample(page: &str, series: &str) -> Option<f64> {
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))?;
    value.trim().parse().ok()
}
