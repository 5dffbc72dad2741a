//! Sockets of AF_INET6 whose addresses are IPv4's (RFC 4038 section 4.2: IPv4-mapped): to the engine they are as any other,
//! to the program their addresses are of struct sockaddr_in6.
//!
//! Whoever gets such a connection over exec or in a message must know. What goes with a descriptor in all ways is the
//! position in its file: a directory's, which means nothing here. Called by the switch layer.

use super::Socket;
use rustix::fd::RawFd;
use rustix::fs::SeekFrom;
use std::sync::atomic::Ordering;

/// The position of an anchor that is a connection of AF_INET6.
const INET6_POSITION: u64 = 6;

impl Socket {
    /// Whether the program made it with AF_INET6, or accepted it from a socket that was.
    pub fn is_inet6(&self) -> bool {
        self.inet6.load(Ordering::Relaxed)
    }

    /// It is of AF_INET6.
    pub fn set_inet6(&self) {
        self.inet6.store(true, Ordering::Relaxed);
    }

    /// Notes on its anchor, open at `fd`, that it is of AF_INET6, for processes that will get that.
    pub fn mark_inet6(&self, fd: RawFd) {
        self.set_inet6();
        let _ = rustix::fs::seek(crate::sys::borrow(fd), SeekFrom::Start(INET6_POSITION));
    }

    /// Whether the anchor at `fd`, which came from another process, is so marked.
    pub(crate) fn note_family(&self, fd: RawFd) {
        let position = rustix::fs::tell(crate::sys::borrow(fd));
        self.inet6.store(position == Ok(INET6_POSITION), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_family_goes_with_the_descriptor() {
        let (made, found) = (Socket::allocate(), Socket::allocate());
        let anchor = std::fs::File::open("/proc/self/fd").expect("a directory");
        let copy = anchor.try_clone().expect("a copy");
        found.note_family(copy.as_raw_fd());
        assert!(!found.is_inet6());
        made.mark_inet6(anchor.as_raw_fd());
        found.note_family(copy.as_raw_fd());
        assert!(made.is_inet6() && found.is_inet6());
        made.abandon();
        assert!(!made.is_inet6(), "it is another's now");
        found.abandon();
    }
}
