//! getsockopt and setsockopt. On an undecided twin the kernel keeps the options, and those with an effect on an engine's
//! socket are noted, to be repeated there; on a connection of an engine the host library answers, and what it does not
//! know is answered here as a plain kernel socket would be, when that makes no difference to the program.

use super::stream;
use crate::connect::keep_on_kernel;
use crate::ffi::{errno, fail, guarded, status};
use crate::real;
use crate::socket_state::{self, OptionKind, State, TCP_FASTOPEN_NO_COOKIE, option_kind};
use crate::why::Reason;
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use toe::socket::Socket;
use toe::{Errno, fd_table};

/// # Safety
/// As setsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    if let Some(socket) = stream(fd) {
        // SAFETY: the program's arguments, handed on.
        return guarded(-1, || unsafe { status(set_on_stream(socket, level, name, value, len)) });
    }
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result != 0 {
        return result;
    }
    if let Some(listener) = fd_table::get(fd) {
        // Connections inherit it; one that the engine does not know stays without effect on them.
        guarded((), || {
            // SAFETY: the kernel has read the value without a fault.
            let value = unsafe { crate::ffi::slice(value, len as usize) };
            let _ = listener.set_option(level, name, value);
        });
    } else if socket_state::get(fd).has(State::TWIN) {
        match option_kind(level, name) {
            // The program wants it, and an engine does not have it.
            OptionKind::Replay(_) if is_strange_algorithm(fd, level, name) => {
                guarded((), || keep_on_kernel(fd, Reason::Option));
            }
            OptionKind::Replay(bit) => socket_state::add(fd, bit),
            OptionKind::KernelOnly => guarded((), || keep_on_kernel(fd, only_kernel_reason(level, name))),
            OptionKind::Indifferent => socket_state::add(fd, State::TOUCHED),
        }
    }
    result
}

/// TCP_CONGESTION has just been set to an algorithm that the kernel has as a module, and engines do not know. (One that
/// only engines know the kernel has refused, as it does where OpenTOE is not.)
fn is_strange_algorithm(fd: c_int, level: c_int, name: c_int) -> bool {
    if (level, name) != (libc::IPPROTO_TCP, libc::TCP_CONGESTION) {
        return false;
    }
    let algorithm = rustix::net::sockopt::tcp_congestion(toe::sys::borrow(fd));
    algorithm.is_ok_and(|algorithm| toe_abi::congestion::number_of(&algorithm).is_none())
}

fn only_kernel_reason(level: c_int, name: c_int) -> Reason {
    match (level, name) {
        (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => Reason::FastOpen,
        _ => Reason::Option,
    }
}

/// # Safety
/// As setsockopt(2).
unsafe fn set_on_stream(
    socket: &'static Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<(), Errno> {
    if len > c_int::MAX as socklen_t {
        return Err(Errno::EINVAL);
    }
    if value.is_null() && len != 0 {
        return Err(errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise; not null.
    let value = unsafe { crate::ffi::slice(value, len as usize) };
    if !is_level_of(socket, level) {
        return Err(Errno::ENOPROTOOPT);
    }
    // The options of IP take a single octet, and none as 0.
    let widened = match value {
        short if level == libc::IPPROTO_IP && short.len() < size_of::<c_int>() => {
            Some(c_int::from(short.first().copied().unwrap_or(0)).to_ne_bytes())
        }
        _ => None,
    };
    if (level, name) == (libc::IPPROTO_IP, libc::IP_TTL) {
        return set_ttl(socket, value.is_empty(), widened.as_ref().map_or(value, |widened| widened));
    }
    let value = widened.as_ref().map_or(value, |widened| widened);
    match socket.set_option(level, name, value) {
        Err(Errno::ENOPROTOOPT) => without_effect(level, name, value),
        result => result,
    }
}

/// IP_TTL: 1 to 255, or -1 for the default.
fn set_ttl(socket: &'static Socket, is_empty: bool, value: &[u8]) -> Result<(), Errno> {
    const DEFAULT: c_int = 64;
    let ttl = match value.first_chunk().map(|octets| c_int::from_ne_bytes(*octets)) {
        Some(-1) if !is_empty => DEFAULT,
        Some(ttl @ 1..=255) if !is_empty => ttl,
        _ => return Err(Errno::EINVAL),
    };
    socket.set_option(libc::IPPROTO_IP, libc::IP_TTL, &ttl.to_ne_bytes())
}

/// Whether a TCP socket has options of this level.
fn is_level_of(socket: &Socket, level: c_int) -> bool {
    matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IP | libc::IPPROTO_TCP)
        || (level == libc::IPPROTO_IPV6 && socket.is_inet6())
}

/// Options that change nothing which a program can tell on a connection of an engine.
fn without_effect(level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    let harmless = match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_REUSEADDR
                | libc::SO_REUSEPORT
                | libc::SO_BROADCAST
                | libc::SO_DONTROUTE
                | libc::SO_PRIORITY
                | libc::SO_MARK
                | libc::SO_BUSY_POLL
                | libc::SO_INCOMING_CPU
        ),
        libc::IPPROTO_IP => {
            matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_MTU_DISCOVER | libc::IP_FREEBIND)
        }
        // IPv6 has no part in the connection; IPV6_V6ONLY must be set before it.
        libc::IPPROTO_IPV6 if name == libc::IPV6_V6ONLY => return Err(Errno::EINVAL),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_UNICAST_HOPS
                | libc::IPV6_TCLASS
                | libc::IPV6_MTU_DISCOVER
                | libc::IPV6_AUTOFLOWLABEL
                | libc::IPV6_FREEBIND
                | libc::IPV6_RECVPKTINFO
                | libc::IPV6_RECVTCLASS
                | libc::IPV6_RECVHOPLIMIT
        ),
        libc::IPPROTO_TCP => {
            matches!(
                name,
                libc::TCP_QUICKACK
                    | libc::TCP_DEFER_ACCEPT
                    | libc::TCP_SYNCNT
                    | libc::TCP_LINGER2
                    | libc::TCP_WINDOW_CLAMP
                    | libc::TCP_NOTSENT_LOWAT
                    | libc::TCP_THIN_LINEAR_TIMEOUTS
            )
        }
        _ => false,
    };
    match harmless {
        true if value.len() < size_of::<c_int>() && level != libc::IPPROTO_IP => Err(Errno::EINVAL),
        true => Ok(()),
        false => Err(Errno::ENOPROTOOPT),
    }
}

