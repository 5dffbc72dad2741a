//! Which stack has a UDP socket's datagrams (decision 0035): bind, connect and the first datagram to an address ask an engine, as connect and
//! listen do for TCP (`proto_stacks`). The socket stays the kernel's twin, so what it hears comes by the kernel's calls; what it sends by a
//! link of the engine's is handed over here. Called by `calls::address` and `calls::datagram`.

use crate::engines::{KNOWN, engine};
use crate::ffi::{fail, family, read_endpoint};
use crate::policy::{self, Call};
use crate::proto_stacks::ProtoStack;
use crate::twin_name::{is_v6only, twin_address};
use crate::why::{self, Decided, Reason, Stack as On};
use core::ffi::c_int;
use core::net::Ipv4Addr;
use libc::{sockaddr, socklen_t, ssize_t};
use std::io::IoSlice;
use toe::datagram::ways::may_be_engines;
use toe::datagram::{Datagram, Details};
use toe::stack::EngineIdx;
use toe::{Errno, sys};
use toe_abi::attach::Use;
use toe_base::{Addr, Endpoint};

const BROADCAST: Addr = Addr::v4(Ipv4Addr::BROADCAST);

/// The engine that the policy lets have it, if it is not known that it has not.
fn engine_for(call: Call, at: Endpoint) -> Option<EngineIdx> {
    if crate::fork::in_vfork_child() || KNOWN.is_kernel_only(at.addr, sys::coarse_ms()) {
        return None;
    }
    let index = policy::stacks(policy::decide(call, at), at).engines().next()?;
    match engine(index) {
        Ok(_) => Some(index),
        Err(_) => {
            note_kernels(at.addr);
            None
        }
    }
}

fn note_kernels(addr: Addr) {
    KNOWN.note(addr, ProtoStack::Kernel, sys::coarse_ms());
}

fn tell(fd: c_int, engine: EngineIdx) {
    let reason = if why::is(fd, Reason::Groups) { Reason::Groups } else { Reason::Datagrams };
    why::set(fd, Decided { engine: engine.index() as u8, ..Decided::new(On::Engine, reason) });
}

/// The socket is a member of a group, or sends to one or to all: that is the kernel's, which joins for it on whatever link it names and hears
/// there, on the engine's, too; the engine leaves such frames alone.
#[cold]
pub fn tell_groups(fd: c_int, datagram: &Datagram) {
    if !why::is(fd, Reason::Groups) {
        let stack = if datagram.has_engine() { On::Engine } else { On::Kernel };
        why::set(fd, Decided::new(stack, Reason::Groups));
    }
}

/// Options by which a socket becomes a member of a group (ip(7), ipv6(7), linux/in.h).
pub fn joins(level: c_int, name: c_int) -> bool {
    const MCAST_JOIN_GROUP: c_int = 42;
    const MCAST_JOIN_SOURCE_GROUP: c_int = 46;
    const MCAST_MSFILTER: c_int = 48;
    const IP_MSFILTER: c_int = 41;
    match level {
        libc::IPPROTO_IP => matches!(
            name,
            libc::IP_ADD_MEMBERSHIP
                | libc::IP_ADD_SOURCE_MEMBERSHIP
                | IP_MSFILTER
                | MCAST_JOIN_GROUP
                | MCAST_JOIN_SOURCE_GROUP
                | MCAST_MSFILTER
        ),
        libc::IPPROTO_IPV6 => matches!(
            name,
            libc::IPV6_ADD_MEMBERSHIP | MCAST_JOIN_GROUP | MCAST_JOIN_SOURCE_GROUP | MCAST_MSFILTER
        ),
        _ => false,
    }
}

