//! Datagrams become frames: headers, fragments, checksum, and a queue for each port, which the port takes from when it has room.

use crate::egress::builder::{Envelope, FrameBuilder, Hop, ip_header_len};
use crate::work::{Link, TxDatagram};
use std::collections::VecDeque;
use toe_wire::eth::EtherType;
use toe_wire::ipv4::Ipv4Repr;
use toe_wire::ipv6::{self, Fragment, Ipv6Repr};
use toe_wire::link::{Cut, FrameSink, MacAddr, Segmentation, TxOffload};
use toe_wire::{Protocol, UdpRepr, udp};

/// Frames of one port's queue beyond which no more records are taken: at most so many more come of the last one.
const QUEUE_FULL: usize = 256;
/// Frames beyond which datagrams are dropped: what more the last record was.
const DROP_BEYOND: usize = 2 * QUEUE_FULL;
/// The same by bytes, as a frame that the link cuts up holds many.
const BYTES_FULL: usize = 1 << 20;
const DROP_BEYOND_BYTES: usize = 2 * BYTES_FULL;
/// Looks for room in vain after which a port is taken for stuck: some ms of an engine that does nothing else.
const STUCK_AFTER: u32 = 1 << 14;
/// Frames whose memory is kept for the next ones, and bytes of it.
const SPARE_MAX: usize = 512;
const SPARE_BYTES_MAX: usize = 1 << 20;

/// Datagrams that go in one frame because they were queued one behind the other (Linux: UDP_MAX_SEGMENTS of before 6.9).
const JOINED_MAX: usize = 64;

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    offload: TxOffload,
    /// What may be put behind it.
    growing: Option<Growing>,
}

/// A frame of one datagram or more, all alike, that the link cuts up.
#[derive(Clone, Copy, Debug)]
struct Growing {
    to_mac: MacAddr,
    datagram: TxDatagram,
    headers_len: usize,
    /// Bytes of each but the last.
    segment: usize,
    count: usize,
}

/// Frames that wait for a port.
#[derive(Debug, Default)]
pub struct TxQueue {
    frames: VecDeque<Frame>,
    /// Bytes of them all.
    bytes: usize,
    /// Looks that found no room since the port took a frame.
    full_looks: u32,
    spare: Vec<Vec<u8>>,
    spare_bytes: usize,
}

impl TxQueue {
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether what one more record holds may be queued. A port that takes no frames, as its link is gone, does not keep records where
    /// they are for ever: then they are taken, and dropped.
    pub fn has_room(&mut self) -> bool {
        if self.frames.len() < QUEUE_FULL && self.bytes < BYTES_FULL {
            return true;
        }
        self.full_looks = self.full_looks.saturating_add(1);
        self.full_looks > STUCK_AFTER
    }

    pub fn len(&self) -> usize {
        self.frames.len()
    }

    fn room(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        self.spare_bytes -= bytes.capacity();
        // What was there before is written over, each byte of it, so it need not be cleared.
        bytes.resize(len, 0);
        bytes
    }

    /// Hands frames to a port, `budget` at most. Returns how many.
    pub fn send(&mut self, sink: &mut dyn FrameSink, budget: usize) -> usize {
        let mut sent = 0;
        while sent < budget
            && let Some(frame) = self.frames.front()
            && let Some(room) = sink.frame(frame.bytes.len())
        {
            room.copy_from_slice(&frame.bytes);
            sink.commit(frame.offload);
            sent += 1;
            self.full_looks = 0;
            if let Some(frame) = self.frames.pop_front() {
                self.bytes -= frame.bytes.len();
                self.keep(frame.bytes);
            }
        }
        sent
    }

    /// The memory is for another frame.
    fn keep(&mut self, bytes: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && self.spare_bytes + bytes.capacity() <= SPARE_BYTES_MAX {
            self.spare_bytes += bytes.capacity();
            self.spare.push(bytes);
        }
    }

    fn is_beyond(&self) -> bool {
        self.frames.len() >= DROP_BEYOND || self.bytes >= DROP_BEYOND_BYTES
    }

    fn queue(&mut self, bytes: Vec<u8>, offload: TxOffload) {
        self.bytes += bytes.len();
        self.frames.push_back(Frame { bytes, offload, growing: None });
    }

