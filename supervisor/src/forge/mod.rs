//! Which pull requests are open, asked of whoever knows. Three answers, to the end: whatever goes wrong is unknown, and
//! unknown never removes anything.
//!
//! | what | file |
//! |---|---|
//! | GitHub's REST interface: pages, conditional requests, limits | [`github`] |
//! | what its answers say (pure) | [`page`] |
//! | the operator's own command or hook | [`command`] |
//!
//! A pull request belongs to issue N if its head branch is `issue-N` or starts with `issue-N-`; text is never searched.
//! Answers are kept for one run of the program, with their age, and asked for again when they are older than
//! [`FRESH`].

#![expect(
    clippy::disallowed_methods,
    reason = "answers have an age, and questions a deadline, by the clock of the runtime"
)]

pub mod command;
pub mod github;
pub mod page;

use std::{collections::BTreeMap, time::Duration};

use lanewarden_probes::closed_set;
use tokio::{sync::Mutex, time::Instant};

use crate::{
    config::{Forge, Pulls},
    verdict::OpenPr,
};
use github::Github;

/// How long an answer is believed.
pub const FRESH: Duration = Duration::from_secs(60);

closed_set! {
    /// Why an answer could not be had.
    pub enum Trouble {
        /// Nobody to ask is configured.
        NotConfigured = "not-configured",
        /// No whole answer within the deadline.
        Timeout = "timeout",
        /// No connection, or it broke.
        Connect = "connect",
        /// Our own HTTP client or the address could not be made.
        Client = "client",
        /// The token's file cannot be used.
        Token = "token",
        /// The token is missing, wrong, or may not read this.
        Unauthorized = "unauthorized",
        /// There is no such repository, or not for this token.
        NotFound = "not-found",
        /// The repository's interface is elsewhere; redirects are not followed.
        Moved = "moved",
        /// A limit on requests; nothing is asked until it is over.
        RateLimited = "rate-limited",
        /// The server failed.
        Server = "server",
        /// The answer is not what the interface gives.
        Garbage = "garbage",
        /// More open pull requests than are read.
        TooMany = "too-many",
        /// The command did not start, or ended with neither 0 nor 1.
        Command = "command",
    }
}

impl Trouble {
    /// What an operator does about it.
    #[must_use]
    pub const fn remedy(self) -> &'static str {
        match self {
            Self::NotConfigured => "configure [forge], or set CLAIM_OPEN_PR_CMD",
            Self::Timeout | Self::Connect => {
                "check forge.api and that this machine may reach it, or raise forge.deadline"
            }
            Self::Client => "install CA certificates, and check forge.api",
            Self::Token => "make forge.token_file a file of mode 0600 with one line",
            Self::Unauthorized => {
                "give the token of forge.token_file the right to read pull requests"
            }
            Self::NotFound => "check forge.repo, and that the token may see it",
            Self::Moved => "write the repository's present name and address in [forge]",
            Self::RateLimited => "wait, and use a token: limits are far lower without",
            Self::Server => "try again later",
            Self::Garbage => "check that forge.api is GitHub's interface, and proxies on the way",
            Self::TooMany => "close pull requests, or use open_pr_command",
            Self::Command => "run the command by hand: 0 means open, 1 means none",
        }
    }
}

/// An answer, and how it came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// Whether a pull request is open.
    pub open: OpenPr,
    /// How old the answer is.
    pub age: Duration,
    /// Why it is unknown.
    pub trouble: Option<Trouble>,
}

/// Who is asked.
#[derive(Debug)]
enum Source {
    Nobody,
    /// Program and arguments; the issue's number is added.
    Command(Vec<String>),
    Github(Box<Github>),
}

/// The open pull requests as one run of the program knows them.
#[derive(Debug)]
pub struct OpenPulls {
    source: Source,
    deadline: Duration,
    fresh: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of a command: one answer an issue.
    answers: BTreeMap<u64, (Instant, Result<bool, Trouble>)>,
    /// Of a forge: one listing for all.
    listing: Option<(Instant, Result<page::Listing, Trouble>)>,
    /// Nobody is asked before this.
    quiet_until: Option<Instant>,
}

