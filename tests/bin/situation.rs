//! Situations that a test needs of the kernel and that no ordinary program brings about.
//!
//! | words | what it does |
//! |---|---|
//! | `reuse PID` | starts a process of exactly that number (clone3(2), `set_tid`), prints it, and waits for its end |
//! | `reuse-rounds N` | N times: a process, its identity, its end, another of the same number; prints what was judged |
//! | `errno-pidfd E PROGRAM ...` | becomes PROGRAM, for which pidfd_open(2) answers errno E |
//! | `leader-exits` | its first thread ends, another one stays |
//! | `thread` | prints the id of a second thread, which stays |
//! | `thread-exec PROGRAM ...` | a thread that is not the first becomes PROGRAM |
//! | `named NAME` | calls itself NAME, prints its pid, stays |

#![expect(
    unsafe_code,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test's helper: raw system calls, and it fails loudly"
)]

use std::{
    env,
    ffi::{CString, OsString},
    io::Write,
    os::unix::process::CommandExt,
    process::Command,
    ptr, thread,
};

use lanewarden_probes::{
    Root,
    identity::resolve,
    liveness::{Recorded, judge},
};

fn main() {
    let mut words = env::args_os().skip(1);
    let word = words.next().expect("a situation");
    let rest: Vec<OsString> = words.collect();
    let number = || rest.first().unwrap().to_str().unwrap().parse::<i32>().unwrap();
    match word.to_str().unwrap() {
        "reuse" => reuse(number()),
        "reuse-rounds" => reuse_rounds(number()),
        "errno-pidfd" => errno_pidfd(number(), rest.get(1..).unwrap()),
        "leader-exits" => leader_exits(),
        "thread" => second_thread(),
        "thread-exec" => thread_exec(rest),
        "named" => named(rest.first().unwrap().to_str().unwrap()),
        other => panic!("no situation {other:?}"),
    }
}

fn told(number: i32) {
    println!("{number}");
    std::io::stdout().flush().unwrap();
}

fn stay() -> ! {
    loop {
        thread::park();
    }
}

/// A child that waits for signals; with `number`, of that number.
fn child(number: Option<i32>) -> i32 {
    let wanted = [number.unwrap_or(0)];
    // SAFETY: all zero is a valid value of this plain structure.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.exit_signal = u64::try_from(libc::SIGCHLD).unwrap();
    if number.is_some() {
        args.set_tid = wanted.as_ptr() as u64;
        args.set_tid_size = 1;
    }
    // SAFETY: no flags: a copy of this process, which has one thread; the child calls nothing but pause and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    if pid == 0 {
        loop {
            // SAFETY: takes nothing and touches no memory.
            unsafe { libc::pause() };
        }
    }
    assert!(pid > 0, "clone3: {}", std::io::Error::last_os_error());
    i32::try_from(pid).unwrap()
}

fn end(pid: i32) {
    // SAFETY: a child of ours that was not waited for; no memory is passed.
    unsafe {
        assert_eq!(libc::kill(pid, libc::SIGKILL), 0);
        assert_eq!(libc::waitpid(pid, ptr::null_mut(), 0), pid);
    }
}

fn reuse(number: i32) {
    let pid = child(Some(number));
    told(pid);
    // SAFETY: a child of ours; no status is asked for.
    unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
}

/// Prints how often the second process of a number started in the same tick, and each verdict on the first with its count.
fn reuse_rounds(rounds: i32) {
    let root = Root::live();
    let identity = |pid: i32| {
        let pid = u32::try_from(pid).unwrap();
        Recorded::of(&resolve(&root, pid, "box", "flow").unwrap().identity)
    };
    let mut verdicts = std::collections::BTreeMap::new();
    let mut collided = 0;
    for _ in 0..rounds {
        let first = child(None);
        let recorded = identity(first);
        end(first);
        assert_eq!(child(Some(first)), first);
        let judged = judge(&root, &recorded, "box");
        if identity(first).ticks == recorded.ticks {
            collided += 1;
        }
        end(first);
        *verdicts.entry(judged.verdict.as_str()).or_insert(0) += 1;
    }
    let inode = if identity(i32::try_from(std::process::id()).unwrap()).pidfs_ino.is_some() {
        "pidfs"
    } else {
        "no-pidfs"
    };
    println!("collided={collided} {inode} {verdicts:?}");
}

fn errno_pidfd(errno: i32, program: &[OsString]) {
    let load = |offset| filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
    let number = u32::try_from(libc::SYS_pidfd_open).unwrap();
    let answer = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    let mut filters = [
        load(0),
        filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, number),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, answer),
        filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let code = libc::sock_fprog { len: 4, filter: filters.as_mut_ptr() };
    // SAFETY: prctl(2) reads the program, which lives until it returns.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const code);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    turn_into(program);
}

fn filter(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k }
}

fn turn_into(program: &[OsString]) -> ! {
    let (name, arguments) = program.split_first().expect("a program");
    panic!("{}", Command::new(name).args(arguments).exec());
}

fn leader_exits() {
    thread::spawn(|| {
        told(i32::try_from(std::process::id()).unwrap());
        stay()
    });
    // SAFETY: exit(2) of the calling thread alone; it holds no lock that another one needs.
    unsafe { libc::syscall(libc::SYS_exit, 0) };
}

fn second_thread() {
    thread::spawn(|| {
        told(rustix::thread::gettid().as_raw_nonzero().get());
        stay()
    });
    stay()
}

fn thread_exec(program: Vec<OsString>) {
    thread::spawn(move || turn_into(&program));
    stay()
}

fn named(name: &str) {
    let name = CString::new(name).unwrap();
    rustix::thread::set_name(&name).unwrap();
    told(i32::try_from(std::process::id()).unwrap());
    stay()
}
