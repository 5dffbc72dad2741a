//! shutdown of a UDP socket. Linux shuts it whatever it is connected to, and says ENOTCONN of one that is not connected: what is sent from then on is
//! EPIPE, and who waits for something to be received gets nothing. Called by the switch layer and the C API.

use super::Datagram;
use core::ffi::c_int;
use std::sync::atomic::Ordering;
use toe_abi::errno::Errno;

impl Datagram {
    /// `kernel` makes the call. Of what an engine has connected the kernel knows nothing.
    pub fn shut_down(&self, how: c_int, kernel: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        let (reads, writes) = match how {
            libc::SHUT_RD => (true, false),
            libc::SHUT_WR => (false, true),
            libc::SHUT_RDWR => (true, true),
            _ => return kernel(),
        };
        if writes {
            self.send_from_kernel();
        }
        if reads {
            // What is in lanes is still read; after that the kernel's call says that there is nothing.
            self.receive_from_kernel();
        }
        let shut = kernel();
        if writes && matches!(shut, Ok(()) | Err(Errno::ENOTCONN)) {
            self.shut.store(true, Ordering::Relaxed);
        }
        match shut {
            Err(Errno::ENOTCONN) if self.connected().is_some() => Ok(()),
            shut => shut,
        }
    }

    /// As Linux has the order of its complaints: what is too large for a packet before it has memory for that, which a socket that is shut does not
    /// get, and what does not fit into parts after it.
    pub(super) fn may_send(
        &self,
        joined: bool,
        fits: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let shut = if self.shut.load(Ordering::Relaxed) { Err(Errno::EPIPE) } else { Ok(()) };
        if joined { shut.and_then(|()| fits()) } else { fits().and(shut) }
    }
}
