//! UDP sockets that are shown for the engine's links: real sockets and memory, hosts by hand that say what is not so.
//!
//! The engine's link has no port behind it. What is sent to the engine's own address comes round without one.

use super::fake_host::{Control, FakeHost};
use super::{come_to_rest, daemon_with, settle};
use crate::control_server::ask::TwinGone;
use crate::daemon::Daemon;
use rustix::fs::FallocateFlags;
use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use toe_abi::attach::{Reply, Request, Use};
use toe_abi::errno::Errno;
use toe_abi::lane::{DatagramHeader, LaneLayout, LaneWord, RECORD_MAX, header};
use toe_base::{Endpoint, Instant, PortId, SessionId};
use toe_engine::{Counter, Link, NetworkChange};
use toe_ring::lane::Offer;
use toe_ring::{LaneMemory, LaneReceiver, LaneSender};
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::link::{FrameSink, MacAddr, RxOffload, TxOffload};
use zerocopy::IntoBytes;

const OWN: [u8; 4] = [10, 0, 0, 2];

/// A daemon with a link of the engine's own. `None`: this process may not have a raw socket, as an unprivileged one may not.
fn with_link() -> Option<Daemon> {
    let mut daemon = daemon_with("toed --allow-all --receive-memory-mib 16 --send-memory-mib 16");
    daemon.sessions.datagrams.open(daemon.hosts.server.handed());
    let port = daemon.engine.add_port(Link { mtu: 1500, ..Link::default() });
    daemon.engine.handle_network(NetworkChange::Address { port, addr: OWN.into(), prefix_len: 24 });
    assert_eq!(port, PortId(0));
    daemon.sessions.datagrams.is_open().then_some(daemon)
}

fn take_some(daemon: &mut Daemon, now: Instant, session: SessionId) -> usize {
    daemon.senders.take_some(now, &mut daemon.engine, &mut daemon.sessions, session)
}

/// A host's two lanes of one socket.
struct Presented {
    socket: UdpSocket,
    port: u16,
    to_engine: LaneSender,
    from_engine: LaneReceiver,
}

fn show(host: &FakeHost, daemon: &mut Daemon) -> Result<Presented, Errno> {
    let (presented, _files) = show_only(host, daemon)?;
    assert_eq!(host.control.ask(daemon, Request::DatagramsMapped).0, Reply::Done);
    Ok(presented)
}

/// The same without a word that they are mapped; and the lanes' files.
fn show_only(host: &FakeHost, daemon: &mut Daemon) -> Result<(Presented, Vec<OwnedFd>), Errno> {
    let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
    let port = socket.local_addr().expect("its name").port();
    let request = Request::OpenDatagrams { purpose: Use::Hears, peer: Endpoint::UNSPECIFIED_V4 };
    let (reply, fds) = host.control.ask_with(daemon, request, &[socket.as_fd()]);
    match reply {
        Reply::Datagrams { ring_len, .. } => {
            let map = |file, ring_len| LaneMemory::map(file, ring_len).expect("a lane's memory");
            let from_engine = LaneReceiver::new(map(&fds[0], LaneLayout::from_engine(ring_len)));
            let to_engine = LaneSender::new(map(&fds[1], ring_len));
            Ok((Presented { socket, port, to_engine, from_engine }, fds))
        }
        Reply::Refused { errno, .. } => Err(Errno(errno)),
        other => panic!("{other:?}"),
    }
}

impl Presented {
    /// Puts a record into the lane to the engine. `false`: it did not fit.
    fn put(&mut self, head: &DatagramHeader, text: &[u8]) -> bool {
        let len = DatagramHeader::LEN + text.len() as u32;
        let Offer::Lane { position } = self.to_engine.offer(len) else { return false };
        self.to_engine.lane().write(position, 0, head.as_bytes());
        self.to_engine.lane().write(position, DatagramHeader::LEN, text);
        self.to_engine.publish(len)
    }

    /// What came by the lane.
    fn take(&mut self) -> Option<Vec<u8>> {
        self.from_engine.confirm();
        let record = self.from_engine.first()?;
        let mut bytes = vec![0; record.len as usize];
        self.from_engine.lane().read(record.position, 0, &mut bytes);
        self.from_engine.take(record);
        Some(bytes.split_off(DatagramHeader::LEN as usize))
    }
}

fn to(port: u16) -> DatagramHeader {
    DatagramHeader { peer: Endpoint::new(OWN, port).into(), ..DatagramHeader::default() }
}

