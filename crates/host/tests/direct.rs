//! Connections whose bytes go through a channel: a fake engine offers it, the test plays the other session.

mod fake;

use fake::peer::{CHANNEL, GENERATION, Peer, SLOT};
use fake::{Connection, Engine, until};
use std::time::Duration;
use toe::socket::Shutdown;
use toe_abi::channel::{ALL_READ, CHANNEL_ENTRIES, ChannelEntry, ChannelLayout, Side};
use toe_abi::entry::{Command, Completion, FlowOption, MemRange};
use toe_abi::errno::Errno;
use toe_base::ChannelId;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

#[test]
fn bytes_go_through_the_channel_and_not_through_the_engine() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.send(b"hello "), Ok(6));
    assert_eq!(c.send(b"world"), Ok(5));
    assert_eq!(peer.next(), Some(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 0 }));
    assert_eq!(peer.bytes(), b"hello world");
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
fn bytes_that_the_engine_carries_come_first() {
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

/// Its memory could not be reached when all others were armed.
#[test]
fn who_is_about_to_sleep_is_woken_by_a_channel_that_comes_into_use_just_then() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::new(&engine, &c);
    peer.tell_only(&engine, &c);
    assert!(!c.socket.owner_queue().expect("a queue set").arm(), "nothing is to be retried");
    assert!(peer.end.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 0 }).is_ok());
    assert!(peer.end.wake_peer(), "it sleeps");
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
    // Not looked at in between: every 64th look takes back what was read without being told.
    peer.end.memory().set_read(SLOT, Side::One, sent as u64);
    peer.push(ChannelEntry::Space { slot: SLOT, generation: GENERATION });
    assert_eq!(c.ready(), OUT);
    assert_eq!(c.socket.unsent(), 0);
    assert_eq!(c.send(&block), Ok(block.len()));
}

