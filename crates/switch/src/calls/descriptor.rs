//! dup, dup2, dup3, fcntl, ioctl: a descriptor's number, flags and copies.

use crate::engines::keep_on_kernel;
use crate::ffi::{fail, guarded, status};
use crate::listen::{follow_cloexec, hold_nonblocking, is_held_elsewhere};
use crate::lookup::{leave_lanes, listener, stream};
use crate::replacing::or_again;
use crate::socket_state::{self, State};
use crate::tables::{forget, forget_for_copy, forget_open, goes_over_exec, is_known, is_new};
use crate::why::{self, Reason, Stack as On};
use crate::{fork, option_model, real, replacing};
use core::ffi::{c_int, c_long, c_ulong, c_void};
use toe::stack::Stack;
use toe::{Errno, Socket, fd_table, program_memory, signal_io, sys};

/// `new` is a copy of `old` that the kernel has just made.
fn copied(old: c_int, new: c_int) {
    is_new(new);
    copied_to(old, new);
    if !fork::in_vfork_child() {
        super::stdio_stream::follow(new);
    }
}

/// A copy and the note of it: no connect comes in between.
fn copy_apart(old: c_int, call: impl FnOnce() -> c_int) -> c_int {
    guarded(-1, || {
        let _apart = replacing::apart(old);
        let new = call();
        if new >= 0 {
            copied(old, new);
        }
        new
    })
}

fn copied_to(old: c_int, new: c_int) {
    if !is_known(old) {
        return;
    }
    if fork::in_vfork_child() {
        followed(new, old);
        return;
    }
    fd_table::duplicate(old, new);
    takes_after(old, new);
}

/// `new` has come into the table of descriptors as a copy of `old`.
fn takes_after(old: c_int, new: c_int) {
    why::copy(old, new);
    if let Some(listener) = listener(new) {
        follow_cloexec(listener);
    }
    let state = socket_state::get(old);
    if state.has(State::SUBJECT) {
        socket_state::add(new, state.only(State::SUBJECT.with(State::INET6)));
    }
    socket_state::add(new, state.only(State::WAS_LISTENER));
    if state.has(State::INHERITED) && state.has(State::TWIN) {
        // They become the engine's together, if they do.
        socket_state::set(new, state.without(State::IN_EPOLL.with(State::REPORTED)));
    } else if state.has(State::TWIN) {
        // To move both to an engine later, all copies would have to be known; a shared kernel socket is simply kept.
        for fd in [old, new] {
            socket_state::decided(fd);
            why::set_reason(fd, On::Kernel, Reason::Duplicated);
        }
    }
}

/// # Safety
/// None beyond dup(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: the call takes a number only.
    copy_apart(fd, || unsafe { real::dup(fd) })
}

/// # Safety
/// None beyond dup2(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    // SAFETY: the call takes numbers only.
    dup_over(from, to, 0, || unsafe { real::dup2(from, to) })
}

/// # Safety
/// None beyond dup3(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: the call takes numbers only.
    dup_over(from, to, flags, || unsafe { real::dup3(from, to, flags) })
}

fn dup_over(from: c_int, to: c_int, flags: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if from == to || flags & !libc::O_CLOEXEC != 0 {
        return call();
    }
    replacing::settle(from);
    if Stack::is_internal_fd(to) || Stack::is_internal_fd(from) {
        return fail(Errno::EBADF);
    }
    // dup2 closes `to` only when `from` is open.
    let is_over = is_known(to) && rustix::io::fcntl_getfd(sys::borrow(from)).is_ok();
    if !is_over || fork::in_vfork_child() || !fd_table::are_of_one(from, from) {
        if is_over {
            guarded((), || forget_open(to));
        }
        return copy_apart(from, call);
    }
    guarded((), || forget_for_copy(from, to));
    let new = call();
    if new >= 0 {
        guarded((), || takes_after(from, new));
        super::stdio_stream::follow(new);
    } else if fd_table::are_of_one(from, to) {
        guarded((), || forget(to));
    }
    new
}

