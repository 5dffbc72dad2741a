//! The control socket: every request, and what a host gets that does not speak the interface.

use super::fake_host::{Control, FakeHost};
use super::{daemon, daemon_with, settle};
use crate::anchors::identity_of;
use crate::daemon::Daemon;
use crate::outside::Stop;
use crate::policy::Credentials;
use crate::status::status_report;
use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fs::File;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use toe_abi::attach::{Message, Reply, ReportKind, Request, refusal_of_version};
use toe_abi::entry::Completion;
use toe_abi::errno::Errno;
use toe_abi::report::{SocketsReport, StatusReport};
use toe_base::{NetNs, SessionId};
use zerocopy::IntoBytes;

#[test]
fn a_host_gets_a_session_and_its_queue_sets() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    assert_eq!(host.layout.receive_len, 16 << 20);
    for index in 1..16 {
        let (reply, fds) = host.control.ask(&mut daemon, Request::AddQueueSet);
        assert_eq!((reply, fds.len()), (Reply::QueueSet { index }, 1));
    }
    assert_eq!(host.control.refusal(&mut daemon, Request::AddQueueSet), Errno::ENOBUFS);
    assert_eq!(host.control.refusal(&mut daemon, Request::Hello { room: 0 }), Errno::EALREADY);
    let status = daemon.whole_status();
    assert_eq!(status.sessions.len(), 1);
    assert_eq!(status.sessions[0].pid, std::process::id());
    drop(host);
    settle(&mut daemon);
    assert!(daemon.whole_status().sessions.is_empty());
    assert!(daemon.is_unused(), "nothing is left of it");
}

#[test]
fn session_requests_need_a_session() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    for request in [Request::AddQueueSet, Request::TakeAnchors { count: 1 }] {
        assert_eq!(control.refusal(&mut daemon, request), Errno::EINVAL);
    }
    // Without the descriptor that they are about, these mean nothing.
    for request in [Request::ShowTwin, Request::Claim { queue_set: 0, fd: 1 }] {
        assert_eq!(control.refusal(&mut daemon, request), Errno::EBADF);
    }
}

#[test]
fn another_version_is_refused_and_told_which_one_it_needs() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let message = Message { version: 0x7777, ..Request::Hello { room: 0 }.encode() };
    control.send(message.as_bytes(), &[]).expect("sent");
    settle(&mut daemon);
    let (packet, _) = control.receive().expect("an answer");
    assert_eq!(packet, refusal_of_version().as_bytes());
    assert!(control.is_closed());
}

#[test]
fn what_is_no_message_ends_the_connection() {
    let mut daemon = daemon();
    for packet in [vec![0], vec![0; 64], vec![0xff; 65], vec![1; 128]] {
        let control = Control::new(&mut daemon);
        control.send(&packet, &[]).expect("sent");
        settle(&mut daemon);
        assert!(control.is_closed(), "{packet:?}");
    }
    assert_eq!(daemon.hosts.counts.bad_messages, 4);
}

#[test]
fn an_unknown_request_is_refused_and_the_connection_goes_on() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let message = Message { kind: 0x77, ..Request::Hello { room: 0 }.encode() };
    control.send(message.as_bytes(), &[]).expect("sent");
    settle(&mut daemon);
    let (packet, _) = control.receive().expect("an answer");
    let reply = Message::parse(&packet).and_then(|m| Reply::decode(&m)).expect("a reply");
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EINVAL.0));
    assert!(matches!(control.ask(&mut daemon, Request::Hello { room: 0 }).0, Reply::Welcome { .. }));
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let (end, other) = std::io::pipe().expect("a pipe");
    let fds = [other.as_fd(); 8];
    control.ask_with(&mut daemon, Request::Hello { room: 0 }, &fds);
    drop(other);
    // Had the engine kept a copy, this would wait for ever.
    assert_eq!(std::io::read_to_string(end).expect("the end"), "");
}

#[test]
fn a_host_that_does_not_read_is_dropped() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let request = Request::AddQueueSet.encode();
    for _ in 0..100_000 {
        match control.send(request.as_bytes(), &[]) {
            Ok(_) => {}
            // There is no room for more until the engine has come to it.
            Err(rustix::io::Errno::AGAIN) => settle(&mut daemon),
            Err(_) => break,
        }
    }
    settle(&mut daemon);
    assert_eq!(daemon.hosts.counts.unread_answers, 1);
    assert!(control.is_closed());
}

#[test]
fn anchors_come_in_batches_and_are_used_again_once_closed() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    for count in [0, 33, u32::MAX] {
        assert_eq!(host.control.refusal(&mut daemon, Request::TakeAnchors { count }), Errno::EINVAL);
    }
    let (_listener, listening) = host.listen(&mut daemon, "127.0.0.1:7007".parse().expect("an address"));
    assert_eq!(daemon.anchors.len(), 32);
    let anchor = daemon.anchors.recognise(identity_of(&listening).expect("an object")).expect("known");
    let copy = listening.try_clone().expect("a copy");
    let freed = |c: &Completion| (*c == Completion::AnchorFree { anchor }).then_some(());
    drop(listening);
    settle(&mut daemon);
    assert_eq!(host.find(freed), None, "a copy is open");
    drop(copy);
    host.expect(&mut daemon, "free anchor", freed);
    let (_listener, listening) = host.listen(&mut daemon, "127.0.0.1:7007".parse().expect("an address"));
    drop((listening, host.open_anchor(anchor)));
    settle(&mut daemon);
    assert_eq!(host.find(freed), None, "opened and closed without use, it is as free as before");
}

