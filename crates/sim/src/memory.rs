//! Session memory and completion rings, as the engine reaches them: the daemon's part of the world, with its own eye on
//! what the engine touches. Kept from seed to seed, because making it anew would cost more than a short run.

use crate::channels::Channels;
use crate::checkers::captures::Captures;
use crate::checkers::{Checker, Verdict, isolation};
use crate::entries::Entry;
use crate::heads::LentPlaces;
use crate::random::{Draws, Random};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use toe_abi::command::FlowInfo;
use toe_abi::entry::Completion;
use toe_abi::owner_word::Owned;
use toe_abi::region::{FLOW_DETAIL_LEN, FLOW_INFO_LEN, OWNER_WORD_LEN, RegionLayout};
use toe_base::{FlowId, Instant, SessionId};
use toe_engine::kit::hand_over;
use toe_engine::{
    ChannelRequest, ControlEvent, Delivered, DriverRequest, Engine, GivenBack, HostMemory, Incoming,
    STAGING_LEN, SharedMemory,
};
use zerocopy::FromBytes;

/// What fresh memory holds, and memory that nobody may read any more: a byte of it in a stream is noticed.
pub const SPOILT: u8 = 0xdd;

/// Which part of a region a range lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Receive,
    Send,
    /// The records of sockets' options.
    Options,
    /// In neither, or not wholly in one.
    Outside,
}

/// The data parts of one session's region. Offsets count from the region's start, whose rings and tables are not here.
#[derive(Debug, Default)]
struct Region {
    bytes: Vec<u8>,
    base: u64,
    /// Where the receive part starts, behind the records of options; for staging memory, the start.
    receive: u64,
    /// Where the send part starts; for staging memory, the end.
    send: u64,
    end: u64,
    /// Bytes from the start of each part that were ever written to.
    dirty: [u64; 2],
    /// Grows on demand: the engine's staging memory is larger than anything that a run needs.
    grows: bool,
}

impl Region {
    fn reset(&mut self, layout: &RegionLayout) {
        self.spoil_dirty();
        self.base = layout.socket_options_offset();
        self.receive = layout.receive_offset();
        self.send = layout.send_offset();
        self.end = layout.len();
        let len = (self.end - self.base) as usize;
        self.bytes.resize(len, SPOILT);
        self.grows = false;
    }

    fn reset_staging(&mut self) {
        self.spoil_dirty();
        *self = Region { bytes: std::mem::take(&mut self.bytes), end: STAGING_LEN, ..Region::default() };
        (self.send, self.grows) = (self.end, true);
    }

    fn spoil_dirty(&mut self) {
        let starts = [0, self.send - self.base];
        for (start, dirty) in starts.into_iter().zip(std::mem::take(&mut self.dirty)) {
            let len = self.bytes.len() as u64;
            let (start, end) = (start.min(len), (start + dirty).min(len));
            self.bytes[start as usize..end as usize].fill(SPOILT);
        }
    }

    fn part(&self, range: &Range<u64>) -> Part {
        if range.start >= self.receive && range.end <= self.send {
            Part::Receive
        } else if range.start >= self.send && range.end <= self.end {
            Part::Send
        } else if range.start >= self.base && range.end <= self.receive {
            Part::Options
        } else {
            Part::Outside
        }
    }

    /// The range as an index; it was checked to lie in one part.
    fn index(&mut self, range: &Range<u64>, writes: bool) -> Range<usize> {
        let (start, end) = (range.start - self.base, range.end - self.base);
        if self.grows && end > self.bytes.len() as u64 {
            self.bytes.resize(end.next_power_of_two() as usize, SPOILT);
        }
        if writes {
            let part = usize::from(range.start >= self.send);
            let from = if part == 1 { self.send - self.base } else { 0 };
            self.dirty[part] = self.dirty[part].max(end - from);
        }
        start as usize..end as usize
    }
}

/// One session's completion ring.
#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<Completion>,
    /// What its program has published and the engine has not taken.
    published: VecDeque<Entry>,
    /// The ends of each connection that an `Accepted` names, in their order.
    accepted: VecDeque<(SocketAddr, SocketAddr)>,
    infos: Vec<FlowInfo>,
    /// Where the owner words begin, and what they are.
    words_at: u64,
    words: Vec<AtomicU64>,
    len: usize,
    open: bool,
}

