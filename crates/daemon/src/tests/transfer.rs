//! Data through the whole daemon: rings, engine, local port, anchors.

use super::fake_host::{Control, FakeHost};
use super::{daemon, daemon_with, settle};
use crate::daemon::Daemon;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use toe_abi::attach::{Reply, Request};
use toe_abi::entry::{Command, Completion};
use toe_base::FlowId;

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

/// Bytes in which every place is recognised.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn peer_closed(flow: FlowId) -> impl Fn(&Completion) -> Option<()> {
    move |c| matches!(*c, Completion::PeerClosed { flow: f } if f == flow).then_some(())
}

fn is_idle(daemon: &Daemon) -> bool {
    let sockets = daemon.whole_sockets().sockets;
    let held = sockets.iter().filter(|s| s.state != "LISTEN" && !s.users.is_empty());
    daemon.whole_status().receive_memory_used == 0 && held.count() == 0
}

#[test]
fn two_processes_talk_over_the_local_port() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8080));
    let (flow, client_end) = client.connect(&mut daemon, loopback(8080));
    let (accepted, server_end) = server.accept(&mut daemon, listener);

    client.send(flow, b"hello, engine");
    settle(&mut daemon);
    assert_eq!(server.receive(accepted), b"hello, engine");
    let large = pattern(200_000);
    server.send(accepted, &large);
    let mut got = Vec::new();
    while got.len() < large.len() {
        settle(&mut daemon);
        let more = client.receive(flow);
        assert!(!more.is_empty(), "the transfer stands still at {}", got.len());
        got.extend(more);
    }
    let wrong = got.iter().zip(&large).position(|(a, b)| a != b);
    assert_eq!((wrong, got.len()), (None, large.len()));

    let sockets = daemon.whole_sockets().sockets;
    let held = sockets.iter().find(|s| s.users.iter().any(|u| u.fd == 7)).expect("the accepted one");
    assert_eq!(
        (held.state.as_str(), held.local.as_str(), held.device.as_str()),
        ("ESTAB", "127.0.0.1:8080", "local")
    );

    drop(client_end);
    server.expect(&mut daemon, "end of stream", peer_closed(accepted));
    drop(server_end);
    settle(&mut daemon);
    assert!(is_idle(&daemon), "{:?}", daemon.whole_sockets());
}

/// What a program does on one connection and then on another is met in that order, though it goes by two rings.
#[test]
fn commands_and_bytes_keep_their_order() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8084));
    let mut pairs = Vec::new();
    for _ in 0..3 {
        let (flow, end) = client.connect(&mut daemon, loopback(8084));
        let (accepted, accepted_end) = server.accept(&mut daemon, listener);
        pairs.push((flow, accepted, end, accepted_end));
    }
    settle(&mut daemon);
    client.push(Command::ShutdownSend { flow: pairs[0].0 });
    client.send(pairs[1].0, b"a request");
    client.push(Command::ShutdownSend { flow: pairs[2].0 });
    settle(&mut daemon);
    server.drain();
    let order: Vec<FlowId> = server
        .completions()
        .filter_map(|completion| match *completion {
            Completion::PeerClosed { flow } | Completion::Data { flow, .. } => Some(flow),
            _ => None,
        })
        .collect();
    assert_eq!(order, [pairs[0].1, pairs[1].1, pairs[2].1]);
}

#[test]
fn what_was_sent_before_the_process_ended_arrives() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (flow, end) = client.connect(&mut daemon, loopback(8081));
    let (accepted, _server_end) = server.accept(&mut daemon, listener);
    let words = pattern(5000);
    client.send(flow, &words);
    // The engine has seen nothing of that yet when the descriptor and the session go.
    drop(end);
    drop(client);
    settle(&mut daemon);
    assert!(server.receive(accepted) == words);
    server.expect(&mut daemon, "end of stream", peer_closed(accepted));
}

#[test]
fn the_last_copy_of_a_descriptor_ends_the_flow() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (_flow, end) = client.connect(&mut daemon, loopback(8081));
    let (accepted, _server_end) = server.accept(&mut daemon, listener);
    let copy = end.try_clone().expect("a copy");
    drop(end);
    settle(&mut daemon);
    assert!(server.find(peer_closed(accepted)).is_none(), "a copy is open");
    drop(copy);
    server.expect(&mut daemon, "end of stream", peer_closed(accepted));
}

#[test]
fn a_flow_moves_to_the_process_that_shows_it() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut parent = FakeHost::attach(&mut daemon);
    let mut child = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (flow, end) = parent.connect(&mut daemon, loopback(8081));
    let (accepted, _server_end) = server.accept(&mut daemon, listener);
    server.send(accepted, b"unread");
    settle(&mut daemon);
    // Published, not yet seen by the engine: it counts before the move.
    parent.send(flow, b"from the parent, ");

    let claim = Request::Claim { queue_set: 0, fd: 9 };
    let (reply, _) = child.control.ask_with(&mut daemon, claim, &[end.as_fd()]);
    let Reply::ClaimedFlow { flow: claimed, .. } = reply else { panic!("{reply:?}") };
    let claimed = FlowId::from_raw(claimed);
    parent.expect(&mut daemon, "notice", |c| {
        matches!(*c, Completion::Moved { flow: f } if f == flow).then_some(())
    });
    assert_eq!(child.receive(claimed), b"unread");
    child.send(claimed, b"from the child");
    settle(&mut daemon);
    assert_eq!(server.receive(accepted), b"from the parent, from the child");
}