/// Who shares memory with the engine could punch holes into it, in which the engine would wait.
#[test]
fn lanes_are_not_touched_before_their_host_has_mapped_them_nor_punched_after() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = |file: &OwnedFd| rustix::fs::fallocate(file, punch, 0, 1 << 20);
    let blocks = |files: &[OwnedFd]| -> i64 {
        files.iter().map(|file| rustix::fs::fstat(file).expect("a file").st_blocks).sum()
    };
    let (early, files) = show_only(&host, &mut daemon).expect("its lanes");
    assert!(files.iter().all(|file| punched(file).is_ok()));
    let mut other = show(&host, &mut daemon).expect("its lanes");
    // The first ones were mapped, too: they are settled with these.
    assert!(files.iter().all(|file| punched(file) == Err(rustix::io::Errno::PERM)));
    other.from_engine.open();
    assert!(other.put(&to(other.port), b"to itself"));
    settle(&mut daemon);
    assert_eq!(other.take().as_deref(), Some(&b"to itself"[..]));
    let (late, files) = show_only(&host, &mut daemon).expect("its lanes");
    assert!(files.iter().all(|file| punched(file).is_ok()));
    assert!(other.put(&to(late.port), b"by the kernel"));
    settle(&mut daemon);
    drop((host, early, other, late));
    settle(&mut daemon);
    assert_eq!(blocks(&files), 0, "not a word was written");
}

/// A small generator with a seed, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// One thing that a host can do to its lanes and should not.
fn misbehave(presented: &mut Presented, random: &mut Random, other: u16) {
    let memory = match random.next() % 2 {
        0 => presented.to_engine.lane().clone(),
        _ => presented.from_engine.lane().clone(),
    };
    let region = memory.region();
    let word = random.next() >> (random.next() % 64);
    let position = LaneLayout::RING + ((random.next() % memory.ring_len()) & !7);
    let write = |at: u64, word: u64| region.write(at, &word.to_le_bytes()).expect("in the region");
    match random.next() % 9 {
        0 => write(LaneLayout::WORD, word),
        8 => write(LaneLayout::WORD, word | LaneWord::DIVERTED | LaneWord::ASLEEP),
        1 => write(LaneLayout::WORD, word & !(LaneWord::CLOSED | LaneWord::DIVERTED)),
        2 => write(LaneLayout::HEAD, word),
        3 => write(position, header(RECORD_MAX + (word as u32 % 16), false)),
        4 => write(position, word),
        5 => drop(presented.put(&DatagramHeader { segment: word as u16, ..to(other) }, &[7; 3000])),
        6 => {
            let mut head = DatagramHeader::default();
            head.as_mut_bytes().fill_with(|| random.next() as u8);
            presented.put(&head, b"a head of chance");
        }
        _ => {
            presented.put(&to(other), b"as it should be");
        }
    }
}

#[test]
fn lanes_full_of_chance_hurt_nobody_else() {
    let Some(mut daemon) = with_link() else { return };
    let good = FakeHost::attach(&mut daemon);
    let mut sender = show(&good, &mut daemon).expect("shown");
    let mut receiver = show(&good, &mut daemon).expect("shown");
    let mut random = Random(0x5eed);
    for round in 0..60u32 {
        let control = Control::of_user(&mut daemon, 4711);
        let hostile = FakeHost::attach_by(&mut daemon, control);
        let mut sockets: Vec<Presented> = (0..3).filter_map(|_| show(&hostile, &mut daemon).ok()).collect();
        assert_eq!(sockets.len(), 3, "what others did before is cleared away");
        for _ in 0..20 {
            let at = random.next() as usize % sockets.len();
            let other = sockets[random.next() as usize % sockets.len()].port;
            misbehave(&mut sockets[at], &mut random, other);
            if random.next().is_multiple_of(4) {
                settle(&mut daemon);
            }
        }
        if random.next().is_multiple_of(2) {
            sockets.clear();
            settle(&mut daemon);
        }
        receiver.from_engine.open();
        let text = round.to_le_bytes();
        assert!(sender.put(&to(receiver.port), &text), "round {round}");
        settle(&mut daemon);
        assert_eq!(receiver.take().as_deref(), Some(&text[..]), "round {round}");
        assert_eq!(receiver.take(), None, "round {round}: nobody else's");
        drop(hostile);
        drop(sockets);
        settle(&mut daemon);
        daemon.engine.view().audit().expect("nobody is charged for what is gone");
    }
    let began = std::time::Instant::now();
    while daemon.engine.view().totals().datagram_sockets > 2 {
        assert!(began.elapsed().as_secs() < 60, "the control server finds that they are gone");
        come_to_rest(&mut daemon);
        std::thread::yield_now();
    }
}

