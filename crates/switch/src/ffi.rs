//! The border to C: errno, panics, socket addresses and vectors of buffers. Used by every interposed call.

use core::ffi::c_int;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4};
use libc::{iovec, sockaddr, sockaddr_in, sockaddr_in6, socklen_t, ssize_t};
use std::borrow::Cow;
use std::io::{IoSlice, IoSliceMut};
use toe::Errno;
use toe::errno::ERESTART;
use toe::program_memory::{self, check};
use toe::signals::Inside;
use toe_base::{Addr, Endpoint};

/// Most buffers in one vector (Linux: UIO_MAXIOV).
pub const IOV_MAX: usize = 1024;
/// Most bytes that one call moves (Linux: MAX_RW_COUNT).
pub const RW_MAX: usize = 0x7fff_f000;

/// Sets the thread's errno.
pub fn set_errno(number: c_int) {
    // SAFETY: errno is reached through the address that libc gives for this thread; it is always valid.
    unsafe { *libc::__errno_location() = number };
}

/// Runs the part of a call that is not the kernel's, so that a defect in it fails that call and not the program:
/// a panic must not unwind into C.
///
/// Signals that come meanwhile are kept until it is over (`toe::signals`).
pub fn guarded<T>(failed: T, call: impl FnOnce() -> T) -> T {
    guarded_in(Inside::enter(), failed, call)
}

/// The same for a thread that is inside already, up to the end of the call.
pub fn guarded_in<T>(_inside: Inside, failed: T, call: impl FnOnce() -> T) -> T {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)) {
        Ok(value) => value,
        Err(_) => {
            set_errno(libc::EIO);
            failed
        }
    }
}

/// Makes a call, and makes it anew, from its beginning, when a signal has ended it whose handler has SA_RESTART (ERESTART): as in
/// Linux, the handler has run by then with nothing of the call on the stack, and the descriptor may be another's.
#[inline]
pub fn restarted<T: Copy + PartialEq + From<i8>>(mut call: impl FnMut() -> T) -> T {
    loop {
        let result = call();
        if result != T::from(-1) || last_errno() != ERESTART {
            return result;
        }
    }
}

/// -1 with errno set.
pub fn fail(error: Errno) -> c_int {
    set_errno(c_int::from(error.0));
    -1
}

/// What a call that returns 0 or -1 returns.
pub fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => fail(error),
    }
}

/// What a call that returns a descriptor or a number returns.
pub fn number(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(fail)
}

/// What a call that returns a length returns.
pub fn length(result: Result<usize, Errno>) -> ssize_t {
    match result {
        Ok(len) => len as ssize_t,
        Err(error) => fail(error) as ssize_t,
    }
}

/// A system call past the C library, and past what this library puts in the place of its functions: -1 with errno set.
///
/// # Safety
/// As the call asks of its arguments.
pub unsafe fn syscall(number: core::ffi::c_long, [a, b, c, d]: [usize; 4]) -> c_int {
    // SAFETY: the caller's promise.
    let result = unsafe { toe::sys::raw(number, [a, b, c, d, 0, 0]) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result as c_int
}

/// An error number that `toe::Errno` has no name for.
pub const fn errno(number: c_int) -> Errno {
    Errno(number as u16)
}

/// The thread's errno after a libc call failed.
pub fn last_errno() -> Errno {
    // SAFETY: as in `set_errno`.
    errno(unsafe { *libc::__errno_location() })
}

/// Longer than any address can be: to Linux that is EINVAL, whatever the socket and the address are.
pub const fn is_too_long(len: socklen_t) -> bool {
    len as usize > size_of::<libc::sockaddr_storage>()
}

/// The address family of a socket address, when it is long enough to have one.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn family(addr: *const sockaddr, len: socklen_t) -> Option<c_int> {
    if (len as usize) < size_of::<libc::sa_family_t>() {
        return None;
    }
    // No longer than any address is; what is not there has no family, and Linux is left to say so.
    check(addr.cast::<u8>(), (len as usize).min(size_of::<libc::sockaddr_storage>())).ok()?;
    // SAFETY: long enough, says the check; unaligned reads are allowed for.
    Some(c_int::from(unsafe { (&raw const (*addr).sa_family).read_unaligned() }))
}

