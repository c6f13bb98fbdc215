//! Kinds of logs, beyond the captured samples: old kernels, wrappings, hostile names, and what only looks like a kill.

use super::super::{OomKill, OomKind, read_log};

/// A current kill line's sizes.
const SIZES: &str = "total-vm:68012kB, anon-rss:16384kB, file-rss:1364kB, shmem-rss:0kB, UID:7 pgtables:76kB oom_score_adj:-3";

fn kills(log: &str) -> Vec<OomKill> {
    read_log(log.as_bytes()).unwrap().kills
}

fn pids(log: &str) -> Vec<u32> {
    kills(log).iter().map(|kill| kill.pid).collect()
}

/// The one kill of a log.
fn one(log: &str) -> OomKill {
    let mut kills = kills(log);
    assert_eq!(kills.len(), 1, "{log}\n{kills:#?}");
    kills.remove(0)
}

fn comm(log: &str) -> String {
    one(log).comm.unwrap()
}

/// A memcg kill line as the kernel has printed it since 5.4.
fn modern(pid: u32, comm: &str) -> String {
    format!("Memory cgroup out of memory: Killed process {pid} ({comm}) {SIZES}")
}

fn constraint(pid: u32, comm: &str, owner: &str, lived: &str) -> String {
    format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=0,2-4,cpuset=x,mems_allowed=0,2-4,oom_memcg={owner},task_memcg={lived},task={comm},pid={pid},uid=7"
    )
}

#[test]
fn kernels_of_2_6_print_no_sizes() {
    let kill = one(
        "Out of Memory: Kill process 31 (httpd) score 9 and children.\nOut of memory: Killed process 32 (httpd).\n",
    );
    assert_eq!((kill.pid, kill.comm.as_deref(), kill.kind), (32, Some("httpd"), OomKind::Global));
    let kill = one("[1.000001] No available memory (MPOL_BIND): Killed process 32 (a b).\n");
    assert_eq!(
        (kill.comm.as_deref(), kill.kind, kill.truncated),
        (Some("a b"), OomKind::Global, false)
    );
    let kill = one(
        "x invoked oom-killer: gfp_mask=0x201da, order=0, oom_adj=0\nOut of memory: kill process 31 (sh) score 9 or a child\nKilled process 32 (sleep)\n",
    );
    assert_eq!((kill.pid, kill.kind), (32, OomKind::Global));
    let kill = one(
        "Memory cgroup out of memory: kill process 31 (sh) score 9 or a child\nKilled process 31 (sh)\n",
    );
    assert_eq!(kill.kind, OomKind::Memcg);
    // Without an announcement it may be anybody's sentence.
    assert!(pids("Killed process 32 (sleep)\n").is_empty());
}

#[test]
fn the_limit_before_5_0_names_owner_and_home() {
    let kill = one(
        "Task in /p/c killed as a result of limit of /p\nMemory cgroup out of memory: Kill process 31 (sh) score 9 or sacrifice child\nKilled process 31 (sh) total-vm:9kB, anon-rss:2kB, file-rss:3kB, shmem-rss:4kB\n",
    );
    assert_eq!((kill.memcg.as_deref(), kill.task_memcg.as_deref()), (Some("/p"), Some("/p/c")));
    // A global kill has no limit's owner, and two mixed reports have no certain one.
    let kill = one(
        "Task in /p/c killed as a result of limit of /p\nOut of memory: Kill process 31 (sh) score 9 or sacrifice child\nKilled process 31 (sh) total-vm:9kB, anon-rss:2kB, file-rss:3kB\n",
    );
    assert_eq!((kill.memcg, kill.kind), (None, OomKind::Global));
    let mixed = kills(
        "Task in /a killed as a result of limit of /a\nTask in /b killed as a result of limit of /b\nMemory cgroup out of memory: Kill process 1 (x) score 9 or sacrifice child\nMemory cgroup out of memory: Kill process 2 (y) score 9 or sacrifice child\nKilled process 2 (y) total-vm:9kB, anon-rss:2kB, file-rss:3kB\nKilled process 1 (x) total-vm:9kB, anon-rss:2kB, file-rss:3kB\n",
    );
    assert_eq!(mixed.len(), 2);
    assert!(mixed.iter().all(|kill| kill.task_memcg.is_none() && kill.kind == OomKind::Memcg));
}

