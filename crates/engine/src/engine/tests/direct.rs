//! Connections between two sessions leave the engine: which, when, and what becomes of them when somebody lets go.

use super::fake_channels::FakeChannels;
use crate::control::names::Twin;
use crate::kit::tell;
use crate::{
    CaptureRule, Change, Changed, ChannelRequest, ControlEvent, Counter, DriverRequest, Engine, EngineConfig,
    HostMemory, STAGING_LEN, SharedMemory,
};
use core::net::SocketAddr;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use toe_abi::attach::{FenceReason, Unread};
use toe_abi::capture::Filter;
use toe_abi::channel::{ALL_READ, ChannelLayout, FROZEN, Side, SlotLine};
use toe_abi::command::{ConnectArgs, ListenArgs};
use toe_abi::entry::{Command, Completion, MemRange, ReceiveCredit, Send};
use toe_abi::errno::Errno;
use toe_abi::region::RegionLayout;
use toe_base::{AnchorHandle, ChannelId, FlowId, Instant, ListenerId, NetNs, QueueSetId, SessionId};
use toe_tcp::config::TcpConfig;
use zerocopy::IntoBytes;

const QS: QueueSetId = QueueSetId(0);
pub(super) const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 64, receive_len: 4 << 20, send_len: 1 << 20 };
pub(super) const CLIENT_UID: u32 = 1000;

#[derive(Debug, Default)]
pub(super) struct Hosts {
    regions: Vec<Vec<u8>>,
    told: Vec<VecDeque<Completion>>,
    channels: FakeChannels,
}

impl Hosts {
    fn open(&mut self, session: SessionId, len: u64) {
        self.regions.resize(self.regions.len().max(session.index() + 1), Vec::new());
        self.told.resize(self.regions.len(), VecDeque::new());
        self.regions[session.index()] = vec![0; len as usize];
    }

    /// Takes what the engine has to tell.
    pub(super) fn hear(&mut self, engine: &mut Engine) -> usize {
        tell(
            engine,
            self,
            |_, _| usize::MAX,
            |hosts, (session, _), completion| {
                hosts.told[session.index()].push_back(completion);
            },
        )
    }
}

impl HostMemory for Hosts {
    fn write(&mut self, session: SessionId, offset: u64, bytes: &[u8]) {
        self.regions[session.index()][offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }
    fn read(&mut self, session: SessionId, offset: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.regions[session.index()][offset as usize..][..out.len()]);
    }
    fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
        let mut bytes = vec![0; len as usize];
        self.read(from.0, from.1, &mut bytes);
        self.write(to.0, to.1, &bytes);
    }
    fn word(&mut self, memory: SharedMemory, offset: u64) -> Option<&AtomicU64> {
        match memory {
            SharedMemory::OfSession(_) => None,
            SharedMemory::OfPair(id) => Some(self.channels.word(id, offset)),
        }
    }
}

/// One engine and the processes on it, whose program is the test.
pub(super) struct Machine {
    pub engine: Engine,
    pub hosts: Hosts,
    pub now: Instant,
    listener: (SessionId, ListenerId),
    anchors: Vec<(SessionId, FlowId, AnchorHandle)>,
}

/// A connection: of the client, of the server.
pub(super) type Ends = [(SessionId, FlowId); 2];

impl Machine {
    fn relinquish(&mut self, session: SessionId, flow: FlowId, unread: Unread) -> Result<Changed, Errno> {
        self.engine.change(self.now, session, Change::Relinquish { flow, unread }, &mut self.hosts)
    }

