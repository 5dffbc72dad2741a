//! A lane's two ends: [`toe_abi::lane`] in memory.
//!
//! **Publishing.** The sender writes a record behind the tail and moves the tail over it by compare-and-swap, which fails when the
//! receiver has diverted the lane meanwhile. A receiver that is about to sleep diverts it by compare-and-swap as well, which
//! fails when something was published. So one of the two knows, and the kernel's own queue, on which the receiver sleeps, is the
//! doorbell.
//!
//! **Order.** What the sender has published is older than what it sends by the kernel after it has seen the lane diverted: the
//! receiver takes the lane first. A lane is opened again when it is empty, whatever is in the kernel's queue by then, or gets there
//! from a sender that has not seen it yet. So the lane is *fresh* then: before the first record
//! is taken, the kernel's queue must be found empty, with a record in the lane ([`LaneReceiver::is_fresh`]). That can go wrong only if what is
//! younger than the record is in that queue, too: so a sender does not divert a lane of which nothing has been
//! taken since it was opened. If it is full, the datagram is lost, and would be in Linux: the ring has more room than the socket's
//! queue ([`LaneLayout::ring_len`]).
//!
//! Each end takes the other for hostile. It has its own place in the ring and reads only the other's; a place or a length that
//! cannot be is as good as the lane's end.

mod sleeping;

use crate::region::Region;
use crate::sync::{Ordering, Words};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Result;
use toe_abi::lane::{LaneLayout, LaneWord, RECORD_UNIT, VOID, header, parse_header, record_len};

/// Of a ring, the part that the receiver may be done with before it says so.
const PUBLISHED_IN_PARTS_OF: u64 = 16;
/// How often a sender tries to publish when the receiver opens the lane anew each time.
const PUBLISH_TRIES: u32 = 4;
/// The word of a lane that is empty changes less often under a receiver that looks again.
const DIVERT_TRIES: u32 = 8;

/// The memory of a lane, as the engine has it, or an end of it.
#[derive(Clone, Debug)]
pub struct LaneMemory<M = Region> {
    memory: M,
    ring_len: u64,
}

impl LaneMemory {
    /// The engine's side: makes the memory; the descriptor is for the two hosts.
    pub fn create(ring_len: u32) -> Result<(LaneMemory, OwnedFd)> {
        let (region, file) = Region::create(LaneLayout::len(ring_len))?;
        region.store_u64(LaneLayout::WORD, LaneWord::NEW.0, Ordering::Release);
        Ok((LaneMemory { memory: region, ring_len: u64::from(ring_len) }, file))
    }

    /// A host's side: maps what an engine made.
    pub fn map(file: impl AsFd, ring_len: u32) -> Result<LaneMemory> {
        let region = Region::map(file, LaneLayout::len(ring_len))?;
        Ok(LaneMemory { memory: region, ring_len: u64::from(ring_len) })
    }

    pub fn region(&self) -> &Region {
        &self.memory
    }

    /// Where the bytes of a record lie that begins at `position`, in two pieces: offsets in the region, and lengths.
    pub fn pieces(&self, position: u64, len: u32) -> [(u64, usize); 2] {
        let first = LaneWord::after(position, RECORD_UNIT) & (self.ring_len - 1);
        let to_end = (self.ring_len - first).min(u64::from(len));
        let rest = u64::from(len) - to_end;
        [(LaneLayout::RING + first, to_end as usize), (LaneLayout::RING, rest as usize)]
    }

    /// The same of `len` bytes from the record's byte `at` on.
    pub fn pieces_from(&self, position: u64, at: u32, len: u32) -> [(u64, usize); 2] {
        self.pieces(LaneWord::after(position, u64::from(at)), len)
    }

    /// Copies into a record that begins at `position`, from its byte `at` on.
    pub fn write(&self, position: u64, at: u32, bytes: &[u8]) {
        let mut rest = bytes;
        for (offset, len) in self.pieces_from(position, at, bytes.len() as u32) {
            let (piece, behind) = rest.split_at(len.min(rest.len()));
            // A place within the ring is within the memory.
            let _ = self.memory.write(offset, piece);
            rest = behind;
        }
    }