#[test]
fn a_full_completion_queue_loses_nothing() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (flow, _end) = client.connect(&mut daemon, loopback(8081));
    let (accepted, _server_end) = server.accept(&mut daemon, listener);
    // The server reads without taking its own completions, so that `Sent` ones pile up at the client and `Data` ones
    // at the server; nothing is taken until the queues are as full as they get.
    let mut sent = 0usize;
    for _ in 0..20 {
        for _ in 0..256 {
            client.send(flow, &pattern(16)[..]);
            sent += 16;
        }
        settle(&mut daemon);
    }
    let mut got = 0;
    while got < sent {
        let more = server.receive(accepted).len();
        client.drain();
        settle(&mut daemon);
        assert!(more > 0, "the transfer stands still at {got} of {sent}");
        got += more;
    }
    assert_eq!(got, sent);
}

#[test]
fn sleepers_wake_each_other() {
    // Without looking in vain first, so that it sleeps between any two things that come.
    let mut daemon = daemon_with("toed --receive-memory-mib 16 --send-memory-mib 16 --spin-us 0");
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let control = Control::new(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (flow, _end) = client.connect(&mut daemon, loopback(8081));
    let (accepted, _server_end) = server.accept(&mut daemon, listener);
    // From here on the engine runs by itself and sleeps whenever it can, and so do both hosts.
    let engine = std::thread::spawn(move || {
        daemon.run().expect("runs");
        let parks = daemon.hosts.counts.parks;
        daemon.end().leave();
        parks
    });
    for round in 0..2000u32 {
        client.send(flow, &round.to_le_bytes());
        assert_eq!(wait_for(&mut server, accepted, 4), round.to_le_bytes());
        server.send(accepted, &round.to_be_bytes());
        assert_eq!(wait_for(&mut client, flow, 4), round.to_be_bytes());
    }
    control.send(zerocopy::IntoBytes::as_bytes(&Request::Stop.encode()), &[]).expect("sent");
    let parks = engine.join().expect("the engine ends when told");
    assert!(parks > 0, "it slept");
    assert!(control.is_closed() || control.is_closed());
}

/// Waits, as a host does, until `len` bytes have come.
fn wait_for(host: &mut FakeHost, flow: FlowId, len: usize) -> Vec<u8> {
    let mut got = Vec::new();
    loop {
        got.extend(host.receive(flow));
        if got.len() >= len {
            return got;
        }
        host.queue.irq().arm();
        if host.queue.has_completion() {
            continue;
        }
        let mut fds = [
            PollFd::new(host.queue.irq().receiver(), PollFlags::IN),
            PollFd::from_borrowed_fd(host.control_fd(), PollFlags::IN),
        ];
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert!(rustix::event::poll(&mut fds, Some(&limit)).expect("poll") > 0, "nobody woke the host");
        assert!(fds[1].revents().is_empty(), "the engine closed the session");
        host.queue.irq().receiver().drain().expect("drained");
    }
}

#[test]
fn a_closed_flow_is_told_to_the_host_before_its_slot_is_used_again() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    for round in 0..200 {
        let (flow, end) = client.connect(&mut daemon, loopback(8081));
        let (accepted, server_end) = server.accept(&mut daemon, listener);
        client.send(flow, b"x");
        settle(&mut daemon);
        assert_eq!(server.receive(accepted), b"x", "round {round}");
        server.push(Command::Close { flow: accepted, abort: false });
        drop(server_end);
        client.expect(&mut daemon, "end of stream", peer_closed(flow));
        client.push(Command::Close { flow, abort: false });
        drop(end);
        settle(&mut daemon);
        server.push(Command::AcceptCredit { listener, count: 1 });
    }
    assert!(daemon.anchors.len() < 100, "closed anchors are used again");
}

#[test]
fn a_close_does_not_end_a_flow_of_which_somebody_holds_a_copy() {
    let mut daemon = daemon();
    let mut server = FakeHost::attach(&mut daemon);
    let mut client = FakeHost::attach(&mut daemon);
    let (listener, _listening) = server.listen(&mut daemon, loopback(8081));
    let (flow, _end) = client.connect(&mut daemon, loopback(8081));
    let (accepted, server_end) = server.accept(&mut daemon, listener);
    // As after a child of vfork took the descriptor along: the host knows of no copy.
    let copy = server_end.try_clone().expect("a copy");
    drop(server_end);
    server.push(Command::Close { flow: accepted, abort: false });
    settle(&mut daemon);
    client.drain();
    assert!(!client.completions.iter().any(|c| peer_closed(flow)(c).is_some()), "still open");
    drop(copy);
    client.expect(&mut daemon, "end of stream", peer_closed(flow));
}
