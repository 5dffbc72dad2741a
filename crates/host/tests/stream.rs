//! Connections against a fake engine: what the calls return, what poll shows, what goes into the rings.

mod fake;

use fake::{Connection, Engine, until};
use std::io::IoSliceMut;
use toe::socket::{FastOpen, RecvFlags, SendFlags, Shutdown};
use toe::{Stack, fd_release, fd_table};
use toe_abi::attach::Reply;
use toe_abi::entry::{Command, Completion, FlowOption, ReceiveCredit};
use toe_abi::errno::Errno;
use toe_abi::tcp_info::FlowDetail;

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;

fn so_error(c: &Connection) -> i32 {
    let mut out = [0; 4];
    assert_eq!(c.socket.get_option(libc::SOL_SOCKET, libc::SO_ERROR, &mut out), Ok(4));
    i32::from_ne_bytes(out)
}

#[test]
fn recv_gives_what_is_there_and_credits_it() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.recv(10), Err(Errno::EAGAIN));
    engine.data(c.queue_set, c.flow, b"hello ");
    engine.data(c.queue_set, c.flow, b"world");
    let peek = RecvFlags { peek: true, ..RecvFlags::default() };
    assert_eq!(c.recv_with(8, peek), Ok(b"hello wo".to_vec()));
    assert_eq!(c.socket.unread(), 11);
    assert_eq!(c.recv(4), Ok(b"hell".to_vec()));
    assert_eq!(c.recv(100), Ok(b"o world".to_vec()));
    assert_eq!(c.recv(1), Err(Errno::EAGAIN));
    let flow = c.flow;
    assert_eq!(engine.credits(), [ReceiveCredit { flow, len: 4 }, ReceiveCredit { flow, len: 7 }]);
}

#[test]
fn the_end_of_the_stream_comes_after_all_data() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.ready(), OUT);
    engine.data(c.queue_set, c.flow, b"last");
    assert_eq!(c.ready(), IN | OUT);
    engine.post(c.queue_set, Completion::PeerClosed { flow: c.flow });
    assert_eq!(c.ready(), IN | OUT | RDHUP);
    assert_eq!(c.recv(2), Ok(b"la".to_vec()));
    assert_eq!(c.recv(9), Ok(b"st".to_vec()));
    assert_eq!(c.recv(9), Ok(vec![]));
    assert_eq!(c.recv(9), Ok(vec![]));
    assert_eq!(c.send(b"x"), Ok(1), "the other direction is open");
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(c.ready(), IN | OUT | RDHUP | HUP);
    assert_eq!(c.send(b"x"), Err(Errno::EPIPE));
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(engine.try_command(0), None, "FIN is asked for once");
}

/// The engine answers what comes to it too late with a reset. Found by random calls beside the kernel: what one process had shut
/// down and not read was announced to the next one that claimed it, which reset the connection.
#[test]
fn what_the_engine_brings_after_both_directions_were_shut_came_to_it_before() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.socket.shutdown(Shutdown::Both), Ok(()));
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
    assert!(matches!(engine.command().1, Command::SetOption { .. }));
    engine.data(c.queue_set, c.flow, b"before");
    assert_eq!(c.ready(), IN | OUT | HUP | RDHUP);
    assert_eq!(c.recv(9), Ok(b"before".to_vec()));
    assert_eq!(c.recv(9), Ok(vec![]));
    assert_eq!(engine.try_command(0), None, "no reset");
}

#[test]
fn a_reset_is_told_once_after_the_data() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.data(c.queue_set, c.flow, b"data");
    engine.post(c.queue_set, Completion::Reset { flow: c.flow, errno: Errno::ECONNRESET });
    assert_eq!(c.ready(), IN | OUT | ERR | HUP | RDHUP);
    assert_eq!(c.recv(9), Ok(b"data".to_vec()));
    assert_eq!(c.recv(9), Err(Errno::ECONNRESET));
    assert_eq!(c.recv(9), Ok(vec![]));
    assert_eq!(c.ready(), IN | OUT | HUP | RDHUP);
    assert_eq!(c.send(b"x"), Err(Errno::EPIPE));
    assert_eq!(c.socket.peer_addr(), Err(Errno::ENOTCONN));
    assert_eq!(c.socket.shutdown(Shutdown::Both), Err(Errno::ENOTCONN));
}