    pub(super) fn new(server_uid: u32) -> Machine {
        let mut engine = Engine::new(EngineConfig {
            secret: [9; 16],
            netns: NetNs(0),
            ports: crate::PortRange::DEFAULT,
            quotas: Default::default(),
            flows_max: 128,
            direct: true,
            tcp: TcpConfig::default(),
        });
        engine.handle_network(crate::NetworkChange::Loopback);
        let mut hosts = Hosts::default();
        hosts.open(SessionId(0), STAGING_LEN);
        let listener = (SessionId(0), ListenerId::default());
        let now = Instant::from_millis(1);
        let mut machine = Machine { engine, hosts, now, listener, anchors: Vec::new() };
        let server = machine.attach(server_uid);
        let anchor = machine.engine.hostif.new_anchor(server).0;
        let local = Machine::address();
        let twin = Twin::listening(local.into(), 1, toe_base::Cred::of_user(server_uid), now);
        let twin = machine.engine.add_twin(server, twin).expect("room");
        let args = ListenArgs { local: local.into(), backlog: 64, anchor, twin, ..Default::default() };
        machine.command(server, Command::Listen { token: 0 }, args.as_bytes());
        let listener = ListenerId(machine.result(server));
        machine.listener = (server, listener);
        machine.command(server, Command::AcceptCredit { listener, count: 64 }, &[]);
        machine
    }

