//! The system calls of an engine's process: each with who makes it, what for, and why it cannot be held up by a program, a
//! file system or a peer. This table is what the filters are made of ([`super::seccomp`]); what is not in it fails.
//!
//! How to find what is missing: `toe start --seccomp audit`, then `journalctl -k | grep 'type=1326'`; the tests run engines
//! with `--seccomp strict`, which ends them at the first call that is not here.

use Thread::{Any, Helper};
use nix::libc;

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thread {
    /// The engine's own thread, and the others may, too.
    Any,
    /// Only the threads beside it: those that hold what programs have sent, and writers of captures.
    Helper,
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub name: &'static str,
    pub number: i64,
    pub thread: Thread,
    /// What it is made for.
    pub purpose: &'static str,
    /// Why the engine's thread, if it makes it, does not wait.
    pub waits_not: &'static str,
}

macro_rules! calls {
    ($($(#[$cfg:meta])* $name:ident, $thread:ident, $purpose:literal, $waits_not:literal;)+) => {
        /// All of them.
        pub const CALLS: &[Call] = &[$(
            $(#[$cfg])*
            Call {
                name: stringify!($name),
                number: libc::$name,
                thread: $thread,
                purpose: $purpose,
                waits_not: $waits_not,
            },
        )+];
    };
}

calls! {
    // The round: what moves bytes, sleeps and wakes.
    SYS_read, Any, "TAP frames, inotify, signals, /proc, /sys", "non-blocking, or the kernel's own files";
    SYS_write, Any, "interrupts, TAP frames, the log", "non-blocking; the log is a file of the starter's choice";
    SYS_writev, Any, "TAP frames", "non-blocking";
    SYS_readv, Any, "TAP frames", "non-blocking";
    SYS_preadv2, Any, "eventfds of the engine's own threads", "RWF_NOWAIT";
    SYS_pread64, Any, "filters of captures, the kernel's type information", "sealed memory, or the kernel's own files";
    SYS_recvfrom, Any, "netlink, AF_PACKET", "MSG_DONTWAIT";
    SYS_recvmsg, Any, "requests (threads beside the engine's alone), AF_PACKET", "MSG_DONTWAIT";
    SYS_recvmmsg, Any, "AF_PACKET", "MSG_DONTWAIT";
    SYS_sendto, Any, "netlink, AF_XDP's wake-up, captures (their own thread, which may wait)", "MSG_DONTWAIT";
    SYS_sendmsg, Any, "answers, AF_PACKET, datagrams to kernel sockets", "MSG_DONTWAIT";
    SYS_sendmmsg, Any, "AF_PACKET", "MSG_DONTWAIT";
    #[cfg(target_arch = "x86_64")]
    SYS_epoll_wait, Any, "sleep", "a time of the engine's own choice";
    SYS_epoll_pwait, Any, "sleep", "a time of the engine's own choice";
    SYS_epoll_pwait2, Any, "sleep", "a time of the engine's own choice";
    SYS_epoll_create1, Any, "the sockets of an xdp link that is opened again; what a user's thread waits for", "nothing to wait for";
    SYS_epoll_ctl, Any, "what the sleep ends by", "the kernel's tables only";
    SYS_ppoll, Any, "whether there is something; the standard library's", "a time-out of nothing, or the engine's own";
    #[cfg(target_arch = "x86_64")]
    SYS_poll, Any, "as ppoll", "as ppoll";
    SYS_sched_yield, Any, "lets programs run that wait for a core", "until they have run";
    SYS_clock_gettime, Any, "time, where it cannot be read without a call", "nothing to wait for";
    SYS_clock_nanosleep, Any, "coalescing sleeps; a link that is opened again and has no carrier yet", "100 µs; milliseconds, once a second at most";
    SYS_futex, Any, "locks between the engine's own threads", "held for moments, and never while one of them waits";

    // Memory.
    SYS_brk, Any, "the allocator", "memory only";
    SYS_mmap, Any, "regions, channels, rings of links, the allocator", "memory only; files are memory objects of the engine's own";
    SYS_munmap, Any, "the same", "memory only";
    SYS_mremap, Any, "the allocator", "memory only";
    SYS_mprotect, Any, "the allocator, stacks of threads", "memory only";
    SYS_madvise, Any, "pages given back: by the engine's thread those of staging memory, of a region by its user's", "staging memory is this process's alone";
    SYS_memfd_create, Any, "regions, channels, reports", "memory only";
    SYS_ftruncate, Any, "their size", "memory objects only";

    // Sessions: descriptors that are made for a host.
    SYS_eventfd2, Any, "doorbells", "nothing to wait for";
    SYS_socketpair, Any, "streams of captures", "nothing to wait for";
    SYS_fcntl, Any, "seals, copies", "of the engine's own descriptors, or of sealed memory";
    SYS_fchmod, Any, "receive parts of regions, which their hosts only read", "of a file in memory that nobody else has yet";
    SYS_close, Any, "descriptors of the engine's own, and memory that it knows to be sealed", "nothing of those waits";
    SYS_dup, Any, "copies of the engine's own", "nothing to wait for";
    #[cfg(target_arch = "x86_64")]
    SYS_dup2, Any, "the terminal is left once the engine is ready", "nothing to wait for";
    SYS_dup3, Any, "the same", "nothing to wait for";
    SYS_shutdown, Any, "a connection whose session has ended: its host sees it", "marks a socket; nothing is closed";
    SYS_getsockopt, Any, "who has connected; what a socket is", "reads fields of a socket";
    SYS_getsockname, Any, "what a socket is bound to", "reads fields of a socket";
    SYS_getpeername, Any, "what a socket of datagrams is connected to", "reads fields of a socket";
    SYS_fstat, Any, "files of the engine's own; objects of the kernel's", "nothing of a file system's that a program serves";
    SYS_newfstatat, Any, "/sys (anchors: threads beside the engine's alone)", "the kernel's own files";
    SYS_statx, Any, "what a descriptor is", "AT_STATX_DONT_SYNC on what is not the engine's own";
    SYS_lseek, Any, "the standard library's reading of files", "the kernel's own files";

    // Files of the kernel's.
    SYS_openat, Any, "/proc, /sys (anchors: threads beside the engine's alone)", "the kernel's own files";
    #[cfg(target_arch = "x86_64")]
    SYS_open, Any, "/dev/net/tun", "O_NONBLOCK; devices";
    #[cfg(target_arch = "x86_64")]
    SYS_readlink, Any, "the standard library's", "the kernel's own files";
    SYS_readlinkat, Any, "the standard library's", "the kernel's own files";

    // Links: opened again, and what is asked of the kernel about them.
    SYS_socket, Any, "links, port numbers that the kernel keeps for the engine, netlink", "nothing to wait for";
    SYS_bind, Any, "links, port numbers, interrupts", "the kernel's tables, a file system in memory";
    SYS_connect, Any, "interrupts: datagrams to a name in a directory of the engine's own", "nothing to shake hands with";
    SYS_setsockopt, Any, "links, timeouts of streams", "a link that is opened again takes the kernel's lock of interfaces";
    SYS_ioctl, Any, "links: number, MTU, address, TAP", "a link that is opened again takes the kernel's lock of interfaces";
    SYS_bpf, Any, "steering: maps and, when a link is opened again, its program", "the kernel's tables only";
    SYS_uname, Any, "loading the steering program", "nothing to wait for";
    #[cfg(target_arch = "x86_64")]
    SYS_access, Any, "loading the steering program", "the kernel's own files";
    SYS_faccessat, Any, "loading the steering program", "the kernel's own files";
    SYS_perf_event_open, Any, "what the kernel can do, asked by the loader of the steering program", "refused at once";

    // The process and its threads.
    SYS_clone3, Any, "threads: writers of captures", "memory only";
    SYS_clone, Any, "the same, with an older C library", "memory only";
    SYS_set_robust_list, Any, "a thread's beginning", "nothing to wait for";
    SYS_rseq, Any, "a thread's beginning", "nothing to wait for";
    SYS_sigaltstack, Any, "a thread's beginning and end", "nothing to wait for";
    SYS_rt_sigprocmask, Any, "a thread's beginning and end", "nothing to wait for";
    SYS_rt_sigaction, Any, "a handler, also the C library's first", "nothing to wait for";
    SYS_rt_sigreturn, Any, "the end of a handler", "nothing to wait for";
    SYS_restart_syscall, Any, "the kernel's own, after a stop", "what it began with";
    SYS_prctl, Any, "a thread's name", "nothing to wait for";
    SYS_seccomp, Any, "the narrower filter of a thread; it can only take away", "nothing to wait for";
    SYS_sched_getaffinity, Any, "the standard library's; a thread's beginning", "nothing to wait for";
    SYS_sched_setaffinity, Any, "threads that help leave the engine's core", "nothing to wait for";
    SYS_gettid, Any, "a thread's beginning, the C library's locks", "nothing to wait for";
    SYS_getpid, Any, "reports", "nothing to wait for";
    SYS_geteuid, Any, "the engine's own directory in the end", "nothing to wait for";
    SYS_getrandom, Any, "tables that programs cannot aim at", "the pool is filled by then";
    SYS_prlimit64, Any, "a thread's stack", "nothing to wait for";
    SYS_exit, Any, "a thread's end", "nothing to wait for";
    SYS_exit_group, Any, "the end", "the end";
    SYS_tgkill, Any, "a crash: the process ends itself", "the end";

    // The end: files of the engine's own.
    #[cfg(target_arch = "x86_64")]
    SYS_unlink, Any, "names of interrupts; socket and process id in the end", "directories that are the engine's alone";
    #[cfg(not(target_arch = "x86_64"))]
    SYS_unlinkat, Any, "the same; anchors (threads beside the engine's alone)", "directories that are the engine's alone";
    #[cfg(target_arch = "x86_64")]
    SYS_chmod, Any, "the socket, for a user to whom the right was handed on", "a file system in memory";

    // Beside the engine's thread.
    SYS_accept4, Helper, "control connections", "";
    // Directories of anchors: who has one open can keep its lock.
    SYS_mkdirat, Helper, "anchors", "";
    #[cfg(target_arch = "x86_64")]
    SYS_unlinkat, Helper, "anchors; the engine's own directory in the end", "";
    #[cfg(target_arch = "x86_64")]
    SYS_rmdir, Helper, "the engine's own directory in the end", "";
    SYS_getdents64, Helper, "the engine's own directory in the end", "";
    SYS_inotify_init1, Helper, "reports of closed anchors, one source a user", "";
    SYS_inotify_add_watch, Helper, "which anchors", "";
    SYS_inotify_rm_watch, Helper, "the same", "";
    SYS_fchmodat, Helper, "anchors", "";
    SYS_pidfd_open, Helper, "the end of a host's process", "";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_call_is_there_once_with_its_reasons() {
        let numbers: HashSet<i64> = CALLS.iter().map(|call| call.number).collect();
        assert_eq!(numbers.len(), CALLS.len());
        for call in CALLS {
            assert!(!call.purpose.is_empty(), "{}", call.name);
            assert!((call.thread == Thread::Helper) == call.waits_not.is_empty(), "{}", call.name);
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_engines_thread_changes_and_lists_no_directory() {
        let calls = [
            libc::SYS_mkdirat,
            libc::SYS_unlinkat,
            libc::SYS_rmdir,
            libc::SYS_getdents64,
            libc::SYS_inotify_add_watch,
            libc::SYS_inotify_rm_watch,
        ];
        for call in CALLS.iter().filter(|call| calls.contains(&call.number)) {
            assert_eq!(call.thread, Helper, "{}", call.name);
        }
    }

    #[test]
    fn nothing_that_starts_a_program_or_reaches_into_one_is_there() {
        for call in [
            libc::SYS_execve,
            libc::SYS_execveat,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_kill,
            libc::SYS_mount,
            libc::SYS_setns,
            libc::SYS_unshare,
            libc::SYS_setuid,
            libc::SYS_capset,
        ] {
            assert!(CALLS.iter().all(|known| known.number != call), "{call}");
        }
    }
}
