//! The frameworks that are measured, fed from memory.

use super::{Receive, Row, Transmit, left, median_ns};
use std::hint::black_box;
use toe_abi::attach::Use;
use toe_abi::command::FlowInfo;
use toe_abi::entry::Completion;
use toe_abi::lane::RecordHead;
use toe_abi::region::RegionLayout;
use toe_base::{Addr, Cred, DatagramId, Endpoint, Instant, NetNs, PortId, QueueSetId, SessionId};
use toe_engine::control::route::{Interface, Routes};
use toe_engine::egress::builder::{Envelope, FrameBuilder, Hop};
use toe_engine::ingress::{self, At};
use toe_engine::udp::Shown;
use toe_engine::udp::sockets::Sockets;
use toe_engine::udp::transmit::TxQueue;
use toe_engine::work::TxDatagram;
use toe_engine::{Delivered, Engine, EngineConfig, HostSide, Link, RxDatagram};
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};
use toe_wire::{Ipv4Repr, Protocol, UdpRepr, ipv4, udp};

const OWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const OWN: [u8; 4] = [10, 0, 0, 2];
const PEER: [u8; 4] = [10, 0, 0, 9];
const PORT: u16 = 53;
const ETHERNET: usize = 14;
const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
const LINK_PORT: PortId = PortId(0);
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 16, receive_len: 1 << 20, send_len: 1 << 20 };
/// The answers to unknown ports are limited by the engine's time.
const STEP_US: u64 = 5000;

/// A program's memory, into which datagrams are copied, and nothing else.
struct Program(Vec<u8>);

impl HostSide for Program {
    fn write(&mut self, _: SessionId, _: u64, _: &[u8]) {}
    fn read(&mut self, _: SessionId, _: u64, _: &mut [u8]) {}
    fn copy(&mut self, _: (SessionId, u64), _: (SessionId, u64), _: u32) {}
    fn write_flow_info(&mut self, _: SessionId, _: usize, _: &FlowInfo) {}
    fn post(&mut self, _: SessionId, _: QueueSetId, _: Completion) -> bool {
        true
    }
    fn deliver_datagram(&mut self, _: Option<DatagramId>, datagram: &RxDatagram<'_>) -> Delivered {
        self.0[..datagram.text.len()].copy_from_slice(datagram.text);
        Delivered::ByLane
    }
}

/// A port that forgets its frames.
struct Forgets(Vec<u8>);

impl FrameSink for Forgets {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.get_mut(..len)
    }
    fn commit(&mut self, _: TxOffload) {
        black_box(&mut self.0);
    }
}

fn link(tx_checksum: bool) -> Link {
    Link {
        mac: OWN_MAC,
        mtu: 1500,
        caps: LinkCaps { tx_checksum, gso_max: 0, ..LinkCaps::default() },
        ..Link::default()
    }
}

/// A frame from the peer.
fn frame(size: usize, dst_port: u16) -> Vec<u8> {
    let mut frame = vec![0x5a; ETHERNET + size];
    EthRepr { dst: OWN_MAC, src: PEER_MAC, ethertype: EtherType::Ipv4 }.emit(&mut frame);
    let ip = Ipv4Repr {
        src: PEER.into(),
        dst: OWN.into(),
        protocol: Protocol::Udp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: size as u16,
    };
    ip.emit(&mut frame[ETHERNET..]);
    let datagram = &mut frame[ETHERNET + ipv4::HEADER_LEN..];
    UdpRepr { src_port: 9, dst_port }.emit(datagram.len() as u16, datagram);
    udp::store_checksum(datagram, PEER.into(), OWN.into());
    frame
}

/// An engine with one socket and one neighbour.
struct Bed {
    engine: Engine,
    socket: Option<DatagramId>,
    program: Program,
    sink: Forgets,
    now: Instant,
}

impl Bed {
    fn new() -> Bed {
        let mut engine = Engine::new(EngineConfig { flows_max: 16, ..EngineConfig::with_secret([7; 16]) });
        let port = engine.add_port(link(false));
        engine.add_addr(port, OWN.into(), 24);
        let shown = shown();
        let session = engine.open_session(Cred::default(), LAYOUT);
        let socket = session.and_then(|session| {
            let opened = engine.open_datagrams(session, Use::Hears, Endpoint::UNSPECIFIED_V4, &shown);
            opened.ok()?.end.map(|end| end.id)
        });
        let (program, sink) = (Program(vec![0; 2048]), Forgets(vec![0; 2048]));
        let mut bed = Bed { engine, socket, program, sink, now: Instant::from_micros(1_000_000) };
        bed.learn_neighbour();
        bed
    }

