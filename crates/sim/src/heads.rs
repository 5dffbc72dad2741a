//! Links that show the engine the headers of a large segment alone, and put the bytes behind them where it says (`crates/port/src/packet/header_split.rs`).
//! Now and then that fails: then the place holds anything.

use crate::frame::{self, TcpFrame};
use crate::memory::{Memory, SPOILT};
use crate::node::PORT;
use crate::tally::Tally;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::{AtomicU8, Ordering};
use toe_base::SessionId;
use toe_engine::HostMemory;
use toe_wire::link::{FrameTail, RxOffload};

/// So much of a frame is in the head: no headers of Ethernet, IP and TCP are longer.
pub const HEAD_LEN: usize = 134;

/// Places that the engine has lent to a link, as this world has them: the bytes go on to the regions once the link has written.
#[derive(Debug)]
pub struct LentPlaces {
    bytes: Vec<AtomicU8>,
    ranges: RefCell<Vec<(SessionId, Range<u64>)>>,
}

impl LentPlaces {
    fn new(len: usize) -> LentPlaces {
        LentPlaces { bytes: (0..len).map(|_| AtomicU8::new(SPOILT)).collect(), ranges: RefCell::default() }
    }

    pub fn lend(&self, session: SessionId, offset: u64, len: u32) -> Option<&[AtomicU8]> {
        let mut ranges = self.ranges.borrow_mut();
        let at: u64 = ranges.iter().map(|(_, range)| range.end - range.start).sum();
        let place = self.bytes.get(at as usize..at as usize + len as usize)?;
        ranges.push((session, offset..offset + u64::from(len)));
        Some(place)
    }

    /// Each place with what the link has put there, or was to.
    fn take(&mut self) -> Vec<(SessionId, u64, Vec<u8>)> {
        let mut bytes = self.bytes.iter_mut().map(|byte| std::mem::replace(byte.get_mut(), SPOILT));
        let ranges = std::mem::take(self.ranges.get_mut());
        let of = |(session, range): (SessionId, Range<u64>)| {
            (session, range.start, bytes.by_ref().take((range.end - range.start) as usize).collect())
        };
        ranges.into_iter().map(of).collect()
    }
}

impl Memory {
    /// What a link has written is in the regions from now on.
    pub fn take_in_lent(&mut self) {
        let Some(mut lent) = self.lent.take() else { return };
        for (session, offset, bytes) in lent.take() {
            self.write(session, offset, &bytes);
        }
        self.lent = Some(lent);
    }
}

/// The frame that a link has kept.
#[derive(Debug)]
struct Tail<'a> {
    frame: &'a [u8],
    /// The link has another one by now.
    fails: bool,
    is_taken: Cell<bool>,
}

impl FrameTail for Tail<'_> {
    fn take(&self, from: usize, into: &[&[AtomicU8]]) -> bool {
        if self.is_taken.replace(true) {
            return false;
        }
        let bytes = self.frame.get(from..).unwrap_or_default();
        for (place, byte) in into.iter().copied().flatten().zip(bytes) {
            place.store(if self.fails { SPOILT } else { *byte }, Ordering::Relaxed);
        }
        !self.fails
    }

    fn read(&self, from: usize, into: &mut [u8]) -> bool {
        if self.is_taken.replace(true) {
            return false;
        }
        let bytes = self.frame.get(from..).unwrap_or_default();
        let len = bytes.len().min(into.len());
        into[..len].copy_from_slice(&bytes[..len]);
        !self.fails
    }
}

impl World {
    /// Whether a frame comes by a link that keeps its bytes: a large one whose checksum needs no look, while nobody looks at more than the headers.
    pub fn comes_as_head(&mut self, at: usize, frame: &[u8], offload: RxOffload) -> bool {
        let Some(fails_ppm) = self.swarm.driver.heads else { return false };
        let node = &mut self.nodes[at];
        let is_retained = frame.len() > HEAD_LEN && offload.checksum_ok && is_whole_tcp(frame);
        if !is_retained || node.engine.view().needs_whole_frames() {
            return false;
        }
        let fails = !self.healed && self.heads.ppm(fails_ppm);
        let mut head = frame.to_vec();
        head[HEAD_LEN..].fill(SPOILT);
        let (clock, tail) = (node.clock(self.now_us), Tail { frame, fails, is_taken: Cell::new(false) });
        node.memory.lent = Some(LentPlaces::new(frame.len()));
        let incoming =
            node.engine.handle_frame(clock, PORT, (&head[..], Some(&tail as _)), offload, &mut node.memory);
        node.memory.take(clock, &mut node.engine, incoming);
        node.memory.take_in_lent();
        node.memory.lent = None;
        self.tallies.add(Tally::Heads);
        self.tallies.add_many(Tally::HeadsFailed, u64::from(fails && tail.is_taken.get()));
        true
    }
}

/// No piece of a datagram, and TCP follows its IP header at once.
fn is_whole_tcp(frame: &[u8]) -> bool {
    !frame::is_piece(frame) && TcpFrame::parse(frame).is_some_and(|tcp| !tcp.is_empty())
}
