//! The frameworks that are measured, stage by stage.

use crate::batches::Batch;
use crate::harness::{
    Checksums, ETHERNET, Forgets, HEADERS, Harness, LINK_PORT, OWN, PEER, PEER_MAC, PORT, frame, presented,
};
use crate::layouts::{HandOver, apart_costs};
use crate::median::{left, median_ns};
use serde::Serialize;
use std::hint::black_box;
use toe_abi::lane::MtuDiscover;
use toe_base::{Addr, Endpoint, SessionId};
use toe_engine::control::route::{Interface, Routes};
use toe_engine::egress::builder::{Envelope, FrameBuilder, Hop};
use toe_engine::ingress::{self, At};
use toe_engine::udp::sockets::Sockets;
use toe_engine::udp::transmit::TxQueue;
use toe_engine::work::TxDatagram;
use toe_wire::eth::EthRepr;
use toe_wire::{Ipv4Repr, Protocol};

/// Nanoseconds of one packet in each stage.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Receive {
    /// Of `ip_ns`: the Ethernet header, and the IP header with its checksum. The rest: whose the addresses are, and the UDP header.
    pub ethernet_ns: f64,
    pub header_ns: f64,
    /// Interface and IP: Ethernet, IP and the UDP header.
    pub ip_ns: f64,
    pub checksum_ns: f64,
    /// Whose it is.
    pub demultiplex_ns: f64,
    /// Into the memory of who has it.
    pub deliver_ns: f64,
    pub total_ns: f64,
    /// The same where the link has looked at the checksum.
    pub vouched_ns: f64,
}

/// The same of what goes out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Transmit {
    /// The record is read, and its route found.
    pub route_ns: f64,
    /// Its bytes are copied behind a UDP header.
    pub copy_ns: f64,
    pub checksum_ns: f64,
    /// IP and Ethernet header.
    pub ip_ns: f64,
    /// From the queue to the port.
    pub port_ns: f64,
    pub total_ns: f64,
    /// The same where the link fills in the checksum.
    pub vouched_ns: f64,
}

/// One size of packets.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// Bytes of the IP packet.
    pub size: usize,
    pub receive: Receive,
    pub transmit: Transmit,
    /// Control plane: a datagram of an unknown port comes in and its answer goes out.
    pub unreachable_ns: f64,
    /// Of planes on threads of their own: what a batch costs besides, and how many times as long a plane takes while another core is at
    /// work, too. Nothing and 1 where there is one core only.
    pub hand_over: HandOver,
    #[serde(rename = "beside")]
    pub slowdown: f64,
}

/// All stages for packets of one size.
pub fn row(size: usize) -> Row {
    let mut harness = Harness::new(Checksums::ByEngine);
    let unknown = frame(size, PORT + 1);
    let unreachable_ns = median_ns(1, || harness.control_plane(&unknown));
    let (receive, transmit) = (receive(size, &mut harness), transmit(size, &mut harness));
    let (hand_over, slowdown) = apart_costs(size);
    Row { size, receive, transmit, unreachable_ns, hand_over, slowdown }
}

fn receive(size: usize, harness: &mut Harness) -> Receive {
    let frames = vec![frame(size, PORT); Batch::MOST];
    let mut routes = Routes::default();
    let addr = Addr::from(OWN);
    routes.add_interface(Interface { port: LINK_PORT, addr, prefix_len: 24, shared: false });
    let parse = |checksums: Checksums| {
        let link = checksums.link();
        let at = At { port: LINK_PORT, link: &link, routes: &routes };
        for frame in &frames {
            let _ = black_box(ingress::parse(black_box(frame), checksums.of_received(), at));
        }
    };
    let ethernet_ns = median_ns(Batch::MOST, || {
        for frame in &frames {
            let _ = black_box(EthRepr::parse(black_box(frame)));
        }
    });
    let header_ns = median_ns(Batch::MOST, || {
        for frame in &frames {
            let _ = black_box(Ipv4Repr::parse(black_box(&frame[ETHERNET..])));
        }
    });
    let ip_ns = median_ns(Batch::MOST, || parse(Checksums::ByLink));
    let with_checksum = median_ns(Batch::MOST, || parse(Checksums::ByEngine));
    let mut sockets = Sockets::default();
    sockets.open(SessionId(1), &presented(), 0, ());
    let (to, from) = (Endpoint::new(OWN, PORT), Endpoint::new(PEER, 9));
    let demultiplex_ns = median_ns(1, || {
        black_box(sockets.find(black_box(to), from));
    });
    let mut batch = Batch::default();
    let total_ns = median_ns(Batch::MOST, || harness.receive_plane(&frames, &mut batch));
    let mut vouched = Harness::new(Checksums::ByLink);
    let vouched_ns = median_ns(Batch::MOST, || vouched.receive_plane(&frames, &mut batch));
    Receive {
        ethernet_ns,
        header_ns,
        ip_ns,
        checksum_ns: left(with_checksum, ip_ns),
        demultiplex_ns,
        deliver_ns: left(total_ns, with_checksum + demultiplex_ns),
        total_ns,
        vouched_ns,
    }
}

fn transmit(size: usize, harness: &mut Harness) -> Transmit {
    let mut texts = Batch::default();
    let text = vec![0x5a; size - HEADERS];
    (0..Batch::MOST).for_each(|_| texts.push(&text));
    let (from, to) = (Endpoint::new(OWN, PORT), Endpoint::new(PEER, 9));
    let discover = MtuDiscover::default();
    let datagram = TxDatagram { from, to, ttl: 64, traffic_class: 0, mtu: 1500, discover };
    let mut queue = TxQueue::default();
    let mut sink = Forgets::default();
    let mut out = |checksums: Checksums| {
        let link = checksums.link();
        for text in texts.iter() {
            queue.push(&link, PEER_MAC, &datagram, black_box(text), 1);
        }
        queue.send(&mut sink, Batch::MOST);
    };
    let with_checksum = median_ns(Batch::MOST, || out(Checksums::ByEngine));
    let without = median_ns(Batch::MOST, || out(Checksums::ByLink));
    let link = Checksums::ByEngine.link();
    let mut bytes = vec![vec![0; ETHERNET + size]; Batch::MOST];
    let envelope = Envelope {
        hop: Hop::over(&link, PEER_MAC),
        from: OWN.into(),
        to: PEER.into(),
        ttl: 64,
        traffic_class: 0,
    };
    let ip_ns = median_ns(Batch::MOST, || {
        for bytes in &mut bytes {
            black_box(FrameBuilder::ip(black_box(bytes), &envelope, Protocol::Udp));
        }
    });
    let mut port = vec![0; ETHERNET + size];
    let port_ns = median_ns(Batch::MOST, || {
        for bytes in &bytes {
            black_box(&mut port).copy_from_slice(black_box(bytes));
        }
    });
    let total_ns = median_ns(Batch::MOST, || harness.transmit_plane(&texts));
    let mut vouched = Harness::new(Checksums::ByLink);
    let vouched_ns = median_ns(Batch::MOST, || vouched.transmit_plane(&texts));
    Transmit {
        route_ns: left(total_ns, with_checksum),
        copy_ns: left(without, ip_ns + port_ns),
        checksum_ns: left(with_checksum, without),
        ip_ns,
        port_ns,
        total_ns,
        vouched_ns,
    }
}
