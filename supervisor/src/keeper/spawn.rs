//! Fork, exec and wait: what std cannot say, and the only file with unsafe code.

#![expect(
    unsafe_code,
    reason = "pre_exec, waitid(2) with WNOWAIT, wait4(2) and getgrouplist(3) have no safe counterpart"
)]

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::PathBuf,
    process::{Command, Stdio},
};

use lanewarden_probes::ending::Usage;
use rustix::pipe::{PipeFlags, pipe_with};

/// Everything that the new process needs, with nothing left to decide.
#[derive(Debug)]
pub(super) struct Birth {
    pub(super) program: PathBuf,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) dir: PathBuf,
    pub(super) log: File,
    /// `cgroup.procs` of each group that it enters.
    pub(super) doors: Vec<File>,
    pub(super) oom_score_adj: i32,
    /// Given up by root only.
    pub(super) user: Option<Account>,
}

/// A user as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
}

/// A process that runs the program.
#[derive(Debug)]
pub(super) struct Born {
    pub(super) pid: u32,
    /// Whether it got into every group.
    pub(super) in_groups: bool,
}

/// How far a start came that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    /// There was no process, or it could not enter its directory.
    Nothing,
    /// It could not become its user.
    User,
    /// The kernel would not execute the program.
    Exec,
}

// What the child writes into the pipe.
const OUTSIDE: u8 = b'c';
const NO_USER: u8 = b'u';
const READY: u8 = b'x';

/// Starts the program and waits until it runs.
///
/// # Errors
/// How far it came, with the kernel's error. The failed child is reaped.
pub(super) fn spawn(birth: Birth) -> Result<Born, (Reached, io::Error)> {
    let early = |error: io::Error| (Reached::Nothing, error);
    let (reader, writer) =
        pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(|error| early(error.into()))?;
    let stderr = birth.log.try_clone().map_err(early)?;
    let child = Child {
        doors: birth.doors,
        trace: writer,
        oom_score_adj: birth.oom_score_adj.to_string().into_bytes(),
        user: birth.user,
    };

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the edge: the one place where workers start"
    )]
    let mut command = Command::new(&birth.program);
    command
        .args(birth.argv.iter().skip(1))
        .env_clear()
        .envs(birth.env)
        .current_dir(&birth.dir)
        .stdin(Stdio::null())
        .stdout(birth.log)
        .stderr(stderr);
    if let Some(name) = birth.argv.first() {
        command.arg0(name);
    }
    // SAFETY: `Child::enter` calls only functions that signal-safety(7) lists or that are plain system calls, allocates
    // nothing, and touches no lock: everything that it reads was made before the fork.
    unsafe { command.pre_exec(move || child.enter()) };
    let outcome = command.spawn();
    // The pipe's other end lives in the closure.
    drop(command);

    let mut trace = Vec::new();
    let mut reader = File::from(reader);
    match reader.read_to_end(&mut trace) {
        Ok(_) => {}
        // A half-dead child could still hold the other end; what was written is here.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => tracing::debug!(%error, "the child's trace cannot be read"),
    }
    match outcome {
        Ok(child) => Ok(Born { pid: child.id(), in_groups: !trace.contains(&OUTSIDE) }),
        Err(error) if trace.contains(&READY) => Err((Reached::Exec, error)),
        Err(error) if trace.contains(&NO_USER) => Err((Reached::User, error)),
        Err(error) => Err((Reached::Nothing, error)),
    }
}

/// What the child does between fork and exec; made before the fork, so that it need not allocate.
struct Child {
    doors: Vec<File>,
    trace: OwnedFd,
    oom_score_adj: Vec<u8>,
    user: Option<Account>,
}

impl Child {
    fn enter(&self) -> io::Result<()> {
        for door in &self.doors {
            // "0" is the writer itself.
            if !put(door.as_raw_fd(), b"0") {
                put(self.trace.as_raw_fd(), &[OUTSIDE]);
            }
        }
        become_clean();
        self.set_oom_score();
        if let Some(user) = &self.user
            && let Err(error) = become_user(user)
        {
            put(self.trace.as_raw_fd(), &[NO_USER]);
            return Err(error);
        }
        put(self.trace.as_raw_fd(), &[READY]);
        Ok(())
    }

    fn set_oom_score(&self) {
        // SAFETY: the path is a C string, the descriptor is used only if it is one, and all three calls are
        // async-signal-safe.
        unsafe {
            let file =
                libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if file >= 0 {
                put(file, &self.oom_score_adj);
                libc::close(file);
            }
        }
    }
}

