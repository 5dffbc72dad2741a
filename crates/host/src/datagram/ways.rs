//! How a socket gets an engine's way to a peer: the engine is shown it, and the kernel's socket is made to fit (decision 0035). Which engine, and
//! whether any, is decided by the switch layer by its policy; the C API has one.

use super::{Connected, Datagram, kernel_side};
use crate::errno::from_os;
use crate::stack::EngineIdx;
use crate::sys;
use core::net::Ipv4Addr;
use rustix::fd::RawFd;
use std::net::SocketAddr;
use toe_abi::attach::Use;
use toe_abi::errno::Errno;
use toe_base::{Addr, Endpoint};

/// Whether an engine may have the way to an address, or hear there.
pub fn may_be_engines(addr: Addr) -> bool {
    let broadcast = Addr::v4(Ipv4Addr::BROADCAST);
    !(addr.is_loopback() || addr.is_multicast() || addr.is_unspecified() || addr == broadcast)
}

/// What the kernel says that the socket is bound to.
pub fn kernel_name(fd: RawFd) -> Result<Endpoint, Errno> {
    let name = rustix::net::getsockname(sys::borrow(fd)).map_err(from_os)?;
    SocketAddr::try_from(name).map(Endpoint::from).map_err(|_| Errno::EINVAL)
}

impl Datagram {
    /// What comes to the socket's name by an engine's links is for it.
    pub fn hear_by_engine(&self, fd: RawFd, engine: EngineIdx) -> Result<(), Errno> {
        self.open_by_engine(fd, (Use::Hears, Endpoint::UNSPECIFIED_V4), engine).map(|_| ())
    }

    /// Asks whether the engine has the way to `to`, for a datagram; a socket that has no name gets one, as Linux gives it.
    pub fn find_way(&self, fd: RawFd, to: Endpoint, engine: EngineIdx) -> Result<(), Errno> {
        if kernel_name(fd)?.port == 0 {
            self.open_by_engine(fd, (Use::Sends, to), engine)?;
            let any = if self.is_inet6() { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
            self.name_freely(fd, any)?;
        }
        let purpose = match self.connected() {
            // After a fork the engine is told anew.
            Some(connected) if connected.peer == to => Use::Connects,
            _ => Use::Sends,
        };
        self.open_by_engine(fd, (purpose, to), engine).map(|_| ())
    }

    /// Connects the socket to what an engine has the way to.
    pub fn connect_by_engine(&self, fd: RawFd, peer: Endpoint, engine: EngineIdx) -> Result<(), Errno> {
        if kernel_name(fd)?.port == 0 {
            // It has the name that Linux would give it.
            let source = self.open_by_engine(fd, (Use::Sends, peer), engine)?;
            self.name_freely(fd, source)?;
        }
        let local = self.open_by_engine(fd, (Use::Connects, peer), engine)?;
        kernel_side::hear_only(fd, peer);
        let had_errors = kernel_side::set_errors(fd, self.is_inet6());
        self.set_connected(Some(Connected { local, peer, had_errors }));
        Ok(())
    }

    fn name_freely(&self, fd: RawFd, addr: Addr) -> Result<(), Errno> {
        let is_named = kernel_side::bind_freely(fd, self.is_inet6(), Endpoint { addr, port: 0 });
        if is_named { Ok(()) } else { Err(Errno::EADDRNOTAVAIL) }
    }

    /// It is connected no more, if an engine had connected it: whether it had. What comes to its name is to be asked for anew.
    pub fn disconnect(&self, fd: RawFd) -> bool {
        let before = self.connected();
        if let Some(before) = before {
            kernel_side::hear_all(fd, self.is_inet6(), before.had_errors);
            self.set_connected(None);
        }
        before.is_some()
    }

    /// What it is called where an engine has connected it: with the port that the kernel has.
    pub fn local_name(&self, fd: RawFd) -> Option<Endpoint> {
        let connected = self.connected()?;
        kernel_name(fd).ok().map(|name| name.at(connected.local))
    }

    /// A call of the kernel's has failed. If that was by an error of what an engine sent, the queue that tells of it is the program's only if it
    /// has asked for it. errno stays as it is.
    pub fn call_failed(&self, fd: RawFd) {
        let before = sys::last_errno();
        if before == Errno::EMSGSIZE {
            self.forget_paths();
        }
        if before == Errno::EAGAIN || self.connected().is_none_or(|connected| connected.had_errors) {
            return;
        }
        kernel_side::empty_errors(fd);
        sys::set_errno(before);
    }
}