#[test]
fn owner_of_the_limit_and_home_of_the_victim_are_two() {
    let kill = one(&format!(
        "[ 1.000001] {}\n[ 1.000002] {}\n",
        constraint(5, "w", "/lanes", "/lanes/one"),
        modern(5, "w")
    ));
    assert_eq!(kill.memcg.as_deref(), Some("/lanes"));
    assert_eq!(kill.task_memcg.as_deref(), Some("/lanes/one"));
    assert_eq!((kill.uid, kill.oom_score_adj), (Some(7), Some(-3)));
}

#[test]
fn hostile_names_are_delimited_by_what_follows_them() {
    for name in [
        ") total-vm:9kB",
        "a) total-vm:9k",
        "x[1.000000] y",
        "Killed process",
        "a,task=b",
        ",uid=1,pid=2",
        "(((",
        ")))",
        "\\x41",
        "] kernel: ",
    ] {
        let log = format!(
            "[ 1.000001] {}\n[ 1.000002] {}\n",
            constraint(5, name, "/a", "/a/b"),
            modern(5, name)
        );
        let kill = one(&log);
        assert_eq!((kill.pid, kill.comm.as_deref()), (5, Some(name)), "{name}");
        assert_eq!(kill.task_memcg.as_deref(), Some("/a/b"), "{name}");
        assert_eq!((kill.total_vm_kb, kill.tgid), (Some(68012), None), "{name}");
    }
    assert_eq!(
        comm(&format!("Killed process 5 () total-vm:9kB), UID 3, {SIZES}")),
        ") total-vm:9kB"
    );
}

#[test]
fn hostile_paths_are_parsed_from_both_ends() {
    let named = |owner: &str, lived: &str| {
        let kill = one(&format!("{}\n{}\n", constraint(5, "w", owner, lived), modern(5, "w")));
        (kill.memcg, kill.task_memcg)
    };
    let (owner, lived) = ("/a,global_oom b", "/a,global_oom b/c,task=x,pid=1,uid=0");
    assert_eq!(named(owner, lived), (Some(owner.to_owned()), Some(lived.to_owned())));
    let (owner, lived) = ("/a", "/a/x,task_memcg=/b");
    assert_eq!(named(owner, lived), (Some(owner.to_owned()), Some(lived.to_owned())));
    // Two readings are possible: nobody can tell.
    let lived = "/,task_memcg=/,task_memcg=/";
    assert_eq!(named("/", lived).1, None);
    // A glued record in a path is a path.
    let path = "/x,task=a,pid=1,uid=0[1.000000] Out of memory: Killed process 1 (init) total-vm:1kB, anon-rss:1kB, file-rss:1kB";
    assert_eq!(pids(&format!("[1.000001] {}\n", constraint(5, "w", "/", path))), [5]);
}

#[test]
fn a_kernel_without_cgroups_names_none() {
    let kill = one(&format!(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,task=w,pid=5,uid=7\nOut of memory: Killed process 5 (w) {SIZES}\n"
    ));
    assert_eq!(
        (kill.constraint.as_deref(), kill.memcg, kill.task_memcg),
        (Some("CONSTRAINT_NONE"), None, None)
    );
    assert_eq!(kill.kind, OomKind::Global);
}

