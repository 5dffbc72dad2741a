//! Control data of a datagram that goes by an engine, beyond what engines know: whether Linux takes it is asked of Linux, by a datagram that a socket
//! made for the question sends to itself. Called by [`super::datagram_send`].

use crate::ffi::last_errno;
use crate::real;
use libc::{cmsghdr, msghdr};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use toe::program_memory;
use toe::{Errno, sys};

/// Longer control data is Linux's to refuse (net.core.optmem_max), which is not asked then.
const CONTROL_MAX: usize = 1 << 16;

/// What sendmsg(2) would say of the message's control data.
///
/// # Safety
/// The message is there, and its control data was.
pub unsafe fn judge(message: *const msghdr, inet6: bool) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let (from, len) =
        unsafe { ((*message).msg_control.cast::<u8>().cast_const(), (*message).msg_controllen) };
    if len > CONTROL_MAX {
        return Err(Errno::ENOBUFS);
    }
    // Where it cannot be asked nobody is refused.
    let Some(model) = model(inet6) else { return Ok(()) };
    let mut control = vec![0u64; len.div_ceil(size_of::<u64>())];
    // SAFETY: there is room for as much; the program's may be gone.
    unsafe { program_memory::copy(control.as_mut_ptr().cast::<u8>(), from, len)? };
    // SAFETY: all zeros are a message without anything.
    let mut asked: msghdr = unsafe { core::mem::zeroed() };
    (asked.msg_control, asked.msg_controllen) = (control.as_mut_ptr().cast(), len);
    // SAFETY: the copy is aligned, and nobody else has it.
    unsafe { forget_addresses(&asked) };
    // SAFETY: as above; the kernel reads it.
    let sent = unsafe { real::sendmsg(model.raw(), &raw const asked, libc::MSG_DONTWAIT) };
    if sent < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Where it comes from is the engine's to judge: the model has no such address.
///
/// # Safety
/// The control data is there, and no part of it is longer than what is left.
unsafe fn forget_addresses(message: *const msghdr) {
    let is_address = |header: &cmsghdr| {
        let named = (header.cmsg_level, header.cmsg_type);
        named == (libc::IPPROTO_IP, libc::IP_PKTINFO) || named == (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO)
    };
    // SAFETY: the CMSG functions walk within the control data, which is as long as the headers say.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let len = ((*header).cmsg_len).saturating_sub(libc::CMSG_LEN(0) as usize);
            let left = (*message).msg_controllen - (header.addr() - (*message).msg_control.addr());
            if len + libc::CMSG_LEN(0) as usize > left {
                return;
            }
            if is_address(&*header) {
                libc::CMSG_DATA(header).write_bytes(0, len);
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// A socket that is connected to itself.
fn model(inet6: bool) -> Option<sys::Fd> {
    if toe::sys::is_filtered() {
        // A system call may be the process's end.
        return None;
    }
    let family = if inet6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None).ok()?;
    let localhost = if inet6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
    rustix::net::bind(&socket, &SocketAddr::new(localhost, 0)).ok()?;
    let own = rustix::net::getsockname(&socket).ok()?;
    rustix::net::connect(&socket, &own).ok()?;
    Some(sys::Fd::from(socket))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(parts: &[(i32, i32, &[u8])], inet6: bool) -> Result<(), Errno> {
        let mut control = [0u64; 32];
        // SAFETY: all zeros are a message; the control data is a local with room for the parts.
        unsafe {
            let mut message: msghdr = core::mem::zeroed();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen =
                parts.iter().map(|part| libc::CMSG_SPACE(part.2.len() as u32) as usize).sum();
            let mut header = libc::CMSG_FIRSTHDR(&raw const message);
            for (level, kind, bytes) in parts {
                (*header).cmsg_level = *level;
                (*header).cmsg_type = *kind;
                (*header).cmsg_len = libc::CMSG_LEN(bytes.len() as u32) as usize;
                libc::CMSG_DATA(header).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
                header = libc::CMSG_NXTHDR(&raw const message, header);
            }
            judge(&raw const message, inet6)
        }
    }

    #[test]
    fn what_linux_takes_is_taken() {
        let sends = 2u32.to_ne_bytes();
        let stamp = (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &sends[..]);
        let elsewhere = [0, 0, 0, 0, 192, 0, 2, 1, 0, 0, 0, 0];
        assert_eq!(judged(&[stamp], false), Ok(()));
        assert_eq!(judged(&[stamp], true), Ok(()));
        assert_eq!(judged(&[(libc::IPPROTO_IP, libc::IP_PKTINFO, &elsewhere), stamp], false), Ok(()));
        assert_eq!(judged(&[(libc::IPPROTO_IP, 99, b"1234")], false), Err(Errno::EINVAL));
        assert_eq!(judged(&[(libc::SOL_UDP, libc::UDP_SEGMENT, b"1")], false), Err(Errno::EINVAL));
        assert_eq!(
            judged(&[(libc::IPPROTO_IP, libc::IP_TTL, &0u32.to_ne_bytes())], false),
            Err(Errno::EINVAL)
        );
        // Of another family's Linux says nothing.
        assert_eq!(judged(&[(libc::IPPROTO_TCP, 1, b"1234")], false), Ok(()));
    }
}
