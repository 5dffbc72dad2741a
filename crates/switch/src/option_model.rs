//! Options that make no difference to a connection of an engine: what Linux says to them is asked of Linux, of a kernel socket
//! that is made for the question and has no other use. So the rules of values, lengths and rights are those of the kernel that
//! runs, whichever that is. Called by `calls::option` for what the host library does not know.

use crate::ffi::{errno, fail, last_errno};
use crate::real;
use core::ffi::{c_int, c_ulong, c_void};
use libc::socklen_t;
use toe::socket::Socket;
use toe::{Errno, sys};
use toe_base::limits::RECEIVE_WINDOW_INITIAL;

/// Younger than some libc crates; the numbers are Linux's.
const SO_TXTIME: c_int = 61;
const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const SO_RCVTIMEO_NEW: c_int = 66;
const SO_SNDTIMEO_NEW: c_int = 67;
const SO_PEERNAME: c_int = 28;
pub const IP_LOCAL_PORT_RANGE: c_int = 51;
pub const IP_PROTOCOL: c_int = 52;
pub const TCP_FASTOPEN_NO_COOKIE: c_int = 34;
const TCP_TX_DELAY: c_int = 37;
/// AF_INET as an int.
const INET: [u8; 4] = libc::AF_INET.to_ne_bytes();
const EPERM: Errno = errno(libc::EPERM);
const TCP_AO: core::ops::RangeInclusive<c_int> = 38..=42;

/// Setting it changes what a connection does, and engines do not do that: a socket whose stack is not decided stays with the kernel by it, a
/// listener goes back there, and of a connection the program is told that there is no such option, and does without.
pub fn has_effect(level: c_int, name: c_int) -> bool {
    match level {
        libc::SOL_SOCKET => matches!(
            name,
            libc::SO_BINDTODEVICE
                | libc::SO_BINDTOIFINDEX
                | libc::SO_ATTACH_FILTER
                | libc::SO_ATTACH_BPF
                | libc::SO_ATTACH_REUSEPORT_CBPF
                | libc::SO_ATTACH_REUSEPORT_EBPF
                | libc::SO_PEEK_OFF
                | SO_TXTIME
                | libc::SO_TIMESTAMP
                | libc::SO_TIMESTAMPNS
                | libc::SO_TIMESTAMPING
                | SO_TIMESTAMP_NEW
                | SO_TIMESTAMPNS_NEW
                | SO_TIMESTAMPING_NEW
        ),
        libc::IPPROTO_IP => matches!(name, libc::IP_OPTIONS | libc::IP_MINTTL | libc::IP_TRANSPARENT),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_HOPOPTS
                | libc::IPV6_RTHDRDSTOPTS
                | libc::IPV6_RTHDR
                | libc::IPV6_DSTOPTS
                | libc::IPV6_MINHOPCOUNT
                | libc::IPV6_TRANSPARENT
        ),
        libc::IPPROTO_TCP => {
            matches!(name, libc::TCP_REPAIR | libc::TCP_ULP | TCP_TX_DELAY | libc::TCP_ZEROCOPY_RECEIVE)
                || TCP_AO.contains(&name)
        }
        _ => false,
    }
}

