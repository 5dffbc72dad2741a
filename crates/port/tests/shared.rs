//! `xdp:` for real: which frames of an interface with the kernel's own address come to the engine, and which stay the
//! kernel's. Each test in a network namespace of its own, on a veth whose other end is a packet port. Needs root.

mod namespace;

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::time::{Duration, Instant};

use namespace::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use toe_base::SeqNum;
use toe_base::window::UnscaledWindow;
use toe_port::{OpenError, Port, PortCounter, PortSpec, open};
use toe_wire::link::TxOffload;
use toe_wire::{EthRepr, EtherType, Ipv4Repr, MacAddr, Protocol, TcpFlags, TcpOptions, TcpRepr, tcp};

/// The host's, on the interface that the engine shares.
const HOST: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const PEER_PORT: u16 = 4000;
const PATIENCE: Duration = Duration::from_secs(10);
const RESEND: Duration = Duration::from_millis(20);

fn open_port(spec: &str) -> Box<dyn Port> {
    open(&spec.parse::<PortSpec>().expect("a good specification"))
        .unwrap_or_else(|error| panic!("{spec}: {error}"))
}

fn at(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(HOST, port)
}

/// A namespace with `near`, which has the host's addresses, and `far`, which has none.
fn namespace() -> Option<Namespace> {
    let namespace = Namespace::new()?;
    namespace.ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
    for addr in [HOST, OTHER] {
        namespace.ip(&["addr", "add", &format!("{addr}/24"), "dev", "near"]);
    }
    namespace.ip(&["link", "set", "near", "up"]);
    namespace.ip(&["link", "set", "far", "up"]);
    Some(namespace)
}

/// A veth with the engine's port at one end and a peer of frames at the other.
struct Wire {
    near: Box<dyn Port>,
    far: Box<dyn Port>,
    /// The hardware address of `near`.
    mac: MacAddr,
}

/// Who got a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Got {
    Engine,
    /// It answered, with or without RST.
    Kernel {
        reset: bool,
    },
}

impl Wire {
    fn open(inside: &str) -> Wire {
        let (near, far) = (open_port("xdp:near"), open_port("packet:far"));
        let wire = Wire { mac: near.mac(), near, far };
        let mac = wire.far.mac().to_string();
        let peer = PEER.to_string();
        namespace::ip_in(inside, &["neigh", "add", &peer, "lladdr", &mac, "dev", "near"]);
        wire
    }

    fn steering(&mut self) -> &mut dyn toe_port::Steering {
        self.near.steering().expect("a shared port steers")
    }

    fn send(&mut self, to: SocketAddrV4, flags: TcpFlags, ack: Option<SeqNum>) {
        let repr = TcpRepr {
            src_port: PEER_PORT,
            dst_port: to.port(),
            seq: SeqNum::new(1000),
            ack,
            flags,
            window: UnscaledWindow(60_000),
            urgent: 0,
            options: TcpOptions::default(),
        };
        let tcp_len = repr.header_len();
        let frame = self.far.transmit().frame(34 + tcp_len).expect("room");
        EthRepr { dst: self.mac, src: MacAddr([2, 0, 0, 0, 0, 9]), ethertype: EtherType::Ipv4 }.emit(frame);
        let ip = Ipv4Repr {
            src: PEER,
            dst: *to.ip(),
            protocol: Protocol::Tcp,
            ttl: 64,
            traffic_class: 0,
            ident: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset: 0,
            total_len: (20 + tcp_len) as u16,
        };
        ip.emit(&mut frame[14..]);
        repr.emit(&mut frame[34..]);
        tcp::store_checksum(&mut frame[34..], PEER, *to.ip());
        self.far.transmit().commit(TxOffload::default());
        self.far.flush().expect("the link is up");
    }

    /// Whether a frame of TCP to (at the engine) or from (at the peer) this address waits; with RST?
    fn look(port: &mut dyn Port, whose: SocketAddrV4, is_engine: bool) -> Option<bool> {
        let mut found = None;
        port.receive(64, &mut |frame, _| {
            let Ok((link, rest)) = EthRepr::parse(frame) else { return };
            if link.ethertype != EtherType::Ipv4 {
                return;
            }
            let Ok((ip, segment)) = Ipv4Repr::parse(rest) else { return };
            let Ok((repr, _)) = TcpRepr::parse(segment) else { return };
            let (addr, port) = if is_engine { (ip.dst, repr.dst_port) } else { (ip.src, repr.src_port) };
            if (addr, port) == (*whose.ip(), whose.port()) {
                found = Some(repr.flags.rst());
            }
        })
        .expect("link up");
        found
    }