#[test]
fn a_reset_is_told_to_send_or_so_error_instead() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.post(c.queue_set, Completion::Reset { flow: c.flow, errno: Errno::ETIMEDOUT });
    assert_eq!(c.send(b"x"), Err(Errno::ETIMEDOUT));
    assert_eq!(c.send(b"x"), Err(Errno::EPIPE));
    let d = engine.connected();
    engine.post(d.queue_set, Completion::PeerClosed { flow: d.flow });
    engine.post(d.queue_set, Completion::Reset { flow: d.flow, errno: Errno::ECONNRESET });
    assert_eq!(d.recv(1), Ok(vec![]), "after the peer's FIN the end of the stream wins");
    assert_eq!(d.socket.take_error(), Errno::EPIPE);
    assert_eq!(d.socket.take_error(), Errno::OK);
}

#[test]
fn bytes_go_out_in_order_and_their_memory_comes_back() {
    let engine = Engine::attached();
    let c = engine.connected();
    let all: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(c.send(&all), Ok(all.len()));
    assert_eq!(engine.sent_bytes(), all);
    assert_eq!(c.socket.unsent(), all.len());
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: 150_000 });
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: 50_000 });
    assert_eq!(c.socket.unsent(), 0);
}

/// MSG_EOR.
#[test]
fn a_record_ends_with_the_last_byte_of_what_is_taken_whole() {
    let engine = Engine::attached();
    let c = engine.connected();
    let ends = SendFlags { end_of_record: true, ..SendFlags::default() };
    assert_eq!(c.send_with(&vec![1; 200_000], ends), Ok(200_000));
    let marks: Vec<bool> = engine.sends().iter().map(|send| send.end_of_record).collect();
    let (last, others) = marks.split_last().expect("some entries");
    assert!(*last && !others.is_empty() && !others.contains(&true), "{marks:?}");
    let room = c.send_with(&vec![2; 4 << 20], ends).expect("room");
    assert!(room < 4 << 20);
    assert!(engine.sends().iter().all(|send| !send.end_of_record), "the record goes on");
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: 200_000 + room as u32 });
    assert_eq!(c.send(b"x"), Ok(1));
    assert_eq!(c.send_with(b"y", ends), Ok(1));
    let marks: Vec<bool> = engine.sends().iter().map(|send| send.end_of_record).collect();
    assert_eq!(marks, [false, true]);
}

#[test]
fn a_full_socket_takes_no_more_until_a_third_is_free() {
    let engine = Engine::attached();
    let c = engine.connected();
    // Fixed, so that it does not grow: 2 x 16 KiB, as Linux would.
    let size = (16i32 << 10).to_ne_bytes();
    assert_eq!(c.socket.set_option(libc::SOL_SOCKET, libc::SO_SNDBUF, &size), Ok(()));
    let limit = 32 << 10;
    assert_eq!(c.send(&vec![1; limit + 5]), Ok(limit));
    assert_eq!(c.send(b"x"), Err(Errno::EAGAIN));
    assert_eq!(c.ready(), 0);
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: 1000 });
    assert_eq!(c.ready(), 0);
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: limit as u32 / 3 - 500 });
    assert_eq!(c.ready(), OUT);
    assert!(c.send(b"x").is_ok());
}

