//! The kernel's links for real: a hand-made TCP conversation with the kernel over `packet:` on a veth and over `tap:`,
//! each in a network namespace of its own. Needs root.

mod namespace;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use namespace::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use toe_base::SeqNum;
use toe_base::window::UnscaledWindow;
use toe_port::{OpenError, Port, PortCounter, PortSpec, open};
use toe_wire::link::{Cut, PartialChecksum, RxOffload, Segmentation, TxOffload};
use toe_wire::{
    ArpOperation, ArpRepr, EthRepr, EtherType, Ipv4Repr, MacAddr, Protocol, TcpFlags, TcpOptions, TcpRepr,
    tcp,
};

const KERNEL: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const OURS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OUR_PORT: u16 = 4000;
/// Everything here happens in microseconds; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// An interface that has just come up may lose what it is given first, so what is sent first is sent again.
const RESEND: Duration = Duration::from_millis(20);
/// Bytes sent each way: many segments, yet within everybody's first window.
const BULK: usize = 12_000;

fn open_port(spec: &str) -> Box<dyn Port> {
    open(&spec.parse::<PortSpec>().expect("a good specification"))
        .unwrap_or_else(|error| panic!("{spec}: {error}"))
}

/// `false`: nothing came in time.
fn wait_readable(port: &dyn Port, timeout: Duration) -> bool {
    let fd = port.poll_fd().expect("a kernel link has one");
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(timeout.subsec_nanos()) };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).expect("poll") > 0
}

/// The engine's end of one connection, just clever enough for a conversation without losses.
struct Peer {
    port: Box<dyn Port>,
    kernel_mac: MacAddr,
    kernel_port: u16,
    next: SeqNum,
    expected: SeqNum,
    /// Payload from the kernel, in order.
    received: Vec<u8>,
    largest: usize,
    arp_requests: usize,
}

impl Peer {
    fn new(port: Box<dyn Port>, kernel_port: u16) -> Peer {
        Peer {
            port,
            kernel_mac: MacAddr::BROADCAST,
            kernel_port,
            next: SeqNum::new(1000),
            expected: SeqNum::new(0),
            received: Vec::new(),
            largest: 0,
            arp_requests: 0,
        }
    }

    fn send_frame(&mut self, frame: &[u8], offload: TxOffload) {
        self.port.transmit().frame(frame.len()).expect("room").copy_from_slice(frame);
        self.port.transmit().commit(offload);
        self.port.flush().expect("the link is up");
    }

    fn send_arp(&mut self, operation: ArpOperation, target_mac: MacAddr) {
        let mut frame = [0; 42];
        let dst = if operation == ArpOperation::Request { MacAddr::BROADCAST } else { target_mac };
        let src = self.port.mac();
        EthRepr { dst, src, ethertype: EtherType::Arp }.emit(&mut frame);
        let arp = ArpRepr { operation, sender_mac: src, sender_ip: OURS, target_mac, target_ip: KERNEL };
        arp.emit(&mut frame[14..]);
        self.send_frame(&frame, TxOffload::default());
    }

    /// A segment; the link fills in its checksum, and cuts it when it is large.
    fn send_segment(&mut self, flags: TcpFlags, ack: Option<SeqNum>, payload: &[u8]) {
        let repr = TcpRepr {
            src_port: OUR_PORT,
            dst_port: self.kernel_port,
            seq: self.next,
            ack,
            flags,
            window: UnscaledWindow(60_000),
            urgent: 0,
            options: TcpOptions { mss: flags.syn().then_some(1460), ..TcpOptions::default() },
        };
        let header_len = 34 + repr.header_len();
        let mut frame = vec![0; header_len];
        EthRepr { dst: self.kernel_mac, src: self.port.mac(), ethertype: EtherType::Ipv4 }.emit(&mut frame);
        let tcp_len = (repr.header_len() + payload.len()) as u16;
        let ip = Ipv4Repr {
            src: OURS,
            dst: KERNEL,
            protocol: Protocol::Tcp,
            ttl: 64,
            traffic_class: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: 20 + tcp_len,
        };
        ip.emit(&mut frame[14..]);
        repr.emit(&mut frame[34..]);
        tcp::store_pseudo_sum(&mut frame[34..], OURS, KERNEL, tcp_len);
        frame.extend_from_slice(payload);
        let large = payload.len() > 1460;
        let offload = TxOffload {
            checksum: Some(PartialChecksum { start: 34, offset: tcp::CHECKSUM_OFFSET }),
            segmentation: large.then_some(Segmentation {
                header_len: header_len as u16,
                mss: 1460,
                cut: Cut::TcpV4,
            }),
        };
        self.send_frame(&frame, offload);
        self.next = self.next.plus(repr.sequence_len(payload.len() as u32));
    }

