//! /dev/kmsg on a thread of its own: OOM kills as they are printed.

use std::{os::fd::AsFd, thread};

use lanewarden_probes::{
    Root,
    kmsg::{ChannelState, From, KmsgRead, KmsgReader},
    oom::LiveParser,
};
use rustix::event::{PollFd, PollFlags, poll};

use super::Events;
use crate::{clock::unix_ms, event::Event};

/// Starts reading new records.
///
/// # Errors
/// The channel's state if it cannot be opened: then OOM kills are known by counters only, which `status` says.
pub fn listen(root: &Root, events: Events) -> Result<(), ChannelState> {
    let reader = KmsgReader::open(root, From::Newest)?;
    let spawned = thread::Builder::new()
        .name("kernel-log".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || follow(reader, &events));
    spawned.map(drop).map_err(|_| ChannelState::Denied)
}

fn follow(mut reader: KmsgReader, events: &Events) {
    let mut parser = LiveParser::new();
    loop {
        let event = match reader.next() {
            Ok(KmsgRead::Record(record)) => {
                let read_at_ms = unix_ms();
                for kill in parser.take(&record) {
                    let seq = kill.seq.unwrap_or(record.seq);
                    let event = Event::KernelKill { kill: Box::new(kill), seq, read_at_ms };
                    if events.blocking_send(event).is_err() {
                        return;
                    }
                }
                continue;
            }
            Ok(KmsgRead::Lost(count)) => Some(Event::KernelLogLost(count)),
            Ok(KmsgRead::Empty) => None,
            Err(error) => {
                tracing::error!(%error, "the kernel log cannot be read any more");
                return;
            }
        };
        match event {
            Some(event) => {
                if events.blocking_send(event).is_err() {
                    return;
                }
            }
            None => {
                let mut fds = [PollFd::from_borrowed_fd(reader.as_fd(), PollFlags::IN)];
                // Interrupted or not: the next read tells what is there.
                let _woken: Result<usize, _> = poll(&mut fds, None);
            }
        }
    }
}
