//! Frames to an engine with one address, and what comes back.

use super::NUMBER;
use crate::egress::builder::{Envelope, FrameBuilder, Hop};
use crate::kit::FakeHosts;
use crate::{Engine, EngineConfig, Link, NetworkChange};
use std::collections::BTreeMap;
use toe_base::{Addr, Instant, PortId};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::ipv6::{Body, Ipv6Repr};
use toe_wire::link::{FrameSink, MacAddr, RxOffload, TxOffload};

const ETHERNET: usize = 14;
const OWN_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const PEER_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const PORT: PortId = PortId(0);

#[derive(Default)]
struct Frames(Vec<Vec<u8>>);

impl FrameSink for Frames {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.push(vec![0; len]);
        self.0.last_mut().map(Vec::as_mut_slice)
    }
    fn commit(&mut self, _: TxOffload) {}
}

struct Bench {
    engine: Engine,
    now: Instant,
}

fn v6(text: &str) -> Addr {
    Addr::v6(text.parse().expect("an address"), 0)
}

impl Bench {
    fn new() -> Bench {
        let mut engine = Engine::new(EngineConfig { flows_max: 16, ..EngineConfig::with_secret([7; 16]) });
        let port = engine.add_port(Link { mac: OWN_MAC, mtu: 1500, ..Link::default() });
        engine.handle_network(NetworkChange::Address { port, addr: [10, 0, 0, 2].into(), prefix_len: 24 });
        engine.handle_network(NetworkChange::Address { port, addr: v6("fd00::2"), prefix_len: 64 });
        Bench { engine, now: Instant::from_micros(1_000_000) }
    }

    fn frame(&mut self, frame: &[u8]) {
        self.engine.handle_frame(self.now, PORT, frame, RxOffload::default(), &mut FakeHosts::default());
    }

    /// A packet of the protocol from a peer.
    fn send(&mut self, from: Addr, bytes: &[u8]) {
        let to = if from.is_v4() { [10, 0, 0, 2].into() } else { v6("fd00::2") };
        let hop = Hop { from: PEER_MAC, to: OWN_MAC, vlan: None };
        let envelope = Envelope { hop, from, to, ttl: 64, traffic_class: 0 };
        let mut frame = vec![0; envelope.headers_len() + bytes.len()];
        FrameBuilder::ip(&mut frame, &envelope, Protocol::Other(NUMBER)).transport().copy_from_slice(bytes);
        self.frame(&frame);
    }

    /// What the engine sends now: to whom, and the text.
    fn sent(&mut self) -> Vec<(Addr, String)> {
        let mut frames = Frames::default();
        self.engine.poll_transmit(self.now, PORT, &mut frames, &mut FakeHosts::default(), 64);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let read = |frame: &Vec<u8>| match frame[ETHERNET] >> 4 {
            4 => {
                let (ip, bytes) = Ipv4Repr::parse(&frame[ETHERNET..]).expect("a packet");
                assert_eq!((ip.protocol, ip.src), (Protocol::Other(NUMBER), [10, 0, 0, 2].into()));
                (Addr::v4(ip.dst), text(bytes))
            }
            _ => match Ipv6Repr::parse(&frame[ETHERNET..]).expect("a packet") {
                (ip, Body::Whole(bytes)) => (Addr::v6(ip.dst, 0), text(bytes)),
                other => panic!("{other:?}"),
            },
        };
        frames.0.iter().map(read).collect()
    }

    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.engine.view().counters().filter(|(name, _)| name.contains("tally")).collect()
    }
}

#[test]
fn packets_come_and_are_answered_over_both_families() {
    let mut bench = Bench::new();
    for peer in [Addr::from([10, 0, 0, 9]), v6("fd00::9")] {
        bench.send(peer, b"count");
        bench.send(peer, b"count me");
        let told = ["counted 1", "counted 2"].map(|text| (peer, text.to_owned()));
        assert_eq!(bench.sent(), told);
    }
    assert_eq!(bench.counters(), BTreeMap::from([("tally_counted", 4)]));
}

#[test]
fn time_is_the_engines_and_peers_are_let_go() {
    let mut bench = Bench::new();
    let peer = Addr::from([10, 0, 0, 9]);
    bench.send(peer, b"count");
    bench.sent();
    let due = bench.engine.poll_timeout();
    assert_eq!(due, bench.now.after_us(1_000_000));
    bench.now = due;
    bench.engine.handle_timeout(due, &mut FakeHosts::default());
    assert_eq!(bench.sent(), [(peer, "1 in all".to_owned())]);
    assert_eq!((bench.counters()["tally_let_go"], bench.engine.poll_timeout()), (1, Instant::FAR_FUTURE));
}

#[test]
fn what_is_wrong_is_counted_and_peers_are_bounded() {
    let mut bench = Bench::new();
    for bytes in [&b""[..], b"coun", b"\xff"] {
        bench.send([10, 0, 0, 9].into(), bytes);
    }
    for n in 0..20 {
        bench.send([10, 0, 0, 100 + n].into(), b"count");
    }
    assert_eq!(bench.sent().len(), 16);
    let expected = [("drop_tally_crowded", 4), ("drop_tally_malformed", 3), ("tally_counted", 16)];
    assert_eq!(bench.counters(), BTreeMap::from(expected));
    // No call sends much: they are let go in several.
    bench.now = bench.engine.poll_timeout();
    bench.engine.handle_timeout(bench.now, &mut FakeHosts::default());
    assert_eq!(bench.sent().len(), crate::protocols::OUT_MAX);
}

#[test]
fn pieces_are_put_together_before() {
    let mut bench = Bench::new();
    let bytes = b"count this longer one";
    for (offset, piece, more) in [(2, &bytes[16..], false), (0, &bytes[..16], true)] {
        let mut frame = vec![0; ETHERNET + 20 + piece.len()];
        frame[..ETHERNET].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 9, 8, 0]);
        let ip = Ipv4Repr {
            src: [10, 0, 0, 9].into(),
            dst: [10, 0, 0, 2].into(),
            protocol: Protocol::Other(NUMBER),
            ttl: 64,
            traffic_class: 0,
            ident: 7,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: offset,
            total_len: (20 + piece.len()) as u16,
        };
        ip.emit(&mut frame[ETHERNET..]);
        frame[ETHERNET + 20..].copy_from_slice(piece);
        bench.frame(&frame);
    }
    assert_eq!(bench.sent(), [(Addr::from([10, 0, 0, 9]), "counted 1".to_owned())]);
}
