//! recvmmsg and sendmmsg: several messages in a call.

use super::cancel::point;
use super::data::{receive_message, transmit_message};
use super::rights::{note_passed, note_received};
use super::{datagram, datagram_send, fast_open, stream};
use crate::connect::keep_on_kernel;
use crate::ffi::{fail, guarded, restarted};
use crate::real;
use crate::replacing::{or_again, settled_stream};
use crate::why::Reason;
use core::ffi::{c_int, c_uint};
use libc::{mmsghdr, msghdr, timespec};
use toe::errno::ERESTART;
use toe::program_memory::check;
use toe::{Errno, fd_table, sys};

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
            let time = match unsafe { super::poll::timeout_of(timeout) } {
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
