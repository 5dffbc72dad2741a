//! What there is to see of an engine: for its driver, for `toe status` and `toe ss`.

use super::EngineView;
use crate::control::listen::Listener;
use crate::control::names::Twin;
use crate::control::route::Route;
use crate::counter::Counter;
use crate::flow::key::TimeWaitIdx;
use crate::hostif::users::Users;
use crate::store::time_waits::TimeWaitFlow;
use crate::udp::sockets::SocketReport;
use crate::work::Path;
use core::net::SocketAddr;
use toe_abi::report::{TcpReport, UdpReport};
use toe_base::{Addr, Cred, DatagramId, Endpoint, FlowIdx, Instant, LaneId, NetNs, PortId, SessionId};
use toe_tcp::state::TcpState;

/// One flow, listener or UDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketView {
    /// The network namespace of its addresses.
    pub netns: NetNs,
    pub state: &'static str,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Bytes received and not taken; for a listener, connections not taken.
    pub recv_q: u32,
    /// Bytes queued and not acknowledged; for a listener, its backlog.
    pub send_q: u32,
    /// Sessions that hold it, and the descriptor number that each said.
    pub holders: Vec<(SessionId, u32)>,
    /// `None`: local, or all for a listener.
    pub port: Option<PortId>,
    pub listener: bool,
    /// Of a connection, unless it is in TIME_WAIT without a program.
    pub tcp: Option<TcpReport>,
    /// Of a UDP socket.
    pub udp: Option<UdpReport>,
}

/// How far a list of all sockets has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCursor {
    /// When the list was asked for.
    now: Instant,
    listeners: u32,
    flows: u32,
    time_waits: u32,
    /// The UDP socket that was last, by what the kernel calls it.
    datagrams: Option<u64>,
}

impl SocketCursor {
    pub fn at(now: Instant) -> SocketCursor {
        SocketCursor { now, ..SocketCursor::default() }
    }
}

/// One session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionView {
    pub flows: u32,
    pub listeners: u32,
    /// Bytes of receive memory in use.
    pub receive_memory_used: u64,
    /// Whose account its things go on.
    pub account: Cred,
    pub netns: NetNs,
}

/// How many there are, of all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Connections in the table.
    pub flows: usize,
    pub listeners: usize,
    /// Whose memory the driver keeps.
    pub channels: usize,
    pub lanes: usize,
    pub datagram_sockets: usize,
    /// Frames that wait for their port, and datagrams that wait for their neighbour.
    pub datagrams_held: usize,
    /// Listeners and connections of virtual interfaces.
    pub virtual_interfaces: usize,
    /// Network namespaces besides the engine's own that something here is of.
    pub scopes: usize,
}