    /// Copies out of a record that begins at `position`, from its byte `at` on.
    pub fn read(&self, position: u64, at: u32, bytes: &mut [u8]) {
        let mut rest = bytes;
        for (offset, len) in self.pieces_from(position, at, rest.len() as u32) {
            let (piece, behind) = rest.split_at_mut(len.min(rest.len()));
            // As above.
            let _ = self.memory.read(offset, piece);
            rest = behind;
        }
    }
}

impl<M: Words> LaneMemory<M> {
    #[cfg(all(test, loom))]
    pub(crate) fn tail(&self) -> u64 {
        self.load().tail()
    }

    #[cfg(all(test, loom))]
    pub(crate) fn over(memory: M, ring_len: u64) -> LaneMemory<M> {
        LaneMemory { memory, ring_len }
    }

    /// Ends the lane, whoever calls: nothing is published any more. What was can still be read.
    pub fn close(&self) {
        self.memory.fetch_or_u64(LaneLayout::WORD, LaneWord::CLOSED, Ordering::AcqRel);
    }

    pub fn is_closed(&self) -> bool {
        self.load().is_closed()
    }

    pub fn ring_len(&self) -> u64 {
        self.ring_len
    }

    fn load(&self) -> LaneWord {
        LaneWord(self.memory.load_u64(LaneLayout::WORD, Ordering::Acquire))
    }

    fn replace(&self, old: LaneWord, new: LaneWord) -> bool {
        self.memory.replace_u64(LaneLayout::WORD, old.0, new.0, Ordering::AcqRel)
    }

    fn record_at(&self, position: u64) -> u64 {
        LaneLayout::RING + (position & (self.ring_len - 1))
    }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// Its bytes belong at this place; then [`LaneSender::publish`].
    Lane { position: u64 },
    /// It goes by the kernel; what follows does, too, until the receiver has opened the lane again.
    Kernel,
    /// There is no room now. Who does not wait goes on by [`LaneSender::overflow`].
    Full,
}

/// The sending end.
#[derive(Debug)]
pub struct LaneSender<M = Region> {
    lane: LaneMemory<M>,
    /// The lane as it was when it was last seen open, with the tail, which is nobody else's to move.
    word: LaneWord,
    /// What the receiver was last known to be done with.
    head: u64,
    /// The tail when this opening was first seen.
    opened_at: u64,
    /// Of which sleep the receiver was woken last: what follows may be published.
    rung: Option<u64>,
    is_over: bool,
}

impl<M: Words> LaneSender<M> {
    pub fn new(lane: LaneMemory<M>) -> LaneSender<M> {
        LaneSender { lane, word: LaneWord::NEW, head: 0, opened_at: 0, rung: None, is_over: false }
    }

    pub fn lane(&self) -> &LaneMemory<M> {
        &self.lane
    }

    /// Nothing goes by it any more.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Where a datagram of `len` bytes goes.
    #[inline]
    pub fn offer(&mut self, len: u32) -> Offer {
        if !self.is_open() {
            return Offer::Kernel;
        }
        let need = record_len(len);
        if self.room() < need { self.ask_for_room(need) } else { Offer::Lane { position: self.word.tail() } }
    }

    /// The bytes are in their place: the receiver may have them. `false`: it does not look any more; the datagram goes by the kernel.
    #[inline]
    pub fn publish(&mut self, len: u32) -> bool {
        self.publish_as(len, false)
    }

    /// The same of a record between two sockets that begins with a head, or does not.
    #[inline]
    pub fn publish_as(&mut self, len: u32, has_datagram_header: bool) -> bool {
        let tail = self.word.tail();
        self.lane.memory.store_u64(
            self.lane.record_at(tail),
            header(len, has_datagram_header),
            Ordering::Relaxed,
        );
        for _ in 0..PUBLISH_TRIES {
            let published = self.word.with_tail(LaneWord::after(tail, record_len(len)));
            if self.lane.replace(self.word, published) {
                self.word = published;
                return true;
            }
            if !self.is_open() {
                return false;
            }
        }
        self.divert();
        false
    }

    /// The next datagram goes by the kernel, past what is in the lane.
    pub fn divert(&mut self) {
        self.lane.memory.fetch_or_u64(LaneLayout::WORD, LaneWord::DIVERTED, Ordering::AcqRel);
    }

    pub fn close(&mut self) {
        self.is_over = true;
        self.lane.close();
    }

    /// What the receiver was last known to be done with.
    pub fn done_with(&self) -> u64 {
        self.head
    }

