//! For tests, examples and measurements: hosts without memory, who are told things and touch nothing.

use crate::Engine;
use crate::hostif::HostSide;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::{BTreeMap, VecDeque};
use toe_abi::channel::{ALL_READ, ChannelLayout, SLOT_LEN, Side, SlotLine};
use toe_abi::entry::Completion;
use toe_base::{QueueSetId, SessionId};
use toe_tcp::memory::{HostMemory, SharedMemory};

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

impl HostMemory for SharedWords {
    fn write(&mut self, _: SessionId, _: u64, _: &[u8]) {}
    fn read(&mut self, _: SessionId, _: u64, _: &mut [u8]) {}
    fn copy(&mut self, _: (SessionId, u64), _: (SessionId, u64), _: u32) {}
    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        Some(self.at(memory, offset))
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Memoryless {
    /// What was posted, and to whom.
    pub completions: VecDeque<(SessionId, Completion)>,
    /// Rings of these are full.
    pub full: Vec<SessionId>,
    /// How often a ring was looked at.
    pub looks: usize,
}

impl HostMemory for Memoryless {
    fn write(&mut self, _: SessionId, _: u64, _: &[u8]) {}
    fn read(&mut self, _: SessionId, _: u64, out: &mut [u8]) {
        out.fill(0);
    }
    fn copy(&mut self, _: (SessionId, u64), _: (SessionId, u64), _: u32) {}
}

impl HostSide for Memoryless {}

impl Memoryless {
    /// Takes all that the engine has to tell.
    pub fn hear(&mut self, engine: &mut Engine) {
        let room = |host: &mut Memoryless, (session, _)| {
            host.looks += 1;
            if host.full.contains(&session) { 0 } else { usize::MAX }
        };
        tell(engine, self, room, |host, (session, _), completion| {
            host.completions.push_back((session, completion));
        });
    }
}

/// Tells each queue set what there is for it, as far as it has room. How many flows were told something.
pub fn tell<H: HostSide>(
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
