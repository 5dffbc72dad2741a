//! Copies of packets for whoever watches (`toe capture`): frames of the ports, and what would be a frame where two
//! programs of the engine talk to each other.
//!
//! Without a capture each frame and each local segment pays one look at [`crate::hostif::captures::Capture::is_on`]. With one, a packet that its filter wants is
//! copied and handed out ([`crate::DriverRequest::Show`]).

use crate::counter::Counter;
use crate::flow::key::{FlowKey, KeyHolder};
use crate::ingress::facts::Known;
use crate::parts::Records;
use crate::work::{Sighting, SightingEnd};
use core::net::IpAddr;
use toe_abi::capture::{Direction, Facts};
use toe_base::{Addr, Endpoint, PortId};
use toe_wire::checksum::{Sum, pseudo_header_sum};
use toe_wire::eth::EtherType;
use toe_wire::ipv4::Protocol;
use toe_wire::link::{FrameSink, PartialChecksum, RxOffload, TxOffload};
use toe_wire::tcp;

impl Records<'_> {
    /// Why something was dropped since the last call.
    pub(super) fn take_drop(&mut self) -> Option<Counter> {
        let by_tcp = self.tcp.counters.take_drop().map(Counter::of_tcp);
        self.counters.take_drop().or(by_tcp)
    }

    /// Whether segments of a local connection are wanted.
    pub(super) fn is_watched(&self, key: &FlowKey) -> bool {
        [*key, key.reversed()].iter().any(|key| self.hostif.may_want(&self.local_sighting(key, None)))
    }

    /// A segment from `key.local` to `key.remote`, both here.
    pub(super) fn local_sighting(&self, key: &FlowKey, reason: Option<Counter>) -> Sighting {
        let facts = Facts {
            ethertype: if key.is_v4() { EtherType::Ipv4 } else { EtherType::Ipv6 }.raw(),
            addrs: Some((key.local_addr().ip(), key.remote_addr().ip())),
            protocol: Some(Protocol::Tcp.raw()),
            ports: Some((key.local.port, key.remote.port)),
            pids: [0; 2],
            dropped: reason.is_some(),
        };
        Sighting {
            port: None,
            direction: Direction::Local,
            facts,
            sender: self.end_of(key),
            receiver: self.end_of(&key.reversed()),
            reason,
        }
    }

    /// Who has the connection of this key, or the listener that it came in at or would come to.
    pub(super) fn end_of(&self, key: &FlowKey) -> Option<SightingEnd> {
        let listener = match self.flows.named(key) {
            Some(KeyHolder::TimeWait(_)) => None,
            Some(KeyHolder::Flow(idx)) => {
                let conn = &self.flows.get(idx).conn;
                if !conn.tenancy.owner().is_nobody() {
                    return Some(SightingEnd {
                        session: conn.tenancy.owner().session,
                        fd: conn.tenancy.owner().fd,
                        listens: false,
                    });
                }
                conn.tenancy.listener()
            }
            None => self.listeners.find(key.scope, key.local),
        };
        let holder = self.listeners.get(listener?)?.holders.list.first()?;
        Some(SightingEnd { session: holder.session, fd: holder.fd, listens: true })
    }

    /// Shows a frame of which it is known now what became of what was in it.
    #[inline]
    pub(super) fn show_unsettled(&mut self) {
        let Some((mut sighting, bytes)) = self.hostif.capture.unsettled.take() else { return };
        sighting.reason = self.take_drop();
        sighting.facts.dropped = sighting.reason.is_some();
        if self.hostif.may_want(&sighting) {
            self.hostif.capture.show(sighting, bytes);
        }
    }
}

impl Known {
    /// The connection of a frame, from this end; the zone is of its port's link.
    pub(super) fn key(&self, direction: Direction, zone: u32) -> Option<FlowKey> {
        let (from, to) = self.facts.addrs?;
        let (from_port, to_port) =
            self.facts.ports.filter(|_| self.facts.protocol == Some(Protocol::Tcp.raw()))?;
        let in_zone = |addr| match addr {
            IpAddr::V4(addr) => Addr::v4(addr),
            IpAddr::V6(addr) => Addr::v6(addr, zone),
        };
        let (from, to) = (Endpoint::new(in_zone(from), from_port), Endpoint::new(in_zone(to), to_port));
        Some(match direction {
            Direction::In => FlowKey::new(to, from),
            Direction::Out | Direction::Local => FlowKey::new(from, to),
        })
    }

    pub(super) fn sighting(
        &self,
        port: Option<PortId>,
        direction: Direction,
        [sender, receiver]: [Option<SightingEnd>; 2],
        reason: Option<Counter>,
    ) -> Sighting {
        let facts = Facts { dropped: reason.is_some(), ..self.facts };
        Sighting { port, direction, facts, sender, receiver, reason }
    }

    /// A frame that never left the machine may hold the pseudo-header's sum where the checksum belongs.
    pub(super) fn unfinished_checksum(&self, frame: &[u8], offload: RxOffload) -> Option<PartialChecksum> {
        let (start, end) = self.transport.filter(|_| offload.checksum_ok)?;
        let (from, to) = self.facts.addrs?;
        let at = tcp::CHECKSUM_OFFSET;
        let is_tcp = self.facts.protocol == Some(Protocol::Tcp.raw()) && end == frame.len();
        let field = frame.get(start + usize::from(at)..)?.first_chunk::<2>().filter(|_| is_tcp)?;
        let len = u32::try_from(end - start).ok()?;
        let pseudo = pseudo_header_sum(from, to, Protocol::Tcp.raw(), len).folded();
        (u16::from_be_bytes(*field) == pseudo).then_some(PartialChecksum { start: start as u16, offset: at })
    }
}

/// Does what a link would do.
pub(super) fn finish_checksum(frame: &mut [u8], at: PartialChecksum) {
    let (start, field) = (usize::from(at.start), usize::from(at.start) + usize::from(at.offset));
    if frame.len() >= field + 2 {
        let sum = Sum::of(&frame[start..]).checksum();
        frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Keeps a copy of each frame that goes on to the port.
pub(super) struct CopyingSink<'a> {
    pub(super) sink: &'a mut dyn FrameSink,
    pub(super) copies: &'a mut Vec<Vec<u8>>,
    /// The one that is being filled.
    pub(super) frame: Vec<u8>,
}

impl FrameSink for CopyingSink<'_> {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.sink.frame(len)?;
        self.frame = vec![0; len];
        Some(&mut self.frame)
    }

    fn commit(&mut self, offload: TxOffload) {
        let mut frame = core::mem::take(&mut self.frame);
        let Some(room) = self.sink.frame(frame.len()) else { return };
        room.copy_from_slice(&frame);
        self.sink.commit(offload);
        // What the link fills in, so that nobody takes the copy for broken.
        if let Some(partial) = offload.checksum {
            finish_checksum(&mut frame, partial);
        }
        self.copies.push(frame);
    }
}

/// A frame for nobody but the capture.
pub(super) struct MadeFrame(pub(super) Vec<u8>);

impl FrameSink for MadeFrame {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0 = vec![0; len];
        Some(&mut self.0)
    }

    fn commit(&mut self, _: TxOffload) {}
}