    /// Which opening or sleep was the last that was seen.
    pub fn opening(&self) -> u64 {
        self.word.opening()
    }

    /// Looks whether the receiver does.
    #[inline]
    fn is_open(&mut self) -> bool {
        let now = LaneWord(self.lane.memory.load_u64(LaneLayout::WORD, Ordering::Relaxed));
        now == self.word && now.is_open() || self.has_changed(now)
    }

    /// Takes note of a word that is another one; whether it is that of an open lane.
    #[cold]
    fn has_changed(&mut self, now: LaneWord) -> bool {
        if self.is_over || now.is_closed() || now.tail() != self.word.tail() {
            self.close();
            return false;
        }
        if now.is_open() && now.opening() != self.word.opening() {
            self.opened_at = now.tail();
        }
        let is_open = now.is_open() || now.is_asleep() && self.rung == Some(now.opening());
        if is_open {
            self.word = now;
        }
        is_open
    }

    fn room(&self) -> u64 {
        self.lane.ring_len.saturating_sub(self.word.used_from(self.head))
    }

    #[cold]
    fn ask_for_room(&mut self, need: u64) -> Offer {
        let head = self.lane.memory.load_u64(LaneLayout::HEAD, Ordering::Acquire);
        let went = LaneWord::distance(self.head, head);
        if LaneWord::after(head, 0) != head || went > self.word.used_from(self.head) {
            // Beyond the tail, or back.
            self.close();
            return Offer::Kernel;
        }
        self.head = head;
        if self.room() < need { Offer::Full } else { Offer::Lane { position: self.word.tail() } }
    }

    /// A datagram for which there is no room. `true`: it goes by the kernel, as do those that follow. `false`: it is lost, and Linux
    /// says nothing of it either.
    #[cold]
    pub fn overflow(&mut self) -> bool {
        let taken = LaneWord::distance(self.opened_at, self.head);
        let is_touched = taken > 0 && taken <= self.word.used_from(self.opened_at);
        if is_touched {
            self.divert();
        }
        is_touched
    }
}

/// What is next in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it begins ([`LaneMemory::pieces`]).
    pub position: u64,
    pub len: u32,
    /// Between two sockets: it begins with a head.
    pub has_datagram_header: bool,
}

/// There is something in the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotEmpty;

/// The receiving end.
#[derive(Debug)]
pub struct LaneReceiver<M = Region> {
    lane: LaneMemory<M>,
    /// As it was last seen.
    word: LaneWord,
    head: u64,
    /// Bytes that were ever published, as far as seen.
    came: u64,
    /// The head that the sender knows.
    published: u64,
    /// The tail up to which these were counted.
    counted: u64,
    /// What was to wake it has come, or something else: it is known in the kernel's queue.
    woken: bool,
    /// Looks in vain at a lane that is ringing.
    ringing: u32,
    /// Since the lane was opened the kernel's queue has not been found empty with a record in the lane.
    fresh: bool,
    /// Nothing has been taken since then.
    untouched: bool,
    /// It was this side that diverted it.
    parked: bool,
    /// The sender broke the contract: nothing of it is read any more.
    broken: bool,
}

impl<M: Words> LaneReceiver<M> {
    pub fn new(lane: LaneMemory<M>) -> LaneReceiver<M> {
        LaneReceiver {
            lane,
            word: LaneWord::NEW,
            head: 0,
            came: 0,
            published: 0,
            counted: 0,
            woken: false,
            ringing: 0,
            fresh: false,
            untouched: false,
            parked: true,
            broken: false,
        }
    }

    pub fn lane(&self) -> &LaneMemory<M> {
        &self.lane
    }

