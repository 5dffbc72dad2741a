//! What goes out: headers, pieces, checksums, and where the queue ends.

use crate::udp::transmit::TxQueue;
use crate::work::{Link, TxDatagram};
use toe_abi::lane::MtuDiscover;
use toe_base::{Addr, Endpoint};
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::ipv6::{Body, Ipv6Repr};
use toe_wire::link::{Cut, FrameSink, LinkCaps, MacAddr, Segmentation, TxOffload};
use toe_wire::{Protocol, UdpRepr, udp};

const ETHERNET: usize = 14;

#[derive(Default)]
struct Sink {
    frames: Vec<(Vec<u8>, TxOffload)>,
    room: usize,
}

impl FrameSink for Sink {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.len() == self.room {
            return None;
        }
        self.frames.push((vec![0; len], TxOffload::default()));
        self.frames.last_mut().map(|(frame, _)| frame.as_mut_slice())
    }
    fn commit(&mut self, offload: TxOffload) {
        self.frames.last_mut().expect("a frame").1 = offload;
    }
}

fn link(tx_checksum: bool) -> Link {
    Link { mtu: 1500, caps: LinkCaps { tx_checksum, gso_max: 0, ..LinkCaps::default() }, ..Link::default() }
}

fn datagram(v6: bool) -> TxDatagram {
    let ends = match v6 {
        false => [Addr::from([10, 0, 0, 2]), Addr::from([10, 0, 0, 9])],
        true => ["fd00::2", "fd00::9"].map(|text| Addr::v6(text.parse().expect("an address"), 0)),
    };
    TxDatagram {
        from: Endpoint { addr: ends[0], port: 53 },
        to: Endpoint { addr: ends[1], port: 1234 },
        ttl: 9,
        traffic_class: 0x28,
        mtu: 1500,
        discover: MtuDiscover::Want,
    }
}

/// The frames of a datagram of this text.
fn frames(link: &Link, datagram: &TxDatagram, text: &[u8]) -> Vec<(Vec<u8>, TxOffload)> {
    let (mut queue, mut sink) = (TxQueue::default(), Sink { room: 1000, ..Sink::default() });
    let count = queue.push(link, MacAddr::default(), datagram, text, 77);
    assert_eq!(queue.send(&mut sink, 1000), count);
    sink.frames
}

/// The datagram in frames, put together, with its header.
fn whole(frames: &[(Vec<u8>, TxOffload)], v6: bool) -> Vec<u8> {
    let mut whole = Vec::new();
    for (n, (frame, _)) in frames.iter().enumerate() {
        assert!(frame.len() <= ETHERNET + 1500);
        let is_last = n + 1 == frames.len();
        if v6 {
            let (ip, body) = Ipv6Repr::parse(&frame[ETHERNET..]).expect("a packet");
            assert_eq!((ip.hop_limit, ip.traffic_class), (9, 0x28));
            match body {
                Body::Whole(bytes) => whole.extend_from_slice(bytes),
                Body::Piece(fragment, bytes) => {
                    assert_eq!((fragment.ident, fragment.more), (77, !is_last));
                    assert_eq!(usize::from(fragment.offset) * 8, whole.len());
                    whole.extend_from_slice(bytes);
                }
            }
        } else {
            let (ip, bytes) = Ipv4Repr::parse(&frame[ETHERNET..]).expect("a packet");
            assert_eq!((ip.ttl, ip.traffic_class, ip.protocol), (9, 0x28, Protocol::Udp));
            assert_eq!((ip.more_fragments, usize::from(ip.fragment_offset) * 8), (!is_last, whole.len()));
            assert_eq!(ip.dont_fragment, frames.len() == 1);
            whole.extend_from_slice(bytes);
        }
    }
    whole
}

