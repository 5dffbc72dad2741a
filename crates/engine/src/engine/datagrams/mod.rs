//! UDP over the engine's links (decision 0035): which sockets are heard for and send ([`control`]), datagrams and ICMP errors in
//! ([`receive`]), records out ([`transmit`], [`queue`]).

pub mod control;
mod queue;
mod receive;
mod transmit;

use super::Engine;
use crate::control::route::Route;
use crate::counter::Counters;
use crate::hostif::users::UserIdx;
use crate::parts::{HostInterface, IpLayer, LinkPlanes};
use crate::store::FlowStore;
use crate::udp::Udp;
use toe_base::{Addr, Instant, NetNs};

/// What UDP has of the engine, and what it shares with TCP.
#[derive(Debug)]
pub(super) struct UdpPlanes<'e> {
    netns: NetNs,
    udp: &'e mut Udp<UserIdx>,
    ip: &'e mut IpLayer,
    hostif: &'e mut HostInterface,
    counters: &'e mut Counters,
    /// Asked only for which neighbours it holds.
    flows: &'e FlowStore,
}

impl Engine {
    pub(super) fn datagrams(&mut self) -> UdpPlanes<'_> {
        UdpPlanes {
            netns: self.config.netns,
            udp: &mut self.udp,
            ip: &mut self.ip,
            hostif: &mut self.hostif,
            counters: &mut self.counters,
            flows: &self.flows,
        }
    }
}

impl UdpPlanes<'_> {
    fn links(&mut self) -> LinkPlanes<'_> {
        LinkPlanes { udp: self.udp, ip: self.ip, counters: self.counters, flows: self.flows }
    }

    /// Bytes of the largest packets that get to a peer, and that its link takes.
    fn mtus_of(&self, now: Instant, route: Option<Route>, peer: Addr) -> (u16, u16) {
        match route {
            Some(Route::Via { port, .. }) => {
                let link_mtu = u16::try_from(self.ip.ports[port.index()].link.mtu).unwrap_or(u16::MAX);
                let path_mtu = self.udp.paths.of(now, peer).map_or(link_mtu, |mtu| mtu.min(link_mtu));
                (path_mtu, link_mtu)
            }
            Some(Route::Local { .. }) => (u16::MAX, u16::MAX),
            None => (0, 0),
        }
    }
}

impl IpLayer {
    /// Whether an address of a link is the engine's alone.
    fn is_alone_at(&self, addr: Addr) -> bool {
        self.routes.is_own(addr) && !self.routes.is_shared(addr) && !addr.is_loopback()
    }
}
