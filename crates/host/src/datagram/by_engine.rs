//! What a UDP socket sends by a link of an engine's (decision 0035): the lane to the engine, what is known of where it leads, and what the
//! socket is connected to, which the kernel does not know. Asked for by the switch layer (`datagram_stack.rs`), which decides which stack has
//! what.

use crate::datagram::options::{Details, SendOptions};
use crate::program_memory;
use crate::session::Session;
use crate::socket::slices::Gather;
use std::io::IoSlice;
use toe_abi::errno::Errno;
use toe_abi::lane::{DatagramHeader, MtuDiscover};
use toe_base::{Addr, Endpoint};
use toe_ring::LaneSender;
use toe_ring::lane::Offer;
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
    pub(super) end: Option<(LaneSender, &'static Session)>,
    /// Which stack has the way there.
    pub(super) known: Vec<Known>,
    pub(super) connected: Option<Connected>,
    /// The last call found no room, and was told so.
    pub(super) refused: bool,
    pub(super) options: SendOptions,
}

/// What is known of the way to an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) addr: Addr,
    /// Bytes of the largest packets there, and on the engine's link, if the engine has the way.
    pub(super) mtus: Option<[u16; 2]>,
}

impl ByEngine {
    /// In the child of a fork: the lane is the parent's, and what the engine knows is asked again.
    pub(super) fn leave_to_parent(&mut self) {
        self.end = None;
        self.known.clear();
    }

    /// The last descriptor is closed. `is_alone`: no other process can have the socket.
    pub(super) fn drop_all(&mut self, is_alone: bool) {
        if let Some((mut end, session)) = self.end.take()
            && is_alone
        {
            end.close();
            // So that the name is free at once.
            let _ = session.doorbell().ring_if_wanted();
        }
        *self = ByEngine::default();
    }

    pub(super) fn close(&mut self) {
        if let Some((mut end, _)) = self.end.take() {
            end.close();
        }
    }

    pub(super) fn note(&mut self, addr: Addr, mtus: Option<[u16; 2]>) {
        self.known.retain(|known| known.addr != addr);
        if self.known.len() >= KNOWN_MAX {
            self.known.remove(0);
        }
        self.known.push(Known { addr, mtus });
    }

    pub(super) fn header(&self, to: Endpoint, details: &Details) -> DatagramHeader {
        DatagramHeader {
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
            ..DatagramHeader::default()
        }
    }

    /// EMSGSIZE: a datagram is too large for the packets that get there, and may not go in several, as no part of a large one may
    /// (UDP_SEGMENT). EINVAL: those are too many. As Linux (udp_send_skb).
    pub(super) fn may_go(&self, to: Addr, header: &DatagramHeader, len: usize) -> Result<(), Errno> {
        let discover = MtuDiscover::decode(header.mtu_discover).unwrap_or_default();
        let segment = usize::from(header.segment);
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

    /// Whose its end is.
    pub(super) fn session(&self) -> Option<&'static Session> {
        self.end.as_ref().map(|(_, session)| *session)
    }

    /// `Ok(None)`: there is no room now.
    pub(super) fn put(
        &mut self,
        header: &DatagramHeader,
        from: &[IoSlice<'_>],
    ) -> Result<Option<usize>, Errno> {
        let Some((end, session)) = &mut self.end else { return Err(Errno::ENETDOWN) };
        if !session.alive() {
            return Err(Errno::ENETDOWN);
        }
        let mut gather = Gather::new(from);
        let len = gather.left();
        let whole = DatagramHeader::LEN + len as u32;
        let position = match end.offer(whole) {
            Offer::Lane { position } => position,
            Offer::Full => return Ok(None),
            Offer::Kernel => return Err(Errno::ENETDOWN),
        };
        end.lane().write(position, 0, header.as_bytes());
        for (offset, piece) in end.lane().pieces_from(position, DatagramHeader::LEN, len as u32) {
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
        let _ = session.doorbell().ring_if_wanted();
        self.refused = false;
        Ok(Some(len))
    }
}

pub(super) const EMSGSIZE: Errno = Errno::EMSGSIZE;
/// Datagrams in one call (Linux: UDP_MAX_SEGMENTS).
const SEGMENTS_MAX: usize = 128;
const UDP_HEADER_LEN: usize = 8;
const IPV4_HEADER_LEN: usize = 20;
const IPV6_HEADER_LEN: usize = 40;
