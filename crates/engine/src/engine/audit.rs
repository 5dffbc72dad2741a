//! What a driver that has time may ask of an engine: whether what is counted and derived agrees with the records. For the
//! simulator and tests; `toed` never asks.

use super::EngineView;
use crate::flow::key::FlowKey;
use crate::flow::tenancy::{Notice, Tenancy};
use crate::hostif::users::{Resource, UserIdx};
use crate::work::{Owner, Path};
use std::collections::HashMap;
use toe_base::{FlowIdx, Instant, SessionId};
use toe_tcp::state::TcpState;
use toe_tcp::{POOLS, PoolUse, fast_open};

/// A connection as its timers are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowAudit {
    pub key: FlowKey,
    pub owner: Owner,
    /// Its bytes go past the engine.
    pub is_direct: bool,
    /// Its owner is to give it up.
    pub is_asked: bool,
    pub state: TcpState,
    /// Bytes, SYN and FIN included, that were sent and not acknowledged.
    pub in_flight: u32,
    /// Bytes that the program has queued and the peer has not acknowledged.
    pub queued: u32,
    /// Only the peer or time can move it on.
    pub waits_for_peer: bool,
    pub deadline: Instant,
}

/// A connection as what it believes of its path is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathAudit {
    pub key: FlowKey,
    pub state: TcpState,
    pub is_local: bool,
    /// Bytes of a segment, as are those that follow, of the windows.
    pub mss: u32,
    pub cwnd: u32,
    pub ssthresh: u32,
    pub pipe: u32,
    pub outstanding: u32,
    /// Of what is outstanding, bytes that the peer has beyond a hole, and those that are to be sent again.
    pub sacked: u32,
    pub lost: u32,
    /// 0: not measured yet.
    pub srtt_us: u32,
    pub rto_us: u32,
}

impl<'e> EngineView<'e> {
    /// Whether the counts agree with what there is, and nothing is held twice or by nobody.
    pub fn audit(self) -> Result<(), String> {
        self.audit_memory()?;
        self.audit_listeners()?;
        self.audit_channels()?;
        self.audit_users()?;
        self.audit_neighbours()?;
        self.audit_pools()
    }

    /// What every connection believes of its path.
    pub fn audit_paths(self) -> impl Iterator<Item = PathAudit> + 'e {
        self.0.flows.indices().map(|idx| {
            let (flow, path) = self.0.flows.with_path(idx);
            PathAudit {
                key: flow.conn.key,
                state: flow.tcb.state,
                is_local: flow.tcb.is_local,
                mss: u32::from(flow.tcb.snd.mss),
                cwnd: path.cc.cwnd,
                ssthresh: path.cc.ssthresh,
                pipe: flow.tcb.pipe(path),
                outstanding: flow.tcb.outstanding(),
                sacked: flow.tcb.sending.board.sacked(),
                lost: flow.tcb.sending.board.lost(),
                srtt_us: path.rtt.srtt_us,
                rto_us: path.rtt.rto_us,
            }
        })
    }

    /// Every connection's timers. Asked when nothing is ready to be sent.
    pub fn audit_flows(self) -> impl Iterator<Item = FlowAudit> + 'e {
        let flows = self.0.flows.indices().map(|idx| {
            let (flow, path) = self.0.flows.with_path(idx);
            let (state, in_flight, queued) = (
                flow.tcb.state,
                flow.tcb.snd.nxt.distance_from(flow.tcb.snd.una),
                flow.tcb.sending.queue.len(),
            );
            let opening = matches!(state, TcpState::SynSent | TcpState::SynReceived);
            let waits_for_peer = state != TcpState::Closed
                && (in_flight > 0
                    || queued > 0
                    || opening && !fast_open::waits(&flow.tcb)
                    || state == TcpState::TimeWait);
            let deadline = self.0.tcp.deadline(&flow.tcb, path);
            FlowAudit {
                key: flow.conn.key,
                owner: flow.conn.tenancy.owner(),
                is_direct: flow.conn.carrier.channel().is_some(),
                is_asked: flow.conn.tenancy.notice() == Notice::Yield,
                state,
                in_flight,
                queued,
                waits_for_peer,
                deadline,
            }
        });
        let time_waits = self.0.flows.time_waits.iter().map(|(_, waiting)| FlowAudit {
            key: waiting.key,
            owner: Owner::default(),
            is_direct: false,
            is_asked: false,
            state: TcpState::TimeWait,
            in_flight: 0,
            queued: 0,
            waits_for_peer: true,
            deadline: waiting.tcp.until,
        });
        flows.chain(time_waits)
    }
}

