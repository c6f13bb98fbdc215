use std::{fs, io::Write};

use proptest::prelude::*;

use super::{ChannelState, From, KmsgRead, KmsgReader, KmsgRecord};
use crate::Root;

fn parse(line: &str) -> Option<KmsgRecord> {
    KmsgRecord::parse(line.as_bytes())
}

#[test]
fn a_record_is_split_before_it_is_unescaped() {
    let record =
        parse("30,7,99,-,caller=T1;a\\x3bb;\\x0ac\\x5cx41\\xd0\\xb2\\xff\\q\\x4\n SUBSYSTEM=net\n")
            .unwrap();
    assert_eq!((record.seq, record.usec, record.facility, record.level), (7, 99, 3, 6));
    assert!(!record.continuation && !record.is_from_kernel());
    assert_eq!(record.text, b"a;b;\nc\\x41\xd0\xb2\xff\\q\\x4");
}

#[test]
fn fragments_are_told_by_their_flag() {
    assert!(parse("4,2087,708666400,c;/oomlab").unwrap().continuation);
    assert!(parse("4,2087,708666400,+;rest").unwrap().continuation);
}

#[test]
fn what_is_not_a_record_is_refused() {
    for line in
        ["", ";", "6,1,2;text", "x,1,2,-;text", "-6,1,2,-;text", "6,1,2,-", "99999999,1,2,-;text"]
    {
        assert_eq!(parse(line), None, "{line}");
    }
}

fn captured(text: &str) -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("kmsg"), text).unwrap();
    let root = Root::at(dir.path());
    (dir, root)
}

fn seqs(reader: &mut KmsgReader) -> Vec<Result<u64, u64>> {
    let mut all = Vec::new();
    loop {
        match reader.next().unwrap() {
            KmsgRead::Record(record) => all.push(Ok(record.seq)),
            KmsgRead::Lost(lost) => all.push(Err(lost)),
            KmsgRead::Empty => return all,
        }
    }
}

#[test]
fn a_gap_is_counted_and_reading_goes_on() {
    let (_dir, root) = captured("6,5,1,-;a\n KEY=value\n6,6,1,-;b\n6,177,1,-;c\n");
    let mut reader = KmsgReader::open(&root, From::Oldest).unwrap();
    assert_eq!(seqs(&mut reader), [Ok(5), Ok(6), Err(170), Ok(177)]);
}

#[test]
fn what_is_appended_later_is_read_later() {
    let (dir, root) = captured("6,5,1,-;a\n");
    let mut newest = KmsgReader::open(&root, From::Newest).unwrap();
    assert_eq!(seqs(&mut newest), []);
    let mut file = fs::OpenOptions::new().append(true).open(dir.path().join("kmsg")).unwrap();
    file.write_all(b"6,6,1,-;ha").unwrap();
    assert_eq!(seqs(&mut newest), []);
    file.write_all(b"lf\n").unwrap();
    assert_eq!(seqs(&mut newest), [Ok(6)]);
}

#[test]
fn nonsense_is_an_error_and_the_next_record_is_read() {
    let (_dir, root) = captured(&format!("nonsense\n{}\n6,6,1,-;b\n", "x".repeat(20_000)));
    let mut reader = KmsgReader::open(&root, From::Oldest).unwrap();
    assert!(reader.next().is_err());
    let mut errors = 0;
    loop {
        match reader.next() {
            Err(_) => errors += 1,
            Ok(KmsgRead::Record(record)) => {
                assert_eq!(record.seq, 6);
                break;
            }
            Ok(other) => panic!("{other:?} after {errors} errors"),
        }
    }
}

#[test]
fn the_state_of_a_channel_that_is_not_there_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let state = KmsgReader::open(&Root::at(dir.path()), From::Oldest).err();
    assert_eq!(state, Some(ChannelState::Absent));
    for state in ChannelState::ALL {
        assert_eq!(state.as_str().parse::<ChannelState>().unwrap(), *state);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_or_not(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _record = KmsgRecord::parse(&bytes);
    }

    #[test]
    fn any_text_survives_the_kernels_escaping(
        text in prop::collection::vec(any::<u8>(), 0..200),
        seq in any::<u64>(),
        usec in any::<u64>(),
        prefix in 0_u16..200,
    ) {
        let mut line = format!("{prefix},{seq},{usec},-;");
        for &byte in &text {
            if (0x20..0x7f).contains(&byte) && byte != b'\\' {
                line.push(char::from(byte));
            } else {
                line.push_str(&format!("\\x{byte:02x}"));
            }
        }
        let record = KmsgRecord::parse(line.as_bytes()).unwrap();
        prop_assert_eq!(record.text, text);
        prop_assert_eq!((record.seq, record.usec), (seq, usec));
        prop_assert_eq!(record.facility * 8 + u16::from(record.level), prefix);
    }
}
