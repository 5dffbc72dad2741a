//! Protocols over IP beside TCP, UDP and ICMP: each is a folder in here of one shape (docs/new-protocol.md), and a line in [`registered`]. Called by
//! `engine/protocols` alone.
//!
//! A protocol is plain state behind [`IpProtocol`]. What the engine does for all of them: frames and addresses are checked, pieces put together,
//! answers queued within the port's bound and given their headers. What it takes and gives are values of [`crate::work`].
//!
//! | part | in it |
//! |---|---|
//! | data plane, `data.rs` | [`IpProtocol::receive`], its stages in the order in which a packet passes them; no waiting, no loop over anything that a peer can make long |
//! | control plane, `control.rs` | what is exceptional or old: tables of peers with their bounds, [`IpProtocol::on_timeout`], release |
//! | counters, `counters.rs` | what became of packets, by reason: shown by `toe status` |
//! | tests, `tests.rs` | frames to an engine, frames from it |

pub mod registered;

use crate::work::{RxPacket, TxPacket};
use std::fmt::Debug;
use toe_base::{Instant, PortId};

/// Packets that one call may send: nobody is to make much out of little.
pub const OUT_MAX: usize = 4;

/// One protocol over IP.
pub trait IpProtocol: Debug + Send {
    /// As IANA has it: what stands in IPv4's protocol and IPv6's next header.
    fn number(&self) -> u8;

    /// Data plane: a whole packet from a peer to an address of the engine's. Everything in it can be wrong.
    fn receive(&mut self, now: Instant, packet: &RxPacket<'_>, out: &mut Out);

    /// When it wants [`IpProtocol::on_timeout`] called; `FAR_FUTURE`: nothing waits for time.
    fn next_deadline(&self) -> Instant;

    /// Control plane: time has passed. What is more than [`OUT_MAX`] packets comes with the next call.
    fn on_timeout(&mut self, now: Instant, out: &mut Out);

    /// Names as `toe status` shows them.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// What a call sends.
#[derive(Debug, Default)]
pub struct Out(Vec<(PortId, TxPacket)>);

impl Out {
    /// `false`: the call has sent enough.
    pub fn push(&mut self, port: PortId, packet: TxPacket) -> bool {
        let has_room = self.0.len() < OUT_MAX;
        if has_room {
            self.0.push((port, packet));
        }
        has_room
    }
}

/// All that are registered.
#[derive(Debug)]
pub struct Protocols(Vec<Box<dyn IpProtocol>>);

impl Protocols {
    pub fn new(all: Vec<Box<dyn IpProtocol>>) -> Protocols {
        Protocols(all)
    }

    /// What is to be sent; `None`: nobody knows such a protocol.
    pub fn receive(&mut self, now: Instant, packet: &RxPacket<'_>) -> Option<Vec<(PortId, TxPacket)>> {
        let protocol = self.0.iter_mut().find(|protocol| protocol.number() == packet.protocol)?;
        let mut out = Out::default();
        protocol.receive(now, packet, &mut out);
        Some(out.0)
    }

    pub fn next_deadline(&self) -> Instant {
        let all = self.0.iter().map(|protocol| protocol.next_deadline());
        all.fold(Instant::FAR_FUTURE, std::cmp::min)
    }

    pub fn on_timeout(&mut self, now: Instant) -> Vec<(PortId, TxPacket)> {
        let mut sent = Vec::new();
        for protocol in self.0.iter_mut().filter(|protocol| protocol.next_deadline() <= now) {
            let mut out = Out::default();
            protocol.on_timeout(now, &mut out);
            sent.append(&mut out.0);
        }
        sent
    }

    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.0.iter().flat_map(|protocol| protocol.counters())
    }
}
