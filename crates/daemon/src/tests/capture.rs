//! Captures: who may have one, what makes no sense, and a client that does not read.

use super::fake_host::Control;
use super::{daemon, daemon_with, settle};
use crate::capture::End;
use crate::daemon::Daemon;
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use toe_abi::attach::{Reply, Request};
use toe_abi::capture::{Direction, Facts, Program, Record, RecordKind, SNAPLEN_MAX};
use toe_abi::errno::Errno;
use toe_base::Cred;
use toe_engine::Sighting;
use zerocopy::FromBytes;

const EVERYTHING: Request = Request::Capture { snaplen: SNAPLEN_MAX, interface: None, filter_len: 0 };

fn text(text: &str) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("filter", flags).expect("memory");
    let mut file = File::from(memory);
    file.write_all(text.as_bytes()).expect("room");
    file.into()
}

fn capture(daemon: &mut Daemon, control: &Control, filter: &str) -> Result<File, Errno> {
    let (presented, filter_len) = (text(filter), filter.len() as u32);
    let request = Request::Capture { snaplen: SNAPLEN_MAX, interface: None, filter_len };
    match control.ask_with(daemon, request, &[presented.as_fd()]) {
        (Reply::Capture, mut fds) => Ok(File::from(fds.pop().expect("the stream"))),
        (Reply::Refused { errno, .. }, _) => Err(Errno(errno)),
        (reply, _) => panic!("{reply:?}"),
    }
}

/// The records of a stream that has ended.
fn records(stream: &mut File) -> Vec<Record> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the stream ends");
    let (mut rest, mut records) = (bytes.as_slice(), Vec::new());
    while !rest.is_empty() {
        let (record, behind) = Record::read_from_prefix(rest).expect("a whole record");
        record.kind().expect("a good record");
        rest = &behind[record.captured_len as usize..];
        records.push(record);
    }
    records
}

fn sighting(ports: (u16, u16)) -> Sighting {
    let facts = Facts { ethertype: 0x0800, protocol: Some(6), ports: Some(ports), ..Facts::default() };
    Sighting { port: None, direction: Direction::Local, facts, sender: None, receiver: None, reason: None }
}

fn show(daemon: &mut Daemon, packet: &Sighting, bytes: &[u8]) {
    let captures = &mut daemon.sessions.captures;
    let seen = captures.seen(packet, [None, None]);
    captures.take(&seen, bytes);
    captures.hand_on();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    assert_eq!(control.refusal(&mut daemon, Request::EndCapture), Errno::EINVAL, "there is none");
    for (snaplen, interface) in [(0, None), (SNAPLEN_MAX + 1, None), (100, Some(1))] {
        let request = Request::Capture { snaplen, interface, filter_len: 0 };
        assert_eq!(control.refusal(&mut daemon, request), Errno::EINVAL);
    }
    let unshown = Request::Capture { snaplen: 100, interface: None, filter_len: 3 };
    assert_eq!(control.refusal(&mut daemon, unshown), Errno::EBADF);
    let too_long = Request::Capture { snaplen: 100, interface: None, filter_len: 5000 };
    assert_eq!(control.refusal(&mut daemon, too_long), Errno::EINVAL);
    assert_eq!(capture(&mut daemon, &control, "host nowhere").err(), Some(Errno::EINVAL));
    // What is no memory could keep whoever reads it waiting.
    let (pipe, _writer) = rustix::pipe::pipe().expect("a pipe");
    let request = Request::Capture { snaplen: 100, interface: None, filter_len: 3 };
    let (reply, _) = control.ask_with(&mut daemon, request, &[pipe.as_fd()]);
    assert!(matches!(reply, Reply::Refused { errno, .. } if Errno(errno) == Errno::EINVAL), "{reply:?}");
    assert!(capture(&mut daemon, &control, "tcp").is_ok());
    assert_eq!(control.refusal(&mut daemon, EVERYTHING), Errno::EALREADY);
}

