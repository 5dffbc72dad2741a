//! Which stack has a UDP socket's datagrams (decision 0035): bind, connect and the first datagram to an address ask an engine, as connect and
//! listen do for TCP (`proto_stacks`). The socket stays the kernel's twin, so what it hears comes by the kernel's calls; what it sends by a
//! link of the engine's is handed over here. Called by `calls::address` and `calls::datagram`.

use crate::connect::{KNOWN, engine};
use crate::ffi::{fail, family, last_errno, read_endpoint, write_inet};
use crate::listen::bind_freely;
use crate::policy::{self, Call};
use crate::proto_stacks::ProtoStack;
use crate::real;
use crate::twin_name::{is_v6only, twin_address};
use crate::why::{self, Decided, Reason, Stack as On};
use core::ffi::{c_int, c_void};
use core::net::Ipv4Addr;
use libc::{sock_filter, sock_fprog, sockaddr, sockaddr_storage, socklen_t, ssize_t};
use std::io::IoSlice;
use toe::datagram::{Connected, Datagram, Details};
use toe::stack::EngineIdx;
use toe::{Errno, sys};
use toe_abi::attach::Use;
use toe_base::{Addr, Endpoint};

const BROADCAST: Addr = Addr::v4(Ipv4Addr::BROADCAST);

/// Whether an engine may have the way to an address, or hear there.
fn may_be_engines(addr: Addr) -> bool {
    !(addr.is_loopback() || addr.is_multicast() || addr.is_unspecified() || addr == BROADCAST)
}

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
    match datagram.open_by_engine(fd, (Use::Hears, Endpoint::UNSPECIFIED_V4), engine) {
        Ok(_) => tell(fd, engine),
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
    let disconnects = unsafe { family(addr, len) } == Some(libc::AF_UNSPEC);
    if let Some(before) = datagram.connected() {
        disconnect(fd, datagram, before);
        if disconnects {
            return Some(0);
        }
    }
    // SAFETY: as above.
    let peer = unsafe { read_endpoint(addr, len, datagram.is_inet6()) }?;
    if peer.port == 0
        || !may_be_engines(peer.addr)
        || datagram.is_inet6() && peer.addr.is_v4() && is_v6only(fd)
    {
        return None;
    }
    let engine = engine_for(Call::Connect, peer)?;
    let name = twin_address(fd)?;
    if name.port == 0 {
        match datagram.open_by_engine(fd, (Use::Sends, peer), engine) {
            // It has the name that Linux would give it.
            Ok(source) => bind_to(fd, datagram, Endpoint { addr: source, port: 0 })?,
            Err(error) => {
                refused(datagram, peer.addr, error);
                return None;
            }
        }
    }
    match datagram.open_by_engine(fd, (Use::Connects, peer), engine) {
        Ok(local) => {
            hear_only(fd, peer);
            let had_errors = sets_errors(fd, datagram.is_inet6());
            datagram.set_connected(Some(Connected { local, peer, had_errors }));
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

/// Binds a socket that has no name. `None`: it cannot be.
fn bind_to(fd: c_int, datagram: &Datagram, at: Endpoint) -> Option<()> {
    // SAFETY: all zeros are an address.
    let mut name: sockaddr_storage = unsafe { core::mem::zeroed() };
    let mut len = size_of::<sockaddr_storage>() as socklen_t;
    let place = (&raw mut name).cast::<sockaddr>();
    // SAFETY: both are locals.
    unsafe {
        write_inet(at.to_socket_addr(), datagram.is_inet6(), place, &raw mut len).ok()?;
        (bind_freely(fd, place, len) == 0).then_some(())
    }
}

fn disconnect(fd: c_int, datagram: &Datagram, before: Connected) {
    let nothing: c_int = 0;
    set_option(fd, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &nothing);
    if !before.had_errors {
        set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &nothing);
        if datagram.is_inet6() {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &nothing);
        }
    }
    datagram.set_connected(None);
    bound(fd, datagram);
}

fn set_option<T>(fd: c_int, level: c_int, name: c_int, value: &T) -> bool {
    let value = core::ptr::from_ref(value).cast::<c_void>();
    // SAFETY: the value is there, and as long as is said.
    unsafe { real::setsockopt(fd, level, name, value, size_of::<T>() as socklen_t) == 0 }
}

/// Errors are to come as they do to connected sockets. Whether the program has asked for them itself.
fn sets_errors(fd: c_int, inet6: bool) -> bool {
    let mut is_on: c_int = 0;
    let mut len = size_of::<c_int>() as socklen_t;
    let (level, name) =
        if inet6 { (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) } else { (libc::IPPROTO_IP, libc::IP_RECVERR) };
    // SAFETY: both are locals.
    unsafe { real::getsockopt(fd, level, name, (&raw mut is_on).cast(), &raw mut len) };
    let on: c_int = 1;
    set_option(fd, libc::IPPROTO_IP, libc::IP_RECVERR, &on);
    if inet6 {
        set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &on);
    }
    is_on != 0
}

/// Where the IP header of a datagram begins, for a filter (SKF_NET_OFF).
const NET: u32 = -0x10_0000i32 as u32;

