//! Virtual interfaces: real memory and interrupts, hosts by hand.

use super::control_server::hold_up;
use super::fake_host::FakeHost;
use super::{daemon, daemon_with};
use crate::daemon::Daemon;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Request};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName, ViaLayout, ViaState};
use toe_ring::ViaMemory;

fn name(text: &str) -> NodeName {
    NodeName::new(text.as_bytes()).expect("a name")
}

fn ask(host: &FakeHost, daemon: &mut Daemon, request: Request) -> Result<(Reply, Vec<OwnedFd>), Errno> {
    match host.control.ask(daemon, request) {
        (Reply::Refused { errno, .. }, _) => Err(Errno(errno)),
        other => Ok(other),
    }
}

fn handle(host: &FakeHost, daemon: &mut Daemon, request: Request) -> u32 {
    match ask(host, daemon, request) {
        Ok((Reply::ViaHandle { handle }, _)) => handle,
        other => panic!("{other:?}"),
    }
}

/// A connection as a host gets it: its handle, the other node, what that has said, the memory.
fn made(answer: Result<(Reply, Vec<OwnedFd>), Errno>) -> (u32, NodeName, Attributes, ViaMemory) {
    let (reply, fds) = answer.expect("a connection");
    let Reply::ViaConnection { handle, peer, attributes } = reply else { panic!("{reply:?}") };
    assert_eq!(fds.len(), 2, "memory and a waker");
    (handle, peer, attributes, ViaMemory::map(&fds[0]).expect("the memory"))
}

fn host(daemon: &mut Daemon, node: &str) -> FakeHost {
    let host = FakeHost::attach(daemon);
    assert!(matches!(ask(&host, daemon, Request::ViaName { name: name(node) }), Ok((Reply::Done, _))));
    host
}

const LISTEN: Request = Request::ViaListen { from: None, discriminator: 5 };

fn connect(to: &str) -> Request {
    Request::ViaConnect { to: name(to), discriminator: 5, attributes: Attributes::EVIL }
}

struct Pair {
    daemon: Daemon,
    server: FakeHost,
    client: FakeHost,
    connection: u32,
    memories: [ViaMemory; 2],
}

fn pair() -> Pair {
    let mut daemon = daemon();
    let (server, client) = (host(&mut daemon, "a"), host(&mut daemon, "b"));
    let listener = handle(&server, &mut daemon, LISTEN);
    assert_eq!(ask(&server, &mut daemon, Request::ViaTake { listener }).err(), Some(Errno::EAGAIN));
    let connection = handle(&client, &mut daemon, connect("a"));
    let fetch = Request::ViaFetch { connection };
    assert_eq!(ask(&client, &mut daemon, fetch).err(), Some(Errno::EAGAIN));
    let (taken, peer, said, one) = made(ask(&server, &mut daemon, Request::ViaTake { listener }));
    assert_eq!((taken, peer, said), (connection, name("b"), Attributes::EVIL));
    let (_, peer, _, zero) = made(ask(&client, &mut daemon, fetch));
    assert_eq!(peer, name("a"));
    assert_eq!(ask(&client, &mut daemon, fetch).err(), Some(Errno::EALREADY));
    assert!(one.advance(ViaState::Accepted) && zero.state() == ViaState::Accepted);
    assert_eq!((daemon.engine.view().totals().virtual_interfaces, daemon.via.len()), (2, 1));
    assert_eq!(daemon.engine.view().counter(toe_engine::Counter::ViaConnections), 1);
    Pair { daemon, server, client, connection, memories: [zero, one] }
}

#[test]
fn a_connection_ends_with_a_word_a_session_or_the_engine() {
    for who in 0..4 {
        let Pair { mut daemon, server, client, connection, memories: [zero, one] } = pair();
        match who {
            0 => drop(client),
            1 => drop(server),
            2 => {
                let end = Request::ViaForget { handle: connection };
                assert!(ask(&client, &mut daemon, end).is_ok());
                assert_eq!(ask(&server, &mut daemon, end).err(), Some(Errno::ENOENT), "once");
            }
            _ => {}
        }
        super::settle(&mut daemon);
        if who == 3 {
            drop(daemon);
        } else {
            assert_eq!(daemon.via.len(), 0);
            daemon.engine.view().audit().expect("nobody is charged for it");
        }
        assert_eq!((zero.state(), one.state()), (ViaState::Closed, ViaState::Closed), "{who}");
    }
}

