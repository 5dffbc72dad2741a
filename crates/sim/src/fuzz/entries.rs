//! Ring entries of a host that means harm, decoded as the engine's process decodes them. Some get a name that the host was
//! told of, or a place in its own memory: else few would get past the first check.

use super::{Bytes, ENGINE, play, step_us};
use crate::hostile::{HOSTILE_TWINS, PORTS_OF_OTHERS};
use crate::node::{QS, address_of};
use crate::swarm::Swarm;
use crate::tally::Tallies;
use crate::world::World;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, ListenArgs, NO_HANDLE};
use toe_abi::entry::{Command, Completion, RawEntry, ReceiveCredit, Send};
use toe_base::{AnchorHandle, Cred};
use toe_engine::ControlEvent;
use toe_engine::control::names::Twin;
use zerocopy::IntoBytes;

/// Processes of one run.
const SESSIONS_MAX: usize = 12;
/// Anchors of one run.
const ANCHORS_MAX: usize = 24;

/// The host.
struct Host {
    session: usize,
    names: Vec<u32>,
    anchors: Vec<AnchorHandle>,
}

/// See the module.
pub fn run(data: &[u8]) -> Tallies {
    play(vec![ENGINE], 0, |world| {
        world.set_up_sessions();
        world.nodes[0].sessions[0].greets = 3000;
        let swarm = world.swarm.clone();
        let mut host = Host { session: 0, names: Vec::new(), anchors: Vec::new() };
        let mut bytes = Bytes(data);
        host.attach(world, &swarm);
        while !bytes.is_empty() && world.nodes[0].sessions.len() < SESSIONS_MAX {
            if let Err(reason) = host.once(world, &mut bytes) {
                world.kill(0, host.session, Some(reason));
                host.close_all(world);
                host.attach(world, &swarm);
            }
            world.nodes[0].touched = true;
            world.catch_up(world.now_us)?;
            host.learn(world);
        }
        world.kill(0, host.session, None);
        host.close_all(world);
        Ok(())
    })
}

impl Host {
    fn attach(&mut self, world: &mut World, swarm: &Swarm) {
        let Some(session) = world.nodes[0].attach(swarm) else { return };
        world.nodes[0].sessions[session].mischief = Some(Default::default());
        // The world plays no harm of its own.
        world.nodes[0].sessions[session].wake_scheduled = true;
        self.session = session;
    }

    fn close_all(&mut self, world: &mut World) {
        for anchor in std::mem::take(&mut self.anchors) {
            let node = &mut world.nodes[0];
            let clock = node.clock(world.now_us);
            node.engine.handle_control(clock, ControlEvent::LastClose(anchor), &mut node.memory);
        }
    }

    fn learn(&mut self, world: &mut World) {
        let node = &mut world.nodes[0];
        while let Some((completion, _)) = node.memory.next(node.sessions[self.session].id) {
            let name = match completion {
                Completion::CommandResult { id, .. } => id,
                Completion::Accepted { flow, .. } | Completion::Connected { flow, .. } => flow.raw(),
                _ => continue,
            };
            self.names.insert(0, name);
            self.names.truncate(16);
        }
    }

