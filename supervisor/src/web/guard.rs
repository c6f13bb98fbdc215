//! Against DNS rebinding: a page in a browser on this box may make a name of its own point to 127.0.0.1 and read what is
//! served there. It cannot choose the Host header, so a listener on loopback answers only to names of loopback.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::Response,
};

/// Which Host headers are answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hosts {
    listen: IpAddr,
}

impl Hosts {
    /// The rule for a listener that is bound to this address.
    pub(super) fn of(bound: SocketAddr) -> Self {
        Self { listen: bound.ip() }
    }

    /// Whether a request with these headers is answered. A listener that others can reach has names that we do not know.
    fn admit(self, headers: &HeaderMap) -> bool {
        if !self.listen.is_loopback() {
            return true;
        }
        let mut hosts = headers.get_all(header::HOST).iter().peekable();
        hosts.peek().is_some()
            && hosts.all(|host| host.to_str().is_ok_and(|text| self.is_own(name_of(text))))
    }

    fn is_own(self, name: &str) -> bool {
        let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || bare.parse::<IpAddr>().is_ok_and(|ip| ip == self.listen || ip.is_loopback())
    }
}

/// A Host header without its port: behind a forwarded port it is another than ours.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

/// Refuses a request that came by a foreign name.
pub(super) async fn check(State(hosts): State<Hosts>, request: Request, next: Next) -> Response {
    if hosts.admit(request.headers()) {
        return next.run(request).await;
    }
    super::plain(
        StatusCode::FORBIDDEN,
        "this listener answers only to localhost, 127.0.0.1 and [::1]; reach it by one of these names".to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(listen: &str, hosts: &[&str]) -> bool {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(header::HOST, host.parse().unwrap());
        }
        Hosts::of(listen.parse().unwrap()).admit(&headers)
    }

    #[test]
    fn loopback_answers_to_its_own_names_only() {
        for good in
            ["localhost", "LOCALHOST:9464", "127.0.0.1:1", "127.0.0.1", "[::1]:9464", "[::1]"]
        {
            assert!(admits("127.0.0.1:9464", &[good]), "{good}");
        }
        let bad = [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil:80",
            "",
            "10.0.0.1",
            "::1:x",
        ];
        for bad in bad {
            assert!(!admits("127.0.0.1:9464", &[bad]), "{bad}");
        }
        assert!(!admits("[::1]:9464", &[]), "no Host at all");
        assert!(!admits("[::1]:9464", &["localhost", "evil.example"]), "two of them");
    }

    #[test]
    fn a_listener_for_others_has_names_that_we_do_not_know() {
        assert!(admits("0.0.0.0:9464", &["box-a.example"]));
        assert!(admits("192.0.2.7:9464", &[]));
    }
}