    /// Queues a datagram for a neighbour. `ident`: of the packet if it is cut up. Returns how many frames it is; 0: there is no room.
    pub fn push(
        &mut self,
        link: &Link,
        to_mac: MacAddr,
        datagram: &TxDatagram,
        text: &[u8],
        ident: u32,
    ) -> usize {
        if self.append(link, to_mac, datagram, text) {
            return 1;
        }
        if self.is_beyond() {
            return 0;
        }
        let hop = Hop::over(link, to_mac);
        let len = udp::HEADER_LEN + text.len();
        let room =
            (link.mtu.min(datagram.mtu.into()) as usize).saturating_sub(ip_header_len(datagram.to.addr));
        // IPv6 has no such bit: routers never cut.
        let has_df = datagram.to.addr.is_v6() || datagram.discover.is_whole_on_the_way();
        match (len <= room, has_df) {
            (true, true) => {
                self.push_whole(link, hop, datagram, text);
                self.may_grow(link, to_mac, datagram, text.len());
                1
            }
            // A packet that may be cut up bears a number of its own, as pieces do.
            (true, false) => self.push_fragments(len.next_multiple_of(8), hop, datagram, text, ident),
            (false, _) => self.push_fragments(room, hop, datagram, text, ident),
        }
    }

    /// The frame that was queued last, of one datagram, may get others behind it.
    fn may_grow(&mut self, link: &Link, to_mac: MacAddr, datagram: &TxDatagram, segment: usize) {
        let can = link.caps.cuts_datagrams && link.caps.tx_checksum && segment > 0;
        if let Some(frame) = self.frames.back_mut().filter(|_| can) {
            let headers_len = frame.bytes.len() - segment;
            frame.growing = Some(Growing { to_mac, datagram: *datagram, headers_len, segment, count: 1 });
        }
    }

    /// Puts a datagram behind one that has just been queued to the same peer, if nothing came between them, it is no longer, and the
    /// link cuts that up: it then costs what a copy of its bytes costs. Nobody waits for that.
    fn append(&mut self, link: &Link, to_mac: MacAddr, datagram: &TxDatagram, text: &[u8]) -> bool {
        let Some(frame) = self.frames.back_mut() else { return false };
        let Some(growing) = &mut frame.growing else { return false };
        let Growing { headers_len, segment, count, .. } = *growing;
        let len = frame.bytes.len() - headers_len + text.len() + udp::HEADER_LEN;
        let is_alike = growing.to_mac == to_mac && growing.datagram == *datagram && text.len() <= segment;
        let is_beyond = self.bytes >= DROP_BEYOND_BYTES;
        if !is_alike
            || text.is_empty()
            || count == JOINED_MAX
            || len > link.caps.gso_max as usize
            || is_beyond
        {
            return false;
        }
        self.bytes += text.len();
        frame.bytes.extend_from_slice(text);
        growing.count += 1;
        let TxDatagram { from, to, ttl, traffic_class, .. } = *datagram;
        let hop = Hop::over(link, to_mac);
        let envelope = Envelope { hop, from: from.addr, to: to.addr, ttl, traffic_class };
        let mut builder = FrameBuilder::ip(&mut frame.bytes, &envelope, Protocol::Udp);
        let transport = builder.transport();
        header(transport, datagram);
        let start = envelope.headers_len() as u16;
        let checksum = Some(udp::store_pseudo_header(transport, from.addr, to.addr, start));
        let (header_len, mss) = (headers_len as u16, segment as u16);
        let segmentation = Some(Segmentation { header_len, mss, cut: Cut::Datagrams });
        frame.offload = TxOffload { checksum, segmentation };
        if text.len() < segment {
            frame.growing = None;
        }
        true
    }

    /// Queues datagrams of `segment` bytes each, one behind the other, in one frame that the link cuts up. `false`: it cannot, and they
    /// go one by one.
    pub fn push_joined(
        &mut self,
        link: &Link,
        to_mac: MacAddr,
        datagram: &TxDatagram,
        text: &[u8],
        segment: u16,
    ) -> bool {
        let caps = link.caps;
        let packet = ip_header_len(datagram.to.addr) + udp::HEADER_LEN + usize::from(segment);
        let most = usize::from(datagram.mtu).min(link.mtu as usize);
        let fits = packet <= most && udp::HEADER_LEN + text.len() <= caps.gso_max as usize;
        // What routers may cut up bears numbers of its own.
        let has_df = datagram.to.addr.is_v6() || datagram.discover.is_whole_on_the_way();
        let can =
            caps.cuts_datagrams && caps.tx_checksum && has_df && fits && text.len() > usize::from(segment);
        if !can || segment == 0 || self.is_beyond() {
            return false;
        }
        let hop = Hop::over(link, to_mac);
        self.push_whole(link, hop, datagram, text);
        if let Some(frame) = self.frames.back_mut() {
            let header_len = (frame.bytes.len() - text.len()) as u16;
            let cut = Cut::Datagrams;
            frame.offload.segmentation = Some(Segmentation { header_len, mss: segment, cut });
        }
        true
    }