#[test]
fn a_group_dies_once_each() {
    let log = format!(
        "[ 1.000001] {}\n[ 1.000002] {}\n[ 1.000003] Tasks in /p/c are going to be killed due to memory.oom.group set\n[ 1.000004] {}\n[ 1.000005] {}\n[ 9.000005] {}\n",
        constraint(5, "w", "/p", "/p/c"),
        modern(5, "w"),
        modern(5, "w"),
        modern(6, "v"),
        modern(8, "late")
    );
    let kills = kills(&log);
    assert_eq!(
        kills.iter().map(|kill| (kill.pid, kill.group)).collect::<Vec<_>>(),
        [(5, true), (6, true), (8, false)]
    );
    assert_eq!(kills[1].task_memcg.as_deref(), Some("/p/c"));
    assert_eq!(
        (kills[1].memcg.as_deref(), kills[1].constraint.as_deref()),
        (Some("/p"), Some("CONSTRAINT_MEMCG"))
    );
    assert_eq!(kills[2].task_memcg, None);
    // Without stamps too.
    let plain: String = log.lines().map(|line| format!("{}\n", line.split_at(13).1)).collect();
    assert_eq!(pids(&plain), [5, 6, 8]);
}

#[test]
fn wrappings_are_taken_off() {
    let line = modern(5, "w");
    for wrapped in [
        line.clone(),
        format!("<3>{line}"),
        format!("<3>[39291577.009543] {line}"),
        format!("[    1.000001][ T1308] {line}"),
        format!("[    1.000001] [   C2] {line}"),
        format!("[Чт мая  9 14:52:38 2024] {line}"),
        format!("[木  5月  9 14:52:38 2024] {line}"),
        format!("[May 9 14:52] {line}"),
        format!("[  +0.000012] {line}"),
        format!("kern  :err   : [    1.000001] {line}"),
        format!("kern  :err   : {line}"),
        format!("2024-05-09T14:52:38,123456+02:00 {line}"),
        format!("мая 09 14:52:38 узел kernel: {line}"),
        format!("Aug  2 04:51:11 kernel: [ 4683.267560] {line}"),
        format!("Aug  2 04:51:11 host kernel: [ 4683.267560] {line}"),
        format!("2026-05-28T12:21:57.303295+00:00 host kernel: {line}"),
        format!("<3>1 2026-05-28T12:21:57.3Z host kernel - - - {line}"),
        format!("Thu May  9 14:52:38 2024 kern.err kernel: [ 1.000001] {line}"),
        format!("/var/log/messages:Aug  2 04:51:11 host kernel: {line}"),
        format!("/var/log/kern.log:[ 1.000001] {line}"),
        format!("17:[ 1.000001] {line}"),
        format!("> > [ 1.000001] {line}"),
        format!("* `[ 1.000001] {line}`"),
        format!("web_1  | [ 1.000001] {line}"),
        format!("2024-05-09T14:52:38.123456789Z stdout F [ 1.000001] {line}"),
        format!("2023-12-04T10:49:30.127Z In(05) vcpu-5 - Guest: <3>[39291577.009543] {line}"),
        format!("\u{1b}[32m[    1.000001] \u{1b}[0m\u{1b}[31m{line}\u{1b}[0m"),
        format!("3,2,1000001,-,caller=T1;{line}\r"),
        format!("    \"message\": \"{line}\","),
        format!("  message: '{line}'"),
        format!("{{\"reason\":\"OOMKilling\",\"message\":\"{line}\",\"count\":1}}"),
        format!("{{\"log\":\"[ 1.000001] {line}\\n\",\"stream\":\"stdout\"}}"),
        format!("12m  Warning  OOMKilling  node/n1  {line}"),
        format!("group out of memory: {}", line.split_at(29).1),
        format!(
            "[ 1.000001] x invoked oom-killer: gfp_mask=0xcc0, order=0, oom_score_adj=0 [ 1.000002] CPU: 1 [ 1.000003] {line}"
        ),
    ] {
        let kill = one(&wrapped);
        assert_eq!(
            (kill.pid, kill.comm.as_deref(), kill.uid),
            (5, Some("w"), Some(7)),
            "{wrapped}"
        );
        assert_eq!(
            (kill.total_vm_kb, kill.shmem_rss_kb, kill.oom_score_adj),
            (Some(68012), Some(0), Some(-3)),
            "{wrapped}"
        );
        assert_eq!(kill.kind, OomKind::Memcg, "{wrapped}");
    }
}