/// All of one engine's sessions.
#[derive(Debug)]
pub struct Memory {
    regions: Vec<Region>,
    rings: Vec<Ring>,
    /// Sessions with new completions, as bits.
    woken: u64,
    refuse_ppm: u32,
    random: Random,
    giving_back: Random,
    /// What the engine was told that it goes back later.
    going_back: VecDeque<(SessionId, Range<u64>)>,
    pub refused: u64,
    /// The ends of the flow whose information record was written last.
    last_info: Option<(SocketAddr, SocketAddr)>,
    pub verdict: Verdict,
    /// For a test of the checkers: the engine's writes land this much further on.
    pub misplace_by: u64,
    /// The same: data completions are lost.
    pub loses_data: bool,
    pub channels: Channels,
    /// What the engine wants done.
    pub requests: VecDeque<DriverRequest>,
    pub captures: Captures,
    /// While a link is to write itself.
    pub lent: Option<LentPlaces>,
    /// What programs publish waits for the engine's turn.
    pub keeps_entries: bool,
}

/// Sessions that one engine of a run may have, the staging memory included.
pub const SESSIONS_MAX: usize = 64;

/// There is no memory for one channel in so many.
const REFUSED_ONE_IN: u32 = 8;

/// What goes back later is gone at one in so many looks.
const GONE_ONE_IN: u32 = 4;

fn ends(info: &FlowInfo) -> Option<(SocketAddr, SocketAddr)> {
    Some((info.local.to_socket_addr()?, info.remote.to_socket_addr()?))
}

impl Memory {
    pub fn new(random: Random) -> Memory {
        Memory {
            regions: Vec::new(),
            rings: Vec::new(),
            woken: 0,
            refuse_ppm: 0,
            giving_back: random.beside(Draws::GivingBack),
            going_back: VecDeque::new(),
            random,
            refused: 0,
            last_info: None,
            verdict: Verdict::default(),
            misplace_by: 0,
            loses_data: false,
            channels: Channels::default(),
            requests: VecDeque::new(),
            captures: Captures::default(),
            lent: None,
            keeps_entries: false,
        }
    }

    /// As new, with the memory of the last run.
    pub fn reset(&mut self, random: Random) {
        for ring in &mut self.rings {
            ring.entries.clear();
            ring.published.clear();
            ring.accepted.clear();
            ring.infos.clear();
            ring.open = false;
        }
        let (regions, rings) = (std::mem::take(&mut self.regions), std::mem::take(&mut self.rings));
        *self = Memory { regions, rings, ..Memory::new(random) };
        self.reserve(0);
        self.regions[0].reset_staging();
    }

    fn reserve(&mut self, at: usize) {
        while self.regions.len() <= at {
            self.regions.push(Region::default());
            self.rings.push(Ring::default());
        }
    }

    pub fn open(&mut self, session: SessionId, layout: &RegionLayout, ring_len: usize) {
        self.reserve(session.index());
        // What was the last one's concerns nobody.
        self.going_back.retain(|(other, _)| *other != session);
        self.regions[session.index()].reset(layout);
        let ring = &mut self.rings[session.index()];
        ring.entries.clear();
        ring.published.clear();
        ring.accepted.clear();
        ring.infos.clear();
        ring.infos.resize(layout.flows as usize, FlowInfo::default());
        ring.words.clear();
        ring.words.resize_with(layout.flows as usize, AtomicU64::default);
        ring.words_at = layout.owner_word(0);
        (ring.len, ring.open) = (ring_len, true);
    }

    /// The process is gone; nobody takes its completions any more.
    pub fn close_ring(&mut self, session: SessionId) {
        let ring = &mut self.rings[session.index()];
        ring.entries.clear();
        ring.published.clear();
        ring.accepted.clear();
        ring.open = false;
    }

    pub fn set_refusals(&mut self, ppm: u32) {
        self.refuse_ppm = ppm;
    }

    pub fn set_ring_len(&mut self, session: SessionId, len: usize) {
        self.rings[session.index()].len = len;
    }

    /// Sessions that were told something since the last call, as bits.
    pub fn take_woken(&mut self) -> u64 {
        std::mem::take(&mut self.woken)
    }

    pub fn take_last_info(&mut self) -> Option<(SocketAddr, SocketAddr)> {
        self.last_info.take()
    }

    /// The next completion, and for `Accepted` the ends of the connection.
    pub fn next(&mut self, session: SessionId) -> Option<(Completion, Option<(SocketAddr, SocketAddr)>)> {
        let ring = &mut self.rings[session.index()];
        let completion = ring.entries.pop_front()?;
        let ends = matches!(completion, Completion::Accepted { .. }).then(|| ring.accepted.pop_front());
        Some((completion, ends.flatten()))
    }

    pub fn publish(&mut self, session: SessionId, entry: Entry) {
        self.rings[session.index()].published.push_back(entry);
    }

    pub fn first_published(&self, session: SessionId) -> Option<Entry> {
        self.rings.get(session.index())?.published.front().copied()
    }