    fn once(&mut self, world: &mut World, bytes: &mut Bytes<'_>) -> Result<(), FenceReason> {
        let what = bytes.u8();
        let node = &mut world.nodes[0];
        let (clock, id) = (node.clock(world.now_us), node.sessions[self.session].id);
        let layout = node.sessions[self.session].layout;
        let mut block = [0; 64];
        match what & 7 {
            0 | 1 => {
                let raw = self.named(what, bytes);
                let command = Command::decode(raw)?;
                if what & 0x20 != 0 {
                    block = bytes.array();
                }
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            2 => {
                let mut raw = self.named(what, bytes);
                if what & 0x20 != 0 {
                    // Within its send memory, but for the length.
                    let offset = layout.send_offset() + (raw.word1 & 0xffff);
                    raw.word1 = raw.word1 & !((1 << 40) - 1) | offset;
                }
                node.engine.handle_send(clock, id, Send::decode(raw)?)
            }
            3 => node.engine.handle_credit(clock, id, ReceiveCredit::decode(self.named(what, bytes))?),
            4 => self.connect(world, bytes, what),
            5 => self.listen(world, bytes, what),
            6 => {
                let (flow, anchor) = (name_of(self.named(what, bytes)), self.anchor(world, what));
                let node = &mut world.nodes[0];
                let command = Command::Accept { flow, anchor, fd: 3 };
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            _ if what & 8 != 0 && !self.anchors.is_empty() => {
                let at = usize::from(what >> 4) % self.anchors.len();
                let anchor = self.anchors.swap_remove(at);
                node.engine.handle_control(clock, ControlEvent::LastClose(anchor), &mut node.memory);
                Ok(())
            }
            _ => {
                node.touched = true;
                let until_us = world.now_us + step_us(what >> 4);
                // It takes what it is told all the while. A failure is found by the next step as well.
                let _ = world.catch_up(world.now_us);
                while matches!(world.advance(until_us), Ok(true)) {
                    self.learn(world);
                }
                world.now_us = world.now_us.max(until_us);
                Ok(())
            }
        }
    }

    fn connect(&mut self, world: &mut World, bytes: &mut Bytes<'_>, what: u8) -> Result<(), FenceReason> {
        let (remote, local) = (place(bytes).into(), bytes.u8());
        let local = (local & 3 == 0).then(|| place(bytes));
        let anchor = self.anchor(world, what).0;
        let twin = local.map_or(NO_HANDLE, |local| self.twin(world, local, what));
        let local = local.map(Into::into).unwrap_or_default();
        let args = ConnectArgs { remote, local, anchor, twin, ..ConnectArgs::default() };
        self.command(world, Command::Connect { token: 1 }, args.as_bytes())
    }

    fn listen(&mut self, world: &mut World, bytes: &mut Bytes<'_>, what: u8) -> Result<(), FenceReason> {
        let (local, backlog) = (place(bytes), u32::from(bytes.u8()));
        let anchor = self.anchor(world, what).0;
        let twin = self.twin(world, local, what);
        let args = ListenArgs { local: local.into(), backlog, anchor, twin, ..ListenArgs::default() };
        self.command(world, Command::Listen { token: 2 }, args.as_bytes())
    }

    fn command(&self, world: &mut World, command: Command, args: &[u8]) -> Result<(), FenceReason> {
        let mut block = [0; 64];
        block.copy_from_slice(args);
        let node = &mut world.nodes[0];
        let (clock, id) = (node.clock(world.now_us), node.sessions[self.session].id);
        node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
    }

    /// An entry; with a known name in it when `what` says so.
    fn named(&self, what: u8, bytes: &mut Bytes<'_>) -> RawEntry {
        let mut raw = RawEntry { word0: bytes.u64(), word1: bytes.u64() };
        if what & 8 != 0 && !self.names.is_empty() {
            let name = self.names[(raw.word0 >> 32) as usize % self.names.len()];
            raw.word0 = raw.word0 & 0xffff_ffff | u64::from(name) << 32;
        }
        raw
    }

    /// A kernel socket that listens there, of a few that it has; where ordinary programs do the kernel gives it none.
    fn twin(&mut self, world: &mut World, at: SocketAddr, what: u8) -> u32 {
        if PORTS_OF_OTHERS.contains(&at.port()) {
            return NO_HANDLE;
        }
        let node = &mut world.nodes[0];
        let (id, clock) = (node.sessions[self.session].id, node.clock(world.now_us));
        let twin = Twin::listening(at.into(), HOSTILE_TWINS + u64::from(what >> 6), Cred::default(), clock);
        let twin = Twin { shares_port: what & 0x20 != 0, ..twin };
        node.engine.add_twin(id, twin).unwrap_or(NO_HANDLE)
    }

    /// A new anchor, or one that it has.
    fn anchor(&mut self, world: &mut World, what: u8) -> AnchorHandle {
        if what & 0x10 != 0 && !self.anchors.is_empty() || self.anchors.len() >= ANCHORS_MAX {
            return self.anchors[usize::from(what >> 5) % self.anchors.len()];
        }
        let node = &mut world.nodes[0];
        let anchor = node.engine.take_anchor(node.sessions[self.session].id).expect("an anchor");
        self.anchors.push(anchor);
        anchor
    }
}

fn name_of(raw: RawEntry) -> toe_base::FlowId {
    toe_base::FlowId::from_raw((raw.word0 >> 32) as u32)
}

fn place(bytes: &mut Bytes<'_>) -> SocketAddr {
    let how = bytes.u8();
    let addr = match how & 3 {
        0 => Ipv4Addr::LOCALHOST,
        1 => Ipv4Addr::UNSPECIFIED,
        2 => Ipv4Addr::from(bytes.u32()),
        _ => address_of(0),
    };
    let port = match how >> 2 & 3 {
        0 => bytes.u16(),
        near => 7000 + u16::from(near),
    };
    SocketAddr::from((addr, port))
}
