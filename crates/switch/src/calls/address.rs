//! bind, connect, listen, accept, getsockname, getpeername, shutdown. The decisions are `connect.rs` and `listen.rs`.

use super::cancel::point;
use crate::connect::{self, Verdict};
use crate::ffi::{
    errno, fail, family, guarded, is_too_long, last_errno, read_endpoint, read_inet, restarted, status,
    write_inet,
};
use crate::lookup::{listener, stream};
use crate::policy::{Action, NOT_SUBJECT};
use crate::replacing::or_again;
use crate::socket_state::{self, State};
use crate::tables::is_new;
use crate::why::{self, Reason};
use crate::{adopt, datagram_stack, engines, free_port, listen as listening, real, replacing};
use core::ffi::c_int;
use libc::{sockaddr, sockaddr_in, socklen_t};
use toe::datagram::Datagram;
use toe::socket::Shutdown;
use toe::{Errno, fd_table, sys};
use toe_base::Endpoint;

/// # Safety
/// As bind(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if is_too_long(len) && stream(fd).is_some() {
        return fail(Errno::EINVAL);
    }
    guarded((), || connect::renew(fd));
    if let Some(socket) = stream(fd) {
        // SAFETY: as bind(2) asks of its arguments.
        return match unsafe { family(addr, len) } {
            Some(libc::AF_INET | libc::AF_UNSPEC) if !socket.is_inet6() => guarded(-1, || {
                // SAFETY: as above.
                fail(unsafe { bound_already(addr, len) })
            }),
            Some(libc::AF_INET6) if socket.is_inet6() => fail(Errno::EINVAL),
            Some(_) => fail(errno(libc::EAFNOSUPPORT)),
            None => fail(Errno::EINVAL),
        };
    }
    let state = socket_state::get(fd);
    if !state.has(State::TWIN) {
        // SAFETY: the program's arguments, handed on.
        return unsafe {
            match fd_table::datagram(fd) {
                Some(datagram) => bind_datagrams(fd, datagram, addr, len),
                None => or_again(fd, real::bind(fd, addr, len), || bind(fd, addr, len)),
            }
        };
    }
    // SAFETY: as bind(2) asks of its arguments.
    let wanted = guarded(None, || unsafe { read_endpoint(addr, len, state.has(State::INET6)) });
    let wanted = wanted.filter(|_| !state.has(State::BOUND));
    // SAFETY: as above.
    if wanted.is_some_and(|wanted| guarded(false, || unsafe { is_an_engines(fd, wanted, addr, len) })) {
        return fail(Errno::EADDRINUSE);
    }
    // SAFETY: the program's arguments, handed on; an address that says any port has been read.
    let result = unsafe {
        match wanted {
            Some(Endpoint { port: 0, .. }) => guarded(-1, || free_port::bind(fd, addr, len)),
            _ => real::bind(fd, addr, len),
        }
    };
    if result == 0 {
        socket_state::add(fd, State::BOUND);
    } else if last_errno() == Errno::EADDRNOTAVAIL {
        // SAFETY: as above; the kernel has read the address without a fault.
        return guarded(-1, || unsafe { bind_to_engine(fd, addr, len) });
    }
    // SAFETY: as above.
    or_again(fd, result, || unsafe { bind(fd, addr, len) })
}

/// bind of a UDP socket.
///
/// # Safety
/// As bind(2).
unsafe fn bind_datagrams(
    fd: c_int,
    datagram: &'static Datagram,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    renamed(fd);
    // SAFETY: the program's arguments, handed on.
    let mut result = unsafe { real::bind(fd, addr, len) };
    if result != 0 && last_errno() == Errno::EADDRNOTAVAIL {
        // SAFETY: as above; the kernel has read the address without a fault.
        let wanted = guarded(None, || unsafe { read_endpoint(addr, len, datagram.is_inet6()) });
        if !wanted.is_some_and(|wanted| guarded(false, || engines::engine_has(wanted, fd))) {
            return fail(Errno::EADDRNOTAVAIL);
        }
        // SAFETY: as above.
        result = unsafe { listening::bind_freely(fd, addr, len) };
    }
    if result == 0 {
        guarded((), || datagram_stack::bound(fd, datagram));
    }
    result
}

