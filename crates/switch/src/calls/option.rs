//! getsockopt and setsockopt. On an undecided twin the kernel keeps the options, and those with an effect on an engine's
//! socket are noted, to be repeated there; on a connection of an engine the host library answers, and what it does not
//! know is asked of the kernel ([`option_model`]), when that makes no difference to the connection.

use crate::engines::keep_on_kernel;
use crate::ffi::{fail, guarded, slice, status};
use crate::lookup::{self, leave_lanes, stream};
use crate::option_model;
use crate::replacing::{or_again, settled_stream};
use crate::socket_state::{self, OptionKind, Replayed, State, option_kind};
use crate::why::Reason;
use crate::{datagram_stack, listen as listening, real};
use core::ffi::{c_int, c_void};
use libc::socklen_t;
use toe::program_memory::{self, check};
use toe::socket::Socket;
use toe::tls::SOL_TLS;
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
    if let Some(socket) = settled_stream(fd) {
        // SAFETY: the program's arguments, handed on.
        return guarded(-1, || unsafe { status(set_on_stream(fd, socket, level, name, value, len)) });
    }
    before_option(fd, level, name);
    // SAFETY: the program's arguments, handed on.
    let result = unsafe { real::setsockopt(fd, level, name, value, len) };
    if result != 0 {
        // SAFETY: as above.
        return or_again(fd, result, || unsafe { setsockopt(fd, level, name, value, len) });
    }
    datagram_option_set(fd, level, name);
    if let Some(listener) = fd_table::get(fd) {
        // Connections inherit it.
        guarded((), || {
            if option_model::has_effect(level, name) || (level, name) == MAXSEG {
                return listening::leave_to_kernel(fd, listener, is_of_group(level, name));
            }
            // SAFETY: the kernel has read the value without a fault.
            let value = unsafe { slice(value, len as usize) };
            let (level, name) = option_model::older_name(level, name);
            if listener.set_option(level, name, value) == Err(Errno::ENOPROTOOPT) {
                listener.keep_option(level, name, value);
            }
        });
    } else if socket_state::get(fd).has(State::TWIN) {
        match option_kind(level, name) {
            // The program wants it, and an engine does not have it.
            OptionKind::Replay(_) if is_strange_algorithm(fd, level, name) => {
                guarded((), || keep_on_kernel(fd, Reason::Option));
            }
            OptionKind::Replay(bit) => {
                // SAFETY: the kernel has read the value without a fault.
                let value = unsafe { slice(value, len as usize) };
                let (level, name) = option_model::older_name(level, name);
                socket_state::note_option(fd, bit, Replayed { level, name }, value);
            }
            OptionKind::KernelOnly => guarded((), || {
                keep_on_kernel(fd, only_kernel_reason(level, name));
                if is_of_group(level, name) {
                    listening::leave_group(fd);
                }
            }),
            OptionKind::Indifferent => socket_state::add(fd, State::TOUCHED),
        }
    }
    result
}

/// What a listener's SYNs say: engines say what their link carries.
const MAXSEG: (c_int, c_int) = (libc::IPPROTO_TCP, libc::TCP_MAXSEG);

/// A program that chooses among all listeners of one address (SO_REUSEPORT).
fn is_of_group(level: c_int, name: c_int) -> bool {
    let names = [libc::SO_ATTACH_REUSEPORT_CBPF, libc::SO_ATTACH_REUSEPORT_EBPF];
    level == libc::SOL_SOCKET && names.contains(&name)
}

/// What a UDP socket is asked for that lanes do not do is the kernel's to do from here on.
fn before_option(fd: c_int, level: c_int, name: c_int) {
    let Some(datagram) = fd_table::datagram(fd) else { return };
    if !guarded(true, || datagram.may_set(level, name)) {
        leave_lanes(fd);
    }
}

