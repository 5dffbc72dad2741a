//! The stretches of a scoreboard, in order, in chunks: whatever is cut, marked or joined, no more is moved than one chunk
//! holds, and what nothing can have changed in is passed over a chunk at a time. A peer chooses where stretches are cut, so
//! what one cut costs must not depend on how many others there are.
//!
//! ```text
//!   chunks   │ until seq │ bytes lost │ earliest sending in flight │ …      at most CHUNKS_MAX, one array
//!                │
//!   stretches    └─▶ │ 0-1448 . │ 1448-2896 s │ …                           at most CHUNK each, an array each
//! ```
//!
//! Called by [`crate::scoreboard`] only, which knows what the fates mean.

use crate::pool::{Array, NoPlace, PLACES_MAX, Pool};
use toe_base::{Instant, SeqNum};

/// What is known of a stretch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fate {
    #[default]
    InFlight,
    /// The peer has it.
    Sacked,
    /// It is to be sent again.
    Lost,
}

/// One stretch: sent at one time, with one fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentRange {
    pub start: SeqNum,
    pub end: SeqNum,
    /// When it last went out.
    pub sent_at: Instant,
    pub fate: Fate,
    /// It went out more than once.
    pub resent: bool,
    /// Bytes of each of the segments it went out as, but for the last; 0 counts as 1. The peer has a segment or has not, so
    /// that nothing smaller ever has a fate of its own, whatever a peer says.
    pub mss: u16,
    pub stamp: DeliveryStamp,
}

/// What delivery-rate estimation notes of a stretch when it goes out (draft-cheng-iccrg-delivery-rate-estimation
/// section 3.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryStamp {
    /// Bytes that had been delivered by then.
    pub delivered: u64,
    /// When the last of those were.
    pub delivered_at: Instant,
    /// When the first of the flight that was out then had been sent.
    pub first_sent_at: Instant,
    /// Bytes in the network with it.
    pub in_flight: u32,
    /// Bytes that had been marked lost by then, ever.
    pub lost: u32,
    /// The program, not the window, limited what was out.
    pub app_limited: bool,
}

impl SentRange {
    pub fn len(&self) -> u32 {
        self.end.distance_from(self.start)
    }

    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// How many of its first bytes are whole segments, of `bytes`.
    pub fn whole_segments(&self, bytes: u32) -> u32 {
        let mss = u32::from(self.mss).max(1);
        bytes / mss * mss
    }

    /// Its last transmission.
    pub const fn sending(&self) -> Sending {
        Sending { at: self.sent_at, end: self.end }
    }
}

/// A transmission: RACK orders them by time, and those of one time by where they end (RFC 8985 section 6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    pub at: Instant,
    pub end: SeqNum,
}

impl Sending {
    const NEVER: Sending = Sending { at: Instant::FAR_FUTURE, end: SeqNum::new(0) };

    /// RACK_sent_after.
    pub fn is_after(self, other: Sending) -> bool {
        self.at > other.at || self.at == other.at && self.end.after(other.end)
    }
}

/// Stretches that lie together.
const CHUNK: u16 = 64;
/// Twice what is needed where every chunk is full.
const CHUNKS_MAX: usize = 2 * PLACES_MAX as usize / CHUNK as usize;

/// Some stretches that follow each other, and what is to be known of them without looking.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Chunk {
    places: Array,
    /// Of the last one.
    end: SeqNum,
    /// Bytes that are to be sent again.
    lost: u32,
    /// None of those in flight was sent before this; [`Sending::NEVER`]: none is in flight.
    earliest: Sending,
    /// One was sent just then.
    is_exact: bool,
}

impl Chunk {
    pub fn has_lost(&self) -> bool {
        self.lost > 0
    }

    pub fn has_in_flight(&self) -> bool {
        self.earliest != Sending::NEVER
    }

    fn count(&mut self, range: &SentRange) {
        match range.fate {
            Fate::Lost => self.lost += range.len(),
            Fate::InFlight if !range.sending().is_after(self.earliest) => self.earliest = range.sending(),
            Fate::InFlight | Fate::Sacked => {}
        }
    }

    fn uncount(&mut self, range: &SentRange) {
        match range.fate {
            Fate::Lost => self.lost -= range.len(),
            Fate::InFlight => self.is_exact &= self.earliest != range.sending(),
            Fate::Sacked => {}
        }
    }

    fn count_anew(&mut self, places: &Pool<SentRange>) {
        *self = Chunk { lost: 0, earliest: Sending::NEVER, is_exact: true, ..*self };
        for range in places.get(&self.places) {
            self.count(range);
            self.end = range.end;
        }
    }
}

/// What was marked lost since congestion control looked last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    pub bytes: u32,
    pub stretches: u16,
    /// Where the losses of one flight first were more than [`Losses::excess_of`] of it.
    pub excess: Option<Excess>,
}

