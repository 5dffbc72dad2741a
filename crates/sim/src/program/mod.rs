//! Programs: what a process does with its listeners and connections, through ring entries and completions only.
//!
//! [`plan`] says what each side of a connection does, [`socket`] does it. This file takes completions and finds the
//! socket that each is for.

mod pass;
pub mod plan;
mod sharing;
pub mod socket;

use crate::checkers::sequence::Sequences;
use crate::checkers::streams::Streams;
use crate::checkers::{Checker, Verdict, isolation};
use crate::entries::{self, Entry};
use crate::frame::Way;
use crate::kernel::{Kernel, serve_requests};
use crate::memory::Memory;
use crate::node::{Listening, QS, Session, address_of, v6_address_of};
use crate::pattern::StreamId;
use crate::program::plan::{Conn, Conns, Progress};
use crate::program::socket::Socket;
use crate::random::Random;
use crate::tally::{Tallies, Tally};
use crate::trace::{About, Trace};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use toe_abi::command::{CONNECT_FAST_OPEN, ConnectArgs, FLOW_WAITS_FOR_DATA, ListenArgs, NO_HANDLE};
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, Cred, FlowId, Instant, ListenerId};
use toe_engine::Engine;
use toe_engine::control::names::Twin;
use zerocopy::IntoBytes;

/// What a program may touch while it runs.
#[derive(Debug)]
pub struct Cx<'a> {
    pub now_us: u64,
    /// The engine's clock.
    pub clock: Instant,
    pub node: usize,
    /// The program's number there.
    pub session: usize,
    pub engine: &'a mut Engine,
    /// The one with which the engine shares its address.
    pub kernel: Option<&'a mut Kernel>,
    pub memory: &'a mut Memory,
    pub conns: &'a mut Conns,
    pub streams: &'a mut Streams,
    pub sequences: &'a mut Sequences,
    pub random: &'a mut Random,
    pub tallies: &'a mut Tallies,
    pub trace: &'a mut Trace,
    pub verdict: &'a mut Verdict,
    /// Sockets that want to go on later: when, and which of this session's.
    pub wakes: &'a mut Vec<(u64, usize)>,
}

/// `token` of a `Listen`: this, and the listener's number.
const LISTEN_TOKEN: u32 = 1 << 31;

/// Who has very many connections that have ended, and has not heard of it, gets no anchor for another one.
const NO_ANCHOR: &str = "its session has no anchor for it";

/// What `accept` does to an owner word.
const ACCEPTS: (Owned, Owned) = (Owned::Offered, Owned::Held);

/// An address as the streams are known by: one of IPv4 in IPv6 is that of IPv4.
pub fn plain(addr: SocketAddr) -> (IpAddr, u16) {
    (addr.ip().to_canonical(), addr.port())
}

impl Cx<'_> {
    pub fn event(
        &mut self,
        session: &Session,
        conn: Option<u32>,
        event: &str,
        detail: std::fmt::Arguments<'_>,
    ) {
        self.trace.event(self.now_us, About::conn(self.node, session.id.0, conn), event, detail);
    }

    /// The kernel lets the session's program bind a socket there, and listen; the program shows it.
    fn show_twin(
        &mut self,
        session: &Session,
        at: SocketAddr,
        (anchor, listens): (AnchorHandle, bool),
    ) -> u32 {
        // Of what lives at a time no two have one anchor.
        let identity = u64::from(anchor.0);
        let twin = Twin { listens, ..Twin::bound(at.into(), identity, Cred::default(), self.clock) };
        self.engine.add_twin(session.id, twin).unwrap_or(NO_HANDLE)
    }

    /// An entry of a session that keeps to the contract.
    pub fn publish(&mut self, session: &Session, entry: Entry) {
        self.memory.publish(session.id, entry);
        if !self.memory.keeps_entries {
            entries::catch_up(self.engine, self.memory, self.clock, session.id);
        }
    }

    /// A command of a session that keeps to the contract.
    pub fn command(&mut self, session: &Session, command: Command, args: &[u8]) {
        let mut block = [0; 64];
        block[..args.len()].copy_from_slice(args);
        // As the driver: what was published before counts first, and of some what the other end has done before. Copies of descriptors are made
        // before that may be: what these commands say, entries do not change.
        if !matches!(command, Command::Lend { .. } | Command::CloseCopy { .. }) {
            entries::catch_up(self.engine, self.memory, self.clock, session.id);
        }
        if let Some(peer) = self.engine.view().counts_after(session.id, command) {
            entries::catch_up(self.engine, self.memory, self.clock, peer);
        }
        let result = self.engine.handle_command(self.clock, session.id, QS, command, &block, self.memory);
        let engine = (&mut *self.engine, &mut *self.memory);
        serve_requests(engine, self.kernel.as_deref_mut(), self.clock, self.now_us);
        self.verdict.check(Checker::Isolation, isolation::is_not_fenced(session.id, result));
    }
}

