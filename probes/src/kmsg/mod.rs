//! Records of `/dev/kmsg`.
//!
//! The format is that of the kernel's ABI text `Documentation/ABI/testing/dev-kmsg`:
//! `PREFIX,SEQ,USEC,FLAGS[,more];TEXT\n`, then optional lines ` KEY=value\n`. PREFIX is `facility * 8 + level`. User space
//! may write to the device, but never with facility 0, so the facility is the proof that the kernel itself spoke.

mod reader;

pub use reader::{From, KmsgRead, KmsgReader};

use crate::oom::bytes::{number, split_once};

crate::closed_set! {
    /// How a channel of evidence is. The state is reported beside the evidence, because silence of a closed channel
    /// proves nothing.
    pub enum ChannelState {
        /// Records arrive.
        Open = "open",
        /// This box (or container) has no such channel.
        Absent = "absent",
        /// We may not look: `kernel.dmesg_restrict` without `CAP_SYSLOG`.
        Denied = "denied",
        /// The reader is behind its source.
        Lagging = "lagging",
        /// The channel broke, or records were overwritten before they were read.
        Lost = "lost",
    }
}

/// One record of the kernel's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KmsgRecord {
    /// Sequence number: 64 bits, from 0 at boot, without gaps unless records were overwritten.
    pub seq: u64,
    /// The printk clock in microseconds. It stops in suspend and is not the monotonic clock; order by `seq`.
    pub usec: u64,
    /// 0 for the kernel, 1 and up for writers in user space.
    pub facility: u16,
    /// Severity, 0 (emergency) to 7 (debug).
    pub level: u8,
    /// A fragment that goes on where an earlier record ended (flag `c`, or `+` on older kernels).
    pub continuation: bool,
    /// The message, unescaped: any byte may be in it.
    pub text: Vec<u8>,
}

impl KmsgRecord {
    /// Reads one record as the device gives it; lines after the first (` KEY=value`) are ignored.
    ///
    /// `None` when the bytes are not a record. Fields before the `;` that are not known are ignored, as the ABI asks.
    #[must_use]
    pub fn parse(record: &[u8]) -> Option<Self> {
        let line = record.split(|&byte| byte == b'\n').next()?;
        let (head, text) = split_once(line, b";")?;
        let mut fields = head.split(|&byte| byte == b',');
        let prefix = number(fields.next()?)?;
        let seq = number(fields.next()?)?;
        let usec = number(fields.next()?)?;
        let flags = fields.next()?;
        Some(Self {
            seq,
            usec,
            facility: u16::try_from(prefix >> 3).ok()?,
            level: u8::try_from(prefix & 7).ok()?,
            continuation: flags.iter().any(|flag| matches!(flag, b'c' | b'+')),
            text: unescape(text),
        })
    }

    /// Whether the kernel itself wrote this record.
    #[must_use]
    pub fn is_from_kernel(&self) -> bool {
        self.facility == 0
    }
}

/// Turns each `\xNN` into its byte. The device escapes control characters, bytes above 0x7e and the backslash so; any
/// other backslash stands for itself.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        if let Some((byte, after)) = escape(rest) {
            plain.push(byte);
            rest = after;
        } else {
            plain.push(first);
            rest = tail;
        }
    }
    plain
}

/// The byte that a `\xNN` at the start of `text` stands for, and what follows it.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let (digits, after) = text.strip_prefix(b"\\x")?.split_at_checked(2)?;
    let digits = std::str::from_utf8(digits).ok()?;
    if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    Some((u8::from_str_radix(digits, 16).ok()?, after))
}

#[cfg(test)]
mod tests;
