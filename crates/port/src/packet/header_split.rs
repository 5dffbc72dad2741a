//! Large segments, and large datagrams, of which the engine is shown the headers alone, and says where the bytes behind them belong: the kernel then copies
//! them straight there. Used by [`super::PacketPort`].

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::atomic::AtomicU8;

use toe_base::limits::FRAME_MAX;
use toe_wire::eth::{self, EtherType};
use toe_wire::link::{FrameTail, RxOffload};

use super::sys::{PacketSocket, PayloadTarget, ReceiveBatch};
use crate::port::{EachFrame, PortCounter, PortCounters};
use crate::virtio_net;

/// No headers of Ethernet, IP and TCP are longer, where TCP follows IP at once; UDP's is short.
const HEADERS_MAX: usize = 14 + 60 + 60;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The beginning of a packet in the socket's queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct SplitFrame<'a> {
    bytes: &'a [u8],
    offload: RxOffload,
    frame_len: usize,
}

impl<'a> SplitFrame<'a> {
    /// Of a TCP segment or of datagrams whose checksum needs no look; of others (`None`) all bytes are wanted. `packet` is virtio-net header and the
    /// beginning of the frame.
    pub(super) fn of(packet: &'a [u8], frame_len: usize) -> Option<SplitFrame<'a>> {
        let (header, frame) = packet.split_first_chunk::<{ virtio_net::HEADER_LEN }>()?;
        let offload = virtio_net::decode(header, frame_len).ok()?;
        let bytes = frame.get(..HEADERS_MAX)?;
        let is_wanted = offload.checksum_ok && is_transport(bytes) && frame_len <= FRAME_MAX;
        is_wanted.then_some(SplitFrame { bytes, offload, frame_len })
    }

    /// Shows it, and takes its packet from the queue. Whether it was good.
    pub(super) fn deliver(
        self,
        socket: &PacketSocket,
        receive: &mut ReceiveBatch,
        counters: &mut PortCounters,
        each: &mut EachFrame<'_>,
    ) -> io::Result<bool> {
        counters.received(self.frame_len);
        let (frame, spare) = receive.split(self.bytes, self.frame_len);
        let tail = Tail { socket, frame, spare, outcome: RefCell::new(None) };
        each(frame, self.offload, Some(&tail));
        // Whoever does not want it has it taken away all the same: the next one stands behind it.
        let outcome = tail.outcome.take().unwrap_or_else(|| tail.receive(0, PayloadTarget::Shared(&[])));
        match outcome {
            Ok(()) => Ok(true),
            Err(error) if crate::batch::is_link_gone(&error) => Err(error),
            Err(_) => {
                counters.add(PortCounter::RxRefused, 1);
                Ok(true)
            }
        }
    }
}

/// Whole, and with no header between those of IP and TCP or UDP.
fn is_transport(frame: &[u8]) -> bool {
    /// More fragments, or an offset.
    const FRAGMENT: u16 = 0x3fff;
    let word = |at: usize| frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let protocol = |at: usize| matches!(frame.get(eth::HEADER_LEN + at), Some(&(TCP | UDP)));
    match EtherType::from_raw(word(12)) {
        EtherType::Ipv4 => protocol(9) && word(eth::HEADER_LEN + 6) & FRAGMENT == 0,
        EtherType::Ipv6 => protocol(6),
        _ => false,
    }
}

/// What is in the queue. `None`: not taken yet.
#[derive(Debug)]
struct Tail<'a> {
    socket: &'a PacketSocket,
    frame: &'a [u8],
    /// Where bytes go that nobody wants; and the headers, once more.
    spare: &'a [Cell<u8>],
    outcome: RefCell<Option<io::Result<()>>>,
}