    fn push_whole(&mut self, link: &Link, hop: Hop, datagram: &TxDatagram, text: &[u8]) {
        let TxDatagram { from, to, ttl, traffic_class, .. } = *datagram;
        let envelope = Envelope { hop, from: from.addr, to: to.addr, ttl, traffic_class };
        let len = udp::HEADER_LEN + text.len();
        let mut bytes = self.room(envelope.headers_len() + len);
        let mut builder = FrameBuilder::ip(&mut bytes, &envelope, Protocol::Udp);
        let transport = builder.transport();
        let checksum = match link.caps.tx_checksum {
            true => {
                header(transport, datagram);
                transport[udp::HEADER_LEN..].copy_from_slice(text);
                let start = envelope.headers_len() as u16;
                Some(udp::store_pseudo_header(transport, from.addr, to.addr, start))
            }
            false => {
                fill(transport, datagram, text);
                None
            }
        };
        let offload = TxOffload { checksum, segmentation: None };
        self.queue(bytes, offload);
    }

    /// RFC 791 section 2.3, RFC 8200 section 4.5.
    fn push_fragments(
        &mut self,
        room: usize,
        hop: Hop,
        datagram: &TxDatagram,
        text: &[u8],
        ident: u32,
    ) -> usize {
        let TxDatagram { to, .. } = *datagram;
        let mut whole = self.room(udp::HEADER_LEN + text.len());
        fill(&mut whole, datagram, text);
        let extra = if to.addr.is_v4() { 0 } else { ipv6::FRAGMENT_LEN };
        let piece_len = (room.saturating_sub(extra) & !7).max(8);
        let count = whole.len().div_ceil(piece_len);
        for (n, piece) in whole.chunks(piece_len).enumerate() {
            let at_8 = (n * piece_len / 8) as u16;
            self.push_piece(hop, datagram, piece, (ident, at_8, n + 1 < count));
        }
        self.keep(whole);
        count
    }

    fn push_piece(
        &mut self,
        hop: Hop,
        datagram: &TxDatagram,
        piece: &[u8],
        (ident, offset, more): (u32, u16, bool),
    ) {
        let TxDatagram { from, to, ttl, traffic_class, .. } = *datagram;
        let (ip_at, ip_len) = (hop.header_len(), ip_header_len(to.addr));
        let extra = if to.addr.is_v4() { 0 } else { ipv6::FRAGMENT_LEN };
        let piece_at = ip_at + ip_len + extra;
        let mut bytes = self.room(piece_at + piece.len());
        bytes[piece_at..].copy_from_slice(piece);
        let ethertype = match (from.addr.to_v4(), to.addr.to_v4()) {
            (Some(src), Some(dst)) => {
                let header = Ipv4Repr {
                    src,
                    dst,
                    protocol: Protocol::Udp,
                    ttl,
                    traffic_class,
                    ident: ident as u16,
                    dont_fragment: false,
                    more_fragments: more,
                    fragment_offset: offset,
                    total_len: (ip_len + piece.len()) as u16,
                };
                header.emit(&mut bytes[ip_at..]);
                EtherType::Ipv4
            }
            _ => {
                let header = Ipv6Repr {
                    src: from.addr.to_v6(),
                    dst: to.addr.to_v6(),
                    protocol: Fragment::PROTOCOL,
                    hop_limit: ttl,
                    traffic_class,
                    flow_label: 0,
                    payload_len: (extra + piece.len()) as u16,
                };
                header.emit(&mut bytes[ip_at..]);
                let fragment = Fragment { ident, offset, more, next_header: Protocol::Udp.raw() };
                fragment.emit(&mut bytes[ip_at + ip_len..]);
                EtherType::Ipv6
            }
        };
        hop.emit(ethertype, &mut bytes);
        self.queue(bytes, TxOffload::default());
    }
}

/// The datagram with its checksum. To sum the bytes up while they are copied gains nothing (docs/measurements.md).
fn fill(transport: &mut [u8], datagram: &TxDatagram, text: &[u8]) {
    header(transport, datagram);
    transport[udp::HEADER_LEN..].copy_from_slice(text);
    udp::store_checksum(transport, datagram.from.addr, datagram.to.addr);
}

fn header(transport: &mut [u8], datagram: &TxDatagram) {
    let ports = UdpRepr { src_port: datagram.from.port, dst_port: datagram.to.port };
    ports.emit(transport.len() as u16, transport);
}
