//! Datagrams and ICMP errors in: whom they are for, and what becomes of those for nobody.

use super::UdpPlanes;
use crate::counter::Counter;
use crate::udp::errors;
use crate::udp::sockets::Receiver;
use crate::work::{Delivered, ForSocket, HandedOver, Incoming, RxDatagram, RxDatagramError};
use toe_base::{Instant, PortId};
use toe_wire::link::FrameTail;

impl UdpPlanes<'_> {
    /// What the driver is to hand over. `tail`: of a large frame only the headers were read.
    pub fn arrives<'f>(
        &mut self,
        now: Instant,
        port: Option<PortId>,
        mut datagram: RxDatagram<'f>,
        tail: Option<(&'f dyn FrameTail, usize)>,
    ) -> Option<Incoming<'f>> {
        let len = datagram.text.len();
        datagram.segment = datagram.segment.filter(|segment| usize::from(*segment) < len);
        let (receiver, socket) = self.udp.sockets.find(datagram.to(), datagram.from());
        let to = match receiver {
            Receiver::Nobody => {
                self.nobodys(now, port, datagram, tail);
                return None;
            }
            Receiver::One(id) => Some(id),
            Receiver::Several => None,
        };
        let mut one = ForSocket::new(to, socket, datagram);
        one.tail = tail;
        Some(Incoming::Datagram(one))
    }

    fn nobodys(
        &mut self,
        now: Instant,
        port: Option<PortId>,
        mut datagram: RxDatagram<'_>,
        tail: Option<(&dyn FrameTail, usize)>,
    ) {
        if let Some((tail, at)) = tail
            && !tail.read(at, datagram.text.to_mut())
        {
            self.counters.add(Counter::DropTruncated);
            return;
        }
        let count = datagram.count() as u64;
        self.counters.add_many(Counter::RxDatagrams, count);
        self.counters.add_many(Counter::DropNoSocket, count);
        // A shared address has the kernel's sockets, too.
        let Some(port) = port.filter(|port| !self.ip.ports[port.index()].shared) else { return };
        let Some(len) = datagram.segment else { return self.answer_unknown_port(now, port, &datagram) };
        for text in datagram.text.chunks(usize::from(len).max(1)) {
            // In its packet it had other headers.
            let one = RxDatagram { text: text.into(), headers: &[], segment: None, ..datagram };
            self.answer_unknown_port(now, port, &one);
        }
    }

    fn answer_unknown_port(&mut self, now: Instant, port: PortId, datagram: &RxDatagram<'_>) {
        if self.udp.unreachables.allows(now) {
            self.counters.add(Counter::Unreachables);
            self.ip.push_control(self.counters, port, errors::port_unreachable(datagram));
        } else {
            self.counters.add(Counter::UnreachablesHeldBack);
        }
    }

    /// Anybody can send such a message: only one about a socket that there is counts.
    pub fn error_arrives<'f>(&mut self, now: Instant, error: RxDatagramError<'f>) -> Option<Incoming<'f>> {
        if !self.udp.sockets.may_have_sent(error.own, error.peer) {
            self.counters.add(Counter::IcmpErrorsStray);
            return None;
        }
        if let Some(mtu) = error.mtu {
            self.udp.paths.learn(now, error.peer.addr, mtu);
        }
        Some(Incoming::Error(error))
    }

    /// [`crate::ControlEvent::HandedOver`].
    pub fn handed_over(&mut self, what: HandedOver) {
        match what {
            HandedOver::Datagrams { socket, count, bytes, became } => {
                if let Some(socket) = socket {
                    self.udp.sockets.came(socket, count, bytes, became);
                }
                self.counters.add_many(Counter::RxDatagrams, count as u64);
                self.counters.add_many(counter_of(became), count as u64);
            }
            HandedOver::Error(Delivered::ByKernel) => self.counters.add(Counter::DatagramErrors),
            HandedOver::Error(_) => self.counters.add(Counter::IcmpErrorsStray),
        }
    }
}

fn counter_of(delivered: Delivered) -> Counter {
    match delivered {
        Delivered::ByLane => Counter::DatagramsByLane,
        Delivered::ByKernel => Counter::DatagramsByKernel,
        Delivered::QueueFull => Counter::DropDatagramQueueFull,
        Delivered::Nowhere => Counter::DropDatagramUndeliverable,
    }
}
