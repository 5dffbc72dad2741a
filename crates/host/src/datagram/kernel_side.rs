//! The kernel's side of a socket that an engine has connected: the kernel does not connect a socket to where it has no route, or from an address that is
//! not its own. So a filter keeps from it what others send, and errors come as to a connected one (decision 0035). Called by the switch layer and
//! the C API.

use super::options::option;
use crate::sys;
use core::ffi::c_int;
use libc::{sock_filter, sock_fprog, sockaddr};
use rustix::fd::RawFd;
use toe_base::Endpoint;

/// # Safety
/// As setsockopt(2): the option's value is a `T`, and what it points to is there.
unsafe fn set_option<T>(fd: RawFd, level: c_int, name: c_int, value: &T) -> isize {
    let value = core::ptr::from_ref(value).addr();
    // SAFETY: the value is there, and as long as is said; the rest is the caller's promise.
    unsafe {
        sys::raw(libc::SYS_setsockopt, [fd as usize, level as usize, name as usize, value, size_of::<T>(), 0])
    }
}

fn set_number(fd: RawFd, level: c_int, name: c_int, number: c_int) -> isize {
    // SAFETY: the options that this is called for are numbers.
    unsafe { set_option(fd, level, name, &number) }
}

/// The socket may be bound to an address that the kernel does not have (IP_FREEBIND). Whether it may.
pub fn allow_any_address(fd: RawFd) -> bool {
    set_number(fd, libc::IPPROTO_IP, libc::IP_FREEBIND, 1) == 0
}

/// Binds a socket to an address that the kernel may not have. Whether it was.
pub fn bind_freely(fd: RawFd, inet6: bool, at: Endpoint) -> bool {
    if !allow_any_address(fd) {
        return false;
    }
    let (v4, v6);
    let (name, len): (*const sockaddr, usize) = match at.addr.to_v4() {
        Some(addr) if !inet6 => {
            v4 = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: at.port.to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from(addr).to_be() },
                sin_zero: [0; 8],
            };
            ((&raw const v4).cast(), size_of::<libc::sockaddr_in>())
        }
        _ => {
            v6 = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: at.port.to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: at.addr.to_v6().octets() },
                sin6_scope_id: at.addr.zone(),
            };
            ((&raw const v6).cast(), size_of::<libc::sockaddr_in6>())
        }
    };
    // SAFETY: the address is a local of that length.
    unsafe { sys::raw(libc::SYS_bind, [fd as usize, name.addr(), len, 0, 0, 0]) == 0 }
}

/// Undoes [`hear_only`], and [`set_errors`] unless the program wants errors itself.
pub fn hear_all(fd: RawFd, inet6: bool, keeps_errors: bool) {
    set_number(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, 0);
    if !keeps_errors {
        write_errors(fd, inet6, 0);
    }
}

fn write_errors(fd: RawFd, inet6: bool, on: c_int) {
    set_number(fd, libc::IPPROTO_IP, libc::IP_RECVERR, on);
    if inet6 {
        set_number(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on);
    }
}

/// Errors are to come as they do to connected sockets. Whether the program has asked for them itself.
pub fn set_errors(fd: c_int, inet6: bool) -> bool {
    let (level, name) =
        if inet6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
    let is_on = option(fd, level, name).is_some_and(|is_on| is_on != 0);
    write_errors(fd, inet6, 1);
    is_on
}

/// Where the IP header of a datagram begins, for a filter (SKF_NET_OFF).
const NET: u32 = -0x10_0000i32 as u32;

/// The kernel keeps from the socket what does not come from there.
pub fn hear_only(fd: c_int, peer: Endpoint) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const EQUALS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let mut checks = Vec::with_capacity(20);
    let (version, at, bytes) = match peer.addr.to_v4() {
        Some(v4) => (0x40, 12, v4.octets().to_vec()),
        None => (0x60, 8, peer.addr.to_v6().octets().to_vec()),
    };
    checks.extend([step(LOAD_BYTE, NET), step(AND, 0xf0), step(EQUALS, version)]);
    for (n, word) in bytes.chunks_exact(4).enumerate() {
        let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        checks.extend([step(LOAD, NET + at + 4 * n as u32), step(EQUALS, word)]);
    }
    // The datagram begins with the port that it was sent from.
    checks.extend([step(LOAD_HALF, 0), step(EQUALS, u32::from(peer.port))]);
    let keep = checks.len();
    for (n, check) in checks.iter_mut().enumerate() {
        if check.code == EQUALS {
            check.jf = (keep - n) as u8;
        }
    }
    checks.extend([step(RETURN, u32::MAX), step(RETURN, 0)]);
    let program = sock_fprog { len: checks.len() as u16, filter: checks.as_mut_ptr() };
    // SAFETY: the program is a local, and so is what it points to; the kernel copies both.
    unsafe { set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) };
}

/// Takes what is in the error queue.
pub(super) fn empty_errors(fd: RawFd) {
    // SAFETY: needed for what the kernel reads and writes. All zeros are a message without any room.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    let flags = (libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) as usize;
    // Each error takes the place of one datagram at least.
    for _ in 0..1024 {
        // SAFETY: the message is a local.
        let got =
            unsafe { sys::raw(libc::SYS_recvmsg, [fd as usize, (&raw mut message).addr(), flags, 0, 0, 0]) };
        if got < 0 {
            break;
        }
    }
}