#[test]
fn a_user_captures_what_is_his_and_the_starter_everything() {
    let mut daemon = daemon_with("toed --allow-all");
    let (one, two) = (Control::new(&mut daemon), Control::new(&mut daemon));
    settle(&mut daemon);
    daemon.pose(0, 33);
    daemon.pose(1, 0);
    let mut his = capture(&mut daemon, &one, "").expect("a capture");
    let mut all = capture(&mut daemon, &two, "").expect("a capture");
    let netns = daemon.hosts.policy.netns;
    let end = |uid: u32| Some(End { program: Program::new(uid, 3, "x"), owner: Some(Cred { uid, netns }) });
    let ends = [[end(33), end(34)], [end(34), end(33)], [end(34), end(35)], [None, None]];
    for (len, ends) in (50..).zip(ends) {
        let packet = sighting((1000 + len as u16, 80));
        let seen = daemon.sessions.captures.seen(&packet, ends);
        daemon.sessions.captures.take(&seen, &vec![7; len]);
    }
    drop((one, two));
    settle(&mut daemon);
    let lens = |stream: &mut File| records(stream).iter().map(|r| r.original_len).collect::<Vec<_>>();
    assert_eq!(lens(&mut his), [50, 51, 0]);
    assert_eq!(lens(&mut all), [50, 51, 52, 53, 0]);
}

#[test]
fn users_leave_room_for_the_starters_captures() {
    let mut daemon = daemon_with("toed --allow-all");
    let controls: Vec<Control> = (0..7).map(|_| Control::new(&mut daemon)).collect();
    settle(&mut daemon);
    let mut refused = Vec::new();
    for (conn, uid) in (0..7).zip([33, 33, 34, 35, 36, 37, 0]) {
        daemon.pose(conn, uid);
        if capture(&mut daemon, &controls[conn as usize], "").is_err() {
            refused.push(conn);
        }
    }
    assert_eq!(refused, [1, 5], "a second one of a user, and a fifth of users");
}

#[test]
fn each_capture_gets_what_its_filter_wants() {
    let mut daemon = daemon();
    let (one, two) = (Control::new(&mut daemon), Control::new(&mut daemon));
    let mut web = capture(&mut daemon, &one, "port 80").expect("a capture");
    let mut all = capture(&mut daemon, &two, "").expect("a capture");
    show(&mut daemon, &sighting((1000, 80)), &[1; 60]);
    show(&mut daemon, &sighting((1000, 81)), &[2; 70]);
    assert_eq!(one.ask(&mut daemon, Request::EndCapture).0, Reply::Done);
    show(&mut daemon, &sighting((1000, 80)), &[3; 80]);
    drop(two);
    settle(&mut daemon);
    assert!(daemon.sessions.captures.is_empty(), "the connection's end is the capture's");
    let lens = |stream: &mut File| records(stream).iter().map(|r| r.original_len).collect::<Vec<_>>();
    assert_eq!(lens(&mut web), [60, 0], "the last says that nothing follows");
    assert_eq!(lens(&mut all), [60, 70, 80, 0]);
}

#[test]
fn a_client_that_does_not_read_loses_packets_and_hears_how_many() {
    let mut daemon = daemon();
    let control = Control::new(&mut daemon);
    let mut stream = capture(&mut daemon, &control, "").expect("a capture");
    let (offered, bytes) = (800, vec![7; 60_000]);
    for _ in 0..offered {
        show(&mut daemon, &sighting((1, 2)), &bytes);
    }
    assert_eq!(control.ask(&mut daemon, Request::EndCapture).0, Reply::Done);
    let records = records(&mut stream);
    let (last, packets) = records.split_last().expect("an end");
    assert_eq!(last.kind(), Ok(RecordKind::End));
    assert!(last.lost > 0 && packets.len() >= 500, "{} came, {} lost", packets.len(), last.lost);
    assert_eq!(packets.len() as u64 + last.lost, offered);
}
