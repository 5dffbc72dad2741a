//! Large records that the link takes from where the program put them: the same frames as copied ones, behind what is queued, and copied where
//! that cannot be.

use super::datagrams::{any, at, count, hears, send, to};
use super::world::{A, B, Outbox, Side, World};
use crate::Counter;
use core::sync::atomic::{AtomicU8, Ordering};
use toe_abi::lane::RecordHead;
use toe_base::{DatagramId, PortId};
use toe_wire::link::{FrameSink, LinkCaps, TxOffload};

/// A link that takes octets from where they are, while it has room.
#[derive(Default)]
struct Link {
    frames: Outbox,
    takes: usize,
}

impl FrameSink for Link {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.sent.len() < self.takes { self.frames.frame(len) } else { None }
    }
    fn commit(&mut self, offload: TxOffload) {
        self.frames.commit(offload);
    }
    fn gather(&mut self, head: &[u8], tail: &[&[AtomicU8]], offload: TxOffload) -> bool {
        if self.frames.sent.len() >= self.takes {
            return false;
        }
        let tail = tail.iter().copied().flatten().map(|octet| octet.load(Ordering::Relaxed));
        self.frames.sent.push((head.iter().copied().chain(tail).collect(), offload));
        true
    }
}

const CAPS: LinkCaps = LinkCaps { tx_checksum: true, gso_max: 65_000, cuts_datagrams: true };

/// A world in which A's link cuts up datagrams and A knows its neighbour.
fn world() -> (World, DatagramId) {
    let mut world = World::with_caps(CAPS);
    let sender = hears(&mut world, A, any(1000), 1);
    hears(&mut world, B, any(53), 2);
    send(&mut world, A, sender, to(at(B, 53)), b"who is there");
    assert_eq!(world.sides[B].memory.datagrams.drain(..).count(), 1);
    (world, sender)
}

fn joined() -> RecordHead {
    RecordHead { segment: 1200, ..to(at(B, 53)) }
}

/// A record that lies in two pieces, as at a ring's end, is to go. How many datagrams went so.
fn gather(world: &mut World, sender: DatagramId, text: &[u8], link: &mut Link) -> Option<usize> {
    let octets: Vec<_> = text.iter().copied().map(AtomicU8::new).collect();
    let (first, rest) = octets.split_at(text.len() / 3);
    let engine = &mut world.sides[A].engine;
    let record = engine.read_record(world.now, sender, &joined(), text.len()).expect("sound");
    engine.gathers(&record)?;
    engine.gather_record(&record, &[first, rest], link)
}

#[test]
fn the_frame_is_that_of_a_copied_record() {
    let (mut world, sender) = world();
    let text: Vec<u8> = (0..6000).map(|n| n as u8).collect();
    let mut link = Link { takes: 9, ..Link::default() };
    let before = count(&world, A, Counter::TxDatagrams);
    assert_eq!(gather(&mut world, sender, &text, &mut link), Some(5));
    assert_eq!(count(&world, A, Counter::TxDatagrams), before + 5);
    let now = world.now;
    let Side { engine, memory, .. } = &mut world.sides[A];
    engine.handle_datagrams(now, sender, &joined(), &text, memory);
    engine.poll_transmit(now, PortId(0), &mut link, memory, 9);
    let [gathered, copied] = &link.frames.sent[..] else { panic!("{} frames", link.frames.sent.len()) };
    assert!(gathered == copied && gathered.0.ends_with(&text) && gathered.1.segmentation.is_some());
}

#[test]
fn what_is_queued_goes_first_or_all_is_copied() {
    let (mut world, sender) = world();
    let text = [7; 6000];
    for (takes, came) in [(9, Some(5)), (1, None), (0, None)] {
        let now = world.now;
        let Side { engine, memory, .. } = &mut world.sides[A];
        engine.handle_datagrams(now, sender, &to(at(B, 53)), b"before", memory);
        let mut link = Link { takes, ..Link::default() };
        assert_eq!(gather(&mut world, sender, &text, &mut link), came, "{takes}");
        assert_eq!(link.frames.sent.len(), takes.min(2));
        assert!(link.frames.sent.first().is_none_or(|(frame, _)| frame.ends_with(b"before")));
    }
}

#[test]
fn small_records_and_those_that_somebody_watches_are_copied() {
    let (mut world, sender) = world();
    let mut link = Link { takes: 9, ..Link::default() };
    assert_eq!(gather(&mut world, sender, &[7; 1300], &mut link), None);
    let Side { engine, memory, .. } = &mut world.sides[A];
    engine.set_capture(true, memory);
    assert_eq!(gather(&mut world, sender, &[7; 6000], &mut link), None);
    assert!(link.frames.sent.is_empty());
}
