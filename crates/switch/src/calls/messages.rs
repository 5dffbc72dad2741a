//! recvmsg and sendmsg, and recvmmsg and sendmmsg: several messages in a call.

use super::cancel::point;
use super::control::{put_record_type, put_unread, put_zerocopy};
use super::data::{NAME_LEN_MAX, check_name, receive, recv_flags, send_flags, transmit};
use super::records::{asked_type, receive_record, transmit_record};
use super::rights::{note_passed, note_received};
use super::{datagram, datagram_send, fast_open};
use crate::engines::keep_on_kernel;
use crate::ffi::{Vectors, fail, guarded, length, restarted};
use crate::lookup::stream;
use crate::real;
use crate::replacing::{or_again, settled_stream};
use crate::why::Reason;
use core::ffi::{c_int, c_uint};
use libc::{iovec, mmsghdr, msghdr, sockaddr, socklen_t, ssize_t, timespec};
use toe::errno::ERESTART;
use toe::program_memory::check;
use toe::socket::Socket;
use toe::{Errno, fd_table, sys};

/// # Safety
/// `iov` describes writable memory.
unsafe fn receive_vectors(
    socket: &'static Socket,
    iov: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { receive(socket, Vectors::of_message(iov, count)?.buffers_mut(), flags) }
}

/// # Safety
/// `iov` describes readable memory.
unsafe fn transmit_vectors(
    socket: &'static Socket,
    iov: *const iovec,
    count: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    unsafe { transmit(socket, Vectors::of_message(iov, count)?.buffers(), flags) }
}

/// # Safety
/// As recvmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    restarted(|| {
        let Some(socket) = stream(fd) else {
            // SAFETY: the program's arguments, handed on; the kernel has filled the message when it says so.
            unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram::receive_message(fd, datagram, message, flags);
                }
                let result = real::recvmsg(fd, message, flags);
                if result >= 0 {
                    note_received(message);
                }
                return or_again(fd, result, || recvmsg(fd, message, flags));
            }
        };
        // SAFETY: the program's arguments, handed on.
        point(-1, || length(unsafe { receive_message(socket, message, flags) }))
    })
}

/// # Safety
/// As recvmsg(2).
unsafe fn receive_message(
    socket: &'static Socket,
    message: *mut msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    check(message, 1)?;
    // SAFETY: the caller's promise; it is there.
    let message = unsafe { &mut *message };
    if !message.msg_name.is_null() && message.msg_namelen > NAME_LEN_MAX {
        return Err(Errno::EINVAL);
    }
    if flags & libc::MSG_ERRQUEUE != 0 {
        let calls = socket.take_zerocopy().ok_or(Errno::EAGAIN)?;
        message.msg_namelen = 0;
        message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC | libc::MSG_ERRQUEUE;
        put_zerocopy(message, socket.is_inet6(), calls);
        return Ok(0);
    }
    // SAFETY: as above.
    let (len, kind) = unsafe {
        match flags & libc::MSG_OOB {
            0 => receive_record(socket, message, recv_flags(flags)?)?,
            _ => (receive_vectors(socket, message.msg_iov, message.msg_iovlen, flags)?, None),
        }
    };
    message.msg_namelen = 0;
    message.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    let room = core::mem::take(&mut message.msg_controllen);
    if let Some(kind) = kind {
        put_record_type(message, room, kind);
        return Ok(len);
    }
    if let Some(unread) = socket.inq_unread() {
        put_unread(message, room, c_int::try_from(unread).unwrap_or(c_int::MAX));
    }
    if flags & libc::MSG_OOB != 0 && len > 0 {
        message.msg_flags |= libc::MSG_OOB;
    }
    Ok(len)
}

/// # Safety
/// As sendmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    restarted(|| {
        let Some(socket) = settled_stream(fd) else {
            // SAFETY: the program's arguments, handed on; a message that the kernel has taken is valid.
            unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram_send::send_message(fd, datagram, message, flags);
                }
                note_passed(message);
                if !fast_open::is_asked(fd, flags) || check(message, 1).is_err() {
                    return or_again(fd, real::sendmsg(fd, message, flags), || sendmsg(fd, message, flags));
                }
                let to = ((*message).msg_name.cast_const().cast::<sockaddr>(), (*message).msg_namelen);
                let (iov, count) = ((*message).msg_iov, (*message).msg_iovlen);
                let kernel = || real::sendmsg(fd, message, flags);
                return fast_open::connect_sending(fd, to, flags, kernel, |socket, flags| {
                    point(-1, || length(transmit_vectors(socket, iov, count, flags)))
                });
            }
        };
        if let Err(error) = check(message, 1) {
            return fail(error) as ssize_t;
        }
        // SAFETY: the program's arguments, handed on; it is there.
        point(-1, || length(unsafe { transmit_message(socket, &*message, flags) }))
    })
}

