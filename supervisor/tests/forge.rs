//! Open pull requests, asked of a server on a real socket.

#![expect(clippy::unwrap_used, reason = "tests fail at the first surprise")]

mod forge_support;

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use forge_support::{Answer, Server, answer, pulls};
use lanewarden::{
    config::{Forge, Pulls},
    forge::{OpenPulls, Trouble},
    verdict::OpenPr,
};

const LONG: Duration = Duration::from_secs(20);

fn asker(server: &Server, token_file: Option<PathBuf>, deadline: Duration) -> OpenPulls {
    let pulls = Pulls::Github {
        api: server.url.clone(),
        repo: "octo-org/site.x".to_owned(),
        token_file,
        from_service_manager: false,
    };
    OpenPulls::new(None, Some(&Forge { pulls, deadline }), LONG)
}

fn next(server_host: &str, page: usize) -> String {
    format!(
        r#"Link: <http://{server_host}/repositories/1/pulls?state=open&per_page=100&page={page}>; rel="next", <http://{server_host}/x>; rel="last""#
    )
}

/// The request lines so far, without their version.
fn paths(server: &Server) -> Vec<String> {
    let line = |head: &String| head.lines().next().unwrap().replace(" HTTP/1.1", "");
    server.asked().iter().map(line).collect()
}

fn host(head: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    line.trim().to_owned()
}

#[tokio::test]
async fn one_listing_answers_for_all_issues_and_says_who_asks() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "ghp_s3cret\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let server =
        Server::start(|_, _| answer("200 OK", &[], &pulls(&["issue-7-x", "issue-99", "main"])));
    let asker = asker(&server, Some(file), LONG);
    for (issue, open) in [(7, OpenPr::Yes), (8, OpenPr::No), (9, OpenPr::No), (99, OpenPr::Yes)] {
        let told = asker.ask(issue).await;
        assert_eq!((told.open, told.trouble), (open, None), "{issue}");
    }
    assert_eq!(paths(&server), ["GET /repos/octo-org/site.x/pulls?state=open&per_page=100"]);
    let head = server.asked().first().unwrap().to_lowercase();
    for line in [
        "authorization: bearer ghp_s3cret",
        "accept: application/vnd.github+json",
        "x-github-api-version: 2022-11-28",
        concat!("user-agent: lanewarden/", env!("CARGO_PKG_VERSION")),
    ] {
        assert!(head.lines().any(|has| has == line), "no {line:?} in {head}");
    }
    assert!(!format!("{asker:?}").contains("s3cret"), "{asker:?}");
}

#[tokio::test]
async fn pages_are_followed_and_looked_at_again_against_gaps() {
    // While the first look is between two pages, a pull request moves from the second page to the first.
    let server = Server::start(|head, number| {
        let second = head.contains("page=2");
        match (second, number) {
            (false, 1) => answer("200 OK", &[&next(&host(head), 2)], &pulls(&["issue-1"])),
            (false, _) => answer("200 OK", &[&next(&host(head), 2)], &pulls(&["issue-2"])),
            (true, _) => answer("200 OK", &[], &pulls(&["issue-3"])),
        }
    });
    let asker = asker(&server, None, LONG);
    for (issue, open) in [(1, OpenPr::Yes), (2, OpenPr::Yes), (3, OpenPr::Yes), (4, OpenPr::No)] {
        assert_eq!(asker.ask(issue).await.open, open, "{issue}");
    }
    assert_eq!(
        paths(&server),
        [
            "GET /repos/octo-org/site.x/pulls?state=open&per_page=100",
            "GET /repositories/1/pulls?state=open&per_page=100&page=2",
            "GET /repos/octo-org/site.x/pulls?state=open&per_page=100",
        ]
    );
    assert!(!server.asked().first().unwrap().to_lowercase().contains("authorization"));
}

#[tokio::test]
async fn an_old_answer_is_asked_for_again_only_if_it_changed() {
    let server = Server::start(|head, number| {
        let known = head.lines().any(|line| line == "if-none-match: W/\"one\"");
        match (number, known) {
            (1, false) => answer("200 OK", &["ETag: W/\"one\""], &pulls(&["issue-7"])),
            (2, true) => answer("304 Not Modified", &[], ""),
            (3, true) => answer("200 OK", &["ETag: W/\"two\""], "[]"),
            _ => answer("500 Surprise", &[], ""),
        }
    });
    let asker = asker(&server, None, LONG).believed_for(Duration::ZERO);
    for open in [OpenPr::Yes, OpenPr::Yes, OpenPr::No] {
        assert_eq!(asker.ask(7).await.open, open);
    }
    assert_eq!(server.asked().len(), 3);
}

#[tokio::test]
async fn a_full_last_page_is_always_asked_for_whole() {
    let heads: Vec<String> = (0..100).map(|n| format!("b-{n}")).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let body = pulls(&heads);
    let server = Server::start(move |_, _| answer("200 OK", &["ETag: \"full\""], &body));
    let asker = asker(&server, None, LONG).believed_for(Duration::ZERO);
    for _ in 0..2 {
        assert_eq!(asker.ask(7).await.open, OpenPr::No);
    }
    assert!(server.asked().iter().all(|head| !head.contains("if-none-match")));
}