/// A host that fills its lane as fast as the engine reads it does not keep the engine at one request.
#[test]
fn a_request_takes_no_more_than_a_turn_of_what_is_queued() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let mut presented = show(&host, &mut daemon).expect("shown");
    let port = presented.port;
    (0..500).for_each(|_| assert!(presented.put(&to(port), b"x")));
    let session = daemon.sessions.live()[0];
    let before = daemon.engine.view().counter(Counter::TxDatagrams);
    let unbound = toe_engine::udp::Presented {
        local: Endpoint::UNSPECIFIED_V4,
        peer: None,
        v6_only: false,
        identity: 1,
        netns: daemon.hosts.policy.netns,
        shares_port: false,
        receive_buffer: 212_992,
    };
    let (peer, purpose) = (Endpoint::new([10, 0, 0, 3], 9), Use::Sends);
    let (now, rooms) = (daemon.timing.clock.now(), (&mut daemon.engine, &mut daemon.sessions));
    daemon.senders.open(now, rooms, session, (purpose, peer), &unbound).expect("a question");
    assert_eq!(daemon.engine.view().counter(Counter::TxDatagrams) - before, 64);
    settle(&mut daemon);
    assert_eq!(daemon.engine.view().counter(Counter::TxDatagrams), 500, "in turns that follow");
}

/// A turn is as long for who puts many datagrams into a record, or long ones.
#[test]
fn a_record_counts_for_what_it_holds() {
    for (segment, len, records) in [(10, 1000, 1), (0, 16_384, 13), (0, 1, 64)] {
        let Some(mut daemon) = with_link() else { return };
        let host = FakeHost::attach(&mut daemon);
        let mut presented = show(&host, &mut daemon).expect("shown");
        let head = DatagramHeader { segment, ..to(presented.port) };
        let text = vec![1; len];
        let put = (0..80).take_while(|_| presented.put(&head, &text)).count();
        let session = daemon.sessions.live()[0];
        let each = if segment == 0 { 1 } else { len / usize::from(segment) };
        let now = daemon.timing.clock.now();
        take_some(&mut daemon, now, session);
        let sent = daemon.engine.view().counter(Counter::TxDatagrams) as usize;
        assert!(put > records, "{put} have room");
        assert_eq!(sent, records * each, "{segment} {len}");
    }
}

#[test]
fn what_a_host_has_closed_is_free_for_another_at_once() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let mut first = show(&host, &mut daemon).expect("shown");
    let second = show(&host, &mut daemon).expect("shown");
    assert_eq!(daemon.engine.view().totals().datagram_sockets, 2);
    first.to_engine.close();
    let third = show(&host, &mut daemon).expect("shown");
    assert_eq!(daemon.engine.view().totals().datagram_sockets, 2, "the first is forgotten");
    assert!(third.port != second.port && first.socket.local_addr().is_ok());
}

#[test]
fn a_list_shows_who_has_a_socket_and_what_it_did() {
    let Some(mut daemon) = with_link() else { return };
    let good = FakeHost::attach(&mut daemon);
    let mut own = show(&good, &mut daemon).expect("shown");
    own.from_engine.open();
    let port = own.port;
    assert!(own.put(&DatagramHeader { segment: 10, ..to(port) }, &[1; 30]));
    settle(&mut daemon);
    let sockets = daemon.whole_sockets().sockets;
    let [socket] = &sockets[..] else { panic!("{sockets:?}") };
    let udp = socket.udp.expect("a UDP socket");
    assert_eq!((&*socket.state, &*socket.device), ("UNCONN", "*"));
    assert_eq!((&*socket.local, &*socket.remote), (&*format!("0.0.0.0:{port}"), "0.0.0.0:*"));
    assert_eq!((udp.tx_datagrams, udp.tx_bytes, udp.tx_drops), (3, 30, 0));
    assert_eq!((udp.rx_datagrams, udp.rx_bytes, udp.rx_by_kernel, udp.rx_drops), (3, 30, 0, 0));
    assert_eq!(socket.users.iter().map(|user| user.pid).collect::<Vec<_>>(), [std::process::id()]);
    drop(good);
    settle(&mut daemon);
    let sockets = daemon.whole_sockets().sockets;
    assert!(sockets[0].users.is_empty() && sockets[0].udp.is_some_and(|udp| udp.shared), "{sockets:?}");
}

