//! One peer: bytes to lines, lines to bytes, both bounded. It knows nothing of runs.

use std::{io, os::unix::net::UnixStream};

use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::protocol::{self, MAX_LINE};

/// The most that waits for a peer that does not read, bytes. A list of every run that the table admits fits.
const MAX_WAITING: usize = 16 << 20;

/// The most that is read from one peer in one turn, bytes: nobody starves the others.
const TURN: usize = 64 << 10;

/// Why a peer is dropped.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Parting {
    /// It closed the connection, or the kernel did.
    #[error("the peer is gone")]
    Gone,
    /// It sent a line longer than [`MAX_LINE`].
    #[error("a line has more than {MAX_LINE} bytes")]
    LineTooLong,
    /// It does not read.
    #[error("more than {MAX_WAITING} bytes wait for the peer")]
    NotReading,
}

/// Cuts a stream of bytes into lines.
#[derive(Debug, Default)]
pub(super) struct LineDecoder {
    rest: Vec<u8>,
    /// Everything before this is known to hold no newline.
    searched: usize,
}

impl LineDecoder {
    /// Takes what came.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
    }

    /// The next whole line, without its newline.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, Parting> {
        let fresh = self.rest.get(self.searched..).unwrap_or_default();
        let Some(at) = fresh.iter().position(|&byte| byte == b'\n') else {
            self.searched = self.rest.len();
            return if self.rest.len() > MAX_LINE { Err(Parting::LineTooLong) } else { Ok(None) };
        };
        let end = self.searched + at;
        if end > MAX_LINE {
            return Err(Parting::LineTooLong);
        }
        let tail = self.rest.split_off(end + 1);
        let mut line = std::mem::replace(&mut self.rest, tail);
        line.truncate(end);
        self.searched = 0;
        Ok(Some(line))
    }
}

/// A connected peer.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: UnixStream,
    /// Its user, by `SO_PEERCRED`.
    pub(super) uid: u32,
    /// Its group, by `SO_PEERCRED`.
    pub(super) gid: u32,
    /// Whether it said a hello that we understand.
    pub(super) greeted: bool,
    decoder: LineDecoder,
    waiting: Vec<u8>,
}

impl Conn {
    pub(super) fn new(stream: UnixStream, uid: u32, gid: u32) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            uid,
            gid,
            greeted: false,
            decoder: LineDecoder::default(),
            waiting: Vec::new(),
        })
    }

    /// Reads what is there, at most one turn.
    pub(super) fn fill(&mut self) -> Result<(), Parting> {
        let mut buffer = vec![0; TURN];
        match recv(&self.stream, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => Err(Parting::Gone),
            Ok((count, _)) => {
                self.decoder.push(buffer.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(error) if is_later(error) => Ok(()),
            Err(_) => Err(Parting::Gone),
        }
    }

    /// The next whole line that was read.
    pub(super) fn next_line(&mut self) -> Result<Option<Vec<u8>>, Parting> {
        self.decoder.next_line()
    }

    /// Queues a message, and sends what the peer takes at once.
    pub(super) fn say<T: serde::Serialize>(&mut self, message: &T) -> Result<(), Parting> {
        self.waiting.extend_from_slice(&protocol::encode(message));
        self.flush()?;
        if self.waiting.len() > MAX_WAITING { Err(Parting::NotReading) } else { Ok(()) }
    }

    /// Whether something waits for the peer.
    pub(super) fn wants_write(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what the peer takes.
    pub(super) fn flush(&mut self) -> Result<(), Parting> {
        while !self.waiting.is_empty() {
            match send(&self.stream, &self.waiting, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => drop(self.waiting.drain(..count)),
                Err(error) if is_later(error) => return Ok(()),
                Err(_) => return Err(Parting::Gone),
            }
        }
        Ok(())
    }
}

fn is_later(error: rustix::io::Errno) -> bool {
    error == rustix::io::Errno::AGAIN || error == rustix::io::Errno::INTR
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lines(decoder: &mut LineDecoder) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| decoder.next_line().unwrap()).collect()
    }

    #[test]
    fn the_longest_line_passes_and_one_more_byte_does_not() {
        let mut decoder = LineDecoder::default();
        decoder.push(&vec![b'x'; MAX_LINE]);
        assert_eq!(decoder.next_line(), Ok(None));
        decoder.push(b"\n");
        assert_eq!(decoder.next_line().unwrap().unwrap().len(), MAX_LINE);
        decoder.push(&vec![b'x'; MAX_LINE + 1]);
        assert_eq!(decoder.next_line(), Err(Parting::LineTooLong));
    }

    #[test]
    fn a_peer_that_does_not_read_is_dropped() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut conn = Conn::new(ours, 0, 0).unwrap();
        let text = "x".repeat(MAX_LINE);
        let end = (0..64).find_map(|_| conn.say(&text).err());
        assert_eq!(end, Some(Parting::NotReading));
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_bytes_arrive(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..20)
        ) {
            let whole: Vec<u8> = parts.concat();
            let mut expected: Vec<Vec<u8>> =
                whole.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
            let rest = expected.pop().unwrap();

            let mut decoder = LineDecoder::default();
            let mut found = Vec::new();
            for part in &parts {
                decoder.push(part);
                found.extend(lines(&mut decoder));
            }
            prop_assert_eq!(found, expected);
            prop_assert_eq!(decoder.rest, rest);
        }
    }
}