/// The socket has a name now: what comes there by an engine's links is for it.
pub fn bound(fd: c_int, datagram: &Datagram) {
    let Some(local) = twin_address(fd) else { return };
    if local.addr.is_loopback() || local.addr.is_multicast() {
        return;
    }
    let Some(engine) = engine_for(Call::Listen, local) else { return };
    match datagram.hear_by_engine(fd, engine) {
        Ok(()) => tell(fd, engine),
        Err(Errno::EADDRNOTAVAIL | Errno::EOPNOTSUPP) => note_kernels(local.addr),
        Err(_) => {}
    }
}

/// connect. `None`: it is the kernel's.
///
/// # Safety
/// As connect(2).
pub unsafe fn connect(
    fd: c_int,
    datagram: &Datagram,
    addr: *const sockaddr,
    len: socklen_t,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let (family, peer) = unsafe { (family(addr, len), read_endpoint(addr, len, datagram.is_inet6())) };
    let disconnects = family == Some(libc::AF_UNSPEC);
    // An address that is none leaves it connected. To a socket of IPv6 one of IPv4 is one.
    let is_other = peer.is_some() || datagram.is_inet6() && family == Some(libc::AF_INET);
    if (disconnects || is_other) && datagram.disconnect(fd) {
        bound(fd, datagram);
        if disconnects {
            return Some(0);
        }
    }
    let peer = peer?;
    if peer.port == 0
        || !may_be_engines(peer.addr)
        || datagram.is_inet6() && peer.addr.is_v4() && is_v6only(fd)
    {
        return None;
    }
    let engine = engine_for(Call::Connect, peer)?;
    match datagram.connect_by_engine(fd, peer, engine) {
        Ok(()) => {
            tell(fd, engine);
            Some(0)
        }
        Err(error) => {
            refused(datagram, peer.addr, error);
            None
        }
    }
}

fn refused(datagram: &Datagram, peer: Addr, error: Errno) {
    match error {
        Errno::ENETUNREACH | Errno::EOPNOTSUPP => note_kernels(peer),
        // It is this socket that has not the way.
        _ => datagram.note_kernels(peer),
    }
}

/// Sends by an engine. `None`: by the kernel.
pub fn send(
    fd: c_int,
    datagram: &Datagram,
    to: Option<Endpoint>,
    from: &[IoSlice<'_>],
    (details, flags): (&Details, c_int),
) -> Option<ssize_t> {
    let is_named = to.is_some();
    let to = match to {
        Some(to) => to,
        None => datagram.connected()?.peer,
    };
    if to.port == 0 || !may_be_engines(to.addr) {
        if to.addr.is_multicast() || to.addr == BROADCAST {
            tell_groups(fd, datagram);
        }
        return None;
    }
    match datagram.is_engines(to.addr) {
        Some(true) => {}
        Some(false) => return None,
        None => ask(fd, datagram, to)?,
    }
    let waits = flags & libc::MSG_DONTWAIT == 0 && !datagram.nonblocking();
    match datagram.send_by_engine((fd, waits), to, details, from) {
        Ok(len) => Some(len as ssize_t),
        // The kernel has a way where the call names the address. It does not know whom an engine has connected the socket to.
        Err(Errno::ENETDOWN) if is_named => None,
        Err(error) => Some(fail(error) as ssize_t),
    }
}

/// Whether an engine has the way there, and the socket its lane to it.
#[cold]
fn ask(fd: c_int, datagram: &Datagram, to: Endpoint) -> Option<()> {
    let engine = engine_for(Call::Connect, to)?;
    match datagram.find_way(fd, to, engine) {
        Ok(()) => {
            tell(fd, engine);
            datagram.is_engines(to.addr)?.then_some(())
        }
        Err(error) => {
            refused(datagram, to.addr, error);
            None
        }
    }
}

/// Bytes of the largest packets that get to what an engine has connected the socket to: asked for, as that changes.
pub fn path_mtu(fd: c_int, datagram: &Datagram) -> Option<u16> {
    let peer = datagram.connected()?.peer;
    let engine = engine_for(Call::Connect, peer)?;
    datagram.open_by_engine(fd, (Use::Sends, peer), engine).ok()?;
    datagram.path_mtu(peer.addr)
}