/// The kernel keeps from the socket what does not come from there.
fn hear_only(fd: c_int, peer: Endpoint) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
    const LOAD_OCTET: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
    const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
    const EQUALS: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, k| sock_filter { code, jt: 0, jf: 0, k };
    let mut checks = Vec::with_capacity(20);
    let (version, at, octets) = match peer.addr.to_v4() {
        Some(v4) => (0x40, 12, v4.octets().to_vec()),
        None => (0x60, 8, peer.addr.to_v6().octets().to_vec()),
    };
    checks.extend([step(LOAD_OCTET, NET), step(AND, 0xf0), step(EQUALS, version)]);
    for (n, word) in octets.chunks_exact(4).enumerate() {
        let word = u32::from_be_bytes([word[0], word[1], word[2], word[3]]);
        checks.extend([step(LOAD, NET + at + 4 * n as u32), step(EQUALS, word)]);
    }
    // The datagram begins with the port that it was sent from.
    checks.extend([step(LOAD_HALF, 0), step(EQUALS, u32::from(peer.port))]);
    let keep = checks.len();
    for (n, check) in checks.iter_mut().enumerate() {
        if check.code == EQUALS {
            check.jf = (keep - n) as u8;
        }
    }
    checks.extend([step(RETURN, u32::MAX), step(RETURN, 0)]);
    let program = sock_fprog { len: checks.len() as u16, filter: checks.as_mut_ptr() };
    set_option(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program);
}

/// Sends by an engine. `None`: by the kernel.
pub fn send(
    fd: c_int,
    datagram: &Datagram,
    to: Option<Endpoint>,
    from: &[IoSlice<'_>],
    (details, flags): (&Details, c_int),
) -> Option<ssize_t> {
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
        Err(Errno::ENETDOWN) => None,
        Err(error) => Some(fail(error) as ssize_t),
    }
}

/// Whether an engine has the way there, and the socket its lane to it.
#[cold]
fn ask(fd: c_int, datagram: &Datagram, to: Endpoint) -> Option<()> {
    let engine = engine_for(Call::Connect, to)?;
    if twin_address(fd)?.port == 0 {
        if let Err(error) = datagram.open_by_engine(fd, (Use::Sends, to), engine) {
            refused(datagram, to.addr, error);
            return None;
        }
        let any = if datagram.is_inet6() { Addr::UNSPECIFIED_V6 } else { Addr::UNSPECIFIED_V4 };
        bind_to(fd, datagram, Endpoint { addr: any, port: 0 })?;
    }
    let purpose = match datagram.connected() {
        // After a fork the engine is told anew.
        Some(connected) if connected.peer == to => Use::Connects,
        _ => Use::Sends,
    };
    match datagram.open_by_engine(fd, (purpose, to), engine) {
        Ok(_) => {
            tell(fd, engine);
            datagram.is_engines(to.addr)?.then_some(())
        }
        Err(error) => {
            refused(datagram, to.addr, error);
            None
        }
    }
}

/// A call of the kernel's has failed. If that was by an error of what an engine sent, the queue that tells of it is the program's
/// only if it has asked for it. errno stays as it is.
pub fn failed(fd: c_int, datagram: &Datagram) {
    let before = last_errno();
    if before == Errno::EMSGSIZE {
        datagram.forget_paths();
    }
    if before == Errno::EAGAIN || datagram.connected().is_none_or(|connected| connected.had_errors) {
        return;
    }
    // SAFETY: all zeros are a message without any room.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    // Each error takes the place of one datagram at least.
    for _ in 0..1024 {
        // SAFETY: the message is a local.
        let got = unsafe { real::recvmsg(fd, &raw mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
        if got < 0 {
            break;
        }
    }
    crate::ffi::set_errno(c_int::from(before.0));
}

/// Octets of the largest packets that get to what an engine has connected the socket to: asked for, as that changes.
pub fn path_mtu(fd: c_int, datagram: &Datagram) -> Option<u16> {
    let peer = datagram.connected()?.peer;
    let engine = engine_for(Call::Connect, peer)?;
    datagram.open_by_engine(fd, (Use::Sends, peer), engine).ok()?;
    datagram.path_mtu(peer.addr)
}

/// What a connected socket is named, with the port that the kernel has.
pub fn local_name(fd: c_int, datagram: &Datagram) -> Option<Endpoint> {
    let connected = datagram.connected()?;
    twin_address(fd).map(|name| name.at(connected.local))
}

/// What the control data of a message says. `None`: something of it is not for an engine.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn details_of(message: *const libc::msghdr) -> Option<Details> {
    let mut details = Details::default();
    // SAFETY: the CMSG functions walk within the control data that the caller vouches for.
    unsafe {
        if (*message).msg_controllen == 0 {
            return Some(details);
        }
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let len = ((*header).cmsg_len as usize).checked_sub(libc::CMSG_LEN(0) as usize)?;
            let number = || (len >= 4).then(|| data.cast::<c_int>().read_unaligned());
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_PKTINFO) if len >= size_of::<libc::in_pktinfo>() => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    details.from = Some(Addr::v4(u32::from_be(info.ipi_spec_dst.s_addr).into()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) if len >= size_of::<libc::in6_pktinfo>() => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    let addr = core::net::Ipv6Addr::from(info.ipi6_addr.s6_addr);
                    let zone = if addr.is_unicast_link_local() { info.ipi6_ifindex } else { 0 };
                    details.from = Some(Addr::v6(addr, zone));
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    details.hop_limit = u8::try_from(number()?).ok();
                }
                (libc::IPPROTO_IP, libc::IP_TOS) if len >= 1 => {
                    // Linux takes an octet as well.
                    details.traffic_class = Some(if len >= 4 { number()? as u8 } else { data.read() });
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    details.traffic_class = u8::try_from(number()?).ok();
                }
                (libc::SOL_UDP, libc::UDP_SEGMENT) if len >= 2 => {
                    details.segment = Some(data.cast::<u16>().read_unaligned());
                }
                _ => return None,
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    Some(details)
}