    /// Sends a segment until somebody has it.
    fn who_gets(&mut self, to: SocketAddrV4, flags: TcpFlags, ack: Option<SeqNum>) -> Got {
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < deadline, "nobody got what was sent to {to}");
            self.send(to, flags, ack);
            let fds = [self.near.poll_fd(), self.far.poll_fd()].map(|fd| fd.expect("a kernel link has one"));
            let mut fds = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(RESEND.subsec_nanos()) };
            poll(&mut fds, Some(&timeout)).expect("poll");
            if Wire::look(&mut *self.near, to, true).is_some() {
                return Got::Engine;
            }
            if let Some(reset) = Wire::look(&mut *self.far, to, false) {
                return Got::Kernel { reset };
            }
        }
    }

    fn who_gets_syn(&mut self, to: SocketAddrV4) -> Got {
        self.who_gets(to, TcpFlags::SYN, None)
    }
}

const REFUSED: Got = Got::Kernel { reset: true };

#[test]
fn only_what_is_steered_comes_to_the_engine() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        assert_eq!(wire.who_gets_syn(at(80)), REFUSED, "nothing is steered at first");

        wire.steering().listen(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 80), true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(80)), REFUSED, "no address of the host is known");
        wire.steering().address(HOST, true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Engine);
        assert_eq!(wire.who_gets_syn(at(81)), REFUSED);
        assert_eq!(wire.who_gets_syn(SocketAddrV4::new(OTHER, 80)), REFUSED, "an address that was not told");

        wire.steering().address(OTHER, true).expect("a map");
        assert_eq!(wire.who_gets_syn(SocketAddrV4::new(OTHER, 80)), Got::Engine);
        wire.steering().listen(at(81), true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(81)), Got::Engine);
        assert_eq!(wire.who_gets_syn(SocketAddrV4::new(OTHER, 81)), REFUSED, "listened at one address only");

        wire.steering().reserve(40_000, true).expect("a map");
        let ack = Some(SeqNum::new(7));
        assert_eq!(wire.who_gets(at(40_000), TcpFlags::NONE, ack), Got::Engine);
        assert_eq!(wire.near.counters().get(PortCounter::SteerEntries), 3);

        wire.steering().listen(at(81), false).expect("a map");
        wire.steering().reserve(40_000, false).expect("a map");
        assert_eq!(wire.who_gets_syn(at(81)), REFUSED);
        assert_eq!(wire.who_gets(at(40_000), TcpFlags::NONE, ack), REFUSED);
    });
}

#[test]
fn a_connection_without_a_listener_is_steered_alone() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        wire.steering().flow(at(81), SocketAddrV4::new(PEER, PEER_PORT), true).expect("a map");
        wire.steering().flow(at(82), SocketAddrV4::new(PEER, PEER_PORT + 1), true).expect("a map");
        assert_eq!(wire.who_gets(at(81), TcpFlags::NONE, Some(SeqNum::new(7))), Got::Engine);
        assert_eq!(wire.who_gets(at(82), TcpFlags::NONE, Some(SeqNum::new(7))), REFUSED, "of another port");
        wire.steering().flow(at(81), SocketAddrV4::new(PEER, PEER_PORT), false).expect("a map");
        assert_eq!(wire.who_gets(at(81), TcpFlags::NONE, Some(SeqNum::new(7))), REFUSED);
    });
}

/// A connection that the kernel has on the port of a listener of the engine stays the kernel's, from its handshake on.
#[test]
fn connections_of_the_kernel_stay_its_own() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        let listener = TcpListener::bind(at(80)).expect("the kernel's address is there");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Kernel { reset: false }, "a SYN-ACK");
        wire.steering().listen(at(80), true).expect("a map");
        let half_open = wire.who_gets_syn(at(80));
        assert_eq!(half_open, Got::Kernel { reset: false }, "a connection that is being made is one");
        let peer = SocketAddrV4::new(PEER, PEER_PORT);
        wire.steering().flow(at(80), peer, true).expect("a map");
        let named = wire.who_gets_syn(at(80));
        assert_eq!(named, Got::Kernel { reset: false }, "nor is it taken by its name");
        wire.steering().flow(at(80), peer, false).expect("a map");
        drop(listener);
        // The kernel finds that nobody waits for it any more when it hears of it again, and forgets it.
        let deadline = Instant::now() + PATIENCE;
        while wire.who_gets_syn(at(80)) != Got::Engine {
            assert!(Instant::now() < deadline, "the kernel has it no more");
        }
    });
}

