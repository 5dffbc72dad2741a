//! The lanes by which datagrams leave one socket. Knows no descriptor, signal, thread or process.

use super::options::{Details, SendOptions};
use crate::program_memory;
use crate::socket::slices::Gather;
use std::io::IoSlice;
use toe_abi::errno::Errno;
use toe_abi::lane::{DATAGRAM_MAX, DatagramHeader};
use toe_base::{Addr, Endpoint};
use toe_ring::LaneSender;
use toe_ring::lane::Offer;
use zerocopy::IntoBytes;

/// Lanes that one socket sends by.
pub(super) const LANES_MAX: usize = 16;

/// Datagrams in one record; the kernel says what becomes of more (EINVAL before Linux 6.9).
const SEGMENTS_MAX: usize = 64;

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on its way, or lost as Linux loses it: so many bytes.
    Done(usize),
    /// It goes by the kernel, as do those that follow until [`super::Datagram::takes`] says otherwise.
    Kernel,
    /// The lane is full: it may be sent again, or is given up by [`super::Datagram::send`].
    Full,
}

#[derive(Debug)]
struct Lane {
    end: LaneSender,
    to: Endpoint,
    /// Where what goes by it comes from.
    own: Addr,
}

impl Lane {
    /// What the datagram's record has to begin with, if anything. `Err`: a lane does not carry it so.
    fn header(
        &self,
        len: usize,
        options: &SendOptions,
        details: &Details,
    ) -> Result<Option<DatagramHeader>, ()> {
        let is_from_elsewhere = details.from.is_some_and(|from| !from.is_unspecified() && from != self.own);
        let segment = Some(options.segment(details)).filter(|each| *each != 0 && usize::from(*each) < len);
        let is_too_much = segment.is_some_and(|each| len.div_ceil(usize::from(each)) > SEGMENTS_MAX);
        if is_from_elsewhere || is_too_much || details.hop_limit.is_some() {
            return Err(());
        }
        let traffic_class = options.traffic_class(self.to.addr, details);
        let is_first = self.to.addr == self.to.addr.localhost();
        let own = Endpoint { addr: self.to.addr, port: 0 }.into();
        let header =
            DatagramHeader { own, segment: segment.unwrap_or(0), traffic_class, ..DatagramHeader::default() };
        Ok((segment.is_some() || traffic_class != 0 || !is_first).then_some(header))
    }
}

#[derive(Debug, Default)]
pub(super) struct Outgoing {
    lanes: Vec<Lane>,
    /// What the socket is connected to, as far as a lane goes there.
    connected: Option<Endpoint>,
    pub options: SendOptions,
}

impl Outgoing {
    pub fn is_unused(&self) -> bool {
        self.lanes.is_empty()
    }

    pub fn has_lane_to(&self, peer: Endpoint) -> bool {
        self.lanes.iter().any(|lane| lane.to == peer)
    }

    pub fn has_room(&self) -> bool {
        self.lanes.len() < LANES_MAX
    }

    /// `is_connected`: that is where datagrams without an address go. `own`: where they come from.
    pub fn add(&mut self, to: Endpoint, end: LaneSender, is_connected: bool, own: Addr) {
        if is_connected {
            self.connected = Some(to);
        }
        self.lanes.push(Lane { end, to, own });
    }

    /// Ends all lanes: what follows goes by the kernel.
    pub fn close(&mut self) {
        self.lanes.iter_mut().for_each(|lane| lane.end.close());
        *self = Outgoing::default();
    }

    fn lane_to(&mut self, to: Option<Endpoint>) -> Option<&mut Lane> {
        let to = to.or(self.connected)?;
        self.lanes.iter_mut().find(|lane| lane.to == to)
    }

    /// Whether a datagram to there would go by a lane.
    pub fn takes(&mut self, to: Option<Endpoint>) -> bool {
        self.lane_to(to).is_some_and(|lane| !matches!(lane.end.offer(0), Offer::Kernel))
    }

    /// EFAULT: the program's memory is not there.
    pub fn send(
        &mut self,
        to: Option<Endpoint>,
        from: &[IoSlice<'_>],
        details: &Details,
    ) -> Result<Sent, Errno> {
        let options = self.options;
        let Some(lane) = self.lane_to(to) else { return Ok(Sent::Kernel) };
        let mut gather = Gather::new(from);
        let len = gather.left();
        let bytes = u32::try_from(len).ok().filter(|bytes| *bytes <= DATAGRAM_MAX);
        let (Some(bytes), Ok(header)) = (bytes, lane.header(len, &options, details)) else {
            lane.end.divert();
            return Ok(Sent::Kernel);
        };
        let header_len = if header.is_some() { DatagramHeader::LEN } else { 0 };
        match lane.end.offer(header_len + bytes) {
            Offer::Lane { position } => {
                if let Some(header) = &header {
                    lane.end.lane().write(position, 0, header.as_bytes());
                }
                for (offset, piece) in lane.end.lane().pieces_from(position, header_len, bytes) {
                    let Ok(room) = lane.end.lane().region().lend(offset, piece) else {
                        return Ok(Sent::Kernel);
                    };
                    gather.empty(piece, |done, part| {
                        let to = room.as_ptr().cast::<u8>().cast_mut().wrapping_add(done);
                        // SAFETY: needed because the one is shared with another process and the other may not be there. Atomics
                        // may change under a shared reference; from `done` on there is room for as many bytes as `part` has.
                        unsafe { program_memory::copy(to, part.as_ptr(), part.len()) }
                    })?;
                }
                if lane.end.publish_as(header_len + bytes, header.is_some()) {
                    return Ok(Sent::Done(len));
                }
            }
            Offer::Full => return Ok(Sent::Full),
            Offer::Kernel => {}
        }
        self.forget_closed();
        Ok(Sent::Kernel)
    }

    /// A datagram of so many bytes for which there is no room.
    pub fn overflow(&mut self, to: Option<Endpoint>, len: usize) -> Sent {
        let is_lost = self.lane_to(to).is_some_and(|lane| !lane.end.overflow());
        if is_lost { Sent::Done(len) } else { Sent::Kernel }
    }

    fn forget_closed(&mut self) {
        self.lanes.retain(|lane| !lane.end.is_over());
        if self.lanes.is_empty() {
            self.connected = None;
        }
    }
}