/// A volume in the network of which too much was lost (draft-ietf-ccwg-bbr-05 section 5.5.10.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    pub in_flight: u32,
    pub app_limited: bool,
}

impl Losses {
    /// Too much is more than a fiftieth: BBR.LossThresh.
    const THRESHOLD: u64 = 50;

    /// Whether `lost` bytes are too many of a flight of `in_flight`.
    pub fn excess_of(lost: u32, in_flight: u32) -> bool {
        u64::from(lost) * Self::THRESHOLD > u64::from(in_flight)
    }

    /// `range` is lost, with `lost` bytes since it was sent.
    pub(super) fn take(&mut self, range: &SentRange, lost: u32) {
        self.bytes = self.bytes.saturating_add(range.len());
        self.stretches = self.stretches.saturating_add(1);
        let stamp = &range.stamp;
        if self.excess.is_none() && Self::excess_of(lost, stamp.in_flight) {
            // BBRInflightAtLoss: at which byte of this stretch was it too much?
            let before = stamp.in_flight.saturating_sub(range.len());
            let lost_before = u64::from(lost.saturating_sub(range.len())) * Self::THRESHOLD;
            let prefix = u64::from(before).saturating_sub(lost_before) / (Self::THRESHOLD - 1);
            let in_flight = before.saturating_add(prefix as u32);
            self.excess = Some(Excess { in_flight, app_limited: stamp.app_limited });
        }
    }

    /// The same of all that `later` tells of.
    pub(super) fn join(&mut self, later: Losses) {
        self.bytes = self.bytes.saturating_add(later.bytes);
        self.stretches = self.stretches.saturating_add(later.stretches);
        self.excess = self.excess.or(later.excess);
    }
}

/// Where the stretches of all connections lie.
#[derive(Debug)]
pub struct SentPool {
    places: Pool<SentRange>,
    chunks: Pool<Chunk>,
    /// What connections have lost since an ACK last came.
    pub(super) losses: Pool<Losses, 1>,
}

impl SentPool {
    /// Enough for `connections` connections to have some stretches each, and for some to have many.
    pub fn new(flows: usize) -> SentPool {
        SentPool { places: Pool::new(flows), chunks: Pool::new(flows), losses: Pool::of_smallest(flows) }
    }

    /// Places that stretches have.
    pub fn used(&self) -> usize {
        self.places.used()
    }

    /// The same, those of the chunks that they lie in, and those of what was lost.
    pub fn used_by_all(&self) -> [usize; 3] {
        [self.places.used(), self.chunks.used(), self.losses.used()]
    }
}

/// Where a stretch is, until one is put in or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    chunk: usize,
    at: usize,
}

/// The stretches of one connection: disjoint, in order, without gaps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretches {
    /// None of the chunks is empty. Where there are several, each has all of its places.
    chunks: Array,
    len: u16,
}