/// An AF_INET address as the program passed it.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn read_inet(addr: *const sockaddr, len: socklen_t) -> Option<SocketAddrV4> {
    // SAFETY: the caller's promise.
    let family = unsafe { family(addr, len) }?;
    if family != libc::AF_INET || (len as usize) < size_of::<sockaddr_in>() {
        return None;
    }
    // SAFETY: AF_INET and long enough for a sockaddr_in, which has no invalid values.
    let inet = unsafe { addr.cast::<sockaddr_in>().read_unaligned() };
    Some(SocketAddrV4::new(Ipv4Addr::from(u32::from_be(inet.sin_addr.s_addr)), u16::from_be(inet.sin_port)))
}

/// The length of a sockaddr_in6 as RFC 2133 had it, without the scope: Linux takes it still.
const SIN6_LEN_RFC2133: usize = 24;

/// An AF_INET6 address as the program passed it: IPv4's if it is mapped. A link-local one that is none (RFC 4291 section 2.5.6
/// wants zeros there) is no engine's.
///
/// # Safety
/// `addr` is null or points to `len` readable bytes.
pub unsafe fn read_inet6(addr: *const sockaddr, len: socklen_t) -> Option<Endpoint> {
    // SAFETY: the caller's promise.
    let family = unsafe { family(addr, len) }?;
    if family != libc::AF_INET6 || (len as usize) < SIN6_LEN_RFC2133 {
        return None;
    }
    let mut whole = sockaddr_in6 {
        sin6_family: 0,
        sin6_port: 0,
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
        sin6_scope_id: 0,
    };
    let len = (len as usize).min(size_of::<sockaddr_in6>());
    // SAFETY: so many bytes are there in both, and a sockaddr_in6 has no invalid values.
    unsafe { core::ptr::copy_nonoverlapping(addr.cast::<u8>(), (&raw mut whole).cast::<u8>(), len) };
    let ip = Ipv6Addr::from(whole.sin6_addr.s6_addr);
    let addr = Addr::checked_v6(ip, whole.sin6_scope_id)?;
    Some(Endpoint { addr, port: u16::from_be(whole.sin6_port) })
}

/// The address and port that a program passed for a socket; `inet6`: the socket is of AF_INET6.
///
/// # Safety
/// As [`read_inet`].
pub unsafe fn read_endpoint(addr: *const sockaddr, len: socklen_t, inet6: bool) -> Option<Endpoint> {
    if is_too_long(len) {
        return None;
    }
    // SAFETY: the caller's promise.
    unsafe { if inet6 { read_inet6(addr, len) } else { read_inet(addr, len).map(Endpoint::from) } }
}

/// Gives an address to the program as Linux does: as much as fits, and the length it would have had. `inet6`: of a socket of
/// AF_INET6, whose IPv4 addresses are mapped.
///
/// # Safety
/// `out` is writable for `*out_len` bytes and `out_len` is a valid pointer, or `out` or `out_len` is null.
pub unsafe fn write_inet(
    from: SocketAddr,
    inet6: bool,
    out: *mut sockaddr,
    out_len: *mut socklen_t,
) -> Result<(), Errno> {
    if out.is_null() || out_len.is_null() {
        return Err(errno(libc::EFAULT));
    }
    let v4 = match from {
        SocketAddr::V4(v4) => v4,
        SocketAddr::V6(_) if inet6 => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
        SocketAddr::V6(_) => return Err(Errno::EINVAL),
    };
    // SAFETY: an integer has no bad values.
    let room = unsafe { program_memory::read(out_len)? };
    if room > c_int::MAX as socklen_t {
        return Err(Errno::EINVAL);
    }
    let inet = sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: v4.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
        sin_zero: [0; 8],
    };
    let (ip, scope) = match from {
        SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
    };
    let in_v6 = sockaddr_in6 {
        sin6_family: libc::AF_INET6 as libc::sa_family_t,
        sin6_port: from.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: ip.octets() },
        sin6_scope_id: scope,
    };
    let (bytes, whole) = match inet6 {
        false => ((&raw const inet).cast::<u8>(), size_of::<sockaddr_in>()),
        true => ((&raw const in_v6).cast::<u8>(), size_of::<sockaddr_in6>()),
    };
    // SAFETY: so many bytes are in both; the program's buffer and our locals do not overlap.
    unsafe {
        program_memory::copy(out.cast::<u8>(), bytes, (room as usize).min(whole))?;
        program_memory::write(out_len, whole as socklen_t)
    }
}

