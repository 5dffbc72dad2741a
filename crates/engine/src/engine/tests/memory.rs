//! What the engine reaches of its hosts in tests: their memories, their completion rings, and the frames that it sends.

use crate::kit::{SharedWords, hand_over, tell};
use crate::{Delivered, Engine, GivenBack, HostMemory, Incoming, STAGING_LEN, SharedMemory};
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use toe_abi::command::FlowInfo;
use toe_abi::entry::Completion;
use toe_abi::owner_word::Owned;
use toe_abi::region::RegionLayout;
use toe_abi::tcp_info::FlowDetail;
use toe_base::{DatagramId, Endpoint, FlowId, Instant, SessionId};
use toe_wire::link::{FrameSink, TxOffload};
use zerocopy::FromBytes;

pub(super) const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 256, receive_len: 32 << 20, send_len: 16 << 20 };
/// Session memories and completion rings.
#[derive(Debug, Default)]
pub(super) struct Memory {
    regions: Vec<Vec<u8>>,
    words: SharedWords,
    pub(super) completions: Vec<VecDeque<Completion>>,
    /// Completions that fit before the ring says "full".
    pub(super) ring_len: usize,
    pub(super) infos: Vec<FlowInfo>,
    pub(super) details: Vec<FlowDetail>,
    /// What is given back waits in `going_back` until the test spoils and reports it.
    pub(super) gives_back_later: bool,
    pub(super) going_back: Vec<(SessionId, u64, u32)>,
    /// Datagrams that came: for whom, from, to, and their bytes; unless the test says what becomes of them.
    pub(super) datagrams: Vec<(Option<DatagramId>, Endpoint, Endpoint, Vec<u8>)>,
    pub(super) datagrams_end_as: Option<Delivered>,
    /// Errors about what was sent from there to there.
    pub(super) datagram_errors: Vec<(Endpoint, Endpoint)>,
}

impl Memory {
    pub(super) fn with_ring(ring_len: usize) -> Memory {
        Memory { ring_len, ..Memory::default() }
    }

    pub(super) fn region(&mut self, session: SessionId) -> &mut Vec<u8> {
        let at = session.index();
        while self.regions.len() <= at {
            self.regions.push(Vec::new());
            self.completions.push(VecDeque::new());
        }
        let len = if at == 0 { STAGING_LEN } else { LAYOUT.len() } as usize;
        if self.regions[at].is_empty() {
            self.regions[at] = vec![0; len];
        }
        &mut self.regions[at]
    }

    /// A host's end of its flow's owner word: puts `to` in the place of `from`; whether that stood there.
    pub(super) fn owns(&mut self, session: SessionId, flow: FlowId, (from, to): (Owned, Owned)) -> bool {
        let word = self.words.at(SharedMemory::OfSession(session), LAYOUT.owner_word(flow.slot()));
        word.compare_exchange(from.word(flow), to.word(flow), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Takes what the engine has to tell into the rings.
    pub(super) fn hear(&mut self, engine: &mut Engine) -> usize {
        let room = |memory: &mut Memory, (session, _): (SessionId, _)| {
            memory.region(session);
            memory.ring_len.saturating_sub(memory.completions[session.index()].len())
        };
        tell(engine, self, room, |memory, (session, _), completion| {
            memory.completions[session.index()].push_back(completion);
        })
    }

    /// Takes what came for sockets.
    pub(super) fn take(&mut self, now: Instant, engine: &mut Engine, incoming: Option<Incoming<'_>>) {
        hand_over(now, engine, self, incoming, |memory, incoming| match incoming {
            Incoming::Datagram(one) => {
                let (from, to) = (one.datagram.from(), one.datagram.to());
                memory.datagrams.push((one.to, from, to, one.datagram.text.to_vec()));
                match memory.datagrams_end_as {
                    // It takes them one by one.
                    Some(Delivered::ByKernel) if one.datagram.segment.is_some() => Delivered::Nowhere,
                    end => end.unwrap_or(Delivered::ByLane),
                }
            }
            Incoming::Error(error) => {
                memory.datagram_errors.push((error.own, error.peer));
                Delivered::ByKernel
            }
        });
    }

    /// Nobody needs these bytes, so that whoever still does notices.
    pub(super) fn spoil(&mut self, (session, offset, len): (SessionId, u64, u32)) {
        self.write(session, offset, &vec![0xdd; len as usize]);
    }
}

impl HostMemory for Memory {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        self.region(session)[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        if session.0 != 0 && (LAYOUT.flow_info(0)..LAYOUT.owner_word(0)).contains(&offset) {
            self.infos.push(FlowInfo::read_from_bytes(bytes).expect("a whole record"));
        }
        let details = LAYOUT.flow_detail(0)..LAYOUT.socket_options_offset();
        if session.0 != 0 && details.contains(&offset) {
            self.details.push(FlowDetail::read_from_bytes(bytes).expect("a whole record"));
        }
    }
    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.region(session)[offset as usize..][..out.len()]);
    }
    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        let mut bytes = vec![0; len as usize];
        self.read(from.0, from.1, &mut bytes);
        self.write(to.0, to.1, &bytes);
    }
    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        Some(self.words.at(memory, offset))
    }
    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) -> GivenBack {
        if self.gives_back_later {
            self.going_back.push((session, offset, len));
            return GivenBack::Later;
        }
        self.spoil((session, offset, len));
        GivenBack::Now
    }
}

/// Frames that a side sends.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    frame: Vec<u8>,
    pub(super) sent: Vec<(Vec<u8>, TxOffload)>,
}

impl FrameSink for Outbox {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame = vec![0xee; len];
        Some(&mut self.frame)
    }
    fn commit(&mut self, offload: TxOffload) {
        self.sent.push((core::mem::take(&mut self.frame), offload));
    }
}