    pub fn next_published(&mut self, session: SessionId) -> Option<Entry> {
        self.rings.get_mut(session.index())?.published.pop_front()
    }

    /// A program's end of its flow's owner word: puts `to` in the place of `from`; whether that stood there.
    pub fn owns(&mut self, session: SessionId, flow: FlowId, (from, to): (Owned, Owned)) -> bool {
        let word = &self.rings[session.index()].words[flow.slot()];
        word.compare_exchange(from.word(flow), to.word(flow), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether the engine has taken the flow from the session.
    pub fn is_withdrawn(&self, session: SessionId, flow: FlowId) -> bool {
        self.rings[session.index()].words[flow.slot()].load(Ordering::Relaxed) == Owned::Withdrawn.word(flow)
    }

    /// A hostile program's owner words say anything.
    pub fn scribble_word(&mut self, session: SessionId, slot: usize, word: u64) {
        if let Some(place) = self.rings[session.index()].words.get_mut(slot) {
            *place.get_mut() = word;
        }
    }

    fn owner_word(&mut self, session: SessionId, offset: u64) -> Option<&AtomicU64> {
        let ring = self.rings.get_mut(session.index())?;
        let slot = offset.checked_sub(ring.words_at)? / OWNER_WORD_LEN;
        let word = ring.words.get(slot as usize);
        if word.is_none() {
            let what = format!("the engine changed a word of session {} at {offset}", session.0);
            self.verdict.fail(Checker::Isolation, what);
        }
        word
    }

    /// A record of what the session is told of a flow. `false`: it is none.
    fn write_notified(&mut self, session: SessionId, offset: u64, bytes: &[u8]) -> bool {
        let Some(ring) = self.rings.get_mut(session.index()) else { return false };
        let count = ring.infos.len() as u64;
        let slot = |from: u64, len: u64| {
            let at = offset.checked_sub(from).filter(|at| at % len == 0 && bytes.len() as u64 == len)?;
            Some(at / len).filter(|slot| *slot < count)
        };
        let infos_at = ring.words_at - count * FLOW_INFO_LEN;
        if let (Some(slot), Ok(info)) = (slot(infos_at, FLOW_INFO_LEN), FlowInfo::read_from_bytes(bytes)) {
            // The place of an id that is given in advance has none.
            self.last_info = ends(&info).or(self.last_info);
            ring.infos[slot as usize] = info;
            return true;
        }
        // These programs never look at the details.
        slot(ring.words_at + count * OWNER_WORD_LEN, FLOW_DETAIL_LEN).is_some()
    }

    /// Takes what the engine has to tell into the rings. How many flows that was of.
    pub fn hear(&mut self, engine: &mut Engine) -> usize {
        let mut flows = 0;
        while let Some(queue_set) = engine.poll_queue_set() {
            let room = self.room(queue_set.0);
            let batch = engine.poll_completions(queue_set, room, self);
            flows += batch.flows;
            batch.completions.iter().for_each(|completion| self.post(queue_set.0, *completion));
        }
        flows
    }

    /// There are no sockets that datagrams could come for.
    pub fn take(&mut self, clock: Instant, engine: &mut Engine, incoming: Option<Incoming<'_>>) {
        hand_over(clock, engine, self, incoming, |_, _| Delivered::Nowhere);
    }

    /// How many completions a ring takes now.
    fn room(&mut self, session: SessionId) -> usize {
        let Some(ring) = self.rings.get(session.index()) else { return 0 };
        if !ring.open {
            // The daemon has unmapped it: what is posted goes nowhere.
            return usize::MAX;
        }
        if ring.entries.len() >= ring.len || self.random.ppm(self.refuse_ppm) {
            self.refused += 1;
            // It is full, so there is something to be taken; whoever takes it makes room.
            self.woken |= 1 << session.index();
            return 0;
        }
        // One that may refuse may do so with each.
        if self.refuse_ppm > 0 { 1 } else { ring.len - ring.entries.len() }
    }

    fn post(&mut self, session: SessionId, completion: Completion) {
        let Some(ring) = self.rings.get_mut(session.index()).filter(|ring| ring.open) else { return };
        if let Completion::Accepted { flow, .. } = completion
            && let Some(ends) = ring.infos.get(flow.slot()).and_then(ends)
        {
            ring.accepted.push_back(ends);
        }
        if let Completion::Yield { flow } = completion {
            self.captures.was_told(session, flow);
        }
        if !(self.loses_data && matches!(completion, Completion::Data { .. })) {
            ring.entries.push_back(completion);
        }
        self.woken |= 1 << session.index();
    }

    /// Does with a channel's memory what the engine wants; what it is to hear of that.
    pub fn serve_channel(&mut self, request: ChannelRequest) -> Option<ControlEvent> {
        match request {
            ChannelRequest::Open { channel, .. } if self.giving_back.one_in(REFUSED_ONE_IN) => {
                Some(ControlEvent::ChannelRefused(channel))
            }
            ChannelRequest::Open { channel, .. } => {
                self.channels.open(channel, &mut self.verdict);
                Some(ControlEvent::ChannelMade(channel))
            }
            ChannelRequest::Settle(channel) => Some(ControlEvent::ChannelSettled(channel)),
            ChannelRequest::Close(channel) => {
                self.channels.close(channel, &mut self.verdict);
                None
            }
        }
    }

    /// What the session is told of the flow in `slot`.
    pub fn info(&self, session: SessionId, slot: usize) -> FlowInfo {
        self.rings[session.index()].infos[slot]
    }

    /// The program's own look at its memory.
    pub fn program_view(&mut self, session: SessionId, offset: u64, len: u32) -> &mut [u8] {
        let region = &mut self.regions[session.index()];
        let index = region.index(&(offset..offset + u64::from(len)), true);
        &mut region.bytes[index]
    }

    /// One range that was to go back later is gone now; `all`: surely, if there is one.
    pub fn next_given_back(&mut self, all: bool) -> Option<(SessionId, Range<u64>)> {
        if self.going_back.is_empty() || !(all || self.giving_back.one_in(GONE_ONE_IN)) {
            return None;
        }
        let (session, range) = self.going_back.pop_front()?;
        self.spoil(session, &range);
        Some((session, range))
    }

    /// Nobody needs these bytes; whoever still does notices.
    fn spoil(&mut self, session: SessionId, range: &Range<u64>) {
        let region = &mut self.regions[session.index()];
        let index = region.index(range, false);
        // What was never written to is as new already.
        let dirty = (region.dirty[0] as usize).clamp(index.start, index.end);
        region.bytes[index.start..dirty].fill(SPOILT);
    }

    fn may_write(&mut self, session: SessionId, range: &Range<u64>) -> bool {
        let part = self.regions.get(session.index()).map_or(Part::Outside, |r| r.part(range));
        let found = isolation::may_write(session, part, range);
        self.verdict.check(Checker::Isolation, found);
        matches!(part, Part::Receive | Part::Options)
    }

    fn may_read(&mut self, session: SessionId, range: &Range<u64>) -> bool {
        let part = self.regions.get(session.index()).map_or(Part::Outside, |r| r.part(range));
        let found = isolation::may_read(session, part, range);
        self.verdict.check(Checker::Isolation, found);
        part != Part::Outside
    }
}

impl HostMemory for Memory {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        if self.write_notified(session, offset, bytes) {
            return;
        }
        let offset = offset + self.misplace_by;
        let range = offset..offset + bytes.len() as u64;
        if self.may_write(session, &range) {
            let region = &mut self.regions[session.index()];
            let index = region.index(&range, true);
            region.bytes[index].copy_from_slice(bytes);
        }
    }

    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        self.take_in_lent();
        let range = offset..offset + out.len() as u64;
        if self.may_read(session, &range) {
            let region = &mut self.regions[session.index()];
            let index = region.index(&range, false);
            out.copy_from_slice(&region.bytes[index]);
        }
    }

    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        self.take_in_lent();
        let source = from.1..from.1 + u64::from(len);
        let dest = to.1..to.1 + u64::from(len);
        if !self.may_read(from.0, &source) || !self.may_write(to.0, &dest) {
            return;
        }
        let source = self.regions[from.0.index()].index(&source, false);
        let dest = self.regions[to.0.index()].index(&dest, true);
        if from.0 == to.0 {
            self.regions[to.0.index()].bytes.copy_within(source, dest.start);
        } else if let Ok([a, b]) = self.regions.get_disjoint_mut([from.0.index(), to.0.index()]) {
            b.bytes[dest].copy_from_slice(&a.bytes[source]);
        }
    }

    fn lend(&self, session: SessionId, offset: u64, len: u32) -> Option<&[AtomicU8]> {
        self.lent.as_ref()?.lend(session, offset, len)
    }

    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        match memory {
            SharedMemory::OfSession(session) => self.owner_word(session, offset),
            SharedMemory::OfPair(id) => self.channels.word(id, offset, &mut self.verdict),
        }
    }

    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) -> GivenBack {
        let range = offset..offset + u64::from(len);
        if !self.may_write(session, &range) {
            return GivenBack::Retained;
        }
        if session.0 != 0 && self.giving_back.one_in(2) {
            self.going_back.push_back((session, range));
            return GivenBack::Later;
        }
        self.spoil(session, &range);
        GivenBack::Now
    }
}