#[test]
fn what_the_wrapping_shows_to_be_of_user_space_is_not_believed() {
    let line = modern(5, "w");
    for forged in [
        format!("11,2,1000001,-;{line}"),
        format!("<11>{line}"),
        format!("<14>Aug  2 04:51:11 host kernel: {line}"),
        format!("user  :err   : [    1.000001] {line}"),
        format!("daemon:err   : [    1.000001] {line}"),
        format!("Aug  2 04:51:11 host app: {line}"),
        format!("Aug  2 04:51:11 host app[12]: {line}"),
        format!("Aug  2 04:51:11 host app[12]: kernel: {line}"),
        format!("Aug  2 04:51:11 host app[12]: [ 1.000001] {line}"),
        format!("Aug  2 04:51:11 host app[12]: <3>[ 1.000001] {line}"),
        format!("Thu May  9 14:52:38 2024 user.err kernel: {line}"),
        format!("[ 1.000001] app[12]: {line}"),
        format!("[ 1.000001] usb 1-1: Product: {line}"),
        format!("[ 1.000001] usb 1-1: Product: [ 1.000002] {line}"),
        format!("[ 1.000001] usb 1-1: Product: kernel: {line}"),
        format!("we looked for {line}"),
        format!("Aug  2 04:51:11 host app[12]: some message: {line}"),
        format!("Aug  2 04:51:11 host app[12]: {{\"message\":\"{line}"),
        format!(
            "{{\"MESSAGE\":\"{line}\",\"SYSLOG_FACILITY\":\"1\",\"SYSLOG_IDENTIFIER\":\"kernel\",\"_TRANSPORT\":\"kernel\"}}"
        ),
        format!(
            "{{\"MESSAGE\":\"{line}\",\"SYSLOG_FACILITY\":\"0\",\"SYSLOG_IDENTIFIER\":\"app\",\"_TRANSPORT\":\"kernel\"}}"
        ),
        format!("{{\"MESSAGE\":\"{line}\",\"_TRANSPORT\":\"kernel\"}}"),
        format!("{{\n\t\"SYSLOG_IDENTIFIER\" : \"app\",\n\t\"MESSAGE\" : \"{line}\"\n}}"),
        format!("{{\"program\":\"app\",\"message\":\"{line}\"}}"),
    ] {
        assert!(pids(&forged).is_empty(), "{forged}");
    }
}

#[test]
fn what_only_looks_like_a_kill_gives_none() {
    for line in [
        "Killed process [32718]: segfault at 8 ip 000055d8c57dd15b",
        "Killed process 12 (foo) with signal SIGKILL.",
        "Killed process 12 (foo) exited",
        "Out of memory: Killed process 12",
        "Out of memory: Killed process (foo) total-vm:1kB",
        "Out of memory and no killable processes...",
        "Memory cgroup out of memory and no killable processes...",
        "Memory cgroup out of memory: OOM victim 12 (foo) is already exiting. Skip killing the task",
        "oom_reaper: reaped process 12 (foo), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "oom_reaper: unable to reap pid:12 (foo)",
        "foo invoked oom-killer: gfp_mask=0x0(), order=0, oom_score_adj=0",
        "[ 12]     0 12     1736       44        8        0             0 foo",
        "Memory cgroup out of memory: Kill process 12 (foo) score 9 or sacrifice child",
        "lowmemorykiller: Killing 'foo' (12), adj 900,",
        "systemd[1]: app.service: A process of this unit has been killed by the OOM killer.",
        "systemd-oomd[3]: Killed /a/b due to memory pressure",
        "Out of memory: 12 bytes wanted",
        "Task in /a killed as a result of limit of /a",
        "Tasks in /a are going to be killed due to memory.oom.group set",
        "Killed process 99999999999 (foo) total-vm:1kB, anon-rss:1kB, file-rss:1kB",
        "Killed process 0 (foo) total-vm:1kB, anon-rss:1kB, file-rss:1kB",
    ] {
        for log in [
            line.to_owned(),
            format!("[ 1.000001] {line}\n"),
            format!("Aug  2 04:51:11 host kernel: {line}\n"),
            format!("3,1,1,-;{line}\n"),
        ] {
            assert!(pids(&log).is_empty(), "{log}");
        }
    }
}

