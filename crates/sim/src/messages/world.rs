//! A world of messages: what its programs do next is what the seed says, until all is delivered that will be.

use super::channel::{Channel, Direction, Message, bytes};
use super::side::{BUFFER, FOREIGN, Posted, SIDE_LEN, Side, UNTOUCHED, WINDOW, WINDOW_LEN, Wanted};
use super::wire;
use crate::random::{Draws, Random};
use crate::tally::{Tallies, Tally};
use toe_abi::via::Attributes;
use toe_via::node::{
    self, CONNECTION_LEN, CONTROL_IMMEDIATE, CONTROL_OP_RDMAREAD, CONTROL_OP_RDMAWRITE, Control, Done, Node,
    STATUS_FORMAT_ERROR, STATUS_PROTECTION_ERROR, STATUS_RDMA_PROT_ERROR, Segment, TRANSFER_MAX,
};

const CHANNELS_MAX: u32 = 16;
const PROGRAMS_MAX: u32 = 4;
/// Rounds in which all has to come, once nobody does anything new. Each takes every channel's two sides on.
const SETTLE: usize = 400;
/// Bytes on their way in one direction between hosts, at most.
const WIRE_ROOM: [usize; 3] = [3000, 100_000, 1 << 20];

/// Deliberate mistakes, each of which some checker must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A descriptor is told as done twice.
    Doubles,
    /// One is not told.
    Loses,
    /// Two are told in the wrong order.
    Swaps,
    /// A byte of what came is another.
    Changes,
    /// A success is an error, or an error a success.
    WrongWord,
    /// Somebody's channel ends with another's.
    EndsAnother,
    /// What lies beside a window is written.
    WritesBeside,
    /// A program takes nothing any more.
    KeepsCredit,
}

impl Mistake {
    pub const ALL: [Mistake; 8] = [
        Mistake::Doubles,
        Mistake::Loses,
        Mistake::Swaps,
        Mistake::Changes,
        Mistake::WrongWord,
        Mistake::EndsAnother,
        Mistake::WritesBeside,
        Mistake::KeepsCredit,
    ];
}

struct World {
    random: Random,
    nodes: Vec<Node>,
    channels: Vec<Channel>,
    numbers: u32,
    mistake: Option<Mistake>,
    tallies: Tallies,
}

/// Runs one seed: what was exercised, or what was wrong.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Result<Tallies, String> {
    let mut world = World::new(seed, mistake)?;
    let steps = 50 + world.random.below(400);
    for _ in 0..steps {
        let channel = world.random.below(world.channels.len() as u32) as usize;
        world.step(channel).map_err(|what| format!("channel {channel}: {what}"))?;
    }
    world.settle()?;
    world.tallies.seeds = 1;
    Ok(world.tallies)
}

impl World {
    fn new(seed: u64, mistake: Option<Mistake>) -> Result<World, String> {
        let mut random = Random::new(seed, Draws::Messages);
        let programs = 2 + random.below(PROGRAMS_MAX - 1) as usize;
        let ends: Vec<[usize; 2]> = (0..1 + random.below(CHANNELS_MAX))
            .map(|_| {
                let one = random.below(programs as u32) as usize;
                let other = (one + 1 + random.below(programs as u32 - 1) as usize) % programs;
                [one, other]
            })
            .collect();
        let sides_of = |program| ends.iter().flatten().filter(|of| **of == program).count();
        let mut nodes: Vec<Node> =
            (0..programs).map(|program| Node::new(sides_of(program) * SIDE_LEN as usize)).collect();
        let mut bases = vec![0; programs];
        let mut channels = Vec::new();
        for programs in ends {
            channels.push(open(&mut nodes, &mut bases, programs, &mut random)?);
        }
        Ok(World { random, nodes, channels, numbers: 0, mistake, tallies: Tallies::default() })
    }

