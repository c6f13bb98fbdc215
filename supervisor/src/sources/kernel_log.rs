//! /dev/kmsg on a thread of its own: OOM kills as they are printed, and those that were printed while no daemon ran.
//!
//! The ring is always read from its oldest record, so that a report that began before us is understood; kills that an
//! earlier daemon acted on are left out by their sequence numbers (there is no way to seek to one). A reader that fails is
//! opened again and goes on after the record that it gave out last: no error of the device ends the thread.

use std::{
    os::fd::AsFd,
    thread,
    time::{Duration, Instant},
};

use lanewarden_probes::{
    ProbeError, Root, identity,
    kmsg::{ChannelState, From, KmsgRead, KmsgReader, KmsgRecord},
    oom::LiveParser,
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    time::{ClockId, clock_gettime},
};

use super::Events;
use crate::{
    clock::unix_ms,
    event::{Event, KernelRecord, Missed},
};

/// How often the position is told while nothing is killed. After kill -9 at most the records of this time are read twice.
const TELL_POSITION: Duration = Duration::from_secs(10);

/// How long a reader that failed is left alone.
const REOPEN: Duration = Duration::from_secs(1);

/// A loop that takes this long to accept a kill is far behind the log.
const LAGGING: Duration = Duration::from_secs(1);

/// The inode of the initial pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h). The kernel prints the pids of
/// that one, whoever reads them.
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Where the last daemon left off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Since {
    /// There was none: what the ring holds is nobody's news.
    Now,
    /// It ran in another boot: everything that this boot printed is news.
    Boot,
    /// After this record.
    Record(u64),
}

/// The log, read up to now.
#[derive(Debug)]
pub struct KernelLog {
    root: Root,
    reader: KmsgReader,
    parser: LiveParser,
    /// The number of the newest record that was read.
    position: Option<u64>,
}

impl KernelLog {
    /// Reads what the ring holds, and gives what is news.
    ///
    /// # Errors
    /// The channel's state if it cannot be opened: then OOM kills are known by counters only, which `status` says.
    pub fn open(root: &Root, since: Since) -> Result<(Self, Missed), ChannelState> {
        // In a pid namespace of our own the numbers of the log are other processes' than ours.
        let namespace = identity::pid_namespace(root, std::process::id());
        if namespace.is_ok_and(|inode| inode.is_ok_and(|inode| inode != INITIAL_PID_NAMESPACE)) {
            return Err(ChannelState::Absent);
        }
        let reader = KmsgReader::open(root, From::Oldest)?;
        let mut log =
            Self { root: root.clone(), reader, parser: LiveParser::new(), position: None };
        let missed = log.catch_up(since);
        Ok((log, missed))
    }

    fn catch_up(&mut self, since: Since) -> Missed {
        let mut missed = Missed::default();
        let offset = printk_offset_ms();
        loop {
            match self.reader.next() {
                Ok(KmsgRead::Record(record)) => {
                    if self.position.is_none()
                        && let Since::Record(last) = since
                    {
                        missed.lost += record.seq.saturating_sub(last.saturating_add(1));
                    }
                    let is_news = match since {
                        Since::Now => false,
                        Since::Boot => true,
                        Since::Record(last) => record.seq > last,
                    };
                    let at_ms = offset.saturating_add(whole_ms(record.usec));
                    let kills = self.take(&record, at_ms, true);
                    if is_news {
                        missed.kills.extend(kills);
                    }
                }
                Ok(KmsgRead::Lost(count)) => missed.lost += count,
                Ok(KmsgRead::Empty) => break,
                // One record that is none; whoever follows deals with a device that fails for good.
                Err(ProbeError::Malformed { .. }) => missed.lost += 1,
                Err(_) => break,
            }
        }
        missed.position = self.position;
        missed
    }

    fn take(&mut self, record: &KmsgRecord, at_ms: i64, approximate: bool) -> Vec<KernelRecord> {
        self.position = Some(record.seq);
        let told = record.seq;
        let kills = self.parser.take(record).into_iter();
        kills
            .map(|kill| KernelRecord {
                seq: kill.seq.unwrap_or(told),
                kill,
                told_by: told,
                at_ms,
                approximate,
            })
            .collect()
    }

    /// Goes on on a thread of its own.
    ///
    /// # Errors
    /// The system's, if no thread can be made.
    pub fn follow(self, events: Events) -> std::io::Result<()> {
        let spawned = thread::Builder::new()
            .name("kernel-log".to_owned())
            .stack_size(256 * 1024)
            .spawn(move || Follower::new(self, events).run());
        spawned.map(drop)
    }
}

