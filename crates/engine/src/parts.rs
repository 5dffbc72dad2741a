//! What an engine is made of beside its connections, its listeners and its names; and rooms: values made of references to exactly the parts
//! that a subject touches. What is done in one reaches nothing else.

use crate::control::arp::Neighbours;
use crate::control::cookie::SpentCookies;
use crate::control::fast_open::Servers;
use crate::control::fragments::Fragments;
use crate::control::listen::Listeners;
use crate::control::names::Names;
use crate::control::route::Routes;
use crate::control::steer::Shared;
use crate::counter::{Counter, Counters};
use crate::egress::builder::ip_header_len;
use crate::egress::waiting::WaitingSegments;
use crate::flow::key::FlowKey;
use crate::flow::record::Flow;
use crate::hostif::anchors::Anchors;
use crate::hostif::captures::Capture;
use crate::hostif::carried::Prefetches;
use crate::hostif::channels::Channels;
use crate::hostif::closing::Closing;
use crate::hostif::outbox::Outbox;
use crate::hostif::sessions::Sessions;
use crate::hostif::users::{Quotas, STAGING_LEN, UserIdx};
use crate::sched::fair::FairList;
use crate::store::FlowStore;
use crate::udp::{Lanes, Udp};
use crate::work::{ControlFrame, Link, Path, Sighting};
use std::collections::VecDeque;
use toe_base::limits::SEGMENT_PAYLOAD_MAX;
use toe_base::{Addr, FlowId, FlowIdx, Instant, NetNs, PortId, SessionId};
use toe_tcp::limit::RateLimit;
use toe_tcp::outgoing::{SendLimits, TxContext};
use toe_tcp::segment::{Segment, TxSegment};
use toe_tcp::state::TcpState;
use toe_tcp::{Tcp, output};

/// Control frames that may wait for a port.
pub const CONTROL_QUEUE_MAX: usize = 256;
/// TCP header without options.
pub const TCP_LEN: u32 = toe_wire::tcp::HEADER_LEN as u32;
/// Resets for segments of no connection.
const RESETS_A_SECOND: u32 = 4000;

/// The host interface: what sessions have, and what is to be told them.
#[derive(Debug)]
pub(crate) struct HostInterface {
    pub sessions: Sessions,
    /// Who has something to be told.
    pub outbox: Outbox,
    pub anchors: Anchors,
    pub channels: Channels,
    pub lanes: Lanes<UserIdx>,
    /// Closed sessions that have something still.
    pub closing: VecDeque<Closing>,
    pub carried: Prefetches,
    pub capture: Capture,
}

impl HostInterface {
    pub fn new(flows_max: usize, quotas: Quotas, netns: NetNs) -> HostInterface {
        HostInterface {
            sessions: Sessions::new(STAGING_LEN, quotas, netns),
            outbox: Outbox::new(flows_max),
            anchors: Anchors::default(),
            channels: Channels::default(),
            lanes: Lanes::default(),
            closing: VecDeque::new(),
            carried: Prefetches::default(),
            capture: Capture::default(),
        }
    }

    /// [`Capture::may_want`].
    pub fn may_want(&self, packet: &Sighting) -> bool {
        self.capture.may_want(packet, |id| self.sessions.get(id).map(|session| session.cred))
    }

    /// The connection that an entry names. There may be none any more: the entry and the connection's end have crossed.
    pub fn flow_of(&mut self, counters: &mut Counters, session: SessionId, id: FlowId) -> Option<FlowIdx> {
        let idx = self.sessions.get(session).and_then(|s| s.flows.get(id));
        if idx.is_none() {
            counters.add(Counter::StaleEntries);
        }
        idx
    }

    /// What was copied ahead for a session and not needed: its memory is free again.
    pub fn forget_carried(&mut self, asker: SessionId) {
        for (session, payer, block) in self.carried.take(asker) {
            self.sessions.arena(session, payer).free(block);
        }
    }
}