/// Whose socket it is says the kernel, and where its namespace is; another user's lanes are nobody else's.
#[test]
fn another_user_hears_nothing_of_it() {
    let Some(mut daemon) = with_link() else { return };
    let good = FakeHost::attach(&mut daemon);
    let mut own = show(&good, &mut daemon).expect("shown");
    let control = Control::of_user(&mut daemon, 4711);
    let stranger = FakeHost::attach_by(&mut daemon, control);
    let mut other = show(&stranger, &mut daemon).expect("shown");
    own.from_engine.open();
    other.from_engine.open();
    let (port, forged) = (own.port, Endpoint::new(OWN, own.port));
    assert!(own.put(&to(port), b"to myself"));
    // From a port that is not its own: only the address can be named.
    assert!(other.put(&DatagramHeader { own: forged.into(), ..to(port) }, b"forged"));
    let elsewhere = Endpoint::new([10, 0, 0, 3], 1);
    assert!(other.put(&DatagramHeader { own: elsewhere.into(), ..to(port) }, b"not its address"));
    settle(&mut daemon);
    let mut came = [own.take(), own.take()];
    came.sort();
    assert_eq!(came, [Some(b"forged".to_vec()), Some(b"to myself".to_vec())]);
    assert_eq!((own.take(), other.take()), (None, None));
    assert_eq!(daemon.engine.view().counter(Counter::DropDatagramBadRecord), 1);
}

/// What a program sends right before it ends, or closes the socket, is sent.
#[test]
fn what_was_sent_outlives_its_program_and_its_socket() {
    for who in 0..3 {
        let Some(mut daemon) = with_link() else { return };
        let host = FakeHost::attach(&mut daemon);
        let mut presented = show(&host, &mut daemon).expect("shown");
        let port = presented.port;
        (0..500).for_each(|_| assert!(presented.put(&to(port), b"x")));
        let session = daemon.sessions.live()[0];
        let now = daemon.timing.clock.now();
        match who {
            0 => daemon.end_session(now, session, "it ends"),
            1 => {
                presented.to_engine.close();
                let identity = rustix::net::sockopt::socket_cookie(&presented.socket).expect("a cookie");
                let gone = TwinGone { identity, looked_at: now };
                daemon.senders.socket_gone(now, &mut daemon.engine, &mut daemon.sessions, gone);
            }
            _ => daemon.close_session(now, session),
        }
        assert_eq!(daemon.senders.unsent.len(), 1, "{who}");
        assert_eq!(presented.to_engine.offer(1), Offer::Kernel, "no more than that");
        settle(&mut daemon);
        assert_eq!(daemon.engine.view().counter(Counter::TxDatagrams), 500, "{who}");
        assert_eq!(daemon.senders.unsent.len(), 0);
        daemon.engine.view().audit().expect("nobody is charged for it");
    }
}

/// Where no link takes it for so long it is lost, and nobody is kept awake by it.
#[test]
fn what_was_sent_is_not_kept_for_ever() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let mut presented = show(&host, &mut daemon).expect("shown");
    let port = presented.port;
    (0..500).for_each(|_| assert!(presented.put(&to(port), b"x")));
    let session = daemon.sessions.live()[0];
    let now = daemon.timing.clock.now();
    daemon.end_session(now, session, "it ends");
    assert_eq!(daemon.senders.unsent.len(), 1);
    let sent = daemon.engine.view().counter(Counter::TxDatagrams);
    assert_eq!(daemon.take_unsent(now.after_us(2_000_000)), 0);
    assert_eq!((daemon.senders.unsent.len(), daemon.engine.view().counter(Counter::TxDatagrams)), (0, sent));
    daemon.engine.view().audit().expect("nobody is charged for it");
}

/// What is left of one user's programs is bounded, and what another's sends right before it ends has room beside it.
#[test]
fn what_is_left_to_be_sent_is_bounded() {
    let Some(mut daemon) = with_link() else { return };
    let hosts = [Control::of_user(&mut daemon, 4711), Control::of_user(&mut daemon, 4712)]
        .map(|control| FakeHost::attach_by(&mut daemon, control));
    let mut many: Vec<Presented> = (0..40).map(|_| show(&hosts[0], &mut daemon).expect("shown")).collect();
    let mut one = show(&hosts[1], &mut daemon).expect("shown");
    let sessions = daemon.sessions.live().to_vec();
    assert!(many.iter_mut().chain([&mut one]).all(|presented| presented.put(&to(presented.port), b"x")));
    let now = daemon.timing.clock.now();
    sessions.into_iter().for_each(|session| daemon.close_session(now, session));
    assert_eq!(daemon.senders.unsent.len(), 32 + 1);
    settle(&mut daemon);
    assert_eq!((daemon.senders.unsent.len(), daemon.engine.view().counter(Counter::TxDatagrams)), (0, 33));
}