    /// Receives until `done`, waiting on the port's descriptor in between; `resend` when nothing comes for a while.
    fn pump(&mut self, what: &str, resend: impl Fn(&mut Peer), done: impl Fn(&Peer) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < deadline, "{what}: not in {PATIENCE:?}; {:?}", self.port.counters());
            if !wait_readable(&*self.port, RESEND) {
                resend(self);
            }
            let mut frames = Vec::new();
            self.port
                .receive(64, &mut |frame, offload| frames.push((frame.to_vec(), offload)))
                .expect("link up");
            for (frame, offload) in frames {
                self.take(&frame, offload);
            }
        }
    }

    fn take(&mut self, frame: &[u8], offload: RxOffload) {
        let (link, rest) = EthRepr::parse(frame).expect("an Ethernet frame");
        if link.ethertype == EtherType::Ipv6 {
            // The kernel tells of its groups and looks for its neighbours, some time after the link came up.
            return;
        }
        assert!(link.dst == self.port.mac() || link.dst == MacAddr::BROADCAST, "only what is meant for us");
        match link.ethertype {
            EtherType::Arp => {
                let arp = ArpRepr::parse(rest).expect("ARP");
                if arp.target_ip != OURS {
                    return;
                }
                self.kernel_mac = arp.sender_mac;
                if arp.operation == ArpOperation::Request {
                    self.arp_requests += 1;
                    self.send_arp(ArpOperation::Reply, arp.sender_mac);
                }
            }
            EtherType::Ipv4 => {
                let (ip, segment) = Ipv4Repr::parse(rest).expect("IPv4");
                if ip.protocol == Protocol::Tcp {
                    assert!(offload.checksum_ok || tcp::checksum_is_valid(segment, ip.src, ip.dst));
                    assert!(frame.len() <= 1514 || offload.coalesced_mss.is_some());
                    self.take_segment(segment);
                }
            }
            other => panic!("a frame of type {other:?} came through"),
        }
    }

    fn take_segment(&mut self, segment: &[u8]) {
        let (repr, payload) = TcpRepr::parse(segment).expect("TCP");
        assert!(!repr.flags.rst(), "the kernel does not know this connection");
        if repr.flags.syn() {
            self.expected = repr.seq.plus(1);
            self.send_segment(TcpFlags::NONE, Some(self.expected), &[]);
        } else if repr.seq == self.expected && !payload.is_empty() {
            self.received.extend_from_slice(payload);
            self.largest = self.largest.max(payload.len());
            self.expected = self.expected.plus(payload.len() as u32);
            self.send_segment(TcpFlags::NONE, Some(self.expected), &[]);
        }
    }
}

/// A connection to the kernel and bulk in both directions, with checksums and segmentation left to the link.
fn converse(port: Box<dyn Port>) -> Peer {
    let listener = TcpListener::bind((KERNEL, 0)).expect("the kernel's address is there");
    let mut peer = Peer::new(port, listener.local_addr().expect("bound").port());
    let ask = |peer: &mut Peer| peer.send_arp(ArpOperation::Request, MacAddr::default());
    ask(&mut peer);
    peer.pump("ARP reply", ask, |peer| peer.kernel_mac != MacAddr::BROADCAST);
    assert_ne!(peer.kernel_mac, peer.port.mac());

    peer.send_segment(TcpFlags::SYN, None, &[]);
    peer.pump("SYN-ACK", |_| {}, |peer| peer.expected != SeqNum::new(0));
    let (mut stream, from) = listener.accept().expect("the handshake is complete");
    assert_eq!(from, (OURS, OUR_PORT).into());

    let sent: Vec<u8> = (0..BULK).map(|n| (n % 251) as u8).collect();
    let ack = Some(peer.expected);
    peer.send_segment(TcpFlags::PSH, ack, &sent);
    let mut got = vec![0; BULK];
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    stream.read_exact(&mut got).expect("all of it arrives");
    assert!(got == sent, "what the kernel got is not what was sent");

    stream.write_all(&sent).expect("room in the send buffer");
    peer.pump("bulk from the kernel", |_| {}, |peer| peer.received.len() >= BULK);
    assert!(peer.received == sent, "what came from the kernel is not what it sent");
    peer
}

#[test]
fn packet_port_talks_to_the_kernel_over_a_veth() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    namespace.ip(&["addr", "add", "10.77.0.1/24", "dev", "far"]);
    namespace.ip(&["link", "set", "far", "up"]);
    namespace.run(|| {
        let port = open_port("packet:near");
        assert_eq!((port.name(), port.mtu()), ("near", 1500));
        let peer = converse(port);
        assert!(peer.largest > 1460, "the kernel hands over large frames as they are");
        let counters = peer.port.counters();
        assert!(counters.get(PortCounter::RxFrames) > 0 && counters.get(PortCounter::TxFrames) > 0);
        assert_eq!(counters.get(PortCounter::TxDroppedError), 0);
    });
}

#[test]
fn tap_port_talks_to_the_kernel() {
    let Some(namespace) = Namespace::new() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let port = open_port("tap:near");
        namespace::ip_in(&inside, &["addr", "add", "10.77.0.1/24", "dev", "near"]);
        let peer = converse(port);
        assert!(peer.largest > 1460, "the kernel hands over large frames as they are");
    });
}