/// Whatever the size of the writes, the rings and what has been acknowledged of them. All that was taken comes back in the end.
#[test]
fn a_socket_that_is_writable_takes_something() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut seed = 7u32;
    let mut random = |most: u32| {
        seed = seed.wrapping_mul(1_103_515_245).wrapping_add(12345);
        1 + (seed >> 8) % most
    };
    for size in [100, 1000, 4096, 16_384, 65_536, 300_000] {
        let (block, mut unacked, mut waits) = (vec![1; size], 0, 0);
        for _ in 0..300 {
            while c.ready() & OUT != 0 {
                let taken = c.send(&block).unwrap_or_else(|errno| panic!("{size} {unacked}: {errno:?}"));
                unacked += taken as u32;
                engine.sends();
            }
            assert!(unacked > 0, "with nothing outstanding it is writable");
            waits += 1;
            let len = random(unacked.min(40_000));
            engine.post(c.queue_set, Completion::Sent { flow: c.flow, len });
            unacked -= len;
        }
        assert_eq!(waits, 300);
        engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: unacked });
        assert_eq!((c.ready(), c.socket.unsent()), (OUT, 0));
    }
}

/// An engine that takes nothing out of its ring.
#[test]
fn small_writes_fill_the_engines_ring_and_go_on_when_it_has_made_room() {
    let engine = Engine::attached();
    let c = engine.connected();
    for _ in 0..3 {
        let mut writes = 0;
        while c.ready() & OUT != 0 {
            assert_eq!(c.send(b"x"), Ok(1), "it was writable, after {writes}");
            writes += 1;
        }
        assert!(writes > 800, "{writes}");
        assert_eq!(c.ready(), 0);
        assert_eq!(engine.sends().len(), writes);
    }
}

/// As long as memory is plenty, whether its peer acknowledges anything or not.
#[test]
fn a_socket_takes_more_than_it_began_with() {
    let engine = Engine::attached();
    let c = engine.connected();
    let bytes = vec![7; 4 << 20];
    let first = c.send(&bytes).expect("room");
    assert!(first > 1 << 20, "{first}");
    engine.post(c.queue_set, Completion::Sent { flow: c.flow, len: first as u32 });
    let second = c.send(&bytes).expect("room");
    assert!(second >= first, "{second}");
    assert_eq!(engine.sent_bytes().len(), first + second);
}

#[test]
fn a_connect_goes_through_its_answers() {
    let engine = Engine::attached();
    let c = engine.connecting();
    assert_eq!(c.ready(), 0);
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EALREADY));
    assert_eq!(c.recv(1), Err(Errno::EAGAIN));
    assert_eq!(c.send(b"x"), Err(Errno::EAGAIN));
    assert_eq!(c.socket.peer_addr(), Err(Errno::ENOTCONN));
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::OK });
    assert_eq!(c.ready(), OUT);
    assert_eq!(c.socket.take_error(), Errno::OK);
    assert_eq!(c.socket.wait_connected(true), Ok(()));
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EISCONN));
    assert_eq!(c.socket.peer_addr().map(|addr| addr.to_string()), Ok("10.0.0.2:80".to_string()));
    assert_eq!(c.socket.local_addr().map(|addr| addr.to_string()), Ok("10.0.0.1:40000".to_string()));
}

#[test]
fn a_connect_that_waits_for_bytes_is_done_at_once() {
    let engine = Engine::attached();
    let c = engine.connecting_by(FastOpen::Option, 50);
    assert_eq!(c.socket.wait_connected(true), Ok(()));
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EISCONN));
    assert_eq!((c.ready(), c.recv(1)), (OUT, Err(Errno::EAGAIN)));
    assert_eq!(c.socket.fast_open_error(), None);
    assert_eq!(c.send(&[7; 80]), Ok(50), "what fits the SYN");
    assert_eq!(engine.sent_bytes(), [7; 50]);
    assert_eq!((c.ready(), c.send(b"x")), (0, Err(Errno::EAGAIN)));
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EALREADY));
    assert_eq!(c.socket.fast_open_error(), Some(Errno::EALREADY));
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::OK });
    assert_eq!((c.ready(), c.send(b"x")), (OUT, Ok(1)));
    assert_eq!(c.socket.fast_open_error(), Some(Errno::EISCONN));
}