impl Session {
    pub fn listen(&mut self, cx: &mut Cx<'_>, at: IpAddr, port: u16, backlog: u32, fast: u32) {
        let Some(anchor) = self.take_anchor(cx) else { return };
        let number = self.listeners.len() as u32;
        self.listeners.push(Listening { fast_open: fast, ..Listening::new(port, anchor) });
        let local = SocketAddr::from((at, port)).into();
        let twin = cx.show_twin(self, SocketAddr::from((at, port)), (anchor, true));
        let args = ListenArgs { local, backlog, anchor: anchor.0, twin, ..Default::default() };
        cx.event(self, None, "listen", format_args!("{at}:{port} backlog {backlog} fast {fast}"));
        cx.command(self, Command::Listen { token: LISTEN_TOKEN | number }, args.as_bytes());
    }

    pub fn connect(&mut self, cx: &mut Cx<'_>, conn: u32) {
        let Some(anchor) = self.take_anchor(cx) else {
            cx.conns.list[conn as usize].excuse.get_or_insert(NO_ANCHOR);
            return;
        };
        let token = self.sockets.len() as u32;
        let Conn { server, local, v6, from_port, fast, plans, .. } = cx.conns.list[conn as usize];
        let to: IpAddr = match (local, v6) {
            (false, false) => address_of(server.0).into(),
            (false, true) => v6_address_of(server.0).into(),
            (true, false) => Ipv4Addr::LOCALHOST.into(),
            (true, true) => Ipv6Addr::LOCALHOST.into(),
        };
        let remote = SocketAddr::from((to, server.1));
        let own = (from_port > 0).then(|| SocketAddr::from((address_of(cx.node), from_port)));
        let twin = own.map_or(NO_HANDLE, |own| cx.show_twin(self, own, (anchor, false)));
        let own = own.map(Into::into).unwrap_or_default();
        // The SYN of one that has nothing to send would wait.
        let fast = fast && plans[0].may_send(Progress::default()) > 0;
        let flags = if fast { CONNECT_FAST_OPEN } else { 0 };
        let (remote_arg, anchor_arg) = (remote.into(), anchor.0);
        // Of those that need not be answered some are not.
        let id = if local && from_port == 0 && !fast { self.connect_ids.pop() } else { None };
        let args = ConnectArgs {
            remote: remote_arg,
            local: own,
            anchor: anchor_arg,
            flags,
            twin,
            flow: id.map_or(NO_HANDLE, FlowId::raw),
            ..Default::default()
        };
        let at = self.sockets.len();
        let lapses = local.then(|| cx.engine.view().lapses());
        let is_promised = id.is_some() && lapses == self.reached.get(&(v6, server.1)).copied();
        cx.tallies.add_many(Tally::Promised, u64::from(is_promised));
        let mut socket = Socket::new(StreamId { conn, side: 0 }, anchor);
        (socket.lapses, socket.is_promised) = (lapses, is_promised);
        self.sockets.push(socket);
        if let Some(id) = id {
            self.sockets[at].id = Some(id);
            self.by_id.insert(id.raw(), at);
        }
        cx.event(self, Some(conn), "connect", format_args!("{remote} fast {fast}"));
        cx.memory.take_last_info();
        cx.command(self, Command::Connect { token }, args.as_bytes());
        self.lend(cx, anchor);
        if id.is_some() {
            self.set_options(cx, at);
        }
        if let Some((own, peer)) = cx.memory.take_last_info() {
            let way = Way { from: plain(own), to: plain(peer) };
            cx.sequences.know(way, StreamId { conn, side: 0 });
            cx.conns.by_way.insert((server.0, way), conn);
        }
    }

