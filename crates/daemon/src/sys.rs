//! The system calls that no safe wrapper has. Called by `attach` and `main`.

#![allow(unsafe_code)]

use nix::libc;
use std::os::fd::{AsFd, AsRawFd};

/// Which network namespace a socket belongs to (SO_NETNS_COOKIE, Linux 5.14); `None` when the kernel cannot say.
pub(crate) fn netns_cookie(socket: impl AsFd) -> Option<u64> {
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
    (done == 0 && len as usize == size_of::<u64>()).then_some(cookie)
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
        assert!(netns_cookie(socket()).is_some());
        assert_eq!(netns_cookie(socket()), netns_cookie(socket()));
        assert_eq!(netns_cookie(std::io::stdin()), None);
    }
}
