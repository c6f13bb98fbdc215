//! Who shares a process's address space: the kernel's OOM killer ends all of them and names one.

/// `KCMP_VM` of kcmp(2), include/uapi/linux/kcmp.h.
const KCMP_VM: libc::c_long = 1;

/// Those of `others` that use the address space of `pid`, by kcmp(2). Where the kernel does not tell (no such process any
/// more, no CONFIG_KCMP, or not allowed to trace both) a process is left out.
#[must_use]
pub fn sharing(pid: u32, others: &[u32]) -> Vec<u32> {
    others.iter().copied().filter(|&other| other != pid && same(pid, other)).collect()
}

#[expect(unsafe_code, reason = "no crate wraps kcmp(2)")]
fn same(one: u32, other: u32) -> bool {
    let (one, other) = (libc::c_long::from(one), libc::c_long::from(other));
    let none: libc::c_long = 0;
    // SAFETY: KCMP_VM takes two pids and ignores both indices; the kernel reads and writes no memory of ours.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_VM, none, none) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_an_address_space_of_its_own_and_a_thread_has_not() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        assert!(sharing(std::process::id(), &[child.id(), 0, std::process::id()]).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        // A thread is a task of this very process.
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            assert!(ended.recv().is_err(), "the other end is dropped");
        });
        let tid = u32::try_from(told.recv().unwrap()).unwrap();
        assert_eq!(sharing(std::process::id(), &[tid]), [tid]);
        drop(end);
        thread.join().unwrap();
    }
}