#[test]
fn what_goes_out_is_the_datagram_whatever_its_size() {
    // On both sides of one, two and three frames, of even and odd lengths.
    for len in (0..70).chain(1430..1510).chain(2920..3000).chain([4999]) {
        let text: Vec<u8> = (0..len).map(|n| (n * 7) as u8).collect();
        for v6 in [false, true] {
            let datagram = datagram(v6);
            let whole = whole(&frames(&link(false), &datagram, &text), v6);
            assert!(udp::checksum_is_valid(&whole, datagram.from.addr, datagram.to.addr), "{len}");
            let ports = UdpRepr { src_port: 53, dst_port: 1234 };
            assert_eq!(UdpRepr::parse(&whole), Ok((ports, &text[..])));
        }
    }
}

#[test]
fn routers_may_cut_what_says_so() {
    let dont = TxDatagram { discover: MtuDiscover::Dont, ..datagram(false) };
    let [(frame, _)] = &frames(&link(true), &dont, b"abc")[..] else { panic!("one frame") };
    let (ip, bytes) = Ipv4Repr::parse(&frame[ETHERNET..]).expect("a packet");
    assert!(!ip.dont_fragment && !ip.more_fragments && ip.fragment_offset == 0);
    assert_eq!((ip.ident, bytes.len()), (77, 11), "what a router makes of it can be put together");
    assert!(udp::checksum_is_valid(bytes, dont.from.addr, dont.to.addr));
    // In IPv6 none may.
    let dont = TxDatagram { discover: MtuDiscover::Dont, ..datagram(true) };
    assert_eq!(frames(&link(true), &dont, b"abc")[0].0.len(), ETHERNET + 40 + 11);
}

#[test]
fn a_narrow_path_makes_smaller_pieces() {
    let narrow = TxDatagram { mtu: 600, ..datagram(false) };
    let frames = frames(&link(true), &narrow, &[7; 1500]);
    assert!(frames.len() == 3 && frames.iter().all(|(frame, _)| frame.len() <= ETHERNET + 600));
    assert_eq!(whole(&frames, false).len(), 1508);
}

#[test]
fn the_largest_datagram_is_cut_up() {
    for v6 in [false, true] {
        let text = vec![7; 65_507];
        let frames = frames(&link(true), &datagram(v6), &text);
        assert_eq!(whole(&frames, v6).len(), udp::HEADER_LEN + text.len());
        assert!(
            frames.iter().all(|(_, offload)| offload.checksum.is_none()),
            "no link fills in what is cut up"
        );
    }
}

#[test]
fn a_link_that_can_fills_in_the_checksum() {
    let text = b"abc";
    let [(frame, offload)] = &frames(&link(true), &datagram(false), text)[..] else { panic!("one frame") };
    let checksum = offload.checksum.expect("asked for");
    assert_eq!((usize::from(checksum.start), checksum.offset), (ETHERNET + 20, 6));
    // As the link does it.
    let mut frame = frame.clone();
    let sum = toe_wire::Sum::of(&frame[ETHERNET + 20..]).checksum();
    frame[ETHERNET + 26..ETHERNET + 28].copy_from_slice(&sum.to_be_bytes());
    let ends = datagram(false);
    assert!(udp::checksum_is_valid(&frame[ETHERNET + 20..], ends.from.addr, ends.to.addr));
}

#[test]
fn what_a_link_cuts_up_goes_in_one_frame() {
    let can = LinkCaps { tx_checksum: true, gso_max: 65_000, cuts_datagrams: true };
    let over = |caps| Link { mtu: 1500, caps, ..Link::default() };
    let push = |link: &Link, len: usize, segment: u16, v6: bool| {
        let (mut queue, mut sink) = (TxQueue::default(), Sink { room: 9, ..Sink::default() });
        let text = vec![7; len];
        let pushed = queue.push_joined(link, MacAddr::default(), &datagram(v6), &text, segment);
        queue.send(&mut sink, 9);
        assert_eq!(sink.frames.len(), usize::from(pushed));
        sink.frames.pop()
    };
    for (v6, headers) in [(false, 14 + 20 + 8), (true, 14 + 40 + 8)] {
        let (frame, offload) = push(&over(can), 6000, 1200, v6).expect("a frame");
        assert_eq!(frame.len(), headers + 6000);
        let segmentation = Segmentation { header_len: headers as u16, mss: 1200, cut: Cut::Datagrams };
        assert_eq!(offload.segmentation, Some(segmentation));
        assert!(offload.checksum.is_some());
        assert!(push(&over(can), 6000, 1453, true).is_none(), "a segment is longer than the link's frames");
        assert!(push(&over(can), 65_100, 1200, v6).is_none(), "it is longer than the link takes at once");
        assert!(push(&over(can), 1200, 1200, v6).is_none(), "it is one");
        assert!(push(&over(LinkCaps { cuts_datagrams: false, ..can }), 6000, 1200, v6).is_none());
    }
}

