//! Pressure stall information: the share of time in which tasks waited for a resource
//! (Documentation/accounting/psi.rst). For the box under `/proc/pressure`, and in every v2 cgroup.

use crate::{Absent, Reading, Root, reading};
use std::path::Path;

crate::closed_set! {
    /// What tasks waited for.
    pub enum Resource {
        /// A CPU.
        Cpu = "cpu",
        /// Memory.
        Memory = "memory",
        /// A block device.
        Io = "io",
    }
}

/// One line: averages in percent of wall time, and a total.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 seconds.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
    /// Microseconds since boot, or since the group was made.
    pub total_us: u64,
}

/// A pressure file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks that had work waited. `None` where the kernel does not print it (CPU before 5.13).
    pub full: Option<Stall>,
}

/// Pressure on the whole box. [`Absent::NotSupported`] when PSI is not built in or is switched off.
///
/// # Errors
/// The file could not be read for another reason than absence, or has not the shape of psi.rst.
pub fn of_box(root: &Root, resource: Resource) -> Reading<Pressure> {
    read(&root.proc().join("pressure").join(resource.as_str()))
}

/// Pressure on one v2 control group.
///
/// # Errors
/// The file could not be read for another reason than absence, or has not the shape of psi.rst.
pub fn of_cgroup(dir: &Path, resource: Resource) -> Reading<Pressure> {
    read(&dir.join(format!("{resource}.pressure")))
}

fn read(path: &Path) -> Reading<Pressure> {
    let bytes = match reading::read_file(path, 4096, Absent::NotSupported)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    reading::parsed(path, "a line of `some` averages", &bytes, parse(&bytes))
}

/// Parses a pressure file; unknown lines and keys are passed over.
#[must_use]
pub fn parse(bytes: &[u8]) -> Option<Pressure> {
    let text = std::str::from_utf8(bytes).ok()?;
    let (mut some, mut full) = (None, None);
    for line in text.lines() {
        match line.split_once(' ') {
            Some(("some", rest)) => some = Some(stall(rest)?),
            Some(("full", rest)) => full = Some(stall(rest)?),
            Some(_) | None => {}
        }
    }
    Some(Pressure { some: some?, full })
}

fn stall(line: &str) -> Option<Stall> {
    let value = |wanted: &str| {
        line.split_whitespace()
            .filter_map(|word| word.split_once('='))
            .find_map(|(key, value)| (key == wanted).then_some(value))
    };
    Some(Stall {
        avg10: percent(value("avg10")?)?,
        avg60: percent(value("avg60")?)?,
        avg300: percent(value("avg300")?)?,
        total_us: reading::number(value("total")?.as_bytes())?,
    })
}

/// A share of time; NaN and infinity parse as numbers in Rust and are none here.
fn percent(text: &str) -> Option<f64> {
    text.parse().ok().filter(|share: &f64| share.is_finite() && *share >= 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn with_and_without_full() {
        let both = b"some avg10=1.28 avg60=0.91 avg300=3.27 total=72655452\n\
            full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        let pressure = parse(both).unwrap();
        assert!((pressure.some.avg10 - 1.28).abs() < 1e-9);
        assert_eq!(pressure.some.total_us, 72_655_452);
        assert_eq!(pressure.full.unwrap().total_us, 7);
        let old = b"some avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(parse(old).unwrap().full, None);
        for wrong in [
            &b""[..],
            b"some",
            b"full avg10=0.00 avg60=0.00 avg300=0.00 total=1\n",
            b"some avg10=NaN avg60=0.00 avg300=0.00 total=1\n",
            b"some avg10=0.00 total=1\n",
        ] {
            assert_eq!(parse(wrong), None, "{}", wrong.escape_ascii());
        }
    }

    #[test]
    fn a_box_without_psi_says_so_and_damage_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::at(dir.path());
        assert_eq!(of_box(&root, Resource::Memory).unwrap(), Err(Absent::NotSupported));
        std::fs::write(dir.path().join("io.pressure"), "x").unwrap();
        assert!(of_cgroup(dir.path(), Resource::Io).is_err());
        // Whatever this box has, reading it is no failure.
        for resource in Resource::ALL {
            assert!(of_box(&Root::live(), *resource).is_ok());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _unused = parse(&bytes);
        }

        #[test]
        fn nor_does_text_that_is_nearly_right(text in "(some|full)?[ =a-z0-9.\n]{0,80}") {
            let _unused = parse(text.as_bytes());
        }
    }
}
