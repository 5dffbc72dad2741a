//! Connections whose bytes go through a channel, and what becomes of those when they are closed, given up or passed on.

mod fake;

use fake::peer::{CHANNEL, GENERATION, Peer, SLOT};
use fake::{Engine, until};
use std::os::fd::AsRawFd;
use toe::socket::RecvFlags;
use toe_abi::attach::{Reply, Unread};
use toe_abi::channel::{ChannelEntry, ChannelLayout, SLOT_LEN, Side};
use toe_abi::entry::{Command, Completion, MemRange};
use toe_abi::errno::Errno;
use toe_base::ChannelId;

const IN: u32 = libc::EPOLLIN as u32;

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
    assert_eq!(engine.credits().iter().map(|credit| credit.len).sum::<u32>(), 2);
    let Unread { credit, by_pipe, .. } = engine.given_back();
    assert_eq!((credit, by_pipe), (5, 7), "what is given back is not read by that");
    assert_eq!(peer.end.memory().read(SLOT, Side::Zero), 7, "the peer may wait for room");
}

/// Killed then, the engine must find that bytes are lost.
#[test]
fn a_channel_whose_flow_could_not_be_given_up_yet_has_nothing_read() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(0);
    peer.send(b"channel");
    engine.refuse_relinquish_with(Errno::EAGAIN);
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    assert_eq!(peer.end.memory().read(SLOT, Side::Zero), 0);
    assert_eq!(c.recv(7), Ok(b"channel".to_vec()));
}

/// A connection that others have, too, claimed with four bytes that its last holder had by a channel and gave back.
fn claimed_with_four(engine: &Engine) -> (fake::Connection, toe_base::FlowId, Peer) {
    let c = engine.connected();
    let mut peer = Peer::direct(engine, &c);
    peer.begin(0);
    peer.send(b"mine");
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    assert_eq!(engine.relinquished(), [(c.flow.raw(), b"mine".to_vec())]);
    engine.announce_at_claim(b"mine");
    let flow = engine.new_flow();
    engine.answer_claims_with(vec![Reply::ClaimedFlow { flow: flow.raw(), anchor: 0, read: -4, written: 0 }]);
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    (c, flow, peer)
}

#[test]
fn a_claimed_flow_begins_with_what_its_last_holder_did_not_read() {
    let engine = Engine::attached();
    let (c, flow, _peer) = claimed_with_four(&engine);
    assert_eq!(c.recv(2), Ok(b"mi".to_vec()));
    engine.data(c.queue_set, flow, b" own");
    assert_eq!(c.recv(9), Ok(b"ne own".to_vec()));
    assert_eq!(c.recv(9), Err(Errno::EAGAIN));
    assert_eq!(engine.relinquished(), [], "the engine can give it to another process by itself");
}

/// Both ends count only what the engine was sent as segments: bytes that come back from it are not among those that are before a
/// channel's.
#[test]
fn what_was_given_back_comes_before_what_the_next_channel_brings() {
    let engine = Engine::attached();
    let (c, flow, mut peer) = claimed_with_four(&engine);
    c.ready();
    let line = ChannelLayout::line(SLOT, Side::Zero);
    peer.end.memory().region().write(line, &[0; SLOT_LEN as usize]).expect("a slot");
    peer.tell_of(&engine, c.queue_set, flow);
    peer.begin(3);
    peer.send(b" last");
    assert_eq!(c.recv(9), Ok(b"mine".to_vec()));
    engine.data(c.queue_set, flow, b" or");
    assert_eq!(c.recv(99), Ok(b" or last".to_vec()));
}

/// Two processes that use one connection at once: the other has it by the time at which this one gives it back.
#[test]
fn a_connection_that_another_process_has_got_meanwhile_is_claimed_again() {
    let engine = Engine::attached();
    let c = engine.connected();
    let _peer = Peer::direct(&engine, &c);
    engine.refuse_relinquish_with(Errno::EINVAL);
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    let flow = engine.new_flow();
    let answer = Reply::ClaimedFlow { flow: flow.raw(), anchor: 0, read: 0, written: 0 };
    engine.answer_claims_with(vec![answer]);
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    assert_eq!(c.ready() & IN, 0);
    engine.data(c.queue_set, flow, b" own");
    assert_eq!(c.recv(9), Ok(b" own".to_vec()));
}