#[test]
fn datagrams_that_wait_one_behind_the_other_go_in_one_frame() {
    let caps = LinkCaps { tx_checksum: true, gso_max: 65_000, cuts_datagrams: true };
    let over = |caps| Link { mtu: 1500, caps, ..Link::default() };
    let frames = |caps: LinkCaps, texts: &[&[u8]]| {
        let (mut queue, mut sink) = (TxQueue::default(), Sink { room: 99, ..Sink::default() });
        for (n, text) in texts.iter().enumerate() {
            // The last of them is for another peer.
            let mut to = datagram(false);
            to.to.port += u16::from(n + 1 == texts.len());
            assert_eq!(queue.push(&over(caps), MacAddr::default(), &to, text, 1), 1);
        }
        queue.send(&mut sink, 99);
        sink.frames
    };
    let texts: [&[u8]; 8] = [b"aaaa", b"bbbb", b"cc", b"dd", b"eee", b"", b"gggg", b"gggg"];
    let together = frames(caps, &texts);
    let texts_of = |frames: &[(Vec<u8>, TxOffload)]| -> Vec<Vec<u8>> {
        frames.iter().map(|(frame, _)| frame[ETHERNET + 28..].to_vec()).collect()
    };
    let wanted = [&b"aaaabbbbcc"[..], b"dd", b"eee", b"", b"gggg", b"gggg"];
    assert_eq!(
        texts_of(&together),
        wanted.map(<[u8]>::to_vec),
        "no longer ones, no empty ones, nobody else's"
    );
    let (frame, offload) = &together[0];
    let segmentation = Segmentation { header_len: 42, mss: 4, cut: Cut::Datagrams };
    assert_eq!(offload.segmentation, Some(segmentation));
    let (ip, udp_part) = Ipv4Repr::parse(&frame[ETHERNET..]).expect("a packet");
    assert_eq!((usize::from(ip.total_len), udp_part.len()), (20 + 8 + 10, 18));
    assert_eq!(u16::from_be_bytes([udp_part[4], udp_part[5]]), 18);
    assert!(together[1..].iter().all(|(_, offload)| offload.segmentation.is_none()));
    let apart = frames(LinkCaps { cuts_datagrams: false, ..caps }, &texts);
    assert_eq!(texts_of(&apart), texts.map(<[u8]>::to_vec));
    assert_eq!(frames(caps, &[&b"x"[..]; 66]).len(), 3, "64, one, and another's");
}

#[test]
fn a_port_that_takes_nothing_bounds_the_queue() {
    let mut queue = TxQueue::default();
    let push =
        |queue: &mut TxQueue| queue.push(&link(false), MacAddr::default(), &datagram(false), &[0; 65_507], 1);
    let mut last = 1;
    for _ in 0..100 {
        last = push(&mut queue);
    }
    assert_eq!(last, 0, "dropped");
    assert!(!queue.has_room() && queue.len() < 600, "{}", queue.len());
    let mut sink = Sink { room: 5, ..Sink::default() };
    assert!((0..1 << 15).any(|_| queue.has_room()), "what is stuck is not waited for");
    assert_eq!(queue.send(&mut sink, 1000), 5, "as many as the port takes");
    assert!(!queue.has_room(), "it takes frames again");
}
