//! The joint to what [`crate::protocols`] holds: packets in and out, time.

use crate::counter::{Counter, Counters};
use crate::parts::IpLayer;
use crate::protocols::Protocols;
use crate::work::{ControlFrame, RxPacket, TxPacket};
use toe_base::{Instant, PortId};

impl IpLayer {
    pub(super) fn packet_arrives(
        &mut self,
        (protocols, counters): (&mut Protocols, &mut Counters),
        now: Instant,
        packet: &RxPacket<'_>,
    ) {
        // A shared address has the kernel's protocols, too.
        if self.ports[packet.port.index()].shared {
            return counters.add(Counter::DropProtocol);
        }
        match protocols.receive(now, packet) {
            Some(sent) => self.send_packets(counters, sent),
            None => counters.add(Counter::DropProtocol),
        }
    }

    pub(super) fn send_packets(&mut self, counters: &mut Counters, packets: Vec<(PortId, TxPacket)>) {
        for (port, packet) in packets {
            self.push_control(counters, port, ControlFrame::Packet(packet));
        }
    }
}
