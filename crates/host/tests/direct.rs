//! Connections whose octets go through a channel: a fake engine offers it, the test plays the other session.

mod fake;

use fake::{Connection, Engine, until};
use toe::socket::Shutdown;
use toe_abi::channel::{ALL_READ, ChannelEntry, ChannelLayout, Side};
use toe_abi::entry::{Command, Completion, FlowOption, MemRange};
use toe_abi::errno::Errno;
use toe_base::ChannelId;
use toe_ring::ChannelEnd;

const CHANNEL: ChannelId = ChannelId(7);
const SLOT: u32 = 3;
const GENERATION: u16 = 1;
const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

/// The other session's end, used by hand.
struct Peer {
    end: ChannelEnd,
    /// Where its next octets go.
    at: u64,
}

impl Peer {
    /// Makes a channel with the process under test, which has accepted it when this returns.
    fn new(engine: &Engine, c: &Connection) -> Peer {
        let end = engine.offer_channel(CHANNEL);
        c.ready();
        assert_eq!(engine.command().1, Command::ChannelReady { channel: CHANNEL });
        Peer { end, at: ChannelLayout::data(Side::One) }
    }

    /// The same, and lets the connection use it.
    fn direct(engine: &Engine, c: &Connection) -> Peer {
        let peer = Peer::new(engine, c);
        peer.tell(engine, c);
        peer
    }

    fn tell(&self, engine: &Engine, c: &Connection) {
        self.tell_only(engine, c);
        c.ready();
    }

    fn tell_only(&self, engine: &Engine, c: &Connection) {
        let flow = c.flow;
        engine.post(
            c.queue_set,
            Completion::Direct { flow, channel: CHANNEL, slot: SLOT, generation: GENERATION },
        );
    }

    fn push(&mut self, entry: ChannelEntry) {
        assert!(self.end.push(entry).is_ok());
        self.end.wake_peer();
    }

    fn begin(&mut self, after: u64) {
        self.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after });
    }

    fn send(&mut self, octets: &[u8]) {
        let data = MemRange { offset: self.at, len: octets.len() as u32 };
        self.end.memory().region().write(self.at, octets).unwrap();
        self.at += octets.len() as u64;
        assert!(self.end.memory().add_sent(SLOT, Side::One, data.len).is_ok());
        self.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION, data });
    }

    fn next(&mut self) -> Option<ChannelEntry> {
        let entry = self.end.pop().map(|entry| entry.expect("a valid entry"));
        self.end.publish_head();
        entry
    }

    /// Octets that came, without saying that they were read.
    fn octets(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(entry) = self.next() {
            if let ChannelEntry::Data { data, .. } = entry {
                assert!(self.end.is_peer_data(data));
                let from = all.len();
                all.resize(from + data.len as usize, 0);
                self.end.memory().region().read(data.offset, &mut all[from..]).unwrap();
            }
        }
        all
    }

    fn read_word(&self) -> u64 {
        self.end.memory().read(SLOT, Side::Zero)
    }
}

#[test]
fn octets_go_through_the_channel_and_not_through_the_engine() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.send(b"hello "), Ok(6));
    assert_eq!(c.send(b"world"), Ok(5));
    assert_eq!(peer.next(), Some(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 0 }));
    assert_eq!(peer.octets(), b"hello world");
    assert_eq!(peer.end.memory().sent(SLOT, Side::Zero), 11);
    assert_eq!(engine.sends(), []);
    peer.begin(0);
    peer.send(b"back");
    assert_eq!(c.ready(), IN | OUT);
    assert_eq!(c.recv(3), Ok(b"bac".to_vec()));
    assert_eq!(peer.read_word(), 3);
    assert_eq!(c.recv(9), Ok(b"k".to_vec()));
    assert_eq!(peer.read_word(), 4);
    assert_eq!(c.recv(9), Err(Errno::EAGAIN));
    assert_eq!(engine.credits(), []);
}

#[test]
fn octets_that_the_engine_carries_come_first() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.send(b"early"), Ok(5));
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.send(b"late"), Ok(4));
    assert_eq!(peer.next(), Some(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 5 }));
    peer.begin(8);
    peer.send(b"direct");
    engine.data(c.queue_set, c.flow, b"1234");
    assert_eq!(c.recv(99), Ok(b"1234".to_vec()), "four more are to come before");
    engine.data(c.queue_set, c.flow, b"5678");
    assert_eq!(c.recv(99), Ok(b"5678direct".to_vec()));
}