    fn address() -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 8080))
    }

    pub(super) fn attach(&mut self, uid: u32) -> SessionId {
        let session = self.engine.open_session(toe_base::Cred::of_user(uid), LAYOUT).expect("room");
        self.engine.add_queue_set(session).expect("room");
        self.hosts.open(session, LAYOUT.len());
        session
    }

    pub(super) fn command(&mut self, session: SessionId, command: Command, args: &[u8]) {
        let mut block = [0; 64];
        block[..args.len()].copy_from_slice(args);
        self.engine
            .handle_command(self.now, session, QS, command, &block, &mut self.hosts)
            .expect("well-formed");
        self.settle();
    }

    /// Does with their memory what the engine wants.
    fn serve_channels(&mut self) -> usize {
        let mut served = 0;
        while let Some(request) = self.engine.poll_request() {
            let DriverRequest::Channel(request) = request else { continue };
            served += 1;
            let event = match request {
                ChannelRequest::Open { channel, ends } if self.hosts.channels.open(channel, ends) => {
                    ControlEvent::ChannelMade(channel)
                }
                ChannelRequest::Open { channel, .. } => ControlEvent::ChannelRefused(channel),
                ChannelRequest::Settle(channel) => ControlEvent::ChannelSettled(channel),
                ChannelRequest::Close(channel) => {
                    self.hosts.channels.close(channel);
                    continue;
                }
            };
            self.engine.handle_control(self.now, event, &mut self.hosts);
        }
        served
    }

    fn settle(&mut self) {
        while self.engine.poll_local(self.now, &mut self.hosts, 64)
            + self.serve_channels()
            + self.hosts.hear(&mut self.engine)
            > 0
        {}
        self.engine.view().audit().unwrap();
        self.engine.view().audit().unwrap();
    }

    fn ms(&mut self, ms: u64) {
        for _ in 0..ms {
            self.now = self.now.after_us(1000);
            self.engine.handle_timeout(self.now, &mut self.hosts);
            self.settle();
        }
    }

    pub(super) fn told(&mut self, session: SessionId) -> Vec<Completion> {
        self.settle();
        self.told_so_far(session)
    }

    /// The same without a further round.
    pub(super) fn told_so_far(&mut self, session: SessionId) -> Vec<Completion> {
        self.hosts.told[session.index()].drain(..).collect()
    }

    fn result(&mut self, session: SessionId) -> FlowId {
        self.settle();
        let told = &mut self.hosts.told[session.index()];
        let at = told.iter().position(|c| matches!(c, Completion::CommandResult { .. }));
        match at.and_then(|at| told.remove(at)) {
            Some(Completion::CommandResult { id, errno: Errno::OK, .. }) => FlowId::from_raw(id),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn connect(&mut self, client: SessionId) -> Ends {
        let (server, listener) = self.listener;
        let anchor = self.engine.hostif.new_anchor(client);
        let args = ConnectArgs { remote: Machine::address().into(), anchor: anchor.0, ..Default::default() };
        self.command(client, Command::Connect { token: 0 }, args.as_bytes());
        let own = self.result(client);
        self.anchors.push((client, own, anchor));
        let told = self.told(server);
        let accepted = told.iter().find_map(|c| match *c {
            Completion::Accepted { listener: l, flow } if l == listener => Some(flow),
            _ => None,
        });
        let other = accepted.unwrap_or_else(|| panic!("{told:?}"));
        let anchor = self.engine.hostif.new_anchor(server);
        self.command(server, Command::Accept { flow: other, anchor, fd: 4 }, &[]);
        self.anchors.push((server, other, anchor));
        [(client, own), (server, other)]
    }

    /// The server listens no more.
    pub(super) fn end_listener(&mut self) {
        let (server, listener) = self.listener;
        self.command(server, Command::CloseListener { listener, last: true }, &[]);
    }

    /// Its program closes the only copy of its descriptor.
    fn close(&mut self, end: (SessionId, FlowId)) {
        let anchor = self.anchor_of(end);
        self.command(end.0, Command::Close { flow: end.1, abort: false }, &[]);
        if let Some(anchor) = anchor {
            self.engine.handle_control(self.now, ControlEvent::LastClose(anchor), &mut self.hosts);
            self.settle();
        }
    }

    /// The descriptor pair that a flow has now.
    pub(super) fn anchor_of(&self, (session, flow): (SessionId, FlowId)) -> Option<AnchorHandle> {
        let idx = self.engine.hostif.sessions.get(session)?.flows.get(flow)?;
        self.engine.flows.get(idx).conn.tenancy.lifetime()
    }

    fn anchor(&self, end: (SessionId, FlowId)) -> AnchorHandle {
        self.anchors.iter().find(|(s, f, _)| (*s, *f) == end).expect("known").2
    }

    /// Sends a little through the engine; whoever gets it has read it at once.
    fn message(&mut self, from: (SessionId, FlowId), to: (SessionId, FlowId)) {
        let data = MemRange { offset: LAYOUT.send_offset(), len: 100 };
        self.engine.handle_send(self.now, from.0, Send::new(from.1, data)).expect("fits");
        self.settle();
        self.read(to, 100);
    }

    fn read(&mut self, (session, flow): (SessionId, FlowId), len: u32) {
        self.engine.handle_credit(self.now, session, ReceiveCredit { flow, len }).expect("it arrived");
    }

    pub(super) fn messages(&mut self, ends: Ends, count: u32) {
        for _ in 0..count {
            self.message(ends[0], ends[1]);
        }
        self.settle();
    }

    pub(super) fn offered(&mut self, session: SessionId) -> Option<ChannelId> {
        self.told(session).into_iter().find_map(|c| match c {
            Completion::OfferChannel { channel } => Some(channel),
            _ => None,
        })
    }

    fn direct(&mut self, end: (SessionId, FlowId)) -> Option<(ChannelId, u32, u16)> {
        self.told(end.0).into_iter().find_map(|c| match c {
            Completion::Direct { flow, channel, slot, generation } if flow == end.1 => {
                Some((channel, slot, generation))
            }
            _ => None,
        })
    }

    /// A connection whose bytes go through a channel that both hosts have mapped.
    fn direct_connection(&mut self, client: SessionId) -> (Ends, Used) {
        let ends = self.connect(client);
        self.messages(ends, 4);
        let server = ends[1].0;
        if let Some(channel) = self.offered(client) {
            self.command(server, Command::ChannelReady { channel }, &[]);
            self.command(client, Command::ChannelReady { channel }, &[]);
            self.messages(ends, 1);
        }
        let (client_told, server_told) = (self.direct(ends[0]), self.direct(ends[1]));
        let found = client_told.or_else(|| self.direct(ends[0]));
        let (channel, slot, generation) = found.or(server_told).expect("direct");
        let of_client = self.hosts.channels.open[&channel][0].0 == client;
        let side = if of_client { Side::Zero } else { Side::One };
        (ends, Used { channel, slot, generation, client: side })
    }

    /// A word of a side's line of a slot.
    fn word(&mut self, used: Used, side: Side, field: u64) -> &AtomicU64 {
        self.hosts.channels.word(used.channel, ChannelLayout::line(used.slot, side) + field)
    }

    fn set(&mut self, used: Used, side: Side, field: u64, value: u64) {
        self.word(used, side, field).store(value, Ordering::Relaxed);
    }

    fn says(&mut self, used: Used, side: Side, field: u64) -> u64 {
        self.word(used, side, field).load(Ordering::Relaxed)
    }

    fn is_frozen(&mut self, used: Used, side: Side) -> bool {
        self.says(used, side, SlotLine::SENT) & FROZEN != 0
    }

    /// A host ends both directions, before it gives a flow back.
    fn freeze(&mut self, used: Used) {
        for side in [Side::Zero, Side::One] {
            self.word(used, side, SlotLine::SENT).fetch_or(FROZEN, Ordering::Relaxed);
        }
    }

    /// The host of that side lets go.
    fn leave(&mut self, used: Used, side: Side) {
        self.set(used, side, SlotLine::READ, ALL_READ);
        self.set(used, side, SlotLine::DONE, 1);
    }

    fn close_session(&mut self, session: SessionId) {
        self.engine.close_session(self.now, session, &mut self.hosts);
        self.settle();
    }

    fn anchor_closed(&mut self, end: (SessionId, FlowId)) {
        let anchor = self.anchor(end);
        self.engine.handle_control(self.now, ControlEvent::LastClose(anchor), &mut self.hosts);
        self.settle();
    }
}

/// What a program has not read, in its session's send part.
const UNREAD: Unread =
    Unread { data: MemRange { offset: LAYOUT.send_offset(), len: 100 }, credit: 0, by_pipe: 0 };

/// How many bytes have been announced.
fn announced(told: &[Completion]) -> u32 {
    told.iter().map(|c| if let Completion::Data { data, .. } = c { data.len } else { 0 }).sum()
}

/// A slot in use.
#[derive(Clone, Copy, Debug)]
struct Used {
    channel: ChannelId,
    slot: u32,
    generation: u16,
    client: Side,
}

fn resets(told: &[Completion], flow: FlowId) -> bool {
    told.iter().any(|c| matches!(*c, Completion::Reset { flow: f, .. } if f == flow))
}

fn closes(told: &[Completion], flow: FlowId) -> bool {
    told.iter().any(|c| matches!(*c, Completion::PeerClosed { flow: f } if f == flow))
}

#[test]
fn a_connection_goes_direct_once_it_has_earned_it_and_both_hosts_have_the_channel() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let ends = m.connect(client);
    m.messages(ends, 3);
    let (a, b) = (m.told(client), m.told(ends[1].0));
    assert!(!a.iter().chain(&b).any(|c| matches!(c, Completion::OfferChannel { .. })), "{a:?} {b:?}");
    m.messages(ends, 1);
    let channel = m.offered(client).expect("offered");
    assert_eq!(m.offered(ends[1].0), Some(channel));
    m.messages(ends, 3);
    assert_eq!((m.direct(ends[0]), m.offered(client)), (None, None), "nobody has it mapped");
    m.command(client, Command::ChannelReady { channel }, &[]);
    m.messages(ends, 3);
    assert_eq!(m.direct(ends[0]), None, "one host has it mapped");
    m.command(ends[1].0, Command::ChannelReady { channel }, &[]);
    m.messages(ends, 1);
    let told = m.direct(ends[0]).expect("direct");
    assert_eq!(told, (channel, 0, 1));
    assert_eq!(m.direct(ends[1]), Some(told));
    assert_eq!(m.engine.view().counter(Counter::DirectConnections), 1);
    assert_eq!(m.engine.view().counter(Counter::ChannelsOpened), 1);

    // The engine still carries what it is given.
    m.messages(ends, 3);
    let second = m.direct_connection(client);
    assert_eq!((second.1.channel, second.1.slot), (channel, 1), "the next connection shares the channel");
}