/// A buffer that the program wants filled.
///
/// # Safety
/// `buf` is writable for `len` bytes for as long as the result is used.
pub unsafe fn slice_mut<'a>(buf: *mut core::ffi::c_void, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise; u8 has no invalid values and we only write to it, by routines that a fault does not end.
    unsafe { core::slice::from_raw_parts_mut(never_null(buf.cast()), len.min(RW_MAX)) }
}

/// A buffer that the program wants sent.
///
/// # Safety
/// `buf` is readable for `len` bytes for as long as the result is used.
pub unsafe fn slice<'a>(buf: *const core::ffi::c_void, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise; looked at by routines that a fault does not end.
    unsafe { core::slice::from_raw_parts(never_null(buf.cast_mut().cast()), len.min(RW_MAX)) }
}

/// Rust's slices must not be null; what lies in the same page is not there either.
fn never_null(at: *mut u8) -> *mut u8 {
    if at.is_null() { core::ptr::dangling_mut() } else { at }
}

/// A program's vector of buffers, checked as the kernel does. Empty buffers are left out when one of them has a null
/// pointer: Rust's slices must not be null, C's may.
#[derive(Debug)]
pub struct Vectors(Cow<'static, [iovec]>);

impl Vectors {
    /// Those of a message, of which there may not be more either, but by another errno.
    ///
    /// # Safety
    /// As [`Vectors::new`].
    pub unsafe fn of_message(iov: *const iovec, count: usize) -> Result<Vectors, Errno> {
        if count > IOV_MAX {
            return Err(errno(libc::EMSGSIZE));
        }
        // SAFETY: the caller's promise.
        unsafe { Vectors::new(iov, count) }
    }

    /// # Safety
    /// `iov` points to `count` vectors that describe memory which is valid for as long as the result is used.
    pub unsafe fn new(iov: *const iovec, count: usize) -> Result<Vectors, Errno> {
        if count > IOV_MAX {
            return Err(Errno::EINVAL);
        }
        if count == 0 {
            return Ok(Vectors(Cow::Borrowed(&[])));
        }
        check(iov, count)?;
        // SAFETY: the caller's promise; not null. The lifetime is the caller's to keep, as it says above.
        let vectors: &'static [iovec] = unsafe { core::slice::from_raw_parts(iov, count) };
        if vectors.iter().any(|v| v.iov_len > isize::MAX as usize) {
            return Err(Errno::EINVAL);
        }
        if vectors.iter().any(|v| v.iov_base.is_null() && v.iov_len != 0) {
            return Err(errno(libc::EFAULT));
        }
        if vectors.iter().any(|v| v.iov_base.is_null()) {
            return Ok(Vectors(vectors.iter().filter(|v| v.iov_len != 0).copied().collect()));
        }
        Ok(Vectors(Cow::Borrowed(vectors)))
    }

    /// As buffers to fill.
    ///
    /// # Safety
    /// The memory is writable.
    pub unsafe fn buffers_mut(&mut self) -> &mut [IoSliceMut<'_>] {
        // SAFETY: IoSliceMut is documented to have the layout of iovec. The slice is `&mut` only because Rust's
        // vectored reads want it so; nothing writes to the vectors themselves.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_ptr() as *mut IoSliceMut<'_>, self.0.len()) }
    }

    /// As buffers to send.
    ///
    /// # Safety
    /// The memory is readable.
    pub unsafe fn buffers(&self) -> &[IoSlice<'_>] {
        // SAFETY: IoSlice is documented to have the layout of iovec.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_goes_there_and_back() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 8080);
        let mut out = [0u8; 16];
        let mut len = 16;
        // SAFETY: a local buffer of 16 bytes, and its length.
        unsafe {
            write_inet(from.into(), false, out.as_mut_ptr().cast(), &mut len).unwrap();
            assert_eq!(len, 16);
            assert_eq!(read_inet(out.as_ptr().cast(), len), Some(from));
            assert_eq!(read_inet(out.as_ptr().cast(), 8), None);
            assert_eq!(read_inet(core::ptr::null(), 16), None);
        }
    }

    #[test]
    fn a_short_buffer_gets_a_part_and_the_whole_length() {
        let mut out = [0xaau8; 16];
        let mut len = 4;
        // SAFETY: a local buffer.
        unsafe {
            write_inet("1.2.3.4:80".parse().unwrap(), false, out.as_mut_ptr().cast(), &mut len).unwrap()
        };
        assert_eq!(len, 16);
        assert_eq!(out[..5], [2, 0, 0, 80, 0xaa]);
    }

    #[test]
    fn a_socket_of_inet6_has_mapped_addresses() {
        let from = SocketAddrV4::new(Ipv4Addr::new(10, 1, 2, 3), 8080);
        let mut out = [0u8; 28];
        let mut len = 28;
        // SAFETY: a local buffer of 28 bytes, and its length.
        unsafe {
            write_inet(from.into(), true, out.as_mut_ptr().cast(), &mut len).unwrap();
            assert_eq!(len, 28);
            assert_eq!(read_endpoint(out.as_ptr().cast(), len, true), Some(from.into()));
            assert_eq!(read_endpoint(out.as_ptr().cast(), len, false), None);
            assert_eq!(read_endpoint(out.as_ptr().cast(), 23, true), None);
            assert_eq!(out[8..24], from.ip().to_ipv6_mapped().octets());
        }
    }

    #[test]
    fn an_address_of_ipv6_goes_there_and_back_with_its_scope() {
        let from: SocketAddr = "[fe80::1%3]:8080".parse().unwrap();
        let mut out = [0u8; 28];
        let mut len = 28;
        // SAFETY: a local buffer of 28 bytes, and its length.
        unsafe {
            write_inet(from, true, out.as_mut_ptr().cast(), &mut len).unwrap();
            assert_eq!(read_endpoint(out.as_ptr().cast(), len, true), Some(from.into()));
            let without = read_endpoint(out.as_ptr().cast(), 24, true).unwrap();
            assert_eq!(without.addr.zone(), 0, "as RFC 2133 had it");
            out[12] = 1;
            assert_eq!(read_endpoint(out.as_ptr().cast(), len, true), None, "no such address");
            assert_eq!(write_inet(from, false, out.as_mut_ptr().cast(), &mut len), Err(Errno::EINVAL));
        }
    }

    #[test]
    fn vectors_are_checked_as_linux_does() {
        let bad = iovec { iov_base: core::ptr::null_mut(), iov_len: 1 };
        // SAFETY: vectors that are refused are not looked into.
        unsafe {
            assert_eq!(Vectors::new(&bad, IOV_MAX + 1).unwrap_err(), Errno::EINVAL);
            assert_eq!(Vectors::new(core::ptr::null(), 1).unwrap_err(), errno(libc::EFAULT));
            assert_eq!(Vectors::new(&bad, 1).unwrap_err(), errno(libc::EFAULT));
            assert!(Vectors::new(core::ptr::null(), 0).unwrap().buffers().is_empty());
        }
    }

    #[test]
    fn an_empty_buffer_may_be_null() {
        let text = *b"text";
        let iov = [
            iovec { iov_base: core::ptr::null_mut(), iov_len: 0 },
            iovec { iov_base: text.as_ptr() as *mut core::ffi::c_void, iov_len: text.len() },
        ];
        // SAFETY: the second vector describes `text`.
        let vectors = unsafe { Vectors::new(iov.as_ptr(), 2) }.unwrap();
        // SAFETY: `text` is readable.
        let buffers = unsafe { vectors.buffers() };
        assert_eq!(buffers.len(), 1);
        assert_eq!(*buffers[0], text);
    }

    #[test]
    fn a_panic_becomes_an_error() {
        assert_eq!(guarded(-1, || 5), 5);
        assert_eq!(guarded(-1, || std::panic::panic_any("defect")), -1);
        assert_eq!(last_errno(), Errno::EIO);
    }
}
