//! Descriptors that go or come with a message (SCM_RIGHTS). Called by `messages`.

use super::stdio_stream::follow;
use crate::ffi::guarded;
use crate::lookup;
use crate::{adopt, replacing, socket_state};
use core::ffi::c_int;
use libc::msghdr;
use toe::fd_table;
use toe::program_memory::check;

/// The descriptors that came with a message may be an engine's.
///
/// # Safety
/// The kernel has filled `message`.
pub unsafe fn note_received(message: *const msghdr) {
    // SAFETY: the caller's promise.
    unsafe {
        if (*message).msg_controllen != 0 {
            guarded((), || {
                each_passed_fd(message, |fd| {
                    adopt::received(fd);
                    follow(fd);
                })
            });
        }
    }
}

/// The descriptors that go with a message are another process's, too, before that has them: a thread that is at one of
/// them minds this from here on.
///
/// # Safety
/// `message` is valid with its control data, if it has any.
pub unsafe fn note_passed(message: *const msghdr) {
    if check(message, 1).is_err() {
        return;
    }
    // SAFETY: the caller's promise; it is there.
    let (control, len) = unsafe { ((*message).msg_control, (*message).msg_controllen) };
    if len == 0 || check(control.cast::<u8>(), len).is_err() {
        return;
    }
    guarded((), || {
        // SAFETY: as above.
        unsafe {
            each_passed_fd(message, |fd| {
                replacing::settle(fd);
                if let Some(passed) = fd_table::get(fd) {
                    passed.mark_shared(fd);
                    passed.let_others_finish();
                }
                lookup::leave_lanes(fd);
                if let Some(datagram) = fd_table::datagram(fd) {
                    datagram.share();
                }
                socket_state::touch(fd);
            })
        }
    });
}

/// Calls `each` with the descriptors that go or came with a message (SCM_RIGHTS).
///
/// # Safety
/// `message` is valid with its control data.
unsafe fn each_passed_fd(message: *const msghdr, mut each: impl FnMut(c_int)) {
    // SAFETY: the CMSG functions walk within the control data that the caller vouches for.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header).cast::<c_int>();
                let bytes = (*header).cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                for n in 0..bytes / size_of::<c_int>() {
                    each(data.add(n).read_unaligned());
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_descriptors_are_found() {
        let fds = [5, 9];
        let mut control = [0u64; 8];
        let message = msghdr {
            msg_name: core::ptr::null_mut(),
            msg_namelen: 0,
            msg_iov: core::ptr::null_mut(),
            msg_iovlen: 0,
            msg_control: control.as_mut_ptr().cast(),
            // SAFETY: arithmetic only.
            msg_controllen: unsafe { libc::CMSG_SPACE(8) } as usize,
            msg_flags: 0,
        };
        let mut found = Vec::new();
        // SAFETY: `control` has room for one header with two descriptors.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(8) as usize;
            libc::CMSG_DATA(header).cast::<[c_int; 2]>().write_unaligned(fds);
            each_passed_fd(&message, |fd| found.push(fd));
        }
        assert_eq!(found, fds);
    }
}