/// The connection is another process's, which gives it up late, with four bytes.
fn is_refused_often(engine: &Engine, c: &fake::Connection) {
    let flow = engine.new_flow();
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    engine.post(c.queue_set, Completion::Moved { flow: c.flow });
    c.ready();
    engine.announce_at_claim(b"mine");
    let not_now = || Reply::Refused { errno: Errno::EAGAIN.0, version: 0 };
    let claimed = Reply::ClaimedFlow { flow: flow.raw(), anchor: 0, read: -4, written: 0 };
    engine.answer_claims_with((0..200).map(|_| not_now()).chain([claimed]).collect());
}

/// It was told ECONNRESET, and claimed for whatever the socket was used for next.
#[test]
fn a_call_whose_socket_another_thread_closes_during_its_claim_says_so() {
    let engine = Engine::attached();
    let c = engine.connected();
    is_refused_often(&engine, &c);
    std::thread::scope(|scope| {
        let socket = c.socket;
        let claims = scope.spawn(move || {
            let mut byte = [0];
            socket.recv(&mut [std::io::IoSliceMut::new(&mut byte)], RecvFlags::default())
        });
        until(|| (engine.claims_left() < 200).then_some(()));
        c.close();
        // It may be closed only after the claim.
        let said = claims.join().expect("no panic");
        assert!(matches!(said, Ok(1) | Err(Errno::EBADF)), "{said:?}");
    });
}

/// One of its threads was past the look at who has the connection when another one began to claim it: it found a socket with no
/// connection, and told ENOTCONN.
#[test]
fn who_comes_while_another_thread_claims_a_connection_finds_it() {
    const TCP_INQ: i32 = 36;
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.socket.set_option(libc::IPPROTO_TCP, TCP_INQ, &1i32.to_ne_bytes()), Ok(()));
    is_refused_often(&engine, &c);
    std::thread::scope(|scope| {
        let claims = scope.spawn(|| c.recv_with(1, RecvFlags { peek: true, ..Default::default() }));
        until(|| (engine.claims_left() < 200).then_some(()));
        assert_eq!(c.socket.inq_unread(), Some(4));
        assert_eq!(claims.join().expect("no panic"), Ok(b"m".to_vec()));
    });
}

/// Who passes a connection on, and says for ever that he is busy with it, held up whoever took it for ten seconds in each call.
#[test]
fn a_holder_of_another_users_is_not_waited_for_long() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.post(c.queue_set, Completion::Moved { flow: c.flow });
    c.ready();
    let busy = || Reply::Refused { errno: Errno::EBUSY.0, version: 0 };
    engine.answer_claims_with((0..1000).map(|_| busy()).collect());
    assert_eq!(c.recv(1), Err(Errno::ECONNRESET));
    assert!(engine.claims_left() > 800, "{}", engine.claims_left());
}

