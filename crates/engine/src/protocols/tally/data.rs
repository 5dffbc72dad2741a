//! Data plane: read → count → answer.

use super::control::{NUMBER, Peers};
use super::counters::Counters;
use crate::protocols::Out;
use crate::work::{RxPacket, TxPacket};
use toe_base::Instant;

pub(super) fn receive(
    peers: &mut Peers,
    counters: &mut Counters,
    (now, packet): (Instant, &RxPacket<'_>),
    out: &mut Out,
) {
    if !packet.bytes.starts_with(b"count") {
        counters.malformed += 1;
        return;
    }
    let Some(count) = peers.count(now, packet) else {
        counters.crowded += 1;
        return;
    };
    counters.counted += 1;
    out.push(packet.port, answer(packet, count));
}

fn answer(packet: &RxPacket<'_>, count: u32) -> TxPacket {
    TxPacket {
        to_mac: packet.arrival.from_mac,
        from: packet.arrival.dst,
        to: packet.arrival.src,
        protocol: NUMBER,
        bytes: format!("counted {count}").into_bytes(),
    }
}