/// Somebody who has the memory still and goes on writing into it is not read for ever.
#[test]
fn a_lane_that_is_left_is_read_no_longer_than_it_could_be_full() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let mut presented = show(&host, &mut daemon).expect("shown");
    let port = presented.port;
    assert!(presented.put(&to(port), b"x"));
    let session = daemon.sessions.live()[0];
    let now = daemon.timing.clock.now();
    daemon.close_session(now, session);
    // A word that says that there is always one record more: they all have the same bytes.
    let memory = presented.to_engine.lane().clone();
    let each = toe_abi::lane::record_len(DatagramHeader::LEN + 1);
    for n in 0..memory.ring_len() / each {
        let head = to(port);
        memory.write(n * each, 0, head.as_bytes());
        let at = LaneLayout::RING + n * each;
        memory
            .region()
            .write(at, &header(DatagramHeader::LEN + 1, false).to_le_bytes())
            .expect("in the region");
    }
    let mut rounds = 0;
    while daemon.senders.unsent.len() > 0 {
        let taken = daemon.engine.view().counter(Counter::TxDatagrams) + 200;
        let word = LaneWord::NEW.with_tail(LaneWord::after(0, taken * each));
        memory.region().write(LaneLayout::WORD, &word.0.to_le_bytes()).expect("in the region");
        daemon.take_unsent(now);
        rounds += 1;
        assert!(rounds < 10_000, "it ends");
    }
    assert!((1..=16_384).contains(&daemon.engine.view().counter(Counter::TxDatagrams)));
}

/// A link that takes a frame now and then, of which it keeps the ports that they are from.
#[derive(Default)]
struct Slow {
    frame: Vec<u8>,
    from: Vec<u16>,
}

impl FrameSink for Slow {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.frame = vec![0; len];
        Some(&mut self.frame)
    }
    fn commit(&mut self, _: TxOffload) {
        const PORT_AT: usize = 14 + 20;
        if self.frame[12..14] == [8, 0] {
            self.from.push(u16::from_be_bytes([self.frame[PORT_AT], self.frame[PORT_AT + 1]]));
        }
    }
}

/// A program's sockets share a link that is slower than they are.
#[test]
fn each_of_a_programs_sockets_gets_its_part_of_a_slow_link() {
    let Some(mut daemon) = with_link() else { return };
    let host = FakeHost::attach(&mut daemon);
    let mut sockets: Vec<Presented> = (0..3).map(|_| show(&host, &mut daemon).expect("shown")).collect();
    let (now, session) = (daemon.timing.clock.now(), daemon.sessions.live()[0]);
    let there = DatagramHeader { peer: Endpoint::new([10, 0, 0, 9], 53).into(), ..DatagramHeader::default() };
    let mut slow = Slow::default();
    assert!(sockets[0].put(&there, b"who is there"));
    take_some(&mut daemon, now, session);
    answer_arp(&mut daemon);
    for presented in &mut sockets {
        (0..1000).for_each(|_| assert!(presented.put(&there, b"x")));
    }
    for _ in 0..20 {
        take_some(&mut daemon, now, session);
    }
    let mut transmit = |daemon: &mut Daemon, budget| {
        daemon.engine.poll_transmit(now, PortId(0), &mut slow, &mut daemon.sessions, budget);
    };
    for _ in 0..60 {
        transmit(&mut daemon, 7);
        take_some(&mut daemon, now, session);
    }
    (0..100).for_each(|_| transmit(&mut daemon, 100));
    for presented in &sockets {
        let part = slow.from.iter().filter(|from| **from == presented.port).count();
        assert!(part > slow.from.len() / 6, "{part} of {}", slow.from.len());
    }
}

/// The neighbour 10.0.0.9 says where it is.
fn answer_arp(daemon: &mut Daemon) {
    let mut frame = vec![0; 14 + toe_wire::arp::MESSAGE_LEN];
    let (own, mac) = (MacAddr::default(), MacAddr([2, 0, 0, 0, 0, 9]));
    EthRepr { dst: own, src: mac, ethertype: EtherType::Arp }.emit(&mut frame);
    let message = ArpRepr {
        operation: ArpOperation::Reply,
        sender_mac: mac,
        sender_ip: [10, 0, 0, 9].into(),
        target_mac: own,
        target_ip: OWN.into(),
    };
    message.emit(&mut frame[14..]);
    let now = daemon.timing.clock.now();
    daemon.engine.handle_frame(now, PortId(0), &frame, RxOffload::default(), &mut daemon.sessions);
}