/// Found with nginx's sendfile and tcp_nopush: what the engine kept for more to come lay there until its timer, while more came by the
/// channel, which is read behind it.
#[test]
fn what_is_kept_for_more_to_come_goes_out_when_more_comes_by_the_channel() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, server) = (m.connect(client), m.listener.0);
    m.messages(ends, 4);
    let channel = m.offered(client).expect("offered");
    for session in [client, server] {
        m.command(session, Command::ChannelReady { channel }, &[]);
    }
    m.told(server);
    let data = MemRange { offset: LAYOUT.send_offset(), len: 100 };
    let send = Send { more: true, ..Send::new(ends[0].1, data) };
    m.engine.handle_send(m.now, client, send).expect("fits");
    let came = |c: &Completion| matches!(c, Completion::Data { .. });
    assert!(!m.told(server).iter().any(came), "it is kept");
    let mut told = Vec::new();
    for _ in 0..8 {
        m.message(ends[1], ends[0]);
        told.extend(m.told(server));
    }
    assert!(told.iter().any(|c| matches!(c, Completion::Direct { .. })), "{told:?}");
    assert!(told.iter().any(came), "no time has passed: {told:?}");
}

#[test]
fn a_host_that_takes_no_channel_is_asked_ever_more_seldom_and_still_gets_one_late() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let ends = m.connect(client);
    m.messages(ends, 300);
    let channel = m.offered(client).expect("offered");
    for session in [client, ends[1].0] {
        m.command(session, Command::ChannelReady { channel }, &[]);
    }
    m.messages(ends, 300);
    assert!(m.direct(ends[0]).is_some());
}