impl<'e> EngineView<'e> {
    /// What each user has, may have and did not get.
    pub fn users(self) -> &'e Users {
        self.0.hostif.sessions.users()
    }

    /// How many there are of what it keeps.
    pub fn totals(self) -> Totals {
        Totals {
            flows: self.0.flows.len(),
            listeners: self.0.listeners.len(),
            channels: self.0.hostif.channels.len(),
            lanes: self.0.hostif.lanes.len(),
            datagram_sockets: self.0.udp.sockets.len(),
            datagrams_held: self.0.udp.held(),
            virtual_interfaces: self.0.via.len(),
            scopes: self.0.names.scopes.len(),
        }
    }

    pub fn session(self, session: SessionId) -> SessionView {
        self.0.hostif.sessions.get(session).map_or(SessionView::default(), |s| SessionView {
            flows: s.flows.len(),
            listeners: s.listeners.len(),
            receive_memory_used: s.receive.arena.used(),
            account: self.0.hostif.sessions.users().get(s.user).map_or(Cred::default(), |user| user.cred),
            netns: s.cred.netns,
        })
    }

    /// Every counter that is not zero, by name.
    pub fn counters(self) -> impl Iterator<Item = (&'static str, u64)> + 'e {
        let own = Counter::ALL.iter().map(move |c| (c.name(), self.counter(*c)));
        own.chain(self.0.protocols.counters()).filter(|(_, n)| *n > 0)
    }

    /// One counter.
    pub fn counter(self, counter: Counter) -> u64 {
        let of_tcp = toe_tcp::counter::Counter::ALL.iter().find(|c| Counter::of_tcp(**c) == counter);
        of_tcp.map_or_else(|| self.0.counters.get(counter), |c| self.0.tcp.counters.get(*c))
    }

    /// Listeners first, then flows, those in TIME_WAIT without a program last, then UDP sockets.
    pub fn sockets(self, now: Instant) -> Vec<SocketView> {
        let (mut cursor, mut sockets) = (SocketCursor::at(now), Vec::new());
        while self.more_sockets(&mut cursor, usize::MAX, &mut sockets) {}
        sockets
    }

    /// The same in pieces: the sockets in the next places, about `max` of them, used or not. `false`: that was the last piece.
    /// One that is opened or closed meanwhile is in it or not.
    pub fn more_sockets(self, cursor: &mut SocketCursor, max: usize, sockets: &mut Vec<SocketView>) -> bool {
        let mut left = max;
        while left > 0 {
            let SocketCursor { now, listeners, flows, time_waits, datagrams } = cursor;
            if let Some(listener) = self.0.listeners.in_slot(*listeners) {
                *listeners += 1;
                left =
                    left.saturating_sub(1 + listener.map_or(0, |listener| listener.holders.list.len() / 8));
                sockets.extend(listener.map(|listener| self.listener_view(listener)));
            } else if *flows < self.0.flows.high() {
                let idx = FlowIdx(*flows);
                *flows += 1;
                left -= 1;
                sockets.extend(self.0.flows.is_used(idx).then(|| self.flow_view(*now, idx)));
            } else if *time_waits < self.0.flows.time_waits.high() {
                let idx = TimeWaitIdx(FlowIdx(*time_waits));
                *time_waits += 1;
                left -= 1;
                sockets.extend(self.0.flows.time_waits.get(idx).map(|waiting| self.time_wait_view(waiting)));
            } else if let Some(socket) = self.0.udp.sockets.after(*datagrams) {
                *datagrams = Some(socket.identity);
                left -= 1;
                sockets.push(self.datagrams_view(socket));
            } else {
                return false;
            }
        }
        true
    }

    /// Whether completions wait for room in some ring.
    pub fn has_blocked_completions(self) -> bool {
        !self.0.hostif.outbox.is_empty()
    }

    /// Whether a port has something to send.
    pub fn has_transmit(self, port: PortId) -> bool {
        let of_port = &self.0.ip.ports[port.index()];
        !of_port.ready.is_empty() || !of_port.control.is_empty() || self.0.udp.has_queued(port.index())
    }

    /// Whether local segments wait.
    pub fn has_local(self) -> bool {
        !self.0.ip.loopback.ready.is_empty() || !self.0.ip.loopback.control.is_empty()
    }

    /// When [`super::Engine::poll_trim`] is to be called for pages that wait; `None`: none do.
    pub fn trim_due(self) -> Option<Instant> {
        self.0.hostif.sessions.trim_due()
    }

    /// Whether somebody looks at more of a frame than its headers.
    pub fn needs_whole_frames(self) -> bool {
        self.0.hostif.capture.is_on()
    }

    /// How often somebody has stopped to listen, or is to be asked for in another way since. The driver writes it where hosts see it,
    /// before they can hear of anything that came after.
    pub const fn lapses(self) -> u32 {
        self.0.names.lapses
    }

    /// The lanes that end at a session.
    pub fn lanes_of(self, session: SessionId) -> Vec<LaneId> {
        self.0.hostif.lanes.of_session(session).collect()
    }

    /// What sessions have of a socket.
    pub fn datagram_ends(self, identity: u64) -> Vec<DatagramId> {
        self.0.udp.sockets.ends_at(identity)
    }

    /// The kernel sockets that steered listeners rely on: they must go on listening.
    pub fn steered_twins(self) -> impl Iterator<Item = Twin> {
        self.0.listeners.iter().filter(|(_, l)| l.is_steered).flat_map(|(_, l)| l.holders.twins())
    }

    /// Whether connections have this address.
    pub fn has_flows_at(self, addr: Addr) -> bool {
        self.0.flows.has_some_at(addr)
    }

    fn listener_view(self, listener: &Listener) -> SocketView {
        SocketView {
            netns: self.0.names.scopes.netns(listener.scope),
            state: "LISTEN",
            local: listener.local.to_socket_addr(),
            remote: Endpoint { addr: listener.local.addr.unspecified(), port: 0 }.to_socket_addr(),
            recv_q: listener.queue.not_taken(),
            send_q: listener.queue.backlog,
            holders: listener.holders.list.iter().map(|h| (h.session, h.fd)).collect(),
            port: None,
            listener: true,
            tcp: None,
            udp: None,
        }
    }

    fn datagrams_view(self, socket: SocketReport) -> SocketView {
        let SocketReport { local, connected, sessions, traffic, .. } = socket;
        let nobody = Endpoint { addr: local.addr.unspecified(), port: 0 };
        SocketView {
            netns: self.0.config.netns,
            state: if connected.is_some() { "ESTAB" } else { "UNCONN" },
            local: local.to_socket_addr(),
            remote: connected.unwrap_or(nobody).to_socket_addr(),
            recv_q: 0,
            send_q: 0,
            // Which of its descriptors it is the program has not said.
            holders: sessions.into_iter().map(|session| (session, u32::MAX)).collect(),
            port: None,
            listener: false,
            tcp: None,
            udp: Some(traffic),
        }
    }

    fn time_wait_view(self, waiting: &TimeWaitFlow) -> SocketView {
        let TimeWaitFlow { key, tcp, .. } = waiting;
        let port = match self.0.ip.routes.to(key.remote.addr) {
            Some(Route::Via { port, .. }) if !tcp.is_local() => Some(port),
            _ => None,
        };
        SocketView {
            netns: self.0.names.scopes.netns(key.scope),
            state: TcpState::TimeWait.name(),
            local: key.local_addr(),
            remote: key.remote_addr(),
            recv_q: 0,
            send_q: 0,
            holders: Vec::new(),
            port,
            listener: false,
            tcp: None,
            udp: None,
        }
    }

    fn flow_view(self, now: Instant, idx: FlowIdx) -> SocketView {
        let flow = self.0.flows.get(idx);
        let owner = flow.conn.tenancy.owner();
        SocketView {
            netns: self.0.names.scopes.netns(flow.conn.key.scope),
            state: flow.tcb.state.name(),
            local: flow.conn.key.local_addr(),
            remote: flow.conn.key.remote_addr(),
            recv_q: if flow.tcb.state == TcpState::SynSent {
                0
            } else {
                flow.tcb.receiving.buffer.unconsumed(flow.tcb.data_nxt())
            },
            send_q: flow.tcb.sending.queue.len(),
            holders: if owner.is_nobody() || flow.tcb.orphaned {
                Vec::new()
            } else {
                vec![(owner.session, owner.fd)]
            },
            port: match flow.conn.path {
                Path::Local => None,
                Path::Port { port, .. } => Some(port),
            },
            listener: false,
            tcp: Some(self.tcp_report(now, idx)),
            udp: None,
        }
    }
}