#[test]
fn bytes_that_come_with_the_connect_do_not_make_it_done() {
    let engine = Engine::attached();
    let c = engine.connecting_by(FastOpen::Message, 50);
    assert!(c.socket.waits_for_bytes());
    assert_eq!(c.send(&[7; 20]), Ok(20));
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EALREADY));
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::ECONNREFUSED });
    assert_eq!(c.socket.wait_connected(true), Err(Errno::ECONNREFUSED));
    assert_eq!(engine.command().1, Command::Close { flow: c.flow, abort: false });
    drop(c);
    let c = engine.connecting_by(FastOpen::Message, 0);
    assert_eq!((c.socket.waits_for_bytes(), c.ready()), (false, 0), "without a cookie it is as any other");
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
}

#[test]
fn tcp_info_is_what_the_engine_says_when_it_is_asked() {
    let engine = Engine::attached();
    let c = engine.connected();
    let ask = |name: i32, out: &mut [u8]| {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (queue_set, command, _) = engine.command();
                let Command::Inspect { flow, token } = command else { panic!("{command:?} is no Inspect") };
                assert_eq!(flow, c.flow);
                let detail = FlowDetail {
                    state: 4,
                    rtt: 0x0102_0304,
                    cc_len: 16,
                    cc: [5; 5],
                    received_ce: 9,
                    ..FlowDetail::default()
                };
                engine.write_detail(flow, &detail);
                let command = command.kind();
                let result = Completion::CommandResult { token, command, errno: Errno::OK, id: flow.raw() };
                engine.post(queue_set, result);
            });
            c.socket.get_option(libc::IPPROTO_TCP, name, out)
        })
    };
    let mut info = [0xee; 512];
    assert_eq!(ask(libc::TCP_INFO, &mut info), Ok(280), "the whole of struct tcp_info");
    assert_eq!((info[0], &info[68..72], info[248]), (4, &0x0102_0304u32.to_ne_bytes()[..], 9));
    assert_eq!(ask(libc::TCP_INFO, &mut info[..5]), Ok(5), "cut, as Linux does");
    assert_eq!(ask(libc::TCP_CC_INFO, &mut info), Ok(16), "what the algorithm fills");
    assert!(info[..16].iter().step_by(4).all(|byte| *byte == 5));
}

#[test]
fn tcp_info_of_a_connection_that_the_engine_does_not_know_is_that_of_a_closed_one() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut info = [0xee; 512];
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (queue_set, command, _) = engine.command();
            let Command::Inspect { token, .. } = command else { panic!("{command:?} is no Inspect") };
            let command = command.kind();
            let result = Completion::CommandResult { token, command, errno: Errno::ENOTCONN, id: 0 };
            engine.post(queue_set, result);
        });
        assert_eq!(c.socket.get_option(libc::IPPROTO_TCP, libc::TCP_INFO, &mut info), Ok(280));
    });
    assert_eq!(info[0], 7, "TCP_CLOSE");
    assert_eq!(
        c.socket.peer_addr(),
        Ok("10.0.0.2:80".parse().expect("an address")),
        "nothing else has happened"
    );
}

#[test]
fn a_soft_error_that_was_asked_for_is_told_once_and_ends_nothing() {
    let engine = Engine::attached();
    let c = engine.connected();
    let soft = |errno| engine.post(c.queue_set, Completion::SoftError { flow: c.flow, errno });
    soft(Errno::EHOSTUNREACH);
    assert_eq!(c.ready(), OUT | ERR);
    assert_eq!(c.recv(1), Err(Errno::EHOSTUNREACH));
    assert_eq!((c.ready(), c.recv(1)), (OUT, Err(Errno::EAGAIN)));
    soft(Errno::ENETUNREACH);
    soft(Errno::EPROTO);
    assert_eq!(c.send(b"x"), Err(Errno::EPROTO), "the last one");
    assert_eq!((c.ready(), c.send(b"x")), (OUT, Ok(1)));
    soft(Errno::ETIMEDOUT);
    assert_eq!(so_error(&c), i32::from(Errno::ETIMEDOUT.0));
    assert_eq!((c.ready(), so_error(&c)), (OUT, 0));
}

