//! read, write, recv, send and their relatives on an engine's connection.

use super::cancel::point;
use super::{datagram, datagram_send, fast_open};
use crate::ffi::{RW_MAX, Vectors, fail, length, restarted, slice, slice_mut};
use crate::lookup::stream;
use crate::real;
use crate::replacing::{or_again, settled_stream};
use crate::why::{self, Decided, Reason};
use core::ffi::{c_int, c_void};
use libc::{iovec, size_t, sockaddr, socklen_t, ssize_t};
use std::io::{IoSlice, IoSliceMut};
use toe::program_memory::{self, check};
use toe::socket::{RecvFlags, SendFlags, Socket};
use toe::{Errno, fd_table, sys};

pub fn recv_flags(flags: c_int) -> Result<RecvFlags, Errno> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return Err(Errno::EAGAIN);
    }
    Ok(RecvFlags {
        peek: flags & libc::MSG_PEEK != 0,
        wait_all: flags & libc::MSG_WAITALL != 0,
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        discard: flags & libc::MSG_TRUNC != 0,
    })
}

pub fn send_flags(flags: c_int) -> Result<SendFlags, Errno> {
    Ok(SendFlags {
        dont_wait: flags & libc::MSG_DONTWAIT != 0,
        more: flags & libc::MSG_MORE != 0,
        urgent: flags & libc::MSG_OOB != 0,
        end_of_record: flags & libc::MSG_EOR != 0,
    })
}

/// recv(2) of an engine's connection.
pub fn receive(socket: &'static Socket, into: &mut [IoSliceMut<'_>], flags: c_int) -> Result<usize, Errno> {
    if flags & libc::MSG_ERRQUEUE != 0 {
        return socket.take_zerocopy().map(|_| 0).ok_or(Errno::EAGAIN);
    }
    if flags & libc::MSG_OOB != 0 {
        return receive_urgent(socket, into, flags);
    }
    explained(socket, socket.recv(into, recv_flags(flags)?))
}

/// Notes it where `toe why` finds it when a connection that another process had cannot go on in this one.
pub fn explained(socket: &'static Socket, result: Result<usize, Errno>) -> Result<usize, Errno> {
    if result == Err(Errno::ENOBUFS)
        && let Some(fd) = socket.fds.known()
    {
        let engine = socket.engine().index() as u8;
        why::set(fd, Decided { engine, ..Decided::new(why::Stack::Engine, Reason::OverQuota) });
    }
    result
}

/// One byte at most; with no room for it, it is taken all the same.
fn receive_urgent(
    socket: &'static Socket,
    into: &mut [IoSliceMut<'_>],
    flags: c_int,
) -> Result<usize, Errno> {
    let Some(byte) = socket.recv_urgent(flags & libc::MSG_PEEK != 0)? else { return Ok(0) };
    match into.iter_mut().find(|slice| !slice.is_empty()) {
        Some(slice) => {
            if flags & libc::MSG_TRUNC == 0 {
                // SAFETY: the program's buffer, which it wants filled.
                unsafe { program_memory::write(slice.as_mut_ptr(), byte) }?;
            }
            Ok(1)
        }
        None => Ok(0),
    }
}

/// send(2) of an engine's connection: raises SIGPIPE as Linux does.
pub fn transmit(socket: &'static Socket, from: &[IoSlice<'_>], flags: c_int) -> Result<usize, Errno> {
    if flags & libc::MSG_FASTOPEN != 0
        && let Some(error) = socket.fast_open_error()
    {
        return Err(error);
    }
    let how = send_flags(flags)?;
    let result = transmit_by(socket, flags & libc::MSG_NOSIGNAL != 0, || socket.send(from, how));
    if flags & libc::MSG_ZEROCOPY != 0 && result.is_ok_and(|sent| sent > 0) {
        socket.count_zerocopy();
    }
    result
}

/// The same by `send`.
pub fn transmit_by(
    socket: &'static Socket,
    is_quiet: bool,
    send: impl FnOnce() -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let result = explained(socket, send());
    if result == Err(Errno::EPIPE) && !is_quiet {
        sys::raise_sigpipe();
    }
    result
}