#[test]
fn a_connection_of_a_session_with_itself_stays_where_it_is() {
    let mut m = Machine::new(CLIENT_UID);
    let ends = m.connect(m.listener.0);
    m.messages(ends, 200);
    assert!(m.hosts.channels.open.is_empty());
}

#[test]
fn without_memory_for_a_channel_the_connection_goes_on() {
    let mut m = Machine::new(CLIENT_UID);
    m.hosts.channels.exhausted = true;
    let client = m.attach(CLIENT_UID);
    let ends = m.connect(client);
    m.messages(ends, 200);
    assert_eq!(m.offered(client), None);
    assert_eq!(m.engine.view().counter(Counter::ChannelsOpened), 0);
}

#[test]
fn bytes_that_died_unread_are_told_as_reset_and_read_ones_as_end() {
    for (read, anchor_first) in [(5000, true), (5000, false), (4999, true), (4999, false)] {
        let mut m = Machine::new(CLIENT_UID);
        let client = m.attach(CLIENT_UID);
        let (ends, used) = m.direct_connection(client);
        m.set(used, used.client.other(), SlotLine::SENT, 5000);
        m.set(used, used.client, SlotLine::READ, read);
        if anchor_first {
            m.anchor_closed(ends[0]);
            m.close_session(client);
        } else {
            m.close_session(client);
            m.anchor_closed(ends[0]);
        }
        let told = m.told(ends[1].0);
        let unread = read < 5000;
        assert_eq!((resets(&told, ends[1].1), closes(&told, ends[1].1)), (unread, !unread), "{told:?}");
        let gone = told.iter().filter(|c| matches!(c, Completion::ChannelClosed { .. })).count();
        assert_eq!(gone, 1);
        assert!(m.says(used, used.client, SlotLine::DONE) != 0, "nobody waits for the dead");
        assert!(m.is_frozen(used, used.client.other()));
        m.close(ends[1]);
        m.ms(10);
        assert!(m.hosts.channels.open.is_empty(), "the memory goes with the last flow");
    }
}

/// The next process took what it got for the whole of the stream.
#[test]
fn behind_bytes_that_died_unread_there_is_no_end() {
    for sent in [5000, 0] {
        let mut m = Machine::new(CLIENT_UID);
        let client = m.attach(CLIENT_UID);
        let (ends, used) = m.direct_connection(client);
        let anchor = m.anchor(ends[0]);
        m.set(used, used.client.other(), SlotLine::SENT, sent);
        m.command(ends[1].0, Command::ShutdownSend { flow: ends[1].1 }, &[]);
        m.close_session(client);
        let child = m.attach(CLIENT_UID);
        let claimed = m.engine.claim(m.now, child, QS, 7, anchor, &mut m.hosts);
        let Ok(Changed::Flow(flow, _)) = claimed else { panic!("{claimed:?}") };
        let told = m.told(child);
        let has_hole = sent > 0;
        assert_eq!((resets(&told, flow), closes(&told, flow)), (has_hole, !has_hole), "{told:?}");
    }
}