#[test]
fn what_comes_before_the_engine_has_told_is_kept() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::new(&engine, &c);
    peer.begin(0);
    peer.send(b"too early");
    assert_eq!(c.ready(), OUT);
    peer.tell(&engine, &c);
    assert_eq!(c.ready(), IN | OUT);
    assert_eq!(c.recv(99), Ok(b"too early".to_vec()));
}

#[test]
fn an_entry_of_an_older_use_of_the_slot_is_dropped() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    let data = MemRange { offset: peer.at, len: 4 };
    peer.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION.wrapping_sub(1), after: 0 });
    peer.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION.wrapping_sub(1), data });
    assert_eq!(c.ready(), OUT);
}

#[test]
fn a_full_window_waits_for_the_peer_to_read() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    let block = vec![5; 64 << 10];
    let mut sent = 0;
    while let Ok(n) = c.send(&block) {
        sent += n;
    }
    assert!(sent >= 128 << 10, "{sent}");
    assert_eq!(c.ready(), 0);
    let mut wanted = false;
    while let Some(entry) = peer.next() {
        wanted |= matches!(entry, ChannelEntry::Want { .. });
    }
    assert!(wanted, "the peer is asked to tell");
    peer.end.memory().set_read(SLOT, Side::One, sent as u64);
    assert_eq!(c.ready(), 0, "nobody looks at the word until told");
    peer.push(ChannelEntry::Space { slot: SLOT, generation: GENERATION });
    assert_eq!(c.ready(), OUT);
    assert_eq!(c.socket.unsent(), 0);
    assert_eq!(c.send(&block), Ok(block.len()));
}

#[test]
fn octets_in_the_channel_are_unacknowledged_only_beyond_a_peers_window() {
    let engine = Engine::attached();
    let c = engine.connected();
    let _peer = Peer::direct(&engine, &c);
    let window = toe_base::limits::RECEIVE_WINDOW_INITIAL as usize;
    assert_eq!(c.send(&vec![1; window]), Ok(window));
    assert_eq!(c.socket.unsent(), 0);
    assert_eq!(c.send(&[2; 700]), Ok(700));
    assert_eq!(c.socket.unsent(), 700);
}

#[test]
fn a_peer_that_waits_is_told_when_half_is_read() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(&[9; 1000]);
    peer.push(ChannelEntry::Want { slot: SLOT, generation: GENERATION });
    assert_eq!(c.recv(499).map(|o| o.len()), Ok(499));
    assert_eq!(peer.next(), None);
    assert_eq!(c.recv(1).map(|o| o.len()), Ok(1));
    assert_eq!(peer.next(), Some(ChannelEntry::Space { slot: SLOT, generation: GENERATION }));
    assert_eq!(c.recv(500).map(|o| o.len()), Ok(500));
    assert_eq!(peer.next(), None, "told once");
}

#[test]
fn a_direction_that_was_frozen_goes_on_through_the_engine() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.send(b"direct"), Ok(6));
    assert_eq!(peer.end.memory().freeze(SLOT, Side::Zero), 6);
    assert_eq!(c.send(b"engine"), Ok(6));
    assert_eq!(peer.octets(), b"direct");
    assert_eq!(engine.sent_octets(), b"engine");
    peer.begin(0);
    peer.send(b"one ");
    assert_eq!(peer.end.memory().freeze(SLOT, Side::One), 4);
    engine.data(c.queue_set, c.flow, b"two");
    assert_eq!(c.recv(99), Ok(b"one two".to_vec()));
}

#[test]
fn the_end_comes_after_what_is_in_the_channel() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"last");
    engine.post(c.queue_set, Completion::PeerClosed { flow: c.flow });
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    assert_eq!(c.recv(99), Ok(b"last".to_vec()));
    assert_eq!(c.recv(99), Ok(vec![]));
    assert_eq!(c.send(b"x"), Ok(1), "the other direction is open");
    assert_eq!(peer.octets(), b"x");
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
}

#[test]
fn what_comes_after_both_directions_were_shut_is_for_the_engine_to_answer() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    assert_eq!(c.socket.shutdown(Shutdown::Read), Ok(()));
    let option = FlowOption::ReceiveShut;
    assert_eq!(engine.command().1, Command::SetOption { flow: c.flow, option, value: 1 });
    peer.send(b"taken");
    assert!(!peer.end.memory().is_frozen(SLOT, Side::One));
    assert_eq!(c.recv(9), Ok(b"taken".to_vec()));
    assert_eq!(c.socket.shutdown(Shutdown::Both), Ok(()));
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
    assert_eq!(engine.try_command(0), None, "told once");
    assert!(peer.end.memory().is_frozen(SLOT, Side::One));
}