/// Frames come in by several queues, as their ports have it.
#[test]
fn every_receive_queue_is_served() {
    const QUEUES: &str = "4";
    let Some(namespace) = Namespace::new() else { return };
    let queues = ["numrxqueues", QUEUES, "numtxqueues", QUEUES];
    let pair = ["link", "add", "near", "type", "veth", "peer", "name", "far"];
    namespace.ip(&[&pair[..3], &queues, &pair[3..], &queues].concat());
    namespace.ip(&["addr", "add", &format!("{HOST}/24"), "dev", "near"]);
    ["near", "far"].into_iter().for_each(|end| namespace.ip(&["link", "set", end, "up"]));
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        for port in 1000..1064 {
            wire.steering().listen(at(port), true).expect("a map");
            assert_eq!(wire.who_gets_syn(at(port)), Got::Engine, "port {port}");
        }
    });
}

/// A bridge has no XDP of its own: the program runs behind its driver.
#[test]
fn an_interface_without_a_driver_of_its_own_is_served() {
    let Some(namespace) = Namespace::new() else { return };
    namespace.ip(&["link", "add", "near", "type", "bridge"]);
    namespace.ip(&["link", "add", "port", "master", "near", "type", "veth", "peer", "name", "far"]);
    namespace.ip(&["addr", "add", &format!("{HOST}/24"), "dev", "near"]);
    ["near", "port", "far"].into_iter().for_each(|link| namespace.ip(&["link", "set", link, "up"]));
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        wire.steering().listen(at(80), true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Engine);
        assert_eq!(wire.who_gets_syn(at(81)), REFUSED);
    });
}

#[test]
fn an_interface_that_appears_again_is_taken_up_with_what_was_steered() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        wire.steering().listen(at(80), true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Engine);
        namespace::ip_in(&inside, &["link", "del", "near"]);
        let frame = wire.near.transmit().frame(60).expect("room");
        frame.fill(0);
        wire.near.transmit().commit(TxOffload::default());
        assert!(wire.near.flush().is_err(), "a link that is gone is said");
        assert!(matches!(wire.near.reopen(), Err(OpenError::NoSuchInterface { .. })));

        namespace::ip_in(&inside, &["link", "add", "near", "type", "veth", "peer", "name", "far"]);
        namespace::ip_in(&inside, &["addr", "add", &format!("{HOST}/24"), "dev", "near"]);
        namespace::ip_in(&inside, &["link", "set", "near", "up"]);
        namespace::ip_in(&inside, &["link", "set", "far", "up"]);
        wire.near.reopen().expect("it is there again");
        wire.mac = wire.near.mac();
        wire.far.reopen().expect("it is there again");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Engine);
    });
}

#[test]
fn every_refusal_names_cause_and_remedy() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let refusal = |spec: &str| {
            open(&spec.parse::<PortSpec>().expect("a good specification"))
                .err()
                .map(|error| error.to_string())
        };
        let first = open_port("xdp:near");
        let text = refusal("xdp:near").expect("refused");
        assert!(text.contains("another XDP program") && text.contains("ip link set near xdp off"), "{text}");
        drop(first);
        drop(open_port("xdp:near"));
        let text = refusal("xdp:nowhere").expect("refused");
        assert!(text.contains("no interface `nowhere`"), "{text}");
        assert!(refusal("xdp:lo").expect("refused").contains("not an Ethernet interface"));
        namespace::ip_in(&inside, &["link", "set", "near", "mtu", "9000"]);
        let text = refusal("xdp:near").expect("refused");
        assert!(text.contains("MTU of 9000") && text.contains("packet:near"), "{text}");
    });
}

#[test]
fn the_interface_is_as_before_when_the_port_is_closed() {
    let Some(namespace) = namespace() else { return };
    let inside = namespace.name().to_owned();
    namespace.run(move || {
        let mut wire = Wire::open(&inside);
        wire.steering().address(HOST, true).expect("a map");
        wire.steering().listen(at(80), true).expect("a map");
        assert_eq!(wire.who_gets_syn(at(80)), Got::Engine);
        wire.near = open_port("tap:unused");
        assert_eq!(wire.who_gets_syn(at(80)), REFUSED);
    });
}
