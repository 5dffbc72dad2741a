//! Views for `toe status` and `toe ss`.

use super::Engine;
use crate::counter::Counter;
use crate::flow::tcp::state::TcpState;
use crate::work::Path;
use core::net::SocketAddr;
use toe_abi::report::TcpReport;
use toe_base::{Endpoint, PortId, SessionId};

/// One flow or listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketView {
    pub state: &'static str,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// Octets received and not taken; for a listener, connections not taken.
    pub recv_q: u32,
    /// Octets queued and not acknowledged; for a listener, its backlog.
    pub send_q: u32,
    /// Sessions that hold it, and the descriptor number that each said.
    pub holders: Vec<(SessionId, u32)>,
    /// `None`: local, or all for a listener.
    pub port: Option<PortId>,
    pub listener: bool,
    /// Of a connection.
    pub tcp: Option<TcpReport>,
}

/// One session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionView {
    pub flows: u32,
    pub listeners: u32,
    /// Octets of receive memory in use.
    pub receive_memory_used: u64,
}

impl Engine {
    /// Every counter that is not zero, by name.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        Counter::ALL.iter().map(|c| (c.name(), self.counters.get(*c))).filter(|(_, n)| *n > 0)
    }

    /// One counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter)
    }

    /// Listeners first, then flows.
    pub fn sockets(&self) -> Vec<SocketView> {
        let listeners = self.listeners.iter().map(|(_, listener)| SocketView {
            state: "LISTEN",
            local: listener.local.to_socket_addr(),
            remote: Endpoint { addr: listener.local.addr.unspecified(), port: 0 }.to_socket_addr(),
            recv_q: listener.waiting.len() as u32 + listener.handed,
            send_q: listener.backlog,
            holders: listener.holders.iter().map(|h| (h.session, h.fd)).collect(),
            port: None,
            listener: true,
            tcp: None,
        });
        let flows = self.flows.indices().map(|idx| {
            let flow = self.flows.get(idx);
            let owner = flow.conn.owner;
            SocketView {
                state: flow.conn.state.name(),
                local: flow.conn.key.local_addr(),
                remote: flow.conn.key.remote_addr(),
                recv_q: if flow.conn.state == TcpState::SynSent {
                    0
                } else {
                    flow.receive.unconsumed(flow.data_nxt())
                },
                send_q: flow.send_queue.len(),
                holders: if owner.is_nobody() || flow.conn.app_closed {
                    Vec::new()
                } else {
                    vec![(owner.session, owner.fd)]
                },
                port: match flow.conn.path {
                    Path::Local => None,
                    Path::Port { port, .. } => Some(port),
                },
                listener: false,
                tcp: Some(self.tcp_report(flow)),
            }
        });
        listeners.chain(flows).collect()
    }

    pub fn session_view(&self, session: SessionId) -> SessionView {
        self.sessions.get(session).map_or(SessionView::default(), |s| SessionView {
            flows: s.flows.len(),
            listeners: s.listeners.len(),
            receive_memory_used: s.arena.used(),
        })
    }

    /// Connections in the table.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }
}