    /// Others may show what it has: any of its processes may be made to, or have died having been about to.
    fn lend(&self, cx: &mut Cx<'_>, anchor: AnchorHandle) {
        if self.once_kept.contains(&anchor.0) {
            cx.command(self, Command::Lend { anchor }, &[]);
        }
    }

    /// Takes all completions and does what follows from them.
    pub fn serve(&mut self, cx: &mut Cx<'_>) {
        self.wake_scheduled = false;
        while let Some((completion, ends)) = cx.memory.next(self.id) {
            if cx.trace.is_on() {
                cx.event(self, self.conn_of(&completion), "completion", format_args!("{completion:?}"));
            }
            self.take(cx, completion, ends);
        }
        for flow in std::mem::take(&mut self.yields) {
            self.give_up(cx, flow);
        }
        self.feed_hungry(cx);
    }

    fn conn_of(&self, completion: &Completion) -> Option<u32> {
        let socket = self.socket_of(flow_of(completion)?)?;
        self.sockets[socket].stream().map(|s| s.conn)
    }

    fn socket_of(&self, flow: FlowId) -> Option<usize> {
        self.by_id.get(&flow.raw()).copied()
    }

    fn take(&mut self, cx: &mut Cx<'_>, completion: Completion, ends: Option<(SocketAddr, SocketAddr)>) {
        match completion {
            Completion::CommandResult { token, errno, id, .. } => self.command_done(cx, token, errno, id),
            // Its program has left it waiting too long.
            Completion::Accepted { listener, flow } if !cx.memory.owns(self.id, flow, ACCEPTS) => {
                cx.tallies.add(Tally::WentBack);
                self.by_id.insert(flow.raw(), self.sockets.len());
                self.sockets.push(Socket::gone(flow));
                self.ask_again(cx, listener);
            }
            Completion::Accepted { listener, flow } => self.accept(cx, listener, flow, ends),
            Completion::AnchorFree { anchor } => {
                self.kept_anchors.retain(|kept| *kept != anchor);
                self.free_anchors.push(anchor);
            }
            Completion::ConnectCredit { flow } => self.connect_ids.push(flow),
            Completion::AnchorShared { anchor } => {
                self.kept_anchors.retain(|kept| *kept != anchor);
                entries::anchor_closed(cx.engine, cx.memory, cx.clock, anchor);
            }
            Completion::OfferChannel { channel } => {
                // Some hosts take none.
                if !cx.random.one_in(8) {
                    cx.command(self, Command::ChannelReady { channel }, &[]);
                }
            }
            // Bytes of these programs go through the engine all the same.
            Completion::ChannelClosed { .. } | Completion::Direct { .. } => {}
            Completion::Moved { flow } => self.loses(flow),
            Completion::Yield { flow } => self.give_up(cx, flow),
            Completion::ConnectionsWait { listener } => self.asks(cx, listener, true),
            Completion::NothingWaits { listener, .. } => self.asks(cx, listener, false),
            _ => {
                let Some(at) = flow_of(&completion).and_then(|flow| self.socket_of(flow)) else {
                    let what = isolation::unknown_name(self.id, &completion);
                    cx.verdict.check(Checker::Isolation, what);
                    return;
                };
                self.socket_takes(cx, at, completion);
                self.step(cx, at);
            }
        }
    }

    fn command_done(&mut self, cx: &mut Cx<'_>, token: u32, errno: Errno, id: u32) {
        if token & LISTEN_TOKEN != 0 {
            let listening = &mut self.listeners[(token & !LISTEN_TOKEN) as usize];
            if !errno.is_ok() {
                let what = format!("listen at port {} failed: {errno:?}", listening.port);
                cx.verdict.fail(Checker::Isolation, what);
                return;
            }
            let listener = ListenerId(FlowId::from_raw(id));
            listening.id = Some(listener);
            let limit = listening.fast_open;
            cx.command(self, Command::AcceptCredit { listener, count: 4096 }, &[]);
            if limit > 0 {
                cx.command(self, Command::FastOpen { listener, limit }, &[]);
            }
            return;
        }
        let at = token as usize;
        if errno.is_ok() {
            self.sockets[at].id = Some(FlowId::from_raw(id));
            self.by_id.insert(id, at);
            self.set_options(cx, at);
            if cx.memory.info(self.id, FlowId::from_raw(id).slot()).flags & FLOW_WAITS_FOR_DATA != 0 {
                // Its program is told that it is connected.
                self.sockets[at].open_early();
                self.step(cx, at);
            }
        } else {
            self.free_anchors.push(self.sockets[at].anchor);
            self.sockets[at].closed = true;
            self.connect_failed(cx, at, errno);
        }
    }

