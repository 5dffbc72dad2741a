//! Frames of a peer that means harm. Each has a byte that says how it is helped on its way, one for its length and the
//! time before it, and its own. Helped, it gets past the first checks: addresses, checksums, the numbers of a connection.

use super::{Bytes, ENGINE, play, step_us};
use crate::frame::{IP_AT, TcpFrame};
use crate::network::mac_of;
use crate::node::PORT;
use crate::tally::Tallies;
use crate::world::World;
use std::collections::BTreeMap;
use toe_base::SeqNum;
use toe_wire::Sum;
use toe_wire::link::RxOffload;
use toe_wire::tcp::TcpFlags;

/// The link vouches for the checksum.
const VOUCHED: u8 = 1;
/// Checksums and hardware addresses are made right.
const MENDED: u8 = 2;
/// The segment's numbers count from where the connection is.
const FOLLOWS: u8 = 4;
/// 256 bytes more than the length says.
const LONG: u8 = 8;

/// A connection as its peer knows it, by the engine's port and its own: what the engine has sent and acknowledged.
type Known = BTreeMap<(u16, u16), (SeqNum, SeqNum)>;

/// See the module.
pub fn run(data: &[u8]) -> Tallies {
    let outside = crate::swarm::EngineSpec { sessions: 0, ..ENGINE };
    play(vec![ENGINE, outside], 1, |world| {
        world.sequences.judges = false;
        world.set_up_sessions();
        for session in &mut world.nodes[0].sessions {
            session.greets = 5000;
        }
        let mut bytes = Bytes(data);
        let mut known = Known::new();
        while !bytes.is_empty() {
            let how = bytes.u8();
            let len = usize::from(bytes.u8()) + if how & LONG != 0 { 256 } else { 0 };
            let mut frame = bytes.take(len).to_vec();
            world.catch_up(world.now_us + step_us(how >> 4))?;
            learn(world, &mut known);
            help(how, &mut frame, &known);
            let offload = RxOffload { checksum_ok: how & VOUCHED != 0, coalesced_mss: None };
            let node = &mut world.nodes[0];
            let clock = node.clock(world.now_us);
            let incoming = node.engine.handle_frame(clock, PORT, &frame, offload, &mut node.memory);
            node.memory.take(clock, &mut node.engine, incoming);
            node.touched = true;
            world.catch_up(world.now_us)?;
        }
        Ok(())
    })
}

fn learn(world: &mut World, known: &mut Known) {
    for flight in world.outside.frames.drain(..) {
        let Some(tcp) = TcpFrame::parse(&flight.frame) else { continue };
        let ack = tcp.header.ack.unwrap_or_default();
        known.insert((tcp.header.src_port, tcp.header.dst_port), (tcp.seq_end(), ack));
    }
}

fn help(how: u8, frame: &mut [u8], known: &Known) {
    if how & MENDED != 0 && frame.len() >= IP_AT + 20 {
        frame[..6].copy_from_slice(&mac_of(0).0);
        if frame[IP_AT] >> 4 == 4 {
            let header = IP_AT..(IP_AT + usize::from(frame[IP_AT] & 0xf) * 4).min(frame.len());
            frame[IP_AT + 10..IP_AT + 12].fill(0);
            let sum = Sum::of(&frame[header]).checksum();
            frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum.to_be_bytes());
        }
    }
    let Some(tcp) = TcpFrame::parse(frame) else { return };
    if how & FOLLOWS != 0
        && let Some((sent, acked)) = known.get(&(tcp.header.dst_port, tcp.header.src_port))
        && !tcp.header.flags.contains(TcpFlags::SYN)
    {
        // Small numbers are a little before or behind.
        let near = |base: SeqNum, number: u32| base.plus(number as i16 as u32);
        let seq = near(*acked, tcp.header.seq.raw());
        frame[tcp.tcp_at + 4..tcp.tcp_at + 8].copy_from_slice(&seq.raw().to_be_bytes());
        if let Some(ack) = tcp.header.ack {
            let ack = near(*sent, ack.raw());
            frame[tcp.tcp_at + 8..tcp.tcp_at + 12].copy_from_slice(&ack.raw().to_be_bytes());
        }
    }
    if how & MENDED != 0 {
        tcp.store_checksum(frame);
    }
}