/// The layer below TCP and UDP: links, and how their packets travel.
#[derive(Debug)]
pub(crate) struct IpLayer {
    pub ports: Vec<Port>,
    pub loopback: Loopback,
    pub routes: Routes,
    pub steering: Shared,
    pub fragments: Fragments,
}

impl IpLayer {
    pub fn new(flows_max: usize) -> IpLayer {
        let loopback = Loopback {
            ready: FairList::new(flows_max),
            control: VecDeque::new(),
            control_max: flows_max.max(CONTROL_QUEUE_MAX),
        };
        IpLayer {
            ports: Vec::new(),
            loopback,
            routes: Routes::default(),
            steering: Shared::default(),
            fragments: Fragments::default(),
        }
    }

    pub fn add_port(&mut self, link: Link, flows_max: usize) -> PortId {
        self.ports.push(Port {
            link,
            shared: false,
            neighbours: Neighbours::default(),
            control: VecDeque::new(),
            waiting: WaitingSegments::default(),
            ready: FairList::new(flows_max),
        });
        PortId(self.ports.len() as u8 - 1)
    }

    /// The number of a port's neighbour, new ones included. `None`: connections and datagrams hold as many as there can be, or nearly.
    pub fn neighbour(
        &mut self,
        (flows, udp): (&FlowStore, &Udp<UserIdx>),
        port: PortId,
        addr: Addr,
    ) -> Option<u16> {
        let of_port = &mut self.ports[port.index()];
        if let Some(number) = of_port.neighbours.number(addr) {
            return Some(number);
        }
        let number = of_port
            .neighbours
            .replace(addr, |number| flows.hold(port, number) || udp.waiting.is_for((port, number)))?;
        // What waited was for the one before.
        of_port.waiting.take(number);
        Some(number)
    }

    /// A connection may have something to send.
    pub fn schedule(&mut self, flow: &Flow, idx: FlowIdx) {
        match flow.conn.path {
            _ if flow.tcb.state == TcpState::Closed => {}
            Path::Local => self.loopback.ready.push(flow.conn.user, idx),
            Path::Port { port, .. } => self.ports[port.index()].ready.push(flow.conn.user, idx),
        }
    }

    /// Queues a control frame; a full queue drops it, as a lost frame would be.
    pub fn push_control(&mut self, counters: &mut Counters, port: PortId, frame: ControlFrame) {
        let control = &mut self.ports[port.index()].control;
        if control.len() >= CONTROL_QUEUE_MAX {
            counters.add(Counter::DropControlQueueFull);
        } else {
            control.push_back(frame);
        }
    }

    /// Largest payload of one wire segment to `peer` on a path, without options (RFC 9293 section 3.7.1).
    pub fn path_mss(&self, path: Path, peer: Addr) -> u16 {
        match path {
            Path::Local => SEGMENT_PAYLOAD_MAX as u16,
            Path::Port { port, .. } => {
                let mtu = self.ports[port.index()].link.mtu;
                let headers = ip_header_len(peer) as u32 + TCP_LEN;
                mtu.saturating_sub(headers).clamp(48, SEGMENT_PAYLOAD_MAX as u32) as u16
            }
        }
    }

    /// What a flow's path allows to send at once.
    fn send_limits(&self, flow: &Flow) -> SendLimits {
        let unit_max = match flow.conn.path {
            Path::Local => SEGMENT_PAYLOAD_MAX as u32,
            Path::Port { port, .. } => self.ports[port.index()]
                .link
                .caps
                .gso_max
                .min(SEGMENT_PAYLOAD_MAX as u32)
                .max(u32::from(flow.tcb.snd.mss)),
        };
        SendLimits { unit_max, announce_mss: self.path_mss(flow.conn.path, flow.conn.key.remote.addr) }
    }
}

/// One port as the engine sees it.
#[derive(Debug)]
pub(crate) struct Port {
    pub link: Link,
    /// Its addresses, routes and neighbours are the kernel's.
    pub shared: bool,
    pub neighbours: Neighbours,
    pub control: VecDeque<ControlFrame>,
    pub waiting: WaitingSegments,
    pub ready: FairList,
}

