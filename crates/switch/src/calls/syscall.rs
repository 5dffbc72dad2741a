//! syscall(2): programs that make system calls by number (libuv closes descriptors so) reach the same functions as those
//! that call them by name.
//!
//! A child that is made so runs no handler of pthread_atfork: they are called here. Whoever makes calls by the machine's
//! own instruction is not seen.

use super::{address, data, descriptor, epoll, file, messages, metadata, open, poll, process};
use crate::ffi::fail;
use crate::{own_calls, policy, real};
use core::ffi::{c_int, c_long, c_uint};
use core::ptr::with_exposed_provenance_mut as at;
use toe::Errno;

/// Calls with the arguments as C passes them: numbers are cut, pointers are pointers.
macro_rules! calls {
    ($number:ident, [$($arg:ident),*], or $otherwise:path: $($call:ident => $function:path[$($kind:ident $which:ident),*];)+) => {
        match $number {
            // SAFETY: the program's arguments, handed on; as the call of this number asks.
            $(libc::$call => unsafe { $function($(calls!(@$kind $which)),*) as c_long },)+
            // SAFETY: as above.
            _ => unsafe { $otherwise($number, $($arg),*) },
        }
    };
    (@int $arg:ident) => { $arg as c_int };
    (@uint $arg:ident) => { $arg as c_uint };
    (@word $arg:ident) => { $arg as _ };
    (@ptr $arg:ident) => { at($arg as usize) };
}

/// # Safety
/// As syscall(2). C declares it variadic; see [`descriptor::fcntl`] why it can be defined like this: the arguments are in
/// the same registers, and one that was not passed is not looked at by the call that it is not an argument of.
#[expect(clippy::cast_lossless, reason = "some of the results are ints, some are longs")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if makes_child(number, a, b) {
        // SAFETY: as above; such a child goes on with a copy of this stack.
        return process::around(|| unsafe { real::syscall(number, a, b, c, d, e, f) });
    }
    let sets_filter = number == libc::SYS_seccomp
        && [libc::SECCOMP_SET_MODE_STRICT, libc::SECCOMP_SET_MODE_FILTER].contains(&(a as libc::c_uint));
    if sets_filter {
        // SAFETY: as above.
        return super::confine::around_filter(|| unsafe { real::syscall(number, a, b, c, d, e, f) });
    }
    if number == libc::SYS_io_uring_setup && !may_have_ring() {
        return c_long::from(fail(Errno(libc::ENOSYS as u16)));
    }
    note_becoming(number, a, b);
    #[cfg(target_arch = "x86_64")]
    if is_old(number) {
        // SAFETY: as above.
        return unsafe { old_call(number, [a, b, c, d, e, f]) };
    }
    calls! { number, [a, b, c, d, e, f], or by_file:
        SYS_socket => open::socket[int a, int b, int c];
        SYS_close => open::close[int a];
        SYS_close_range => open::close_range[uint a, uint b, int c];
        SYS_bind => address::bind[int a, ptr b, word c];
        SYS_connect => address::connect[int a, ptr b, word c];
        SYS_listen => address::listen[int a, int b];
        SYS_accept => address::accept[int a, ptr b, ptr c];
        SYS_accept4 => address::accept4[int a, ptr b, ptr c, int d];
        SYS_getsockname => address::getsockname[int a, ptr b, ptr c];
        SYS_getpeername => address::getpeername[int a, ptr b, ptr c];
        SYS_shutdown => address::shutdown[int a, int b];
        SYS_getsockopt => super::option::getsockopt[int a, int b, int c, ptr d, ptr e];
        SYS_setsockopt => super::option::setsockopt[int a, int b, int c, ptr d, word e];
        SYS_read => data::read[int a, ptr b, word c];
        SYS_write => data::write[int a, ptr b, word c];
        SYS_readv => data::readv[int a, ptr b, int c];
        SYS_writev => data::writev[int a, ptr b, int c];
        SYS_recvfrom => data::recvfrom[int a, ptr b, word c, int d, ptr e, ptr f];
        SYS_sendto => data::sendto[int a, ptr b, word c, int d, ptr e, word f];
        SYS_recvmsg => messages::recvmsg[int a, ptr b, int c];
        SYS_sendmsg => messages::sendmsg[int a, ptr b, int c];
        SYS_recvmmsg => messages::recvmmsg[int a, ptr b, uint c, int d, ptr e];
        SYS_sendmmsg => messages::sendmmsg[int a, ptr b, uint c, int d];
        SYS_sendfile => file::sendfile[int a, int b, ptr c, word d];
        SYS_splice => super::splice::splice[int a, ptr b, int c, ptr d, word e, uint f];
        SYS_dup => descriptor::dup[int a];
        SYS_dup3 => descriptor::dup3[int a, int b, int c];
        SYS_fcntl => descriptor::fcntl[int a, int b, word c];
        SYS_ioctl => descriptor::ioctl[int a, word b, ptr c];
        SYS_ppoll => poll::ppoll[ptr a, word b, ptr c, ptr d];
        SYS_epoll_create1 => epoll::epoll_create1[int a];
        SYS_epoll_ctl => epoll::epoll_ctl[int a, int b, int c, ptr d];
        SYS_epoll_pwait => epoll::epoll_pwait[int a, ptr b, int c, int d, ptr e];
        SYS_epoll_pwait2 => epoll::epoll_pwait2[int a, ptr b, int c, ptr d, ptr e];
        SYS_prctl => super::confine::prctl[int a, word b, word c, word d, word e];
        SYS_chroot => super::confine::chroot[ptr a];
        SYS_setrlimit => super::limit::setrlimit[uint a, ptr b];
        SYS_prlimit64 => super::limit::prlimit[int a, uint b, ptr c, ptr d];
    }
}

