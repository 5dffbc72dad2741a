//! Error numbers that the socket calls need beyond those that the host interface carries.

use toe_abi::errno::Errno;

pub const ENOENT: Errno = Errno(2);
pub const EEXIST: Errno = Errno(17);
pub const EFAULT: Errno = Errno(14);
pub const EDOM: Errno = Errno(33);
/// A signal has come whose handler has SA_RESTART: the call begins anew when that has run. As Linux's ERESTARTSYS, no program
/// sees it.
pub const ERESTART: Errno = Errno(512);
/// The engine is not this program's to trust.
pub const EKEYREJECTED: Errno = Errno(129);
pub const ENOTSOCK: Errno = Errno(88);
pub const EDESTADDRREQ: Errno = Errno(89);
pub const ESOCKTNOSUPPORT: Errno = Errno(94);
pub const EAFNOSUPPORT: Errno = Errno(97);

/// The number of a rustix error.
pub fn from_os(error: rustix::io::Errno) -> Errno {
    Errno(error.raw_os_error() as u16)
}