#[tokio::test]
async fn whatever_goes_wrong_is_unknown_and_not_asked_for_each_claim() {
    type Case = (&'static str, fn(&str, usize) -> Answer, Trouble);
    let cases: [Case; 14] = [
        (
            "primary",
            |_, _| {
                answer("403 Forbidden", &["X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 1"], "{}")
            },
            Trouble::RateLimited,
        ),
        (
            "secondary",
            |_, _| {
                answer(
                    "403 Forbidden",
                    &[],
                    r#"{"message":"You have exceeded a secondary rate limit"}"#,
                )
            },
            Trouble::RateLimited,
        ),
        ("429", |_, _| answer("429 Too Many", &["Retry-After: 120"], ""), Trouble::RateLimited),
        ("forbidden", |_, _| answer("403 Forbidden", &[], "{}"), Trouble::Unauthorized),
        ("401", |_, _| answer("401 Unauthorized", &[], "{}"), Trouble::Unauthorized),
        ("404", |_, _| answer("404 Not Found", &[], "{}"), Trouble::NotFound),
        (
            "301",
            |_, _| answer("301 Moved", &["Location: /repositories/1/pulls"], ""),
            Trouble::Moved,
        ),
        ("500", |_, _| answer("500 Oops", &[], "[]"), Trouble::Server),
        ("unasked 304", |_, _| answer("304 Not Modified", &[], ""), Trouble::Garbage),
        ("html", |_, _| answer("200 OK", &[], "<html>login</html>"), Trouble::Garbage),
        (
            "half a body",
            |_, _| Some(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n[]".to_vec()),
            Trouble::Connect,
        ),
        ("no http", |_, _| Some(b"\x16\x03\x01 garbage \xff\r\n\r\n".to_vec()), Trouble::Connect),
        (
            "a link that is none",
            |_, _| answer("200 OK", &["Link: next please"], "[]"),
            Trouble::Garbage,
        ),
        (
            "the second page fails",
            |head, number| match number {
                1 => answer("200 OK", &[&next(&host(head), 2)], "[]"),
                _ => answer("502 Bad Gateway", &[], ""),
            },
            Trouble::Server,
        ),
    ];
    for (name, how, trouble) in cases {
        let server = Server::start(how);
        let asker = asker(&server, None, LONG);
        let told = asker.ask(7).await;
        assert_eq!((told.open, told.trouble), (OpenPr::Unknown, Some(trouble)), "{name}");
        let requests = server.asked().len();
        assert_eq!(asker.ask(8).await.trouble, Some(trouble), "{name}");
        assert_eq!(server.asked().len(), requests, "{name}");
    }
}

#[tokio::test]
async fn a_limit_is_kept_even_where_no_answer_is_believed() {
    let server = Server::start(|_, number| match number {
        1 => answer("429 Too Many", &["Retry-After: 3600"], ""),
        _ => answer("200 OK", &[], "[]"),
    });
    let limited = asker(&server, None, LONG).believed_for(Duration::ZERO);
    for _ in 0..3 {
        assert_eq!(limited.ask(7).await.trouble, Some(Trouble::RateLimited));
    }
    assert_eq!(server.asked().len(), 1);
    // A last request that succeeded is an answer, and the last one.
    let server = Server::start(|_, _| {
        answer("200 OK", &["X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 99999999999"], "[]")
    });
    let last = asker(&server, None, LONG).believed_for(Duration::ZERO);
    assert_eq!(last.ask(7).await.open, OpenPr::No);
    assert_eq!(last.ask(7).await.trouble, Some(Trouble::RateLimited));
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_server_that_hangs_costs_the_deadline_once() {
    let server = Server::start(|_, _| None);
    let asker = asker(&server, None, Duration::from_millis(200));
    for issue in 1..50 {
        assert_eq!(asker.ask(issue).await.trouble, Some(Trouble::Timeout));
    }
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn the_token_goes_to_nobody_else() {
    let other = Server::start(|_, _| answer("200 OK", &[], "[]"));
    let link = format!("Link: <{}/pulls?page=2>; rel=\"next\"", other.url);
    let server = Server::start(move |_, _| answer("200 OK", &[&link], "[]"));
    let told = asker(&server, None, LONG).ask(7).await;
    assert_eq!((told.open, told.trouble), (OpenPr::Unknown, Some(Trouble::Garbage)));
    assert!(other.asked().is_empty());
}

#[tokio::test]
async fn more_than_a_thousand_are_no_proof_of_absence() {
    let server = Server::start(|head, number| {
        let found = format!("issue-{number}");
        answer("200 OK", &[&next(&host(head), number + 1)], &pulls(&[&found]))
    });
    let asker = asker(&server, None, LONG);
    assert_eq!(asker.ask(10).await.open, OpenPr::Yes);
    assert_eq!(asker.ask(777).await.trouble, Some(Trouble::TooMany));
}

#[tokio::test]
async fn a_token_that_others_can_read_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    fs::write(&file, "ghp_s3cret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let server = Server::start(|_, _| answer("200 OK", &[], "[]"));
    assert_eq!(asker(&server, Some(file), LONG).ask(7).await.trouble, Some(Trouble::Token));
    let none = dir.path().join("none");
    assert_eq!(asker(&server, Some(none), LONG).ask(7).await.trouble, Some(Trouble::Token));
    assert!(server.asked().is_empty());
}

#[tokio::test]
async fn nobody_and_a_command_have_three_answers_too() {
    assert_eq!(OpenPulls::new(None, None, LONG).ask(7).await.trouble, Some(Trouble::NotConfigured));
    let argv = ["test", "7", "="].map(str::to_owned);
    let forge = Forge { pulls: Pulls::Command(argv.into()), deadline: LONG };
    let command = OpenPulls::new(None, Some(&forge), LONG);
    assert_eq!(command.ask(7).await.open, OpenPr::Yes);
    assert_eq!(command.ask(8).await.open, OpenPr::No);
    let hook = OpenPulls::new(Some("exit 1"), Some(&forge), LONG);
    assert_eq!(hook.ask(7).await.open, OpenPr::No, "the environment outranks the file");
}
