//! Is a pull request for an issue open? Three answers, to the end.

#![expect(
    clippy::disallowed_methods,
    reason = "starts the operator's hook, with a deadline and in a process group of its own"
)]

use std::{process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

use super::child::{Group, Streams};
use crate::verdict::OpenPr;

/// Asks the operator's hook, `bash -c HOOK _ ISSUE`: exit 0 is yes, 1 is no, anything else unknown. Without a hook, and
/// when it does not end within `deadline`, the answer is unknown; its process tree is killed then.
pub async fn open_pr(hook: Option<&str>, issue: u64, deadline: Duration) -> OpenPr {
    let Some(hook) = hook else { return OpenPr::Unknown };
    let mut command = Command::new("bash");
    command.args(["-c", hook, "_", &issue.to_string()]).process_group(0).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return OpenPr::Unknown };
    let mut group = Group::of(&child);
    let mut streams = Streams::with_limit(0);
    let ended = timeout(deadline, streams.follow(&mut child, &mut group, b"")).await;
    match ended {
        Ok(Ok(status)) => match status.code() {
            Some(0) => OpenPr::Yes,
            Some(1) => OpenPr::No,
            Some(_) | None => OpenPr::Unknown,
        },
        Ok(Err(_)) | Err(_) => {
            group.end(&mut child).await;
            OpenPr::Unknown
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_zero_and_one_are_answers() {
        let long = Duration::from_secs(10);
        assert_eq!(open_pr(None, 7, long).await, OpenPr::Unknown);
        assert_eq!(open_pr(Some("test $1 = 7"), 7, long).await, OpenPr::Yes);
        assert_eq!(open_pr(Some("test $1 = 8"), 7, long).await, OpenPr::No);
        for hook in ["exit 7", "kill -9 $$", "no-such-program-here", "((("] {
            assert_eq!(open_pr(Some(hook), 7, long).await, OpenPr::Unknown, "{hook}");
        }
        let short = Duration::from_millis(100);
        assert_eq!(open_pr(Some("sleep 1000 & wait"), 7, short).await, OpenPr::Unknown);
    }
}
