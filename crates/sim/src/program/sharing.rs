//! Processes with copies of one descriptor, as after `fork` or SCM_RIGHTS: listeners that several take from, of which some
//! let go or end while the others go on, and sockets that outlive their process because another one has them, too.

use crate::checkers::{Checker, isolation};
use crate::entries;
use crate::node::{Listening, Session};
use crate::program::Cx;
use crate::run::Mishap;
use crate::tally::Tally;
use crate::trace::About;
use crate::world::{What, World};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, ListenerId};
use toe_engine::{Change, Changed};

/// Who let go of a listener, or inherits a socket, turns to it within this.
const TURNS_TO_IT_US: u32 = 2_000_000;

impl World {
    /// Some process of an engine does something with a descriptor that others have, or will have.
    pub fn share_something(&mut self, at: usize) {
        let Some(session) = self.some_session(at) else { return };
        if self.claims.one_in(4) {
            self.fork(at, session);
        }
        match self.sharing.below(8) {
            0..4 => self.share_listener(at, session),
            4..6 => self.leave_some_listener(at, session),
            _ => self.show_again(at, session),
        }
    }

    /// A process is about to make a child, which has copies of all that it has: what is in its reach and not its own yet is anybody's again.
    fn fork(&mut self, at: usize, session: usize) {
        self.tallies.add(Tally::Forks);
        self.with_session(at, session, |session, cx| {
            session.serve(cx);
            entries::catch_up(cx.engine, cx.memory, cx.clock, session.id);
            cx.memory.hear(cx.engine);
            // A step, as the driver makes them until there are no more; the call itself does what is left.
            cx.engine.prepare(cx.clock, session.id, Change::Share, cx.memory);
            let shared = cx.engine.change(cx.clock, session.id, Change::Share, cx.memory);
            cx.memory.hear(cx.engine);
            cx.event(session, None, "forks", format_args!("{shared:?}"));
        });
    }

    /// The kernel closes what a process that has ended had open.
    pub fn close_descriptors(&mut self, at: usize, session: usize) {
        let node = &mut self.nodes[at];
        let clock = node.clock(self.now_us);
        let program = &mut node.sessions[session];
        for socket in program.sockets.iter_mut().filter(|s| !s.closed) {
            socket.closed = true;
            if let Some(stream) = socket.stream() {
                self.streams.ended(stream);
            }
            entries::anchor_closed(&mut node.engine, &mut node.memory, clock, socket.anchor);
        }
        for anchor in std::mem::take(&mut program.kept_anchors) {
            entries::anchor_closed(&mut node.engine, &mut node.memory, clock, anchor);
        }
        for number in 0..program.listeners.len() {
            node.close_listening(clock, session, number);
        }
        let program = &mut node.sessions[session];
        if let Some(mischief) = &mut program.mischief {
            // It may have guessed one that it had in hand when it turned.
            for anchor in mischief.take_anchors().into_iter().chain(std::mem::take(&mut program.free_anchors))
            {
                entries::anchor_closed(&mut node.engine, &mut node.memory, clock, anchor);
            }
        }
    }

    // ---- listeners ----

    /// The session gets a copy of a descriptor that another one has, and takes connections, too.
    fn share_listener(&mut self, at: usize, session: usize) {
        let sessions = self.nodes[at].sessions.iter().filter(|s| s.alive && !s.is_hostile());
        let open = sessions.flat_map(|s| &s.listeners).filter(|l| !l.closed && l.id.is_some());
        let open: Vec<AnchorHandle> = open.map(|l| l.anchor).collect();
        if !open.is_empty() {
            let anchor = self.sharing.pick(&open);
            self.hold_listener(at, session, anchor);
        }
    }