impl EngineView<'_> {
    /// Whether each place of the flows' pools that is taken is some flow's.
    fn audit_pools(self) -> Result<(), String> {
        let mut of_flows = PoolUse::default();
        for (flow, path) in self.0.flows.indices().map(|idx| self.0.flows.with_path(idx)) {
            of_flows
                .iter_mut()
                .zip(self.0.tcp.used_by(&flow.tcb, path))
                .for_each(|(sum, places)| *sum += places);
        }
        let of_conns =
            self.0.flows.indices().map(|idx| self.0.flows.get(idx).conn.aside.len()).sum::<usize>();
        if self.0.flows.asides() != of_conns {
            return Err(format!("{} asides are taken, {of_conns} of flows", self.0.flows.asides()));
        }
        let taken = self.0.tcp.used();
        let what = || format!("places of {POOLS:?}: {taken:?} taken, {of_flows:?} of flows");
        if taken == of_flows { Ok(()) } else { Err(what()) }
    }

    /// Whether each connection holds the neighbour through which it goes, and none else.
    fn audit_neighbours(self) -> Result<(), String> {
        for idx in self.0.flows.indices() {
            let (path, held) = (self.0.flows.get(idx).conn.path, self.0.flows.neighbour_held_by(idx));
            let goes = match path {
                Path::Local => None,
                Path::Port { port, neighbour } => Some((port, neighbour)),
            };
            if held != goes {
                return Err(format!("it goes by {path:?} and holds {held:?}"));
            }
        }
        Ok(())
    }

    /// Whether each listener counts what there is: half-open, waiting and handed-out connections.
    fn audit_listeners(self) -> Result<(), String> {
        for (idx, listener) in self.0.listeners.iter() {
            let (mut half_open, mut handed) = (0, 0);
            let tenancies = self.0.flows.indices().map(|flow| self.0.flows.get(flow).conn.tenancy);
            for tenancy in tenancies.filter(|tenancy| tenancy.listener() == Some(idx)) {
                match tenancy {
                    Tenancy::HalfOpen { .. } => half_open += 1,
                    Tenancy::Offered(_) => handed += 1,
                    _ => {}
                }
            }
            if (listener.queue.half_open, listener.queue.handed) != (half_open, handed) {
                return Err(format!("half open {half_open}, handed {handed}, but {listener:?}"));
            }
        }
        let half_open =
            self.0.listeners.iter().map(|(_, listener)| listener.queue.half_open as usize).sum::<usize>();
        if self.0.listeners.half_open != half_open {
            return Err(format!("half open {half_open}, but {} are counted", self.0.listeners.half_open));
        }
        Ok(())
    }

    /// Whether every byte that an arena has given out is held by exactly one flow or retired, and every region that is read
    /// from is pinned by its readers.
    fn audit_memory(self) -> Result<(), String> {
        let mut blocks = Vec::new();
        for idx in self.0.flows.indices() {
            let receive = &self.0.flows.get(idx).tcb.receiving.buffer;
            blocks.extend(receive.blocks().map(|b| (receive.session, b)));
            blocks.extend(self.0.flows.aside(idx).blocks().map(|b| (SessionId(0), b)));
        }
        blocks.extend(self.0.hostif.carried.blocks());
        blocks.sort_by_key(|(session, block)| (session.0, block.offset()));
        for pair in blocks.windows(2) {
            let [(a, first), (b, second)] = pair else { continue };
            if a == b && first.offset() + u64::from(first.len()) > second.offset() {
                return Err(format!("{first:?} and {second:?} of session {a} overlap"));
            }
        }
        for id in self.0.hostif.sessions.ids().chain([SessionId(0)]) {
            let held: u64 = blocks.iter().filter(|(s, _)| *s == id).map(|(_, b)| u64::from(b.len())).sum();
            let Some(session) = self.0.hostif.sessions.get(id) else { continue };
            let (given, retired) = (session.receive.arena.used(), session.receive.arena.retired());
            if given != held + retired {
                return Err(format!(
                    "session {id} has given out {given}, flows hold {held}, {retired} are retired"
                ));
            }
            let readers =
                self.0.flows.indices().filter(|f| self.0.flows.aside(*f).pinned == Some(id)).count() as u32;
            if session.counts.pins != readers {
                return Err(format!("session {id} has {} pins and {readers} readers", session.counts.pins));
            }
        }
        Ok(())
    }

    /// Whether each user is charged for just what he has.
    fn audit_users(self) -> Result<(), String> {
        let users = self.0.hostif.sessions.users();
        let mut flows: HashMap<UserIdx, u64> = HashMap::new();
        for idx in self.0.flows.indices() {
            *flows.entry(self.0.flows.get(idx).conn.user).or_default() += 1;
        }
        for payer in self.0.udp.sockets.payers() {
            *flows.entry(payer).or_default() += 1;
        }
        let mut listeners: HashMap<UserIdx, u64> = HashMap::new();
        for (_, listener) in self.0.listeners.iter() {
            *listeners.entry(listener.user).or_default() += 1;
        }
        for payer in self.0.via.payers_of_listeners() {
            *listeners.entry(payer).or_default() += 1;
        }
        for user in users.iter() {
            let idx = users.idx(user.cred);
            let has = [(Resource::Flows, &flows), (Resource::Listeners, &listeners)];
            for (resource, counted) in has {
                let counted = counted.get(&idx).copied().unwrap_or(0);
                if user.used(resource) != counted {
                    return Err(format!("{user:?} has {counted} of {resource:?}"));
                }
            }
        }
        for resource in Resource::ALL {
            let all: u64 = users.iter().map(|user| user.used(resource)).sum();
            if all != users.used(resource) {
                return Err(format!("{resource:?}: {all} of all users, {} in all", users.used(resource)));
            }
        }
        Ok(())
    }

    /// Whether each side of a channel's slot that is held is held by exactly one flow, in the same use of the slot.
    fn audit_channels(self) -> Result<(), String> {
        let direct = |idx: FlowIdx| self.0.flows.get(idx).conn.carrier.channel();
        let mut of_flows: Vec<_> = self.0.flows.indices().filter_map(direct).collect();
        of_flows.sort_by_key(|d| (d.channel, d.slot, d.side.index()));
        let of_flows: Vec<_> = of_flows.iter().map(|d| (d.channel, d.slot, d.side, d.generation)).collect();
        let held = self.0.hostif.channels.held();
        if of_flows == held { Ok(()) } else { Err(format!("flows use {of_flows:?}, held are {held:?}")) }
    }
}
