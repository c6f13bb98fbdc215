//! Reads what a worker left at its marker's path, and nothing else that may lie there.

use std::{
    fs::OpenOptions,
    io::Read,
    os::unix::fs::{FileTypeExt, OpenOptionsExt},
    path::Path,
};

use rustix::fs::OFlags;

use crate::decide::marker::{MAX_MARKER, MarkerReading};

/// Reads `path`: never follows a link, never waits for a FIFO's writer, never reads more than [`MAX_MARKER`].
#[must_use]
pub fn read(path: &Path) -> MarkerReading {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let custom = i32::try_from(flags.bits()).unwrap_or(0);
    let file = match OpenOptions::new().read(true).custom_flags(custom).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return MarkerReading::Absent,
        Err(error) => return MarkerReading::NotRead(format!("it cannot be opened: {error}")),
    };
    let metadata = match file.metadata() {
        Ok(metadata) => metadata,
        Err(error) => return MarkerReading::NotRead(format!("it cannot be examined: {error}")),
    };
    if !metadata.is_file() {
        let kind = if metadata.file_type().is_fifo() { "a FIFO" } else { "no regular file" };
        return MarkerReading::NotRead(format!("it is {kind}"));
    }
    let mut bytes = Vec::new();
    match file.take(MAX_MARKER + 1).read_to_end(&mut bytes) {
        Ok(read) if u64::try_from(read).unwrap_or(u64::MAX) > MAX_MARKER => {
            MarkerReading::NotRead(format!("it is larger than {MAX_MARKER} bytes"))
        }
        Ok(_) => MarkerReading::Bytes(bytes),
        Err(error) => MarkerReading::NotRead(format!("it cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_a_small_regular_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        assert_eq!(read(&at("none")), MarkerReading::Absent);
        fs::write(at("good"), "{}").unwrap();
        assert_eq!(read(&at("good")), MarkerReading::Bytes(b"{}".to_vec()));
        fs::write(at("huge"), vec![b'x'; 70_000]).unwrap();
        assert!(matches!(read(&at("huge")), MarkerReading::NotRead(why) if why.contains("larger")));
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(read(&at("fifo")), MarkerReading::NotRead(why) if why.contains("FIFO")));
        std::os::unix::fs::symlink(at("good"), at("link")).unwrap();
        assert!(matches!(read(&at("link")), MarkerReading::NotRead(_)));
        assert!(matches!(read(dir.path()), MarkerReading::NotRead(_)));
    }
}