    /// It shows the descriptor: from now on it is one of those who take connections, or it is that already.
    pub fn hold_listener(&mut self, at: usize, session: usize, anchor: AnchorHandle) {
        let now_us = self.now_us;
        let node = &mut self.nodes[at];
        let others: Vec<usize> = node.listening_by(anchor).collect();
        let of = &node.sessions[session];
        let Some(other) = others.first().copied().filter(|_| of.alive && !of.is_hostile()) else { return };
        let is_it = |l: &&Listening| l.anchor == anchor && !l.closed;
        let Some(port) = node.sessions[other].listeners.iter().find(is_it).map(|l| l.port) else { return };
        let own = of.listeners.iter().position(|l| is_it(&l));
        let (clock, id) = (node.clock(now_us), of.id);
        let begun = node.begin_claim(clock, id, anchor);
        let claimed = begun.and_then(|()| node.claim(clock, (id, 5), anchor));
        self.trace.event(now_us, About::session(at, id.0), "claims", format_args!("port {port} {claimed:?}"));
        let held = own.map(|own| self.nodes[at].sessions[session].listeners[own]).filter(|own| !own.left);
        match claimed {
            Ok(Changed::Listener(name)) if held.is_some_and(|held| held.id != Some(name)) => {
                let what = format!("session {}: {held:?} is called {name:?}", id.0);
                self.verdict.fail(Checker::Isolation, what);
            }
            Ok(Changed::Listener(_)) if held.is_some() => {}
            Ok(Changed::Listener(name)) => self.takes_from(at, session, own, port, (anchor, name)),
            // Connections waited for long, and nobody took them.
            Err(Errno::ENOENT) if !self.is_held(at, anchor) => self.listener_is_gone(at, port),
            other => self.verdict.fail(Checker::Isolation, format!("port {port} was shown: {other:?}")),
        }
    }

    fn takes_from(
        &mut self,
        at: usize,
        session: usize,
        own: Option<usize>,
        port: u16,
        (anchor, name): (AnchorHandle, ListenerId),
    ) {
        self.tallies.add(Tally::SharedListeners);
        self.with_session(at, session, |session, cx| {
            if let Some(own) = own {
                // The descriptor is that of the new name.
                session.listeners[own].closed = true;
            }
            session.listeners.push(Listening { id: Some(name), ..Listening::new(port, anchor) });
            cx.command(session, Command::AcceptCredit { listener: name, count: 4096 }, &[]);
        });
    }

    fn is_held(&self, at: usize, anchor: AnchorHandle) -> bool {
        let sessions = self.nodes[at].sessions.iter().filter(|s| s.alive && !s.is_hostile());
        sessions.flat_map(|s| &s.listeners).any(|l| l.anchor == anchor && !l.closed && !l.left)
    }

    fn listener_is_gone(&mut self, at: usize, port: u16) {
        for conn in self.conns.list.iter_mut().filter(|c| c.server == (at, port) && c.accepts == 0) {
            conn.excuse.get_or_insert("nobody held its listener");
        }
    }

    /// The session takes no more connections. What waits, and what it has not seen yet, is for the others.
    fn leave_some_listener(&mut self, at: usize, session: usize) {
        let held = |l: &Listening| !l.closed && !l.left && l.id.is_some();
        let listeners = &self.nodes[at].sessions[session].listeners;
        let held: Vec<usize> = (0..listeners.len()).filter(|l| held(&listeners[*l])).collect();
        if held.is_empty() {
            return;
        }
        let number = self.sharing.pick(&held);
        self.tallies.add(Tally::LeftListeners);
        self.with_session(at, session, |session, cx| {
            // Not before it has seen all that its ring says.
            session.serve(cx);
            let Some(listener) = session.listeners[number].id else { return };
            session.listeners[number].left = true;
            cx.event(session, None, "leaves", format_args!("port {}", session.listeners[number].port));
            cx.command(session, Command::CloseListener { listener, last: false }, &[]);
        });
        let anchor = self.nodes[at].sessions[session].listeners[number].anchor;
        if self.other_listening(at, session, anchor).is_some() && self.sharing.one_in(2) {
            self.leave_to_others(at, session);
            let clock = self.nodes[at].clock(self.now_us);
            self.nodes[at].close_listening(clock, session, number);
        } else {
            let back_us = self.now_us + 1 + u64::from(self.sharing.any_size(TURNS_TO_IT_US));
            self.schedule(back_us, What::Fault(Mishap::ComesBack { node: at, session, anchor }));
        }
    }

    /// An ordinary process that has a descriptor, besides this one.
    fn other_listening(&self, at: usize, session: usize, anchor: AnchorHandle) -> Option<usize> {
        let node = &self.nodes[at];
        node.listening_by(anchor).find(|other| *other != session && !node.sessions[*other].is_hostile())
    }

