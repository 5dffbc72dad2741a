//! What the swarm test's crowd is made of: randomness, memories, processes, and sockets as programs see them.

use super::fake_channels::{FakeChannels, serve_channels};
use crate::{Engine, HostSide};
use core::net::SocketAddr;
use std::collections::{HashMap, VecDeque};
use toe_abi::command::FlowInfo;
use toe_abi::entry::{Completion, MemRange};
use toe_abi::errno::Errno;
use toe_base::arena::{Arena, Block};
use toe_base::{AnchorHandle, FlowId, Instant, ListenerId, QueueSetId, SessionId};
use toe_wire::link::{FrameSink, TxOffload};

/// Xorshift.
#[derive(Debug)]
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 16) as u32) % n
    }

    pub(super) fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    pub(super) fn pick(&mut self, n: usize) -> Option<usize> {
        (n > 0).then(|| self.below(n as u32) as usize)
    }
}

/// Regions and completion rings of one engine's sessions.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) regions: Vec<Vec<u8>>,
    pub(super) rings: Vec<VecDeque<Completion>>,
    pub(super) ring_len: usize,
    pub(super) slots: HashMap<(u16, usize), FlowInfo>,
    /// The information record as it was when a completion named the flow.
    pub(super) infos: HashMap<(u16, u32), FlowInfo>,
    pub(super) channels: FakeChannels,
}

impl Memory {
    pub(super) fn open(&mut self, session: SessionId, len: u64) {
        while self.regions.len() <= session.index() {
            self.regions.push(Vec::new());
            self.rings.push(VecDeque::new());
        }
        self.regions[session.index()] = vec![0; len as usize];
        self.rings[session.index()].clear();
    }
}

impl HostSide for Memory {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        self.regions[session.index()][offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.regions[session.index()][offset as usize..][..out.len()]);
    }
    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        let mut bytes = vec![0; len as usize];
        self.read(from.0, from.1, &mut bytes);
        self.write(to.0, to.1, &bytes);
    }
    fn give_back(&mut self, session: SessionId, offset: u64, len: u32) {
        // Spoilt, so that whoever still needs it notices.
        self.write(session, offset, &vec![0xdd; len as usize]);
    }

    fn write_flow_info(&mut self, session: SessionId, slot: usize, info: &FlowInfo) {
        self.slots.insert((session.0, slot), *info);
    }
    fn post(&mut self, session: SessionId, _: QueueSetId, completion: Completion) -> bool {
        let ring = &mut self.rings[session.index()];
        if ring.len() >= self.ring_len {
            return false;
        }
        if let Completion::Accepted { flow, .. } = completion {
            self.infos.insert((session.0, flow.raw()), self.slots[&(session.0, flow.slot())]);
        }
        ring.push_back(completion);
        true
    }
    serve_channels!();
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) frame: Vec<u8>,
    pub(super) sent: Vec<(Vec<u8>, TxOffload)>,
    pub(super) room: usize,
}

impl FrameSink for Outbox {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.sent.len() >= self.room {
            return None;
        }
        self.frame = vec![0xee; len];
        Some(&mut self.frame)
    }
    fn commit(&mut self, offload: TxOffload) {
        self.sent.push((core::mem::take(&mut self.frame), offload));
    }
}

/// One attached process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) session: SessionId,
    pub(super) alive: bool,
    pub(super) send_arena: Arena,
    pub(super) result: Option<(Errno, u32)>,
    /// Takes no completions for now.
    pub(super) frozen: bool,
    /// Anchors that it may use again.
    pub(super) free_anchors: Vec<AnchorHandle>,
}

/// One end of a connection as programs see it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) host: usize,
    /// None: handed out by a listener and not accepted yet.
    pub(super) anchor: Option<AnchorHandle>,
    /// Processes with a descriptor.
    pub(super) holders: Vec<usize>,
    pub(super) owner: Option<usize>,
    pub(super) id: FlowId,
    /// Its own address, then the peer's.
    pub(super) key: (SocketAddr, SocketAddr),
    pub(super) consumed: u64,
    pub(super) announced: u64,
    pub(super) unread: VecDeque<MemRange>,
    /// Send memory that the engine has, and how much of each block it still has.
    pub(super) blocks: VecDeque<(Block, u32)>,
    pub(super) connected: bool,
    pub(super) eof: bool,
    pub(super) error: Option<Errno>,
    pub(super) shut: bool,
    /// No process has a descriptor any more.
    pub(super) gone: bool,
    pub(super) reads: bool,
}

/// A listener that some processes hold.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) host: usize,
    pub(super) at: SocketAddr,
    pub(super) anchor: AnchorHandle,
    pub(super) ids: Vec<(usize, ListenerId)>,
    pub(super) holders: Vec<usize>,
    pub(super) open: bool,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) engine: Engine,
    pub(super) memory: Memory,
    pub(super) processes: Vec<Process>,
    pub(super) closing: Vec<SessionId>,
    pub(super) outbox: Outbox,
}

impl Host {
    pub(super) fn take_anchor(&mut self, process: usize) -> AnchorHandle {
        let process = &mut self.processes[process];
        process.free_anchors.pop().unwrap_or_else(|| self.engine.take_anchor(process.session))
    }

    pub(super) fn anchor_closed(&mut self, now: Instant, anchor: AnchorHandle) {
        self.engine.anchor_closed(now, anchor, &mut self.memory);
    }
}

/// What the wire does, out of 1000.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) drop: u32,
    pub(super) reorder: u32,
    pub(super) duplicate: u32,
}

/// The octet at `at` of what `key`'s end sends.
pub(super) fn octet(key: (SocketAddr, SocketAddr), at: u64) -> u8 {
    let seed = u64::from(key.0.port()) << 16 | u64::from(key.1.port());
    ((at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as u8
}

/// Gives `len` octets of send memory back to the process, and spoils them: nobody may read them any more. Returns how
/// many of `len` there were not.
pub(super) fn free_blocks(
    h: &mut Host,
    process: usize,
    blocks: &mut VecDeque<(Block, u32)>,
    len: u32,
) -> u32 {
    let mut left = len;
    let process = &mut h.processes[process];
    while left > 0 {
        let Some((block, has)) = blocks.front_mut() else { return left };
        let take = left.min(*has);
        *has -= take;
        left -= take;
        if *has == 0 {
            h.memory.write(process.session, block.offset, &vec![0xdd; block.len() as usize]);
            process.send_arena.free(*block);
            blocks.pop_front();
        }
    }
    0
}

impl Socket {
    pub(super) fn new(host: usize, process: usize, id: FlowId, info: &FlowInfo) -> Socket {
        let addr = |a: toe_abi::command::WireAddr| a.to_socket_addr().expect("an address");
        Socket {
            host,
            anchor: None,
            holders: vec![process],
            owner: Some(process),
            id,
            key: (addr(info.local), addr(info.remote)),
            consumed: 0,
            announced: 0,
            unread: VecDeque::new(),
            blocks: VecDeque::new(),
            connected: false,
            eof: false,
            error: None,
            shut: false,
            gone: false,
            reads: true,
        }
    }

    /// Its listener was closed before it was accepted.
    pub(super) fn disown_unaccepted(&mut self) {
        self.owner = None;
        self.gone = true;
        self.unread.clear();
    }

    pub(super) fn waits_for_memory(&self) -> bool {
        !self.blocks.is_empty()
    }

    pub(super) fn unread(&self) -> u64 {
        self.announced - self.consumed
    }
}