/// A UDP socket gets another name, or peer: its lanes were for the one before.
fn renamed(fd: c_int) {
    if let Some(datagram) = fd_table::datagram(fd) {
        guarded((), || datagram.leave());
    }
}

/// Whether a connection of an engine has the name, and the kernel finds nothing else to say against it.
///
/// # Safety
/// As bind(2).
unsafe fn is_an_engines(fd: c_int, wanted: Endpoint, addr: *const sockaddr, len: socklen_t) -> bool {
    if wanted.port == 0 || !engines::is_in_use(wanted, fd) {
        return false;
    }
    // Whether the address is this host's and the port the program's to have comes first.
    let family = if socket_state::get(fd).has(State::INET6) { libc::AF_INET6 } else { libc::AF_INET };
    let on: c_int = 1;
    let on_len = size_of::<c_int>() as socklen_t;
    // SAFETY: the option's value is a local; the address is the caller's promise; the probe's descriptor is nobody else's.
    unsafe {
        let probe = real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if probe < 0 {
            return true;
        }
        let probe = sys::Fd::from_raw(probe);
        real::setsockopt(probe.raw(), libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const on).cast(), on_len);
        real::bind(probe.raw(), addr, len) == 0 || last_errno() == Errno::EADDRINUSE
    }
}

/// What Linux says to bind on a socket that is bound: whether the address is one of this host's is looked at first.
///
/// # Safety
/// As bind(2).
unsafe fn bound_already(addr: *const sockaddr, len: socklen_t) -> Errno {
    // SAFETY: the caller's promise.
    if unsafe { read_inet(addr, len) }.is_none() {
        return Errno::EINVAL;
    }
    // SAFETY: as above; an address that could be read is a whole one. The probe's descriptor is nobody else's.
    let outcome = unsafe {
        let probe = sockaddr_in { sin_port: 0, ..addr.cast::<sockaddr_in>().read_unaligned() };
        let fd = real::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if fd < 0 {
            return Errno::EINVAL;
        }
        let socket = sys::Fd::from_raw(fd);
        let bound =
            real::bind(socket.raw(), (&raw const probe).cast(), size_of::<sockaddr_in>() as socklen_t);
        if bound < 0 { last_errno() } else { Errno::OK }
    };
    if outcome == Errno::EADDRNOTAVAIL { outcome } else { Errno::EINVAL }
}

/// # Safety
/// As bind(2).
unsafe fn bind_to_engine(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: the caller's promise.
    let wanted = unsafe { read_endpoint(addr, len, socket_state::get(fd).has(State::INET6)) };
    if !wanted.is_some_and(|wanted| engines::engine_has(wanted, fd)) {
        return fail(Errno::EADDRNOTAVAIL);
    }
    socket_state::touch(fd);
    // SAFETY: the caller's promise.
    let result = unsafe { listening::bind_freely(fd, addr, len) };
    if result == 0 {
        socket_state::add(fd, State::BOUND.with(State::ENGINE_ADDRESS));
    }
    result
}

/// # Safety
/// As connect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // To end a listener that came from elsewhere is to use it.
    adopt::on_use(fd);
    restarted(|| {
        let failed = Verdict::Done(-1);
        let verdict = match fd_table::get(fd) {
            None if !socket_state::get(fd).has(State::TWIN) => {
                match socket_state::get(fd).has(State::SUBJECT) {
                    // SAFETY: the program's arguments, handed on.
                    true => guarded(failed, || unsafe { connect::of_kernel(fd, addr, len) }),
                    false => Verdict::Pass,
                }
            }
            // SAFETY: the program's arguments, handed on.
            None => point(failed, || unsafe { connect::undecided(fd, addr, len) }),
            // SAFETY: as above.
            Some(socket) => point(failed, || unsafe { connect::again(fd, socket, addr, len) }),
        };
        match verdict {
            Verdict::Done(result) => result,
            // SAFETY: as above.
            Verdict::Pass => unsafe { connect_by_kernel(fd, addr, len) },
            Verdict::Kernel(why, in_kernel) => {
                // SAFETY: as above.
                let result = unsafe { real::connect(fd, addr, len) };
                guarded((), || connect::kernel_answered(fd, result, (why, in_kernel)));
                result
            }
        }
    })
}

