//! What a program's descriptor is. On the user's own thread: looking at it takes locks that the program may hold, and it
//! ends here, which may take as long as whoever made it likes.

use super::ask::Evidence;
use super::watch::{Presented, TwinWatch, monotonic};
use crate::anchors::{Keeper, identity_of};
use crate::policy::Named;
use crate::sys;
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketType, ipproto, sockopt};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use toe_abi::attach::Request;
use toe_abi::capture::{FILTER_LEN_MAX, Filter};
use toe_abi::errno::Errno;
use toe_base::Endpoint;
use toe_engine::control::names::Twin;
use toe_engine::udp;

/// States of a connection as TCP_INFO has them (linux/tcp.h).
const TCP_CLOSE: u8 = 7;
const TCP_LISTEN: u8 = 10;

/// What `request` rests on, and the end of the descriptor that came with it.
pub(super) fn of(
    request: &Request,
    presented: Option<OwnedFd>,
    keeper: &mut Keeper,
    watch: &TwinWatch,
) -> Evidence {
    let found = match *request {
        Request::Hello { .. } => session_dir(keeper),
        Request::ShowTwin => presented.ok_or(Errno::EBADF).and_then(|presented| twin(&presented, watch)),
        Request::AskLane { .. } => presented
            .ok_or(Errno::EBADF)
            .and_then(|presented| datagram_socket(&presented).map(Evidence::Datagram)),
        Request::OpenDatagrams { .. } => {
            presented.ok_or(Errno::EBADF).and_then(|presented| named_datagram_socket(&presented, watch))
        }
        Request::Claim { .. } | Request::Recognise => presented
            .ok_or(Errno::EBADF)
            .and_then(|presented| identity_of(&presented).map(Evidence::Object).map_err(|_| Errno::ENOENT)),
        // Whose it is, in this process's user namespace, whatever the number is that its maker has for him.
        Request::Admit { uid } => match presented {
            Some(presented) => user_of(&presented),
            None => Ok(Evidence::User(Named::ByNumber(uid))),
        },
        Request::Capture { filter_len: len @ 1.., .. } => filter(presented, len),
        _ => Ok(Evidence::None),
    };
    found.unwrap_or_else(Evidence::Refused)
}

/// Whose a thing is. Memory alone has seals; a file may be anybody's whom the process that shows it can read.
fn user_of(presented: &OwnedFd) -> Result<Evidence, Errno> {
    let uid = rustix::fs::fstat(presented).map_err(|_| Errno::EBADF)?.st_uid;
    let is_memory = rustix::fs::fcntl_get_seals(presented).is_ok();
    Ok(Evidence::User(if is_memory { Named::ByMemory(uid) } else { Named::ByNumber(uid) }))
}

fn session_dir(keeper: &mut Keeper) -> Result<Evidence, Errno> {
    let session_dir = keeper.make_session_dir().map_err(|error| {
        tracing::warn!(%error, "no directory for a session's anchors");
        Errno::ENOMEM
    })?;
    Ok(Evidence::SessionDir(session_dir))
}