/// A kernel socket as new, out of the way of the program's numbers.
pub fn model(inet6: bool) -> Option<sys::Fd> {
    if toe::sys::is_filtered() {
        // A system call may be the process's end.
        return None;
    }
    let family = if inet6 { libc::AF_INET6 } else { libc::AF_INET };
    // SAFETY: the call takes numbers only.
    let fd = unsafe { real::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    (fd >= 0).then(|| sys::move_to_high(sys::Fd::from_raw(fd)))
}

fn set_on(model: &sys::Fd, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    // SAFETY: a slice of that many bytes, which the kernel only reads.
    let result = unsafe {
        real::setsockopt(model.raw(), level, name, value.as_ptr().cast::<c_void>(), value.len() as socklen_t)
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// SO_RCVTIMEO_NEW and SO_SNDTIMEO_NEW are, where longs have 64 bits, as the old ones.
pub const fn older_name(level: c_int, name: c_int) -> (c_int, c_int) {
    match (level, name) {
        (libc::SOL_SOCKET, SO_RCVTIMEO_NEW) => (level, libc::SO_RCVTIMEO),
        (libc::SOL_SOCKET, SO_SNDTIMEO_NEW) => (level, libc::SO_SNDTIMEO),
        other => other,
    }
}

/// What Linux refuses to set because there is a connection; the model has none.
fn refusal(socket: &'static Socket, level: c_int, name: c_int, value: &[u8]) -> Option<Errno> {
    if socket.has_no_connection() || value.len() < size_of::<c_int>() {
        return None;
    }
    match (level, name) {
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => Some(Errno::EINVAL),
        (libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE) => Some(Errno::EINVAL),
        (libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ) => Some(EPERM),
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if value[..4] == [0; 4] => Some(Errno::EINVAL),
        _ => None,
    }
}

/// `setsockopt`.
pub fn set(fd: c_int, socket: &'static Socket, level: c_int, name: c_int, value: &[u8]) -> Result<(), Errno> {
    if (level, name) == (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM)
        && value.get(..4) == Some(&INET)
        && socket.is_established()
    {
        return socket.become_inet(fd);
    }
    if let Some(errno) = refusal(socket, level, name, value) {
        return Err(errno);
    }
    let model = model(socket.is_inet6()).ok_or(Errno::ENOPROTOOPT)?;
    // Some may not be set again to what they were.
    socket.with_saved_option(level, name, |value| {
        let _ = set_on(&model, level, name, value);
    });
    let before = has_effect(level, name).then(|| get_from(&model, level, name));
    set_on(&model, level, name, value)?;
    match before {
        // What is off may be turned off.
        Some(before) if before.0.is_err() || before != get_from(&model, level, name) => {
            Err(Errno::ENOPROTOOPT)
        }
        _ => {
            socket.keep_option(level, name, value);
            Ok(())
        }
    }
}

/// What the model answers, as far as that matters.
fn get_from(model: &sys::Fd, level: c_int, name: c_int) -> (Result<usize, Errno>, [u8; 8]) {
    let mut value = [0; 8];
    (get_into(model, level, name, &mut value), value)
}

fn get_into(model: &sys::Fd, level: c_int, name: c_int, answer: &mut [u8]) -> Result<usize, Errno> {
    let mut len = answer.len() as socklen_t;
    // SAFETY: a slice of `len` bytes and a local that says so.
    let result =
        unsafe { real::getsockopt(model.raw(), level, name, answer.as_mut_ptr().cast::<c_void>(), &mut len) };
    if result == 0 { Ok((len as usize).min(answer.len())) } else { Err(last_errno()) }
}

/// `getsockopt`, into `answer`, of which there is as much as the program has room for, and which holds what the program has
/// there.
pub fn get(socket: &'static Socket, level: c_int, name: c_int, answer: &mut [u8]) -> Result<usize, Errno> {
    let model = model(socket.is_inet6()).ok_or(Errno::ENOPROTOOPT)?;
    let mut was_set = false;
    socket.with_saved_option(level, name, |value| was_set = set_on(&model, level, name, value).is_ok());
    let int = match (level, name) {
        (libc::SOL_SOCKET, SO_PEERNAME) => return peer_name(socket, answer),
        (libc::IPPROTO_IP, libc::IP_MTU) | (libc::IPPROTO_IPV6, libc::IPV6_MTU) => socket.path_mtu(),
        (libc::IPPROTO_IPV6, libc::IPV6_ADDRFORM) if socket.is_established() => libc::AF_INET6 as u32,
        (libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP) if !was_set => RECEIVE_WINDOW_INITIAL,
        (libc::IPPROTO_IP, IP_PROTOCOL) if socket.has_no_connection() => 0,
        (libc::IPPROTO_IP, IP_PROTOCOL) => socket.local_addr().map_or(0, |addr| addr.port().into()),
        _ => return get_into(&model, level, name, answer),
    };
    let bytes = int.to_ne_bytes();
    let len = bytes.len().min(answer.len());
    answer[..len].copy_from_slice(&bytes[..len]);
    Ok(len)
}

/// What the kernel makes of the size of a buffer: it has bounds of its own for all (net.core.rmem_max, wmem_max), and whoever forces
/// it beyond needs the right to.
pub fn buffer_size(
    socket: &'static Socket,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> Result<Option<c_int>, Errno> {
    // Where it cannot be asked nobody is refused.
    let Some(model) = model(socket.is_inet6()) else { return Ok(None) };
    set_on(&model, level, name, value)?;
    let presented = if matches!(name, libc::SO_SNDBUF | libc::SO_SNDBUFFORCE) {
        libc::SO_SNDBUF
    } else {
        libc::SO_RCVBUF
    };
    let (result, value) = get_from(&model, level, presented);
    // Shown is twice the size.
    Ok(result.ok().and_then(|_| value.first_chunk().map(|bytes| c_int::from_ne_bytes(*bytes) / 2)))
}

/// `ioctl` of what has nothing to do with the connection.
///
/// # Safety
/// As ioctl(2).
pub unsafe fn request(socket: &'static Socket, request: c_ulong, argument: *mut c_void) -> c_int {
    let Some(model) = model(socket.is_inet6()) else { return fail(errno(libc::ENOTTY)) };
    // SAFETY: the caller's promise.
    unsafe { real::ioctl(model.raw(), request, argument) }
}

/// SO_PEERNAME: getpeername by another name, which must not ask for more than there is.
fn peer_name(socket: &'static Socket, answer: &mut [u8]) -> Result<usize, Errno> {
    let peer = socket.peer_addr()?;
    let mut len = answer.len() as socklen_t;
    // SAFETY: a slice of `len` bytes and a local that says so.
    unsafe {
        crate::ffi::write_inet(
            peer,
            socket.is_inet6(),
            answer.as_mut_ptr().cast::<libc::sockaddr>(),
            &mut len,
        )?;
    }
    if (len as usize) < answer.len() { Err(Errno::EINVAL) } else { Ok(answer.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_linux_says_is_said() {
        let socket = Socket::allocate();
        let int = |value: i32| value.to_ne_bytes();
        let mut out = [0; 4];
        // What an event loop of Erlang's does to each connection.
        for name in [libc::IP_RECVTOS, libc::IP_RECVTTL] {
            assert_eq!(set(-1, socket, libc::IPPROTO_IP, name, &int(1)), Ok(()));
            assert_eq!((get(socket, libc::IPPROTO_IP, name, &mut out), out), (Ok(4), int(1)));
        }
        assert_eq!(set(-1, socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &int(99)), Err(Errno::EINVAL));
        assert_eq!(set(-1, socket, libc::SOL_SOCKET, 9999, &int(1)), Err(Errno::ENOPROTOOPT));
        assert_eq!(set(-1, socket, libc::SOL_SOCKET, libc::SO_PEEK_OFF, &int(1)), Err(Errno::ENOPROTOOPT));
        assert_eq!(get(socket, libc::IPPROTO_TCP, 9999, &mut out), Err(Errno::ENOPROTOOPT));
        socket.abandon();
    }
}
