//! UDP sockets that are given a lane: real sockets and memory, hosts by hand, some of which say what is not so.

use super::control_server::hold_up;
use super::fake_host::{Control, FakeHost};
use super::{daemon, daemon_with};
use crate::daemon::Daemon;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use toe_abi::attach::{Reply, Request, Way};
use toe_abi::errno::Errno;
use toe_abi::lane::RING_LEN_MIN;
use toe_base::Endpoint;
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};

fn udp() -> (UdpSocket, Endpoint) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let name = Endpoint::from(socket.local_addr().expect("its name"));
    (socket, name)
}

fn ask(
    host: &FakeHost,
    daemon: &mut Daemon,
    socket: impl AsFd,
    way: Way,
    peer: Endpoint,
) -> Result<Option<LaneMemory>, Errno> {
    let (reply, fds) = host.control.ask_with(daemon, Request::AskLane { way, peer }, &[socket.as_fd()]);
    match reply {
        Reply::Lane { ring_len } => Ok(Some(LaneMemory::map(&fds[0], ring_len).expect("a lane's memory"))),
        Reply::Done => Ok(None),
        Reply::Refused { errno, .. } => Err(Errno(errno)),
        other => panic!("{other:?}"),
    }
}

/// Two hosts whose sockets have a lane, from the client to the server.
struct Pair {
    daemon: Daemon,
    client: FakeHost,
    server: FakeHost,
    sender: LaneSender,
    receiver: LaneReceiver,
    sockets: [(UdpSocket, Endpoint); 2],
}

fn pair() -> Pair {
    let mut daemon = daemon();
    let (client, server) = (FakeHost::attach(&mut daemon), FakeHost::attach(&mut daemon));
    let (from, to) = (udp(), udp());
    assert!(ask(&client, &mut daemon, &from.0, Way::Sends, to.1).expect("a question").is_none());
    let receives = ask(&server, &mut daemon, &to.0, Way::Receives, from.1).expect("a question");
    let receiver = LaneReceiver::new(receives.expect("they have met"));
    let sends = ask(&client, &mut daemon, &from.0, Way::Sends, to.1).expect("a question");
    let sender = LaneSender::new(sends.expect("its end"));
    assert_eq!((daemon.engine.view().totals().lanes, daemon.lanes.len()), (1, 1));
    Pair { daemon, client, server, sender, receiver, sockets: [from, to] }
}

#[test]
fn two_sockets_that_have_met_share_memory() {
    let mut pair = pair();
    let Pair { receiver, sender, .. } = &mut pair;
    assert_eq!(sender.offer(0), Offer::Kernel);
    receiver.open();
    assert!(matches!(sender.offer(0), Offer::Lane { .. }) && sender.publish(0));
    receiver.confirm();
    assert!(receiver.first().is_some_and(|record| record.len == 0));
}

#[test]
fn a_lane_ends_with_either_session_and_with_the_engine() {
    for who in 0..3 {
        let Pair { mut daemon, client, server, mut sender, mut receiver, sockets: _sockets } = pair();
        receiver.open();
        assert!(sender.publish(0));
        match who {
            0 => drop(client),
            1 => drop(server),
            _ => {}
        }
        super::settle(&mut daemon);
        if who == 2 {
            drop(daemon);
        } else {
            assert_eq!((daemon.engine.view().totals().lanes, daemon.lanes.len()), (0, 0));
            daemon.engine.view().audit().expect("nobody is charged for it");
        }
        assert_eq!(sender.offer(0), Offer::Kernel);
        assert!(sender.is_over());
        receiver.confirm();
        assert!(receiver.first().is_some(), "what was sent is there");
    }
}

/// Two programs can punch holes in what they share, and who looks there waits for that.
#[test]
fn the_engine_leaves_a_lanes_end_to_its_users_thread() {
    let Pair { mut daemon, client, server: _server, mut sender, mut receiver, sockets: _sockets } = pair();
    receiver.open();
    let mut held_up = hold_up(&mut daemon, &client.control);
    for session in daemon.sessions.live().to_vec() {
        let now = daemon.timing.clock.now();
        let lanes = daemon.engine.view().lanes_of(session);
        lanes
            .into_iter()
            .for_each(|lane| daemon.lanes.end(now, &mut daemon.engine, &mut daemon.sessions, lane));
    }
    super::come_to_rest(&mut daemon);
    assert_eq!((daemon.engine.view().totals().lanes, daemon.lanes.len()), (0, 0));
    assert!(matches!(sender.offer(0), Offer::Lane { .. }), "not a word was written");
    held_up.release();
    super::until(&mut daemon, "its thread has ended the lane", || sender.offer(0) == Offer::Kernel);
    assert!(sender.is_over());
}

