//! A socket changes hands: another process shows its descriptor, as after `fork` or SCM_RIGHTS, and goes on with it. When
//! the connection uses a channel its owner is asked to give it up first.

use crate::checkers::Checker;
use crate::checkers::captures::DirectEnd;
use crate::entries;
use crate::memory::SPOILT;
use crate::node::Session;
use crate::pattern::StreamId;
use crate::program::Cx;
use crate::run::Mishap;
use crate::tally::Tally;
use crate::trace::About;
use crate::world::{What, World};
use toe_abi::attach::Unread;
use toe_abi::entry::{Command, MemRange};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::FlowId;
use toe_base::arena::Block;
use toe_engine::{Change, Changed};
use toe_tcp::state::TcpState;

/// A process asks again after this, when the owner was asked first.
const AGAIN_US: u64 = 1000;

/// Within this a socket goes on to the next process.
const SOON_US: u32 = 500;

impl World {
    /// Some program hands one of its sockets to another one.
    pub fn pass_some_socket(&mut self, at: usize) {
        let Some(from) = self.some_session(at) else { return };
        let held = self.nodes[at].sessions[from].passable();
        if let Some(socket) = (!held.is_empty()).then(|| self.wider.pick(&held)) {
            self.pass_socket(at, from, socket);
        }
    }

    /// The same once more, because there was no room or its owner was asked to give it up. Should whoever asked have died, the
    /// owner gives it up all the same, and is then the one to take it back.
    pub fn pass_socket_again(&mut self, at: usize, from: usize, socket: usize) {
        let of = &self.nodes[at].sessions[from].sockets[socket];
        if of.is_held() && !of.adrift && self.takers(at, from, false).is_empty() {
            self.pass_again(at, from, socket);
        } else {
            self.pass_socket(at, from, socket);
        }
    }

    /// The sessions that a socket may go to.
    pub fn takers(&self, at: usize, from: usize, adrift: bool) -> Vec<usize> {
        let sessions = &self.nodes[at].sessions;
        (0..sessions.len())
            .filter(|s| sessions[*s].alive && !sessions[*s].is_hostile() && (adrift || *s != from))
            .collect()
    }

    /// One of the other programs claims it, or, when it is nobody's, any.
    fn pass_socket(&mut self, at: usize, from: usize, socket: usize) {
        let sessions = &self.nodes[at].sessions;
        let of = &sessions[from].sockets[socket];
        let adrift = of.adrift && !of.closed;
        if !adrift && !of.is_held() {
            return;
        }
        let others = self.takers(at, from, adrift);
        if others.is_empty() {
            return;
        }
        let to = self.wider.pick(&others);
        self.pass_to(at, (from, socket), to);
    }

    /// `to` claims it, which may be the program that has it.
    pub(super) fn pass_to(&mut self, at: usize, (from, socket): (usize, usize), to: usize) {
        let now_us = self.now_us;
        if !self.owner_has_let_go(at, to, (from, socket)) {
            self.pass_again(at, from, socket);
            return;
        }
        let of = &self.nodes[at].sessions[from].sockets[socket];
        let (anchor, adrift) = (of.anchor, of.adrift);
        self.with_session(at, from, |session, cx| cx.command(session, Command::Lend { anchor }, &[]));
        let node = &mut self.nodes[at];
        let clock = node.clock(now_us);
        let id = node.sessions[to].id;
        let claimed = node.claim(clock, (id, 7), anchor);
        node.touched = true;
        let stream = node.sessions[from].sockets[socket].stream();
        let about = About::conn(at, id.0, stream.map(|s| s.conn));
        self.trace.event(now_us, about, "claims", format_args!("{claimed:?}"));
        match claimed {
            Ok(Changed::Flow(flow, counts)) => {
                let state = node.memory.info(id, flow.slot()).state;
                // Of what was reset nothing is sent any more.
                if let Some(id) = stream.filter(|_| state == TcpState::Established.linux_number()) {
                    let what = self.streams.are_counts(id, counts, adrift);
                    self.verdict.check(Checker::Streams, what);
                }
                self.hand_over(at, (from, socket), to, flow);
                self.with_session(at, from, |session, cx| {
                    cx.command(session, Command::CloseCopy { lifetime: anchor }, &[]);
                });
            }
            // Its owner is to give it up first, or there is no room now.
            Err(Errno::EAGAIN) => self.pass_again(at, from, socket),
            // Its owner may have lost it all the same (`Change::Withdraw`), and asks for it at its next call.
            Err(Errno::ENOMEM) => match stream.filter(|id| self.is_too_large_to_pass(*id)) {
                Some(id) => {
                    let why = "more was unread than a session has memory for";
                    self.conns.list[id.conn as usize].excuse.get_or_insert(why);
                }
                None => self.pass_again(at, from, socket),
            },
            Err(Errno::ENOENT) if adrift => self.ended_adrift(at, from, socket),
            _ => {}
        }
    }