#[test]
fn a_host_that_closed_properly_left_nothing_unread() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, used) = m.direct_connection(client);
    m.set(used, used.client.other(), SlotLine::SENT, 5000);
    m.leave(used, used.client);
    m.close((client, ends[0].1));
    let told = m.told(ends[1].0);
    assert!(closes(&told, ends[1].1) && !resets(&told, ends[1].1), "{told:?}");
}

#[test]
fn a_slot_is_used_again_with_another_generation_once_both_are_done() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (first, used) = m.direct_connection(client);
    m.set(used, used.client, SlotLine::SENT, 77);
    for (session, flow) in first {
        m.close((session, flow));
    }
    m.ms(5);
    let (_, again) = m.direct_connection(client);
    assert_eq!((again.slot, again.generation), (0, 2));
    assert_eq!([SlotLine::SENT, SlotLine::DONE].map(|field| m.says(again, again.client, field)), [0; 2]);
    let (_, other) = m.direct_connection(client);
    assert_eq!((other.slot, other.generation), (1, 1));
}

#[test]
fn a_flow_in_a_channel_is_claimed_once_its_owner_has_given_it_up() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, used) = m.direct_connection(client);
    let child = m.attach(CLIENT_UID);
    let anchor = m.anchor(ends[0]);
    for _ in 0..3 {
        let claimed = m.engine.claim(m.now, child, QS, 7, anchor, &mut m.hosts);
        assert_eq!(claimed, Err(Errno::EAGAIN));
    }
    let told = m.told(client);
    let asked = told.iter().filter(|c| **c == Completion::Yield { flow: ends[0].1 }).count();
    assert_eq!(asked, 1, "{told:?}");
    assert_eq!(m.engine.view().counter(Counter::Yields), 1);

    assert_eq!(m.relinquish(client, ends[0].1, UNREAD), Err(Errno::EAGAIN));
    m.freeze(used);
    assert_eq!(m.relinquish(client, ends[0].1, UNREAD), Ok(Changed::Nothing));
    assert_eq!(m.relinquish(client, ends[0].1, UNREAD), Err(Errno::EINVAL));
    assert!(m.is_frozen(used, used.client.other()) && m.says(used, used.client, SlotLine::DONE) != 0);
    let claimed = m.engine.claim(m.now, child, QS, 7, anchor, &mut m.hosts);
    let Ok(Changed::Flow(flow, _)) = claimed else { panic!("{claimed:?}") };

    assert_eq!(announced(&m.told(child)), { UNREAD.data.len });
    // From here on the stream goes through the engine, and to no channel any more.
    let ends = [(child, flow), ends[1]];
    m.read(ends[0], UNREAD.data.len);
    m.message(ends[1], ends[0]);
    m.messages(ends, 200);
    assert_eq!(m.direct(ends[0]), None);
    m.close((child, flow));
    let told = m.told(ends[1].0);
    assert!(closes(&told, ends[1].1) && !resets(&told, ends[1].1), "all was read");
}

/// Together with what a channel holds it would be more than can be given to another process.
#[test]
fn no_channel_begins_while_much_is_under_way() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    m.direct_connection(client);
    let ends = m.connect(client);
    let data = MemRange { offset: LAYOUT.send_offset(), len: LAYOUT.send_len as u32 };
    let count = (super::super::direct::UNDER_WAY_MAX / data.len + 1).next_multiple_of(2);
    for _ in 0..count {
        m.engine.handle_send(m.now, client, Send::new(ends[0].1, data)).expect("fits");
    }
    let told = m.told(ends[1].0);
    assert!(!told.iter().any(|c| matches!(c, Completion::Direct { .. })), "{told:?}");
    let mut got = announced(&told);
    while got > 0 {
        m.read(ends[1], got);
        got = announced(&m.told(ends[1].0));
    }
    assert!(m.direct(ends[0]).is_some(), "what was under way has been read");
}

#[test]
fn its_old_owner_can_claim_it_too() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, used) = m.direct_connection(client);
    let anchor = m.anchor(ends[0]);
    m.freeze(used);
    assert_eq!(m.relinquish(client, ends[0].1, Unread::default()), Ok(Changed::Nothing));
    let claimed = m.engine.claim(m.now, client, QS, 7, anchor, &mut m.hosts);
    assert!(matches!(claimed, Ok(Changed::Flow(flow, _)) if flow != ends[0].1), "{claimed:?}");
}

