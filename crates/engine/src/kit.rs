//! For tests, examples and measurements: hosts who are told things, with as much memory as they are given.

use crate::{ControlEvent, Delivered, Engine, Incoming};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use toe_abi::channel::{ALL_READ, ChannelLayout, SLOT_LEN, Side, SlotLine};
use toe_abi::entry::Completion;
use toe_base::{Instant, QueueSetId, SessionId};
use toe_tcp::memory::{GivenBack, HostMemory, SharedMemory};

/// Words that hosts share, each 0 until somebody changes it.
#[derive(Debug, Default)]
pub struct SharedWords(BTreeMap<(SharedMemory, u64), AtomicU64>);

impl SharedWords {
    pub fn at(&mut self, memory: SharedMemory, offset: u64) -> &AtomicU64 {
        self.0.entry((memory, offset)).or_default()
    }

    /// A word of a channel whose hosts refer to a slot no more once its use has ended.
    pub fn of_leaving_hosts(&mut self, channel: SharedMemory, offset: u64) -> &AtomicU64 {
        let at = (offset - ChannelLayout::line(0, Side::Zero)) % (SLOT_LEN / 2);
        if at == SlotLine::DONE {
            let ended = self.at(channel, offset - at + SlotLine::READ).load(Ordering::Relaxed) == ALL_READ;
            self.at(channel, offset).fetch_or(ended.into(), Ordering::Relaxed);
        }
        self.at(channel, offset)
    }

    pub fn forget(&mut self, memory: SharedMemory) {
        self.0.retain(|(of, _), _| *of != memory);
    }
}

/// Memory that is not needed is spoilt with this, so that whoever still reads it notices.
const SPOILT: u8 = 0xdd;

/// See the module.
#[derive(Debug, Default)]
pub struct FakeHosts {
    /// Of sessions whose bytes matter, of which nothing lies beyond it; of another nothing is kept, and zeros are read.
    pub memory: BTreeMap<SessionId, Vec<u8>>,
    /// If there are any.
    pub words: Option<SharedWords>,
    /// What was posted, and to whom.
    pub completions: VecDeque<(SessionId, Completion)>,
    /// Rings of these are full.
    pub full: Vec<SessionId>,
    /// How often a ring was looked at.
    pub looks: usize,
    /// Bytes that were copied, the lowest place that they went to, and the first beyond all.
    pub copied: u64,
    pub copied_to: Option<(u64, u64)>,
}

impl FakeHosts {
    fn bytes_at(&mut self, session: SessionId, offset: u64, len: usize) -> Option<&mut [u8]> {
        Some(&mut self.memory.get_mut(&session)?[offset as usize..][..len])
    }
}

impl HostMemory for FakeHosts {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        self.bytes_at(session, offset, bytes.len())
            .into_iter()
            .for_each(|place| place.copy_from_slice(bytes));
    }
    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        match self.bytes_at(session, offset, out.len()) {
            Some(place) => out.copy_from_slice(place),
            None => out.fill(0),
        }
    }
    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        let (low, high) = self.copied_to.unwrap_or((to.1, to.1));
        self.copied += u64::from(len);
        self.copied_to = Some((low.min(to.1), high.max(to.1 + u64::from(len))));
        if let Some(bytes) = self.bytes_at(from.0, from.1, len as usize).map(|place| place.to_vec()) {
            self.write(to.0, to.1, &bytes);
        }
    }
    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        Some(self.words.as_mut()?.at(memory, offset))
    }
    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) -> GivenBack {
        let Some(place) = self.bytes_at(session, offset, len as usize) else { return GivenBack::Retained };
        place.fill(SPOILT);
        GivenBack::Now
    }
}

impl FakeHosts {
    /// Takes all that the engine has to tell.
    pub fn hear(&mut self, engine: &mut Engine) {
        let room = |host: &mut FakeHosts, (session, _)| {
            host.looks += 1;
            if host.full.contains(&session) { 0 } else { usize::MAX }
        };
        tell(engine, self, room, |host, (session, _), completion| {
            host.completions.push_back((session, completion));
        });
    }
}

/// Tells each queue set what there is for it, as far as it has room. How many flows were told something.
pub fn tell<H: HostMemory>(
    engine: &mut Engine,
    host: &mut H,
    room: impl Fn(&mut H, (SessionId, QueueSetId)) -> usize,
    take: impl Fn(&mut H, (SessionId, QueueSetId), Completion),
) -> usize {
    let mut flows = 0;
    while let Some(queue_set) = engine.poll_queue_set() {
        let room = room(host, queue_set);
        let told = engine.poll_completions(queue_set, room, host);
        told.completions.iter().for_each(|completion| take(host, queue_set, *completion));
        flows += told.flows;
    }
    flows
}

/// Hands over what came for sockets, whole, to where `put` puts it.
pub fn hand_over<H: HostMemory>(
    now: Instant,
    engine: &mut Engine,
    host: &mut H,
    incoming: Option<Incoming<'_>>,
    mut put: impl FnMut(&mut H, &Incoming<'_>) -> Delivered,
) {
    let mut bytes = Vec::new();
    let mut next = match incoming {
        Some(Incoming::Datagram(one)) if one.read(&mut bytes) => Some(one.with_text(&bytes)),
        whole => whole,
    };
    while let Some(incoming) = next {
        let is_there = !matches!(&incoming, Incoming::Datagram(one) if one.tail.is_some());
        let became = if is_there { put(host, &incoming) } else { Delivered::Nowhere };
        let (over, rest) = incoming.became(became);
        if let Some(over) = over {
            engine.handle_control(now, ControlEvent::HandedOver(over), host);
        }
        next = rest;
    }
}