    fn step(&mut self, at: usize) -> Result<(), String> {
        let which = self.random.below(2) as usize;
        if self.channels[at].sides[which].is_dead {
            return Ok(());
        }
        match self.random.below(100) {
            0..25 => self.post_receive(at, which),
            25..50 => self.send(at, which),
            50..58 => self.write(at, which),
            58..64 => self.read(at, which),
            64..67 => self.post_badly(at, which),
            67..68 => self.harm(at, which),
            _ => {
                self.deliver(at, which);
                return self.take(at, which);
            }
        }
        self.take(at, which)
    }

    /// A receive of its own for side `which`.
    fn post_receive(&mut self, at: usize, which: usize) {
        let is_short = self.random.one_in(150);
        let channel = &mut self.channels[at];
        let Some(slot) = channel.sides[which].receive_slot() else { return };
        let len = if is_short { 4 } else { channel.room + self.random.below(64) };
        channel.reasons.of_receives |= is_short;
        let side = &mut channel.sides[which];
        let node = &mut self.nodes[side.program];
        let (_, buffer) = side.places(slot, true);
        node.write(buffer, &vec![UNTOUCHED; len as usize + 4]);
        // In one piece, or in two.
        let cut = if self.random.one_in(3) { self.random.below(len + 1) } else { 0 };
        let segments =
            [side.segment(node, buffer, cut), side.segment(node, buffer + u64::from(cut), len - cut)];
        let segments = &segments[usize::from(cut == 0)..];
        let control = Control { segments: segments.len() as u16, length: len, ..Control::default() };
        side.receives.push_back((slot, len));
        if side.post(node, (slot, true), control, segments) {
            channel.directions[1 - which].receives += 1;
        } else {
            side.receives.pop_back();
            side.free(slot, true);
        }
    }

    /// Whether a message may be sent that uses up a receive: mostly only if there is one.
    fn has_receive(&mut self, at: usize, which: usize) -> bool {
        let channel = &mut self.channels[at];
        let has = channel.directions[which].receives > 0;
        if !has && !self.random.one_in(60) {
            return false;
        }
        channel.reasons.of_receives |= !has;
        true
    }

    fn send(&mut self, at: usize, which: usize) {
        if !self.has_receive(at, which) {
            return;
        }
        let room = self.channels[at].room;
        let len = self.random.any_size(room).max(4);
        self.numbers += 1;
        let (number, bytes) = (self.numbers, bytes(self.numbers, len));
        let message = Message { number, len, is_write: false };
        let immediate = self.random.one_in(4).then_some(number);
        self.post_send(at, which, immediate, &bytes, None, (Wanted::Good, Some(message)));
    }