/// # Safety
/// As fcntl(2). SAFETY of the definition itself: C declares fcntl variadic, which stable Rust cannot define. On x86-64
/// (System V) and AArch64 (AAPCS64, Linux) a variadic caller passes the optional integer or pointer exactly where it
/// would pass the third argument of a function that declares it; a caller that passes none leaves a register whose
/// value is ignored for such commands.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments, handed on.
    control(fd, command, argument, |argument| unsafe { real::fcntl(fd, command, argument) })
}

/// # Safety
/// As [`fcntl`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: the program's arguments, handed on.
    control(fd, command, argument, |argument| unsafe { real::fcntl64(fd, command, argument) })
}

/// Whether `fd`, a descriptor of the same socket as `of`, goes over exec may have changed.
fn followed(fd: c_int, of: c_int) {
    let (socket, is_datagram) = (fd_table::get(of), fd_table::datagram(of).is_some());
    if socket.is_none() && !is_datagram {
        return;
    }
    let is_passed = guarded(false, || match (fork::in_vfork_child(), listener(of)) {
        // A child of vfork has descriptors of its own, and is about to execute something with them: its parent shares them now, in whose memory
        // it runs.
        (true, listener) if goes_over_exec(fd) => {
            listener.into_iter().for_each(|listener| listener.keep_over_exec(true));
            true
        }
        (false, Some(listener)) => {
            follow_cloexec(listener);
            false
        }
        _ => false,
    });
    if is_passed {
        super::process::before_child();
    }
}

#[inline]
fn control(fd: c_int, command: c_int, argument: c_long, call: impl FnOnce(c_long) -> c_int) -> c_int {
    replacing::settle(fd);
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copy_apart(fd, || call(argument)),
        libc::F_GETFL => {
            let flags = call(argument);
            match fd_table::get(fd) {
                Some(socket) if flags >= 0 => guarded(flags, || flags_of(fd, socket, flags)),
                // A mark on a kernel listener is another process's (`listen.rs`).
                None if flags >= 0 && is_held_elsewhere(fd, flags) => {
                    flags & !(libc::O_NONBLOCK | toe::socket::TWIN_MARK)
                }
                _ => flags,
            }
        }
        libc::F_SETFL => {
            let Some(socket) = fd_table::get(fd) else {
                if argument & c_long::from(libc::O_ASYNC) != 0 {
                    guarded((), || keep_on_kernel(fd, Reason::Signals));
                } else if argument & c_long::from(libc::O_APPEND) != 0 {
                    // It marks the twins of listeners (`toe::socket::TWIN_MARK`).
                    guarded((), || keep_on_kernel(fd, Reason::Option));
                }
                let result = call(argument);
                if let Some(datagram) = fd_table::datagram(fd).filter(|_| result == 0) {
                    if argument & c_long::from(libc::O_ASYNC) != 0 {
                        leave_lanes(fd);
                    }
                    datagram.set_nonblocking(argument & c_long::from(libc::O_NONBLOCK) != 0);
                }
                return result;
            };
            guarded(-1, || set_flags(fd, socket, argument, call))
        }
        // Programs go through all numbers before exec and mark what is open and not to go along: the anchor of a listener does.
        libc::F_GETFD | libc::F_SETFD if Stack::is_internal_fd(fd) => fail(Errno::EBADF),
        libc::F_GETFD => call(argument),
        libc::F_SETFD => {
            let result = call(argument);
            followed(fd, fd);
            result
        }
        _ if signal_io::is_about_owner(command) => {
            guarded((), || keep_on_kernel(fd, Reason::Signals));
            leave_lanes(fd);
            let result = call(argument);
            match fd_table::get(fd) {
                Some(socket) if result == 0 => guarded(-1, || status(signal_io::follow(fd, socket))),
                _ => result,
            }
        }
        _ => {
            socket_state::touch(fd);
            call(argument)
        }
    }
}

