//! Virtual interfaces: real memory and interrupts, hosts by hand.

use super::fake_host::FakeHost;
use super::{daemon, daemon_with};
use crate::daemon::Daemon;
use std::os::fd::OwnedFd;
use toe_abi::attach::{Reply, Request};
use toe_abi::errno::Errno;
use toe_abi::via::{Attributes, NodeName, ViaState};
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
    assert_eq!((daemon.engine.via_count(), daemon.via.len()), (2, 1));
    assert_eq!(daemon.engine.counter(toe_engine::Counter::ViaConnections), 1);
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
            daemon.engine.audit_users().expect("nobody is charged for it");
        }
        assert_eq!((zero.state(), one.state()), (ViaState::Closed, ViaState::Closed), "{who}");
    }
}

#[test]
fn nobody_has_what_is_not_his_or_comes_before_his_name() {
    let Pair { mut daemon, server: _server, client: _client, connection, memories: _memories } = pair();
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
