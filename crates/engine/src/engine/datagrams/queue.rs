//! Datagrams that wait for their port, or for their neighbour's address.

use super::UdpPlanes;
use crate::counter::Counter;
use crate::parts::LinkPlanes;
use crate::work::TxDatagram;
use toe_base::PortId;
use toe_wire::link::{FrameSink, MacAddr};

impl LinkPlanes<'_> {
    /// Whether there was room for it.
    pub fn queue(&mut self, port: PortId, to_mac: MacAddr, datagram: &TxDatagram, text: &[u8]) -> bool {
        let (link, ident) = (self.ip.ports[port.index()].link, self.udp.next_ident());
        match self.udp.queue(port.index()).push(&link, to_mac, datagram, text, ident) {
            0 => {
                self.counters.add(Counter::DropDatagramQueueFull);
                return false;
            }
            1 => {}
            frames => self.counters.add_many(Counter::TxFragments, frames as u64),
        }
        self.counters.add(Counter::TxDatagrams);
        true
    }

    /// The neighbour is known now: what waited for it goes.
    pub fn may_go(&mut self, port: PortId, neighbour: u16, to_mac: MacAddr) {
        for (datagram, text) in self.udp.waiting.take(port, neighbour) {
            self.queue(port, to_mac, &datagram, &text);
        }
    }

    /// It does not answer.
    pub fn drop_waiting(&mut self, port: PortId, neighbour: u16) {
        for _ in self.udp.waiting.take(port, neighbour) {
            self.counters.add(Counter::DropDatagramNoNeighbour);
        }
    }
}

impl UdpPlanes<'_> {
    pub fn transmit(&mut self, port: PortId, sink: &mut dyn FrameSink, budget: usize) -> usize {
        if self.udp.has_queued(port.index()) { self.udp.queue(port.index()).send(sink, budget) } else { 0 }
    }
}
