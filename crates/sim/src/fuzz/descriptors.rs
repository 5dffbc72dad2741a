//! Descriptors of a program that means harm, in its own memory and in the memory that it has in common with its peer; and what it asks of the engine about
//! connections. Two programs beside it have a channel of their own, which goes on as if nothing were.

use super::{Bytes, ENGINE, play};
use crate::tally::{Tallies, Tally};
use crate::world::World;
use toe_abi::attach::Request;
use toe_abi::region::RegionLayout;
use toe_abi::via::{Attributes, HANDLES_MAX, NodeName};
use toe_base::{Cred, Instant, SessionId, ViaId};
use toe_engine::Engine;
use toe_engine::via::ViaOutcome;
use toe_via::node::{self, CONNECTION_LEN, Control, Node, Segment};

/// Steps of one run.
const STEPS_MAX: usize = 400;
/// Half of it is for descriptors, the rest for data.
const AREA: u64 = 1 << 16;
const DESCRIPTORS: u64 = AREA / 2;
/// What the peer may touch; beside it nothing may change.
const WINDOW: (u64, u64) = (AREA - 8192, 4096);
const ATTRIBUTES: [Attributes; 2] = [Attributes::operations(1, true, true, 1 << 20); 2];

/// Of the sessions that ask for virtual interfaces, and have nothing else.
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 1, receive_len: 1 << 16, send_len: 1 << 16 };

/// The hostile program, its peer, and two that are neither.
struct Programs {
    nodes: [Node; 2],
    handles: [u32; 2],
    windows: [u32; 2],
    others: [Node; 2],
}

/// See the module.
pub fn run(data: &[u8]) -> Tallies {
    let mut bytes = Bytes(data);
    let level = u64::from(bytes.u8() % 3);
    let mut programs = Programs::new(level);
    let mut tallies = Tallies::default();
    for step in 0..STEPS_MAX {
        if bytes.is_empty() {
            break;
        }
        programs.step(&mut bytes);
        if step % 16 == 0 {
            programs.others_go_on(step as u32);
        }
        tallies.add(Tally::MessageErrors);
    }
    programs.others_go_on(u32::MAX);
    programs.nothing_beside_the_window();
    tallies.merge(&play(vec![ENGINE], 0, |world| {
        world.set_up_sessions();
        ask_engine(world, &mut Bytes(data));
        Ok(())
    }));
    tallies
}

fn connected(nodes: &mut [Node; 2], level: u64) {
    let Ok(ends) = node::near(ATTRIBUTES) else { panic!("no memory for a connection") };
    for (node, end) in nodes.iter_mut().zip(ends) {
        let tag = 1;
        let number = node.add(level, tag, (true, level > 0));
        node.connect(number, end);
    }
}

impl Programs {
    fn new(level: u64) -> Programs {
        let make = || {
            let mut node = Node::new(AREA as usize);
            let tag = node.create_ptag();
            let handle = node.register((0, WINDOW.0), tag, (false, false));
            let window = node.register(WINDOW, tag, (true, true));
            (node, handle, window)
        };
        let [(zero, handle0, window0), (one, handle1, window1)] = [make(), make()];
        let [(other0, _, _), (other1, _, _)] = [make(), make()];
        let (mut nodes, mut others) = ([zero, one], [other0, other1]);
        connected(&mut nodes, level);
        connected(&mut others, 1);
        let behind = WINDOW.0 + WINDOW.1;
        nodes[1].write(behind, &vec![0xa5; (AREA - behind) as usize]);
        Programs { nodes, handles: [handle0, handle1], windows: [window0, window1], others }
    }

    fn step(&mut self, bytes: &mut Bytes<'_>) {
        let what = bytes.u8();
        // The hostile one does most.
        let which = usize::from(what & 0x80 != 0);
        let at = u64::from(bytes.u16()) % DESCRIPTORS;
        match what & 7 {
            // Bytes of any kind where descriptors lie.
            0 => {
                let len = usize::from(bytes.u8()).min((DESCRIPTORS - at) as usize);
                let taken = bytes.take(len);
                self.nodes[which].write(at, taken);
            }
            // One that is mostly right.
            1 | 2 => self.describe(which, at & !63, bytes),
            3 => {
                let base = self.nodes[which].base();
                let at = if bytes.u8() & 15 == 0 { at } else { at & !63 };
                self.nodes[which].post(0, base + at, self.handles[which], what & 8 != 0);
            }
            // An address and a handle of any kind.
            4 => drop(self.nodes[which].post(0, bytes.u64(), bytes.u32(), what & 8 != 0)),
            5 => {
                let place = u64::from(bytes.u32()) % CONNECTION_LEN;
                self.nodes[which].scribble(0, place, bytes.u32());
            }
            6 => (0..2).for_each(|which| self.nodes[which].progress(0)),
            _ => {
                for of_receives in [false, true] {
                    self.nodes[which].done(0, of_receives);
                }
            }
        }
    }