    /// Whether there is nothing to be read. Looks at the lane if nothing is known to be there.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.word.tail() == self.head && {
            self.look();
            self.word.tail() == self.head
        }
    }

    /// Whether something has been published since the last look, or the lane closed. Does not look itself.
    pub fn has_events(&self) -> bool {
        !self.broken && {
            let now = self.lane.load();
            now.tail() != self.head || now.is_closed()
        }
    }

    /// The record that is next. `None`: there is none.
    #[inline]
    pub fn first(&mut self) -> Option<Record> {
        loop {
            if self.is_empty() || self.word.is_asleep() {
                return None;
            }
            let position = self.head;
            // Once: the sender may write another one meanwhile.
            let header = self.lane.memory.load_u64(self.lane.record_at(position), Ordering::Relaxed);
            let parsed = parse_header(header & !VOID)
                .filter(|(len, _)| record_len(*len) <= self.word.used_from(position));
            let Some((len, has_datagram_header)) = parsed else {
                self.give_up();
                return None;
            };
            let record = Record { position, len, has_datagram_header };
            if header & VOID == 0 {
                return Some(record);
            }
            self.take(record);
        }
    }

    /// What [`LaneReceiver::first`] gave has been read.
    #[inline]
    pub fn take(&mut self, record: Record) {
        self.head = LaneWord::after(record.position, record_len(record.len));
        let unpublished = LaneWord::distance(self.published, self.head);
        // The first of an opening at once: the sender must know that something was taken.
        if unpublished >= self.lane.ring_len / PUBLISHED_IN_PARTS_OF || core::mem::take(&mut self.untouched) {
            self.tell();
        }
    }

    /// Whether the kernel's queue has to be found empty before the next record may be taken.
    pub fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// The kernel's queue was found empty, after a record was seen here if there is one.
    pub fn confirm(&mut self) {
        self.fresh &= self.word.tail() == self.head;
    }

    /// The defect that the model is to find.
    #[cfg(all(test, loom))]
    pub(crate) fn forget_opening(&mut self) {
        self.fresh = false;
    }

    /// Bytes of the ring that were ever filled: another number when something has come. Looks at the lane.
    pub fn came(&mut self) -> u64 {
        self.look();
        self.came
    }

    /// Whether the sender goes by the kernel, as far as known.
    pub fn is_diverted(&self) -> bool {
        self.word.is_diverted()
    }

    /// Whether the receiver sleeps beside it, or did, and has not claimed it since.
    pub fn is_asleep(&self) -> bool {
        self.word.is_asleep()
    }

    /// Whether the sender has diverted it: it would use it if it could.
    pub fn is_wanted(&self) -> bool {
        self.word.is_diverted() && !self.parked
    }

    /// Whether one side has left it, as far as known.
    pub fn is_closed(&self) -> bool {
        self.broken || self.word.is_closed()
    }

    /// The receiver is not going to look: from here on everything comes by the kernel.
    pub fn divert(&mut self) -> core::result::Result<(), NotEmpty> {
        for _ in 0..DIVERT_TRIES {
            if !self.is_empty() {
                return Err(NotEmpty);
            }
            if !self.word.is_open() || self.lane.replace(self.word, self.word.diverted()) {
                self.word = self.word.diverted();
                self.parked = true;
                return Ok(());
            }
            // Something was published, or it is diverted or closed by now.
            self.look();
        }
        self.give_up();
        Ok(())
    }

    /// The sender may use the lane again, if that is empty. What came by the kernel meanwhile comes first: the lane is fresh.
    pub fn open(&mut self) {
        self.look();
        if self.word.is_diverted()
            && !self.is_closed()
            && self.word.tail() == self.head
            && !self.word.is_returning()
            && (!self.word.is_ringing() || self.woken)
        {
            self.tell();
            let opened = self.word.opened();
            if self.lane.replace(self.word, opened) {
                self.word = opened;
                (self.fresh, self.untouched, self.parked) = (true, true, false);
            }
        }
    }

    pub fn close(&mut self) {
        self.lane.close();
        self.look();
    }

    fn tell(&mut self) {
        self.published = self.head;
        self.lane.memory.store_u64(LaneLayout::HEAD, self.head, Ordering::Release);
    }

    #[inline]
    fn look(&mut self) {
        if self.broken {
            return;
        }
        let now = self.lane.load();
        if now.used_from(self.head) > self.lane.ring_len {
            self.give_up();
        } else {
            // Nothing of what is in a lane that is ringing has come yet.
            let is_hidden = now.is_returning() || now.is_ringing() && !self.woken;
            let now = if is_hidden { now.with_tail(self.head) } else { now };
            if !is_hidden {
                self.came = self.came.wrapping_add(LaneWord::distance(self.counted, now.tail()));
                self.counted = now.tail();
            }
            self.word = now;
        }
    }

    /// Nothing more is read.
    #[cold]
    fn give_up(&mut self) {
        self.broken = true;
        self.lane.close();
        self.word = LaneWord(LaneWord::CLOSED).with_tail(self.head);
    }
}