    /// As the driver has it before each claim: the flow is taken from whoever has it. Now and then that one is in the middle of something.
    fn owner_has_let_go(&mut self, at: usize, to: usize, (from, socket): (usize, usize)) -> bool {
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        let (claimer, owner, of) =
            (node.sessions[to].id, node.sessions[from].id, &node.sessions[from].sockets[socket]);
        let (flow, anchor) = (of.id, of.anchor);
        let in_use = flow.filter(|flow| {
            self.claims.one_in(3) && node.memory.owns(owner, *flow, (Owned::Held, Owned::InUse))
        });
        let has_let_go = node.begin_claim(clock, claimer, anchor).is_ok();
        node.touched = true;
        if let Some(flow) = in_use {
            let is_still = node.memory.owns(owner, flow, (Owned::InUse, Owned::Held));
            let found = is_still.then_some(()).ok_or_else(|| format!("{flow:?} was withdrawn while in use"));
            self.verdict.check(Checker::Isolation, found);
        } else if flow.is_some_and(|flow| node.memory.is_withdrawn(owner, flow)) {
            self.tallies.add(Tally::ToldFirst);
        }
        has_let_go
    }

    /// Whether what one end has sent and the other has not read, who is `reader`, has no place in a session at all. While nobody
    /// has the reader's end the engine's own memory takes it, which is larger.
    fn is_too_large_to_pass(&self, reader: StreamId) -> bool {
        let sent = self.streams.get(StreamId { conn: reader.conn, side: 1 - reader.side });
        (sent.handed - sent.read).next_power_of_two() > self.swarm.receive_len
    }

    /// What was given up for a capture nobody else may want: its own program shows it again, or another one does. What could not be
    /// given up is tried again.
    pub fn follow_up_yields(&mut self, node: usize, session: usize) {
        let of = &mut self.nodes[node].sessions[session];
        let (given_up, waits) = (std::mem::take(&mut of.given_up), !of.yields.is_empty());
        for socket in given_up {
            match self.swarm.driver.gives_back {
                true if self.giving_back.one_in(32) => self.nobody_comes(node, session, socket),
                true => self.pass_soon(node, session, socket),
                false => self.pass_again(node, session, socket),
            }
        }
        if waits {
            self.schedule(self.now_us + AGAIN_US, What::Serve { node, session });
        }
    }

    /// The last descriptor of what was given up is closed.
    fn nobody_comes(&mut self, node: usize, session: usize, socket: usize) {
        self.tallies.add(Tally::Unclaimed);
        self.with_session(node, session, |session, cx| {
            session.excuse(cx, socket, "nobody came for it");
            session.close(cx, socket, false);
        });
    }

    fn pass_again(&mut self, node: usize, session: usize, socket: usize) {
        let again = Mishap::PassesAgain { node, session, socket };
        self.schedule(self.now_us + AGAIN_US, What::Fault(again));
    }

    /// The connection ended while it was nobody's: its program sees that when it looks at the descriptor.
    fn ended_adrift(&mut self, at: usize, from: usize, socket: usize) {
        self.with_session(at, from, |session, cx| session.hears_of_reset(cx, socket, Errno::ECONNRESET));
    }

    fn hand_over(&mut self, at: usize, (from, socket): (usize, usize), to: usize, flow: FlowId) {
        self.tallies.add(Tally::Passed);
        let passed = self.nodes[at].sessions[from].give_away(socket);
        let stream = passed.stream();
        let node = &mut self.nodes[at];
        let session = &mut node.sessions[to];
        let number = session.sockets.len();
        session.by_id.insert(flow.raw(), number);
        // Else whoever had it was told that it is established.
        let is_connecting =
            node.memory.info(session.id, flow.slot()).state == TcpState::SynSent.linux_number();
        session.sockets.push(passed.claimed(flow, is_connecting));
        if let Some(id) = stream {
            let conn = &mut self.conns.list[id.conn as usize];
            conn.set_program(id.side, (at, to));
            conn.opened[0] |= id.side == 0 && !is_connecting;
        }
        self.schedule(self.now_us, What::Step { node: at, session: to, socket: number });
        if self.swarm.driver.gives_back {
            // Before it has read all that it was told of.
            if self.giving_back.one_in(2) {
                self.pass_soon(at, to, number);
            } else if self.giving_back.one_in(8) {
                let soon_us = self.soon_us();
                self.schedule(soon_us, What::Fault(Mishap::HostDies { whose: Some((at, to)) }));
            }
        }
    }

