//! Views for `toe status` and `toe ss`.

use super::Engine;
use crate::control::listen::Listener;
use crate::counter::Counter;
use crate::udp::sockets::SocketReport;
use crate::work::Path;
use core::net::SocketAddr;
use toe_abi::report::{TcpReport, UdpReport};
use toe_base::{Cred, Endpoint, FlowIdx, Instant, NetNs, PortId, SessionId};
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
    /// Of a connection.
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

impl Engine {
    /// Every counter that is not zero, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let own = Counter::ALL.iter().map(|c| (c.name(), self.counter(*c)));
        own.chain(self.protocols.counters()).filter(|(_, n)| *n > 0)
    }

    /// One counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        let of_tcp = toe_tcp::counter::Counter::ALL.iter().find(|c| Counter::of_tcp(**c) == counter);
        of_tcp.map_or_else(|| self.counters.get(counter), |c| self.tcp.counters.get(*c))
    }

    /// Listeners first, then flows, then UDP sockets.
    pub fn sockets(&self, now: Instant) -> Vec<SocketView> {
        let (mut cursor, mut sockets) = (SocketCursor::at(now), Vec::new());
        while self.more_sockets(&mut cursor, usize::MAX, &mut sockets) {}
        sockets
    }

    /// The same in pieces: the sockets in the next places, about `max` of them, used or not. `false`: that was the last piece.
    /// One that is opened or closed meanwhile is in it or not.
    pub fn more_sockets(&self, cursor: &mut SocketCursor, max: usize, sockets: &mut Vec<SocketView>) -> bool {
        let mut left = max;
        while left > 0 {
            let SocketCursor { now, listeners, flows, datagrams } = cursor;
            if let Some(listener) = self.listeners.in_slot(*listeners) {
                *listeners += 1;
                left = left.saturating_sub(1 + listener.map_or(0, |listener| listener.holders.len() / 8));
                sockets.extend(listener.map(|listener| self.listener_view(listener)));
            } else if *flows < self.flows.high() {
                let idx = FlowIdx(*flows);
                *flows += 1;
                left -= 1;
                sockets.extend(self.flows.is_used(idx).then(|| self.flow_view(*now, idx)));
            } else if let Some(socket) = self.udp.sockets.after(*datagrams) {
                *datagrams = Some(socket.identity);
                left -= 1;
                sockets.push(self.datagrams_view(socket));
            } else {
                return false;
            }
        }
        true
    }

    fn listener_view(&self, listener: &Listener) -> SocketView {
        SocketView {
            netns: self.names.scopes.netns(listener.scope),
            state: "LISTEN",
            local: listener.local.to_socket_addr(),
            remote: Endpoint { addr: listener.local.addr.unspecified(), port: 0 }.to_socket_addr(),
            recv_q: listener.waiting.len() as u32 + listener.handed,
            send_q: listener.backlog,
            holders: listener.holders.iter().map(|h| (h.session, h.fd)).collect(),
            port: None,
            listener: true,
            tcp: None,
            udp: None,
        }
    }

    fn datagrams_view(&self, socket: SocketReport) -> SocketView {
        let SocketReport { local, connected, sessions, traffic, .. } = socket;
        let nobody = Endpoint { addr: local.addr.unspecified(), port: 0 };
        SocketView {
            netns: self.config.netns,
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

    fn flow_view(&self, now: Instant, idx: FlowIdx) -> SocketView {
        let flow = self.flows.get(idx);
        let owner = flow.conn.tenancy.owner();
        SocketView {
            netns: self.names.scopes.netns(flow.conn.key.scope),
            state: flow.tcb.state.name(),
            local: flow.conn.key.local_addr(),
            remote: flow.conn.key.remote_addr(),
            recv_q: if flow.tcb.state == TcpState::SynSent {
                0
            } else {
                flow.tcb.receive.unconsumed(flow.tcb.data_nxt())
            },
            send_q: flow.tcb.send_queue.len(),
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

    pub fn session_view(&self, session: SessionId) -> SessionView {
        self.sessions.get(session).map_or(SessionView::default(), |s| SessionView {
            flows: s.flows.len(),
            listeners: s.listeners.len(),
            receive_memory_used: s.arena.used(),
            account: self.sessions.users().get(s.user).map_or(Cred::default(), |user| user.cred),
            netns: s.cred.netns,
        })
    }

    /// How many there are of what it keeps.
    pub fn totals(&self) -> Totals {
        Totals {
            flows: self.flows.len(),
            listeners: self.listeners.len(),
            channels: self.channels.len(),
            lanes: self.lanes.len(),
            datagram_sockets: self.udp.sockets.len(),
            datagrams_held: self.udp.held(),
            virtual_interfaces: self.via.len(),
            scopes: self.names.scopes.len(),
        }
    }
}