#[test]
fn only_anchors_can_be_claimed() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let file = File::open("/proc/self/comm").expect("a file");
    let claim = Request::Claim { queue_set: 0, fd: 3 };
    let (reply, _) = host.control.ask_with(&mut daemon, claim, &[file.as_fd()]);
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::ENOENT.0), "{reply:?}");
    let claim = Request::Claim { queue_set: 9, fd: 3 };
    let (reply, _) = host.control.ask_with(&mut daemon, claim, &[file.as_fd()]);
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EINVAL.0), "{reply:?}");
}

#[test]
fn a_twin_must_be_a_tcp_socket() {
    let mut daemon = daemon();
    let host = FakeHost::attach(&mut daemon);
    let twin = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let (reply, _) = host.control.ask_with(&mut daemon, Request::ShowTwin, &[twin.as_fd()]);
    assert!(matches!(reply, Reply::Handle { .. }), "{reply:?}");
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let (reply, _) = host.control.ask_with(&mut daemon, Request::ShowTwin, &[udp.as_fd()]);
    assert!(matches!(reply, Reply::Refused { errno, .. } if errno == Errno::EINVAL.0), "{reply:?}");
}

#[test]
fn reports_come_in_sealed_memory_and_not_too_often() {
    let mut daemon = daemon_with("toed --name web");
    let control = Control::new(&mut daemon);
    let request = Request::Report { what: ReportKind::Status };
    let (reply, fds) = control.ask(&mut daemon, request);
    let Reply::Report { len } = reply else { panic!("{reply:?}") };
    let seals = rustix::fs::fcntl_get_seals(&fds[0]).expect("seals");
    assert!(seals.contains(SealFlags::WRITE | SealFlags::GROW) && !seals.contains(SealFlags::SHRINK));
    let mut text = vec![0; len as usize];
    File::from(fds.into_iter().next().expect("memory")).read_exact_at(&mut text, 0).expect("read");
    let status: StatusReport = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((status.name.as_str(), status.pid), ("web", std::process::id()));

    daemon.reports.not_before = daemon.timing.clock.now().after_us(1_000_000_000);
    let request = Request::Report { what: ReportKind::Sockets };
    assert_eq!(control.refusal(&mut daemon, request), Errno::EAGAIN);
    let sockets: SocketsReport = daemon.whole_sockets();
    assert!(sockets.sockets.is_empty());
}

#[test]
fn the_right_to_attach_is_handed_on() {
    let mut daemon = daemon();
    let (starter, other) = (Control::new(&mut daemon), Control::new(&mut daemon));
    settle(&mut daemon);
    daemon.pose(0, 0);
    daemon.pose(1, 33);
    let netns = daemon.hosts.policy.netns;
    let attaches = |daemon: &Daemon, uid: u32| {
        daemon.hosts.policy.may_attach(&Credentials { uid, netns, ..Credentials::default() }, Vec::new)
    };
    assert!(!attaches(&daemon, 33));
    assert_eq!(starter.ask(&mut daemon, Request::Admit { uid: 33 }).0, Reply::Done);
    assert!(attaches(&daemon, 33) && !attaches(&daemon, 34));
    // In a user namespace of its own the process has another number for him.
    let thing = rustix::fs::memfd_create("user", rustix::fs::MemfdFlags::CLOEXEC).expect("memory");
    rustix::fs::fchown(&thing, Some(rustix::fs::Uid::from_raw(100_032)), None).expect("root");
    let presented = [thing.as_fd()];
    assert_eq!(starter.ask_with(&mut daemon, Request::Admit { uid: 34 }, &presented).0, Reply::Done);
    assert!(attaches(&daemon, 100_032) && !attaches(&daemon, 34));
    for request in [Request::Admit { uid: 34 }, Request::Stop, Request::StopWhenUnused] {
        assert_eq!(other.refusal(&mut daemon, request), Errno::EPERM, "{request:?}");
    }
}

#[test]
fn root_of_another_network_namespace_stops_nothing() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    settle(&mut daemon);
    daemon.pose(0, 0);
    daemon.hosts.connections.get_mut(0).expect("the connection").who.netns = NetNs(1);
    for request in [Request::Stop, Request::StopWhenUnused] {
        assert_eq!(control.refusal(&mut daemon, request), Errno::EPERM, "{request:?}");
    }
    assert_eq!(daemon.outside.stop, Stop::No);
}

