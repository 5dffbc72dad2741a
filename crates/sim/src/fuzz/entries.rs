//! Ring entries of a host that means harm, decoded as the engine's process decodes them. Some get a name that the host was
//! told of, or a place in its own memory: else few would get past the first check.

use super::{ENGINE, Octets, play, step_us};
use crate::node::{QS, address_of};
use crate::swarm::Swarm;
use crate::tally::Tallies;
use crate::world::World;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::attach::FenceReason;
use toe_abi::command::{ConnectArgs, ListenArgs, NO_HANDLE};
use toe_abi::entry::{Command, Completion, RawEntry, ReceiveCredit, Send};
use toe_base::AnchorHandle;
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
        let mut octets = Octets(data);
        host.attach(world, &swarm);
        while !octets.is_empty() && world.nodes[0].sessions.len() < SESSIONS_MAX {
            if let Err(reason) = host.once(world, &mut octets) {
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
            node.engine.anchor_closed(clock, anchor, &mut node.memory);
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

    fn once(&mut self, world: &mut World, octets: &mut Octets<'_>) -> Result<(), FenceReason> {
        let what = octets.u8();
        let node = &mut world.nodes[0];
        let (clock, id) = (node.clock(world.now_us), node.sessions[self.session].id);
        let layout = node.sessions[self.session].layout;
        let mut block = [0; 64];
        match what & 7 {
            0 | 1 => {
                let raw = self.named(what, octets);
                let command = Command::decode(raw)?;
                if what & 0x20 != 0 {
                    block = octets.array();
                }
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            2 => {
                let mut raw = self.named(what, octets);
                if what & 0x20 != 0 {
                    // Within its send memory, but for the length.
                    let offset = layout.send_offset() + (raw.word1 & 0xffff);
                    raw.word1 = raw.word1 & !((1 << 40) - 1) | offset;
                }
                node.engine.handle_send(clock, id, Send::decode(raw)?)
            }
            3 => node.engine.handle_credit(clock, id, ReceiveCredit::decode(self.named(what, octets))?),
            4 => {
                let (remote, local) = (place(octets).into(), octets.u8());
                let local = if local & 3 == 0 { place(octets).into() } else { Default::default() };
                let anchor = self.anchor(world, what).0;
                let args = ConnectArgs { remote, local, anchor, ..ConnectArgs::default() };
                block.copy_from_slice(args.as_bytes());
                let node = &mut world.nodes[0];
                let command = Command::Connect { token: 1 };
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            5 => {
                let (local, backlog) = (place(octets).into(), u32::from(octets.u8()));
                let anchor = self.anchor(world, what).0;
                let args = ListenArgs { local, backlog, anchor, twin: NO_HANDLE, ..ListenArgs::default() };
                block.copy_from_slice(args.as_bytes());
                let node = &mut world.nodes[0];
                let command = Command::Listen { token: 2 };
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            6 => {
                let (flow, anchor) = (name_of(self.named(what, octets)), self.anchor(world, what));
                let node = &mut world.nodes[0];
                let command = Command::Accept { flow, anchor, fd: 3 };
                node.engine.handle_command(clock, id, QS, command, &block, &mut node.memory)
            }
            _ if what & 8 != 0 && !self.anchors.is_empty() => {
                let at = usize::from(what >> 4) % self.anchors.len();
                let anchor = self.anchors.swap_remove(at);
                node.engine.anchor_closed(clock, anchor, &mut node.memory);
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

    /// An entry; with a known name in it when `what` says so.
    fn named(&self, what: u8, octets: &mut Octets<'_>) -> RawEntry {
        let mut raw = RawEntry { word0: octets.u64(), word1: octets.u64() };
        if what & 8 != 0 && !self.names.is_empty() {
            let name = self.names[(raw.word0 >> 32) as usize % self.names.len()];
            raw.word0 = raw.word0 & 0xffff_ffff | u64::from(name) << 32;
        }
        raw
    }

    /// A new anchor, or one that it has.
    fn anchor(&mut self, world: &mut World, what: u8) -> AnchorHandle {
        if what & 0x10 != 0 && !self.anchors.is_empty() || self.anchors.len() >= ANCHORS_MAX {
            return self.anchors[usize::from(what >> 5) % self.anchors.len()];
        }
        let node = &mut world.nodes[0];
        let anchor = node.engine.take_anchor(node.sessions[self.session].id);
        self.anchors.push(anchor);
        anchor
    }
}

fn name_of(raw: RawEntry) -> toe_base::FlowId {
    toe_base::FlowId::from_raw((raw.word0 >> 32) as u32)
}

fn place(octets: &mut Octets<'_>) -> SocketAddr {
    let how = octets.u8();
    let addr = match how & 3 {
        0 => Ipv4Addr::LOCALHOST,
        1 => Ipv4Addr::UNSPECIFIED,
        2 => Ipv4Addr::from(octets.u32()),
        _ => address_of(0),
    };
    let port = match how >> 2 & 3 {
        0 => octets.u16(),
        near => 7000 + u16::from(near),
    };
    SocketAddr::from((addr, port))
}