#[test]
fn the_journal_is_held_to_its_facility() {
    let entry = |message: &str| {
        format!(
            "{{\"__CURSOR\":\"c\",\"_BOOT_ID\":\"b\",\"SYSLOG_FACILITY\":\"0\",\"SYSLOG_IDENTIFIER\":\"kernel\",\"_TRANSPORT\":\"kernel\",\"_SOURCE_MONOTONIC_TIMESTAMP\":\"1000001\",\"MESSAGE\":{message}}}\n"
        )
    };
    let log = entry(&format!("\"{}\"", constraint(5, "w", "/a", "/a/b")))
        + &entry(&format!("\"{}\"", modern(5, "w")));
    assert_eq!(one(&log).task_memcg.as_deref(), Some("/a/b"));
    let numbers: Vec<String> = modern(5, "w")
        .bytes()
        .map(|byte| if byte == b'w' { 0xff } else { byte }.to_string())
        .collect();
    assert_eq!(comm(&entry(&format!("[{}]", numbers.join(",")))), "\\xff");
    let report = read_log(entry("null").as_bytes()).unwrap();
    assert!(report.kills.is_empty() && !report.complete);
    let pretty = entry(&format!("\"{}\"", modern(5, "w")))
        .replace(',', ",\n\t")
        .replace('{', "{\n\t")
        .replace('}', "\n}")
        .replace("kB,\n\t", "kB,");
    assert_eq!(pids(&pretty), [5]);
    let two_boots = log.clone() + &log.replace("\"_BOOT_ID\":\"b\"", "\"_BOOT_ID\":\"c\"");
    assert_eq!(pids(&two_boots), [5, 5]);
}

#[test]
fn control_characters_in_names_come_back() {
    assert_eq!(
        comm(&format!("Aug  2 04:51:11 host kernel: {}\n", modern(5, "a#012Killed proces"))),
        "a\nKilled proces"
    );
    assert_eq!(comm(&format!("3,1,1,-;{}\n", modern(5, "\\xffa\\x0ab"))), "\\xffa\nb");
    let log = format!(
        "Aug 02 04:51:11 host kernel: {}\n",
        modern(5, "a\n                             b")
    );
    assert_eq!(comm(&log), "a\nb");
}

#[test]
fn wrapped_records_are_joined() {
    let whole = format!("[ 1.000001] {}\n", modern(5, "worker"));
    for at in 59..whole.len() - 2 {
        let (before, after) = whole.split_at(at);
        let kill = one(&format!("{before}\n{after}"));
        assert_eq!(
            (kill.pid, kill.total_vm_kb, kill.file_rss_kb),
            (5, Some(68012), Some(1364)),
            "wrapped at {at}"
        );
    }
    let whole = format!(
        "[ 1.000001] {}",
        constraint(5, "worker", "/aaaaaaa/bbbbbb", "/aaaaaaa/bbbbbb/cccccccccc")
    );
    let pieces: Vec<String> = whole
        .as_bytes()
        .chunks(40)
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    let kill = one(&format!("{}\n[ 1.000009] next\n", pieces.join("\n")));
    assert_eq!((kill.pid, kill.task_memcg.as_deref()), (5, Some("/aaaaaaa/bbbbbb/cccccccccc")));
}

#[test]
fn a_constraint_in_stamped_pieces_is_joined_and_its_path_is_not_believed() {
    let start = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=";
    for stamp in ["[    1.000001] ", "Aug  2 04:51:11 host kernel: [    1.000001] "] {
        let pieces =
            format!("{stamp}{start}\n{stamp}/a/{}\n{stamp},task=w,pid=5,uid=7\n", "b".repeat(900));
        for log in [pieces.clone(), format!("{pieces}{stamp}{}\n", modern(5, "w"))] {
            let kill = one(&log);
            assert_eq!((kill.pid, kill.uid, kill.memcg.as_deref()), (5, Some(7), Some("/a")));
            assert_eq!(kill.task_memcg, None);
        }
    }
}