/// Found by toe-sim: the process that was given such bytes was killed before it read them, and the next one went on behind them.
#[test]
fn what_was_given_back_is_there_until_it_is_read() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, used) = m.direct_connection(client);
    let anchor = m.anchor(ends[0]);
    m.freeze(used);
    m.relinquish(client, ends[0].1, UNREAD).expect("its flow");
    let claim = |m: &mut Machine| {
        let reader = m.attach(CLIENT_UID);
        let claimed = m.engine.claim(m.now, reader, QS, 7, anchor, &mut m.hosts);
        let Ok(Changed::Flow(flow, counts)) = claimed else { panic!("{claimed:?}") };
        ((reader, flow), counts.read)
    };
    let (first, all) = claim(&mut m);
    let told = m.told(first.0);
    assert_eq!(announced(&told), { UNREAD.data.len });
    // They lie before all that the engine has received.
    assert!(!told.iter().any(|c| matches!(c, Completion::Urgent { .. })), "{told:?}");
    m.read(first, 60);
    m.engine.close_session(m.now, first.0, &mut m.hosts);
    let (next, rest) = claim(&mut m);
    assert_eq!((announced(&m.told(next.0)), rest - all), (UNREAD.data.len - 60, 60));
    let (third, _) = claim(&mut m);
    assert_eq!(announced(&m.told(third.0)), UNREAD.data.len - 60, "nobody is asked for it");
    m.message(ends[1], third);
    m.read(third, UNREAD.data.len - 60);
    m.close(third);
    let told = m.told(ends[1].0);
    assert!(closes(&told, ends[1].1) && !resets(&told, ends[1].1), "{told:?}");
}

#[test]
fn bytes_given_back_for_nobody_are_unread() {
    for unread in [UNREAD, Unread::default()] {
        let mut m = Machine::new(CLIENT_UID);
        let client = m.attach(CLIENT_UID);
        let (ends, used) = m.direct_connection(client);
        m.freeze(used);
        m.relinquish(client, ends[0].1, unread).expect("its flow");
        m.anchor_closed(ends[0]);
        let told = m.told(ends[1].0);
        let was_unread = unread.data.len > 0;
        assert_eq!(
            (resets(&told, ends[1].1), closes(&told, ends[1].1)),
            (was_unread, !was_unread),
            "{told:?}"
        );
    }
}

#[test]
fn what_was_given_to_the_engine_before_survives_a_relinquish() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, used) = m.direct_connection(client);
    // Bytes that came by way of the engine and are announced, not read.
    let data = MemRange { offset: LAYOUT.send_offset(), len: 500 };
    m.engine.handle_send(m.now, ends[1].0, Send::new(ends[1].1, data)).expect("fits");
    let told = m.told(client);
    assert!(matches!(told[..], [Completion::Data { data: MemRange { len: 500, .. }, .. }]), "{told:?}");
    m.engine.handle_send(m.now, client, Send::new(ends[0].1, data)).expect("fits");
    let anchor = m.anchor(ends[0]);
    m.freeze(used);
    m.relinquish(client, ends[0].1, Unread::default()).expect("its flow");
    let told = m.told(client);
    let sent = |c: &Completion| *c == Completion::Sent { flow: ends[0].1, len: 500 };
    assert!(told.iter().any(sent), "its send memory is its own again: {told:?}");
    let child = m.attach(CLIENT_UID);
    m.engine.claim(m.now, child, QS, 7, anchor, &mut m.hosts).expect("claimed");
    let told = m.told(child);
    assert!(matches!(told[..], [Completion::Data { data: MemRange { len: 500, .. }, .. }]), "{told:?}");
}