/// A session of its own, no signal ignored or blocked, umask 022, the usual soft limit of open files, and no descriptor
/// but the first three past the exec. What fails here is what a kernel lacks; the worker runs without it.
fn become_clean() {
    // SAFETY: system calls on plain values and on structures that live on this stack; all async-signal-safe.
    unsafe {
        libc::setsid();
        // The kernel's struct sigaction, all zeroes: SIG_DFL, no flags, no mask. By the raw call, since libc refuses the
        // two signals that it keeps for itself, which whoever started us may have ignored. SIGKILL and SIGSTOP are
        // refused, and never differ.
        let default = [0_u64; 4];
        let ignored = std::ptr::null_mut::<u64>();
        for signal in 1..=64 {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ignored, 8_usize);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
        libc::umask(0o022);
        let mut files: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
            // select(2) breaks above this; who needs more may raise it up to the hard limit.
            files.rlim_cur = files.rlim_max.min(1024);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
        }
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

fn become_user(user: &Account) -> io::Result<()> {
    // SAFETY: system calls on plain values and on a list that outlives them. The raw calls change this thread alone,
    // which is the only one after a fork.
    let failed = unsafe {
        libc::syscall(libc::SYS_setgroups, user.groups.len(), user.groups.as_ptr()) != 0
            || libc::syscall(libc::SYS_setresgid, user.gid, user.gid, user.gid) != 0
            || libc::syscall(libc::SYS_setresuid, user.uid, user.uid, user.uid) != 0
    };
    if failed { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// One write(2), whole or not at all.
fn put(file: RawFd, bytes: &[u8]) -> bool {
    // SAFETY: the buffer is as long as its length says; a bad descriptor is an error, not a fault.
    let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written) == Ok(bytes.len())
}

/// The user's group and supplementary groups, from the system's user database; `None` if it does not know the user.
pub(super) fn account(uid: u32) -> Option<Account> {
    let mut buffer = vec![0; 16 << 10];
    // SAFETY: a plain C structure, for which all zeroes is a value.
    let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
    let mut found = std::ptr::null_mut();
    // SAFETY: entry, buffer and result outlive the call, and the length is the buffer's.
    let error = unsafe {
        libc::getpwuid_r(uid, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found)
    };
    if error != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the entry was found, so its name is a C string in `buffer`, which still lives.
    let name: CString = unsafe { std::ffi::CStr::from_ptr(entry.pw_name) }.to_owned();
    let mut groups = vec![0; 256];
    let mut count = libc::c_int::try_from(groups.len()).ok()?;
    // SAFETY: the name is a C string, and `count` says how many the list can hold.
    let answer = unsafe {
        libc::getgrouplist(name.as_ptr(), entry.pw_gid, groups.as_mut_ptr(), &raw mut count)
    };
    if answer < 0 {
        return None;
    }
    groups.truncate(usize::try_from(count).ok()?);
    Some(Account { uid, gid: entry.pw_gid, groups })
}

/// The pid of a child that is dead and not reaped. It stays so: the caller looks first and reaps then.
///
/// # Errors
/// What the kernel says; ECHILD if there is no child at all.
pub(super) fn look_for_dead() -> io::Result<Option<u32>> {
    // SAFETY: a plain C structure, for which all zeroes is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the structure outlives the call.
    if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid filled the structure, or left the zeroes, which mean that nobody is dead.
    let pid = unsafe { info.si_pid() };
    Ok(u32::try_from(pid).ok().filter(|&pid| pid != 0))
}

/// Reaps this child: its raw wait status, and what it and its own reaped children used.
///
/// # Errors
/// What the kernel says; `WouldBlock` if it is not dead.
pub(super) fn reap(pid: u32) -> io::Result<(i32, Usage)> {
    let raw = libc::pid_t::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    // SAFETY: a plain C structure, for which all zeroes is a value.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both outlive the call.
    match unsafe { libc::wait4(raw, &raw mut status, libc::WNOHANG, &raw mut used) } {
        0 => Err(io::ErrorKind::WouldBlock.into()),
        found if found == raw => Ok((status, usage(&used))),
        _ => Err(io::Error::last_os_error()),
    }
}

fn usage(used: &libc::rusage) -> Usage {
    let micros = |time: libc::timeval| {
        let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
        seconds * 1_000_000 + u64::try_from(time.tv_usec).unwrap_or_default()
    };
    Usage {
        user_us: micros(used.ru_utime),
        system_us: micros(used.ru_stime),
        max_rss_kb: u64::try_from(used.ru_maxrss).unwrap_or_default(),
    }
}