#[test]
fn a_name_cut_inside_its_own_fields_names_nobody() {
    let name = "x,pid=1,uid=0";
    let line = constraint(5, name, "/a", "/a");
    let cut = line.strip_suffix(",pid=5,uid=7").unwrap();
    let row = format!(
        "[      5]     7     5    17003     4405     4096      309         0    73728        0             0 {name}"
    );
    assert!(pids(&format!("{row}\n{cut}\n")).is_empty());
    let kill = one(&format!("{cut}\n{}\n", modern(5, name)));
    assert_eq!((kill.pid, kill.tgid), (5, None));
}

#[test]
fn a_kill_is_listed_once_however_often_it_was_printed() {
    let dmesg = format!("[ 1.000001] {}\n", modern(5, "w"));
    let human = format!("[Thu May  9 14:52:38 2024] {}\n", modern(5, "w"));
    assert_eq!(pids(&[dmesg.as_str(), &human, &dmesg].concat()), [5]);
    // The same number again, an hour later, is another process; and so it is after a boot.
    assert_eq!(pids(&format!("{dmesg}[ 3601.000001] {}\n", modern(5, "w"))), [5, 5]);
    assert_eq!(pids(&format!("{dmesg}[    0.000000] Linux version 6.18\n{dmesg}")), [5, 5]);
}

#[test]
fn losses_and_long_lines_are_told() {
    let report = read_log("[ 1.000001] ** 23 printk messages dropped **\nAug 1 00:00:00 h systemd-journald[1]: Missed 4 kernel messages\n".as_bytes()).unwrap();
    assert_eq!((report.lost_records, report.complete), (27, false));
    let long = format!("{}\n{}\n", "x".repeat(1 << 20), modern(5, "w"));
    let report = read_log(long.as_bytes()).unwrap();
    assert_eq!((report.kills.len(), report.complete), (1, false));
    assert_eq!(pids(&modern(5, "w").repeat(3)).first(), Some(&5));
}

#[test]
fn glued_records_are_two() {
    let old = "Out of memory: Kill process 5 (w) score 9 or sacrifice child";
    let killed = "Killed process 5 (w) total-vm:9kB, anon-rss:2kB, file-rss:3kB";
    for glue in ["", " ", "[ 1.000002] ", " [ 1.000002] ", " Mar  2 17:35:10 h kernel: ", "\\n"] {
        let kill = one(&format!("[ 1.000001] {old}{glue}{killed}\n"));
        assert_eq!(
            (kill.pid, kill.comm.as_deref(), kill.kind),
            (5, Some("w"), OomKind::Global),
            "{glue}"
        );
    }
    let both = format!("[ 1.000001] {} {}\n", modern(5, "w"), modern(6, "v"));
    assert_eq!(pids(&both), [5, 6]);
    assert_eq!(kills(&both)[0].comm.as_deref(), Some("w"));
}

#[test]
fn the_json_keys_are_those_of_the_contract() {
    let value = serde_json::to_value(one(&format!("{}\n", modern(5, "w")))).unwrap();
    let keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    let mut contract = vec![
        "pid",
        "comm",
        "uid",
        "constraint",
        "memcg",
        "task_memcg",
        "total_vm_kb",
        "anon_rss_kb",
        "file_rss_kb",
        "shmem_rss_kb",
        "oom_score_adj",
        "kind",
    ];
    contract.sort_unstable();
    let mut keys = keys;
    keys.sort_unstable();
    assert_eq!(keys, contract);
    for kind in OomKind::ALL {
        assert_eq!(kind.as_str().parse::<OomKind>().unwrap(), *kind);
    }
}