/// # Safety
/// `buf` is writable for `len` bytes.
unsafe fn receive_one(socket: &'static Socket, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    point(-1, || {
        if buf.is_null() && flags & (libc::MSG_TRUNC | libc::MSG_OOB) == libc::MSG_TRUNC {
            // So many bytes are thrown away; there is no buffer to look at.
            return length(recv_flags(flags).and_then(|how| socket.discard(len.min(RW_MAX), how)));
        }
        // SAFETY: the caller's promise.
        let mut into = [IoSliceMut::new(unsafe { slice_mut(buf, len) })];
        length(receive(socket, &mut into, flags))
    })
}

/// # Safety
/// `buf` is readable for `len` bytes.
unsafe fn transmit_one(socket: &'static Socket, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    point(-1, || {
        // SAFETY: the caller's promise.
        let from = [IoSlice::new(unsafe { slice(buf, len) })];
        length(transmit(socket, &from, flags))
    })
}

/// What is more is negative to Linux, where it has room for a name.
pub const NAME_LEN_MAX: socklen_t = c_int::MAX as socklen_t;

/// The name that comes with what is sent, which TCP does not look at, but Linux does.
pub fn check_name(addr: *const sockaddr, len: socklen_t) -> Result<(), Errno> {
    if len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::EINVAL);
    }
    check(addr.cast::<u8>(), len as usize)
}

/// Of a call that tells no address.
const NO_NAME: (*mut sockaddr, *mut socklen_t) = (core::ptr::null_mut(), core::ptr::null_mut());

/// # Safety
/// As read(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    restarted(|| {
        match stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                if let Some(datagram) = fd_table::datagram(fd).filter(|_| len > 0) {
                    return datagram::receive_from(fd, datagram, (buf, len), 0, NO_NAME);
                }
                or_again(fd, real::read(fd, buf, len), || read(fd, buf, len))
            },
            // A read of nothing is answered at once.
            Some(_) if len == 0 => 0,
            // SAFETY: as above.
            Some(socket) => unsafe { receive_one(socket, buf, len, 0) },
        }
    })
}

/// # Safety
/// As write(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
    restarted(|| {
        match settled_stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                match fd_table::datagram(fd) {
                    Some(datagram) => {
                        datagram_send::send_to(fd, datagram, (buf, len), 0, (core::ptr::null(), 0))
                    }
                    None => or_again(fd, real::write(fd, buf, len), || write(fd, buf, len)),
                }
            },
            // SAFETY: as above.
            Some(socket) => unsafe { transmit_one(socket, buf, len, 0) },
        }
    })
}

/// # Safety
/// As recv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    restarted(|| {
        match stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram::receive_from(fd, datagram, (buf, len), flags, NO_NAME);
                }
                or_again(fd, real::recv(fd, buf, len, flags), || recv(fd, buf, len, flags))
            },
            // SAFETY: as above.
            Some(socket) => unsafe { receive_one(socket, buf, len, flags) },
        }
    })
}

/// # Safety
/// As send(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    restarted(|| {
        match settled_stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                match fd_table::datagram(fd) {
                    Some(datagram) => {
                        datagram_send::send_to(fd, datagram, (buf, len), flags, (core::ptr::null(), 0))
                    }
                    None => or_again(fd, real::send(fd, buf, len, flags), || send(fd, buf, len, flags)),
                }
            },
            // SAFETY: as above.
            Some(socket) => unsafe { transmit_one(socket, buf, len, flags) },
        }
    })
}

/// TCP gives no address; as Linux does, its length is set to 0.
///
/// # Safety
/// As recvfrom(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    restarted(|| {
        let Some(socket) = stream(fd) else {
            // SAFETY: the program's arguments, handed on.
            return unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram::receive_from(fd, datagram, (buf, len), flags, (addr, addr_len));
                }
                or_again(fd, real::recvfrom(fd, buf, len, flags, addr, addr_len), || {
                    recvfrom(fd, buf, len, flags, addr, addr_len)
                })
            };
        };
        // SAFETY: as above.
        let result = unsafe { receive_one(socket, buf, len, flags) };
        if result >= 0 && !addr.is_null() {
            // SAFETY: as recvfrom(2) asks.
            let named = unsafe {
                program_memory::read(addr_len).and_then(|room| match room {
                    0..=NAME_LEN_MAX => program_memory::write(addr_len, 0),
                    _ => Err(Errno::EINVAL),
                })
            };
            if let Err(error) = named {
                return fail(error) as ssize_t;
            }
        }
        result
    })
}