/// A kernel socket as evidence that its owner may have the port: one that holds it and does nothing else.
fn twin(presented: &OwnedFd, watch: &TwinWatch) -> Result<Evidence, Errno> {
    let invalid = |_| Errno::EINVAL;
    // Before it is looked at: of two that cannot both be there the engine believes in the one that was seen last.
    let seen = monotonic();
    let is_tcp = sockopt::socket_type(presented) == Ok(SocketType::STREAM)
        && matches!(sockopt::socket_domain(presented), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_protocol(presented) == Ok(Some(ipproto::TCP));
    if !is_tcp {
        return Err(Errno::EINVAL);
    }
    // Its owner can change it between two looks, so it is asked what it does before and after it is asked where: a name
    // that is not its own is only of one that neither listens nor has a port.
    let standing = standing_of(presented)?;
    let local = rustix::net::getsockname(presented).map_err(invalid)?;
    let local = SocketAddr::try_from(local).map_err(invalid)?;
    // Its device is its own; a name of the engine's is one of all devices.
    if local.port() == 0 || sys::device_of(presented) != Some(0) || is_link_local(local) {
        return Err(Errno::EINVAL);
    }
    let netns = sys::netns_of(presented).ok_or(Errno::EINVAL)?;
    let identity = sockopt::socket_cookie(presented).map_err(invalid)?;
    if standing_of(presented)? != standing {
        return Err(Errno::EINVAL);
    }
    let listens = standing == Standing::Listens;
    let twin = Twin {
        local: Endpoint::from(local),
        v6_only: local.is_ipv6() && sockopt::ipv6_v6only(presented) != Ok(false),
        identity,
        netns,
        uid: rustix::fs::fstat(presented).map_err(invalid)?.st_uid,
        shares_port: sockopt::socket_reuseport(presented).unwrap_or(false),
        reuses: sockopt::socket_reuseaddr(presented).unwrap_or(false),
        listens,
        seen,
    };
    watch.add(presented, identity, Presented { local: twin.local, netns, listens })?;
    Ok(Evidence::Twin(twin))
}

/// A UDP socket as it is now. What it says of itself its owner may change afterwards; who is harmed by that is his own user.
fn datagram_socket(presented: &OwnedFd) -> Result<udp::Presented, Errno> {
    let invalid = |_| Errno::EINVAL;
    let is_udp = sockopt::socket_type(presented) == Ok(SocketType::DGRAM)
        && matches!(sockopt::socket_domain(presented), Ok(AddressFamily::INET | AddressFamily::INET6))
        && sockopt::socket_protocol(presented) == Ok(Some(ipproto::UDP));
    if !is_udp || sys::device_of(presented) != Some(0) {
        return Err(Errno::EINVAL);
    }
    let endpoint = |addr| SocketAddr::try_from(addr).map(Endpoint::from).map_err(invalid);
    let local = endpoint(rustix::net::getsockname(presented).map_err(invalid)?)?;
    let peer = match rustix::net::getpeername(presented) {
        Ok(Some(peer)) => Some(endpoint(peer)?),
        Err(rustix::io::Errno::NOTCONN) => None,
        _ => return Err(Errno::EINVAL),
    };
    let shares_port = |asked: rustix::io::Result<bool>| asked.map_err(invalid);
    Ok(udp::Presented {
        local,
        peer,
        v6_only: sockopt::socket_domain(presented) == Ok(AddressFamily::INET6)
            && sockopt::ipv6_v6only(presented) != Ok(false),
        identity: sockopt::socket_cookie(presented).map_err(invalid)?,
        netns: sys::netns_of(presented).ok_or(Errno::EINVAL)?,
        shares_port: shares_port(sockopt::socket_reuseaddr(presented))?
            || shares_port(sockopt::socket_reuseport(presented))?,
        receive_buffer: u32::try_from(sockopt::socket_recv_buffer_size(presented).map_err(invalid)?)
            .map_err(|_| Errno::EINVAL)?,
    })
}

/// The same, watched if it has a port, which is its until it is gone.
fn named_datagram_socket(presented: &OwnedFd, watch: &TwinWatch) -> Result<Evidence, Errno> {
    let socket = datagram_socket(presented)?;
    if socket.local.port != 0 {
        let named = Presented { local: socket.local, netns: socket.netns, listens: false };
        watch.add(presented, socket.identity, named)?;
    }
    Ok(Evidence::Datagram(socket))
}

/// What a socket that has a port does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Listens,
    Bound,
}

fn standing_of(presented: &OwnedFd) -> Result<Standing, Errno> {
    match sys::tcp_state(presented) {
        Some(TCP_LISTEN) => Ok(Standing::Listens),
        Some(TCP_CLOSE) if holds_its_port(presented) => Ok(Standing::Bound),
        // Connected, or accepted: who has one connection of a port does not have the port.
        _ => Err(Errno::EINVAL),
    }
}

/// Whether a socket that is not connected has the port that it names. One that *was* a connection still names the port
/// and has it no more; such a socket can be bound (and then says so no longer), while one that has a port cannot.
fn holds_its_port(presented: &OwnedFd) -> bool {
    let any: SocketAddr = match sockopt::socket_domain(presented) {
        Ok(AddressFamily::INET) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        _ => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    rustix::net::bind(presented, &any) == Err(rustix::io::Errno::INVAL)
}

/// Whether the address is of one link only, which binds the socket to it.
fn is_link_local(local: SocketAddr) -> bool {
    matches!(local, SocketAddr::V6(v6) if v6.ip().is_unicast_link_local())
}

/// Memory of the kernel's own whose length is settled: nothing that happens to it makes anybody wait, or costs more than
/// it does now.
fn memory(presented: Option<OwnedFd>, len: u32, len_max: u32) -> Result<OwnedFd, Errno> {
    if len > len_max {
        return Err(Errno::EINVAL);
    }
    let presented = presented.ok_or(Errno::EBADF)?;
    let settled = SealFlags::GROW | SealFlags::SHRINK;
    // Only files of the kernel's shared memory have seals to speak of.
    let seals = rustix::fs::fcntl_get_seals(&presented).map_err(|_| Errno::EINVAL)?;
    if !seals.contains(settled) {
        rustix::fs::fcntl_add_seals(&presented, settled).map_err(|_| Errno::EINVAL)?;
    }
    let size = rustix::fs::fstat(&presented).map_err(|_| Errno::EINVAL)?.st_size;
    let size = u32::try_from(size).map_err(|_| Errno::EINVAL)?;
    let page = rustix::param::page_size() as u32;
    if size < len || size > len_max.next_multiple_of(page) {
        return Err(Errno::EINVAL);
    }
    Ok(presented)
}

fn filter(presented: Option<OwnedFd>, len: u32) -> Result<Evidence, Errno> {
    let memory = memory(presented, len, FILTER_LEN_MAX)?;
    let mut bytes = vec![0; len as usize];
    let got = rustix::io::pread(&memory, bytes.as_mut_slice(), 0).map_err(|_| Errno::EINVAL)?;
    let text = std::str::from_utf8(&bytes[..got]).map_err(|_| Errno::EINVAL)?;
    Filter::parse(text).map(Evidence::Filter).map_err(|_| Errno::EINVAL)
}
