//! Segments that belong to no connection, or to one that ends with them: resets, SYN-ACKs with a cookie, and ACKs in TIME_WAIT. To a neighbour that is not
//! known yet they wait until it is, as a connection's own would; who sent what they answer may not send it again.

use crate::counter::{Counter, Counters};
use crate::parts::{IpLayer, LinkPlanes};
use crate::work::{ControlFrame, Lone, Path};
use toe_base::{Instant, PortId};
use toe_wire::link::MacAddr;

impl LinkPlanes<'_> {
    /// The neighbour is known now: what waited for it goes.
    pub(super) fn lone_may_go(&mut self, port: PortId, neighbour: u16, to_mac: MacAddr) {
        self.may_go(port, neighbour, to_mac);
        for lone in self.ip.ports[port.index()].waiting.take(neighbour) {
            self.ip.push_control(self.counters, port, ControlFrame::Tcp { to_mac, lone });
        }
    }

    /// It does not answer.
    pub(super) fn drop_lone(&mut self, port: PortId, neighbour: u16) {
        self.drop_waiting(port, neighbour);
        self.ip.ports[port.index()].waiting.take(neighbour);
    }
}

impl IpLayer {
    /// Sends a segment by a path; the queue is bounded, one too many is lost like a frame.
    pub(super) fn send_alone(&mut self, counters: &mut Counters, now: Instant, path: Path, lone: Lone) {
        if lone.segment.flags.rst() {
            counters.add(Counter::Resets);
        }
        match path {
            Path::Local if self.loopback.control.len() >= self.loopback.control_max => {
                counters.add(Counter::DropControlQueueFull);
            }
            Path::Local => self.loopback.control.push_back((lone.key.reversed(), lone.segment)),
            Path::Port { port, neighbour } => self.send_lone(counters, now, port, neighbour, lone),
        }
    }

    /// Sends a segment over a port, once its neighbour is known.
    pub(super) fn send_lone(
        &mut self,
        counters: &mut Counters,
        now: Instant,
        port: PortId,
        neighbour: u16,
        lone: Lone,
    ) {
        let of_port = &mut self.ports[port.index()];
        if let Some(to_mac) = of_port.neighbours.mac(neighbour) {
            return self.push_control(counters, port, ControlFrame::Tcp { to_mac, lone });
        }
        if of_port.waiting.push(neighbour, lone) {
            counters.add(Counter::DropControlQueueFull);
        }
        let of_port = &mut self.ports[port.index()];
        let (shared, asked) = (of_port.shared, of_port.neighbours.ask(neighbour, now));
        match asked {
            Some(target) if shared => self.steering.ask_neighbour(port, target),
            Some(target) => {
                self.push_control(
                    counters,
                    port,
                    ControlFrame::AskNeighbour { target, source: lone.key.local.addr },
                );
            }
            None => {}
        }
    }
}
