//! What a UDP socket sends by a link of an engine's (decision 0035): the lane to the engine, what is known of where it leads, and what the
//! socket is connected to, which the kernel does not know. Asked for by the switch layer (`datagram_stack.rs`), which decides which stack has
//! what.

use super::Datagram;
use crate::program_memory;
use crate::socket::slices::Gather;
use crate::stack::{EngineIdx, Stack};
use crate::{sys, wait};
use rustix::fd::RawFd;
use rustix::net::sockopt;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request, Use, Way};
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, MtuDiscover, RecordHead};
use toe_base::{Addr, Endpoint};
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};
use zerocopy::IntoBytes;

/// Addresses of which it is known which stack has them; the oldest make room.
const KNOWN_MAX: usize = 32;
/// How often a full lane is looked at again, others being let run in between, before the engine is taken for stuck: about a second.
const FULL_LOOKS: u32 = 1 << 20;

/// Both ends of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    pub local: Addr,
    pub peer: Endpoint,
    /// It had IP_RECVERR before, which is the program's.
    pub had_errors: bool,
}

/// What the program says of a datagram beside where it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// IP_PKTINFO, IPV6_PKTINFO.
    pub from: Option<Addr>,
    /// UDP_SEGMENT.
    pub segment: Option<u16>,
    /// IP_TTL, IPV6_HOPLIMIT.
    pub hop_limit: Option<u8>,
    /// IP_TOS, IPV6_TCLASS.
    pub traffic_class: Option<u8>,
}

#[derive(Debug, Default)]
pub(super) struct ByEngine {
    end: Option<(LaneSender, &'static Stack)>,
    /// Which stack has the way there.
    known: Vec<Known>,
    connected: Option<Connected>,
    /// As setsockopt has set them: for IPv4 and IPv6. 0: the default.
    hop_limits: [u8; 2],
    traffic_classes: [u8; 2],
    /// By the number of a record.
    mtu_discover: [u8; 2],
    segment: u16,
}

/// What is known of the way to an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: Addr,
    /// Octets of the largest packets there, and on the engine's link, if the engine has the way.
    mtus: Option<[u16; 2]>,
}

impl ByEngine {
    /// In the child of a fork: the lane is the parent's, and what the engine knows is asked again.
    pub(super) fn leave_to_parent(&mut self) {
        self.end = None;
        self.known.clear();
    }

    /// The last descriptor is closed. `is_alone`: no other process can have the socket.
    pub(super) fn drop_all(&mut self, is_alone: bool) {
        if let Some((mut end, stack)) = self.end.take()
            && is_alone
        {
            end.close();
            // So that the name is free at once.
            let _ = stack.doorbell().ring_if_wanted();
        }
        *self = ByEngine::default();
    }

    fn close(&mut self) {
        if let Some((mut end, _)) = self.end.take() {
            end.close();
        }
    }

    fn note(&mut self, addr: Addr, mtus: Option<[u16; 2]>) {
        self.known.retain(|known| known.addr != addr);
        if self.known.len() >= KNOWN_MAX {
            self.known.remove(0);
        }
        self.known.push(Known { addr, mtus });
    }

    fn head(&self, to: Endpoint, details: &Details) -> RecordHead {
        let family = usize::from(to.addr.is_v6());
        RecordHead {
            peer: to.into(),
            own: details
                .from
                .filter(|from| !from.is_unspecified())
                .or(self.connected.map(|connected| connected.local))
                .map_or_else(Default::default, |addr| Endpoint { addr, port: 0 }.into()),
            segment: details.segment.unwrap_or(self.segment),
            hop_limit: details.hop_limit.unwrap_or(self.hop_limits[family]),
            traffic_class: details.traffic_class.unwrap_or(self.traffic_classes[family]),
            mtu_discover: self.mtu_discover[family],
            ..RecordHead::default()
        }
    }

    /// Whether a datagram fits the packets that get there, or may go in several.
    fn fits(&self, to: Addr, head: &RecordHead, len: usize) -> bool {
        let discover = MtuDiscover::decode(head.mtu_discover).unwrap_or_default();
        if discover.may_be_cut() {
            return true;
        }
        let known = self.known.iter().find(|known| known.addr == to);
        let Some([path, link]) = known.and_then(|known| known.mtus) else { return true };
        let mtu = usize::from(if discover.believes_routers() { path } else { link });
        let each = if head.segment == 0 { len } else { len.min(usize::from(head.segment)) };
        let headers = UDP_HEADER_LEN + if to.is_v4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
        headers + each <= mtu
    }

