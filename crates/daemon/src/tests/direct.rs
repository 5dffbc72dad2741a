//! Connections between two processes that go past the engine: real channels, real words, hosts by hand.

use super::fake_host::FakeHost;
use super::{daemon, daemon_with, settle};
use crate::daemon::Daemon;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use toe_abi::attach::{Message, Reply, Request, Unread};
use toe_abi::channel::{ChannelEntry, ChannelLayout};
use toe_abi::entry::{Command, Completion, MemRange};
use toe_abi::errno::Errno;
use toe_base::{ChannelId, Cred, FlowId, SessionId};
use toe_ring::{ChannelEnd, ChannelMemory, HostLooks};
use zerocopy::IntoBytes;

const PORT: u16 = 8080;

fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], PORT))
}

/// Two hosts and a connection between them.
struct Pair {
    daemon: Daemon,
    client: FakeHost,
    server: FakeHost,
    flows: [FlowId; 2],
    /// The program ends of the anchors.
    ends: [Option<OwnedFd>; 2],
    _listening: OwnedFd,
}

/// A slot of a channel that a connection uses, and both ends of it.
struct Channel {
    id: ChannelId,
    slot: u32,
    generation: u16,
    client: ChannelEnd,
    server: ChannelEnd,
}

impl Pair {
    fn new(mut daemon: Daemon) -> Pair {
        let mut server = FakeHost::attach(&mut daemon);
        let mut client = FakeHost::attach(&mut daemon);
        let (listener, listening) = server.listen(&mut daemon, loopback());
        let (flow, client_end) = client.connect(&mut daemon, loopback());
        let (accepted, server_end) = server.accept(&mut daemon, listener);
        let ends = [Some(client_end), Some(server_end)];
        Pair { daemon, client, server, flows: [flow, accepted], ends, _listening: listening }
    }

    /// Messages through the engine, from the client to the server.
    fn chat(&mut self, count: usize) {
        for _ in 0..count {
            self.client.send(self.flows[0], b"hello");
            settle(&mut self.daemon);
            assert_eq!(self.server.receive(self.flows[1]), b"hello");
        }
    }

    fn offered(&mut self) -> Option<ChannelId> {
        settle(&mut self.daemon);
        let offer = |c: &Completion| match *c {
            Completion::OfferChannel { channel } => Some(channel),
            _ => None,
        };
        let (a, b) = (self.client.find(offer), self.server.find(offer));
        assert_eq!(a, b, "both or none");
        a
    }

    fn go_direct(&mut self) -> Channel {
        self.chat(4);
        let id = self.offered().expect("an offer");
        let client = open(&self.client, &mut self.daemon, id);
        let server = open(&self.server, &mut self.daemon, id);
        assert_eq!(client.side(), server.side().other());
        self.client.push(Command::ChannelReady { channel: id });
        self.server.push(Command::ChannelReady { channel: id });
        settle(&mut self.daemon);
        let direct = |flow: FlowId| {
            move |c: &Completion| match *c {
                Completion::Direct { flow: f, channel, slot, generation } if f == flow => {
                    Some((channel, slot, generation))
                }
                _ => None,
            }
        };
        // Another thread sees to the memory first.
        let told = loop {
            self.chat(1);
            if let Some(told) = self.client.find(direct(self.flows[0])) {
                break told;
            }
            std::thread::yield_now();
        };
        assert_eq!(self.server.expect(&mut self.daemon, "slot", direct(self.flows[1])), told);
        let (channel, slot, generation) = told;
        assert_eq!(channel, id);
        Channel { id, slot, generation, client, server }
    }

    fn ended(&mut self) -> Completion {
        let flow = self.flows[1];
        self.server.expect(&mut self.daemon, "end", |c| match *c {
            Completion::PeerClosed { flow: f } | Completion::Reset { flow: f, .. } if f == flow => Some(*c),
            _ => None,
        })
    }

    fn claim(&mut self, by: &FakeHost) -> (Reply, Vec<OwnedFd>) {
        let end = self.ends[0].as_ref().expect("held").as_fd();
        by.control.ask_with(&mut self.daemon, Request::Claim { queue_set: 0, fd: 9 }, &[end])
    }