/// F_GETFL of a socket of the engine, whose descriptor has these.
fn flags_of(fd: c_int, socket: &'static Socket, flags: c_int) -> c_int {
    let nonblocking = if socket.nonblocking() { libc::O_NONBLOCK } else { 0 };
    // What the anchor was opened with is not the program's to see.
    let kept = if stream(fd).is_some() { SOCKET_FLAGS | libc::O_APPEND } else { SOCKET_FLAGS };
    let signals = if socket.tells_by_signals() { libc::O_ASYNC } else { 0 };
    libc::O_RDWR | (flags & kept & !socket.own_flags()) | nonblocking | signals
}

/// F_SETFL of a socket of the engine.
fn set_flags(
    fd: c_int,
    socket: &'static Socket,
    argument: c_long,
    call: impl FnOnce(c_long) -> c_int,
) -> c_int {
    let nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
    let is_listener = listener(fd).is_some();
    let twin = if is_listener { c_long::from(libc::O_NONBLOCK) } else { 0 };
    let result = call(argument | twin | c_long::from(socket.own_flags()));
    if result == 0 {
        socket.set_nonblocking(nonblocking);
        if is_listener {
            hold_nonblocking(fd, nonblocking);
        }
        let signals = argument & c_long::from(libc::O_ASYNC) != 0;
        if signals != socket.tells_by_signals() {
            return status(set_signals(fd, socket, signals));
        }
    }
    result
}

/// Sets or clears O_ASYNC.
fn set_signals(fd: c_int, socket: &'static Socket, on: bool) -> Result<(), Errno> {
    socket.tell_by_signals(on);
    signal_io::follow(fd, socket).inspect_err(|_| socket.tell_by_signals(false))
}

/// ioctl's ways to ask for signals (asm-generic).
const FIOSETOWN: c_ulong = 0x8901;
const SIOCSPGRP: c_ulong = 0x8902;
const FIOGETOWN: c_ulong = 0x8903;
const SIOCGPGRP: c_ulong = 0x8904;

/// ioctl's other ways to what fcntl does, of a socket of the engine.
///
/// # Safety
/// As ioctl(2).
unsafe fn about_signals(fd: c_int, socket: &'static Socket, request: c_ulong, value: &mut c_int) -> c_int {
    match request {
        libc::FIOASYNC => {
            // SAFETY: the caller's promise.
            if stream(fd).is_none() && unsafe { real::ioctl(fd, request, (&raw mut *value).cast()) } < 0 {
                return -1;
            }
            status(set_signals(fd, socket, *value != 0))
        }
        // SAFETY: none beyond fcntl(2)'s; of any file it is the same.
        FIOSETOWN | SIOCSPGRP => unsafe { fcntl(fd, libc::F_SETOWN, c_long::from(*value)) },
        _ => {
            *value = signal_io::owner(fd);
            0
        }
    }
}

/// Of a descriptor that is the kernel's, and may have lanes beside it.
///
/// # Safety
/// As ioctl(2).
unsafe fn of_kernel(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let datagram = fd_table::datagram(fd);
    let asked = datagram.filter(|datagram| request == libc::FIONREAD && datagram.receives_by_lanes());
    // Before the kernel is asked: where what is next is in its queue, it is there by then.
    let in_lane = asked.and_then(|datagram| guarded(None, || datagram.next_len(fd)));
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::ioctl(fd, request, argument) };
    let Some(datagram) = datagram.filter(|_| result == 0) else { return result };
    let value = argument.cast::<c_int>();
    match (request, in_lane) {
        // SAFETY: the kernel has read it without a fault.
        (libc::FIONBIO, _) => datagram.set_nonblocking(unsafe { value.read_unaligned() } != 0),
        // SAFETY: the kernel has written it without a fault.
        (libc::FIONREAD, Some(len)) => unsafe { value.write_unaligned(len as c_int) },
        _ => {}
    }
    result
}