    fn write(&mut self, at: usize, which: usize) {
        let is_beyond = self.random.one_in(40);
        let tells = self.random.one_in(3);
        if tells && !self.has_receive(at, which) {
            return;
        }
        let len = 4 + self.random.below(2000);
        let offset = self.random.below(WINDOW_LEN as u32 - len);
        let offset =
            if is_beyond { WINDOW_LEN - u64::from(len) + 1 + u64::from(offset) } else { offset.into() };
        self.numbers += 1;
        let (number, bytes) = (self.numbers, bytes(self.numbers, len));
        let channel = &mut self.channels[at];
        let message = tells.then_some(Message { number, len, is_write: true });
        let (wanted, message) = match (is_beyond, channel.level) {
            (false, _) => (Wanted::Good, message),
            // It is dropped, and so is what it would have told.
            (true, 0) => (Wanted::Good, None),
            (true, _) => (Wanted::Refused(STATUS_RDMA_PROT_ERROR), None),
        };
        channel.reasons.of_memory |= is_beyond && channel.level > 0;
        let remote = self.remote(at, which, offset);
        let is_posted = self.post_send(
            at,
            which,
            tells.then_some(number),
            &bytes,
            Some((CONTROL_OP_RDMAWRITE, remote)),
            (wanted, message),
        );
        if is_posted && !is_beyond {
            let offset = offset as usize;
            self.channels[at].directions[which].window[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
    }

    fn read(&mut self, at: usize, which: usize) {
        let is_beyond = self.random.one_in(40);
        let len = 1 + self.random.below(2000);
        let offset = self.random.below(WINDOW_LEN as u32 - len) as usize;
        let channel = &mut self.channels[at];
        let there = &channel.directions[which].window[offset..offset + len as usize];
        let (offset, wanted) = match (channel.level, is_beyond) {
            // Nobody owes an answer there.
            (0, _) => (offset as u64, Wanted::Wrong(STATUS_FORMAT_ERROR)),
            (_, false) => (offset as u64, Wanted::Reads(there.to_vec())),
            (_, true) => (WINDOW_LEN - u64::from(len) + 1, Wanted::Wrong(STATUS_RDMA_PROT_ERROR)),
        };
        channel.reasons.of_memory |= is_beyond && channel.level > 0;
        let remote = self.remote(at, which, offset);
        let bytes = vec![0; len as usize];
        self.post_send(at, which, None, &bytes, Some((CONTROL_OP_RDMAREAD, remote)), (wanted, None));
    }

    /// A place in the peer's window.
    fn remote(&self, at: usize, which: usize, offset: u64) -> Segment {
        let peer = &self.channels[at].sides[1 - which];
        let data = self.nodes[peer.program].base() + peer.base + WINDOW + WINDOW_LEN + offset;
        Segment { data, handle: peer.window, length: 0 }
    }

    fn post_send(
        &mut self,
        at: usize,
        which: usize,
        immediate: Option<u32>,
        bytes: &[u8],
        remote: Option<(u16, Segment)>,
        (wanted, message): (Wanted, Option<Message>),
    ) -> bool {
        let channel = &mut self.channels[at];
        let side = &mut channel.sides[which];
        let node = &mut self.nodes[side.program];
        if !node.is_connected(side.number) {
            return false;
        }
        let Some(slot) = side.send_slot() else { return false };
        let (_, buffer) = side.places(slot, false);
        node.write(buffer, bytes);
        let len = bytes.len() as u32;
        let cut = self.random.below(len + 1);
        let own = [side.segment(node, buffer, cut), side.segment(node, buffer + u64::from(cut), len - cut)];
        let segments: Vec<Segment> = remote.iter().map(|(_, segment)| *segment).chain(own).collect();
        let operation = remote.map_or(0, |(operation, _)| operation);
        let flag = if immediate.is_some() { CONTROL_IMMEDIATE } else { 0 };
        let control = Control {
            control: operation | flag,
            segments: segments.len() as u16,
            length: len,
            immediate: immediate.unwrap_or(0),
        };
        side.sends.push_back(Posted { slot, len, wanted });
        if message.is_some() {
            channel.directions[which].receives -= 1;
        }
        channel.directions[which].messages.extend(message);
        let is_posted = channel.sides[which].post(node, (slot, false), control, &segments);
        self.tallies.add(Tally::Messages);
        is_posted
    }

    /// A descriptor that cannot be done.
    fn post_badly(&mut self, at: usize, which: usize) {
        let kind = self.random.below(6);
        let channel = &mut self.channels[at];
        if channel.level > 0 && !self.random.one_in(10) {
            return;
        }
        let side = &mut channel.sides[which];
        let node = &mut self.nodes[side.program];
        if !node.is_connected(side.number) {
            return;
        }
        let Some(slot) = side.send_slot() else { return };
        let (_, buffer) = side.places(slot, false);
        let good = side.segment(node, buffer, 100);
        let mut control = Control { segments: 1, length: 100, ..Control::default() };
        let (segment, wanted) = match kind {
            // A foreign tag, memory that nobody has registered, an end beyond the region, a handle of nobody.
            0 => (
                Segment { data: node.base() + side.base + FOREIGN, handle: side.foreign, length: 100 },
                STATUS_PROTECTION_ERROR,
            ),
            1 => (Segment { data: node.base() + side.base + WINDOW + 5, ..good }, STATUS_PROTECTION_ERROR),
            2 => (Segment { data: u64::MAX - 10, ..good }, STATUS_PROTECTION_ERROR),
            3 => (Segment { handle: good.handle ^ 1 << 31, ..good }, STATUS_PROTECTION_ERROR),
            // A length that is not true, a bit that is none.
            4 => (Segment { length: 99, ..good }, STATUS_FORMAT_ERROR),
            _ => {
                control.control = 0x40;
                (good, STATUS_FORMAT_ERROR)
            }
        };
        channel.reasons.of_descriptor |= channel.level > 0;
        side.sends.push_back(Posted { slot, len: 0, wanted: Wanted::Wrong(wanted) });
        side.post(node, (slot, false), control, &[segment]);
        self.tallies.add(Tally::MessageErrors);
    }

    /// A program dies, a host is cut off, or one means harm.
    fn harm(&mut self, at: usize, which: usize) {
        match self.random.below(8) {
            0 => {
                let program = self.channels[at].sides[which].program;
                self.kill(program);
            }
            1 | 2 => {
                let channel = &mut self.channels[at];
                if let Some(wires) = &channel.wires {
                    wires.iter().for_each(wire::WireEnd::cut);
                    channel.reasons.is_outer = true;
                }
            }
            3 | 4 => {
                let (place, bit) = (self.random.below(1 << 20) as usize, self.random.below(8));
                let channel = &mut self.channels[at];
                if let Some(wires) = &channel.wires
                    && wires[which].flip(place, bit)
                {
                    channel.reasons.by_wire = true;
                }
            }
            _ => self.scribble(at, which),
        }
    }

    fn kill(&mut self, program: usize) {
        for channel in &mut self.channels {
            let Some(which) = channel.sides.iter().position(|side| side.program == program) else { continue };
            channel.sides[which].is_dead = true;
            channel.reasons.is_outer = true;
            match &channel.wires {
                Some(wires) => wires[which].cut(),
                None => {
                    let peer = &channel.sides[1 - which];
                    self.nodes[peer.program].peer_has_died(peer.number);
                }
            }
        }
        self.tallies.add(Tally::MessagePrograms);
    }

    /// Into what both can write, where they are of one engine.
    fn scribble(&mut self, at: usize, which: usize) {
        let channel = &mut self.channels[at];
        if channel.wires.is_some() {
            return;
        }
        let side = &mut channel.sides[which];
        for _ in 0..1 + self.random.below(6) {
            // The beginning more often than the rest: that is where it hurts.
            let reach = self.random.pick(&[CONNECTION_LEN as u32, 80_000, 16_000]);
            let place = u64::from(self.random.below(reach));
            let word = self.random.word() as u32;
            let word = self.random.pick(&[word, word & 0xffff, 0x4000_0301, 1]);
            self.nodes[side.program].scribble(side.number, place, word);
        }
        channel.is_spoiled = true;
        channel.reasons.is_outer = true;
        // Whoever does such a thing dies of it, so that the other can be seen to hear of it.
        side.is_dead = true;
        let peer = &channel.sides[1 - which];
        self.nodes[peer.program].peer_has_died(peer.number);
    }

    fn deliver(&mut self, at: usize, which: usize) {
        let bytes = self.random.pick(&[1, 30, 3000, 200_000]);
        let bytes = 1 + self.random.below(bytes);
        if let Some(wires) = &self.channels[at].wires {
            wires[which].deliver(bytes as usize);
        }
    }

    /// Side `which` works, and takes what is done.
    fn take(&mut self, at: usize, which: usize) -> Result<(), String> {
        let channel = &mut self.channels[at];
        let (program, number) = (channel.sides[which].program, channel.sides[which].number);
        if channel.sides[which].is_dead || self.mistake == Some(Mistake::KeepsCredit) && at == 0 && which == 1
        {
            return Ok(());
        }
        self.nodes[program].progress(number);
        for of_receives in [false, true] {
            let done = std::iter::from_fn(|| self.nodes[program].done(number, of_receives)).collect();
            for done in self.mistaken(at, which, done) {
                self.tallies.add(Tally::MessagesDone);
                self.channels[at].is_done(&self.nodes[program], which, done)?;
            }
        }
        Ok(())
    }

    /// What is done, with the mistake that was asked for.
    fn mistaken(&mut self, at: usize, which: usize, mut done: Vec<Done>) -> Vec<Done> {
        let Some(mistake) = self.mistake.filter(|_| !done.is_empty() && self.random.one_in(10)) else {
            return done;
        };
        let side = &self.channels[at].sides[which];
        let (program, base) = (side.program, side.base);
        match mistake {
            Mistake::Doubles => done.insert(0, done[0]),
            Mistake::Loses => drop(done.pop()),
            Mistake::Swaps => done.reverse(),
            Mistake::Changes => {
                let (slot, of_receives) = side.slot_at(done[0].at);
                let (_, buffer) = side.places(slot, of_receives);
                self.nodes[program].write(buffer + 5, &[0x11]);
            }
            Mistake::WrongWord => done[0].status ^= STATUS_PROTECTION_ERROR,
            Mistake::EndsAnother => {
                let other = self.channels.len() - 1;
                let other = &self.channels[other].sides[0];
                self.nodes[other.program].peer_has_died(other.number);
            }
            Mistake::WritesBeside => self.nodes[program].write(base + WINDOW + 17, &[0]),
            Mistake::KeepsCredit => {}
        }
        done
    }

    /// All that is under way comes, as far as it can.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..SETTLE {
            let before = self.tallies.get(Tally::MessagesDone);
            for at in 0..self.channels.len() {
                for which in [0, 1] {
                    if let Some(wires) = &self.channels[at].wires {
                        wires[which].deliver(usize::MAX / 2);
                    }
                    while self.channels[at].level > 0 && self.channels[at].directions[1 - which].receives < 0
                    {
                        let pending = self.channels[at].directions[1 - which].receives;
                        self.post_receive(at, which);
                        if self.channels[at].directions[1 - which].receives == pending {
                            break;
                        }
                    }
                    self.take(at, which).map_err(|what| format!("channel {at}, at the end: {what}"))?;
                }
            }
            let is_quiet = self.tallies.get(Tally::MessagesDone) == before;
            if is_quiet && self.channels.iter().all(|channel| self.is_at_end(channel)) {
                break;
            }
        }
        for (at, channel) in self.channels.iter().enumerate() {
            for which in [0, 1] {
                if !channel.sides[which].is_dead {
                    let settled = channel.is_settled(&self.nodes, which);
                    settled.map_err(|what| format!("channel {at}, at the end: {what}"))?;
                }
            }
        }
        Ok(())
    }

