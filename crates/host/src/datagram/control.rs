//! Control data of datagrams: of those that come by lanes what the program has asked for by setsockopt, as the kernel puts it (put_cmsg), and what
//! it says of those that it sends. Called by the switch layer's calls and those of the C API.

use super::{Ancillary, Datagram, Details, Taken};
use crate::program_memory::{check, copy};
use core::ffi::{c_int, c_void};
use libc::{cmsghdr, msghdr};
use toe_abi::errno::Errno;
use toe_base::Addr;

/// The number of the loopback interface, in each network namespace. What an engine hands to the kernel comes in there, too.
const LOOPBACK: c_int = 1;

/// The program's room for control data.
struct Control<'a> {
    message: &'a mut msghdr,
    used: usize,
}

impl Control<'_> {
    /// What does not fit is cut off, and MSG_CTRUNC says so.
    fn put(&mut self, level: c_int, kind: c_int, data: &[u8]) -> Result<(), Errno> {
        let room = self.message.msg_controllen.saturating_sub(self.used);
        let header_len = size_of::<cmsghdr>();
        if self.message.msg_control.is_null() || room < header_len {
            self.message.msg_flags |= libc::MSG_CTRUNC;
            return Ok(());
        }
        // SAFETY: both only count.
        let (len, space) = unsafe {
            (libc::CMSG_LEN(data.len() as u32) as usize, libc::CMSG_SPACE(data.len() as u32) as usize)
        };
        if room < len {
            self.message.msg_flags |= libc::MSG_CTRUNC;
        }
        let len = len.min(room);
        // SAFETY: all zeros are a header.
        let mut header: cmsghdr = unsafe { core::mem::zeroed() };
        (header.cmsg_len, header.cmsg_level, header.cmsg_type) = (len as _, level, kind);
        let target = self.message.msg_control.cast::<u8>().wrapping_add(self.used);
        // SAFETY: the program says that so many bytes are there; if they are not, that is EFAULT.
        unsafe {
            copy(target, (&raw const header).cast::<u8>(), header_len)?;
            copy(target.wrapping_add(header_len), data.as_ptr(), len - header_len)?;
        }
        self.used += space.min(room);
        Ok(())
    }

    fn put_number(&mut self, level: c_int, kind: c_int, number: c_int) -> Result<(), Errno> {
        self.put(level, kind, &number.to_ne_bytes())
    }
}

/// Bytes of a structure of the C library's.
///
/// # Safety
/// It has no padding: all its bytes are written.
unsafe fn bytes<T>(of: &T) -> &[u8] {
    // SAFETY: needed because the C library's structures do not say so themselves. The caller does.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(of).cast::<c_void>().cast(), size_of::<T>()) }
}

/// What the kernel would say of a datagram that came by a lane, in its order.
///
/// # Safety
/// As recvmsg(2).
pub unsafe fn fill_control(message: &mut msghdr, taken: &Taken, datagram: &Datagram) -> Result<(), Errno> {
    let ancillary = datagram.ancillary();
    if ancillary.is_nothing() {
        message.msg_controllen = 0;
        return Ok(());
    }
    let mut control = Control { message, used: 0 };
    if ancillary.has(Ancillary::JOINED) && taken.segment != 0 {
        control.put_number(libc::SOL_UDP, libc::UDP_GRO, c_int::from(taken.segment))?;
    }
    if ancillary.has(Ancillary::V6_OWN) && datagram.is_inet6() {
        let info = libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr { s6_addr: taken.own.to_v6().octets() },
            ipi6_ifindex: LOOPBACK as u32,
        };
        // SAFETY: needed as said there. An address and a number of four bytes have nothing in between.
        let bytes = unsafe { bytes(&info) };
        control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, bytes)?;
    }
    match taken.own.to_v4() {
        Some(own) => {
            if ancillary.has(Ancillary::V4_OWN) {
                let addr = libc::in_addr { s_addr: u32::from(own).to_be() };
                let info = libc::in_pktinfo { ipi_ifindex: LOOPBACK, ipi_spec_dst: addr, ipi_addr: addr };
                // SAFETY: needed as said there. Three words of four bytes have nothing in between.
                let bytes = unsafe { bytes(&info) };
                control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, bytes)?;
            }
            if ancillary.has(Ancillary::V4_CLASS) {
                control.put(libc::IPPROTO_IP, libc::IP_TOS, &[taken.traffic_class])?;
            }
        }
        None if ancillary.has(Ancillary::V6_CLASS) => {
            control.put_number(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, c_int::from(taken.traffic_class))?;
        }
        None => {}
    }
    control.message.msg_controllen = control.used as _;
    Ok(())
}

/// What the control data of a message says, and whether that is all of it: the rest is the kernel's to judge. EFAULT: it is not there; EINVAL:
/// it says to be longer than it is.
///
/// # Safety
/// As sendmsg(2), but for the control data, which may not be there.
pub unsafe fn details_of(message: *const libc::msghdr) -> Result<(Details, bool), Errno> {
    let mut details = Details::default();
    let mut is_all = true;
    // SAFETY: the CMSG functions walk within the control data, which is looked for first; a header that says to be longer than what is
    // left of it is refused.
    unsafe {
        let room = (*message).msg_controllen;
        if room == 0 {
            return Ok((details, is_all));
        }
        let begin = (*message).msg_control.cast::<u8>().cast_const();
        check(begin, room)?;
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let whole = (*header).cmsg_len as usize;
            let len = whole.checked_sub(libc::CMSG_LEN(0) as usize).ok_or(Errno::EINVAL)?;
            if whole > room - (header.addr() - begin.addr()) {
                return Err(Errno::EINVAL);
            }
            let number = if len == 4 { Some(data.cast::<c_int>().read_unaligned()) } else { None };
            let byte = number.and_then(|number| u8::try_from(number).ok());
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if len == size_of::<libc::in_pktinfo>() => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    details.from = Some(Addr::v4(u32::from_be(info.ipi_spec_dst.s_addr).into()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if len == size_of::<libc::in6_pktinfo>() => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let addr = core::net::Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    let zone = if addr.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                    details.from = Some(Addr::v6(addr, zone));
                }
                (libc::IPPROTO_IP, libc::IP_TTL) if byte.is_some_and(|ttl| ttl > 0) => {
                    details.hop_limit = byte;
                }
                (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) if byte.is_some() => details.hop_limit = byte,
                (libc::IPPROTO_IP, libc::IP_TOS) if byte.is_some() => details.traffic_class = byte,
                // Linux takes a byte as well.
                (libc::IPPROTO_IP, libc::IP_TOS) if len == 1 => details.traffic_class = Some(data.read()),
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) if byte.is_some() => details.traffic_class = byte,
                (libc::SOL_UDP, libc::UDP_SEGMENT) if len == 2 => {
                    details.segment = Some(data.cast::<u16>().read_unaligned());
                }
                _ => is_all = false,
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    Ok((details, is_all))
}
