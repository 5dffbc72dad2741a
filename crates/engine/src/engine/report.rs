//! Views for `toe status` and `toe ss`.

use super::Engine;
use crate::counter::Counter;
use crate::flow::tcp::state::TcpState;
use crate::work::Path;
use core::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use toe_abi::report::TcpReport;
use toe_base::{PortId, SessionId};

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
        let nowhere = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
        let listeners = self.listeners.iter().map(|(_, listener)| SocketView {
            state: "LISTEN",
            local: SocketAddr::V4(listener.local),
            remote: nowhere,
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

    /// Whether each listener counts what there is: half-open, waiting and handed-out connections.
    #[cfg(test)]
    pub(crate) fn check_listener_counts(&self) {
        for (idx, listener) in self.listeners.iter() {
            let (mut half_open, mut handed) = (0, 0);
            for flow in
                self.flows.indices().map(|f| self.flows.get(f)).filter(|f| f.conn.listener == Some(idx))
            {
                match (flow.snd.syn_acked, flow.conn.owner.is_nobody()) {
                    (false, _) => half_open += 1,
                    (true, false) => handed += 1,
                    (true, true) => {}
                }
            }
            assert_eq!((listener.half_open, listener.handed), (half_open, handed), "{listener:?}");
        }
        let half_open = self.listeners.iter().map(|(_, listener)| listener.half_open as usize).sum::<usize>();
        assert_eq!(self.half_open, half_open);
    }

    /// Whether every octet that an arena has given out is held by exactly one flow, and every region that is read
    /// from is pinned by its readers.
    #[cfg(test)]
    pub(crate) fn check_memory(&self) {
        let mut blocks = Vec::new();
        for flow in self.flows.indices().map(|f| self.flows.get(f)) {
            blocks.extend(flow.receive.blocks().map(|b| (flow.receive.session, b)));
            blocks.extend(flow.conn.staged.map(|b| (SessionId(0), b)));
        }
        blocks.sort_by_key(|(session, block)| (session.0, block.offset));
        for pair in blocks.windows(2) {
            let [(a, first), (b, second)] = pair else { continue };
            let apart = a != b || first.offset + u64::from(first.len()) <= second.offset;
            assert!(apart, "{first:?} and {second:?} of session {a}");
        }
        for id in self.sessions.ids().chain([SessionId(0)]) {
            let held: u64 = blocks.iter().filter(|(s, _)| *s == id).map(|(_, b)| u64::from(b.len())).sum();
            let Some(session) = self.sessions.get(id) else { continue };
            assert_eq!(session.arena.used(), held, "session {id}");
            let readers =
                self.flows.indices().filter(|f| self.flows.get(*f).conn.pinned == Some(id)).count() as u32;
            assert_eq!(session.pins, readers, "session {id}");
        }
    }

    /// Connections in the table.
    pub fn flow_count(&self) -> usize {
        self.flows.len()
    }
}
