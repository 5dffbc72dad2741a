//! The kernel socket behind a name: an engine gives a local port to nobody who does not show the kernel socket that has
//! it. Under the switch that is the program's own descriptor. A native socket has none; it gets one here, and keeps
//! it from the program as long as it has the name.

use crate::session::Session;
use crate::socket::Socket;
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, IntoRawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::net::SocketAddr;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;

/// Shows a kernel socket to the engine; the handle is for one command.
pub(super) fn show(session: &Session, twin: BorrowedFd<'_>) -> Result<u32, Errno> {
    match session.request(Request::ShowTwin, &[twin])? {
        Reply::Handle { handle } => Ok(handle),
        _ => Err(Errno::EPROTO),
    }
}

/// A new kernel socket that is bound there, and where the kernel has bound it: the errors are bind(2)'s.
pub(super) fn bind(local: SocketAddr) -> Result<(sys::Fd, SocketAddr), Errno> {
    let family = if local.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    let socket = socket.map_err(crate::errno::from_os)?;
    // The kernel has no connections here: one that ended lately must not stand in the way of the next.
    sockopt::set_socket_reuseaddr(&socket, true).map_err(crate::errno::from_os)?;
    // An address of the engine's own is none of the kernel's. The option is one of both families.
    sockopt::set_ip_freebind(&socket, true).map_err(crate::errno::from_os)?;
    rustix::net::bind(&socket, &local).map_err(crate::errno::from_os)?;
    let bound = rustix::net::getsockname(&socket).map_err(crate::errno::from_os)?;
    let bound = SocketAddr::try_from(bound).map_err(|_| Errno::EINVAL)?;
    Ok((sys::Fd::from_raw(socket.into_raw_fd()), bound))
}

/// The same, listening: nobody else can while it does. Whoever comes to it by the kernel is let in by nobody.
pub(super) fn listen(local: SocketAddr) -> Result<(sys::Fd, SocketAddr), Errno> {
    let (twin, bound) = bind(local)?;
    rustix::net::listen(twin.as_fd(), 0).map_err(crate::errno::from_os)?;
    Ok((twin, bound))
}

impl Socket {
    /// The address that a native socket is to have.
    pub fn set_local(&self, local: SocketAddr) {
        self.settings.lock().local = Some(local);
    }

    /// Keeps the kernel socket that has this native socket's name.
    pub(super) fn keep_twin(&self, twin: sys::Fd) {
        let twin = sys::move_to_high(twin);
        crate::fd_words::mark_internal(twin.raw());
        // The name before is the kernel's to give again.
        self.fds.own_twin.close();
        self.fds.own_twin.keep(twin.into_raw());
    }
}