    /// `Ok(None)`: there is no room now.
    fn put(&mut self, head: &RecordHead, from: &[IoSlice<'_>]) -> Result<Option<usize>, Errno> {
        let Some((end, stack)) = &mut self.end else { return Err(Errno::ENETDOWN) };
        // One that was killed leaves the lane as it is.
        stack.look();
        if !stack.alive() {
            return Err(Errno::ENETDOWN);
        }
        let mut gather = Gather::new(from);
        let len = gather.left();
        let is_short = u32::try_from(len).is_ok_and(|len| len <= DATAGRAM_MAX);
        if !is_short {
            return Err(EMSGSIZE);
        }
        let whole = RecordHead::LEN + len as u32;
        let place = match end.offer(whole) {
            Offer::Lane { place } => place,
            Offer::Full => return Ok(None),
            Offer::Kernel => return Err(Errno::ENETDOWN),
        };
        end.lane().write(place, 0, head.as_bytes());
        for (offset, piece) in end.lane().pieces_from(place, RecordHead::LEN, len as u32) {
            let Ok(room) = end.lane().region().lend(offset, piece) else { return Err(Errno::ENETDOWN) };
            gather.empty(piece, |done, part| {
                let to = room.as_ptr().cast::<u8>().cast_mut().wrapping_add(done);
                // SAFETY: needed because the one is shared with the engine and the other may not be there. Atomics may change
                // under a shared reference; from `done` on there is room for as many octets as `part` has.
                unsafe { program_memory::copy(to, part.as_ptr(), part.len()) }
            })?;
        }
        if !end.publish(whole) {
            return Err(Errno::ENETDOWN);
        }
        let _ = stack.doorbell().ring_if_wanted();
        Ok(Some(len))
    }
}

const EMSGSIZE: Errno = Errno::EMSGSIZE;
const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;

impl Datagram {
    /// Whether anything of it goes by an engine.
    #[inline]
    pub fn has_engine(&self) -> bool {
        self.engine.load(Ordering::Relaxed)
    }

    /// Shows the socket to an engine. Which address that speaks to `peer` from; or why it does not.
    pub fn open_by_engine(
        &self,
        fd: RawFd,
        (purpose, peer): (Use, Endpoint),
        engine: EngineIdx,
    ) -> Result<Addr, Errno> {
        if crate::fork::is_vfork_child() || crate::confine::is_filtered() {
            return Err(Errno::ENETUNREACH);
        }
        let stack = Stack::get_or_why(engine)?;
        if purpose == Use::Connects {
            // What lay in the lane from the engine was for the socket as it was: it gets others.
            self.by_engine.lock().close();
        }
        let request = Request::OpenDatagrams { purpose, peer };
        let (reply, fds) = stack.request_fds(request, &[sys::borrow(fd)])?;
        let Reply::Datagrams { ring_len, source, path_mtu, link_mtu } = reply else {
            return Err(Errno::EPROTO);
        };
        if ring_len != 0 {
            let [from_engine, to_engine] = fds.as_slice() else { return Err(Errno::EPROTO) };
            let map = |file| LaneMemory::map(file, ring_len).map_err(|_| Errno::ENOMEM);
            let end = LaneSender::new(map(to_engine)?);
            self.hear_engine(map(from_engine)?, stack);
            let mut by_engine = self.by_engine.lock();
            by_engine.end = Some((end, stack));
            by_engine.read_options(fd);
            self.engine.store(true, Ordering::Relaxed);
        }
        let mut by_engine = self.by_engine.lock();
        if purpose != Use::Hears && by_engine.end.is_some() {
            by_engine.note(peer.addr, Some([path_mtu, link_mtu]));
        }
        Ok(source)
    }

    /// What comes by the engine's links may come by the lane, while somebody looks there. Else by the kernel.
    fn hear_engine(&self, memory: LaneMemory, stack: &'static Stack) {
        let mut incoming = self.incoming.lock();
        if !self.may_have(Way::Receives) || !incoming.has_room() {
            return memory.close();
        }
        self.session.store(std::ptr::from_ref(stack).cast_mut(), Ordering::Release);
        incoming.add_engine(LaneReceiver::new(memory));
        self.receives.store(true, Ordering::SeqCst);
    }

