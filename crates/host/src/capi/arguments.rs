//! What C passes: descriptors, addresses, buffers, times.

use crate::datagram::Datagram;
use crate::errno::{EAFNOSUPPORT, EFAULT, ENOTSOCK};
use crate::socket::Socket;
use crate::{fd_table, sys};
use libc::{iovec, sockaddr, socklen_t};
use std::ffi::c_int;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;
use toe_abi::errno::Errno;

/// Most buffers of one readv or writev (Linux: UIO_MAXIOV).
const IOV_MAX: c_int = 1024;
/// Buffers that need no memory of their own.
const IOV_FEW: usize = 16;

pub(super) fn find(fd: c_int) -> Result<&'static Socket, Errno> {
    if let Some(socket) = fd_table::get(fd) {
        return Ok(socket);
    }
    if datagram(fd).is_some() {
        return Err(Errno::EOPNOTSUPP);
    }
    // Only the kernel knows whether the number is some other descriptor.
    sys::fcntl(fd, libc::F_GETFD, 0).and(Err(ENOTSOCK))
}

/// What of the calls that streams have is another thing for a UDP socket. `None`: the descriptor is none.
pub(super) fn datagram(fd: c_int) -> Option<&'static Datagram> {
    fd_table::datagram(fd)
}

/// As Linux has the order of its complaints.
pub(super) fn read_addr(addr: *const sockaddr, len: socklen_t) -> Result<SocketAddr, Errno> {
    if len == 0 || len as usize > size_of::<libc::sockaddr_storage>() {
        return Err(Errno::EINVAL);
    }
    if addr.is_null() {
        return Err(EFAULT);
    }
    if (len as usize) < size_of::<libc::sockaddr_in>() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: needed because the address comes from C. The caller of a `toe_` function passes, as its documentation
    // says, `len` readable bytes; that they are enough was checked; no alignment is assumed.
    let addr = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
    if i32::from(addr.sin_family) != libc::AF_INET {
        return Err(EAFNOSUPPORT);
    }
    let ip = Ipv4Addr::from(u32::from_be(addr.sin_addr.s_addr));
    Ok(SocketAddr::V4(SocketAddrV4::new(ip, u16::from_be(addr.sin_port))))
}

/// Writes `from` as C wants it: as much as there is room for, and the full length.
pub(super) fn write_addr(from: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if addr.is_null() {
        return Ok(());
    }
    write_name(from, addr, len)
}

/// The same where an address is asked for.
pub(super) fn write_name(from: SocketAddr, addr: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    // SAFETY: needed because the memory is C's: as documented, `len` points to a length.
    let room = unsafe { length_of(len) }?;
    if addr.is_null() && room > 0 {
        return Err(EFAULT);
    }
    let (ip, port) = match from {
        SocketAddr::V4(v4) => (*v4.ip(), v4.port()),
        SocketAddr::V6(v6) => (Ipv4Addr::UNSPECIFIED, v6.port()),
    };
    let full = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    };
    let size = size_of::<libc::sockaddr_in>();
    // SAFETY: needed because the memory is C's. As documented, `len` points to a length and `addr` to that many
    // writable bytes; no more than that is written.
    unsafe {
        if !addr.is_null() {
            let full = std::ptr::from_ref(&full).cast::<u8>();
            std::ptr::copy_nonoverlapping(full, addr.cast::<u8>(), room.min(size));
        }
        *len = size as socklen_t;
    }
    Ok(())
}

/// How much room C says that there is. EINVAL: it cannot be so much, as Linux takes the number for one with a sign. `len` is null or
/// points to a length.
pub(super) unsafe fn length_of(len: *const socklen_t) -> Result<usize, Errno> {
    if len.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: needed because the memory is C's. It is a length, as the caller says.
    let len = unsafe { *len };
    c_int::try_from(len).map(|len| len as usize).map_err(|_| Errno::EINVAL)
}

pub(super) fn buffers_of<'a>(iov: *const iovec, count: c_int) -> Result<&'a [iovec], Errno> {
    let len = usize::try_from(count).ok().filter(|_| count <= IOV_MAX).ok_or(Errno::EINVAL)?;
    if len == 0 {
        return Ok(&[]);
    }
    if iov.is_null() {
        return Err(EFAULT);
    }
    // SAFETY: needed because the array is C's: as documented, `count` of them.
    let iov = unsafe { std::slice::from_raw_parts(iov, len) };
    if iov.iter().any(|v| v.iov_base.is_null() && v.iov_len > 0) {
        return Err(EFAULT);
    }
    let total = iov.iter().try_fold(0usize, |sum, v| sum.checked_add(v.iov_len));
    total.filter(|total| *total <= isize::MAX as usize).map(|_| iov).ok_or(Errno::EINVAL)
}

/// Does `f` to a copy of the array in which no buffer starts at null; without heap memory when they are few.
pub(super) fn with_copy<R>(iov: &[iovec], f: impl FnOnce(&mut [iovec]) -> R) -> R {
    let mut few = [iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; IOV_FEW];
    let mut many = Vec::new();
    let copy = match few.get_mut(..iov.len()) {
        Some(few) => {
            few.copy_from_slice(iov);
            few
        }
        None => {
            many.extend_from_slice(iov);
            &mut many[..]
        }
    };
    for v in copy.iter_mut().filter(|v| v.iov_base.is_null()) {
        v.iov_base = std::ptr::NonNull::dangling().as_ptr();
    }
    f(copy)
}

/// A timeout of poll or epoll_wait; negative: none.
pub(super) fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}
