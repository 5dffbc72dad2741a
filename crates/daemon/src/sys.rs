//! The system calls that no safe wrapper has. Called by `attach` and `main`.

#![allow(unsafe_code)]

use nix::libc;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::os::fd::{AsFd, AsRawFd};
use toe_base::NetNs;

/// Which network namespace a socket belongs to (SO_NETNS_COOKIE, Linux 5.14); `None` when the kernel cannot say.
pub(crate) fn netns_of(socket: impl AsFd) -> Option<NetNs> {
    let mut cookie = 0u64;
    let mut len = size_of::<u64>() as libc::socklen_t;
    // SAFETY: needed because neither rustix nor nix has this option. The descriptor is open for the length of the
    // call; `cookie` and `len` are ours and `len` is the size of `cookie`, beyond which the kernel does not write.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut len,
        )
    };
    (done == 0 && len as usize == size_of::<u64>()).then_some(NetNs(cookie))
}

/// Whoever sends to this Unix socket, or connects to it, can send no descriptors from now on (SO_PASSRIGHTS, Linux 6.16), so that
/// who receives has none to close. `false`: the kernel is older.
pub(crate) fn refuse_descriptors(socket: impl AsFd) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    let off: libc::c_int = 0;
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: needed because neither rustix nor nix has this option. The descriptor is open for the length of the call,
    // and the value is a local of the length that is given.
    let done = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, (&raw const off).cast(), len) };
    done == 0
}

/// Whether [`refuse_descriptors`] works here.
pub(crate) fn can_refuse_descriptors() -> bool {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    socket.is_ok_and(refuse_descriptors)
}

/// The network namespace that this process opens its links in.
pub(crate) fn own_netns() -> std::io::Result<NetNs> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    netns_of(&socket).ok_or_else(|| std::io::Error::other("the kernel is older than Linux 5.14"))
}

/// Closes every descriptor but the three standard ones. Whoever starts an engine in the background may leak
/// descriptors into it, and may wait for the end of one of them.
///
/// To be called first of all, while the process has opened nothing itself.
pub fn close_inherited_descriptors() {
    // SAFETY: needed because closing descriptors that some value may own is unsafe. `main` calls this before anything
    // is opened, with one thread, so no value owns any of them. A failure leaves them open, which is harmless.
    let _ = unsafe { libc::close_range(3, libc::c_uint::MAX, 0) };
}

/// A clock that counts ticks of some fixed length: the cycle counter where programs may read it, else nanoseconds.
/// Differences mean something, single values do not.
#[cfg(target_arch = "x86_64")]
pub(crate) fn ticks() -> u64 {
    // SAFETY: needed because the intrinsic is declared unsafe. It touches no memory, and Linux lets programs execute it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// A clock that counts ticks of some fixed length. Differences mean something, single values do not.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn ticks() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_namespace_have_one_cookie() {
        let socket = || std::net::TcpListener::bind("127.0.0.1:0").expect("a socket");
        assert!(netns_of(socket()).is_some());
        assert_eq!(netns_of(socket()), netns_of(socket()));
        assert_eq!(netns_of(std::io::stdin()), None);
    }
}