/// TCP_NOTSENT_LOWAT: a call takes some while less than that waits; to be woken for it takes half.
#[test]
fn a_program_is_not_asked_for_more_than_it_wants_to_wait() {
    let engine = Engine::attached();
    let c = engine.connected();
    let set = |bytes: i32| {
        let value = bytes.to_ne_bytes();
        c.socket.set_option(libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, &value).expect("an option")
    };
    let went_out = |len| engine.post(c.queue_set, Completion::WentOut { flow: c.flow, len });
    set(1000);
    assert_eq!(c.ready(), OUT);
    assert_eq!((c.send(&[1; 400]), c.ready()), (Ok(400), OUT));
    assert_eq!((c.send(&[1; 200]), c.ready()), (Ok(200), 0));
    assert_eq!(c.send(&[1; 900]), Ok(900), "what one call gives goes in one piece");
    assert_eq!((c.send(b"x"), c.ready()), (Err(Errno::EAGAIN), 0));
    went_out(1000);
    assert_eq!(c.ready(), 0, "half of it waits");
    went_out(1);
    assert_eq!(c.ready(), OUT);
    assert_eq!((c.send(&[1; 501]), c.send(b"x")), (Ok(501), Err(Errno::EAGAIN)));
    set(0);
    assert_eq!((c.ready(), c.send(b"x")), (OUT, Ok(1)));
}

/// A program's buffers are looked after a part at a time, and a call takes all that is there all the same.
#[test]
fn a_call_takes_what_is_there_however_much_it_is_and_however_its_buffers_lie() {
    let engine = Engine::attached();
    let c = engine.connected();
    let bytes: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
    for part in bytes.chunks(60_000) {
        engine.data(c.queue_set, c.flow, part);
    }
    let peek = RecvFlags { peek: true, ..RecvFlags::default() };
    assert_eq!(c.recv_with(1 << 20, peek), Ok(bytes.clone()));
    let (mut memory, mut at) = (vec![0; 8 << 10], 0);
    let mut parts: Vec<_> = memory.chunks_mut(60).map(IoSliceMut::new).collect();
    assert_eq!(c.socket.recv(&mut parts, RecvFlags::default()), Ok(8 << 10));
    at += memory.len();
    assert_eq!(memory, bytes[..at]);
    assert_eq!(c.recv(1 << 20), Ok(bytes[at..].to_vec()));
    assert_eq!(c.recv(1), Err(Errno::EAGAIN));
}

/// A command may reach the engine after bytes that were given to it later: an answer's head then went out alone, and the rest of it
/// when the peer had acknowledged that.
#[test]
fn that_more_follows_what_is_corked_goes_with_the_bytes() {
    let engine = Engine::attached();
    let c = engine.connected();
    let cork = |value: i32| c.socket.set_option(libc::IPPROTO_TCP, libc::TCP_CORK, &value.to_ne_bytes());
    let more = || engine.sends().into_iter().map(|send| send.more).collect::<Vec<_>>();
    assert_eq!((cork(1), c.send(b"head"), c.send(b"body")), (Ok(()), Ok(4), Ok(4)));
    let corks = |value| Command::SetOption { flow: c.flow, option: FlowOption::Cork, value };
    assert_eq!((more(), engine.command().1), (vec![true, true], corks(1)));
    assert_eq!((cork(0), c.send(b"x")), (Ok(()), Ok(1)));
    assert_eq!((more(), engine.command().1), (vec![false], corks(0)));
}