#[test]
fn a_close_with_copies_ends_the_use_of_the_channel() {
    for unread in [false, true] {
        let mut m = Machine::new(CLIENT_UID);
        let client = m.attach(CLIENT_UID);
        let (ends, used) = m.direct_connection(client);
        m.leave(used, used.client);
        m.command(client, Command::Close { flow: ends[0].1, abort: unread }, &[]);
        let told = m.told(ends[1].0);
        assert_eq!(resets(&told, ends[1].1), unread, "a stream with a hole is no stream: {told:?}");
        let child = m.attach(CLIENT_UID);
        let anchor = m.anchor(ends[0]);
        let claimed = m.engine.claim(m.now, child, QS, 7, anchor, &mut m.hosts);
        assert!(claimed.is_ok(), "nobody need be asked: {claimed:?}");
    }
}

#[test]
fn the_rest_of_a_session_hears_that_the_other_one_is_gone() {
    let mut m = Machine::new(CLIENT_UID);
    let (client, other) = (m.attach(CLIENT_UID), m.attach(CLIENT_UID));
    let (_, used) = m.direct_connection(client);
    let (_, kept) = m.direct_connection(other);
    let server = m.listener.0;
    m.told(server);
    m.engine.handle_control(m.now, ControlEvent::Fenced(client, FenceReason::BadSendRange), &mut m.hosts);
    let told = m.told(server);
    assert!(told.contains(&Completion::ChannelClosed { channel: used.channel }), "{told:?}");
    assert!(!told.contains(&Completion::ChannelClosed { channel: kept.channel }), "{told:?}");
    // The number of the dead session goes to another process, which has nothing to do with its channels.
    m.engine.forget_session(client);
    let next = m.attach(CLIENT_UID);
    assert_eq!(next, client);
    m.command(next, Command::ChannelReady { channel: used.channel }, &[]);
    assert_eq!(m.engine.view().counter(Counter::StaleEntries), 1);
    let (_, anew) = m.direct_connection(next);
    assert_ne!(anew.channel, used.channel);
}

#[test]
fn a_session_that_says_ready_to_what_is_not_its_own_changes_nothing() {
    let mut m = Machine::new(CLIENT_UID);
    let (client, stranger) = (m.attach(CLIENT_UID), m.attach(CLIENT_UID));
    let ends = m.connect(client);
    m.messages(ends, 4);
    let channel = m.offered(client).expect("offered");
    m.command(client, Command::ChannelReady { channel }, &[]);
    m.command(stranger, Command::ChannelReady { channel }, &[]);
    m.command(stranger, Command::ChannelReady { channel: ChannelId(u32::MAX) }, &[]);
    assert_eq!(m.engine.view().counter(Counter::StaleEntries), 2);
    m.messages(ends, 3);
    assert_eq!(m.direct(ends[0]), None);
}

#[test]
fn an_end_that_begins_before_the_channel_is_ready_keeps_it_away() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let ends = m.connect(client);
    m.messages(ends, 4);
    let channel = m.offered(client).expect("offered");
    for session in [client, ends[1].0] {
        m.command(session, Command::ChannelReady { channel }, &[]);
    }
    m.command(ends[1].0, Command::ShutdownSend { flow: ends[1].1 }, &[]);
    m.messages(ends, 200);
    assert_eq!(m.direct(ends[0]), None);
}

#[test]
fn a_capture_has_connections_come_back_and_lets_no_other_go() {
    let mut m = Machine::new(CLIENT_UID);
    let client = m.attach(CLIENT_UID);
    let (ends, _) = m.direct_connection(client);
    let watch = |filter| [CaptureRule { filter, only: None, interface: None }].into();
    m.engine.records().set_captures(watch(Filter::Not(Filter::All.into())));
    let yields =
        |told: Vec<Completion>| told.iter().filter(|c| matches!(c, Completion::Yield { .. })).count();
    assert_eq!(yields(m.told(client)) + yields(m.told(ends[1].0)), 0, "it wants nothing of that");
    m.engine.records().set_captures(watch(Filter::All));
    assert_eq!(yields(m.told(client)) + yields(m.told(ends[1].0)), 1, "one end gives it up");
    let ends = m.connect(client);
    m.messages(ends, 200);
    assert!(m.direct(ends[0]).is_none(), "it is watched");
    m.engine.records().set_captures([].into());
    m.messages(ends, 400);
    assert!(m.direct(ends[0]).is_some(), "nobody watches any more");
}