/// connect of what is no TCP socket of an engine's; of a UDP socket an engine may have the way there.
///
/// # Safety
/// As connect(2).
unsafe fn connect_by_kernel(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    if let Some(datagram) = fd_table::datagram(fd) {
        renamed(fd);
        // SAFETY: the program's arguments, handed on.
        let by_engine = guarded(None, || unsafe { datagram_stack::connect(fd, datagram, addr, len) });
        if let Some(result) = by_engine {
            return result;
        }
    }
    // SAFETY: as above.
    unsafe { real::connect(fd, addr, len) }
}

/// # Safety
/// None beyond listen(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    guarded((), || connect::renew(fd));
    if stream(fd).is_some() {
        return fail(Errno::EINVAL);
    }
    if let Some(socket) = fd_table::get(fd) {
        // SAFETY: the call takes numbers only.
        let result = unsafe { real::listen(fd, backlog) };
        if result == 0 {
            guarded((), || socket.set_backlog(listening::backlog_of(backlog)));
        }
        return result;
    }
    let state = socket_state::get(fd);
    if !state.has(State::TWIN) && !state.has(State::SUBJECT) {
        // SAFETY: as above.
        return unsafe { listen_if_free(fd, backlog, state) };
    }
    let decision = guarded(NOT_SUBJECT, || listening::decide(fd));
    match decision.action {
        Action::Refuse => return listening::refused(fd, decision),
        // No engine can have it any more.
        Action::EngineOnly if !state.has(State::TWIN) => return listening::refused(fd, decision),
        Action::EngineOnly => {
            if let Err(error) = guarded(Ok(()), || listening::shut_kernel_out(fd)) {
                return fail(error);
            }
        }
        _ => {}
    }
    // SAFETY: as above.
    let result = unsafe { listen_if_free(fd, backlog, state) };
    if result != 0 && decision.action == Action::EngineOnly {
        guarded((), || listening::let_kernel_in(fd));
    }
    match state.has(State::TWIN) && result == 0 {
        true => guarded(0, || status(listening::undecided(fd, backlog, decision))),
        false => result,
    }
}

/// The kernel's listen; of one that listens anew also the connections count that the engine has at its port. The kernel has kept
/// the port only for who has bound it by number; others get one that is free.
///
/// # Safety
/// None beyond listen(2)'s.
unsafe fn listen_if_free(fd: c_int, backlog: c_int, state: State) -> c_int {
    if (state.has(State::WAS_LISTENER) || state.has(State::INHERITED))
        && guarded(false, || listening::is_taken(fd) && listening::has_its_port(fd, state))
    {
        return fail(Errno::EADDRINUSE);
    }
    // SAFETY: the call takes numbers only.
    unsafe { real::listen(fd, backlog) }
}

/// # Safety
/// As accept(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the program's arguments, handed on; without flags accept4 is accept.
    unsafe { accept4(fd, addr, len, 0) }
}

/// # Safety
/// As accept4(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    restarted(|| {
        adopt::on_use(fd);
        if let Some(socket) = listener(fd) {
            // SAFETY: the program's arguments, handed on.
            return point(-1, || unsafe { listening::accept(fd, socket, addr, len, flags) });
        }
        if stream(fd).is_some() {
            return fail(Errno::EINVAL);
        }
        // SAFETY: the program's arguments, handed on.
        let new = unsafe { real::accept4(fd, addr, len, flags) };
        if new < 0 && last_errno() == Errno::EAGAIN && is_to_wait(fd) {
            // SAFETY: as above.
            return point(-1, || unsafe { listening::accept_held(fd, addr, len, flags) });
        }
        if new >= 0 {
            is_new(new);
            guarded((), || why::copy(fd, new));
        }
        // SAFETY: as above.
        or_again(fd, new, || unsafe { accept4(fd, addr, len, flags) })
    })
}