/// From one local end to the other: no link is between them.
#[derive(Debug)]
pub(crate) struct Loopback {
    pub ready: FairList,
    /// Lone segments (resets).
    pub control: VecDeque<(FlowKey, Segment)>,
    /// So many of them may wait.
    pub control_max: usize,
}

/// What is remembered of peers past their connections.
#[derive(Debug)]
pub(crate) struct KnownPeers {
    /// Those that our programs have opened connections to with bytes in the SYN, or may.
    pub servers: Servers,
    pub spent_cookies: SpentCookies,
    pub resets: RateLimit,
}

impl KnownPeers {
    pub fn new(secret: [u8; 16]) -> KnownPeers {
        KnownPeers {
            servers: Servers::default(),
            spent_cookies: SpentCookies::default(),
            resets: RateLimit::new(secret, RESETS_A_SECOND),
        }
    }
}

/// What the life of a connection touches, from its first record to its last, and no more: neither UDP nor virtual interfaces, other protocols or
/// the engine's settings. What is derived from the records is here with them: names, places at listeners, turns, what their owners are to hear.
#[derive(Debug)]
pub(crate) struct Records<'e> {
    pub flows: &'e mut FlowStore,
    pub tcp: &'e mut Tcp,
    pub listeners: &'e mut Listeners,
    pub names: &'e mut Names,
    pub peers: &'e mut KnownPeers,
    pub hostif: &'e mut HostInterface,
    pub ip: &'e mut IpLayer,
    pub counters: &'e mut Counters,
}

/// Of that what their bytes touch, which lie in the memory of sessions and of the engine, and what their owners read of them.
#[derive(Debug)]
pub(crate) struct FlowMemory<'e> {
    pub flows: &'e mut FlowStore,
    pub tcp: &'e mut Tcp,
    pub hostif: &'e mut HostInterface,
    pub counters: &'e mut Counters,
}

impl<'e> Records<'e> {
    /// What a flow sends next, if it may send anything.
    pub fn next_unit(&self, now: Instant, idx: FlowIdx) -> Option<TxSegment> {
        let (flow, path) = self.flows.with_path(idx);
        output::prepare(&flow.tcb, TxContext { now, path, tcp: self.tcp, limits: self.ip.send_limits(flow) })
    }

    pub fn accepting<'r, H>(&'r mut self, now: Instant, host: &'r mut H) -> Accepting<'r, 'e, H> {
        Accepting { now, host, records: self }
    }

    pub fn memory(&mut self) -> FlowMemory<'_> {
        FlowMemory { flows: self.flows, tcp: self.tcp, hostif: self.hostif, counters: self.counters }
    }
}

/// What listeners and who takes from them touch, at one moment: those that come in, wait there, are handed out and go back.
#[derive(Debug)]
pub(crate) struct Accepting<'r, 'e, H> {
    pub now: Instant,
    pub host: &'r mut H,
    pub records: &'r mut Records<'e>,
}

/// What TCP touches at one moment, beside whom its packets come from and go to: segments in and out, connections that begin and end.
#[derive(Debug)]
pub(crate) struct TcpPlanes<'e, H> {
    pub now: Instant,
    pub host: &'e mut H,
    /// What sequence numbers and cookies are made with.
    pub secret: [u8; 16],
    /// [`crate::EngineConfig::direct`].
    pub direct: bool,
    pub records: Records<'e>,
}

/// What TCP and UDP go by alike: links, who is at them, and what waits for those.
#[derive(Debug)]
pub(crate) struct LinkPlanes<'e> {
    pub ip: &'e mut IpLayer,
    pub udp: &'e mut Udp<UserIdx>,
    pub counters: &'e mut Counters,
    /// Asked only for which neighbours it holds.
    pub flows: &'e FlowStore,
}