    fn accept(
        &mut self,
        cx: &mut Cx<'_>,
        listener: ListenerId,
        flow: FlowId,
        ends: Option<(SocketAddr, SocketAddr)>,
    ) {
        match self.listening(listener).copied() {
            Some(listening) if listening.closed && !listening.left => {
                // What it is told of the connection is of no interest any more.
                self.by_id.insert(flow.raw(), self.sockets.len());
                self.sockets.push(Socket::gone(flow));
                return;
            }
            Some(listening) if !listening.left => {}
            _ => {
                let what = isolation::unknown_name(self.id, &listener);
                cx.verdict.check(Checker::Isolation, what);
                return;
            }
        }
        let way = ends.map(|(own, peer)| Way { from: plain(peer), to: plain(own) });
        let conn = way.and_then(|way| cx.conns.by_way.get(&(cx.node, way)).copied());
        let Some(anchor) = self.take_anchor(cx) else {
            conn.into_iter()
                .for_each(|conn| _ = cx.conns.list[conn as usize].excuse.get_or_insert(NO_ANCHOR));
            self.by_id.insert(flow.raw(), self.sockets.len());
            self.sockets.push(Socket::gone(flow));
            return;
        };
        cx.command(self, Command::AcceptCredit { listener, count: 1 }, &[]);
        cx.command(self, Command::Accept { flow, anchor, fd: 3 }, &[]);
        self.lend(cx, anchor);
        let at = self.sockets.len();
        let again = way.zip(conn).and_then(|(way, conn)| came_again(cx, way, conn));
        let socket = match (conn, again) {
            (Some(conn), Some(syn_text)) => Socket::again(StreamId { conn, side: 0 }, anchor, syn_text),
            (Some(conn), None) => {
                cx.conns.list[conn as usize].server_session = cx.session;
                Socket::accepted(StreamId { conn, side: 1 }, anchor, way)
            }
            (None, _) => {
                cx.tallies.add(Tally::Strangers);
                Socket::stranger(anchor)
            }
        };
        self.sockets.push(socket);
        self.sockets[at].id = Some(flow);
        self.sockets[at].open = true;
        self.by_id.insert(flow.raw(), at);
        cx.event(self, conn, "accept", format_args!("{way:?}"));
        if let Some(conn) = conn {
            cx.conns.list[conn as usize].opened[1] = true;
            cx.conns.list[conn as usize].accepts += 1;
        }
        self.set_options(cx, at);
        if conn.is_none() {
            self.greet(cx, at);
        }
        self.step(cx, at);
        self.ask_again(cx, listener);
    }

    /// Sockets that wanted send memory try again.
    fn feed_hungry(&mut self, cx: &mut Cx<'_>) {
        for at in std::mem::take(&mut self.hungry) {
            self.sockets[at].is_hungry = false;
            self.step(cx, at);
        }
    }
}

/// Whether a listener has handed the connection out before, which only Fast Open may do: how many bytes came with its SYN.
fn came_again(cx: &mut Cx<'_>, way: Way, number: u32) -> Option<u32> {
    let times = cx.conns.list[number as usize].accepts;
    if times == 0 {
        return None;
    }
    let syn_text = cx.sequences.may_come_again(way, times);
    if syn_text.is_none() {
        cx.verdict.fail(Checker::Streams, format!("connection {number} was accepted again"));
    }
    Some(syn_text.unwrap_or(0))
}

/// The flow that a completion is about.
pub fn flow_of(completion: &Completion) -> Option<FlowId> {
    match *completion {
        Completion::Connected { flow, .. }
        | Completion::Data { flow, .. }
        | Completion::Sent { flow, .. }
        | Completion::PeerClosed { flow }
        | Completion::Reset { flow, .. }
        | Completion::Urgent { flow, .. }
        | Completion::Moved { flow } => Some(flow),
        _ => None,
    }
}
