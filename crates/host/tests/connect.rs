//! Connecting without waiting for the engine, against a fake one: when it is done, and what the program then finds.

mod fake;

use fake::{Connection, Engine};
use std::net::SocketAddr;
use toe::socket::FastOpen;
use toe::stack::EngineIdx;
use toe::{Anchor, Errno, Socket, Stack, fd_table};
use toe_abi::command::{ConnectArgs, FlowInfo};
use toe_abi::entry::{Command, Completion};
use toe_base::FlowId;
use zerocopy::FromBytes;

fn server() -> SocketAddr {
    "127.0.0.1:80".parse().expect("an address")
}

/// An engine that has been asked once, and has given ids; those.
fn asked_once(ids: u32) -> (Engine, Connection, Vec<FlowId>) {
    let engine = Engine::attached();
    let first = engine.connecting_to(server(), FastOpen::No, 0);
    let ids: Vec<FlowId> = (0..ids).map(|_| engine.new_flow()).collect();
    for &flow in &ids {
        engine.with(0, |session| {
            session
                .region
                .write_record(fake::LAYOUT.flow_info(flow.slot()), &FlowInfo::default())
                .expect("a slot");
        });
        engine.post(first.queue_set, Completion::ConnectCredit { flow });
    }
    (engine, first, ids)
}

fn at_once(queue_set: usize, remote: SocketAddr) -> Option<Connection> {
    let anchor =
        Anchor::take(Stack::attached(EngineIdx::FIRST).expect("attached"), toe::AnchorUse::Connection)
            .expect("an anchor");
    let Some(socket) = Socket::connect_at_once(&anchor, remote, 9) else {
        anchor.put_back();
        return None;
    };
    let fd = anchor.open(true, false).expect("a descriptor");
    anchor.opened();
    fd_table::install(fd, socket);
    socket.set_nonblocking(true);
    Some(Connection { socket, fd, flow: FlowId::default(), queue_set })
}

fn connect_entry(engine: &Engine) -> FlowId {
    let (_, command, args) = engine.command();
    assert!(matches!(command, Command::Connect { .. }), "{command:?}");
    let args = ConnectArgs::read_from_bytes(&args).expect("64 bytes");
    assert_eq!(args.remote.to_socket_addr(), Some(server()));
    FlowId::from_raw(args.flow)
}

#[test]
fn the_second_connection_to_a_place_waits_for_nobody() {
    let (engine, first, ids) = asked_once(1);
    let c = at_once(first.queue_set, server()).expect("nothing to be asked");
    assert_eq!(connect_entry(&engine), ids[0]);
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
    assert_eq!((c.ready(), c.recv(1)), (0, Err(Errno::EAGAIN)));
    engine.write_info(ids[0], "127.0.0.1:40000".parse().expect("an address"), server());
    engine.post(first.queue_set, Completion::Connected { flow: ids[0], errno: Errno::OK });
    assert_eq!(c.socket.wait_connected(true), Ok(()));
    assert_eq!(c.socket.peer_addr(), Ok(server()));
    assert!(at_once(first.queue_set, server()).is_none(), "the ids are used up");
}

#[test]
fn who_has_not_been_reached_since_names_have_lapsed_is_asked_for() {
    let (engine, first, _ids) = asked_once(3);
    assert!(at_once(first.queue_set, "127.0.0.1:81".parse().expect("an address")).is_none());
    assert!(at_once(first.queue_set, "127.0.0.2:80".parse().expect("an address")).is_none());
    engine.with(0, |session| session.region.publish_names(1));
    assert!(at_once(first.queue_set, server()).is_none(), "it may listen no longer");
    let _again = engine.connecting_to(server(), FastOpen::No, 0);
    assert!(at_once(first.queue_set, server()).is_some());
}

#[test]
fn a_refusal_that_comes_late_is_the_connections_error() {
    let (engine, first, ids) = asked_once(1);
    let c = at_once(first.queue_set, server()).expect("nothing to be asked");
    connect_entry(&engine);
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
    engine.post(first.queue_set, Completion::Connected { flow: ids[0], errno: Errno::ECONNREFUSED });
    assert_eq!(c.socket.take_error(), Errno::ECONNREFUSED);
    assert_eq!(engine.command().1, Command::Close { flow: ids[0], abort: false });
}

/// Found by a comparison with Linux, where a connection within the host is there when connect has returned.
#[test]
fn what_is_sent_right_after_connect_goes_out() {
    let (engine, first, ids) = asked_once(1);
    let c = at_once(first.queue_set, server()).expect("nothing to be asked");
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            connect_entry(&engine);
            engine.write_info(ids[0], "127.0.0.1:40002".parse().expect("an address"), server());
            engine.post(first.queue_set, Completion::Connected { flow: ids[0], errno: Errno::OK });
        });
        assert_eq!(c.send(b"at once"), Ok(7));
    });
    assert_eq!(engine.sent_bytes(), b"at once");
    assert_eq!(c.socket.peer_addr(), Ok(server()));
}

#[test]
fn its_own_address_is_known_once_the_engine_has_taken_it() {
    let (engine, first, ids) = asked_once(1);
    let c = at_once(first.queue_set, server()).expect("nothing to be asked");
    let local: SocketAddr = "127.0.0.1:40001".parse().expect("an address");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            connect_entry(&engine);
            engine.write_info(ids[0], local, server());
        });
        assert_eq!(c.socket.local_addr(), Ok(local), "the peer has not answered yet");
    });
    assert_eq!(c.ready(), 0);
}
