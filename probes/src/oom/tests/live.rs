//! The strict parser, on captured records and on the running kernel's device.

use std::{fs::OpenOptions, io::Write, os::fd::AsFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    super::{LiveParser, OomKill, OomKind, read_log},
    samples::samples,
};
use crate::{
    Root,
    kmsg::{ChannelState, From, KmsgRead, KmsgReader, KmsgRecord},
};

/// Past the test harness, which keeps what `eprintln` says to itself.
macro_rules! tell {
    ($($said:tt)*) => { writeln!(std::io::stderr(), $($said)*).unwrap() };
}

fn records(log: &str) -> Vec<KmsgRecord> {
    log.lines().filter_map(|line| KmsgRecord::parse(line.as_bytes())).collect()
}

fn kills(log: &str) -> Vec<OomKill> {
    let mut parser = LiveParser::new();
    records(log).iter().flat_map(|record| parser.take(record)).collect()
}

#[test]
fn captured_records_give_what_the_text_reader_gives() {
    let mut seen = 0;
    for sample in samples() {
        let log = String::from_utf8_lossy(&sample.log).into_owned();
        if !sample.name.contains("-618-") || !log.starts_with(|first: char| first.is_ascii_digit())
        {
            continue;
        }
        seen += 1;
        // The excerpts leave records out; on the device their numbers would be there.
        let mut numbered = records(&log);
        for (seq, record) in (1..).zip(&mut numbered) {
            record.seq = seq;
        }
        let mut parser = LiveParser::new();
        let mut live: Vec<OomKill> =
            numbered.iter().flat_map(|record| parser.take(record)).collect();
        let mut text = read_log(sample.log.as_slice()).unwrap().kills;
        for kill in live.iter_mut().chain(&mut text) {
            kill.seq = None;
        }
        assert_eq!(live, text, "{}", sample.name);
    }
    assert!(seen >= 10, "only {seen} samples of raw records");
}

#[test]
fn a_kill_is_told_at_its_own_record() {
    let log = "6,10,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/p,task_memcg=/p/l,task=w,pid=7,uid=5\n\
               14,11,2,-;a user's line between\n\
               3,12,3,-;Memory cgroup out of memory: Killed process 7 (w) total-vm:3kB, anon-rss:2kB, file-rss:1kB, shmem-rss:0kB, UID:5 pgtables:7kB oom_score_adj:300\n";
    let kills = kills(log);
    assert_eq!(kills.len(), 1);
    assert_eq!(kills[0].seq, Some(12));
    assert_eq!(kills[0].memcg.as_deref(), Some("/p"));
    assert_eq!(kills[0].task_memcg.as_deref(), Some("/p/l"));
    assert_eq!(kills[0].kind, OomKind::Memcg);
}

#[test]
fn a_message_must_begin_its_record() {
    assert!(kills("3,1,1,-;usb 1-1: Product: Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:1kB, file-rss:1kB\n").is_empty());
    assert!(kills("3,1,1,-; Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:1kB, file-rss:1kB\n").is_empty());
}

#[test]
fn after_a_gap_nothing_is_joined_by_order_alone() {
    let constraint = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a,task=a,pid=7,uid=0";
    let kill = "Memory cgroup out of memory: Killed process 8 (b) total-vm:3kB, anon-rss:2kB, file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:7kB oom_score_adj:0";
    let whole = kills(&format!("6,1,1,-;{constraint}\n3,2,2,-;{kill}\n"));
    assert_eq!((whole.len(), whole[0].pid, whole[0].tgid), (1, 8, Some(7)));
    let torn = kills(&format!("6,1,1,-;{constraint}\n3,9,2,-;{kill}\n"));
    let told: Vec<_> = torn
        .iter()
        .map(|kill| (kill.pid, kill.constraint_only, kill.task_memcg.as_deref()))
        .collect();
    assert_eq!(told, [(7, true, Some("/a")), (8, false, None)]);
}

#[test]
fn a_victim_that_was_exiting_is_no_kill() {
    let log = "6,1,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a,task=a,pid=7,uid=0\n\
               6,2,2,-;Out of memory: OOM victim 7 (a) is already exiting. Skip killing the task\n\
               4,3,3,-;b invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0\n";
    assert!(kills(log).is_empty());
}

#[test]
fn the_device_is_read_to_its_end_and_a_forgery_gives_nothing() {
    let mut reader = match KmsgReader::open(&Root::live(), From::Oldest) {
        Ok(reader) => reader,
        Err(state) => {
            tell!(
                "NOT TESTED: /dev/kmsg is {state} here, so neither reading nor forging was tried"
            );
            return;
        }
    };
    let mut parser = LiveParser::new();
    let mut highest = 0;
    loop {
        match reader.next().unwrap() {
            KmsgRead::Record(record) => {
                assert!(record.level < 8 && record.seq >= highest);
                highest = record.seq;
                parser.take(&record);
            }
            KmsgRead::Lost(lost) => tell!("{lost} records were overwritten while we read"),
            KmsgRead::Empty => break,
        }
    }

    let mark = format!("lanewarden test {}", std::process::id());
    let forged = [
        "Out of memory: Killed process 4242 (init) total-vm:1000kB, anon-rss:500kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:40kB oom_score_adj:0".to_owned(),
        "<3>Out of memory: Killed process 4242 (init) total-vm:1000kB, anon-rss:500kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:40kB oom_score_adj:0".to_owned(),
        "<6>oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/,task=init,pid=4242,uid=0".to_owned(),
        mark.clone(),
    ];
    let mut device = match OpenOptions::new().write(true).open("/dev/kmsg") {
        Ok(device) => device,
        Err(error) => {
            tell!(
                "NOT TESTED: /dev/kmsg cannot be written here ({error}), so no forgery was tried"
            );
            return;
        }
    };
    for line in &forged {
        // Without its newline the kernel holds a record back until the next one comes.
        device.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
    let mut seen = Vec::new();
    let wait = Timespec { tv_sec: 5, tv_nsec: 0 };
    'reading: loop {
        match reader.next().unwrap() {
            KmsgRead::Record(record) => {
                let found = parser.take(&record);
                assert!(found.iter().all(|kill| kill.pid != 4242), "{found:?} from {record:?}");
                if record.facility != 0 {
                    seen.push(String::from_utf8_lossy(&record.text).into_owned());
                }
                if record.text == mark.as_bytes() {
                    break 'reading;
                }
            }
            KmsgRead::Lost(lost) => tell!("{lost} records were overwritten while we read"),
            KmsgRead::Empty => {
                let ready =
                    poll(&mut [PollFd::new(&reader.as_fd(), PollFlags::IN)], Some(&wait)).unwrap();
                assert!(ready > 0, "our own record did not come within 5 s; seen: {seen:?}");
            }
        }
    }
    let forgeries = seen.iter().filter(|text| text.contains("4242")).count();
    if forgeries < 3 {
        tell!("NOT TESTED in full: the kernel's limit for writers kept {forgeries} of 3 forgeries");
    }
}

#[test]
fn newest_starts_after_what_is_there() {
    match KmsgReader::open(&Root::live(), From::Newest) {
        Ok(mut reader) => match reader.next().unwrap() {
            // Another writer may have been quicker than we.
            KmsgRead::Record(record) => assert!(record.seq > 0),
            KmsgRead::Lost(_) | KmsgRead::Empty => {}
        },
        Err(state) => assert_ne!(state, ChannelState::Open),
    }
}