impl Tail<'_> {
    /// Takes the packet from the queue: what lies before `from` and behind the places is lost.
    fn receive(&self, from: usize, into: PayloadTarget<'_>) -> io::Result<()> {
        let lead = virtio_net::HEADER_LEN + from;
        let len = self.socket.receive_into(&self.spare[..lead], into)?;
        // Place and queue are in the same order: that they are is worth a look.
        let headers = self.frame[..from.min(HEADERS_MAX)].iter();
        let is_same =
            self.spare[virtio_net::HEADER_LEN..].iter().map(Cell::get).zip(headers).all(|(a, b)| a == *b);
        let is_whole = len == virtio_net::HEADER_LEN + self.frame.len();
        if is_same && is_whole { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

impl Tail<'_> {
    fn take_once(&self, from: usize, into: PayloadTarget<'_>) -> bool {
        let outcome = match self.outcome.take() {
            None if from <= self.frame.len() => self.receive(from, into),
            None => return false,
            Some(Ok(())) => Err(io::ErrorKind::InvalidInput.into()),
            Some(failed) => failed,
        };
        let taken = outcome.is_ok();
        self.outcome.replace(Some(outcome));
        taken
    }
}

impl FrameTail for Tail<'_> {
    fn take(&self, from: usize, into: &[&[AtomicU8]]) -> bool {
        self.take_once(from, PayloadTarget::Shared(into))
    }

    fn read(&self, from: usize, into: &mut [u8]) -> bool {
        self.take_once(from, PayloadTarget::Own(Cell::from_mut(into).as_slice_of_cells()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
    use std::os::fd::OwnedFd;
    use toe_wire::link::{Cut, PartialChecksum, Segmentation, TxOffload};

    const HEADERS: usize = 54;

    /// A packet with a large IPv4 segment whose payload begins with `first`.
    fn packet(first: u8, payload_len: usize) -> Vec<u8> {
        let segmentation = Segmentation { header_len: HEADERS as u16, mss: 1448, cut: Cut::TcpV4 };
        let checksum = Some(PartialChecksum { start: 34, offset: 16 });
        let offload = TxOffload { checksum, segmentation: Some(segmentation) };
        let frame_len = HEADERS + payload_len;
        let mut packet = virtio_net::encode(offload, frame_len).expect("fits").to_vec();
        let mut frame: Vec<u8> = (0..frame_len).map(|n| first.wrapping_add(n as u8)).collect();
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        // Don't fragment, which is no fragment; TCP.
        (frame[20], frame[21], frame[23]) = (0x40, 0, TCP);
        packet.extend(frame);
        packet
    }

    struct Link {
        kernel: OwnedFd,
        socket: PacketSocket,
        receive: ReceiveBatch,
        counters: PortCounters,
    }

    impl Link {
        fn new() -> Link {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (kernel, ours) =
                rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None).expect("a pair");
            let socket = PacketSocket::of(ours);
            Link { kernel, socket, receive: ReceiveBatch::new(), counters: PortCounters::default() }
        }

        fn arrives(&self, packet: &[u8]) {
            rustix::net::send(&self.kernel, packet, SendFlags::empty()).expect("room");
        }

        /// Shows the head of `packet`, as the ring has it, to `each`.
        fn show(&mut self, packet: &[u8], each: &mut EachFrame<'_>) -> bool {
            let frame_len = packet.len() - virtio_net::HEADER_LEN;
            let split =
                SplitFrame::of(&packet[..1900.min(packet.len())], frame_len).expect("a large segment");
            split
                .deliver(&self.socket, &mut self.receive, &mut self.counters, each)
                .expect("the link is there")
        }
    }

    fn memory(len: usize) -> Vec<AtomicU8> {
        (0..len).map(|_| AtomicU8::new(0xdd)).collect()
    }

    fn bytes(memory: &[AtomicU8]) -> Vec<u8> {
        memory.iter().map(|byte| byte.load(std::sync::atomic::Ordering::Relaxed)).collect()
    }

    #[test]
    fn the_bytes_go_where_they_are_wanted_and_no_others() {
        let mut link = Link::new();
        let (one, two) = (packet(1, 5000), packet(7, 3000));
        link.arrives(&one);
        link.arrives(&two);
        let (first, second, third) = (memory(1000), memory(2000), memory(3000));
        // The first bytes are old, and there is no room for the last ones.
        let skip = 10;
        assert!(link.show(&one, &mut |frame, _, tail| {
            assert_eq!((frame.len(), &frame[..HEADERS]), (HEADERS + 5000, &one[10..10 + HEADERS]));
            assert!(tail.expect("a tail").take(HEADERS + skip, &[&first, &second]));
        }));
        let payload = &one[virtio_net::HEADER_LEN + HEADERS + skip..];
        assert_eq!((bytes(&first), bytes(&second)), (payload[..1000].to_vec(), payload[1000..3000].to_vec()));
        assert!(link.show(&two, &mut |_, _, tail| assert!(tail.expect("a tail").take(HEADERS, &[&third]))));
        assert_eq!(bytes(&third), two[virtio_net::HEADER_LEN + HEADERS..]);
        assert_eq!(link.counters.get(PortCounter::RxFrames), 2);
    }

    #[test]
    fn the_bytes_are_read_into_memory_of_ones_own() {
        let mut link = Link::new();
        let one = packet(1, 5000);
        link.arrives(&one);
        let mut buffer = vec![0xdd; 4000];
        link.show(&one, &mut |_, _, tail| assert!(tail.expect("a tail").read(HEADERS + 1000, &mut buffer)));
        assert_eq!(buffer, one[virtio_net::HEADER_LEN + HEADERS + 1000..]);
    }

    #[test]
    fn what_nobody_wants_is_taken_away() {
        let mut link = Link::new();
        let (one, two) = (packet(1, 5000), packet(7, 3000));
        link.arrives(&one);
        link.arrives(&two);
        link.show(&one, &mut |_, _, _| {});
        let buffer = memory(3000);
        link.show(&two, &mut |_, _, tail| assert!(tail.expect("a tail").take(HEADERS, &[&buffer])));
        assert_eq!(bytes(&buffer), two[virtio_net::HEADER_LEN + HEADERS..]);
    }

    #[test]
    fn another_packet_than_was_shown_is_not_taken_for_it() {
        let mut link = Link::new();
        let one = packet(1, 5000);
        for other in [packet(2, 5000), packet(1, 4999)] {
            link.arrives(&other);
            let buffer = memory(5000);
            link.show(&one, &mut |_, _, tail| {
                let tail = tail.expect("a tail");
                assert!(
                    !tail.take(HEADERS, &[&buffer]) && !tail.take(HEADERS, &[&buffer]),
                    "{}",
                    other.len()
                );
            });
        }
        // Nothing is there at all.
        link.show(&one, &mut |_, _, tail| assert!(!tail.expect("a tail").take(HEADERS, &[])));
        assert_eq!(link.counters.get(PortCounter::RxRefused), 3);
    }

    #[test]
    fn of_other_frames_all_bytes_are_wanted() {
        let is_split = |change: fn(&mut Vec<u8>)| {
            let mut packet = packet(0, 5000);
            change(&mut packet);
            SplitFrame::of(&packet, packet.len() - virtio_net::HEADER_LEN).is_some()
        };
        const FRAME: usize = virtio_net::HEADER_LEN;
        assert!(is_split(|_| {}));
        assert!(is_split(|packet| packet[FRAME + 23] = UDP));
        assert!(!is_split(|packet| packet[FRAME + 23] = 1), "ICMP");
        assert!(!is_split(|packet| packet[FRAME + 20] = 0x20), "more fragments");
        assert!(!is_split(|packet| packet[FRAME + 21] = 1), "not the first fragment");
        assert!(!is_split(|packet| packet[FRAME + 12] = 0x81), "a tag");
        assert!(!is_split(|packet| packet[..FRAME].fill(0)), "a checksum to be checked");
        assert!(!is_split(|packet| packet.truncate(FRAME + 100)), "less than any head");
        let ipv6 = |packet: &mut Vec<u8>| packet[FRAME + 12..FRAME + 14].copy_from_slice(&[0x86, 0xdd]);
        let mut packet = packet(0, 5000);
        ipv6(&mut packet);
        packet[FRAME + 20] = TCP;
        assert!(SplitFrame::of(&packet, 5054).is_some());
        packet[FRAME + 20] = 44;
        assert!(SplitFrame::of(&packet, 5054).is_none(), "a fragment of IPv6");
    }
}