/// The kernel has set an option of a UDP socket.
fn datagram_option_set(fd: c_int, level: c_int, name: c_int) {
    let Some(datagram) = fd_table::datagram(fd) else { return };
    guarded((), || {
        datagram.was_set(fd, level, name);
        if datagram_stack::joins(level, name) {
            datagram_stack::tell_groups(fd, datagram);
        }
    });
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
        (libc::IPPROTO_TCP, option_model::TCP_FASTOPEN_NO_COOKIE) => Reason::FastOpen,
        _ => Reason::Option,
    }
}

/// No option's value is read further.
const VALUE_MAX: usize = 256;

/// # Safety
/// As setsockopt(2).
unsafe fn set_on_stream(
    fd: c_int,
    socket: &'static Socket,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<(), Errno> {
    if len > c_int::MAX as socklen_t {
        return Err(Errno::EINVAL);
    }
    if len != 0 {
        check(value.cast::<u8>(), (len as usize).min(VALUE_MAX))?;
    }
    // SAFETY: the caller's promise; it is there.
    let value = unsafe { slice(value, (len as usize).min(VALUE_MAX)) };
    if !is_level_of(socket, level) {
        return Err(Errno::ENOPROTOOPT);
    }
    let as_given = value;
    let (level, name) = option_model::older_name(level, name);
    // The options of IP take a single byte, and none as 0.
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
    let bounded = match (level, name) {
        (
            libc::SOL_SOCKET,
            libc::SO_RCVBUF | libc::SO_RCVBUFFORCE | libc::SO_SNDBUF | libc::SO_SNDBUFFORCE,
        ) => option_model::buffer_size(socket, level, name, value)?.map(c_int::to_ne_bytes),
        _ => None,
    };
    let value = bounded.as_ref().map_or(value, |bounded| bounded);
    match socket.set_option(level, name, value) {
        Err(Errno::ENOPROTOOPT) if level != SOL_TLS => option_model::set(fd, socket, level, name, as_given),
        result => result,
    }
}

/// IP_TTL: 1 to 255, or -1 for the default.
fn set_ttl(socket: &'static Socket, is_empty: bool, value: &[u8]) -> Result<(), Errno> {
    const DEFAULT: c_int = 64;
    let ttl = match value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes)) {
        Some(-1) if !is_empty => DEFAULT,
        Some(ttl @ 1..=255) if !is_empty => ttl,
        _ => return Err(Errno::EINVAL),
    };
    socket.set_option(libc::IPPROTO_IP, libc::IP_TTL, &ttl.to_ne_bytes())
}

/// Whether a TCP socket has options of this level.
fn is_level_of(socket: &Socket, level: c_int) -> bool {
    matches!(level, libc::SOL_SOCKET | libc::IPPROTO_IP | libc::IPPROTO_TCP | SOL_TLS)
        || (level == libc::IPPROTO_IPV6 && socket.is_inet6())
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
        None => {
            // SAFETY: the program's arguments, handed on.
            let answer = unsafe { real::getsockopt(fd, level, name, value, len) };
            // SAFETY: as above.
            if answer < 0 && is_mtu(level, name) && guarded(false, || unsafe { tell_mtu(fd, value, len) }) {
                return 0;
            }
            // SAFETY: as above.
            if answer == 0 && (level, name) == (libc::IPPROTO_TCP, libc::TCP_INFO) {
                // SAFETY: the kernel has just written so much there.
                guarded((), || unsafe { add_waiting(fd, value, len) });
            }
            // SAFETY: as above.
            or_again(fd, answer, || unsafe { getsockopt(fd, level, name, value, len) })
        }
        // SAFETY: as above.
        Some(socket) => guarded(-1, || unsafe { get_from_stream(socket, level, name, value, len) }),
    }
}

