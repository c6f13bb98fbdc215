//! The wait status of a process that is not our child: PIDFD_GET_INFO (Linux 6.13; its exit part 6.15).

use std::os::fd::OwnedFd;

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// `struct pidfd_info` of include/uapi/linux/pidfd.h, its first 64 bytes (PIDFD_INFO_SIZE_VER0).
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct PidfdInfo {
    mask: u64,
    cgroupid: u64,
    pid: u32,
    tgid: u32,
    ppid: u32,
    ids: [u32; 8],
    exit_code: i32,
}

/// The exit part is filled in.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

struct GetInfo(PidfdInfo);

#[expect(unsafe_code, reason = "rustix describes an ioctl by an unsafe trait")]
// SAFETY: the opcode is that of PIDFD_GET_INFO for exactly this structure; the kernel writes at most its size, and every
// bit pattern is a value of it.
unsafe impl Ioctl for GetInfo {
    type Output = PidfdInfo;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<PidfdInfo>(0xff, 11)
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(
        _: IoctlOutput,
        info: *mut std::ffi::c_void,
    ) -> rustix::io::Result<PidfdInfo> {
        // SAFETY: `info` is the pointer that `as_ptr` gave.
        Ok(unsafe { *info.cast::<PidfdInfo>() })
    }
}

/// The raw wait status of a reaped process, if this kernel tells it to whoever holds a pidfd.
///
/// Between its end and its reaping the kernel does not say it yet; then nothing is known, and nothing is guessed.
#[must_use]
pub(super) fn wait_status(pidfd: &OwnedFd) -> Option<i32> {
    let ask = GetInfo(PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() });
    #[expect(unsafe_code, reason = "an ioctl on a descriptor of the wrong kind would be undefined")]
    // SAFETY: the descriptor is a pidfd, on which this request is defined; older kernels answer EINVAL or ENOTTY.
    let info = unsafe { ioctl(pidfd, ask) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    #[test]
    fn the_structure_has_the_kernels_size() {
        assert_eq!(size_of::<PidfdInfo>(), 64);
    }

    #[test]
    fn a_living_process_has_no_wait_status() {
        let own = pidfd_open(
            Pid::from_raw(std::process::id().cast_signed()).unwrap(),
            PidfdFlags::empty(),
        );
        assert_eq!(wait_status(&own.unwrap()), None);
    }

    #[test]
    fn a_reaped_childs_status_is_known_where_the_kernel_tells() {
        let mut child = std::process::Command::new("sh").args(["-c", "exit 7"]).spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let fd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        child.wait().unwrap();
        // Linux 6.15 and later tell; nobody may guess on earlier ones.
        let told = wait_status(&fd);
        assert_eq!(told, (kernel() >= (6, 15)).then_some(0x700));
    }

    fn kernel() -> (u32, u32) {
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut parts = release.split('.').map(|part| part.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }
}