impl Stretches {
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn iter<'a>(&self, pool: &'a SentPool) -> impl Iterator<Item = &'a SentRange> + use<'a> {
        pool.chunks.get(&self.chunks).iter().flat_map(|chunk| pool.places.get(&chunk.places))
    }

    /// The first of those in a chunk of which `is_wanted` says so, and that `is_it`.
    pub fn first_in(
        &self,
        pool: &SentPool,
        is_wanted: impl Fn(&Chunk) -> bool,
        is_it: impl Fn(&SentRange) -> bool,
    ) -> Option<SentRange> {
        let mut chunks = pool.chunks.get(&self.chunks).iter().filter(|chunk| is_wanted(chunk));
        chunks.find_map(|chunk| pool.places.get(&chunk.places).iter().find(|range| is_it(range)).copied())
    }

    pub fn first(&self, pool: &SentPool) -> Option<SentRange> {
        self.iter(pool).next().copied()
    }

    pub fn last(&self, pool: &SentPool) -> Option<(Position, SentRange)> {
        let chunk = self.chunks.len().checked_sub(1)?;
        let ranges = pool.places.get(&pool.chunks.get(&self.chunks)[chunk].places);
        let at = ranges.len().checked_sub(1)?;
        Some((Position { chunk, at }, ranges[at]))
    }

    /// The first that ends after `seq`.
    pub fn find(&self, pool: &SentPool, seq: SeqNum) -> Option<(Position, SentRange)> {
        let chunks = pool.chunks.get(&self.chunks);
        let chunk = chunks.partition_point(|chunk| chunk.end.at_or_before(seq));
        let ranges = pool.places.get(&chunks.get(chunk)?.places);
        let at = ranges.partition_point(|range| range.end.at_or_before(seq));
        Some((Position { chunk, at }, *ranges.get(at)?))
    }

    /// The one after that at `position`.
    pub fn next(&self, pool: &SentPool, position: Position) -> Option<(Position, SentRange)> {
        let chunks = pool.chunks.get(&self.chunks);
        let Position { chunk, at } = position;
        let here = pool.places.get(&chunks.get(chunk)?.places);
        if let Some(range) = here.get(at + 1) {
            return Some((Position { chunk, at: at + 1 }, *range));
        }
        let range = *pool.places.get(&chunks.get(chunk + 1)?.places).first()?;
        Some((Position { chunk: chunk + 1, at: 0 }, range))
    }

    /// Changes one, but not where it starts.
    pub fn change(&self, pool: &mut SentPool, position: Position, change: impl FnOnce(&mut SentRange)) {
        let chunk = &mut pool.chunks.get_mut(&self.chunks)[position.chunk];
        let ranges = pool.places.get_mut(&chunk.places);
        let is_last = position.at + 1 == ranges.len();
        let range = &mut ranges[position.at];
        chunk.uncount(range);
        change(range);
        chunk.count(range);
        if is_last {
            chunk.end = range.end;
        }
    }

    /// Changes all of those in chunks of which `is_wanted` says so, but not where they start and end.
    pub fn visit(
        &self,
        pool: &mut SentPool,
        is_wanted: impl Fn(&Chunk) -> bool,
        mut visit: impl FnMut(&mut SentRange),
    ) {
        for chunk in pool.chunks.get_mut(&self.chunks).iter_mut().filter(|chunk| is_wanted(chunk)) {
            pool.places.get_mut(&chunk.places).iter_mut().for_each(&mut visit);
            chunk.count_anew(&pool.places);
        }
    }

    /// Changes those in chunks where something is in flight that was sent before `limit` and is due. Returns when the earliest
    /// went out that was sent before it and is not due yet.
    pub fn visit_due(
        &self,
        pool: &mut SentPool,
        limit: Sending,
        is_due: impl Fn(Instant) -> bool,
        mut visit: impl FnMut(&mut SentRange),
    ) -> Option<Instant> {
        let mut next = None;
        for chunk in pool.chunks.get_mut(&self.chunks) {
            if limit.is_after(chunk.earliest) && !chunk.is_exact {
                chunk.count_anew(&pool.places);
            }
            if limit.is_after(chunk.earliest) && is_due(chunk.earliest.at) {
                pool.places.get_mut(&chunk.places).iter_mut().for_each(&mut visit);
                chunk.count_anew(&pool.places);
            }
            if limit.is_after(chunk.earliest) {
                next = Some(next.map_or(chunk.earliest.at, |next: Instant| next.min(chunk.earliest.at)));
            }
        }
        next
    }

    /// Puts one in behind all others.
    pub fn push(&mut self, pool: &mut SentPool, range: SentRange) -> Result<(), NoPlace> {
        let is_full = |chunk: &Chunk| chunk.places.len() == usize::from(CHUNK);
        if pool.chunks.get(&self.chunks).last().is_none_or(is_full) {
            self.add_chunk(pool, self.chunks.len())?;
        }
        let chunk = self.chunks.len() - 1;
        let at = pool.chunks.get(&self.chunks)[chunk].places.len();
        let pushed = self.insert(pool, Position { chunk, at }, range);
        if at == 0 && pushed.is_err() {
            pool.chunks.remove(&mut self.chunks, chunk, 1);
        }
        pushed
    }

    /// Cuts the one at `position` in two.
    pub fn cut(&mut self, pool: &mut SentPool, position: Position, seq: SeqNum) -> Result<(), NoPlace> {
        let mut position = position;
        let chunk = &pool.chunks.get(&self.chunks)[position.chunk];
        if chunk.places.len() == usize::from(CHUNK) {
            position = self.split(pool, position)?;
        }
        let chunk = &pool.chunks.get(&self.chunks)[position.chunk];
        let whole = pool.places.get(&chunk.places)[position.at];
        let rest = SentRange { start: seq, ..whole };
        self.insert(pool, Position { at: position.at + 1, ..position }, rest)?;
        self.change(pool, position, |range| range.end = seq);
        Ok(())
    }

    fn insert(&mut self, pool: &mut SentPool, position: Position, range: SentRange) -> Result<(), NoPlace> {
        if self.len >= PLACES_MAX {
            return Err(NoPlace);
        }
        let chunk = &mut pool.chunks.get_mut(&self.chunks)[position.chunk];
        let is_last = position.at == chunk.places.len();
        pool.places.insert(&mut chunk.places, position.at, range)?;
        chunk.count(&range);
        if is_last {
            chunk.end = range.end;
        }
        self.len += 1;
        Ok(())
    }

    /// An empty chunk. What the smallest arrays are kept back for is one a connection: any but the only one has all of its places.
    fn add_chunk(&mut self, pool: &mut SentPool, at: usize) -> Result<(), NoPlace> {
        if self.chunks.len() >= CHUNKS_MAX {
            return Err(NoPlace);
        }
        let mut places =
            if self.chunks.is_empty() { Array::default() } else { pool.places.with_places(CHUNK)? };
        let chunk = Chunk { places, earliest: Sending::NEVER, is_exact: true, ..Chunk::default() };
        let added = pool.chunks.insert(&mut self.chunks, at, chunk);
        if added.is_err() {
            pool.places.clear(&mut places);
        }
        added
    }

    /// Moves the second half of a chunk to one of its own; returns where the stretch at `position` is then.
    fn split(&mut self, pool: &mut SentPool, position: Position) -> Result<Position, NoPlace> {
        let half = usize::from(CHUNK / 2);
        let Position { chunk, at } = position;
        self.add_chunk(pool, chunk + 1)?;
        self.move_tail(pool, chunk, half, chunk + 1);
        Ok(if at < half { position } else { Position { chunk: chunk + 1, at: at - half } })
    }

    fn move_tail(&mut self, pool: &mut SentPool, from: usize, at: usize, to: usize) {
        let chunks = pool.chunks.get_mut(&self.chunks);
        let (mut source, mut target) = (chunks[from], chunks[to]);
        pool.places.move_tail(&mut source.places, at, &mut target.places);
        source.count_anew(&pool.places);
        target.count_anew(&pool.places);
        chunks[from] = source;
        chunks[to] = target;
    }

    /// Takes those out that lie before `ack`; `each` is called with them, in order, cut to it.
    pub fn drop_until(&mut self, pool: &mut SentPool, ack: SeqNum, mut each: impl FnMut(&SentRange)) {
        while let Some(chunk) = pool.chunks.get_mut(&self.chunks).first_mut() {
            let ranges = pool.places.get_mut(&chunk.places);
            let whole = ranges.iter().take_while(|range| range.end.at_or_before(ack)).count();
            for range in &ranges[..whole] {
                each(range);
                chunk.uncount(range);
            }
            let is_all = whole == ranges.len();
            if let Some(range) = ranges.get_mut(whole).filter(|range| range.start.before(ack)) {
                each(&SentRange { end: ack, ..*range });
                chunk.uncount(range);
                range.start = ack;
                chunk.count(range);
            }
            pool.places.remove(&mut chunk.places, 0, whole);
            self.len -= whole as u16;
            if !is_all {
                break;
            }
            pool.chunks.remove(&mut self.chunks, 0, 1);
        }
    }

    /// Takes those out that lie in `start..end`, which is where one starts and one ends.
    pub fn remove(&mut self, pool: &mut SentPool, start: SeqNum, end: SeqNum) {
        let Some((from, _)) = self.find(pool, start) else { return };
        let (mut empty_from, mut empty) = (from.chunk, 0);
        for at in from.chunk..self.chunks.len() {
            let chunk = &mut pool.chunks.get_mut(&self.chunks)[at];
            let ranges = pool.places.get(&chunk.places);
            let first = if at == from.chunk { from.at } else { 0 };
            let last = ranges.partition_point(|range| range.end.at_or_before(end)).max(first);
            let is_over = last < ranges.len();
            self.len -= (last - first) as u16;
            pool.places.remove(&mut chunk.places, first, last - first);
            chunk.count_anew(&pool.places);
            if chunk.places.is_empty() {
                empty += 1;
            } else if at == from.chunk {
                empty_from += 1;
            }
            if is_over {
                break;
            }
        }
        pool.chunks.remove(&mut self.chunks, empty_from, empty);
        self.join_chunks(pool, from.chunk);
        self.join_chunks(pool, from.chunk.saturating_sub(1));
    }

    /// Two chunks of few make one, so that there are never many more than are needed.
    fn join_chunks(&mut self, pool: &mut SentPool, at: usize) {
        let chunks = pool.chunks.get(&self.chunks);
        if let [first, second, ..] = &chunks[at.min(chunks.len())..]
            && first.places.len() + second.places.len() <= usize::from(CHUNK / 2)
        {
            self.move_tail(pool, at + 1, 0, at);
            pool.chunks.remove(&mut self.chunks, at + 1, 1);
        }
    }

    /// Places of one connection, as [`SentPool::used_by_all`] has those of all.
    pub fn places(&self, pool: &SentPool) -> (usize, usize) {
        let chunks = pool.chunks.get(&self.chunks);
        let places = chunks.iter().map(|chunk| Pool::<SentRange>::places_of(&chunk.places)).sum();
        (places, Pool::<Chunk>::places_of(&self.chunks))
    }

    pub fn clear(&mut self, pool: &mut SentPool) {
        for chunk in pool.chunks.get_mut(&self.chunks) {
            pool.places.clear(&mut chunk.places);
        }
        pool.chunks.clear(&mut self.chunks);
        self.len = 0;
    }
}
