//! The operator's own command, asked about one issue.

#![expect(
    clippy::disallowed_methods,
    reason = "starts the operator's command, with a deadline and in a process group of its own"
)]

use std::{process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use super::Trouble;
use crate::claims::child::{Group, Streams};

/// Runs program and arguments with the issue's number behind them: exit 0 is yes, 1 is no. Its process tree is killed
/// when it does not end within `deadline`.
///
/// # Errors
/// [`Trouble`] when it does not start, does not end in time, or ends otherwise.
pub async fn ask(argv: &[String], issue: u64, deadline: Duration) -> Result<bool, Trouble> {
    let (program, args) = argv.split_first().ok_or(Trouble::Command)?;
    let mut command = Command::new(program);
    command.args(args).arg(issue.to_string()).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|_| Trouble::Command)?;
    let mut group = Group::of(&child);
    let mut streams = Streams::with_limit(0);
    let ended = timeout(deadline, streams.follow(&mut child, &mut group, b"")).await;
    match ended {
        Ok(Ok(status)) => match status.code() {
            Some(0) => Ok(true),
            Some(1) => Ok(false),
            Some(_) | None => Err(Trouble::Command),
        },
        Ok(Err(_)) => {
            group.end(&mut child).await;
            Err(Trouble::Command)
        }
        Err(_) => {
            group.end(&mut child).await;
            Err(Trouble::Timeout)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(text: &str) -> Vec<String> {
        ["bash", "-c", text, "_"].map(str::to_owned).into()
    }

    #[tokio::test]
    async fn only_zero_and_one_are_answers() {
        let long = Duration::from_secs(10);
        assert_eq!(ask(&shell("test $1 = 7"), 7, long).await, Ok(true));
        assert_eq!(ask(&shell("test $1 = 8"), 7, long).await, Ok(false));
        for text in ["exit 7", "kill -9 $$", "no-such-program-here", "((("] {
            assert_eq!(ask(&shell(text), 7, long).await, Err(Trouble::Command), "{text}");
        }
        assert_eq!(ask(&[], 7, long).await, Err(Trouble::Command));
        assert_eq!(ask(&["/no/such".to_owned()], 7, long).await, Err(Trouble::Command));
        let short = Duration::from_millis(100);
        assert_eq!(ask(&shell("sleep 1000 & wait"), 7, short).await, Err(Trouble::Timeout));
    }
}
