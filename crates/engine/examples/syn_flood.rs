//! What a SYN of a flood costs the engine: `cargo run --release -p toe-engine --example syn_flood`.
//!
//! Frames go in and answers come out in memory; no link and no other program is there. The first row are SYNs for a listener
//! whose backlog is full, each answered with a cookie; the second, SYNs for a port where nobody listens, of which a few
//! thousand a second are answered with RST and the others dropped.

use std::time::Instant as Clock;
use toe_abi::command::ListenArgs;
use toe_abi::entry::Command;
use toe_abi::region::RegionLayout;
use toe_base::window::UnscaledWindow;
use toe_base::{Addr, Instant, PortId, QueueSetId, SeqNum};
use toe_engine::control::names::Twin;
use toe_engine::kit::FakeHosts;
use toe_engine::{Counter, Engine, EngineConfig, Link, NetworkChange};
use toe_wire::eth::{EthRepr, EtherType};
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};
use toe_wire::tcp::{TcpFlags, TcpOptions, TcpRepr, Timestamps};
use zerocopy::IntoBytes;

const SYNS: u32 = 2_000_000;
/// SYNs of one look at the link.
const BATCH: usize = 256;
const ENGINE: ([u8; 4], MacAddr) = ([10, 0, 0, 2], MacAddr([2, 0, 0, 0, 0, 2]));
const FLOODER: ([u8; 4], MacAddr) = ([10, 0, 0, 3], MacAddr([2, 0, 0, 0, 0, 3]));
const LAYOUT: RegionLayout =
    RegionLayout { queue_sets: 1, flows: 64, receive_len: 1 << 20, send_len: 1 << 20 };

/// A link that takes everything.
struct Sink(Vec<u8>);

impl FrameSink for Sink {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.0.get_mut(..len)
    }
    fn commit(&mut self, _: TxOffload) {}
}

fn syn(number: u32, dst_port: u16) -> Vec<u8> {
    let header = TcpRepr {
        src_port: 1024 + (number % 60_000) as u16,
        dst_port,
        seq: SeqNum::new(number.wrapping_mul(0x9e37_79b9)),
        ack: None,
        flags: TcpFlags::SYN,
        window: UnscaledWindow(65_535),
        urgent: 0,
        options: TcpOptions {
            mss: Some(1460),
            timestamps: Some(Timestamps { value: number, echo: 0 }),
            ..TcpOptions::default()
        },
    };
    let mut frame = vec![0; 34 + header.header_len()];
    let ip = Ipv4Repr {
        src: FLOODER.0.into(),
        dst: ENGINE.0.into(),
        protocol: Protocol::Tcp,
        ttl: 64,
        traffic_class: 0,
        ident: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: (frame.len() - 14) as u16,
    };
    EthRepr { dst: ENGINE.1, src: FLOODER.1, ethertype: EtherType::Ipv4 }.emit(&mut frame);
    ip.emit(&mut frame[14..]);
    header.emit(&mut frame[34..]);
    frame
}

fn listening_engine() -> (Engine, PortId) {
    let mut engine = Engine::new(EngineConfig::with_secret([7; 16]));
    let link = Link {
        mac: ENGINE.1,
        mtu: 1500,
        caps: LinkCaps { tx_checksum: true, gso_max: 0, ..LinkCaps::default() },
        ..Link::default()
    };
    let port = engine.add_port(link);
    engine.handle_network(NetworkChange::Address { port, addr: Addr::v4(ENGINE.0.into()), prefix_len: 24 });
    let session = engine.open_session(toe_base::Cred::default(), LAYOUT).expect("a first session");
    engine.add_queue_set(session).expect("a first queue set");
    let anchor = engine.take_anchor(session).expect("an anchor").0;
    let local = std::net::SocketAddr::from((ENGINE.0, 80));
    let twin = Twin::listening(local.into(), 1, toe_base::Cred::default(), Instant::from_micros(1));
    let twin = engine.add_twin(session, twin).expect("a first kernel socket");
    let args = ListenArgs { local: local.into(), backlog: 64, anchor, twin, ..ListenArgs::default() };
    let mut block = [0; 64];
    block.copy_from_slice(args.as_bytes());
    let listen = Command::Listen { token: 1 };
    engine
        .handle_command(
            Instant::from_micros(1),
            session,
            QueueSetId(0),
            listen,
            &block,
            &mut FakeHosts::default(),
        )
        .expect("a good command");
    (engine, port)
}

fn main() {
    for (what, dst_port) in [("answered with a cookie", 80), ("for nobody", 81)] {
        let (mut engine, port) = listening_engine();
        let mut sink = Sink(vec![0; 2048]);
        let mut host = FakeHosts::default();
        let frames: Vec<_> = (0..65_536).map(|number| syn(number, dst_port)).collect();
        let checked = RxOffload { checksum_ok: true, coalesced_mss: None };
        let start = Clock::now();
        for batch in 0..SYNS as usize / BATCH {
            let now = Instant::from_micros(1_000_000 + start.elapsed().as_micros() as u64);
            for at in 0..BATCH {
                let frame = &frames[(batch * BATCH + at) % frames.len()];
                engine.handle_frame(now, port, frame, checked, &mut host);
            }
            while engine.poll_transmit(now, port, &mut sink, &mut host, BATCH) > 0 {}
        }
        let each = start.elapsed().as_nanos() / u128::from(SYNS);
        let (cookies, resets) =
            (engine.view().counter(Counter::CookiesSent), engine.view().counter(Counter::Resets));
        let records = engine.view().totals().flows;
        println!("{what}: {each} ns a SYN; {cookies} cookies, {resets} resets, {records} records");
    }
}