#[test]
fn close_with_unread_octets_is_a_reset() {
    let engine = Engine::attached();
    for (read, abort) in [(4, false), (3, true)] {
        let c = engine.connected();
        let flow = c.flow;
        let mut peer = Peer::direct_again(&engine, &c);
        peer.begin(0);
        peer.send(b"data");
        assert_eq!(c.recv(read).map(|o| o.len()), Ok(read));
        c.close();
        let told = engine.try_command(0).map(|(_, command, _)| command);
        assert_eq!(told, abort.then_some(Command::Close { flow, abort }));
        assert_eq!(peer.read_word(), ALL_READ);
        assert!(peer.end.memory().is_frozen(SLOT, Side::One), "the peer goes on through the engine");
        assert!(peer.end.memory().is_done(SLOT, Side::Zero));
        // The next connection gets a channel of its own.
        engine.post(0, Completion::ChannelClosed { channel: CHANNEL });
    }
}

impl Peer {
    /// [`Peer::direct`], after an older channel of the same number may have been closed.
    fn direct_again(engine: &Engine, c: &Connection) -> Peer {
        c.ready();
        Peer::direct(engine, c)
    }
}

#[test]
fn a_slot_is_held_until_the_peer_has_read_what_was_sent() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.send(b"last words"), Ok(10));
    c.close();
    assert!(!peer.end.memory().is_done(SLOT, Side::Zero));
    assert_eq!(peer.octets(), b"last words");
    peer.end.memory().set_read(SLOT, Side::One, 10);
    // A thread that goes to sleep looks.
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            other.socket.set_nonblocking(false);
            other.recv(1)
        });
        until(|| peer.end.memory().is_done(SLOT, Side::Zero).then_some(()));
        engine.data(other.queue_set, other.flow, b"x");
        assert_eq!(sleeper.join().expect("the sleeper"), Ok(b"x".to_vec()));
    });
}

#[test]
fn a_sleeper_is_woken_by_the_peer_itself() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    c.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| c.recv(9));
        engine.until_armed(c.queue_set);
        peer.send(b"wake up");
        assert_eq!(sleeper.join().expect("the sleeper"), Ok(b"wake up".to_vec()));
    });
}

#[test]
fn a_peer_that_breaks_the_contract_loses_its_connections() {
    let engine = Engine::attached();
    let c = engine.connected();
    let flow = c.flow;
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    // Its own memory is the other half; this is ours.
    let data = MemRange { offset: ChannelLayout::data(Side::Zero), len: 9 };
    peer.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION, data });
    assert_eq!(c.recv(9), Err(Errno::ECONNRESET));
    assert_eq!(engine.command().1, Command::Close { flow, abort: true });
}

#[test]
fn a_flow_that_is_asked_for_is_given_up_with_what_was_not_read() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    engine.data(c.queue_set, c.flow, b"engine ");
    peer.begin(7);
    peer.send(b"channel");
    assert_eq!(c.recv(2), Ok(b"en".to_vec()));
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    assert_eq!(c.ready() & IN, 0);
    assert_eq!(engine.relinquished(), [(c.flow.raw(), b"gine channel".to_vec())]);
    assert!(peer.end.memory().is_frozen(SLOT, Side::One));
    assert_eq!(engine.credits().iter().map(|credit| credit.len).sum::<u32>(), 7);
}

#[test]
fn a_claimed_flow_begins_with_what_its_last_holder_did_not_read() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"mine");
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    engine.carry(b"mine");
    let flow = engine.new_flow();
    engine.answer_claims_with(vec![toe_abi::attach::Reply::ClaimedFlow {
        flow: flow.raw(),
        anchor: 0,
        unread: 4,
    }]);
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    c.ready();
    assert_eq!(c.recv(2), Ok(b"mi".to_vec()));
    engine.data(c.queue_set, flow, b" own");
    assert_eq!(c.recv(9), Ok(b"ne own".to_vec()));
    assert_eq!(c.recv(9), Err(Errno::EAGAIN));
}

#[test]
fn one_range_of_the_engine_may_lie_on_both_sides_of_the_channels_octets() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(5);
    peer.send(b" then ");
    assert_eq!(peer.end.memory().freeze(SLOT, Side::One), 6);
    engine.data(c.queue_set, c.flow, b"firstlast");
    assert_eq!(c.recv(99), Ok(b"first then last".to_vec()));
}

#[test]
fn a_flow_is_given_up_only_when_what_comes_before_the_channels_octets_is_there() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(5);
    peer.send(b" then ");
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    assert_eq!(engine.relinquished(), []);
    engine.data(c.queue_set, c.flow, b"first");
    c.ready();
    assert_eq!(engine.relinquished(), [(c.flow.raw(), b"first then ".to_vec())]);
}