/// The thread's own.
struct Follower {
    log: KernelLog,
    events: Events,
    state: ChannelState,
    /// The position that was told last, and when.
    told: (Option<u64>, Instant),
}

/// The loop is gone.
struct Over;

impl Follower {
    fn new(log: KernelLog, events: Events) -> Self {
        let told = (log.position, Instant::now());
        Self { log, events, state: ChannelState::Open, told }
    }

    fn run(mut self) {
        while self.step().is_ok() {}
    }

    fn step(&mut self) -> Result<(), Over> {
        match self.log.reader.next() {
            Ok(KmsgRead::Record(record)) => {
                for kill in self.log.take(&record, unix_ms(), false) {
                    let waiting = Instant::now();
                    self.send(Event::KernelKill(Box::new(kill)))?;
                    if waiting.elapsed() >= LAGGING {
                        self.set_state(ChannelState::Lagging)?;
                    }
                }
                if self.told.1.elapsed() >= TELL_POSITION { self.tell_position() } else { Ok(()) }
            }
            Ok(KmsgRead::Lost(count)) => {
                self.set_state(ChannelState::Lost)?;
                self.send(Event::KernelLogLost(count))
            }
            Ok(KmsgRead::Empty) => {
                self.set_state(ChannelState::Open)?;
                self.tell_position_if_due()?;
                self.wait();
                Ok(())
            }
            Err(ProbeError::Malformed { path, found, .. }) => {
                tracing::warn!(path = %path.display(), found, "not a record of the kernel log");
                self.send(Event::KernelLogLost(1))
            }
            Err(error) => {
                tracing::error!(%error, "the kernel log cannot be read; it is opened again");
                self.set_state(ChannelState::Lost)?;
                self.reopen()
            }
        }
    }

    /// Opens the device until it can be read again, and goes on where the reader broke.
    fn reopen(&mut self) -> Result<(), Over> {
        loop {
            thread::sleep(REOPEN);
            let since = self.log.position.map_or(Since::Now, Since::Record);
            match KernelLog::open(&self.log.root, since) {
                Ok((log, missed)) => {
                    self.log = log;
                    if missed.lost > 0 {
                        self.send(Event::KernelLogLost(missed.lost))?;
                    }
                    for kill in missed.kills {
                        self.send(Event::KernelKill(Box::new(kill)))?;
                    }
                    return Ok(());
                }
                Err(state) => self.set_state(state)?,
            }
        }
    }

    fn wait(&self) {
        let mut fds = [PollFd::from_borrowed_fd(self.log.reader.as_fd(), PollFlags::IN)];
        let due = self.told.0 != self.log.position;
        let pause = TELL_POSITION.saturating_sub(self.told.1.elapsed());
        let timeout = Timespec::try_from(pause.max(Duration::from_millis(1))).ok();
        // Interrupted or not: the next read tells what is there.
        let _woken: Result<usize, _> = poll(&mut fds, timeout.as_ref().filter(|_| due));
    }

    fn tell_position_if_due(&mut self) -> Result<(), Over> {
        let is_due = self.told.0 != self.log.position && self.told.1.elapsed() >= TELL_POSITION;
        if is_due { self.tell_position() } else { Ok(()) }
    }

    fn tell_position(&mut self) -> Result<(), Over> {
        self.told = (self.log.position, Instant::now());
        match self.log.position {
            Some(position) => self.send(Event::KernelLogRead(position)),
            None => Ok(()),
        }
    }

    fn set_state(&mut self, state: ChannelState) -> Result<(), Over> {
        if self.state == state {
            return Ok(());
        }
        self.state = state;
        self.send(Event::KernelLogState(state))
    }

    fn send(&self, event: Event) -> Result<(), Over> {
        self.events.blocking_send(event).map_err(|_| Over)
    }
}

/// What has to be added to the printk clock to get the time of day, milliseconds. Both clocks stand still in suspend
/// differently, so a stamp that was made before one is off by as much.
fn printk_offset_ms() -> i64 {
    let clock = clock_gettime(ClockId::Monotonic);
    let since_boot = clock.tv_sec.saturating_mul(1000).saturating_add(clock.tv_nsec / 1_000_000);
    unix_ms().saturating_sub(since_boot)
}

fn whole_ms(usec: u64) -> i64 {
    i64::try_from(usec / 1000).unwrap_or(i64::MAX)
}
