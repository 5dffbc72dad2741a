//! What the daemon does about entries before it calls the engine (`crates/daemon/src/run_loop.rs`): a program publishes them, they count when the
//! engine's turn comes, and before all that comes after them: commands, claims, closed descriptors, the end of their program.

use crate::checkers::{Checker, isolation};
use crate::memory::Memory;
use crate::node::{Node, QS};
use crate::run::Mishap;
use crate::tally::Tally;
use crate::world::{What, World};
use std::collections::BTreeSet;
use toe_abi::entry::{ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, FlowId, Instant, SessionId};
use toe_engine::{Change, Changed, ControlEvent, Engine, FlowAudit};
use toe_tcp::state::TcpState;

/// Of what lies in no command ring.
#[derive(Clone, Copy, Debug)]
pub enum Entry {
    Send(Send),
    Credit(ReceiveCredit),
}

impl Entry {
    fn flow(self) -> FlowId {
        match self {
            Entry::Send(send) => send.flow,
            Entry::Credit(credit) => credit.flow,
        }
    }
}

/// In one settling of so many a ring is looked at while faults last, and so many of its entries are taken at most.
const LOOKED_AT_ONE_IN: u32 = 3;
const TAKEN_MAX: u32 = 8;
/// One ring that keeps entries in so many has something happen to its program meanwhile.
const MEANWHILE_ONE_IN: u32 = 24;

/// Takes all that the session has published.
pub fn catch_up(engine: &mut Engine, memory: &mut Memory, clock: Instant, session: SessionId) {
    take(engine, memory, (clock, session), u32::MAX);
}

fn take(engine: &mut Engine, memory: &mut Memory, (clock, session): (Instant, SessionId), most: u32) {
    for _ in 0..most {
        let Some(entry) = memory.next_published(session) else { return };
        let result = match entry {
            Entry::Send(send) => engine.handle_send(clock, session, send),
            Entry::Credit(credit) => engine.handle_credit(clock, session, credit),
        };
        memory.verdict.check(Checker::Isolation, isolation::is_not_fenced(session, result));
    }
}

/// The same of all sessions whose entries may be about what the anchor stands for.
fn catch_up_at(engine: &mut Engine, memory: &mut Memory, clock: Instant, anchor: AnchorHandle) {
    let mut concerned = Vec::new();
    engine.view().sessions_at(anchor, &mut concerned);
    for session in concerned {
        catch_up(engine, memory, clock, session);
    }
}

/// The last descriptor of an anchor is closed: from then on nothing stands by it.
pub fn anchor_closed(engine: &mut Engine, memory: &mut Memory, clock: Instant, anchor: AnchorHandle) {
    catch_up_at(engine, memory, clock, anchor);
    engine.handle_control(clock, ControlEvent::LastClose(anchor), memory);
    if engine.view().anchor_use(anchor).stands() {
        memory.verdict.fail(Checker::Memory, format!("{anchor:?} is closed, and something stands by it"));
    }
}

impl Node {
    /// A claim begins: whoever has the flow loses it.
    pub fn begin_claim(&mut self, clock: Instant, id: SessionId, anchor: AnchorHandle) -> Result<(), Errno> {
        let Node { engine, memory, .. } = self;
        catch_up_at(engine, memory, clock, anchor);
        engine.change(clock, id, Change::Withdraw { lifetime: anchor }, memory).map(|_| ())
    }

    /// The claim itself. What is claimed is no longer for the session alone that its anchor was made for.
    pub fn claim(
        &mut self,
        clock: Instant,
        (id, fd): (SessionId, u32),
        anchor: AnchorHandle,
    ) -> Result<Changed, Errno> {
        let Node { engine, memory, .. } = self;
        let change = Change::Claim { lifetime: anchor, queue_set: QS, fd };
        engine.prepare(clock, id, change, memory);
        catch_up_at(engine, memory, clock, anchor);
        catch_up(engine, memory, clock, id);
        let claimed = engine.change(clock, id, change, memory)?;
        // Its program looks as soon as it has the answer.
        memory.hear(engine);
        engine.handle_control(clock, ControlEvent::Shared(anchor), memory);
        if !engine.view().anchor_use(anchor).stands() {
            memory.verdict.fail(Checker::Memory, format!("{claimed:?} stands by no anchor"));
        }
        Ok(claimed)
    }

    /// A process has ended. What it and those at the other ends of its connections did before counts.
    pub fn end_session(&mut self, clock: Instant, id: SessionId) {
        catch_up(&mut self.engine, &mut self.memory, clock, id);
        let known = self.sessions_at_other_ends(id);
        let Node { engine, memory, .. } = self;
        let mut peers = Vec::new();
        engine.view().peers_of(id, &mut peers);
        for peer in peers.iter().filter(|peer| **peer != id) {
            catch_up(engine, memory, clock, *peer);
        }
        if peers.iter().copied().collect::<BTreeSet<_>>() != known {
            let what = format!("session {} ends, at its other ends are {known:?}, not {peers:?}", id.0);
            memory.verdict.fail(Checker::Isolation, what);
        }
        drop(engine.close_session(clock, id, memory));
    }

    fn sessions_at_other_ends(&self, id: SessionId) -> BTreeSet<SessionId> {
        let own = self.engine.view().audit_flows().filter(|flow| flow.owner.session == id);
        let other_ends: Vec<_> = own.map(|flow| flow.key.reversed()).collect();
        let is_there = |flow: &FlowAudit| {
            flow.state != TcpState::Closed && !flow.owner.is_nobody() && other_ends.contains(&flow.key)
        };
        self.engine.view().audit_flows().filter(is_there).map(|flow| flow.owner.session).collect()
    }
}

impl World {
    /// The engine's turn to look into the rings of its sessions. What it leaves there waits for the next one.
    pub fn take_entries(&mut self, at: usize) {
        let now_us = self.now_us;
        let mut is_some_left = false;
        for number in 0..self.nodes[at].sessions.len() {
            let node = &mut self.nodes[at];
            let (clock, id) = (node.clock(now_us), node.sessions[number].id);
            if !node.sessions[number].alive || node.memory.first_published(id).is_none() {
                continue;
            }
            let most = match self.healed {
                true => u32::MAX,
                false if self.late.one_in(LOOKED_AT_ONE_IN) => self.late.between(1, TAKEN_MAX),
                false => 0,
            };
            take(&mut node.engine, &mut node.memory, (clock, id), most);
            if let Some(entry) = node.memory.first_published(id) {
                is_some_left = true;
                self.tallies.add(Tally::LateEntries);
                let socket = node.sessions[number].by_id.get(&entry.flow().raw()).copied();
                self.something_comes_before(at, number, socket);
            }
        }
        if is_some_left {
            self.retry_soon(at);
        }
    }

    /// Another process claims the socket, or its own one ends, while what that has published lies in the ring.
    fn something_comes_before(&mut self, node: usize, session: usize, socket: Option<usize>) {
        if !self.late.one_in(MEANWHILE_ONE_IN) {
            return;
        }
        let mishap = match socket {
            Some(socket) if !self.late.one_in(8) => {
                if self.takers(node, session, false).is_empty() {
                    return;
                }
                Mishap::PassesAgain { node, session, socket }
            }
            _ => Mishap::HostDies { whose: Some((node, session)) },
        };
        self.schedule(self.now_us + 1, What::Fault(mishap));
    }
}