/// # Safety
/// As sendmsg(2).
unsafe fn transmit_message(socket: &'static Socket, message: &msghdr, flags: c_int) -> Result<usize, Errno> {
    let (iov, count) = (message.msg_iov, message.msg_iovlen);
    if !message.msg_name.is_null() {
        // A long one is cut.
        let most = size_of::<libc::sockaddr_storage>() as socklen_t;
        let len = message.msg_namelen;
        check_name(
            message.msg_name.cast_const().cast(),
            if len > NAME_LEN_MAX { len } else { len.min(most) },
        )?;
    }
    // SAFETY: the caller's promise.
    unsafe {
        match asked_type(message)? {
            None => transmit_vectors(socket, iov, count, flags),
            Some(kind) => {
                let is_quiet = flags & libc::MSG_NOSIGNAL != 0;
                transmit_record(socket, (iov, count), kind, is_quiet, send_flags(flags)?)
            }
        }
    }
}

/// # Safety
/// As recvmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    restarted(|| {
        let Some(socket) = stream(fd) else {
            // SAFETY: the program's arguments, handed on; messages that the kernel says to have filled are valid.
            return unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram::receive_messages(fd, datagram, (messages, count), flags, timeout);
                }
                let came = real::recvmmsg(fd, messages, count, flags, timeout);
                for n in 0..usize::try_from(came).unwrap_or(0) {
                    note_received(&raw const (*messages.add(n)).msg_hdr);
                }
                or_again(fd, came, || recvmmsg(fd, messages, count, flags, timeout))
            };
        };
        point(-1, || {
            let one_is_enough = flags & libc::MSG_WAITFORONE != 0;
            let mut flags = flags & !libc::MSG_WAITFORONE;
            // SAFETY: as the kernel reads it.
            let time = match unsafe { super::wait_limits::timeout_of(timeout) } {
                Ok(time) => time,
                Err(error) => return fail(error),
            };
            let deadline = time.map(|time| sys::now() + time);
            // All of them are the same connection's, whatever becomes of the descriptor.
            let _held = socket.hold();
            // Linux tells an error that waits before anything else, and one that comes later with the next call.
            let waits = if flags & libc::MSG_ERRQUEUE == 0 { socket.take_error() } else { Errno::OK };
            if !waits.is_ok() {
                return fail(waits);
            }
            let (mut first, mut last) = (true, Errno::OK);
            let done = each_message(messages, count, |message| {
                // Linux looks at the time after each message.
                if !core::mem::take(&mut first) && deadline.is_some_and(|deadline| sys::now() >= deadline) {
                    return Err(Errno::EAGAIN);
                }
                // SAFETY: the program's arguments, handed on.
                let len =
                    unsafe { receive_message(socket, message, flags) }.inspect_err(|error| last = *error)?;
                if one_is_enough {
                    flags |= libc::MSG_DONTWAIT;
                }
                Ok(len)
            });
            if done > 0 && !matches!(last, Errno::OK | Errno::EAGAIN | ERESTART) {
                socket.put_error(last);
            }
            done
        })
    })
}

/// # Safety
/// As sendmmsg(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    restarted(|| {
        let Some(socket) = settled_stream(fd) else {
            // SAFETY: the program's arguments, handed on; messages that the kernel has taken are valid.
            return unsafe {
                if let Some(datagram) = fd_table::datagram(fd) {
                    return datagram_send::send_messages(fd, datagram, messages, count, flags);
                }
                (0..(count as usize).min(crate::ffi::IOV_MAX))
                    .take_while(|n| check(messages.add(*n), 1).is_ok())
                    .for_each(|n| note_passed(&raw const (*messages.add(n)).msg_hdr));
                let sent = real::sendmmsg(fd, messages, count, flags);
                if sent > 0 && fast_open::is_asked(fd, flags) {
                    // The first of them has connected it.
                    guarded((), || keep_on_kernel(fd, Reason::FastOpen));
                }
                or_again(fd, sent, || sendmmsg(fd, messages, count, flags))
            };
        };
        point(-1, || {
            // As above.
            let _held = socket.hold();
            each_message(messages, count, |message| {
                // SAFETY: the program's arguments, handed on.
                unsafe { transmit_message(socket, &*message, flags) }
            })
        })
    })
}

/// Moves message after message; an error counts only when it is the first's.
fn each_message(
    messages: *mut mmsghdr,
    count: c_uint,
    mut each: impl FnMut(*mut msghdr) -> Result<usize, Errno>,
) -> c_int {
    let mut done = 0;
    for n in 0..(count as usize).min(crate::ffi::IOV_MAX) {
        // SAFETY: the program's array has `count` messages.
        let message = unsafe { messages.add(n) };
        if let Err(error) = check(message, 1) {
            return if done == 0 { fail(error) } else { done };
        }
        // SAFETY: as above.
        match each(unsafe { &raw mut (*message).msg_hdr }) {
            Ok(len) => {
                // SAFETY: as above.
                unsafe { (*message).msg_len = len as c_uint };
                done += 1;
            }
            Err(error) if done == 0 => return fail(error),
            Err(_) => break,
        }
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_messages_end_at_the_first_error() {
        // SAFETY: all-zero message headers are valid.
        let mut messages: [mmsghdr; 3] = unsafe { core::mem::zeroed() };
        let mut left = 2;
        let mut run = || {
            each_message(messages.as_mut_ptr(), 3, |_| {
                left -= 1;
                if left < 0 { Err(Errno::EAGAIN) } else { Ok(7) }
            })
        };
        assert_eq!(run(), 2);
        assert_eq!(run(), -1);
        assert_eq!(messages[1].msg_len, 7);
    }
}
