//! An engine to throw frames at, and the ways in which a frame of a corpus is changed. Used by the replay of the committed
//! corpora (`crates/sim/tests/corpus.rs`).

use crate::checkers::memory;
use crate::memory::Memory;
use crate::network::mac_of;
use crate::node::{Node, PORT, QS};
use crate::random::{Draws, Random};
use crate::swarm::Swarm;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::command::{ListenArgs, NO_HANDLE};
use toe_abi::entry::Command;
use toe_base::{AnchorHandle, Cred};
use toe_engine::control::names::Twin;
use toe_engine::{ControlEvent, Engine, NetworkChange};
use toe_wire::EthRepr;
use toe_wire::link::RxOffload;
use zerocopy::IntoBytes;

/// What the kernel calls the socket that holds the listener's port.
const TWIN: u64 = 77;

/// An engine at 10.0.0.1 with one session, which listens at port 80.
#[derive(Debug)]
pub struct Target {
    node: Node,
    anchor: AnchorHandle,
    now_us: u64,
}

impl Default for Target {
    fn default() -> Target {
        Target::new()
    }
}

impl Target {
    pub fn new() -> Target {
        Target::with(|_| {})
    }

    /// Its link's address is the kernel's, too.
    pub fn shared() -> Target {
        Target::with(|node| node.engine.handle_network(NetworkChange::Shared { port: PORT }))
    }

    fn with(set_up: impl FnOnce(&mut Node)) -> Target {
        let mut swarm = Swarm::choose(1, None);
        swarm.engines[0].flows_max = 64;
        let random = Random::new(1, Draws::Rings);
        let mut node = Node::new(0, swarm.engines[0], false, Memory::new(random.clone()), [7; 16], random);
        set_up(&mut node);
        let session = node.attach(&swarm).map(|at| node.sessions[at].id).unwrap_or_default();
        let anchor = node.engine.take_anchor(session).expect("an anchor");
        let local = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
        let clock = node.clock(0);
        let twin = Twin::listening(local.into(), TWIN, Cred::default(), clock);
        let twin = node.engine.add_twin(session, twin).unwrap_or(NO_HANDLE);
        let args =
            ListenArgs { local: local.into(), backlog: 16, anchor: anchor.0, twin, ..Default::default() };
        let mut block = [0; 64];
        block.copy_from_slice(args.as_bytes());
        let command = Command::Listen { token: 1 };
        let listens = node.engine.handle_command(clock, session, QS, command, &block, &mut node.memory);
        debug_assert!(listens.is_ok(), "it keeps to the contract");
        Target { node, anchor, now_us: 0 }
    }

    pub fn engine(&self) -> &Engine {
        &self.node.engine
    }

    /// So many copies of a frame arrive before the engine can send anything.
    pub fn burst(&mut self, frame: &[u8], copies: usize) {
        let node = &mut self.node;
        let clock = node.clock(self.now_us);
        for _ in 0..copies {
            let incoming =
                node.engine.handle_frame(clock, PORT, frame, RxOffload::default(), &mut node.memory);
            node.memory.take(clock, &mut node.engine, incoming);
        }
        self.settle();
    }

    /// The kernel socket that holds the listener's port goes.
    pub fn twin_goes(&mut self) {
        let clock = self.node.clock(self.now_us);
        self.node.engine.handle_control(clock, ControlEvent::SocketGone(TWIN, clock), &mut self.node.memory);
        self.settle();
    }

    /// A frame arrives, and the engine does what follows from it. `vouched`: its link says that the checksum is right.
    pub fn frame(&mut self, frame: &[u8], vouched: bool) {
        self.now_us += 1000;
        let node = &mut self.node;
        let clock = node.clock(self.now_us);
        let offload = RxOffload { checksum_ok: vouched, coalesced_mss: None };
        let incoming = node.engine.handle_frame(clock, PORT, frame, offload, &mut node.memory);
        node.memory.take(clock, &mut node.engine, incoming);
        self.settle();
    }

    fn settle(&mut self) {
        let node = &mut self.node;
        let clock = node.clock(self.now_us);
        node.engine.handle_timeout(clock, &mut node.memory);
        node.outbox.room = usize::MAX;
        while node.engine.poll_transmit(clock, PORT, &mut node.outbox, &mut node.memory, 64) > 0 {}
        for (frame, _) in node.outbox.sent.drain(..) {
            debug_assert!(
                EthRepr::parse(&frame).is_ok_and(|(link, _)| link.src == mac_of(0)),
                "its own frame"
            );
        }
        node.memory.hear(&mut node.engine);
        for at in 0..node.sessions.len() {
            let id = node.sessions[at].id;
            while node.memory.next(id).is_some() {}
        }
    }

    /// The listener is closed, time passes, and nothing is left.
    ///
    /// # Panics
    /// When something is.
    pub fn ends_clean(&mut self) {
        let clock = self.node.clock(self.now_us);
        self.node.engine.handle_control(clock, ControlEvent::LastClose(self.anchor), &mut self.node.memory);
        for _ in 0..1000 {
            self.settle();
            let next = self.node.next_deadline_us();
            if next == u64::MAX {
                break;
            }
            self.now_us = self.now_us.max(next);
        }
        if let Err(what) = memory::all_came_back(&self.node) {
            panic!("{what}");
        }
    }
}

/// Flips bits, sets bytes to borders, cuts, lengthens, or puts the end of another frame behind the beginning of this one.
pub fn change(random: &mut Random, frame: &mut Vec<u8>, other: &[u8]) {
    for _ in 0..random.between(1, 4) {
        if frame.is_empty() {
            return;
        }
        let at = random.below(frame.len() as u32) as usize;
        match random.below(8) {
            0..3 => frame[at] ^= 1 << random.below(8),
            3..5 => frame[at] = random.pick(&[0, 1, 0x0f, 0x45, 0x50, 0x7f, 0x80, 0xff]),
            5 => frame.truncate(at),
            6 => frame.extend(std::iter::repeat_n(random.below(256) as u8, random.any_size(64) as usize)),
            _ => {
                frame.truncate(at);
                frame.extend_from_slice(&other[at.min(other.len())..]);
            }
        }
    }
    mend(random, frame);
}

/// Half of the time the IPv4 header's checksum is made right again: else nothing gets past it.
fn mend(random: &mut Random, frame: &mut [u8]) {
    if frame.len() >= 34 && random.one_in(2) {
        frame[24..26].fill(0);
        let sum = toe_wire::Sum::of(&frame[14..34]).checksum();
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    }
}
