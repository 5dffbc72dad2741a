//! What a UDP socket sends by a link of an engine's (decision 0035): the lane to the engine, what is known of where it leads, and what the
//! socket is connected to, which the kernel does not know. Asked for by the switch layer (`datagram_stack.rs`), which decides which stack has
//! what.

use super::options::{Details, SendOptions};
use super::{Datagram, room};
use crate::program_memory;
use crate::socket::slices::Gather;
use crate::stack::{EngineIdx, Stack};
use crate::{sys, wait};
use rustix::fd::RawFd;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use toe_abi::attach::{Reply, Request, Use, Way};
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, LaneLayout, MtuDiscover, RecordHead};
use toe_base::{Addr, Endpoint};
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};
use zerocopy::IntoBytes;

/// Addresses of which it is known which stack has them; the oldest make room.
const KNOWN_MAX: usize = 32;

/// Both ends of a connected socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    pub local: Addr,
    pub peer: Endpoint,
    /// It had IP_RECVERR before, which is the program's.
    pub had_errors: bool,
}

#[derive(Debug, Default)]
pub(super) struct ByEngine {
    end: Option<(LaneSender, &'static Stack)>,
    /// Which stack has the way there.
    known: Vec<Known>,
    connected: Option<Connected>,
    /// The last call found no room, and was told so.
    refused: bool,
    pub(super) options: SendOptions,
}

/// What is known of the way to an address.
#[derive(Clone, Copy, Debug)]
struct Known {
    addr: Addr,
    /// Bytes of the largest packets there, and on the engine's link, if the engine has the way.
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
        RecordHead {
            peer: to.into(),
            own: details
                .from
                .filter(|from| !from.is_unspecified())
                .or(self.connected.map(|connected| connected.local))
                .map_or_else(Default::default, |addr| Endpoint { addr, port: 0 }.into()),
            segment: self.options.segment(details),
            hop_limit: self.options.hop_limit(to.addr, details),
            traffic_class: self.options.traffic_class(to.addr, details),
            mtu_discover: self.options.mtu_discover(to.addr),
            ..RecordHead::default()
        }
    }

    /// EMSGSIZE: a datagram is too large for the packets that get there, and may not go in several, as no part of a large one may
    /// (UDP_SEGMENT). EINVAL: those are too many. As Linux (udp_send_skb).
    fn may_go(&self, to: Addr, head: &RecordHead, len: usize) -> Result<(), Errno> {
        let discover = MtuDiscover::decode(head.mtu_discover).unwrap_or_default();
        let segment = usize::from(head.segment);
        if segment == 0 && discover.may_be_cut() {
            return Ok(());
        }
        let known = self.known.iter().find(|known| known.addr == to);
        if let Some([path, link]) = known.and_then(|known| known.mtus) {
            let mtu = usize::from(if discover.believes_routers() { path } else { link });
            let each = if segment == 0 { len } else { len.min(segment) };
            let headers = UDP_HEADER_LEN + if to.is_v4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
            if headers + each > mtu {
                return Err(EMSGSIZE);
            }
        }
        if segment > 0 && len > segment * SEGMENTS_MAX { Err(Errno::EINVAL) } else { Ok(()) }
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
                // under a shared reference; from `done` on there is room for as many bytes as `part` has.
                unsafe { program_memory::copy(to, part.as_ptr(), part.len()) }
            })?;
        }
        if !end.publish(whole) {
            return Err(Errno::ENETDOWN);
        }
        let _ = stack.doorbell().ring_if_wanted();
        self.refused = false;
        Ok(Some(len))
    }
}

const EMSGSIZE: Errno = Errno::EMSGSIZE;
/// Datagrams in one call (Linux: UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 128;
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
        if crate::fork::is_vfork_child() || crate::sys::is_filtered() {
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
            let map = |file, ring_len| LaneMemory::map(file, ring_len).map_err(|_| Errno::ENOMEM);
            let (to, from) =
                (map(to_engine, ring_len)?, map(from_engine, LaneLayout::from_engine(ring_len))?);
            stack.request(Request::DatagramsMapped, &[]).inspect_err(|_| {
                // An engine that did not answer in time may hear it yet: nobody is here.
                to.close();
                from.close();
            })?;
            let end = LaneSender::new(to);
            self.hear_engine(from, stack);
            let mut by_engine = self.by_engine.lock();
            by_engine.end = Some((end, stack));
            by_engine.options = SendOptions::read(fd);
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

    /// Bytes of the largest packets that get there by the engine, as far as is known.
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

    /// Sends by the engine, and waits for room in the lane if it `waits`: see [`room`]. EAGAIN: there is none. ENETDOWN: there is no engine any
    /// more.
    pub fn send_by_engine(
        &self,
        (fd, waits): (RawFd, bool),
        to: Endpoint,
        details: &Details,
        from: &[IoSlice<'_>],
    ) -> Result<usize, Errno> {
        Gather::prepare_all(from);
        let mut attempt = || {
            let mut by_engine = self.by_engine.lock();
            let head = by_engine.head(to, details);
            let len = from.iter().fold(0usize, |len, part| len.saturating_add(part.len()));
            if len > DATAGRAM_MAX as usize {
                return Err(EMSGSIZE);
            }
            self.may_send(head.segment != 0, || by_engine.may_go(to.addr, &head, len))?;
            by_engine.put(&head, from)
        };
        let mut outcome = attempt().transpose();
        if outcome.is_none() {
            outcome = wait::spin(&mut attempt).transpose();
        }
        let sent = outcome.unwrap_or_else(|| match waits {
            true => room::wait_for(fd, &mut attempt),
            false => self.send_without_room(fd, &mut attempt),
        });
        if sent == Err(Errno::ENETDOWN) {
            self.lose_engine();
        }
        sent
    }

    #[cold]
    fn send_without_room(
        &self,
        fd: RawFd,
        attempt: &mut dyn FnMut() -> Result<Option<usize>, Errno>,
    ) -> Result<usize, Errno> {
        let again = std::mem::replace(&mut self.by_engine.lock().refused, true);
        room::look_again(fd, again, attempt)
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
}