#[test]
fn bytes_that_came_are_read_before_a_soft_error() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.data(c.queue_set, c.flow, b"abc");
    engine.post(c.queue_set, Completion::SoftError { flow: c.flow, errno: Errno::EHOSTUNREACH });
    assert_eq!(c.ready(), IN | OUT | ERR);
    assert_eq!(c.recv(10), Ok(b"abc".to_vec()));
    assert_eq!(c.recv(10), Err(Errno::EHOSTUNREACH));
    assert_eq!(c.recv(10), Err(Errno::EAGAIN));
}

#[test]
fn a_soft_error_that_is_only_noted_is_told_by_so_error_alone_and_once() {
    let engine = Engine::attached();
    let c = engine.connected();
    let note = |errno: Errno, count| {
        engine.change_info(c.flow, |info| {
            (info.soft_error, info.soft_errors) = (errno.0 as u8, count);
        });
    };
    note(Errno::EHOSTUNREACH, 1);
    assert_eq!((c.ready(), c.recv(1), c.send(b"x")), (OUT, Err(Errno::EAGAIN), Ok(1)));
    assert_eq!((so_error(&c), so_error(&c)), (i32::from(Errno::EHOSTUNREACH.0), 0));
    note(Errno::EHOSTUNREACH, 2);
    assert_eq!((so_error(&c), so_error(&c)), (i32::from(Errno::EHOSTUNREACH.0), 0), "a second one");
    note(Errno::OK, 3);
    assert_eq!(so_error(&c), 0, "overcome before it was asked for");
}

#[test]
fn the_engine_is_told_of_the_option_of_the_connection_s_own_ip() {
    let engine = Engine::attached();
    let c = engine.connected();
    let set = |level, name, value: i32| c.socket.set_option(level, name, &value.to_ne_bytes());
    let get = |level, name| {
        let mut out = [0; 4];
        assert_eq!(c.socket.get_option(level, name, &mut out), Ok(4));
        i32::from_ne_bytes(out)
    };
    assert_eq!(get(libc::IPPROTO_IP, libc::IP_RECVERR), 0);
    for (value, told) in [(7, 1), (2, 2), (0, 0)] {
        assert_eq!(set(libc::IPPROTO_IP, libc::IP_RECVERR, value), Ok(()));
        let option = FlowOption::SoftErrors;
        assert_eq!(engine.command().1, Command::SetOption { flow: c.flow, option, value: told });
        assert_eq!(get(libc::IPPROTO_IP, libc::IP_RECVERR), i32::from(told > 0), "a bit of Linux's");
    }
    assert_eq!(set(libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1), Ok(()));
    assert_eq!(get(libc::IPPROTO_IPV6, libc::IPV6_RECVERR), 1);
    assert_eq!(engine.try_command(0), None, "the connection is of IPv4");
}

#[test]
fn a_refused_connect_shows_everywhere_and_is_closed() {
    let engine = Engine::attached();
    let c = engine.connecting();
    assert_eq!(c.socket.wait_connected(true), Err(Errno::EINPROGRESS));
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::ECONNREFUSED });
    assert_eq!(c.ready(), IN | OUT | ERR | HUP | RDHUP);
    assert_eq!(engine.command().1, Command::Close { flow: c.flow, abort: false });
    assert_eq!(c.socket.take_error(), Errno::ECONNREFUSED);
    assert_eq!(c.socket.wait_connected(true), Err(Errno::ECONNABORTED));
    c.close();
    assert_eq!(engine.try_command(0), None, "closed once");
}

