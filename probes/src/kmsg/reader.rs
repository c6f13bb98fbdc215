//! The reader over the device: a gap is counted, never fatal.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{Mode, OFlags, SeekFrom},
    io::Errno,
};

use super::{ChannelState, KmsgRecord};
use crate::{ProbeError, Root};

/// The longest record with every byte escaped is well below this.
const BUFFER: usize = 8192;

/// How often one call tries again after an overrun or an interrupted read before it answers that nothing is there.
const ATTEMPTS: u8 = 16;

/// Where reading begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// At the oldest record that the ring still holds.
    Oldest,
    /// After the newest record: only what comes from now on.
    Newest,
}

/// What one read gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KmsgRead {
    /// The next record.
    Record(KmsgRecord),
    /// So many records were overwritten before we read them; 0 when the number cannot be told because none was read
    /// before the gap. Reading goes on at the oldest record that is left.
    Lost(u64),
    /// Nothing more for now: poll the descriptor.
    Empty,
}

/// Reads `/dev/kmsg` without blocking, one record a call, in one buffer that is never grown.
///
/// A captured file in the same format may stand in for the device; its end is then `Empty`.
#[derive(Debug)]
pub struct KmsgReader {
    fd: OwnedFd,
    path: PathBuf,
    buffer: Box<[u8; BUFFER]>,
    start: usize,
    end: usize,
    /// The sequence number that comes next if nothing is lost.
    expected: Option<u64>,
    /// The device said that records were overwritten since the last one that we gave out.
    overrun: bool,
    /// A record that was read together with the news of a gap before it.
    held: Option<KmsgRecord>,
}

impl KmsgReader {
    /// Opens the device of `root`.
    ///
    /// # Errors
    /// The state of the channel: absent, denied, or lost when the system has no descriptor or memory for us.
    pub fn open(root: &Root, from: From) -> Result<Self, ChannelState> {
        let path = root.kmsg().to_path_buf();
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(&path, flags, Mode::empty()).map_err(refusal)?;
        let target = match from {
            From::Oldest => SeekFrom::Start(0),
            From::Newest => SeekFrom::End(0),
        };
        rustix::fs::seek(&fd, target).map_err(refusal)?;
        Ok(Self {
            fd,
            path,
            buffer: Box::new([0; BUFFER]),
            start: 0,
            end: 0,
            expected: None,
            overrun: false,
            held: None,
        })
    }

    /// The next record, a counted gap, or the news that nothing is there.
    ///
    /// # Errors
    /// [`ProbeError::Io`] when the device fails, [`ProbeError::Malformed`] when it gives something that is not a record;
    /// the next call goes on after it.
    #[expect(
        clippy::should_implement_trait,
        reason = "an iterator ends; a device is only empty for now, and may fail and go on"
    )]
    pub fn next(&mut self) -> Result<KmsgRead, ProbeError> {
        if let Some(record) = self.held.take() {
            return Ok(KmsgRead::Record(record));
        }
        for _ in 0..ATTEMPTS {
            if let Some(outcome) = self.take_line() {
                return outcome.map(|record| self.sequence(record));
            }
            if !self.fill()? {
                break;
            }
        }
        Ok(KmsgRead::Empty)
    }

    /// Looks at the record's number and puts a gap before it where there is one.
    fn sequence(&mut self, record: KmsgRecord) -> KmsgRead {
        let lost = self.expected.map_or(0, |expected| record.seq.saturating_sub(expected));
        let overrun = std::mem::take(&mut self.overrun);
        self.expected = Some(record.seq.saturating_add(1));
        if lost > 0 || overrun {
            self.held = Some(record);
            KmsgRead::Lost(lost)
        } else {
            KmsgRead::Record(record)
        }
    }

    /// One whole record out of the buffer; lines that begin with a space belong to the record before.
    fn take_line(&mut self) -> Option<Result<KmsgRecord, ProbeError>> {
        loop {
            let pending = self.buffer.get(self.start..self.end)?;
            let length = pending.iter().position(|&byte| byte == b'\n')?;
            let line = pending.get(..length)?;
            self.start = self.start.saturating_add(length).saturating_add(1);
            if line.first().is_some_and(|&byte| byte == b' ') {
                continue;
            }
            return Some(KmsgRecord::parse(line).ok_or_else(|| ProbeError::Malformed {
                path: self.path.clone(),
                expected: "a kernel log record",
                found: line.iter().take(80).copied().map(char::from).collect(),
            }));
        }
    }

    /// Reads on. `false` when there is nothing for now.
    fn fill(&mut self) -> Result<bool, ProbeError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end = self.end.saturating_sub(self.start);
        self.start = 0;
        if self.end == BUFFER {
            // A captured file with a line that is longer than any record: drop what we hold and find the next line.
            self.end = 0;
        }
        let Some(room) = self.buffer.get_mut(self.end..) else { return Ok(false) };
        match rustix::io::read(&self.fd, room) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.end = self.end.saturating_add(count).min(BUFFER);
                Ok(true)
            }
            Err(Errno::AGAIN) => Ok(false),
            Err(Errno::INTR) => Ok(true),
            // EPIPE: overwritten. EINVAL: longer than the buffer, and skipped by the kernel. Both are gaps.
            Err(Errno::PIPE | Errno::INVAL) => {
                self.overrun = true;
                Ok(true)
            }
            Err(errno) => {
                Err(ProbeError::Io { path: self.path.clone(), source: io::Error::from(errno) })
            }
        }
    }
}

impl AsFd for KmsgReader {
    /// For poll: readable when records are there, and also when some were lost.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a refused open says about the channel.
fn refusal(errno: Errno) -> ChannelState {
    match errno {
        Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV => ChannelState::Absent,
        Errno::ACCESS | Errno::PERM => ChannelState::Denied,
        _ => ChannelState::Lost,
    }
}
