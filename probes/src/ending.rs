//! How a process ended: the decoded wait status, and what it used.

use serde::{Deserialize, Serialize};

/// The decoded wait status of wait(2): what the kernel said and no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "how")]
pub enum Ending {
    /// It called exit(2) with this code, 0 to 255.
    Exited {
        /// The exit code.
        code: u8,
    },
    /// A signal ended it.
    Signalled {
        /// The signal's number.
        signal: u8,
        /// Whether a core was dumped.
        core: bool,
    },
}

impl Ending {
    /// Decodes a raw wait status; `None` for stopped, continued and impossible values.
    #[must_use]
    pub fn from_wait_status(raw: i32) -> Option<Self> {
        let bytes = raw.to_le_bytes();
        let [low, high, rest @ ..] = bytes;
        if rest != [0, 0] {
            return None;
        }
        match low & 0x7f {
            0 if low & 0x80 == 0 => Some(Self::Exited { code: high }),
            0x7f | 0 => None,
            signal if high == 0 => Some(Self::Signalled { signal, core: low & 0x80 != 0 }),
            _ => None,
        }
    }

    /// The exit code of a process that exited.
    #[must_use]
    pub fn exit_code(self) -> Option<u8> {
        match self {
            Self::Exited { code } => Some(code),
            Self::Signalled { .. } => None,
        }
    }

    /// The signal of a process that a signal ended.
    #[must_use]
    pub fn signal(self) -> Option<u8> {
        match self {
            Self::Exited { .. } => None,
            Self::Signalled { signal, .. } => Some(signal),
        }
    }
}

/// What a process and its waited-for descendants used (getrusage(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in user mode, microseconds.
    pub user_us: u64,
    /// CPU time in kernel mode, microseconds.
    pub system_us: u64,
    /// Largest resident set of one process, kilobytes.
    pub max_rss_kb: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exit_signal_core_and_stop_are_told_apart() {
        assert_eq!(Ending::from_wait_status(0x0700), Some(Ending::Exited { code: 7 }));
        assert_eq!(Ending::from_wait_status(9), Some(Ending::Signalled { signal: 9, core: false }));
        assert_eq!(
            Ending::from_wait_status(0x8b),
            Some(Ending::Signalled { signal: 11, core: true })
        );
        assert_eq!(Ending::from_wait_status(0x137f), None, "stopped");
        assert_eq!(Ending::from_wait_status(0xffff), None, "continued");
    }

    proptest! {
        #[test]
        fn no_status_is_both(raw in any::<i32>()) {
            if let Some(ending) = Ending::from_wait_status(raw) {
                prop_assert!(ending.exit_code().is_some() != ending.signal().is_some());
            }
        }
    }
}
