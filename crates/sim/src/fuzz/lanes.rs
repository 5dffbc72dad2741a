//! Lanes: the words and records of a side that means harm, as the other one's ends read them, and the heads of records that a host gives the
//! engine to send. Whatever is written, an end reads no place beside the ring and no record longer than one can be.

use super::{Bytes, ENGINE, play};
use crate::tally::Tallies;
use crate::world::World;
use toe_abi::attach::Use;
use toe_abi::lane::{DatagramHeader, LaneLayout, RECORD_MAX, RING_LEN_MIN, record_len};
use toe_base::{Endpoint, NetNs};
use toe_engine::udp::Presented;
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};
use zerocopy::FromBytes;

const STEPS_MAX: usize = 400;
/// Records that are given to the engine.
const RECORDS_MAX: usize = 64;

/// See the module.
pub fn run(data: &[u8]) -> Tallies {
    let (words, heads) = data.split_at(data.len() / 2);
    ends(&mut Bytes(words));
    play(vec![ENGINE], 0, |world| {
        world.set_up_sessions();
        give_heads(world, &mut Bytes(heads));
        Ok(())
    })
}

/// Each end in turn meets what an other end would have written, and what none would.
fn ends(bytes: &mut Bytes<'_>) {
    let (lane, _file) = LaneMemory::create(RING_LEN_MIN).expect("memory for a lane");
    let mut receiver = LaneReceiver::new(lane.clone());
    let mut sender = LaneSender::new(lane.clone());
    let mut text = vec![0; RECORD_MAX as usize];
    for _ in 0..STEPS_MAX {
        if bytes.is_empty() {
            return;
        }
        let what = bytes.u8();
        match what & 15 {
            0 => harm(&lane, LaneLayout::WORD, bytes),
            1 => harm(&lane, LaneLayout::HEAD, bytes),
            2 => {
                let position = u64::from(bytes.u16()) << 3 & u64::from(RING_LEN_MIN - 1);
                harm(&lane, LaneLayout::RING + position, bytes);
            }
            3 | 4 => {
                if let Some(record) = receiver.first() {
                    assert!(record.len <= RECORD_MAX, "{record:?}");
                    lane.read(record.position, 0, &mut text[..record.len as usize]);
                    if what & 16 != 0 {
                        receiver.take(record);
                    }
                }
            }
            5 => _ = receiver.divert(),
            6 => receiver.open(),
            7 => _ = receiver.sleep(what & 16 != 0),
            8 => _ = receiver.claim(what & 16 != 0),
            9 => {
                receiver.wakes();
                receiver.confirm();
            }
            10 | 11 => offer(&mut sender, what, bytes.u16(), &text),
            12 => _ = sender.begin_ring(what & 16 != 0),
            13 => sender.end_ring(),
            14 => _ = sender.overflow(),
            _ => {
                let (_, _, _) = (receiver.came(), receiver.has_events(), sender.is_unclaimed());
                if what & 0xf0 == 0xf0 {
                    receiver.close();
                }
            }
        }
    }
}

fn harm(lane: &LaneMemory, offset: u64, bytes: &mut Bytes<'_>) {
    // Within the memory.
    let word = bytes.u64().to_le_bytes();
    lane.region().write(offset, &word).expect("a place in the lane");
}

fn offer(sender: &mut LaneSender, what: u8, len: u16, text: &[u8]) {
    let len = u32::from(len).min(RECORD_MAX);
    if let Offer::Lane { position } = sender.offer(len) {
        assert!(record_len(len) <= sender.lane().ring_len());
        sender.lane().write(position, 0, &text[..len as usize]);
        if what & 16 != 0 {
            sender.publish(len);
        } else {
            sender.publish_as(len, len >= DatagramHeader::LEN);
        }
    }
}

/// A host's socket, and what its records ask the engine to send.
fn give_heads(world: &mut World, bytes: &mut Bytes<'_>) {
    let node = &mut world.nodes[0];
    let Some(session) = node.sessions.first().map(|session| session.id) else { return };
    let clock = node.clock(world.now_us);
    let local = Endpoint { port: 7000, ..Endpoint::UNSPECIFIED_V4 };
    let presented = Presented {
        local,
        peer: None,
        v6_only: false,
        identity: 1,
        netns: NetNs(0),
        shares_port: false,
        receive_buffer: 212_992,
    };
    let hears = (Use::Hears, Endpoint::UNSPECIFIED_V4);
    let opened = node.engine.open_datagrams(clock, session, hears, &presented);
    let Some(end) = opened.ok().and_then(|opened| opened.end) else { return };
    let text = vec![0x5a; 1 << 16];
    for _ in 0..RECORDS_MAX {
        if bytes.is_empty() {
            return;
        }
        let len = usize::from(bytes.u16());
        let head = bytes.array::<{ DatagramHeader::LEN as usize }>();
        let head = DatagramHeader::read_from_bytes(&head).expect("of its length");
        let clock = node.clock(world.now_us);
        if node.engine.takes_datagrams() {
            let (count, incoming) = node.engine.handle_datagrams(clock, end.id, &head, &text[..len]);
            node.memory.take(clock, &mut node.engine, incoming);
            assert!(count >= 1 && count <= len.max(1), "{count} datagrams of {len} bytes");
        }
        node.touched = true;
    }
}
