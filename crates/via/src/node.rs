//! Virtual interfaces of a program that is none: its memory, what is registered of it, and ends of connections that no engine has made. For
//! the simulator and the fuzz target, which have many of them in one process and one thread, and look at each step (docs/simulator.md).
//!
//! What it calls is what `include/vipl.h` calls, one step below: descriptors, queues, protection, links, carriers.

use crate::far::carrier::Carrier;
use crate::far::door::Silent;
use crate::far::introduction::Introduction;
use crate::far::set::{FarSet, Member};
use crate::far::wire::Wire;
use crate::link::Link;
use crate::lock::lock;
use crate::vipl::descriptor::Posted;
use crate::vipl::memory::{MemoryAttributes, Registry};
pub use crate::vipl::types::{
    CONTROL_IMMEDIATE, CONTROL_OP_RDMAREAD, CONTROL_OP_RDMAWRITE, CONTROL_OP_SENDRECV, STATUS_DONE,
    STATUS_FLUSHED_ERROR, STATUS_FORMAT_ERROR, STATUS_IMMEDIATE, STATUS_LENGTH_ERROR, STATUS_OP_RECEIVE,
    STATUS_PROTECTION_ERROR, STATUS_RDMA_PROT_ERROR, STATUS_REMOTE_DESC_ERROR, STATUS_TRANSPORT_ERROR,
    VipSegment as Segment,
};
use crate::vipl::vi::{Service, State, Vi};
use rustix::event::{EventfdFlags, eventfd};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use toe_abi::channel::Side;
use toe_abi::via::{Attributes, NodeName, ViaLayout, ViaState};
use toe_ring::ViaMemory;
use toe_ring::irq::IrqSender;

const LINE: usize = 64;
/// What a descriptor may move.
pub const TRANSFER_MAX: u32 = 1 << 20;

/// As descriptors are aligned.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "it is reached by address, as a program's memory is")] [u8; LINE]);

/// The end of a connection. Whoever made it has no descriptor that would be needed to wake anybody.
#[derive(Debug)]
pub struct End(Link);

/// Both ends of a connection within one engine.
pub fn near(attributes: [Attributes; 2]) -> std::io::Result<[End; 2]> {
    let (memory, _file) = ViaMemory::create()?;
    memory.set_attributes(Side::One, attributes[1]);
    memory.advance(ViaState::Accepted);
    let end = |side| -> std::io::Result<End> {
        let waker = IrqSender::from(eventfd(0, EventfdFlags::CLOEXEC)?);
        Ok(End(Link::new(memory.clone(), side, 0, waker, anybody())))
    };
    Ok([end(Side::Zero)?, end(Side::One)?])
}

/// Both ends of one between hosts, over the two ends of a stream, which carries what is said before the first message.
pub fn far(wires: [Box<dyn Wire>; 2], attributes: [Attributes; 2]) -> std::io::Result<Option<[End; 2]>> {
    let set = Arc::new(FarSet::new().map_err(|errno| std::io::Error::from_raw_os_error(errno.0.into()))?);
    let introduction = |attributes| Introduction {
        attributes,
        discriminator: 1,
        node: anybody(),
        early: Vec::new(),
        refusal: None,
    };
    let [zero_wire, one_wire] = wires;
    let memory = ViaMemory::create_far()?;
    let far = set.carry(Carrier::asking(zero_wire, memory.clone(), introduction(attributes[0])));
    far.pull();
    let zero = Link::to_far(memory, Side::Zero, far, anybody());
    let mut silent = Silent::new(one_wire, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let Ok(Some(asked)) = silent.listen() else { return Ok(None) };
    let memory = ViaMemory::create_far()?;
    let carrier = Carrier::asked(silent.into_wire(), memory.clone(), introduction(attributes[1]), &asked);
    let one = Link::to_far(memory, Side::One, set.carry(carrier), asked.node);
    one.accept(attributes[1]);
    zero.pull();
    one.pull();
    Ok((zero.memory.state() == ViaState::Accepted).then_some([End(zero), End(one)]))
}

fn anybody() -> NodeName {
    NodeName::new(b"anybody").unwrap_or_else(|| unreachable!("seven letters are a name"))
}

/// A descriptor's control segment, as a program may write it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Control {
    pub control: u16,
    pub segments: u16,
    pub length: u32,
    pub immediate: u32,
}

/// What became of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Where it is in the program's memory.
    pub at: u64,
    /// Without the bit that says that it is done.
    pub status: u32,
    pub length: u32,
    pub immediate: u32,
}

/// See the module.
#[derive(Debug)]
pub struct Node {
    lines: Vec<Line>,
    registry: Registry,
    interfaces: Vec<Vi>,
}

impl Node {
    /// A program with so much memory, a multiple of 64, zeroed.
    pub fn new(len: usize) -> Node {
        let lines = vec![Line([0; LINE]); len / LINE];
        Node { lines, registry: Registry::default(), interfaces: Vec::new() }
    }

    fn len(&self) -> usize {
        self.lines.len() * LINE
    }

