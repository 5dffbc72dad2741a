//! Neighbours: who is at which hardware address, by ARP and neighbour discovery on links of the engine's own, by the kernel's
//! word on others.

use crate::control::route::Route;
use crate::counter::Counter;
use crate::flow::key::FlowKey;
use crate::parts::{LinkPlanes, Records};
use crate::work::{Arrival, ControlFrame, NeighbourMessage, Path};
use toe_abi::errno::Errno;
use toe_base::{Addr, Instant, PortId};
use toe_tcp::soft_error;
use toe_tcp::state::TcpState;
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::icmpv6::ALL_NODES;
use toe_wire::link::MacAddr;

impl LinkPlanes<'_> {
    /// The path back to where a segment came from. Answers go by the route to the sender; a neighbour that was never
    /// heard of is learnt from its own frame, which saves a question.
    pub(super) fn path_of_sender(&mut self, port: PortId, key: &FlowKey, from_mac: MacAddr) -> Option<Path> {
        let shared = self.ip.ports[port.index()].shared;
        let (port, next_hop) = match self.ip.routes.to(key.remote.addr) {
            // The kernel's routes may lead back by another interface.
            Some(Route::Via { port: back, next_hop, .. }) if shared => {
                if !self.ip.ports[back.index()].shared {
                    return None;
                }
                (back, next_hop)
            }
            // There is no way back, so whoever sent it is none that can be answered.
            _ if shared => return None,
            Some(Route::Via { next_hop, .. }) => (port, next_hop),
            _ => (port, key.remote.addr),
        };
        let neighbour = self.ip.neighbour((self.flows, self.udp), port, next_hop)?;
        let neighbours = &mut self.ip.ports[port.index()].neighbours;
        if !shared && neighbours.mac(neighbour).is_none() && next_hop == key.remote.addr {
            neighbours.learn(next_hop, from_mac);
            self.lone_may_go(port, neighbour, from_mac);
        }
        Some(Path::Port { port, neighbour })
    }

    pub(super) fn arp_arrives(&mut self, port: PortId, message: &ArpRepr) {
        let for_us = self.ip.routes.is_own_on(port, message.target_ip.into());
        // RFC 826: the sender is learnt when the message is for us. Nobody else's table entries are taken.
        if !for_us || !self.ip.routes.is_valid_peer(message.sender_ip.into()) {
            return;
        }
        let (neighbours, mac) = (&mut self.ip.ports[port.index()].neighbours, message.sender_mac);
        let waited = match message.operation {
            // It will be sent to.
            ArpOperation::Request => neighbours.learn(message.sender_ip.into(), mac),
            // As with Linux: nothing is kept of who is not asked for, or anybody could fill the table with what is not so.
            ArpOperation::Reply => neighbours.hear(message.sender_ip.into(), mac),
        };
        if let Some(neighbour) = waited {
            self.neighbour_found(Path::Port { port, neighbour });
        }
        if message.operation == ArpOperation::Request {
            let reply = ControlFrame::ArpReply {
                to_mac: message.sender_mac,
                to: message.sender_ip,
                source: message.target_ip,
            };
            self.ip.push_control(self.counters, port, reply);
        }
    }

    /// Neighbour discovery (RFC 4861 section 7.2). Of an address that is the kernel's too, the kernel answers.
    pub(super) fn neighbour_message(&mut self, port: PortId, message: &NeighbourMessage) {
        if self.ip.ports[port.index()].shared {
            return;
        }
        match *message {
            NeighbourMessage::Asked { arrival, target, source_mac } => {
                if self.ip.routes.is_own_on(port, target) {
                    self.answer_solicitation(port, &arrival, target, source_mac);
                }
            }
            // Section 7.2.5: nothing is kept of who is not asked for; what is known stays unless it is overridden.
            NeighbourMessage::Advertised { target, mac: Some(mac), overrides, .. } => {
                let neighbours = &mut self.ip.ports[port.index()].neighbours;
                let is_new = neighbours.mac_of(target).is_none_or(|known| known == mac || overrides);
                if is_new && let Some(neighbour) = neighbours.set(target, mac, false) {
                    self.neighbour_found(Path::Port { port, neighbour });
                }
            }
            NeighbourMessage::Advertised { .. } => {}
        }
    }

    /// Sections 7.2.3 and 7.2.4.
    fn answer_solicitation(
        &mut self,
        port: PortId,
        arrival: &Arrival,
        target: Addr,
        source_mac: Option<MacAddr>,
    ) {
        if arrival.src.is_unspecified() {
            // Somebody wants to have the address, and is to learn that it is taken.
            let (to, to_mac) = (ALL_NODES.into(), toe_wire::icmpv6::multicast_mac(ALL_NODES));
            let advert = ControlFrame::Advertise { to_mac, to, source: target, solicited: false };
            self.ip.push_control(self.counters, port, advert);
            return;
        }
        if let Some(mac) = source_mac
            && let Some(neighbour) = self.ip.ports[port.index()].neighbours.learn(arrival.src, mac)
        {
            self.neighbour_found(Path::Port { port, neighbour });
        }
        let (to_mac, to) = (source_mac.unwrap_or(arrival.from_mac), arrival.src);
        let advert = ControlFrame::Advertise { to_mac, to, source: target, solicited: true };
        self.ip.push_control(self.counters, port, advert);
    }

    /// What waited for the neighbour may go.
    pub(super) fn neighbour_found(&mut self, path: Path) {
        if let Path::Port { port, neighbour } = path {
            match self.ip.ports[port.index()].neighbours.mac(neighbour) {
                Some(mac) => self.lone_may_go(port, neighbour, mac),
                None => self.drop_lone(port, neighbour),
            }
        }
        for idx in self.flows.to_neighbour(path) {
            self.ip.schedule(self.flows.get(idx), idx);
        }
    }

    /// Asks again for neighbours that did not answer. Returns those that never will.
    pub(super) fn neighbours_timeout(&mut self, now: Instant) -> Vec<Path> {
        let mut silent = Vec::new();
        for at in 0..self.ip.ports.len() {
            let port = PortId(at as u8);
            let (mut ask, mut lost) = (Vec::new(), Vec::new());
            self.ip.ports[at].neighbours.on_timeout(now, |addr| ask.push(addr), |number| lost.push(number));
            for target in ask {
                if self.ip.ports[at].shared {
                    self.ip.steering.ask_neighbour(port, target);
                } else if let Some(source) = self.ip.routes.source_to_ask(port, target) {
                    let ask = ControlFrame::AskNeighbour { target, source };
                    self.ip.push_control(self.counters, port, ask);
                }
            }
            silent.extend(lost.into_iter().map(|neighbour| self.no_answer(port, neighbour)));
        }
        silent
    }

    /// What waited for the neighbour is dropped.
    fn no_answer(&mut self, port: PortId, neighbour: u16) -> Path {
        self.counters.add(Counter::NeighbourFailures);
        self.drop_lone(port, neighbour);
        Path::Port { port, neighbour }
    }

    /// The kernel knows it no more. Returns it if it did not answer.
    pub(super) fn neighbour_gone(&mut self, port: PortId, addr: Addr, failed: bool) -> Option<Path> {
        let neighbour = self.ip.ports[port.index()].neighbours.forget(addr)?;
        if failed {
            return Some(self.no_answer(port, neighbour));
        }
        // Whoever has something to send asks again.
        self.neighbour_found(Path::Port { port, neighbour });
        None
    }
}

impl Records<'_> {
    /// Connects that wait for a neighbour that does not answer fail; established flows go on trying, and those with something on
    /// its way have a soft error.
    pub(super) fn neighbour_lost(&mut self, path: Path) {
        for idx in self.flows.to_neighbour(path) {
            self.edit(idx, |records, idx| {
                let tcb = &mut records.flows.get_mut(idx).tcb;
                match tcb.state {
                    TcpState::SynSent => records.closed(idx, Errno::EHOSTUNREACH),
                    _ if tcb.outstanding() > 0 => soft_error::arrived(tcb, Errno::EHOSTUNREACH),
                    _ => {}
                }
            });
        }
    }
}
