//! One direction of a bad link: decides each frame's fate and keeps the frames that are held back.

use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use toe_wire::eth::{self, EtherType};
use toe_wire::{EthRepr, Ipv4Repr};

use super::bottleneck::Bottleneck;
use super::congestion_mark;
use super::losses::Losses;
use super::plan::{FaultRates, Rate};
use crate::port::{PortCounter, PortCounters};

/// A reordered frame waits for later frames no longer than this.
pub(super) const REORDER_HOLD_US: u64 = 2_000;
/// Most later frames that overtake a reordered one.
const OVERTAKEN_BY_MAX: u32 = 3;
/// Frames that a lane holds; when there are more, they are dropped, like in a router.
const HELD_MAX: usize = 8192;

/// What accompanies a frame, and what becomes of it when a bit of the frame is flipped.
pub(super) trait Fragile: Copy {
    /// Makes the frame's checksums stand on their own, so that its receiver notices the flipped bit. `None`: that
    /// cannot be done for this frame.
    fn ready_to_corrupt(self, frame: &mut [u8]) -> Option<Self>;
}

#[derive(Debug)]
struct Held<M> {
    due_us: u64,
    /// Frames that still have to overtake this one, if it is to be overtaken.
    overtaken_by: u32,
    frame: Vec<u8>,
    meta: M,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Lane<M> {
    rates: FaultRates,
    rng: ChaCha8Rng,
    losses: Losses,
    bottleneck: Bottleneck,
    /// Held by rate and delay alone, in order of `due_us`.
    delayed: VecDeque<Held<M>>,
    /// To be overtaken.
    reordered: Vec<Held<M>>,
}

/// Decided once per frame, always with the same number of draws.
struct Fate {
    drop: bool,
    reorder: bool,
    duplicate: bool,
    corrupt: bool,
    overtaken_by: u32,
    bit: u64,
    jitter_us: u64,
}

impl<M: Fragile> Lane<M> {
    /// `lane` tells the directions of one link apart: they draw from the same seed but not the same numbers.
    pub(super) fn new(rates: FaultRates, seed: u64, lane: u64) -> Lane<M> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(lane);
        let (losses, bottleneck) = (Losses::new(&rates), Bottleneck::new(&rates));
        Lane { rates, rng, losses, bottleneck, delayed: VecDeque::new(), reordered: Vec::new() }
    }

    fn draw(&mut self) -> Fate {
        let drop = self.losses.next(self.rng.next_u32());
        let mut happens = |rate: Rate| self.rng.next_u32() % 1_000_000 < rate.ppm();
        Fate {
            drop,
            reorder: happens(self.rates.reorder),
            duplicate: happens(self.rates.duplicate),
            corrupt: happens(self.rates.corrupt),
            overtaken_by: 1 + self.rng.next_u32() % OVERTAKEN_BY_MAX,
            bit: self.rng.next_u64(),
            jitter_us: match self.rates.jitter_us {
                0 => 0,
                most => self.rng.next_u64() % (u64::from(most) + 1),
            },
        }
    }

    /// Takes a frame; `out` gets it now, later, twice, changed or not at all.
    pub(super) fn offer(
        &mut self,
        now: u64,
        frame: &[u8],
        meta: M,
        counters: &mut PortCounters,
        out: &mut dyn FnMut(&[u8], M),
    ) {
        let fate = self.draw();
        if fate.drop {
            counters.add(PortCounter::FaultDropped, 1);
            return;
        }
        let corrupted;
        let (frame, meta) = if fate.corrupt {
            counters.add(PortCounter::FaultCorrupted, 1);
            // Whoever receives it would drop it: so much for a frame that cannot be corrupted noticeably.
            let Some(changed) = corrupt(frame, meta, fate.bit) else { return };
            corrupted = changed;
            (corrupted.0.as_slice(), corrupted.1)
        } else {
            (frame, meta)
        };
        if fate.reorder {
            counters.add(PortCounter::FaultReordered, 1);
        }
        self.enqueue(now, (frame, meta), &fate, fate.reorder, counters, out);
        if fate.duplicate {
            counters.add(PortCounter::FaultDuplicated, 1);
            self.enqueue(now, (frame, meta), &fate, false, counters, out);
        }
    }