/// A program that does not read makes no room in the engine's window, and the engine has more that comes first.
#[test]
fn a_flow_that_is_to_be_given_up_needs_no_reader_to_make_room_for_what_comes_first() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    engine.data(c.queue_set, c.flow, b"first ");
    peer.begin(11);
    peer.send(b" then");
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    assert_eq!(engine.credits().iter().map(|credit| credit.len).sum::<u32>(), 6);
    assert_eq!(engine.relinquished(), []);
    engine.data(c.queue_set, c.flow, b"later");
    c.ready();
    assert_eq!(engine.relinquished(), [(c.flow.raw(), b"first later then".to_vec())]);
}

/// Its descriptor is another thread's or process's by then, and its program here has let go.
#[test]
fn a_flow_is_given_up_by_a_program_that_closes_it_before_the_engine_has_brought_all() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(5);
    peer.send(b" then ");
    c.socket.mark_shared(c.fd);
    let (flow, queue_set) = (c.flow, c.queue_set);
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| c.close());
        until(|| peer.end.memory().is_frozen(SLOT, Side::One).then_some(()));
        engine.data(queue_set, flow, b"first");
        closer.join().expect("the thread that closes");
    });
    assert_eq!(engine.relinquished(), [(flow.raw(), b"first then ".to_vec())]);
}

/// A peer that says of octets that the engine brings them, and never gave them to it.
#[test]
fn a_peer_whose_first_octets_never_come_is_waited_for_once_and_uses_no_channel_any_more() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(1 << 62);
    peer.send(b" then ");
    toe::fork::before_child();
    assert_eq!(engine.relinquished(), []);
    assert_eq!(c.recv(1), Err(Errno::ECONNRESET));
    assert_eq!(engine.command().1, Command::Close { flow: c.flow, abort: true });
    let (flow, channel, slot) = (other.flow, CHANNEL, SLOT + 1);
    engine.post(other.queue_set, Completion::Direct { flow, channel, slot, generation: GENERATION });
    other.ready();
    assert!(peer.end.memory().is_frozen(slot, Side::Zero) && peer.end.memory().is_frozen(slot, Side::One));
}

/// It may ask in slots of which the engine never told, and take no answers.
#[test]
fn room_is_told_only_where_somebody_can_wait_for_it() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    (SLOT + 1..SLOT + 9).for_each(|slot| peer.push(ChannelEntry::Want { slot, generation: 0 }));
    c.ready();
    assert_eq!(peer.next(), None);
}

#[test]
fn a_flow_of_which_nothing_is_left_is_given_up_all_the_same() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let _peer = Peer::direct(&engine, &c);
    let flow = c.flow;
    c.close();
    engine.post(0, Completion::Yield { flow });
    other.ready();
    assert_eq!(engine.relinquished(), [(flow.raw(), vec![])]);
}

#[test]
fn a_sender_that_waits_wakes_a_peer_that_sleeps() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    let block = vec![5; 64 << 10];
    while c.send(&block).is_ok() {}
    while peer.next().is_some() {}
    // Everything was read, and the peer sleeps, when the next call finds no room.
    peer.push(ChannelEntry::Space { slot: SLOT, generation: GENERATION });
    c.ready();
    peer.end.arm();
    while c.send(&block).is_ok() {}
    let woken = peer.end.memory().region().read_u32(ChannelLayout::armed(Side::One));
    assert_eq!(woken, Ok(0), "the peer was woken for `Want`");
}

#[test]
fn a_sender_that_waited_for_the_engine_goes_on_through_the_channel() {
    let engine = Engine::attached();
    let c = engine.connected();
    let block = vec![5; 64 << 10];
    let mut sent = 0;
    while let Ok(n) = c.send(&block) {
        sent += n as u32;
    }
    let peer = Peer::new(&engine, &c);
    assert_eq!(c.ready(), 0);
    c.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| c.send(b"on"));
        engine.until_armed(c.queue_set);
        peer.tell_only(&engine, &c);
        assert_eq!(sender.join().expect("the sender"), Ok(2));
    });
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: sent });
    assert_eq!(c.ready(), OUT);
}

#[test]
fn closing_a_copy_leaves_what_was_not_read_to_whoever_has_the_other() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"for the other");
    assert_eq!(c.recv(4), Ok(b"for ".to_vec()));
    c.socket.mark_shared(c.fd);
    let flow = c.flow;
    c.close();
    assert_eq!(engine.relinquished(), [(flow.raw(), b"the other".to_vec())]);
    assert_eq!(engine.try_command(0), None, "it is not closed");
}