    fn learn_neighbour(&mut self) {
        let mut frame = vec![0; ETHERNET + toe_wire::arp::MESSAGE_LEN];
        EthRepr { dst: OWN_MAC, src: PEER_MAC, ethertype: EtherType::Arp }.emit(&mut frame);
        let message = ArpRepr {
            operation: ArpOperation::Reply,
            sender_mac: PEER_MAC,
            sender_ip: PEER.into(),
            target_mac: OWN_MAC,
            target_ip: OWN.into(),
        };
        message.emit(&mut frame[ETHERNET..]);
        self.send(&[0]);
        self.receive(&frame);
        self.transmit();
    }

    fn receive(&mut self, frame: &[u8]) {
        self.engine.handle_frame(self.now, LINK_PORT, frame, RxOffload::default(), &mut self.program);
    }

    fn send(&mut self, text: &[u8]) {
        let head = RecordHead { peer: Endpoint::new(PEER, 9).into(), ..RecordHead::default() };
        if let Some(socket) = self.socket {
            self.engine.handle_datagrams(self.now, socket, &head, text, &mut self.program);
        }
    }

    fn transmit(&mut self) {
        self.engine.poll_transmit(self.now, LINK_PORT, &mut self.sink, &mut self.program, 8);
    }
}

fn shown() -> Shown {
    Shown {
        local: Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT },
        peer: None,
        v6_only: false,
        identity: 1,
        netns: NetNs(0),
        shares_port: false,
        receive_buffer: 212_992,
    }
}

/// All stages for packets of one size.
pub fn row(size: usize) -> Row {
    let mut bed = Bed::new();
    let unknown = frame(size, PORT + 1);
    let unreachable_ns = median_ns(|| {
        bed.now = bed.now.after_us(STEP_US);
        bed.receive(&unknown);
        bed.transmit();
    });
    Row { size, receive: receive(size, &mut bed), transmit: transmit(size, &mut bed), unreachable_ns }
}

fn receive(size: usize, bed: &mut Bed) -> Receive {
    let frame = frame(size, PORT);
    let mut routes = Routes::default();
    let addr = Addr::from(OWN);
    routes.add_interface(Interface { port: LINK_PORT, addr, prefix_len: 24, shared: false });
    let link = link(false);
    let parse = |checksum_ok| {
        let offload = RxOffload { checksum_ok, coalesced_mss: None };
        let at = At { port: LINK_PORT, link: &link, routes: &routes };
        let _ = black_box(ingress::parse(black_box(&frame), offload, at));
    };
    let (ip_ns, with_checksum) = (median_ns(|| parse(true)), median_ns(|| parse(false)));
    let mut sockets = Sockets::default();
    sockets.open(SessionId(1), &shown(), ());
    let (to, from) = (Endpoint::new(OWN, PORT), Endpoint::new(PEER, 9));
    let demultiplex_ns = median_ns(|| {
        black_box(sockets.receiver(black_box(to), from));
    });
    let total_ns = median_ns(|| bed.receive(black_box(&frame)));
    Receive {
        ip_ns,
        checksum_ns: left(with_checksum, ip_ns),
        demultiplex_ns,
        deliver_ns: left(total_ns, with_checksum + demultiplex_ns),
        total_ns,
    }
}

fn transmit(size: usize, bed: &mut Bed) -> Transmit {
    let text = vec![0x5a; size - HEADERS];
    let datagram =
        TxDatagram { from: Endpoint::new(OWN, PORT), to: Endpoint::new(PEER, 9), ttl: 64, traffic_class: 0 };
    let mut queue = TxQueue::default();
    let mut sink = Forgets(vec![0; 2048]);
    let mut out = |link: &Link| {
        queue.push(link, PEER_MAC, &datagram, black_box(&text), 1);
        queue.send(&mut sink, 8);
    };
    let (plain, offloading) = (link(false), link(true));
    let (with_checksum, without) = (median_ns(|| out(&plain)), median_ns(|| out(&offloading)));
    let mut octets = vec![0; ETHERNET + size];
    let envelope = Envelope {
        hop: Hop::over(&plain, PEER_MAC),
        from: OWN.into(),
        to: PEER.into(),
        ttl: 64,
        traffic_class: 0,
    };
    let ip_ns = median_ns(|| {
        black_box(FrameBuilder::ip(black_box(&mut octets), &envelope, Protocol::Udp));
    });
    let mut port = vec![0; ETHERNET + size];
    let port_ns = median_ns(|| black_box(&mut port).copy_from_slice(black_box(&octets)));
    let total_ns = median_ns(|| {
        bed.send(black_box(&text));
        bed.transmit();
    });
    Transmit {
        route_ns: left(total_ns, with_checksum),
        copy_ns: left(without, ip_ns + port_ns),
        checksum_ns: left(with_checksum, without),
        ip_ns,
        port_ns,
        total_ns,
    }
}