/// The kernel has said EAGAIN of a listener; whether that is not what the program wants. errno stays as it is.
#[cold]
fn is_to_wait(fd: c_int) -> bool {
    let is = guarded(false, || {
        let flags = sys::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
        listening::is_held_elsewhere(fd, flags)
    });
    crate::ffi::set_errno(libc::EAGAIN);
    is
}

/// # Safety
/// As getsockname(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match stream(fd) {
        None => {
            let of_datagrams = fd_table::datagram(fd).filter(|datagram| datagram.has_engine());
            let name = of_datagrams
                .and_then(|datagram| guarded(None, || datagram.local_name(fd)).map(|name| (datagram, name)));
            match name {
                // SAFETY: the program's arguments, handed on.
                None => unsafe {
                    or_again(fd, real::getsockname(fd, addr, len), || getsockname(fd, addr, len))
                },
                // SAFETY: as above.
                Some((datagram, name)) => guarded(-1, || unsafe {
                    status(write_inet(name.to_socket_addr(), datagram.is_inet6(), addr, len))
                }),
            }
        }
        Some(socket) => guarded(-1, || {
            // SAFETY: as above.
            status(
                socket
                    .local_addr()
                    .and_then(|local| unsafe { write_inet(local, socket.is_inet6(), addr, len) }),
            )
        }),
    }
}

/// # Safety
/// As getpeername(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    match stream(fd) {
        // SAFETY: the program's arguments, handed on.
        None => unsafe {
            let datagram = fd_table::datagram(fd).filter(|datagram| datagram.has_engine());
            let connected =
                datagram.and_then(|datagram| Some((datagram, guarded(None, || datagram.connected())?)));
            if let Some((datagram, connected)) = connected {
                let (peer, inet6) = (connected.peer.to_socket_addr(), datagram.is_inet6());
                return guarded(-1, || status(write_inet(peer, inet6, addr, len)));
            }
            or_again(fd, real::getpeername(fd, addr, len), || getpeername(fd, addr, len))
        },
        Some(socket) => guarded(-1, || {
            // SAFETY: as above.
            status(
                socket.peer_addr().and_then(|peer| unsafe { write_inet(peer, socket.is_inet6(), addr, len) }),
            )
        }),
    }
}

/// # Safety
/// None beyond shutdown(2)'s.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    adopt::on_use(fd);
    // SAFETY: the call takes numbers only.
    let kernel = || match unsafe { real::shutdown(fd, how) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    };
    // No signal's handler runs meanwhile: one that closes the socket would wait for this.
    let of_undecided = guarded(None, || {
        let _apart = replacing::apart(fd)?;
        // Even one that fails leaves its mark: what is connected or accepted with the socket later is shut, too.
        engines::keep_on_kernel(fd, Reason::ShutBefore);
        Some(status(kernel()))
    });
    if let Some(result) = of_undecided {
        return result;
    }
    let Some(socket) = fd_table::get(fd) else {
        return match fd_table::datagram(fd) {
            Some(datagram) => guarded(-1, || status(datagram.shut_down(how, kernel))),
            None => status(kernel()),
        };
    };
    let direction = match how {
        libc::SHUT_RD => Shutdown::Read,
        libc::SHUT_WR => Shutdown::Write,
        libc::SHUT_RDWR => Shutdown::Both,
        _ => return fail(Errno::EINVAL),
    };
    if listener(fd).is_some() {
        // SAFETY: as above.
        let result = unsafe { real::shutdown(fd, how) };
        if result == 0 && how != libc::SHUT_WR {
            guarded((), || listening::end(socket));
        }
        return result;
    }
    guarded(-1, || status(socket.shutdown(direction)))
}