/// The peer has read by its own look at the slot that there is no room, and asks when nobody is there any more.
#[test]
fn a_peer_that_waits_for_room_is_told_by_a_process_that_has_passed_the_connection_on() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"for the other");
    c.socket.mark_shared(c.fd);
    c.close();
    peer.push(ChannelEntry::Want { slot: SLOT, generation: GENERATION });
    other.ready();
    assert_eq!(peer.next(), Some(ChannelEntry::Space { slot: SLOT, generation: GENERATION }));
}

#[test]
fn a_channel_that_goes_while_another_one_is_looked_at() {
    let engine = Engine::attached();
    let c = engine.connected();
    let peer = Peer::direct(&engine, &c);
    let d = engine.connected();
    let other = ChannelId(8);
    let _other_end = engine.offer_channel(other);
    d.ready();
    assert_eq!(engine.command().1, Command::ChannelReady { channel: other });
    assert_eq!(c.send(b"last"), Ok(4));
    c.close();
    peer.end.memory().set_read(SLOT, Side::One, 4);
    engine.post(0, Completion::ChannelClosed { channel: CHANNEL });
    d.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        // Before it sleeps, the memory of the channel's last connection comes back, and with it the channel goes.
        let sleeper = scope.spawn(|| d.recv(1));
        until(|| peer.end.memory().is_done(SLOT, Side::Zero).then_some(()));
        engine.data(d.queue_set, d.flow, b"x");
        assert_eq!(sleeper.join().expect("the sleeper"), Ok(b"x".to_vec()));
    });
}

/// A sender has counted octets, and stores their entry a little later.
#[test]
fn nobody_is_kept_from_the_queue_set_while_a_peers_last_entry_is_waited_for() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"first ");
    assert!(peer.end.memory().add_sent(SLOT, Side::One, 4).is_ok());
    std::thread::scope(|scope| {
        let child = scope.spawn(toe::fork::before_child);
        until(|| peer.end.memory().is_frozen(SLOT, Side::One).then_some(()));
        // All this needs the lock; the connections live, so the one that leaves has not been given up for it.
        let now = toe::socket::RecvFlags { dont_wait: true, ..Default::default() };
        for _ in 0..100 {
            assert_eq!(other.recv_with(1, now), Err(Errno::EAGAIN));
            assert_eq!(c.socket.take_error(), Errno::OK);
        }
        assert_eq!(engine.relinquished(), []);
        let data = MemRange { offset: peer.at, len: 4 };
        peer.end.memory().region().write(peer.at, b"last").expect("memory of the channel");
        peer.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION, data });
        child.join().expect("the thread that makes a child");
    });
    assert_eq!(engine.relinquished(), [(c.flow.raw(), b"first last".to_vec())]);
}

#[test]
fn a_peer_that_never_stores_its_last_entry_loses_all_connections_at_once() {
    let engine = Engine::attached();
    let connections = [engine.connected(), engine.connected(), engine.connected()];
    let mut peer = Peer::new(&engine, &connections[0]);
    for (slot, c) in (SLOT..).zip(&connections) {
        let (flow, channel) = (c.flow, CHANNEL);
        engine.post(c.queue_set, Completion::Direct { flow, channel, slot, generation: GENERATION });
        c.ready();
        peer.push(ChannelEntry::Begin { slot, generation: GENERATION, after: 0 });
    }
    // The third owes nothing.
    for slot in [SLOT, SLOT + 1] {
        assert!(peer.end.memory().add_sent(slot, Side::One, 4).is_ok());
    }
    toe::fork::before_child();
    for c in &connections[..2] {
        assert_eq!(c.recv(1), Err(Errno::ECONNRESET));
    }
    let closed: Vec<_> =
        std::iter::from_fn(|| engine.try_command(0)).map(|(_, command, _)| command).collect();
    for c in &connections[..2] {
        assert!(closed.contains(&Command::Close { flow: c.flow, abort: true }), "{closed:?}");
    }
    // What leaves after that is given no time: nothing has come from the peer since.
    let late = engine.connected();
    let slot = SLOT + 3;
    let (flow, channel) = (late.flow, CHANNEL);
    assert!(peer.end.memory().add_sent(slot, Side::One, 4).is_ok());
    engine.post(late.queue_set, Completion::Direct { flow, channel, slot, generation: GENERATION });
    late.ready();
    late.socket.shutdown(Shutdown::Both).expect("it is connected");
    late.ready();
    let after: Vec<_> = std::iter::from_fn(|| engine.try_command(0)).map(|(_, command, _)| command).collect();
    assert!(after.contains(&Command::Close { flow, abort: true }), "{after:?}");
}