impl OpenPulls {
    /// By the operator's hook if there is one, `bash -c HOOK _ ISSUE`, else by the configuration; `deadline` bounds the hook.
    #[must_use]
    pub fn new(hook: Option<&str>, forge: Option<&Forge>, deadline: Duration) -> Self {
        let (source, deadline) = match (hook, forge) {
            (Some(hook), _) => {
                let argv = ["bash", "-c", hook, "_"].map(str::to_owned);
                (Source::Command(argv.into()), deadline)
            }
            (None, Some(forge)) => match &forge.pulls {
                Pulls::Command(argv) => (Source::Command(argv.clone()), forge.deadline),
                Pulls::Github { api, repo, token_file, from_service_manager } => {
                    let client = Github::new(api, repo, token_file.clone(), *from_service_manager);
                    (Source::Github(Box::new(client)), forge.deadline)
                }
            },
            (None, None) => (Source::Nobody, deadline),
        };
        Self { source, deadline, fresh: FRESH, state: Mutex::default() }
    }

    /// The same, with answers believed for another time than [`FRESH`].
    #[must_use]
    pub fn believed_for(mut self, fresh: Duration) -> Self {
        self.fresh = fresh;
        self
    }

    /// Whether there is anybody to ask.
    #[must_use]
    pub const fn is_configured(&self) -> bool {
        !matches!(self.source, Source::Nobody)
    }

    /// Whether a pull request of the issue is open.
    pub async fn ask(&self, issue: u64) -> Told {
        let mut state = self.state.lock().await;
        let (at, answer) = match &self.source {
            Source::Nobody => (Instant::now(), Err(Trouble::NotConfigured)),
            Source::Command(argv) => self.by_command(&mut state, argv, issue).await,
            Source::Github(github) => {
                let (at, listing) = self.by_listing(&mut state, github).await;
                let found = listing.as_ref().map_err(|trouble| *trouble);
                (*at, found.and_then(|listing| listing.has(issue)))
            }
        };
        let open = match answer {
            Ok(true) => OpenPr::Yes,
            Ok(false) => OpenPr::No,
            Err(_) => OpenPr::Unknown,
        };
        Told { open, age: at.elapsed(), trouble: answer.err() }
    }

    async fn by_command(
        &self,
        state: &mut State,
        argv: &[String],
        issue: u64,
    ) -> (Instant, Result<bool, Trouble>) {
        if let Some(known) = state.answers.get(&issue).filter(|known| self.is_fresh(known.0)) {
            return *known;
        }
        let now = Instant::now();
        if state.quiet_until.is_some_and(|until| now < until) {
            return (now, Err(Trouble::Timeout));
        }
        let answer = command::ask(argv, issue, self.deadline).await;
        let known = (Instant::now(), answer);
        if answer == Err(Trouble::Timeout) {
            // Thousands of claims must not each wait for a command that hangs.
            state.quiet_until = Some(known.0 + FRESH);
        }
        state.answers.insert(issue, known);
        known
    }

    async fn by_listing<'a>(
        &self,
        state: &'a mut State,
        github: &Github,
    ) -> &'a (Instant, Result<page::Listing, Trouble>) {
        let now = Instant::now();
        let quiet = state.quiet_until.is_some_and(|until| now < until);
        let usable = state.listing.as_ref().is_some_and(|(at, listing)| {
            // A failure is believed as long as an answer: it is not tried again for every claim.
            self.is_fresh(*at) || (quiet && listing.is_err())
        });
        if !usable {
            let listing = if quiet {
                Err(Trouble::RateLimited)
            } else {
                let (listing, wait) = github.list(now + self.deadline).await;
                state.quiet_until = wait.map(|wait| Instant::now() + wait);
                listing
            };
            state.listing = Some((Instant::now(), listing));
        }
        state.listing.get_or_insert((now, Err(Trouble::Client)))
    }

    fn is_fresh(&self, at: Instant) -> bool {
        at.elapsed() < self.fresh
    }
}