#[test]
fn one_range_of_the_engine_may_lie_on_both_sides_of_the_channels_bytes() {
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
fn a_flow_is_given_up_only_when_what_comes_before_the_channels_bytes_is_there() {
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

/// A peer that says of bytes that the engine brings them, and never gave them to it.
#[test]
fn a_peer_whose_first_bytes_never_come_is_waited_for_once_and_uses_no_channel_any_more() {
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

/// He would only need another session to be waited for again.
#[test]
fn whose_session_was_waited_for_in_vain_has_no_other_channel() {
    let engine = Engine::attached();
    let (c, other) = (engine.connected(), engine.connected());
    let mut peer = Peer::direct(&engine, &c);
    // One that is in use already.
    let second = ChannelId(CHANNEL.0 + 1);
    let second_end = engine.offer_channel(second);
    let direct = Completion::Direct { flow: other.flow, channel: second, slot: SLOT, generation: GENERATION };
    engine.post(other.queue_set, direct);
    other.ready();
    assert_eq!(engine.command().1, Command::ChannelReady { channel: second });
    assert!(!second_end.memory().is_frozen(SLOT, Side::Zero));
    peer.begin(1 << 62);
    peer.send(b" then ");
    // As if another process came to have it.
    engine.post(c.queue_set, Completion::Yield { flow: c.flow });
    c.ready();
    until(|| {
        c.ready();
        (c.recv(1) == Err(Errno::ECONNRESET)).then_some(())
    });
    assert_eq!(engine.command().1, Command::Close { flow: c.flow, abort: true });
    assert!(second_end.memory().is_frozen(SLOT, Side::Zero));
    let _third_end = engine.offer_channel(ChannelId(CHANNEL.0 + 2));
    other.ready();
    assert_eq!(engine.try_command(0), None);
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
    engine.expect_copy_closed();
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

/// A sender has counted bytes, and stores their entry a little later.
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
    // What begins after that leaves at once, and is given no time: nothing has come from the peer since.
    let late = engine.connected();
    let slot = SLOT + 3;
    let (flow, channel) = (late.flow, CHANNEL);
    assert!(peer.end.memory().add_sent(slot, Side::One, 4).is_ok());
    engine.post(late.queue_set, Completion::Direct { flow, channel, slot, generation: GENERATION });
    late.ready();
    let after: Vec<_> = std::iter::from_fn(|| engine.try_command(0)).map(|(_, command, _)| command).collect();
    assert!(after.contains(&Command::Close { flow, abort: true }), "{after:?}");
}

/// What the child of a fork closes with the session's other descriptors.
#[test]
fn a_copy_of_a_descriptor_is_the_librarys_own_until_it_is_let_go() {
    let _engine = Engine::attached();
    let stack = toe::stack::Stack::attached(toe::stack::EngineIdx::FIRST).expect("a session");
    let of_the_program = std::fs::File::open("/").expect("a directory");
    let copy = stack.session.own_fds().copy_of(of_the_program.as_raw_fd()).expect("a copy");
    let number = copy.raw();
    assert!(toe::fd_table::is_internal(number));
    assert!(stack.session.own_fds().lock().all().any(|own| own == number));
    drop(copy);
    assert!(!toe::fd_table::is_internal(number));
    assert!(!stack.session.own_fds().lock().all().any(|own| own == number));
}

/// Whether a thread of this process sleeps on a lock.
fn sleeps_on_a_lock(thread: i32) -> bool {
    let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
    call.is_ok_and(|call| call.split(' ').next() == Some(libc::SYS_futex.to_string().as_str()))
}

/// Found by the stress of threads that do everything at once: a thread claimed its first connection, and all that came for it was taken by
/// another thread before there was a stream. The thread's queue set had been opened while a fork was prepared, and the fork then gave
/// back the lock of every queue set, this one's too, which the thread held.
#[test]
fn no_queue_set_is_opened_while_a_fork_is_prepared() {
    let engine = Engine::attached();
    let stack = toe::stack::Stack::attached(toe::stack::EngineIdx::FIRST).expect("a session");
    let mine = stack.my_queue().expect("a queue set").index;
    toe::fork::prepare();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).expect("who waits for it");
            stack.my_queue().expect("a queue set").index
        });
        let thread = told.recv().expect("the thread's number");
        until(|| sleeps_on_a_lock(thread).then_some(()));
        let opened = engine.with(0, |session| session.queue_sets.len());
        toe::fork::in_parent();
        assert_eq!(opened, 1, "before the fork is over");
        assert_ne!(other.join().expect("no panic"), mine);
    });
}

/// Both ends say how much came before what is in the channel, and count from the connection's first byte.
#[test]
fn a_claimed_flow_counts_from_where_the_others_were() {
    let engine = Engine::attached();
    let mut c = engine.connected();
    engine.post(c.queue_set, Completion::Moved { flow: c.flow });
    let flow = engine.new_flow();
    let claimed = Reply::ClaimedFlow { flow: flow.raw(), anchor: 0, read: 1000, written: 500 };
    engine.answer_claims_with(vec![claimed]);
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    assert_eq!(c.recv(9), Err(Errno::EAGAIN));
    c.flow = flow;
    assert_eq!(c.send(b"by the engine"), Ok(13));
    let mut peer = Peer::direct(&engine, &c);
    peer.begin(1003);
    peer.send(b"channel");
    assert_eq!(c.recv(9), Err(Errno::EAGAIN), "three bytes come before");
    engine.data(c.queue_set, flow, b"eng");
    assert_eq!(c.recv(20), Ok(b"engchannel".to_vec()));
    assert_eq!(c.send(b"by the channel"), Ok(14));
    let begin = ChannelEntry::Begin { slot: SLOT, generation: GENERATION, after: 513 };
    assert_eq!(peer.next(), Some(begin));
    assert_eq!(peer.bytes(), b"by the channel");
}