/// # Safety
/// As ioctl(2); of the definition itself, as [`fcntl`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    replacing::settle(fd);
    let Some(socket) = fd_table::get(fd) else {
        match request {
            libc::FIOCLEX | libc::FIONCLEX if Stack::is_internal_fd(fd) => return fail(Errno::EBADF),
            libc::FIONBIO | libc::FIONREAD => {}
            libc::FIOASYNC | FIOSETOWN | SIOCSPGRP => {
                guarded((), || keep_on_kernel(fd, Reason::Signals));
                leave_lanes(fd);
            }
            _ => socket_state::touch(fd),
        }
        // SAFETY: the program's arguments, handed on.
        return unsafe { or_again(fd, of_kernel(fd, request, argument), || ioctl(fd, request, argument)) };
    };
    // Before Linux looks at where the answer is to go.
    if matches!(request, libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD) && stream(fd).is_none() {
        return fail(Errno::EINVAL);
    }
    let asks = HAVE_AN_INT.contains(&request);
    if asks && !argument.is_null() && program_memory::check(argument.cast::<c_int>(), 1).is_err() {
        return fail(program_memory::EFAULT);
    }
    // SAFETY: all requests looked at here have an int there.
    let value = unsafe { argument.cast::<c_int>().as_mut() };
    let count = match (request, value) {
        (libc::FIONBIO, Some(on)) => {
            socket.set_nonblocking(*on != 0);
            guarded((), || match stream(fd) {
                Some(_) => sys::set_nonblocking(fd, *on != 0),
                None => hold_nonblocking(fd, *on != 0),
            });
            return 0;
        }
        (libc::FIOASYNC | FIOSETOWN | SIOCSPGRP | FIOGETOWN | SIOCGPGRP, Some(value)) => {
            // SAFETY: the program's arguments, handed on.
            return guarded(-1, || unsafe { about_signals(fd, socket, request, value) });
        }
        (libc::FIONREAD | libc::TIOCOUTQ | SIOCOUTQNSD | SIOCATMARK | libc::FIONBIO, None) => {
            return fail(crate::ffi::errno(libc::EFAULT));
        }
        (libc::FIONREAD, Some(count)) => guarded(None, || Some((count, socket.unread()))),
        (libc::TIOCOUTQ, Some(count)) => guarded(None, || Some((count, socket.unsent()))),
        (SIOCOUTQNSD, Some(count)) => guarded(None, || Some((count, socket.not_sent()))),
        (SIOCATMARK, Some(count)) => guarded(None, || Some((count, usize::from(socket.is_at_mark())))),
        _ if OF_SOCKETS.contains(&request) && stream(fd).is_some() => {
            // SAFETY: the program's arguments, handed on.
            return guarded(-1, || unsafe { option_model::request(socket, request, argument) });
        }
        _ => {
            // SAFETY: the program's arguments, handed on.
            let result = unsafe { real::ioctl(fd, request, argument) };
            if matches!(request, libc::FIOCLEX | libc::FIONCLEX) {
                followed(fd, fd);
            }
            return result;
        }
    };
    match count {
        Some((slot, count)) => {
            *slot = c_int::try_from(count).unwrap_or(c_int::MAX);
            0
        }
        None => -1,
    }
}

/// The C library asks inside itself.
///
/// # Safety
/// None beyond sockatmark(3)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut is_at_mark: c_int = 0;
    // SAFETY: a local.
    let result = unsafe { ioctl(fd, SIOCATMARK, (&raw mut is_at_mark).cast()) };
    if result < 0 { result } else { is_at_mark }
}

const SIOCATMARK: c_ulong = 0x8905;
/// Requests with an int that is looked at here.
const HAVE_AN_INT: [c_ulong; 10] = [
    libc::FIONBIO,
    libc::FIONREAD,
    libc::TIOCOUTQ,
    SIOCOUTQNSD,
    SIOCATMARK,
    libc::FIOASYNC,
    FIOSETOWN,
    SIOCSPGRP,
    FIOGETOWN,
    SIOCGPGRP,
];
const SIOCOUTQNSD: c_ulong = 0x894b;
/// What any socket answers and an anchor does not: about stamps, owners, interfaces and routes (linux/sockios.h).
const OF_SOCKETS: core::ops::RangeInclusive<c_ulong> = 0x8900..=0x89ff;
/// File status flags that a socket can have beside O_NONBLOCK and the access mode.
const SOCKET_FLAGS: c_int = libc::O_ASYNC | libc::O_NOATIME;
