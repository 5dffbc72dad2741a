//! Control data that the library itself puts beside a message. Used by recvmsg and recvmmsg.

use core::ffi::c_int;
use libc::msghdr;
use toe::program_memory;
use toe::socket::TCP_INQ;

/// TCP_CM_INQ, as far as there is `room` for it, as Linux puts it there (put_cmsg).
pub fn put_unread(message: &mut msghdr, room: usize, unread: c_int) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const LEN: usize = HEADER + size_of::<c_int>();
    if message.msg_control.is_null() || room < HEADER {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let len = LEN.min(room);
    if len < LEN {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    let mut octets = [0u8; LEN];
    let mut at = 0;
    for part in [
        &len.to_ne_bytes()[..],
        &libc::IPPROTO_TCP.to_ne_bytes(),
        &TCP_INQ.to_ne_bytes(),
        &unread.to_ne_bytes(),
    ] {
        octets[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // SAFETY: the program's buffer has that much room; ours does not overlap it.
    let put = unsafe { program_memory::copy(message.msg_control.cast::<u8>(), octets.as_ptr(), len) };
    if put.is_ok() {
        // SAFETY: it takes a number only.
        let space = unsafe { libc::CMSG_SPACE(size_of::<c_int>() as u32) } as usize;
        message.msg_controllen = space.min(room);
    }
}