    fn is_at_end(&self, channel: &Channel) -> bool {
        [0, 1]
            .iter()
            .all(|which| channel.sides[*which].is_dead || channel.is_settled(&self.nodes, *which).is_ok())
    }
}

fn open(
    nodes: &mut [Node],
    bases: &mut [u64],
    programs: [usize; 2],
    random: &mut Random,
) -> Result<Channel, String> {
    let level = u64::from(random.below(3));
    let sides = programs.map(|program| {
        let base = bases[program];
        bases[program] += SIDE_LEN;
        Side::new(&mut nodes[program], program, base, level)
    });
    let attributes = [Attributes::operations(level, true, level > 0, TRANSFER_MAX); 2];
    let failed = |error: std::io::Error| format!("no memory for a connection: {error}");
    let mut wires = None;
    let ends = if random.one_in(3) {
        let pair = wire::pair(random.pick(&WIRE_ROOM));
        let ends = node::far(pair.clone().map(|end| Box::new(end) as _), attributes).map_err(failed)?;
        pair[0].take_time();
        wires = Some(pair);
        ends.ok_or("two hosts do not come to a connection")?
    } else {
        node::near(attributes).map_err(failed)?
    };
    for (side, end) in sides.iter().zip(ends) {
        side.connect(&mut nodes[side.program], end);
    }
    let directions =
        [(); 2].map(|()| Direction { window: vec![UNTOUCHED; WINDOW_LEN as usize], ..Direction::default() });
    let room = 4 + random.any_size(BUFFER as u32 - 200);
    let reasons = Default::default();
    Ok(Channel { level, sides, directions, reasons, is_spoiled: false, wires, room })
}