    /// Where its memory begins, as descriptors say it.
    pub fn base(&self) -> u64 {
        self.lines.as_ptr() as u64
    }

    /// # Panics
    /// Outside of its memory.
    pub fn write(&mut self, at: u64, bytes: &[u8]) {
        let at = at as usize;
        assert!(at <= self.len() && bytes.len() <= self.len() - at);
        let base = self.lines.as_mut_ptr().cast::<u8>();
        // SAFETY: needed because the memory is reached by address, as that of programs is. The range was checked, and nobody else has it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(at), bytes.len()) };
    }

    /// # Panics
    /// Outside of its memory.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let at = at as usize;
        assert!(at <= self.len() && len <= self.len() - at);
        let base = self.lines.as_ptr().cast::<u8>();
        // SAFETY: as in `write`.
        unsafe { std::slice::from_raw_parts(base.add(at), len) }.to_vec()
    }

    pub fn create_ptag(&mut self) -> u32 {
        self.registry.create_ptag().unwrap_or(0)
    }

    /// Registers a part of its memory; 0: it cannot be.
    pub fn register(&mut self, (at, len): (u64, u64), ptag: u32, (may_write, may_read): (bool, bool)) -> u32 {
        let start = self.base() + at;
        assert!(at + len <= self.len() as u64, "no program's memory ends there");
        self.registry.register(start, len, MemoryAttributes { ptag, may_write, may_read }).unwrap_or(0)
    }

    /// A virtual interface at a level, with what its peer may do. Its number.
    pub fn add(&mut self, level: u64, ptag: u32, (may_write, may_read): (bool, bool)) -> usize {
        let service = Service { level, ptag, may_write, may_read, transfer_max: TRANSFER_MAX };
        self.interfaces.push(Vi::new(service, [false; 2]));
        self.interfaces.len() - 1
    }

    pub fn connect(&mut self, number: usize, end: End) {
        self.interfaces[number].connect(end.0);
    }

    /// Writes a descriptor, whatever is in it.
    pub fn describe(&mut self, at: u64, control: Control, segments: &[Segment]) {
        let mut bytes = vec![0; 32];
        bytes[12..14].copy_from_slice(&control.segments.to_le_bytes());
        bytes[14..16].copy_from_slice(&control.control.to_le_bytes());
        bytes[20..24].copy_from_slice(&control.immediate.to_le_bytes());
        bytes[24..28].copy_from_slice(&control.length.to_le_bytes());
        for segment in segments {
            bytes.extend(segment.data.to_le_bytes());
            bytes.extend(segment.handle.to_le_bytes());
            bytes.extend(segment.length.to_le_bytes());
        }
        self.write(at, &bytes);
    }

    /// Posts the descriptor at an address. `false`: it is refused at once.
    pub fn post(&mut self, number: usize, address: u64, handle: u32, of_receives: bool) -> bool {
        let interface = &mut self.interfaces[number];
        if !of_receives && interface.state == State::Idle {
            return false;
        }
        let ptag = interface.service.ptag;
        let Ok(posted) = Posted::read((address, handle), of_receives, ptag, &self.registry) else {
            return false;
        };
        let is_posted = interface.post(posted, of_receives).is_ok();
        interface.progress(&self.registry);
        interface.take_events();
        is_posted
    }

    pub fn progress(&mut self, number: usize) {
        self.interfaces[number].progress(&self.registry);
        self.interfaces[number].take_events();
    }

    /// What is done longest and was not told.
    pub fn done(&mut self, number: usize, of_receives: bool) -> Option<Done> {
        let (address, _) = self.interfaces[number].done(of_receives)?;
        let at = address - self.base();
        let bytes = self.read(at, 32);
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Some(Done { at, status: word(28) & !STATUS_DONE, length: word(24), immediate: word(20) })
    }

    pub fn is_connected(&self, number: usize) -> bool {
        self.interfaces[number].state == State::Connected
    }

    /// The other side has died, and the engine says so.
    pub fn peer_has_died(&mut self, number: usize) {
        if let Some(link) = &self.interfaces[number].link {
            link.move_on(ViaState::Closed);
        }
    }

    /// Fragments that it has sent, and how many of them the other side is known to be done with.
    pub fn credit(&self, number: usize) -> Option<(u32, u32)> {
        let link = self.interfaces[number].link.as_ref()?;
        let mut sending = lock(&link.sending);
        let (taken, _) = sending.taken().ok()?;
        Some((sending.sent(), taken))
    }

    /// Writes a word into the connection's memory, as a hostile program may.
    pub fn scribble(&self, number: usize, offset: u64, word: u32) {
        if let Some(link) = &self.interfaces[number].link {
            let _ = link.memory.region().write_u32(offset & !3, word);
        }
    }

    /// Which side of the connection it is: 0 or 1.
    pub fn side(&self, number: usize) -> usize {
        self.interfaces[number].link.as_ref().map_or(0, |link| link.side.index())
    }
}

/// Bytes of a connection's memory.
pub const CONNECTION_LEN: u64 = ViaLayout::LEN;