#[test]
fn the_kernel_asks_the_tap_for_its_neighbour() {
    let Some(namespace) = Namespace::new() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let port = open_port("tap:near");
        namespace::ip_in(&inside, &["addr", "add", "10.77.0.1/24", "dev", "near"]);
        let socket = std::net::UdpSocket::bind((KERNEL, 0)).expect("the kernel's address is there");
        socket.send_to(b"anybody?", (OURS, 9)).expect("queued until ARP answers");
        let mut peer = Peer::new(port, 0);
        peer.pump("ARP request", |_| {}, |peer| peer.arp_requests > 0);
    });
}

#[test]
fn a_bad_link_still_carries_the_conversation() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    namespace.ip(&["addr", "add", "10.77.0.1/24", "dev", "far"]);
    namespace.ip(&["link", "set", "far", "up"]);
    namespace.run(|| {
        // Duplicates only: this test's peer does not retransmit.
        let peer = converse(open_port("packet:near?dup=50%&seed=2"));
        assert!(peer.port.counters().get(PortCounter::FaultDuplicated) > 0);
    });
}

#[test]
fn tagged_and_foreign_frames_stay_out() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    namespace.ip(&["addr", "add", "10.77.0.1/24", "dev", "far"]);
    namespace.ip(&["link", "set", "far", "up"]);
    namespace.run(|| {
        let mut port = open_port("packet:near");
        let mut far = open_port("packet:far");
        let (near_mac, far_mac) = (port.mac(), far.mac());
        let (tcp, udp, sctp) = (6, 17, 132);
        let mut send = |dst, ethertype, protocol: u8, mark: u8| {
            let frame = far.transmit().frame(64).expect("room");
            frame.fill(mark);
            EthRepr { dst, src: far_mac, ethertype }.emit(frame);
            frame[14..18].copy_from_slice(&[0, 12, 8, 0]);
            frame[23] = protocol;
            far.transmit().commit(TxOffload::default());
            far.flush().expect("the link is up");
        };
        let mut marks = Vec::new();
        let deadline = Instant::now() + PATIENCE;
        while !(marks.contains(&6) && marks.contains(&7)) {
            assert!(Instant::now() < deadline, "the last frame never came");
            send(near_mac, EtherType::Vlan, tcp, 1);
            send(MacAddr([2, 9, 9, 9, 9, 9]), EtherType::Ipv4, tcp, 2);
            send(MacAddr([0x33, 0x33, 0, 0, 0, 1]), EtherType::Ipv6, tcp, 3);
            send(near_mac, EtherType::Other(0x88b5), tcp, 4);
            // A frame that the engine has no use for does not take its room.
            send(near_mac, EtherType::Ipv4, sctp, 4);
            send(near_mac, EtherType::Ipv4, tcp, 5);
            send(near_mac, EtherType::Ipv4, udp, 7);
            send(MacAddr::BROADCAST, EtherType::Ipv4, tcp, 6);
            wait_readable(&*port, RESEND);
            // The kernel may say something of its own on the link.
            let mut keep =
                |frame: &[u8], _| marks.extend(frame.get(63).filter(|mark| (1..=7).contains(*mark)));
            port.receive(64, &mut keep).expect("link up");
        }
        assert!(marks.contains(&5) && marks.iter().all(|mark| *mark >= 5), "{marks:?}");
    });
}

#[test]
fn a_removed_interface_is_an_error_and_not_a_hang() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut port = open_port("packet:near");
        namespace::ip_in(&inside, &["link", "del", "near"]);
        port.transmit().frame(60).expect("room").fill(0);
        port.transmit().commit(TxOffload::default());
        assert!(port.flush().is_err());
        assert_eq!(port.counters().get(PortCounter::TxDroppedError), 1);
    });
}

#[test]
fn a_tap_that_was_removed_is_made_again() {
    let Some(namespace) = Namespace::new() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut port = open_port("tap:near");
        let mac = port.mac();
        namespace::ip_in(&inside, &["link", "del", "near"]);
        port.transmit().frame(60).expect("room").fill(0);
        port.transmit().commit(TxOffload::default());
        assert!(port.flush().is_err(), "a link that is gone is said");
        port.reopen().expect("made anew");
        assert_eq!(port.mac(), mac);
        assert_eq!(port.counters().get(PortCounter::TxDroppedError), 1, "what was counted stays");
        namespace::ip_in(&inside, &["addr", "add", "10.77.0.1/24", "dev", "near"]);
        converse(port);
    });
}

#[test]
fn a_wrong_interface_gets_a_clear_refusal() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.run(|| {
        let refusal = |spec: &str| open(&spec.parse().expect("a good specification")).err();
        assert!(matches!(refusal("packet:nowhere"), Some(OpenError::NoSuchInterface { .. })));
        assert!(matches!(refusal("packet:lo"), Some(OpenError::NotEthernet { .. })));
        let text = |spec: &str| refusal(spec).map(|error| error.to_string()).unwrap_or_default();
        assert!(
            text("tap:lo").starts_with("`lo` exists and is not a single-queue TAP"),
            "{}",
            text("tap:lo")
        );
        let _first = open_port("tap:once");
        let again = text("tap:once");
        assert!(again.starts_with("another process has the TAP `once` open"), "{again}");
    });
}