    /// Asks, and lets the engine work until it has answered; `meanwhile` comes once it has begun. In how many rounds it did something for who
    /// asks, and the answer.
    fn ask_in_steps(
        &mut self,
        by: Option<&FakeHost>,
        request: Request,
        meanwhile: impl FnOnce(&mut FakeHost, FlowId),
    ) -> (usize, Reply) {
        let control = &by.unwrap_or(&self.client).control;
        let end = self.ends[0].as_ref().expect("held").as_fd();
        let fds = if matches!(request, Request::Claim { .. }) { vec![end] } else { vec![] };
        control.send(request.encode().as_bytes(), &fds).expect("sent");
        let account = self.daemon.sessions.get(SessionId(1)).expect("live").schedule.account;
        let used = |daemon: &Daemon| daemon.schedule.budget.used_ns(account);
        let (mut before, mut steps, mut meanwhile) = (used(&self.daemon), 0, Some(meanwhile));
        let mut answer = None;
        let mut step = |daemon: &mut Daemon, server: &mut FakeHost| {
            let now = used(daemon);
            steps += usize::from(std::mem::replace(&mut before, now) != now);
            if let Some(meanwhile) = meanwhile.take_if(|_| steps == 1) {
                meanwhile(server, self.flows[1]);
            }
        };
        while answer.is_none() {
            let now = self.daemon.timing.clock.now();
            self.daemon.round(now);
            step(&mut self.daemon, &mut self.server);
            self.daemon.tick(now).expect("a look outside");
            step(&mut self.daemon, &mut self.server);
            answer = control.receive();
        }
        let (packet, _) = answer.expect("an answer");
        let reply = Message::parse(&packet).and_then(|m| Reply::decode(&m)).expect("a reply");
        (steps, reply)
    }

    fn relinquish(&mut self, data: MemRange, by_pipe: u64) -> Reply {
        let unread = Unread { data, credit: 0, by_pipe };
        let request = Request::Relinquish { flow: self.flows[0].raw(), unread };
        self.client.control.ask(&mut self.daemon, request).0
    }
}

fn open(host: &FakeHost, daemon: &mut Daemon, id: ChannelId) -> ChannelEnd {
    let (reply, fds) = host.control.ask(daemon, Request::OpenChannel { channel: id.0 });
    let Reply::Channel { side, peer } = reply else { panic!("{reply:?}") };
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw(), "whose the other session is");
    let [memory, wake] = <[OwnedFd; 2]>::try_from(fds).expect("two descriptors");
    ChannelEnd::new(ChannelMemory::map(&memory).expect("mapped"), side, wake).expect("an end")
}

impl Channel {
    /// Bytes from the server's program, straight to the client's.
    fn server_sends(&mut self, bytes: &[u8]) {
        let Channel { slot, generation, .. } = *self;
        let range = MemRange { offset: ChannelLayout::data(self.server.side()), len: bytes.len() as u32 };
        let memory = self.server.memory();
        memory.region().write(range.offset, bytes).expect("in the data part");
        memory.add_sent(slot, self.server.side(), range.len).expect("open");
        self.server.push(ChannelEntry::Data { slot, generation, data: range }).expect("room");
        self.server.wake_peer();
    }

    fn client_takes(&mut self) -> Vec<u8> {
        let Some(Ok(ChannelEntry::Data { slot, generation, data })) = self.client.pop() else {
            panic!("nothing there");
        };
        assert_eq!((slot, generation), (self.slot, self.generation));
        assert!(self.client.is_peer_data(data));
        self.client.publish_head();
        let mut bytes = vec![0; data.len as usize];
        self.client.memory().region().read(data.offset, &mut bytes).expect("in the channel");
        bytes
    }

    /// As a host does that is about to give its flow back: nothing more comes.
    fn client_leaves(&self) {
        self.client.memory().freeze(self.slot, self.client.side().other());
    }
}

/// The flow, and how many of its bytes the engine says to have been read.
fn claimed(reply: &Reply) -> (FlowId, i64) {
    let Reply::ClaimedFlow { flow, read, .. } = reply else { panic!("{reply:?}") };
    (FlowId::from_raw(*flow), *read)
}

fn refused(reply: &Reply) -> Errno {
    let Reply::Refused { errno, .. } = reply else { panic!("{reply:?}") };
    Errno(*errno)
}

/// Hosts wait for that: an engine that always has something to tell is through with what was handed to it all the same.
#[test]
fn a_round_that_tells_the_hosts_something_is_a_whole_look() {
    let mut pair = Pair::new(daemon());
    settle(&mut pair.daemon);
    let looks = HostLooks::map(&pair.daemon.timing.looks).expect("its page");
    for round in 0..8 {
        let before = looks.count();
        pair.client.send(pair.flows[0], b"hello");
        let now = pair.daemon.timing.clock.now();
        pair.daemon.round(now);
        assert_eq!(pair.server.receive(pair.flows[1]), b"hello", "{round}");
        assert_eq!(looks.count(), before + 1, "{round}");
    }
}