/// Calls on descriptors of any kind, and those that execute a program.
///
/// # Safety
/// As the call of this number.
#[expect(clippy::cast_lossless, reason = "some of the results are ints, some are longs")]
unsafe fn by_file(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    calls! { number, [a, b, c, d, e, f], or real::syscall:
        SYS_lseek => metadata::lseek[int a, word b, int c];
        SYS_fstat => metadata::fstat[int a, ptr b];
        SYS_newfstatat => metadata::fstatat[int a, ptr b, ptr c, int d];
        SYS_statx => metadata::statx[int a, ptr b, int c, uint d, ptr e];
        SYS_pread64 => metadata::pread64[int a, ptr b, word c, word d];
        SYS_pwrite64 => metadata::pwrite64[int a, ptr b, word c, word d];
        SYS_preadv => metadata::preadv64[int a, ptr b, int c, word d];
        SYS_pwritev => metadata::pwritev64[int a, ptr b, int c, word d];
        SYS_preadv2 => metadata::preadv64v2[int a, ptr b, int c, word d, int f];
        SYS_pwritev2 => metadata::pwritev64v2[int a, ptr b, int c, word d, int f];
        SYS_fsync => metadata::fsync[int a];
        SYS_fdatasync => metadata::fdatasync[int a];
        SYS_copy_file_range => file::copy_file_range[int a, ptr b, int c, ptr d, word e, uint f];
        SYS_execve => super::exec::execve[ptr a, ptr b, ptr c];
        SYS_execveat => super::exec::execveat[int a, ptr b, ptr c, ptr d, int e];
    }
}

/// Whether the program may have a ring of io_uring. What it puts there nobody but the kernel sees: an engine's socket would be
/// waited for in vain, whichever came first. Linux says the same where io_uring is switched off, and so programs do without.
fn may_have_ring() -> bool {
    !policy::may_have_engine() || own_calls::found()
}

/// A thread is about to become another user. By number it does so alone, other than by the C library's functions of these
/// names: so the call itself goes on as it is.
fn note_becoming(number: c_long, a: c_long, b: c_long) {
    match number {
        libc::SYS_setuid => super::process::before_becoming(a as libc::uid_t),
        libc::SYS_setreuid | libc::SYS_setresuid => super::process::before_becoming(b as libc::uid_t),
        _ => {}
    }
}

/// Whether it is one of the calls of before that are known here; newer machines do not have them.
#[cfg(target_arch = "x86_64")]
fn is_old(number: c_long) -> bool {
    let old =
        [libc::SYS_poll, libc::SYS_select, libc::SYS_dup2, libc::SYS_epoll_create, libc::SYS_epoll_wait];
    old.contains(&number)
}

/// # Safety
/// As the call of this number.
#[cfg(target_arch = "x86_64")]
#[expect(clippy::cast_lossless, reason = "all of the results are ints")]
unsafe fn old_call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    calls! { number, [a, b, c, d, e, f], or real::syscall:
        SYS_poll => poll::poll[ptr a, word b, int c];
        SYS_select => poll::select[int a, ptr b, ptr c, ptr d, ptr e];
        SYS_dup2 => descriptor::dup2[int a, int b];
        SYS_epoll_create => epoll::epoll_create[int a];
        SYS_epoll_wait => epoll::epoll_wait[int a, ptr b, int c, int d];
    }
}

/// Whether the call makes a process that goes on with a copy of this one's memory and stack.
fn makes_child(number: c_long, flags: c_long, stack: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_fork {
        return true;
    }
    number == libc::SYS_clone && flags & c_long::from(libc::CLONE_VM) == 0 && stack == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_with_a_copy_of_the_memory_are_known() {
        let with_memory = c_long::from(libc::CLONE_VM | libc::SIGCHLD);
        assert!(makes_child(libc::SYS_clone, c_long::from(libc::SIGCHLD), 0));
        assert!(!makes_child(libc::SYS_clone, with_memory, 0));
        assert!(!makes_child(libc::SYS_clone, c_long::from(libc::SIGCHLD), 4096));
        assert!(!makes_child(libc::SYS_close, 5, 0));
    }

    #[test]
    fn calls_by_number_go_where_calls_by_name_go() {
        // SAFETY: numbers, and a buffer that is not looked at as the descriptor is not open.
        unsafe {
            assert_eq!(syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0), c_long::from(libc::getpid()));
            assert_eq!(syscall(libc::SYS_close, -1, 0, 0, 0, 0, 0), -1);
            assert_eq!(crate::ffi::last_errno(), toe::Errno::EBADF);
            assert_eq!(syscall(libc::SYS_read, -1, 0, 0, 0, 0, 0), -1);
        }
    }
}