    fn describe(&mut self, which: usize, at: u64, bytes: &mut Bytes<'_>) {
        if at + 512 > DESCRIPTORS {
            return;
        }
        let control = Control {
            control: u16::from(bytes.u8()) & 0x1f,
            segments: u16::from(bytes.u8() & 15),
            length: u32::from(bytes.u16()),
            immediate: 7,
        };
        let (node, peer) = (&self.nodes[which], &self.nodes[1 - which]);
        let segments: Vec<Segment> = (0..control.segments)
            .map(|_| {
                let kind = bytes.u8();
                let place = u64::from(bytes.u16());
                let (data, handle) = match kind & 3 {
                    0 => (peer.base() + WINDOW.0 + place % 5000, self.windows[1 - which]),
                    1 => (bytes.u64(), bytes.u32()),
                    _ => (node.base() + DESCRIPTORS + place % 0x6100, self.handles[which]),
                };
                let length = if kind & 4 == 0 { u32::from(bytes.u8()) } else { bytes.u32() };
                Segment { data, handle, length }
            })
            .collect();
        // Half of them say their length as it is.
        let sum = segments.iter().fold(0u32, |sum, segment| sum.wrapping_add(segment.length));
        let length = if control.control & 0x10 == 0 { sum } else { control.length };
        let control = Control { control: control.control & 0xf, length, ..control };
        self.nodes[which].describe(at, control, &segments);
    }

    /// The two others send each other a message, and it comes.
    fn others_go_on(&mut self, number: u32) {
        let [one, other] = &mut self.others;
        let segment = |node: &Node| Segment { data: node.base() + DESCRIPTORS, handle: 1 << 12, length: 4 };
        let control = Control { segments: 1, length: 4, ..Control::default() };
        other.describe(0, control, &[segment(other)]);
        one.describe(0, control, &[segment(one)]);
        one.write(DESCRIPTORS, &number.to_le_bytes());
        let [from, to] = [one.base(), other.base()];
        assert!(other.post(0, to, 1 << 12, true) && one.post(0, from, 1 << 12, false), "others cannot post");
        other.progress(0);
        assert_eq!(one.done(0, false).map(|done| done.status), Some(0), "others cannot send");
        assert_eq!(other.done(0, true).map(|done| done.length), Some(4), "others receive nothing");
        assert_eq!(other.read(DESCRIPTORS, 4), number.to_le_bytes(), "others receive something else");
    }

    /// Of the hostile program's peer: what he may touch ends there, whatever the peer itself has posted lies before it.
    fn nothing_beside_the_window(&self) {
        let behind = WINDOW.0 + WINDOW.1;
        let bytes = self.nodes[1].read(behind, (AREA - behind) as usize);
        assert!(bytes.iter().all(|byte| *byte == 0xa5), "memory behind the window was written");
    }
}

/// Names, listeners and connections, asked for and forgotten by two sessions; nothing of it stays.
fn ask_engine(world: &mut World, bytes: &mut Bytes<'_>) {
    let crate::node::Node { engine, memory, .. } = &mut world.nodes[0];
    let open = |engine: &mut Engine| engine.open_session(Cred::default(), LAYOUT).ok();
    let mut sessions: Vec<SessionId> = [(), ()].iter().filter_map(|()| open(engine)).collect();
    let mut handles: Vec<ViaId> = Vec::new();
    while !bytes.is_empty() {
        let what = bytes.u8();
        let count = sessions.len().max(1);
        let Some(session) = sessions.get_mut(usize::from(what >> 6) % count) else { return };
        let name = NodeName::new(&[b'a' + (bytes.u8() & 3)]);
        let discriminator = u64::from(bytes.u8() & 3);
        let handle = match what & 8 {
            0 => handles.get(usize::from(bytes.u8()) % handles.len().max(1)).copied(),
            _ => None,
        };
        let handle = handle.unwrap_or(ViaId(bytes.u32()));
        let id = *session;
        let mut ask = |engine: &mut Engine, request| {
            let outcome = engine.handle_via(id, request);
            if let Ok(ViaOutcome::Listens(handle, _) | ViaOutcome::Asked(handle, _)) = outcome {
                handles.push(handle);
            }
        };
        match (what & 7, name) {
            (0, Some(name)) => ask(engine, Request::ViaName { name }),
            (1, from) => ask(engine, Request::ViaListen { from, discriminator }),
            (2, Some(to)) => {
                let attributes = Attributes(bytes.u64());
                ask(engine, Request::ViaConnect { to, discriminator, attributes });
            }
            (3, _) => ask(engine, Request::ViaTake { listener: handle.0 }),
            (4, _) => ask(engine, Request::ViaFetch { connection: handle.0 }),
            (5, _) => ask(engine, Request::ViaForget { handle: handle.0 }),
            (6, _) => {
                engine.close_session(Instant::ZERO, *session, memory);
                assert!(engine.forget_session(*session), "it has nothing");
                *session = open(engine).unwrap_or(*session);
            }
            _ => {}
        }
        let there = engine.view().totals().virtual_interfaces;
        assert!(there <= count * HANDLES_MAX, "more than sessions may have");
    }
    for session in sessions {
        engine.close_session(Instant::ZERO, session, memory);
        engine.forget_session(session);
    }
    assert_eq!(engine.view().totals().virtual_interfaces, 0, "something stays");
}
