//! What is measured: an engine with one socket and one neighbour, fed from memory, and the two planes of it as batches go through them.

use crate::batches::Batch;
use std::hint::black_box;
use toe_abi::attach::Use;
use toe_abi::lane::DatagramHeader;
use toe_abi::region::RegionLayout;
use toe_base::{Addr, Cred, DatagramId, Endpoint, Instant, NetNs, PortId};
use toe_engine::kit::{FakeHosts, hand_over};
use toe_engine::udp::Presented;
use toe_engine::{Delivered, Engine, EngineConfig, Incoming, Link, NetworkChange};
use toe_wire::arp::{ArpOperation, ArpRepr};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};
use toe_wire::{Ipv4Repr, Protocol, UdpRepr, ipv4, udp};

pub const OWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
pub const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
pub const OWN: [u8; 4] = [10, 0, 0, 2];
pub const PEER: [u8; 4] = [10, 0, 0, 9];
pub const PORT: u16 = 53;
pub const ETHERNET: usize = 14;
pub const HEADERS: usize = ipv4::HEADER_LEN + udp::HEADER_LEN;
pub const LINK_PORT: PortId = PortId(0);
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 16, receive_len: 1 << 20, send_len: 1 << 20 };
/// The answers to unknown ports are limited by the engine's time.
const STEP_US: u64 = 5000;
/// Room for any frame.
const FRAME_MAX: usize = 2048;

/// A port that forgets its frames.
pub struct Forgets(Vec<u8>);

impl Default for Forgets {
    fn default() -> Forgets {
        Forgets(vec![0; FRAME_MAX])
    }
}

impl FrameSink for Forgets {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.get_mut(..len)
    }
    fn commit(&mut self, _: TxOffload) {
        black_box(&mut self.0);
    }
}

/// A link that does what its wire offers with checksums, or one that leaves them to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    ByEngine,
    ByLink,
}

impl Checksums {
    pub fn link(self) -> Link {
        let caps = LinkCaps { tx_checksum: self == Checksums::ByLink, gso_max: 0, ..LinkCaps::default() };
        Link { mac: OWN_MAC, mtu: 1500, caps, ..Link::default() }
    }

    pub fn of_received(self) -> RxOffload {
        RxOffload { checksum_ok: self == Checksums::ByLink, coalesced_mss: None }
    }
}

/// A frame from the peer.
pub fn frame(size: usize, dst_port: u16) -> Vec<u8> {
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

pub fn presented() -> Presented {
    Presented {
        local: Endpoint { addr: Addr::UNSPECIFIED_V4, port: PORT },
        peer: None,
        v6_only: false,
        identity: 1,
        netns: NetNs(0),
        shares_port: false,
        receive_buffer: 212_992,
    }
}

/// An engine with one socket and one neighbour.
pub struct Harness {
    engine: Engine,
    socket: Option<DatagramId>,
    checksums: Checksums,
    sink: Forgets,
    host: FakeHosts,
    now: Instant,
}

impl Harness {
    pub fn new(checksums: Checksums) -> Harness {
        let mut engine = Engine::new(EngineConfig { flows_max: 16, ..EngineConfig::with_secret([7; 16]) });
        let port = engine.add_port(checksums.link());
        engine.handle_network(NetworkChange::Address { port, addr: OWN.into(), prefix_len: 24 });
        let presented = presented();
        let session = engine.open_session(Cred::default(), LAYOUT).ok();
        let now = Instant::from_micros(1_000_000);
        let hears = (Use::Hears, Endpoint::UNSPECIFIED_V4);
        let socket = session.and_then(|session| {
            let opened = engine.open_datagrams(now, session, hears, &presented);
            opened.ok()?.end.map(|end| end.id)
        });
        let mut harness =
            Harness { engine, socket, checksums, sink: Forgets::default(), host: FakeHosts::default(), now };
        harness.learn_neighbour();
        harness
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
        self.receive(&frame, &mut Batch::default());
        self.poll();
    }

    fn receive(&mut self, frame: &[u8], into: &mut Batch) {
        let offload = self.checksums.of_received();
        let incoming = self.engine.handle_frame(self.now, LINK_PORT, frame, offload, &mut self.host);
        hand_over(self.now, &mut self.engine, &mut self.host, incoming, |_, incoming| {
            if let Incoming::Datagram(one) = incoming {
                into.push(&one.datagram.text);
            }
            Delivered::ByLane
        });
    }

    fn send(&mut self, text: &[u8]) {
        let header = DatagramHeader { peer: Endpoint::new(PEER, 9).into(), ..DatagramHeader::default() };
        if let Some(socket) = self.socket {
            self.engine.handle_datagrams(self.now, socket, &header, text);
        }
    }

    fn poll(&mut self) {
        self.engine.poll_transmit(self.now, LINK_PORT, &mut self.sink, &mut self.host, Batch::MOST);
    }

    /// The receive plane: frames become datagrams in a program's memory.
    pub fn receive_plane(&mut self, frames: &[Vec<u8>], into: &mut Batch) {
        into.clear();
        frames.iter().for_each(|frame| self.receive(black_box(frame), into));
    }

    /// The transmit plane: datagrams become frames, and the port takes them.
    pub fn transmit_plane(&mut self, from: &Batch) {
        from.iter().for_each(|text| self.send(black_box(text)));
        self.poll();
    }

    /// The control plane: a datagram of an unknown port comes in, and its answer goes out.
    pub fn control_plane(&mut self, unknown: &[u8]) {
        self.now = self.now.after_us(STEP_US);
        self.receive(unknown, &mut Batch::default());
        self.poll();
    }
}
