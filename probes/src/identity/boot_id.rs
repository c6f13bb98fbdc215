//! The kernel's random name for one boot.

use crate::{Absent, Reading, Root, reading};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// A boot id: the UUID of `/proc/sys/kernel/random/boot_id`, kept whole.
///
/// Containers may see one of their own (LXC and systemd-nspawn mount a fresh one over the file at each start), and
/// every clone of a resumed VM snapshot shows the same one. So equal ids are necessary for one boot, not sufficient.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BootId(String);

/// A text that is no boot id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{found:?} is not a UUID of 36 lower-case characters")]
pub struct BootIdError {
    found: String,
}

impl BootId {
    /// The whole UUID, as the kernel prints it.
    #[must_use]
    pub fn full(&self) -> &str {
        &self.0
    }

    /// The first 8 hex digits, for display only: 32 of 128 bits.
    #[must_use]
    pub fn short(&self) -> &str {
        self.0.split('-').next().unwrap_or_default()
    }
}

impl FromStr for BootId {
    type Err = BootIdError;

    /// Strict: five groups of 8, 4, 4, 4 and 12 lower-case hex digits and nothing else.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let well_formed = text.len() == 36
            && text.bytes().enumerate().all(|(index, byte)| match index {
                8 | 13 | 18 | 23 => byte == b'-',
                _ => hex(byte),
            });
        if well_formed {
            Ok(Self(text.to_owned()))
        } else {
            Err(BootIdError { found: text.chars().take(40).collect() })
        }
    }
}

impl TryFrom<String> for BootId {
    type Error = BootIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<BootId> for String {
    fn from(id: BootId) -> Self {
        id.0
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// The boot id of the running kernel, as this process sees it.
///
/// # Errors
/// The file could not be read, or holds no UUID. A kernel without the file answers [`Absent::NotSupported`].
pub fn boot_id(root: &Root) -> Reading<BootId> {
    let path = root.proc().join("sys/kernel/random/boot_id");
    let bytes = match reading::read_file(&path, 256, Absent::NotSupported)? {
        Ok(bytes) => bytes,
        Err(absent) => return Ok(Err(absent)),
    };
    let id = std::str::from_utf8(bytes.trim_ascii()).ok().and_then(|text| text.parse().ok());
    reading::parsed(&path, "a boot id (UUID)", &bytes, id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_own_form_is_a_boot_id() {
        let id: BootId = "0f6b1c9e-1234-4abc-8def-0123456789ab".parse().unwrap();
        assert_eq!(id.short(), "0f6b1c9e");
        assert_eq!(id.full().len(), 36);
        for wrong in [
            "",
            "0f6b1c9e",
            "0F6B1C9E-1234-4abc-8def-0123456789ab",
            "0f6b1c9e-1234-4abc-8def-0123456789ab ",
            "0f6b1c9e_1234-4abc-8def-0123456789ab",
            "0f6b1c9e-1234-4abc-8def-0123456789é",
        ] {
            assert!(wrong.parse::<BootId>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn this_kernel_has_one() {
        let id = boot_id(&Root::live()).unwrap().unwrap();
        assert_eq!(id.full().parse::<BootId>().unwrap(), id);
    }
}