#[test]
fn bytes_go_from_program_to_program() {
    let mut pair = Pair::new(daemon());
    let mut channel = pair.go_direct();
    channel.client.arm();
    channel.server_sends(b"past the engine");
    assert_eq!(channel.client_takes(), b"past the engine");
    let side = channel.client.side();
    channel.client.memory().set_read(channel.slot, side, 15);
    pair.ends[0] = None;
    assert!(matches!(pair.ended(), Completion::PeerClosed { .. }), "all was read");
    let status = pair.daemon.whole_status().counters;
    assert_eq!((status["channels_opened"], status["direct_connections"]), (1, 1));
}

#[test]
fn the_waker_wakes_the_other_host_itself() {
    let mut pair = Pair::new(daemon());
    let mut channel = pair.go_direct();
    pair.client.drain();
    let _ = pair.client.queue.irq().receiver().drain();
    channel.client.arm();
    channel.server_sends(b"wake");
    assert_eq!(pair.client.queue.irq().receiver().drain(), Ok(true));
}

#[test]
fn bytes_that_nobody_read_are_a_reset_for_their_sender() {
    let mut pair = Pair::new(daemon());
    let mut channel = pair.go_direct();
    channel.server_sends(b"unread");
    pair.ends[0] = None;
    assert!(matches!(pair.ended(), Completion::Reset { .. }));
    let server = channel.server.side();
    assert!(channel.server.memory().is_frozen(channel.slot, server), "and it can send no more");
    assert_eq!(channel.server.memory().read(channel.slot, server.other()), toe_abi::channel::ALL_READ);
}

#[test]
fn only_the_two_hosts_of_a_channel_get_it_and_each_once_both_have_it() {
    let mut pair = Pair::new(daemon());
    pair.chat(4);
    let id = pair.offered().expect("an offer");
    let stranger = FakeHost::attach(&mut pair.daemon);
    let request = Request::OpenChannel { channel: id.0 };
    assert_eq!(stranger.control.refusal(&mut pair.daemon, request), Errno::ENOENT);
    let none = Request::OpenChannel { channel: id.0 + 1 };
    assert_eq!(pair.client.control.refusal(&mut pair.daemon, none), Errno::ENOENT);
    open(&pair.client, &mut pair.daemon, id);
    open(&pair.server, &mut pair.daemon, id);
    assert_eq!(pair.client.control.refusal(&mut pair.daemon, request), Errno::ENOENT);
    assert_eq!(pair.daemon.sessions.channels.len(), 1);
}

#[test]
fn a_dead_sessions_number_opens_none_of_its_channels() {
    let mut pair = Pair::new(daemon());
    let channel = pair.go_direct();
    let Pair { mut daemon, client, mut server, .. } = pair;
    drop(client);
    let closed = server.expect(&mut daemon, "notice", |c| match *c {
        Completion::ChannelClosed { channel } => Some(channel),
        _ => None,
    });
    assert_eq!(closed, channel.id);
    let next = FakeHost::attach(&mut daemon);
    let request = Request::OpenChannel { channel: channel.id.0 };
    assert_eq!(next.control.refusal(&mut daemon, request), Errno::ENOENT);
    server.push(Command::Close { flow: pair.flows[1], abort: false });
    settle(&mut daemon);
    drop(server);
    settle(&mut daemon);
    assert!(daemon.sessions.channels.is_empty(), "the memory is gone");
}

#[test]
fn a_flow_moves_with_what_came_through_its_channel() {
    let mut pair = Pair::new(daemon());
    let mut channel = pair.go_direct();
    channel.server_sends(b"not yet read");
    let child = FakeHost::attach(&mut pair.daemon);
    assert_eq!(refused(&pair.claim(&child).0), Errno::EAGAIN);
    let flow = pair.flows[0];
    pair.client
        .expect(&mut pair.daemon, "request to yield", |c| (*c == Completion::Yield { flow }).then_some(()));
    let unread = pair.client.put_into_send_part(&channel.client_takes());
    let early = pair.relinquish(unread, 12);
    assert_eq!(refused(&early), Errno::EAGAIN, "the server may send into the channel still");
    channel.client_leaves();
    let ignorant = pair.relinquish(MemRange::default(), 0);
    assert_eq!(refused(&ignorant), Errno::EAGAIN, "it does not know of what has come");
    assert_eq!(pair.relinquish(unread, 12), Reply::Done);
    let first = claimed(&pair.claim(&child).0);
    // Whoever has it dies before its program has read any.
    drop(child);
    settle(&mut pair.daemon);
    let mut next = FakeHost::attach(&mut pair.daemon);
    let flow = claimed(&pair.claim(&next).0);
    assert_eq!((first.1, flow.1), (-12, -12), "the server has sent nothing by way of the engine");
    assert_eq!(next.receive(flow.0), b"not yet read");
    let server = channel.server.side();
    assert!(channel.server.memory().is_frozen(channel.slot, server), "the server goes on by the engine");
}