#[test]
fn bytes_in_the_channel_are_unacknowledged_only_beyond_a_peers_window() {
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
    assert_eq!(peer.bytes(), b"direct");
    assert_eq!(engine.sent_bytes(), b"engine");
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
    assert_eq!(peer.bytes(), b"x");
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

/// Found by a profile of connections of one request each: such slots were never used again, and the engine looked through all of them
/// for each connection once there were thousands.
#[test]
fn a_connection_that_is_closed_before_its_channel_is_heard_of_leaves_the_slot() {
    let engine = Engine::attached();
    let c = engine.connected();
    let other = engine.connected();
    let peer = Peer::direct(&engine, &other);
    let (flow, queue_set) = (c.flow, c.queue_set);
    c.close();
    let (channel, slot) = (CHANNEL, SLOT + 1);
    engine.post(queue_set, Completion::Direct { flow, channel, slot, generation: GENERATION });
    other.ready();
    assert!(peer.end.memory().is_done(slot, Side::Zero));
    assert!(!peer.end.memory().is_done(SLOT, Side::Zero), "the other one goes on");
}

#[test]
fn close_with_unread_bytes_is_a_reset() {
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
        let wanted = if abort { Command::Close { flow, abort } } else { Command::ShutdownSend { flow } };
        assert_eq!(told, Some(wanted));
        assert_eq!(peer.read_word(), ALL_READ);
        assert!(peer.end.memory().is_frozen(SLOT, Side::One), "the peer goes on through the engine");
        assert!(peer.end.memory().is_done(SLOT, Side::Zero));
        // The next connection gets a channel of its own.
        engine.post(0, Completion::ChannelClosed { channel: CHANNEL });
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
    assert_eq!(peer.bytes(), b"last words");
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

/// A connection, reset, of a channel whose other end has broken the contract.
fn broken_channel(engine: &Engine) -> (Connection, Peer) {
    let c = engine.connected();
    let flow = c.flow;
    let mut peer = Peer::direct(engine, &c);
    peer.begin(0);
    // Its own memory is the other half; this is ours.
    let data = MemRange { offset: ChannelLayout::data(Side::Zero), len: 9 };
    peer.push(ChannelEntry::Data { slot: SLOT, generation: GENERATION, data });
    assert_eq!(c.recv(9), Err(Errno::ECONNRESET));
    assert_eq!(engine.command().1, Command::Close { flow, abort: true });
    (c, peer)
}

#[test]
fn a_peer_that_breaks_the_contract_loses_its_connections() {
    broken_channel(&Engine::attached());
}

/// Or it has every drain take as many entries as one may, for ever.
#[test]
fn a_peer_that_broke_the_contract_is_not_listened_to_any_more() {
    let engine = Engine::attached();
    let (c, mut peer) = broken_channel(&engine);
    let wants = ChannelEntry::Want { slot: SLOT, generation: GENERATION };
    while peer.end.push(wants).is_ok() {}
    for _ in 0..3 {
        c.ready();
        assert_eq!(peer.end.room(1), 0, "nothing was taken");
    }
    assert_eq!(peer.next(), None, "nor answered");
    c.close();
    engine.post(0, Completion::ChannelClosed { channel: CHANNEL });
    // One of the same number is another one.
    let d = engine.connected();
    let mut peer = Peer::direct_again(&engine, &d);
    peer.begin(0);
    peer.send(b"new");
    assert_eq!(d.recv(9), Ok(b"new".to_vec()));
}

/// The engine does not know, and goes on letting connections use it.
#[test]
fn a_connection_that_comes_to_a_broken_channel_leaves_it_or_is_reset() {
    let engine = Engine::attached();
    let (_c, peer) = broken_channel(&engine);
    for (slot, sent) in [(SLOT + 1, 0), (SLOT + 2, 4)] {
        let d = engine.connected();
        let flow = d.flow;
        if sent > 0 {
            assert!(peer.end.memory().add_sent(slot, Side::One, sent).is_ok());
        }
        engine.post(d.queue_set, Completion::Direct { flow, channel: CHANNEL, slot, generation: 1 });
        d.ready();
        assert!(peer.end.memory().is_frozen(slot, Side::One));
        if sent > 0 {
            assert_eq!(d.recv(9), Err(Errno::ECONNRESET));
            assert_eq!(engine.command().1, Command::Close { flow, abort: true });
        } else {
            engine.data(d.queue_set, flow, b"by the engine");
            assert_eq!(d.recv(13), Ok(b"by the engine".to_vec()));
            d.close();
            assert_eq!(engine.command().1, Command::ShutdownSend { flow });
        }
    }
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
fn a_sender_that_waits_wakes_a_peer_that_sleeps() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    let block = vec![5; 64 << 10];
    let mut sent = 0;
    while let Ok(n) = c.send(&block) {
        sent += n as u64;
    }
    while peer.next().is_some() {}
    // Everything was read, and the peer sleeps, when the next call finds no room.
    peer.end.memory().set_read(SLOT, Side::One, sent);
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

/// Writes of `bytes` for as long as there is said to be room, each of which is taken. How many they were.
fn fill(c: &Connection, bytes: &[u8]) -> u32 {
    let mut writes = 0;
    while c.ready() & OUT != 0 {
        assert_eq!(c.send(bytes), Ok(bytes.len()), "it was writable, after {writes}");
        writes += 1;
    }
    writes
}

/// Entries are short long before the bytes are too many.
#[test]
fn small_writes_fill_the_ring_and_go_on_when_the_peer_has_made_room() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    let writes = fill(&c, &[1; 100]);
    assert!((CHANNEL_ENTRIES / 2..CHANNEL_ENTRIES).contains(&writes), "{writes}");
    for _ in 0..99 {
        assert_eq!(c.ready(), 0, "nobody has made room");
    }
    let mut took: Vec<ChannelEntry> = (0..9).filter_map(|_| peer.next()).collect();
    assert_eq!(c.ready(), 0, "that little is not worth a wake-up");
    let more = (0..CHANNEL_ENTRIES / 2).filter_map(|_| peer.next());
    took.extend(more);
    // Nothing has been read: it is the ring alone that has room.
    assert_eq!(c.ready(), OUT);
    assert!(fill(&c, &[1; 100]) > CHANNEL_ENTRIES / 4);
    took.extend(std::iter::from_fn(|| peer.next()));
    assert!(
        took.contains(&ChannelEntry::Want { slot: SLOT, generation: GENERATION }),
        "the peer is asked to tell"
    );
}

#[test]
fn a_full_ring_takes_what_the_peer_has_taken_out() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    while c.send(&[1; 100]).is_ok() {}
    assert_eq!(c.ready(), 0);
    (0..5).for_each(|_| _ = peer.next());
    assert_eq!((c.ready(), c.send(&[1; 100])), (0, Ok(100)), "who tries is not held up");
    peer.push(ChannelEntry::Space { slot: SLOT, generation: GENERATION });
    assert_eq!(c.ready(), 0, "bytes were read, and the ring is full");
    while peer.next().is_some() {}
    assert_eq!(c.ready(), OUT);
}

/// The peer takes entries and says nothing.
#[test]
fn who_sleeps_until_the_ring_has_room_finds_out() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    while c.send(&[1; 100]).is_ok() {}
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut fds = [libc::pollfd { fd: c.fd, events: libc::POLLOUT, revents: 0 }];
            (toe::poll::poll(&mut fds, Some(Duration::from_secs(9)), None), c.send(&[1; 100]))
        });
        engine.until_armed(c.queue_set);
        while peer.next().is_some() {}
        assert_eq!(sleeper.join().expect("the sleeper"), (Ok(1), Ok(100)));
    });
    while c.send(&[1; 100]).is_ok() {}
    c.socket.set_nonblocking(false);
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| c.send(&[1; 100]));
        engine.until_armed(c.queue_set);
        while peer.next().is_some() {}
        assert_eq!(sleeper.join().expect("the sleeper"), Ok(100));
    });
}

/// The other one was writable before the ring was filled.
#[test]
fn connections_that_share_a_ring_are_writable_together() {
    let engine = Engine::attached();
    let (c, d) = (engine.connected(), engine.connected());
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.queue_set, d.queue_set);
    let (flow, generation) = (d.flow, GENERATION);
    engine.post(d.queue_set, Completion::Direct { flow, channel: CHANNEL, slot: SLOT + 1, generation });
    for _ in 0..3 {
        assert_eq!((c.ready(), d.ready()), (OUT, OUT));
        while c.send(b"of few").is_ok() {}
        assert_eq!((c.ready(), d.ready()), (0, 0));
        while peer.next().is_some() {}
    }
    assert_eq!((d.ready(), d.send(b"x")), (OUT, Ok(1)));
}

/// It takes nothing out any more.
#[test]
fn who_waits_for_the_ring_of_a_peer_that_is_gone_goes_on_through_the_engine() {
    let engine = Engine::attached();
    let c = engine.connected();
    let peer = Peer::direct(&engine, &c);
    fill(&c, &[1; 100]);
    peer.end.memory().freeze(SLOT, Side::Zero);
    assert_eq!((c.ready(), c.send(b"on")), (OUT, Ok(2)));
    assert_eq!(engine.sent_bytes(), b"on");
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