    /// What was not accepted from the session's listeners is others' to accept, if any have them.
    pub fn leave_to_others(&mut self, at: usize, session: usize) {
        for number in 0..self.nodes[at].sessions[session].listeners.len() {
            let Listening { port, anchor, closed, .. } = self.nodes[at].sessions[session].listeners[number];
            let Some(other) = self.other_listening(at, session, anchor).filter(|_| !closed) else { continue };
            let mine = |conn: &crate::program::plan::Conn| {
                conn.server == (at, port) && conn.server_session == session && conn.accepts == 0
            };
            for conn in self.conns.list.iter_mut().filter(|conn| mine(conn)) {
                conn.server_session = other;
            }
        }
    }

    /// The session means harm from now on, and may take any connection of a listener that it shares.
    pub fn taint_shared_listeners(&mut self, at: usize, session: usize) {
        let listeners = self.nodes[at].sessions[session].listeners.iter().filter(|l| !l.closed);
        let ports: Vec<u16> = listeners.map(|l| l.port).collect();
        for (number, conn) in self.conns.list.iter_mut().enumerate() {
            if conn.server.0 == at && conn.accepts == 0 && ports.contains(&conn.server.1) {
                conn.excuse.get_or_insert("who shares its listener means harm");
                self.streams.taint(number as u32, 1);
            }
        }
    }

    // ---- sockets ----

    /// A process that is about to end is not the only one that has its descriptors: some of its connections go on.
    pub fn bequeath(&mut self, at: usize, session: usize) {
        let sessions = &self.nodes[at].sessions;
        let is_heir = |s: &usize| *s != session && sessions[*s].alive && !sessions[*s].is_hostile();
        let heirs: Vec<usize> = (0..sessions.len()).filter(is_heir).collect();
        if heirs.is_empty() || sessions[session].is_hostile() {
            return;
        }
        for socket in self.nodes[at].sessions[session].passable() {
            if self.sharing.one_in(2) {
                let heir = self.sharing.pick(&heirs);
                self.inherit(at, (session, socket), heir);
            }
        }
    }

    fn inherit(&mut self, at: usize, (from, socket): (usize, usize), heir: usize) {
        self.tallies.add(Tally::Inherited);
        let node = &mut self.nodes[at];
        let mut inherited = node.sessions[from].give_away(socket);
        inherited.set_adrift();
        if let Some(id) = inherited.stream() {
            self.conns.list[id.conn as usize].set_program(id.side, (at, heir));
        }
        let sockets = &mut self.nodes[at].sessions[heir].sockets;
        sockets.push(inherited);
        let again = Mishap::PassesAgain { node: at, session: heir, socket: sockets.len() - 1 };
        let soon_us = self.now_us + 1 + u64::from(self.sharing.any_size(TURNS_TO_IT_US));
        self.schedule(soon_us, What::Fault(again));
    }

    /// A process gets a descriptor of a socket that it has already, and goes on with that one.
    fn show_again(&mut self, at: usize, session: usize) {
        let sockets = self.nodes[at].sessions[session].passable();
        if sockets.is_empty() {
            return;
        }
        let socket = self.sharing.pick(&sockets);
        self.pass_to(at, (session, socket), session);
    }
}

impl Session {
    /// The listener that has this name, or had it last.
    pub(super) fn listening(&mut self, id: ListenerId) -> Option<&mut Listening> {
        self.listeners.iter_mut().rev().find(|listening| listening.id == Some(id))
    }

    /// Connections wait at a listener that several take from, or do no more.
    pub(super) fn asks(&mut self, cx: &mut Cx<'_>, listener: ListenerId, wait: bool) {
        let Some(listening) = self.listening(listener) else {
            let what = isolation::unknown_name(self.id, &listener);
            cx.verdict.check(Checker::Isolation, what);
            return;
        };
        // Told before it let go.
        listening.asks = wait && !listening.closed && !listening.left;
        self.ask_again(cx, listener);
    }

    pub(super) fn ask_again(&mut self, cx: &mut Cx<'_>, listener: ListenerId) {
        if self.listening(listener).is_some_and(|listening| listening.asks) {
            cx.command(self, Command::TakeConnection { listener }, &[]);
        }
    }

    /// Sockets that another process could go on with.
    pub(super) fn passable(&self) -> Vec<usize> {
        let passable = |s: &crate::program::socket::Socket| s.open && s.is_held() && s.stream().is_some();
        (0..self.sockets.len()).filter(|i| passable(&self.sockets[*i])).collect()
    }
}
