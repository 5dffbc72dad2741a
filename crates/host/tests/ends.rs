//! Ends that are told through a channel: a fake engine offers it, the test plays the other session.

mod fake;

use fake::peer::{CHANNEL, GENERATION, Peer, SLOT};
use fake::{Connection, Engine};
use toe::socket::Shutdown;
use toe_abi::channel::ChannelEntry;
use toe_abi::entry::{Command, Completion};
use toe_abi::errno::Errno;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const GONE: u32 = IN | OUT | RDHUP | (libc::EPOLLHUP | libc::EPOLLERR) as u32;
const BEGIN: ChannelEntry = ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 0 };

fn end(abort: bool) -> ChannelEntry {
    ChannelEntry::End { slot: SLOT, generation: GENERATION, abort }
}

/// What the program has put into the channel, but for how far the engine is to be.
fn entries(peer: &mut Peer) -> Vec<ChannelEntry> {
    let is_told = |entry: &ChannelEntry| !matches!(entry, ChannelEntry::After { .. });
    std::iter::from_fn(|| peer.next()).filter(is_told).collect()
}

/// A connection to whose program the peer has sent `bytes`.
fn with_bytes(engine: &Engine, bytes: &[u8]) -> (Connection, Peer) {
    let c = engine.connected();
    let mut peer = Peer::direct(engine, &c);
    peer.begin(0);
    peer.send(bytes);
    (c, peer)
}

#[test]
fn the_end_is_seen_before_the_engine_tells_it() {
    let engine = Engine::attached();
    let (c, mut peer) = with_bytes(&engine, b"last");
    peer.push(end(false));
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    assert_eq!(c.recv(99), Ok(b"last".to_vec()));
    assert_eq!(c.recv(99), Ok(vec![]));
    engine.post(c.queue_set, Completion::PeerClosed { flow: c.flow });
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    assert_eq!(c.send(b"x"), Ok(1), "the other direction is open");
}

#[test]
fn the_end_waits_for_what_the_engine_still_brings() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 4 });
    peer.send(b"direct");
    peer.push(end(false));
    assert_eq!(c.ready(), OUT);
    assert_eq!(c.recv(99), Err(Errno::EAGAIN), "neither bytes nor the end");
    engine.data(c.queue_set, c.flow, b"slow");
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    assert_eq!(c.recv(99), Ok(b"slowdirect".to_vec()));
    assert_eq!(c.recv(99), Ok(vec![]));
}

#[test]
fn a_reset_is_told_once() {
    let engine = Engine::attached();
    let (c, mut peer) = with_bytes(&engine, b"data");
    peer.push(end(true));
    assert_eq!(c.ready(), GONE);
    assert_eq!(c.recv(99), Ok(b"data".to_vec()));
    assert_eq!(c.recv(99), Err(Errno::ECONNRESET));
    engine.post(c.queue_set, Completion::Reset { flow: c.flow, errno: Errno::ECONNRESET });
    assert_eq!(c.recv(99), Ok(vec![]), "the engine's word of it is no news");
    assert_eq!(c.send(b"x"), Err(Errno::EPIPE));
}

/// Its memory comes back with the engine's word: the engine may be about to read it.
#[test]
fn a_reset_waits_for_the_engine_that_has_bytes() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.send(b"by the engine"), Ok(13));
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.push(end(true));
    assert_eq!(c.ready(), OUT);
    engine.post(c.queue_set, Completion::Reset { flow: c.flow, errno: Errno::ECONNRESET });
    assert_eq!(c.ready(), GONE);
}

#[test]
fn shutdown_is_told_behind_the_last_byte() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(entries(&mut peer), [BEGIN, end(false)], "nothing was sent before");
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
    peer.begin(0);
    peer.send(b"answer");
    assert_eq!(c.recv(99), Ok(b"answer".to_vec()));
    c.close();
    assert_eq!(entries(&mut peer), [], "told once");
}

#[test]
fn close_is_told_as_what_it_is() {
    let engine = Engine::attached();
    for (read, abort) in [(4, false), (3, true)] {
        let c = engine.connected();
        let mut peer = Peer::direct_again(&engine, &c);
        peer.begin(0);
        peer.send(b"data");
        assert_eq!(c.recv(read).map(|o| o.len()), Ok(read));
        c.close();
        assert_eq!(entries(&mut peer), [BEGIN, end(abort)]);
        engine.post(0, Completion::ChannelClosed { channel: CHANNEL });
        let _ = engine.try_command(0);
    }
}

/// They may be on their way, and are lost then: that is a reset.
#[test]
fn close_is_the_engines_to_tell_while_it_may_bring_bytes() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.push(ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 4 });
    assert_eq!(c.send(b"x"), Ok(1));
    c.close();
    let told = entries(&mut peer);
    assert!(!told.iter().any(|entry| matches!(entry, ChannelEntry::End { .. })), "{told:?}");
}