    /// Lets a frame into the link; it comes out at once or later.
    fn enqueue(
        &mut self,
        now: u64,
        (frame, meta): (&[u8], M),
        fate: &Fate,
        reorder: bool,
        counters: &mut PortCounters,
        out: &mut dyn FnMut(&[u8], M),
    ) {
        if self.delayed.len() + self.reordered.len() >= HELD_MAX {
            counters.add(PortCounter::FaultDropped, 1);
            return;
        }
        let Some(passage) = self.bottleneck.offer(now, frame.len()) else {
            counters.add(PortCounter::FaultQueueFull, 1);
            return;
        };
        let arrives = passage.leaves_us + u64::from(self.rates.delay_us) + fate.jitter_us;
        if reorder {
            let due_us = arrives + REORDER_HOLD_US;
            let held = Held { due_us, overtaken_by: fate.overtaken_by, frame: frame.to_vec(), meta };
            self.reordered.push(held);
            return;
        }
        let due_us = arrives.max(self.delayed.back().map_or(0, |last| last.due_us));
        if due_us <= now && self.delayed.is_empty() {
            out(frame, meta);
            self.one_passed(out);
            return;
        }
        let mut held = Held { due_us, overtaken_by: 0, frame: frame.to_vec(), meta };
        if passage.mark && congestion_mark::mark(&mut held.frame) {
            counters.add(PortCounter::FaultMarked, 1);
        }
        self.delayed.push_back(held);
    }

    /// A frame has gone out, overtaking all that wait to be overtaken.
    fn one_passed(&mut self, out: &mut dyn FnMut(&[u8], M)) {
        let mut n = 0;
        while n < self.reordered.len() {
            self.reordered[n].overtaken_by -= 1;
            if self.reordered[n].overtaken_by == 0 {
                let held = self.reordered.remove(n);
                out(&held.frame, held.meta);
            } else {
                n += 1;
            }
        }
    }

    /// Lets out what has been held long enough.
    pub(super) fn release(&mut self, now: u64, out: &mut dyn FnMut(&[u8], M)) {
        while self.delayed.front().is_some_and(|held| held.due_us <= now) {
            let Some(held) = self.delayed.pop_front() else { break };
            out(&held.frame, held.meta);
            self.one_passed(out);
        }
        let (due, waiting) =
            std::mem::take(&mut self.reordered).into_iter().partition(|held| held.due_us <= now);
        self.reordered = waiting;
        let due: Vec<Held<M>> = due;
        for held in due {
            out(&held.frame, held.meta);
        }
    }

    /// When [`Lane::release`] has something to do next.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        self.delayed.front().into_iter().chain(&self.reordered).map(|held| held.due_us).min()
    }
}

/// A copy with one bit flipped inside the IPv4 datagram's header or TCP segment, where a checksum covers it. `None`
/// for frames without such a place: ARP has no checksum, and on a real wire the frame check sequence guards it.
fn corrupt<M: Fragile>(frame: &[u8], meta: M, bit: u64) -> Option<(Vec<u8>, M)> {
    let (link, rest) = EthRepr::parse(frame).ok()?;
    if link.ethertype != EtherType::Ipv4 {
        return None;
    }
    let (ip, _) = Ipv4Repr::parse(rest).ok()?;
    let mut copy = frame.to_vec();
    let meta = meta.ready_to_corrupt(&mut copy)?;
    let bit = bit % (u64::from(ip.total_len) * 8);
    let byte = copy.get_mut(eth::HEADER_LEN + (bit / 8) as usize)?;
    *byte ^= 1 << (bit % 8);
    Some((copy, meta))
}
