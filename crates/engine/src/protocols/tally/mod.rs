//! A toy, for tests alone, that shows how a protocol plugs in (docs/new-protocol.md). Protocol 253, which RFC 3692 leaves to experiments: who sends
//! "count" is told how often he has, and a second after the last time how often it was in all.

mod control;
mod counters;
mod data;
#[cfg(test)]
mod tests;

use crate::protocols::{IpProtocol, Out};
use crate::work::RxPacket;
use control::{NUMBER, Peers};
use counters::Counters;
use toe_base::Instant;

#[derive(Debug, Default)]
pub struct Tally {
    peers: Peers,
    counters: Counters,
}

impl IpProtocol for Tally {
    fn number(&self) -> u8 {
        NUMBER
    }

    fn receive(&mut self, now: Instant, packet: &RxPacket<'_>, out: &mut Out) {
        data::receive(&mut self.peers, &mut self.counters, (now, packet), out);
    }

    fn next_deadline(&self) -> Instant {
        self.peers.next_deadline()
    }

    fn on_timeout(&mut self, now: Instant, out: &mut Out) {
        control::on_timeout(&mut self.peers, &mut self.counters, now, out);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.counters.all()
    }
}