#[test]
fn a_closed_lane_makes_room_for_another() {
    let Pair { mut daemon, client, server, mut sender, sockets: [from, to], .. } = pair();
    sender.close();
    assert!(ask(&client, &mut daemon, &from.0, Way::Sends, to.1).expect("a question").is_none());
    super::settle(&mut daemon);
    assert_eq!((daemon.engine.view().totals().lanes, daemon.lanes.len()), (0, 0));
    let again = ask(&server, &mut daemon, &to.0, Way::Receives, from.1).expect("a question");
    assert!(again.is_some() && daemon.engine.view().totals().lanes == 1);
}

#[test]
fn who_shows_another_socket_than_he_says_gets_nothing() {
    let mut daemon = daemon();
    let (client, server) = (FakeHost::attach(&mut daemon), FakeHost::attach(&mut daemon));
    let (from, to) = (udp(), udp());
    assert!(ask(&client, &mut daemon, &from.0, Way::Sends, to.1).expect("a question").is_none());
    let refused = |daemon: &mut Daemon, socket: &dyn AsFd, peer| {
        assert_eq!(ask(&server, daemon, socket.as_fd(), Way::Receives, peer).err(), Some(Errno::EINVAL));
    };
    let tcp = TcpListener::bind("127.0.0.1:0").expect("a listener");
    refused(&mut daemon, &tcp, from.1);
    refused(&mut daemon, &std::fs::File::open("/dev/null").expect("a file"), from.1);
    let unbound = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None);
    refused(&mut daemon, &unbound.expect("a socket"), from.1);
    refused(&mut daemon, &to.0, Endpoint::new([10, 0, 0, 1], 53));
    // Its own name, and the port of the one that is sent to: of another socket.
    let (other, _) = udp();
    assert!(ask(&server, &mut daemon, &other, Way::Receives, from.1).expect("a question").is_none());
    other.connect(SocketAddr::from(([127, 0, 0, 1], 9))).expect("connected elsewhere");
    refused(&mut daemon, &other, from.1);
    rustix::net::sockopt::set_socket_reuseaddr(&to.0, true).expect("an option");
    refused(&mut daemon, &to.0, from.1);
    rustix::net::sockopt::set_socket_reuseaddr(&to.0, false).expect("an option");
    let (reply, _) = server.control.ask(&mut daemon, Request::AskLane { way: Way::Receives, peer: from.1 });
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EBADF.0), "{reply:?}");
    assert!(ask(&server, &mut daemon, &to.0, Way::Receives, from.1).expect("a question").is_some());
}

#[test]
fn another_user_meets_nobody() {
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    let client = FakeHost::attach(&mut daemon);
    let control = Control::of_user(&mut daemon, 12_345);
    let stranger = FakeHost::attach_by(&mut daemon, control);
    let (from, to) = (udp(), udp());
    assert!(ask(&client, &mut daemon, &from.0, Way::Sends, to.1).expect("a question").is_none());
    assert!(ask(&stranger, &mut daemon, &to.0, Way::Receives, from.1).expect("a question").is_none());
    assert_eq!(daemon.engine.view().totals().lanes, 0);
}

#[test]
fn an_engine_may_have_none() {
    let mut daemon = daemon_with("toed --receive-memory-mib 16 --send-memory-mib 16 --no-direct");
    let host = FakeHost::attach(&mut daemon);
    let (socket, name) = udp();
    let asked = ask(&host, &mut daemon, &socket, Way::Sends, name);
    assert_eq!(asked.err(), Some(Errno::EOPNOTSUPP));
}

#[test]
fn a_ring_has_room_for_what_the_receivers_queue_holds() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let (from, to) = (udp(), udp());
    rustix::net::sockopt::set_socket_recv_buffer_size(&to.0, 200_000).expect("a larger queue");
    assert!(ask(&host, &mut daemon, &from.0, Way::Sends, to.1).expect("a question").is_none());
    let lane = ask(&host, &mut daemon, &to.0, Way::Receives, from.1).expect("a question").expect("a lane");
    assert_eq!(lane.region().len(), u64::from(2 * RING_LEN_MIN) + 4096, "one process may have both ends");
}