    fn soon_us(&mut self) -> u64 {
        self.now_us + 1 + u64::from(self.giving_back.any_size(SOON_US))
    }

    fn pass_soon(&mut self, node: usize, session: usize, socket: usize) {
        let soon_us = self.soon_us();
        self.schedule(soon_us, What::Fault(Mishap::PassesAgain { node, session, socket }));
    }

    /// Another program wants a socket whose connection uses a channel and that has bytes to read: these are rare and soon over.
    pub fn pass_some_direct(&mut self, at: usize) {
        if !self.swarm.driver.gives_back || self.healed {
            return;
        }
        let node = &self.nodes[at];
        let of_owner = |end: DirectEnd| {
            let session = node.session_by_id(end.owner.session.index())?;
            let socket = node.sessions[session].by_id.get(&end.owner.flow_id.raw());
            socket.filter(|_| !end.is_asked && !end.is_peer_asked).map(|socket| (session, *socket))
        };
        let has_unread = |at: &(usize, usize)| node.sessions[at.0].sockets[at.1].has_unread();
        let direct: Vec<(usize, usize)> =
            node.direct_ends().into_iter().filter_map(of_owner).filter(has_unread).collect();
        if !direct.is_empty() && self.giving_back.one_in(2) {
            let (session, socket) = self.giving_back.pick(&direct);
            if !self.takers(at, session, false).is_empty() {
                self.pass_soon(at, session, socket);
            }
        }
    }
}

impl Session {
    /// The flow goes to another process: this one shows the descriptor when it wants it again. Send memory is the engine's until then.
    pub(super) fn loses(&mut self, flow: FlowId) {
        let at = self.by_id.get(&flow.raw()).copied();
        if let Some(at) = at.filter(|at| self.sockets[*at].is_held()) {
            self.sockets[at].set_adrift();
        }
    }

    /// The engine wants a flow back that another process has shown the descriptor of.
    pub(super) fn give_up(&mut self, cx: &mut Cx<'_>, flow: FlowId) {
        let Some(at) = self.by_id.get(&flow.raw()).copied().filter(|at| self.sockets[*at].is_held()) else {
            return;
        };
        let block = if self.gives_back { self.lay_down_unread(cx, at) } else { None };
        let unread = block.map_or(Unread::default(), |(_, unread)| unread);
        entries::catch_up(cx.engine, cx.memory, cx.clock, self.id);
        let outcome = cx.engine.change(cx.clock, self.id, Change::Relinquish { flow, unread }, cx.memory);
        cx.event(self, None, "gives up", format_args!("{flow:?} with {unread:?}: {outcome:?}"));
        if let Some((block, _)) = block {
            cx.memory.program_view(self.id, block.offset(), block.len()).fill(SPOILT);
            self.send_arena.free(block);
            cx.tallies.add_many(Tally::GivenBack, u64::from(outcome.is_ok()));
        }
        match outcome {
            Ok(_) => {
                self.take_back_blocks(at);
                self.sockets[at].set_adrift();
                if self.sees_to_yields {
                    self.given_up.push(at);
                }
            }
            // It has completions to look at first, or there is no memory now.
            Err(Errno::EAGAIN | Errno::ENOMEM) if self.sees_to_yields => self.yields.push(flow),
            // Closed meanwhile; or whoever wants it asks again.
            Err(_) => {}
        }
    }
    /// Some of what it has not read goes to its send part, as a host does with what came by a channel.
    fn lay_down_unread(&mut self, cx: &mut Cx<'_>, at: usize) -> Option<(Block, Unread)> {
        let unread = self.sockets[at].some_unread(cx.random);
        let len = unread.iter().map(|range| range.len).sum();
        let block = if len > 0 { self.send_arena.alloc(len) } else { None }?;
        let mut to = block.offset();
        for range in unread {
            let bytes = cx.memory.program_view(self.id, range.offset, range.len).to_vec();
            cx.memory.program_view(self.id, to, range.len).copy_from_slice(&bytes);
            to += u64::from(range.len);
        }
        let data = MemRange { offset: block.offset(), len };
        Some((block, Unread { data, credit: len, by_pipe: 0 }))
    }
}
