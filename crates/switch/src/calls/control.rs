//! Control data that the library itself puts beside a message. Used by recvmsg and recvmmsg.

use core::ffi::c_int;
use libc::msghdr;
use toe::program_memory;
use toe::socket::TCP_INQ;

/// TCP_CM_INQ, as far as there is `room` for it, as Linux puts it there (put_cmsg).
pub fn put_unread(message: &mut msghdr, room: usize, unread: c_int) {
    put(message, room, (libc::IPPROTO_TCP, TCP_INQ), &unread.to_ne_bytes());
}

/// Calls with MSG_ZEROCOPY, from the first to the last of a range, are over: as `struct sock_extended_err`, with nobody as the offender.
pub fn put_zerocopy(message: &mut msghdr, inet6: bool, (first, last): (u32, u32)) {
    const ERROR: usize = size_of::<libc::sock_extended_err>();
    const ORIGIN_ZEROCOPY: u8 = 5;
    const CODE_COPIED: u8 = 1;
    let (name, offender) = if inet6 {
        ((libc::IPPROTO_IPV6, libc::IPV6_RECVERR), size_of::<libc::sockaddr_in6>())
    } else {
        ((libc::IPPROTO_IP, libc::IP_RECVERR), size_of::<libc::sockaddr_in>())
    };
    // ee_errno, ee_origin, ee_type, ee_code, ee_pad, ee_info, ee_data; all else is 0.
    let mut bytes = [0u8; ERROR + size_of::<libc::sockaddr_in6>()];
    bytes[4] = ORIGIN_ZEROCOPY;
    bytes[6] = CODE_COPIED;
    bytes[8..12].copy_from_slice(&first.to_ne_bytes());
    bytes[12..16].copy_from_slice(&last.to_ne_bytes());
    let room = core::mem::take(&mut message.msg_controllen);
    put(message, room, name, &bytes[..ERROR + offender]);
}

/// TLS_GET_RECORD_TYPE.
pub fn put_record_type(message: &mut msghdr, room: usize, kind: u8) {
    put(message, room, (toe::tls::SOL_TLS, toe::tls::TLS_GET_RECORD_TYPE), &[kind]);
}

/// One message of `bytes`, as far as there is `room`.
fn put(message: &mut msghdr, room: usize, (level, name): (c_int, c_int), bytes: &[u8]) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const MOST: usize = 64;
    if message.msg_control.is_null() || room < HEADER {
        message.msg_flags |= libc::MSG_CTRUNC;
        return;
    }
    let wanted = (HEADER + bytes.len()).min(MOST);
    let len = wanted.min(room);
    if len < wanted {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
    let mut whole = [0u8; MOST];
    let mut at = 0;
    for part in [&len.to_ne_bytes()[..], &level.to_ne_bytes(), &name.to_ne_bytes(), bytes] {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    // SAFETY: the program's buffer has that much room; ours does not overlap it.
    let put = unsafe { program_memory::copy(message.msg_control.cast::<u8>(), whole.as_ptr(), len) };
    if put.is_ok() {
        // SAFETY: it takes a number only.
        let space = unsafe { libc::CMSG_SPACE(bytes.len() as u32) } as usize;
        message.msg_controllen = space.min(room);
    }
}