#[test]
fn a_shutdown_ends_an_attempt_and_is_kept_once_both_syns_have_crossed() {
    const SYN_SENT: u8 = 2;
    const SYN_RECV: u8 = 3;
    let engine = Engine::attached();
    let c = engine.connecting();
    engine.change_info(c.flow, |info| info.state = SYN_SENT);
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(engine.command().1, Command::Disconnect { flow: c.flow });
    drop(c);
    let c = engine.connecting();
    engine.change_info(c.flow, |info| info.state = SYN_RECV);
    assert_eq!(c.socket.shutdown(Shutdown::Write), Ok(()));
    assert_eq!(engine.command().1, Command::ShutdownSend { flow: c.flow });
    engine.post(c.queue_set, Completion::Connected { flow: c.flow, errno: Errno::OK });
    assert_eq!((c.socket.take_error(), c.recv(1)), (Errno::OK, Err(Errno::EAGAIN)));
    assert_eq!(c.send(b"x"), Err(Errno::EPIPE));
}

#[test]
fn closing_keeps_unacknowledged_bytes() {
    let engine = Engine::attached();
    let c = engine.connected();
    assert_eq!(c.send(&[9; 5000]), Ok(5000));
    let (flow, queue_set) = (c.flow, c.queue_set);
    c.close();
    engine.expect_ended();
    // Other sockets do not get the memory that is still to be read.
    let d = engine.connected();
    assert_eq!(d.send(&[1; 20_000]), Ok(20_000));
    let (held, new): (Vec<_>, Vec<_>) = engine.sends().into_iter().partition(|send| send.flow == flow);
    assert!(held.iter().all(|send| engine.read(send.data).iter().all(|byte| *byte == 9)));
    assert!(new.iter().all(|send| engine.read(send.data).iter().all(|byte| *byte == 1)));
    engine.post(queue_set, Completion::Sent { flow, len: 5000 });
    assert_eq!(d.recv(1), Err(Errno::EAGAIN));
}

#[test]
fn copies_of_a_descriptor_are_one_socket() {
    let engine = Engine::attached();
    let c = engine.connected();
    let copy = toe::sys::dup_lowest(toe::sys::borrow(c.fd), true).expect("a descriptor");
    fd_table::duplicate(c.fd, copy);
    assert!(std::ptr::eq(fd_table::get(copy).expect("a socket"), c.socket));
    assert_eq!(fd_release::remove(copy), fd_release::Removed::Socket);
    let _ = toe::sys::close(copy);
    assert_eq!(engine.open_anchors().len(), 1, "the other descriptor holds it");
    c.close();
    engine.expect_ended();
}

#[test]
fn linger_with_no_time_aborts() {
    let engine = Engine::attached();
    let c = engine.connected();
    let mut linger = [0; 8];
    linger[0] = 1;
    assert_eq!(c.socket.set_option(libc::SOL_SOCKET, libc::SO_LINGER, &linger), Ok(()));
    let flow = c.flow;
    let option = FlowOption::AbortAtClose;
    assert_eq!(engine.command().1, Command::SetOption { flow, option, value: 1 });
    c.close();
    assert_eq!(engine.command().1, Command::Close { flow, abort: true });
    engine.expect_closed();
}

#[test]
fn an_engine_that_dies_resets_everything_and_wakes_everybody() {
    let engine = Engine::attached();
    let blocked = engine.connected();
    blocked.socket.set_nonblocking(false);
    let polled = engine.connected();
    engine.data(polled.queue_set, polled.flow, b"kept");
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| blocked.recv(1));
        engine.kill();
        assert_eq!(reader.join().expect("no panic"), Err(Errno::ECONNRESET));
    });
    until(|| (polled.ready() & HUP != 0).then_some(()));
    assert_eq!(polled.ready(), IN | OUT | ERR | HUP | RDHUP);
    assert_eq!(polled.recv(10), Ok(b"kept".to_vec()));
    assert_eq!(polled.recv(10), Err(Errno::ECONNRESET));
    assert_eq!(polled.send(b"x"), Err(Errno::EPIPE));
    assert!(Stack::get(toe::stack::EngineIdx::FIRST).is_none(), "no engine, no stack");
    let anchor_less = Stack::attach(toe::stack::EngineIdx::FIRST);
    assert_eq!(anchor_less.map(|_| ()), Err(Errno::ECONNREFUSED));
}