/// As lanes: what the two share the engine's thread does not look at.
#[test]
fn the_engine_leaves_a_connections_end_to_its_users_thread() {
    let Pair { mut daemon, server, client, memories: [zero, one], .. } = pair();
    let mut held_up = hold_up(&mut daemon, &client.control);
    let now = daemon.timing.clock.now();
    for session in daemon.sessions.live().to_vec() {
        daemon.close_session(now, session);
    }
    super::come_to_rest(&mut daemon);
    assert_eq!(daemon.via.len(), 0);
    assert_eq!(
        (zero.state(), one.state()),
        (ViaState::Accepted, ViaState::Accepted),
        "not a word was written"
    );
    held_up.release();
    super::until(&mut daemon, "its thread has said so", || zero.state() == ViaState::Closed);
    drop((server, client));
}

/// What side 1 has said in the memory, and the word or end by which it leaves.
#[test]
fn what_the_other_side_has_said_is_found_though_it_has_left() {
    for (said, found) in [(ViaState::Accepted, ViaState::Closed), (ViaState::Rejected, ViaState::Rejected)] {
        for (dies, is_late) in [(false, false), (false, true), (true, false), (true, true)] {
            let mut daemon = daemon();
            let (server, client) = (host(&mut daemon, "a"), host(&mut daemon, "b"));
            let listener = handle(&server, &mut daemon, LISTEN);
            let connection = handle(&client, &mut daemon, connect("a"));
            let (_, _, _, one) = made(ask(&server, &mut daemon, Request::ViaTake { listener }));
            let fetch = Request::ViaFetch { connection };
            let early = (!is_late).then(|| made(ask(&client, &mut daemon, fetch)).3);
            assert!(one.advance(said));
            one.write(ViaLayout::slots(Side::One), b"a word").expect("a slot");
            let end = Request::ViaForget { handle: connection };
            if dies {
                drop(server);
                super::settle(&mut daemon);
            } else {
                assert!(ask(&server, &mut daemon, end).is_ok());
                super::settle(&mut daemon);
            }
            assert_eq!(daemon.via.len(), usize::from(is_late), "kept for who has not fetched it");
            let zero = early.unwrap_or_else(|| made(ask(&client, &mut daemon, fetch)).3);
            let mut word = [0; 6];
            zero.read(ViaLayout::slots(Side::One), &mut word).expect("a slot");
            assert_eq!((zero.state(), &word), (found, b"a word"), "{said:?} {dies} {is_late}");
            assert_eq!(ask(&client, &mut daemon, end).is_ok(), is_late, "else it has ended");
            assert_eq!(daemon.via.len(), 0);
            daemon.engine.view().audit().expect("nobody is charged for it");
        }
    }
}

/// A side that writes what the other one alone may say does not hide its end.
#[test]
fn who_writes_that_it_was_rejected_still_ends() {
    let Pair { mut daemon, server: _server, client, memories: [zero, _one], .. } = pair();
    zero.region().write_u32(ViaLayout::STATE, ViaState::Rejected as u32).expect("the state");
    drop(client);
    super::settle(&mut daemon);
    assert_eq!(zero.state(), ViaState::Closed);
}

#[test]
fn nobody_has_what_is_not_his_or_comes_before_his_name() {
    let Pair { mut daemon, server: _server, client: _client, connection, memories: _memories } = pair();
    let hello = super::fake_host::Control::new(&mut daemon);
    assert!(matches!(hello.ask_meanwhile(&mut daemon, Request::Hello { room: 0 }).0, Reply::Welcome { .. }));
    let early = hello.ask_meanwhile(&mut daemon, Request::ViaName { name: name("a") }).0;
    assert!(matches!(early, Reply::Refused { errno, .. } if Errno(errno) == Errno::EINVAL), "{early:?}");
    let stranger = FakeHost::attach(&mut daemon);
    for early in [LISTEN, connect("a")] {
        assert_eq!(ask(&stranger, &mut daemon, early).err(), Some(Errno::EINVAL));
    }
    assert!(ask(&stranger, &mut daemon, Request::ViaName { name: name("a") }).is_ok());
    for request in [
        Request::ViaTake { listener: 0 },
        Request::ViaTake { listener: connection },
        Request::ViaFetch { connection },
        Request::ViaForget { handle: connection },
        Request::ViaForget { handle: 77 },
    ] {
        assert_eq!(ask(&stranger, &mut daemon, request).err(), Some(Errno::ENOENT), "{request:?}");
    }
    assert_eq!(daemon.via.len(), 1);
}

#[test]
fn an_engine_without_direct_ways_has_none() {
    let mut daemon = daemon_with("toed --no-direct --receive-memory-mib 16 --send-memory-mib 16");
    let host = FakeHost::attach(&mut daemon);
    let refused = ask(&host, &mut daemon, Request::ViaName { name: name("a") });
    assert_eq!(refused.err(), Some(Errno::EOPNOTSUPP));
}
