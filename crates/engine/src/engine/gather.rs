//! Large records go to their link from where the program put them ([`crate::udp::gather`]).

use super::Engine;
use super::datagrams::{Outgoing, Way};
use crate::counter::Counter;
use crate::udp::gather;
use core::sync::atomic::AtomicU8;
use toe_abi::lane::RecordHead;
use toe_base::{DatagramId, Instant, PortId};
use toe_wire::link::FrameSink;

impl Engine {
    /// A record whose octets are still where the host put them. Then [`Engine::gather_record`] or [`Engine::send_record`], once. `None`: it
    /// is lost, and counts as a datagram.
    pub fn read_record(
        &mut self,
        now: Instant,
        id: DatagramId,
        head: &RecordHead,
        len: usize,
    ) -> Option<Outgoing> {
        match self.read_head(now, id, head, len) {
            Ok(out) => Some(out),
            Err(reason) => {
                self.counters.add(reason);
                self.udp.sockets.send_failed(id, 1);
                None
            }
        }
    }

    /// By which port [`Engine::gather_record`] may send it.
    pub fn gathers(&self, out: &Outgoing) -> Option<PortId> {
        let Ok(Way::By(port, _)) = out.way else { return None };
        let link = &self.ports[port.index()].link;
        // Who watches is shown frames as they are handed to the link, whole.
        let can = !self.capture.on && gather::is_for(link, &out.datagram, out.len, out.segment);
        can.then_some(port)
    }

    /// The link of that port takes the octets from where they are, behind all that was queued for it. How many datagrams it was. `None`: nothing
    /// was sent, and they are to be copied.
    pub fn gather_record(
        &mut self,
        out: &Outgoing,
        octets: &[&[AtomicU8]],
        sink: &mut dyn FrameSink,
    ) -> Option<usize> {
        let Ok(Way::By(port, neighbour)) = out.way else { return None };
        let to_mac = self.ports[port.index()].neighbours.mac_without_doubt(neighbour)?;
        self.transmit_datagrams(port, sink, usize::MAX);
        let link = self.ports[port.index()].link;
        let is_next = !self.udp.has_queued(port.index());
        if !is_next || !gather::send(sink, (&link, to_mac), &out.datagram, octets, out.segment) {
            return None;
        }
        self.counters.add_many(Counter::TxDatagrams, out.count() as u64);
        Some(out.count())
    }
}
