//! Frames as links handle them: found, finished, cut into wire segments, changed.

use std::net::Ipv4Addr;
use toe_wire::link::{PartialChecksum, Segmentation};
use toe_wire::{EthRepr, EtherType, Ipv4Repr, Protocol, TcpRepr, eth, ipv4, tcp};

/// Where the IPv4 header starts.
pub const IP_AT: usize = eth::HEADER_LEN;

/// One end of a connection, and the other: which way a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    pub from: (Ipv4Addr, u16),
    pub to: (Ipv4Addr, u16),
}

impl Way {
    pub fn back(self) -> Way {
        Way { from: self.to, to: self.from }
    }
}

/// A TCP segment in a frame.
#[derive(Clone, Copy, Debug)]
pub struct TcpFrame {
    pub way: Way,
    pub header: TcpRepr,
    pub tcp_at: usize,
    pub payload_at: usize,
    /// One past the last octet of the datagram.
    pub end: usize,
}

impl TcpFrame {
    /// `None`: it is something else, or damaged.
    pub fn parse(frame: &[u8]) -> Option<TcpFrame> {
        let (link, rest) = EthRepr::parse(frame).ok()?;
        if link.ethertype != EtherType::Ipv4 {
            return None;
        }
        let (ip, segment) = Ipv4Repr::parse(rest).ok()?;
        if ip.protocol != Protocol::Tcp || ip.is_fragment() {
            return None;
        }
        let (header, payload) = TcpRepr::parse(segment).ok()?;
        let end = IP_AT + usize::from(ip.total_len);
        Some(TcpFrame {
            way: Way { from: (ip.src, header.src_port), to: (ip.dst, header.dst_port) },
            header,
            tcp_at: end - segment.len(),
            payload_at: end - payload.len(),
            end,
        })
    }

    pub fn len(&self) -> u32 {
        (self.end - self.payload_at) as u32
    }

    pub fn is_empty(&self) -> bool {
        self.end == self.payload_at
    }

    /// One past the last sequence number that it takes.
    pub fn seq_end(&self) -> toe_base::SeqNum {
        self.header.seq.plus(self.header.sequence_len(self.len()))
    }

    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.payload_at..self.end]
    }

    /// Writes the TCP checksum anew.
    pub fn store_checksum(&self, frame: &mut [u8]) {
        tcp::store_checksum(&mut frame[self.tcp_at..self.end], self.way.from.0, self.way.to.0);
    }

    pub fn checksum_is_valid(&self, frame: &[u8]) -> bool {
        tcp::checksum_is_valid(&frame[self.tcp_at..self.end], self.way.from.0, self.way.to.0)
    }

    /// The same frame with another header and other octets, its checksums right.
    pub fn rebuilt(&self, frame: &[u8], header: &TcpRepr, payload: &[u8]) -> Vec<u8> {
        let total = IP_AT + ipv4::HEADER_LEN + header.header_len() + payload.len();
        let mut out = vec![0; total];
        out[..IP_AT].copy_from_slice(&frame[..IP_AT]);
        let Ok((ip, _)) = Ipv4Repr::parse(&frame[IP_AT..]) else { return out };
        let ip = Ipv4Repr { total_len: (total - IP_AT) as u16, ..ip };
        ip.emit(&mut out[IP_AT..]);
        let at = IP_AT + ipv4::HEADER_LEN;
        header.emit(&mut out[at..]);
        out[at + header.header_len()..].copy_from_slice(payload);
        tcp::store_checksum(&mut out[at..], ip.src, ip.dst);
        out
    }
}

/// Does what the sender left to its link: the checksum over everything behind `partial.start`.
pub fn finish(frame: &mut [u8], partial: PartialChecksum) {
    if let Some(segment) = TcpFrame::parse(frame)
        && usize::from(partial.start) == segment.tcp_at
    {
        segment.store_checksum(frame);
    }
}

/// Cuts a large frame into wire segments, as a link with GSO does; each goes to `out`.
pub fn cut(frame: &[u8], how: Segmentation, out: &mut impl FnMut(Vec<u8>)) {
    let Some(large) = TcpFrame::parse(frame) else { return };
    let payload = large.payload(frame);
    let mss = usize::from(how.mss).max(1);
    let count = payload.len().div_ceil(mss);
    for (number, piece) in payload.chunks(mss).enumerate() {
        let mut header = large.header;
        header.seq = header.seq.plus((number * mss) as u32);
        if number + 1 < count {
            header.flags = header.flags.without(tcp::TcpFlags::FIN | tcp::TcpFlags::PSH);
        }
        if number > 0 {
            header.flags = header.flags.without(tcp::TcpFlags::CWR);
        }
        out(large.rebuilt(frame, &header, piece));
    }
}