    /// Whether what goes there goes by the engine; `None`: that is to be asked.
    pub fn is_engines(&self, to: Addr) -> Option<bool> {
        let by_engine = self.by_engine.lock();
        by_engine.known.iter().find(|known| known.addr == to).map(|known| known.mtus.is_some())
    }

    /// Octets of the largest packets that get there by the engine, as far as is known.
    pub fn path_mtu(&self, to: Addr) -> Option<u16> {
        let by_engine = self.by_engine.lock();
        let known = by_engine.known.iter().find(|known| known.addr == to)?;
        known.mtus.map(|[path, _]| path)
    }

    /// Some path takes less than it did: the engine is asked again.
    pub fn forget_paths(&self) {
        self.by_engine.lock().known.clear();
    }

    /// The socket as it is named sends nothing there by an engine.
    pub fn note_kernels(&self, to: Addr) {
        self.by_engine.lock().note(to, None);
    }

    /// Sends by the engine. ENETDOWN: there is none any more.
    pub fn send_by_engine(
        &self,
        to: Endpoint,
        details: &Details,
        from: &[IoSlice<'_>],
        waits: bool,
    ) -> Result<usize, Errno> {
        let attempt = || {
            let mut by_engine = self.by_engine.lock();
            let head = by_engine.head(to, details);
            if !by_engine.fits(to.addr, &head, from.iter().map(|part| part.len()).sum()) {
                return Err(EMSGSIZE);
            }
            by_engine.put(&head, from)
        };
        let mut outcome = attempt();
        if outcome == Ok(None) && waits {
            outcome = wait::spin(&mut || attempt());
            for _ in 0..FULL_LOOKS {
                if outcome != Ok(None) {
                    break;
                }
                rustix::thread::sched_yield();
                outcome = attempt();
            }
        }
        match outcome {
            Ok(Some(len)) => Ok(len),
            Ok(None) => Err(Errno::EAGAIN),
            Err(Errno::ENETDOWN) => {
                self.lose_engine();
                Err(Errno::ENETDOWN)
            }
            Err(error) => Err(error),
        }
    }

    fn lose_engine(&self) {
        let mut by_engine = self.by_engine.lock();
        by_engine.leave_to_parent();
    }

    /// What it is connected to by an engine.
    pub fn connected(&self) -> Option<Connected> {
        if self.has_engine() { self.by_engine.lock().connected } else { None }
    }

    pub fn set_connected(&self, connected: Option<Connected>) {
        self.by_engine.lock().connected = connected;
    }

    /// Another process may get the socket.
    pub fn share(&self) {
        self.shared.store(true, Ordering::Relaxed);
    }

    /// The program has set an option that says how datagrams are sent.
    pub fn options_changed(&self, fd: RawFd) {
        if self.has_engine() {
            self.by_engine.lock().read_options(fd);
        }
    }
}

/// linux/udp.h.
const UDP_SEGMENT: libc::c_int = 103;

impl ByEngine {
    fn read_options(&mut self, fd: RawFd) {
        let socket = sys::borrow(fd);
        let small = |value: rustix::io::Result<u32>| value.map_or(0, |value| value as u8);
        self.hop_limits[0] = small(sockopt::ip_ttl(socket));
        self.traffic_classes[0] = sockopt::ip_tos(socket).unwrap_or(0);
        // Of a socket of IPv4 there is nothing to be read.
        self.hop_limits[1] = sockopt::ipv6_unicast_hops(socket).unwrap_or(0);
        self.traffic_classes[1] = small(sockopt::ipv6_tclass(socket));
        let number = |level, name| option(fd, level, name);
        let plus_one = |value: Option<i32>| value.and_then(|value| u8::try_from(value + 1).ok()).unwrap_or(0);
        self.mtu_discover[0] = plus_one(number(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER));
        self.mtu_discover[1] = plus_one(number(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER));
        self.segment = number(libc::IPPROTO_UDP, UDP_SEGMENT).map_or(0, |segment| segment as u16);
    }
}

/// An option that is a number and that rustix does not have.
fn option(fd: RawFd, level: libc::c_int, name: libc::c_int) -> Option<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    let args =
        [fd as usize, level as usize, name as usize, (&raw mut value).addr(), (&raw mut len).addr(), 0];
    // SAFETY: needed because there is no safe call for it. The kernel writes a number, and its length, to locals.
    let result = unsafe { sys::raw(libc::SYS_getsockopt, args) };
    (result == 0).then_some(value)
}