#[test]
fn a_report_shows_a_user_what_is_his() {
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    let mut root = FakeHost::attach(&mut daemon);
    let mut other = FakeHost::attach(&mut daemon);
    daemon.pose(0, 0);
    daemon.pose(1, 33);
    daemon.sessions.get_mut(SessionId(1)).expect("the first session").peer.uid = 0;
    daemon.sessions.get_mut(SessionId(2)).expect("the second session").peer.uid = 33;
    let _roots = root.listen(&mut daemon, "127.0.0.1:7".parse().expect("an address"));
    let _others = other.listen(&mut daemon, "127.0.0.1:8".parse().expect("an address"));
    let netns = daemon.hosts.policy.netns;
    let report = |uid: u32, netns: NetNs| {
        let who = Credentials { uid, netns, ..Credentials::default() };
        let view = daemon.view(&who);
        let status = status_report(&daemon, &view);
        let locals = daemon.sockets_report(&view).sockets.into_iter().map(|socket| socket.local);
        (status.sessions.iter().map(|s| s.uid).collect::<Vec<_>>(), locals.collect::<Vec<_>>())
    };
    let both = (vec![0, 33], vec!["127.0.0.1:7".to_owned(), "127.0.0.1:8".to_owned()]);
    assert_eq!(report(0, netns), both);
    assert_eq!(report(33, netns), (vec![33], vec!["127.0.0.1:8".to_owned()]));
    assert_eq!(report(34, netns), (vec![], vec![]));
    assert_eq!(report(0, NetNs(1)), (vec![], vec![]), "root of a container");
}

#[test]
fn an_unused_engine_ends_with_its_last_user() {
    let mut daemon = daemon();
    let mut host = FakeHost::attach(&mut daemon);
    let control = Control::new(&mut daemon);
    assert_eq!(control.ask(&mut daemon, Request::StopWhenUnused).0, Reply::Done);
    assert_eq!(daemon.outside.stop, Stop::WhenUnused);
    assert!(!daemon.is_unused(), "a session is left");
    let (_, end) = host.take_anchor(&mut daemon);
    drop(host);
    settle(&mut daemon);
    // An anchor that no flow uses goes with its session.
    assert!(daemon.is_unused());
    drop(end);
    daemon.run().expect("it ends at once");
}

/// A connection into which this was sent before the daemon knew of it.
fn newcomer_who_asked(daemon: &mut Daemon, requests: &[Request]) -> Control {
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair");
    let control = Control { socket: ours };
    for request in requests {
        control.send(request.encode().as_bytes(), &[]).expect("sent");
    }
    daemon.hosts.serve(theirs).expect("a connection");
    control
}

#[test]
fn a_session_is_asked_for_and_answered_as_its_connection_comes() {
    let mut daemon = daemon();
    let before = daemon.hosts.server.dealings();
    let control = newcomer_who_asked(&mut daemon, &[Request::Hello { room: 0 }]);
    assert!(matches!(control.answer_meanwhile(&mut daemon).0, Reply::Welcome { .. }));
    assert_eq!(
        daemon.hosts.server.dealings() - before,
        1,
        "one change of threads for the connection and its request"
    );
    assert_eq!(control.refusal(&mut daemon, Request::Hello { room: 0 }), Errno::EALREADY);
}

#[test]
fn what_a_newcomer_asks_is_answered_in_order() {
    let mut daemon = daemon();
    let (hello, anchors) = (Request::Hello { room: 0 }, Request::TakeAnchors { count: 1 });
    let asked = [hello, anchors, Request::AddQueueSet, hello];
    let control = newcomer_who_asked(&mut daemon, &asked);
    let mut answer = || control.answer_meanwhile(&mut daemon).0;
    assert!(matches!(answer(), Reply::Welcome { .. }));
    assert!(matches!(answer(), Reply::Anchors { count: 1, .. }));
    assert_eq!(answer(), Reply::QueueSet { index: 0 });
    assert!(matches!(answer(), Reply::Refused { errno, .. } if errno == Errno::EALREADY.0));
    // Nor does it have anything without a session, and its end is seen.
    let hasty = newcomer_who_asked(&mut daemon, &[Request::AddQueueSet, Request::ShowTwin]);
    for _ in 0..2 {
        assert!(matches!(hasty.answer_meanwhile(&mut daemon).0, Reply::Refused { .. }));
    }
    drop((control, hasty));
    settle(&mut daemon);
    assert!(daemon.is_unused());
}

#[test]
fn two_sessions_are_not_asked_for_at_once() {
    let mut daemon = daemon();
    let hello = Request::Hello { room: 0 };
    let control = newcomer_who_asked(&mut daemon, &[hello, hello]);
    assert!(matches!(control.answer_meanwhile(&mut daemon).0, Reply::Welcome { .. }));
    let (second, _) = control.answer_meanwhile(&mut daemon);
    assert!(matches!(second, Reply::Refused { errno, .. } if errno == Errno::EALREADY.0));
    settle(&mut daemon);
    assert_eq!(daemon.whole_status().sessions.len(), 1);
    assert_eq!(daemon.anchors.session_dirs(), 1, "the second's directory has gone again");
}