#[test]
fn a_program_that_never_parks_finds_out_too() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.kill();
    let end = until(|| match c.recv(1) {
        Err(Errno::EAGAIN) => None,
        other => Some(other),
    });
    assert_eq!(end, Err(Errno::ECONNRESET));
}

#[test]
fn a_new_engine_is_found() {
    let first = Engine::attached();
    first.kill();
    let old = Stack::attached(toe::stack::EngineIdx::FIRST).expect("not yet noticed");
    until(|| {
        old.queue_sets().for_each(toe::queue::QueueSet::look);
        (!old.session.alive()).then_some(())
    });
    drop(first);
    let second = Engine::start();
    let stack = until(|| Stack::get(toe::stack::EngineIdx::FIRST));
    assert!(stack.session.alive());
    assert!(second.connected().send(b"x").is_ok());
}

#[test]
fn commands_beyond_the_ring_are_kept_in_order() {
    let engine = Engine::attached();
    let c = engine.connected();
    for n in 0..600u32 {
        let on = n.to_ne_bytes();
        assert_eq!(c.socket.set_option(libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, &on), Ok(()));
    }
    for n in 0..600u32 {
        let command = until(|| {
            let _ = c.recv(1);
            engine.try_command(0)
        });
        assert!(matches!(command.1, Command::SetOption { value, .. } if value == n), "{command:?}");
    }
}

#[test]
fn a_sleeping_engine_is_woken_for_what_matters() {
    let engine = Engine::attached();
    let c = engine.connected();
    engine.sleep();
    assert!(!engine.was_rung());
    assert_eq!(c.send(b"x"), Ok(1));
    assert!(engine.was_rung());
    engine.data(c.queue_set, c.flow, &[0; 60_000]);
    assert_eq!(c.recv(100).map(|bytes| bytes.len()), Ok(100));
    assert!(!engine.was_rung(), "little credit can wait");
    assert_eq!(c.recv(40_000).map(|bytes| bytes.len()), Ok(40_000));
    assert!(engine.was_rung());
    let small = 2000i32.to_ne_bytes();
    assert_eq!(c.socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, &small), Ok(()));
    assert!(engine.was_rung());
    assert_eq!(c.recv(2000).map(|bytes| bytes.len()), Ok(2000));
    assert!(engine.was_rung(), "of a small window it is much");
}

#[test]
fn a_socket_that_another_process_took_is_closed_in_silence() {
    let engine = Engine::attached();
    let c = engine.connected();
    let (flow, queue_set) = (c.flow, c.queue_set);
    engine.post(queue_set, Completion::Moved { flow });
    assert_eq!(c.ready(), 0);
    c.close();
    assert_eq!(engine.try_command(0), None);
    // Its place may be used again; what is said of the old flow does not reach the new socket.
    let d = engine.connected();
    engine.post(queue_set, Completion::Reset { flow, errno: Errno::ECONNRESET });
    assert_eq!(d.ready(), OUT);
}

/// Another process has it for now, or the memory that it would need is on its way back to the system.
#[test]
fn a_claim_that_cannot_be_now_is_tried_again() {
    let engine = Engine::attached();
    let c = engine.connected();
    let not_now = || Reply::Refused { errno: Errno::EAGAIN.0, version: 0 };
    let (flow, anchor) = (engine.new_flow(), 0);
    engine.write_info(flow, "10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let claimed = Reply::ClaimedFlow { flow: flow.raw(), anchor, read: 0, written: 0 };
    engine.answer_claims_with(vec![not_now(), not_now(), claimed]);
    engine.post(c.queue_set, Completion::Moved { flow: c.flow });
    c.ready();
    assert!(c.socket.is_moved());
    c.ready();
    assert!(!c.socket.is_moved());
    engine.data(c.queue_set, flow, b"mine again");
    assert_eq!(c.recv(99), Ok(b"mine again".to_vec()));
}