/// # Safety
/// As getsockopt(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    match stream(fd) {
        // SAFETY: the program's arguments, handed on.
        None => unsafe { real::getsockopt(fd, level, name, value, len) },
        // SAFETY: as above.
        Some(socket) => guarded(-1, || unsafe { get_from_stream(socket, level, name, value, len) }),
    }
}

/// # Safety
/// As getsockopt(2).
unsafe fn get_from_stream(
    socket: &'static Socket,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if !is_level_of(socket, level) {
        return fail(Errno::EOPNOTSUPP);
    }
    if value.is_null() || len.is_null() {
        return fail(errno(libc::EFAULT));
    }
    // SAFETY: the caller's promise; not null.
    let room = unsafe { len.read() };
    if room > c_int::MAX as socklen_t {
        return fail(Errno::EINVAL);
    }
    // Nothing that is asked of a TCP socket is longer than struct tcp_info.
    let mut answer = [0u8; 512];
    let result = match socket.get_option(level, name, &mut answer) {
        Err(Errno::ENOPROTOOPT) => as_plain_socket(level, name, &mut answer),
        result => result,
    };
    match result {
        Ok(octets) => {
            let octets = octets.min(room as usize).min(answer.len());
            // SAFETY: the program's buffer has `room` octets; ours does not overlap it. Linux writes the length of what
            // it copied.
            unsafe {
                core::ptr::copy_nonoverlapping(answer.as_ptr(), value.cast::<u8>(), octets);
                len.write(octets as socklen_t);
            }
            0
        }
        Err(error) => fail(error),
    }
}

/// What a kernel socket on which nothing was set would answer.
fn as_plain_socket(level: c_int, name: c_int, answer: &mut [u8]) -> Result<usize, Errno> {
    let number = match (level, name) {
        (libc::SOL_SOCKET, libc::SO_TYPE) => libc::SOCK_STREAM,
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => libc::AF_INET,
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => libc::IPPROTO_TCP,
        (libc::SOL_SOCKET, libc::SO_SNDLOWAT) => 1,
        (
            libc::SOL_SOCKET,
            libc::SO_ACCEPTCONN
            | libc::SO_REUSEADDR
            | libc::SO_REUSEPORT
            | libc::SO_BROADCAST
            | libc::SO_DONTROUTE
            | libc::SO_PRIORITY
            | libc::SO_MARK
            | libc::SO_BUSY_POLL
            | libc::SO_ZEROCOPY,
        ) => 0,
        (libc::IPPROTO_IP, libc::IP_OPTIONS) => return Ok(0),
        (libc::IPPROTO_IP, libc::IP_TOS | libc::IP_FREEBIND) => 0,
        (libc::IPPROTO_IP, libc::IP_TTL) => 64,
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER) => libc::IP_PMTUDISC_WANT,
        (
            libc::IPPROTO_IPV6,
            libc::IPV6_V6ONLY
            | libc::IPV6_TCLASS
            | libc::IPV6_FREEBIND
            | libc::IPV6_RECVPKTINFO
            | libc::IPV6_RECVTCLASS
            | libc::IPV6_RECVHOPLIMIT,
        ) => 0,
        (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS) => 64,
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER) => libc::IPV6_PMTUDISC_WANT,
        (libc::IPPROTO_TCP, libc::TCP_QUICKACK) => 1,
        (libc::IPPROTO_TCP, libc::TCP_SYNCNT) => 6,
        (libc::IPPROTO_TCP, libc::TCP_LINGER2) => 60,
        (libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT) => -1,
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT | libc::TCP_WINDOW_CLAMP | libc::TCP_FASTOPEN) => 0,
        _ => return Err(Errno::ENOPROTOOPT),
    };
    answer[..4].copy_from_slice(&number.to_ne_bytes());
    Ok(size_of::<c_int>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn harmless_options_are_taken_and_unknown_ones_refused() {
        let on = 1i32.to_ne_bytes();
        assert_eq!(without_effect(libc::SOL_SOCKET, libc::SO_REUSEADDR, &on), Ok(()));
        assert_eq!(without_effect(libc::SOL_SOCKET, libc::SO_REUSEADDR, &on[..2]), Err(Errno::EINVAL));
        assert_eq!(without_effect(libc::IPPROTO_TCP, libc::TCP_ULP, b"tls"), Err(Errno::ENOPROTOOPT));
    }

    #[test]
    fn a_plain_socket_answers() {
        let mut answer = [0; 32];
        assert_eq!(as_plain_socket(libc::SOL_SOCKET, libc::SO_TYPE, &mut answer), Ok(4));
        assert_eq!(answer[..4], libc::SOCK_STREAM.to_ne_bytes());
        assert_eq!(as_plain_socket(libc::SOL_SOCKET, 9999, &mut answer), Err(Errno::ENOPROTOOPT));
    }
}