/// Of a listener `tcpi_unacked` counts what waits to be accepted: the kernel has told of its own.
///
/// # Safety
/// The kernel has just written so many bytes there.
unsafe fn add_waiting(fd: c_int, value: *mut c_void, len: *mut socklen_t) {
    const UNACKED: usize = 24;
    let Some(listener) = lookup::listener(fd) else { return };
    // SAFETY: integers have no bad values; the caller's promise.
    unsafe {
        if !program_memory::read(len).is_ok_and(|len| len as usize >= UNACKED + size_of::<u32>()) {
            return;
        }
        let pointer = value.cast::<u8>().wrapping_add(UNACKED).cast::<u32>();
        let _ = program_memory::read(pointer)
            .and_then(|of_kernel| program_memory::write(pointer, of_kernel + listener.count_waiting()));
    }
}

fn is_mtu(level: c_int, name: c_int) -> bool {
    matches!((level, name), (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU))
}

/// Of a UDP socket that an engine has connected the kernel does not know the path. Whether there was something to tell.
///
/// # Safety
/// As getsockopt(2).
unsafe fn tell_mtu(fd: c_int, value: *mut c_void, len: *mut socklen_t) -> bool {
    let mtu = fd_table::datagram(fd).and_then(|datagram| datagram_stack::path_mtu(fd, datagram));
    let Some(mtu) = mtu.map(c_int::from) else { return false };
    // SAFETY: an integer has no bad values; the kernel has refused the call before it wrote anything.
    match unsafe { program_memory::read(len) } {
        Ok(room) if !value.is_null() => {
            let bytes = size_of::<c_int>().min(room as usize);
            // SAFETY: the program's buffer has `room` bytes; ours does not overlap it.
            unsafe {
                program_memory::copy(value.cast::<u8>(), mtu.to_ne_bytes().as_ptr(), bytes)
                    .and_then(|()| program_memory::write(len, bytes as socklen_t))
                    .is_ok()
            }
        }
        _ => false,
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
    // SAFETY: an integer has no bad values.
    let room = match unsafe { program_memory::read(len) } {
        Ok(room) if !value.is_null() => room,
        _ => return fail(program_memory::EFAULT),
    };
    // Linux's IPv6 takes a negative length for a large one.
    if room > c_int::MAX as socklen_t && level != libc::IPPROTO_IPV6 {
        return fail(Errno::EINVAL);
    }
    // Nothing that is asked of a TCP socket is longer than struct tcp_info.
    let mut answer = [0u8; 512];
    let (level, name) = option_model::older_name(level, name);
    // Of keys Linux tells what there is room for, or nothing.
    let most = if level == SOL_TLS { answer.len().min(room as usize) } else { answer.len() };
    let result = match socket.get_option(level, name, &mut answer[..most]) {
        Err(Errno::ENOPROTOOPT) if level != SOL_TLS => {
            let answer = &mut answer[..room.min(512) as usize];
            // Some are asked by what is in the buffer; what is not there is not asked by.
            // SAFETY: so many bytes are in ours, and nobody else has it.
            let _ = unsafe { program_memory::copy(answer.as_mut_ptr(), value.cast::<u8>(), answer.len()) };
            option_model::get(socket, level, name, answer)
        }
        result => result,
    };
    match result {
        Ok(bytes) => {
            let bytes = bytes.min(room as usize).min(answer.len());
            // Linux's IP tells an int that is a byte by one where there is no room for an int.
            let is_int =
                matches!(name, libc::IP_TOS | libc::IP_TTL | libc::IP_RECVERR | option_model::IP_PROTOCOL);
            let is_short = level == libc::IPPROTO_IP && is_int && (1..size_of::<c_int>()).contains(&bytes);
            let bytes = if is_short && answer[1..size_of::<c_int>()] == [0; 3] { 1 } else { bytes };
            // SAFETY: the program's buffer has `room` bytes; ours does not overlap it. Linux writes the length of what
            // it copied.
            status(unsafe {
                program_memory::copy(value.cast::<u8>(), answer.as_ptr(), bytes)
                    .and_then(|()| program_memory::write(len, bytes as socklen_t))
            })
        }
        Err(error) => fail(error),
    }
}
