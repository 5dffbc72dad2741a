//! Control plane: the peers, how many they may be, and when each is let go.

use super::counters::Counters;
use crate::protocols::Out;
use crate::work::{RxPacket, TxPacket};
use toe_base::{Addr, Instant, PortId};
use toe_wire::link::MacAddr;

pub const NUMBER: u8 = 253;

const PEERS_MAX: usize = 16;
const QUIET_US: u64 = 1_000_000;

#[derive(Debug)]
struct Peer {
    addr: Addr,
    own: Addr,
    port: PortId,
    mac: MacAddr,
    count: u32,
    until: Instant,
}

/// The one that has been quiet longest first.
#[derive(Debug, Default)]
pub(super) struct Peers(Vec<Peer>);

impl Peers {
    /// How often this one has been counted; `None`: there are too many.
    pub(super) fn count(&mut self, now: Instant, packet: &RxPacket<'_>) -> Option<u32> {
        let (addr, own) = (packet.arrival.src, packet.arrival.dst);
        let known = self.0.iter().position(|peer| peer.addr == addr);
        let before = known.map_or(0, |n| self.0.remove(n).count);
        if self.0.len() >= PEERS_MAX {
            return None;
        }
        let (port, mac, count) = (packet.port, packet.arrival.from_mac, before + 1);
        self.0.push(Peer { addr, own, port, mac, count, until: now.after_us(QUIET_US) });
        Some(count)
    }

    pub(super) fn next_deadline(&self) -> Instant {
        self.0.first().map_or(Instant::FAR_FUTURE, |peer| peer.until)
    }
}

pub(super) fn on_timeout(peers: &mut Peers, counters: &mut Counters, now: Instant, out: &mut Out) {
    while let Some(peer) = peers.0.first().filter(|peer| peer.until <= now) {
        let packet = TxPacket {
            to_mac: peer.mac,
            from: peer.own,
            to: peer.addr,
            protocol: NUMBER,
            bytes: format!("{} in all", peer.count).into_bytes(),
        };
        if !out.push(peer.port, packet) {
            break;
        }
        peers.0.remove(0);
        counters.let_go += 1;
    }
}