/// Megabytes, into memory whose pages are yet to come, hold up the engine's thread for tens of milliseconds.
#[test]
fn much_that_goes_along_with_a_flow_is_copied_in_steps() {
    const LEN: usize = 4 << 20;
    let mut pair = Pair::new(daemon());
    settle(&mut pair.daemon);
    // Somebody who could be waiting.
    pair.daemon.schedule.budget.add(Cred::of_user(4711), SessionId(99));
    let mut unread: Vec<u8> = (0..LEN as u32).flat_map(|n| (n >> 8).to_le_bytes()).step_by(4).collect();
    assert_eq!(unread.len(), LEN);
    let (data, flow) = (pair.client.put_into_send_part(&unread), pair.flows[0].raw());
    let request = Request::Relinquish { flow, unread: Unread { data, credit: 0, by_pipe: 0 } };
    let (steps, reply) = pair.ask_in_steps(None, request, |server, flow| server.send(flow, b"meanwhile"));
    assert_eq!(reply, Reply::Done);
    assert!(steps >= 16, "{steps} steps");
    let child = FakeHost::attach(&mut pair.daemon);
    let claim = Request::Claim { queue_set: 0, fd: 9 };
    let (steps, reply) =
        pair.ask_in_steps(Some(&child), claim, |server, flow| server.send(flow, b" and later"));
    claimed(&reply);
    assert!(steps >= 16, "{steps} steps");
    // It ends, and others may have the flow.
    let (now, id) =
        (pair.daemon.timing.clock.now(), *pair.daemon.sessions.live().last().expect("the child's"));
    pair.daemon.end_session(now, id, "the test ends it");
    let mut steps = 1;
    while pair.daemon.engine.poll_local(now, &mut pair.daemon.sessions, 64) > 0 {
        steps += 1;
    }
    assert!(steps >= 16, "{steps} steps");
    let mut next = FakeHost::attach(&mut pair.daemon);
    let flow = claimed(&pair.claim(&next).0).0;
    settle(&mut pair.daemon);
    unread.extend(b"meanwhile and later");
    assert!(next.receive(flow) == unread, "what was unread is there, whole and in order");
}

/// Who holds it may keep whoever claims it waiting for as long as he likes, and is not of his user.
#[test]
fn a_claim_is_told_that_its_holder_is_another_user() {
    let mut pair = Pair::new(daemon());
    let _channel = pair.go_direct();
    for id in [1, 2] {
        pair.daemon.sessions.get_mut(SessionId(id)).expect("a session").schedule.account.uid = 65534;
    }
    let child = FakeHost::attach(&mut pair.daemon);
    assert_eq!(refused(&pair.claim(&child).0), Errno::EBUSY);
}

#[test]
fn what_was_given_back_and_nobody_claims_was_never_read() {
    let mut pair = Pair::new(daemon());
    pair.go_direct().client_leaves();
    let unread = pair.client.put_into_send_part(b"left over");
    assert_eq!(pair.relinquish(unread, 0), Reply::Done);
    pair.ends[0] = None;
    assert!(matches!(pair.ended(), Completion::Reset { .. }));
}

#[test]
fn a_relinquish_that_is_wrong_changes_nothing() {
    let mut pair = Pair::new(daemon());
    let _channel = pair.go_direct();
    let layout = pair.client.layout;
    let end = layout.send_offset() + layout.send_len;
    for (offset, len) in
        [(layout.receive_offset(), 4), (end - 3, 4), (u64::MAX, 4), (layout.send_offset(), u32::MAX)]
    {
        assert_eq!(refused(&pair.relinquish(MemRange { offset, len }, 0)), Errno::EINVAL, "{offset} {len}");
    }
    let unknown = Request::Relinquish { flow: 0x0765_4321, unread: Unread::default() };
    assert_eq!(pair.client.control.refusal(&mut pair.daemon, unknown), Errno::EINVAL);
    pair.chat(3);
}

#[test]
fn an_engine_can_be_told_to_carry_everything_itself() {
    let line = "toed --receive-memory-mib 16 --send-memory-mib 16 --no-direct";
    let mut pair = Pair::new(daemon_with(line));
    pair.chat(200);
    assert_eq!(pair.offered(), None);
}