/// On a connected TCP socket the address is ignored, as Linux does.
///
/// # Safety
/// As sendto(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    restarted(|| {
        match settled_stream(fd) {
            None if fast_open::is_asked(fd, flags) => {
                // SAFETY: the program's arguments, handed on.
                let kernel = || unsafe { real::sendto(fd, buf, len, flags, addr, addr_len) };
                // SAFETY: as above.
                unsafe {
                    fast_open::connect_sending(fd, (addr, addr_len), flags, kernel, |socket, flags| {
                        transmit_one(socket, buf, len, flags)
                    })
                }
            }
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                match fd_table::datagram(fd) {
                    Some(datagram) => {
                        datagram_send::send_to(fd, datagram, (buf, len), flags, (addr, addr_len))
                    }
                    None => or_again(fd, real::sendto(fd, buf, len, flags, addr, addr_len), || {
                        sendto(fd, buf, len, flags, addr, addr_len)
                    }),
                }
            },
            Some(_) if !addr.is_null() && check_name(addr, addr_len).is_err() => {
                fail(check_name(addr, addr_len).err().unwrap_or(Errno::EINVAL)) as ssize_t
            }
            // SAFETY: as above.
            Some(socket) => unsafe { transmit_one(socket, buf, len, flags) },
        }
    })
}

/// # Safety
/// As readv(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    restarted(|| {
        match stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram::receive_vectors(fd, datagram, iov, count);
                }
                or_again(fd, real::readv(fd, iov, count), || readv(fd, iov, count))
            },
            // SAFETY: as above.
            Some(socket) => point(-1, || length(unsafe { read_vectors(socket, iov, count as usize) })),
        }
    })
}

/// # Safety
/// As writev(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
    restarted(|| {
        match settled_stream(fd) {
            // SAFETY: the program's arguments, handed on.
            None => unsafe {
                match fd_table::datagram(fd) {
                    Some(datagram) => datagram_send::send_vectors(fd, datagram, iov, count),
                    None => or_again(fd, real::writev(fd, iov, count), || writev(fd, iov, count)),
                }
            },
            // SAFETY: as above.
            Some(socket) => point(-1, || length(unsafe { write_vectors(socket, iov, count as usize) })),
        }
    })
}

/// A read of nothing is answered at once.
///
/// # Safety
/// `iov` describes writable memory.
unsafe fn read_vectors(socket: &'static Socket, iov: *const iovec, count: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let mut vectors = unsafe { Vectors::new(iov, count)? };
    // SAFETY: as above.
    let into = unsafe { vectors.buffers_mut() };
    if into.iter().all(|part| part.is_empty()) { Ok(0) } else { receive(socket, into, 0) }
}

/// A write of nothing by writev is done at once, also where nothing can be written.
///
/// # Safety
/// `iov` describes readable memory.
unsafe fn write_vectors(socket: &'static Socket, iov: *const iovec, count: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let vectors = unsafe { Vectors::new(iov, count)? };
    // SAFETY: as above.
    let from = unsafe { vectors.buffers() };
    if from.iter().all(|part| part.is_empty()) { Ok(0) } else { transmit(socket, from, 0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_linux_does() {
        let flags = recv_flags(libc::MSG_PEEK | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL).unwrap();
        assert!(flags.peek && flags.dont_wait && !flags.wait_all && !flags.discard);
        assert_eq!(recv_flags(libc::MSG_ERRQUEUE).err(), Some(Errno::EAGAIN));
        assert!(send_flags(libc::MSG_MORE).unwrap().more);
        assert!(send_flags(libc::MSG_OOB).unwrap().urgent);
        assert!(send_flags(libc::MSG_EOR).unwrap().end_of_record);
    }
}
