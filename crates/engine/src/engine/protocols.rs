//! The joint to what [`crate::protocols`] holds: packets in and out, time.

use super::Engine;
use crate::counter::{Counter, Counters};
use crate::parts::IpLayer;
use crate::work::{ControlFrame, RxPacket, TxPacket};
use toe_base::{Instant, PortId};

impl Engine {
    pub(super) fn packet_arrives(&mut self, now: Instant, packet: &RxPacket<'_>) {
        // A shared address has the kernel's protocols, too.
        if self.ip.ports[packet.port.index()].shared {
            return self.counters.add(Counter::DropProtocol);
        }
        match self.protocols.receive(now, packet) {
            Some(sent) => self.ip.send_packets(&mut self.counters, sent),
            None => self.counters.add(Counter::DropProtocol),
        }
    }

    pub(super) fn protocols_timeout(&mut self, now: Instant) {
        if self.protocols.next_deadline() <= now {
            let sent = self.protocols.on_timeout(now);
            self.ip.send_packets(&mut self.counters, sent);
        }
    }
}

impl IpLayer {
    fn send_packets(&mut self, counters: &mut Counters, packets: Vec<(PortId, TxPacket)>) {
        for (port, packet) in packets {
            self.push_control(counters, port, ControlFrame::Packet(packet));
        }
    }
}
