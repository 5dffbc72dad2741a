//! What of the engine's is behind a descriptor.

use crate::ffi::guarded;
use core::ffi::c_int;
use toe::fd_table;
use toe::socket::{Kind, Socket};

/// The engine's connection behind a descriptor. A listener is none: data calls on it get the twin's answer.
#[inline]
pub fn stream(fd: c_int) -> Option<&'static Socket> {
    fd_table::get(fd).filter(|socket| !matches!(socket.kind(), Kind::Listener))
}

/// The UDP socket behind a descriptor that may have lanes is the kernel's alone from here on: it is asked for what those do not do.
#[inline]
pub fn leave_lanes(fd: c_int) {
    if let Some(datagram) = fd_table::datagram(fd) {
        guarded((), || datagram.leave_to_kernel());
    }
}

/// The engine's listener behind a descriptor.
#[inline]
pub fn listener(fd: c_int) -> Option<&'static Socket> {
    fd_table::get(fd).filter(|socket| matches!(socket.kind(), Kind::Listener))
}
