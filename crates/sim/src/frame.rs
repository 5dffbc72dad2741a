//! Frames as links handle them: found, finished, cut into wire segments, changed.

use crate::random::Random;
use std::net::IpAddr;
use toe_wire::checksum::pseudo_header_sum;
use toe_wire::ipv6::Body;
use toe_wire::link::{PartialChecksum, Segmentation};
use toe_wire::{EthRepr, EtherType, Ipv4Repr, Ipv6Repr, Protocol, Sum, TcpRepr, eth, ipv4, ipv6, tcp};

/// Where the IP header starts.
pub const IP_AT: usize = eth::HEADER_LEN;

/// One end of a connection, and the other: which way a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Way {
    pub from: (IpAddr, u16),
    pub to: (IpAddr, u16),
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
    /// One past the last byte of the datagram.
    pub end: usize,
}

impl TcpFrame {
    /// `None`: it is something else, or damaged.
    pub fn parse(frame: &[u8]) -> Option<TcpFrame> {
        let (link, rest) = EthRepr::parse(frame).ok()?;
        let (src, dst, segment, end): (IpAddr, IpAddr, _, _) = match link.ethertype {
            EtherType::Ipv4 => {
                let (ip, segment) = Ipv4Repr::parse(rest).ok()?;
                if ip.protocol != Protocol::Tcp || ip.is_fragment() {
                    return None;
                }
                (ip.src.into(), ip.dst.into(), segment, IP_AT + usize::from(ip.total_len))
            }
            EtherType::Ipv6 => {
                let (ip, Body::Whole(segment)) = Ipv6Repr::parse(rest).ok()? else { return None };
                if ip.protocol != Protocol::Tcp {
                    return None;
                }
                let end = IP_AT + ipv6::HEADER_LEN + usize::from(ip.payload_len);
                (ip.src.into(), ip.dst.into(), segment, end)
            }
            _ => return None,
        };
        let (header, payload) = TcpRepr::parse(segment).ok()?;
        Some(TcpFrame {
            way: Way { from: (src, header.src_port), to: (dst, header.dst_port) },
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

    /// The same frame with another header and other bytes, its checksums right.
    pub fn rebuilt(&self, frame: &[u8], header: &TcpRepr, payload: &[u8]) -> Vec<u8> {
        let segment_len = header.header_len() + payload.len();
        let is_v4 = self.way.to.0.is_ipv4();
        let at = IP_AT + if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
        let total = at + segment_len;
        let mut out = vec![0; total];
        out[..IP_AT].copy_from_slice(&frame[..IP_AT]);
        if is_v4 {
            let Ok((ip, _)) = Ipv4Repr::parse(&frame[IP_AT..]) else { return out };
            Ipv4Repr { total_len: (total - IP_AT) as u16, ..ip }.emit(&mut out[IP_AT..]);
        } else {
            let Ok((ip, _)) = Ipv6Repr::parse(&frame[IP_AT..]) else { return out };
            Ipv6Repr { payload_len: segment_len as u16, ..ip }.emit(&mut out[IP_AT..]);
        }
        header.emit(&mut out[at..]);
        out[at + header.header_len()..].copy_from_slice(payload);
        tcp::store_checksum(&mut out[at..], self.way.from.0, self.way.to.0);
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

/// Marks a datagram whose ends know ECN as having met congestion (RFC 3168 section 5). `false`: they do not know it.
pub fn mark_congestion(frame: &mut [u8]) -> bool {
    const CONGESTION: u8 = 0b11;
    match EthRepr::parse(frame).map(|(link, _)| link.ethertype) {
        // A router drops what has a wrong checksum, and does not give it a right one.
        Ok(EtherType::Ipv4)
            if Ipv4Repr::parse(&frame[IP_AT..]).is_ok() && frame[IP_AT + 1] & CONGESTION != 0 =>
        {
            frame[IP_AT + 1] |= CONGESTION;
            let header = IP_AT..IP_AT + usize::from(frame[IP_AT] & 0xf) * 4;
            frame[IP_AT + 10..IP_AT + 12].fill(0);
            let sum = Sum::of(&frame[header]).checksum();
            frame[IP_AT + 10..IP_AT + 12].copy_from_slice(&sum.to_be_bytes());
            true
        }
        // The traffic class lies across two bytes.
        Ok(EtherType::Ipv6)
            if frame.len() >= IP_AT + ipv6::HEADER_LEN && frame[IP_AT + 1] & CONGESTION << 4 != 0 =>
        {
            frame[IP_AT + 1] |= CONGESTION << 4;
            true
        }
        _ => false,
    }
}

/// The pieces of a datagram, in any sizes, as a router makes them; one now and then comes twice. Just the frame when it is
/// too short, or no datagram with a segment.
pub fn pieces(frame: &[u8], random: &mut Random) -> Vec<Vec<u8>> {
    let Some(tcp) = TcpFrame::parse(frame) else { return vec![frame.to_vec()] };
    let body = &frame[tcp.tcp_at..tcp.end];
    let ident = random.word();
    let (mut at, mut out) = (0, Vec::new());
    while at < body.len() {
        let left = body.len() - at;
        // All but the last are of a multiple of 8 bytes.
        let len = 8 * random.between(1, (left as u32).div_ceil(8)) as usize;
        let (len, more) = if len >= left { (left, false) } else { (len, true) };
        let piece = piece(frame, ident, at, &body[at..at + len], more);
        if random.one_in(20) {
            out.push(piece.clone());
        }
        out.push(piece);
        at += len;
    }
    out
}

fn piece(frame: &[u8], ident: u64, at: usize, bytes: &[u8], more: bool) -> Vec<u8> {
    let (link, datagram) = frame.split_at(IP_AT);
    let mut out = link.to_vec();
    if let Ok((ip, _)) = Ipv4Repr::parse(datagram) {
        out.resize(IP_AT + ipv4::HEADER_LEN, 0);
        let ip = Ipv4Repr {
            ident: ident as u16,
            dont_fragment: false,
            more_fragments: more,
            fragment_offset: (at / 8) as u16,
            total_len: (ipv4::HEADER_LEN + bytes.len()) as u16,
            ..ip
        };
        ip.emit(&mut out[IP_AT..]);
    } else if let Ok((ip, _)) = Ipv6Repr::parse(datagram) {
        const FRAGMENT: u8 = 44;
        out.resize(IP_AT + ipv6::HEADER_LEN, 0);
        let protocol = Protocol::from_raw(FRAGMENT);
        let ip = Ipv6Repr { protocol, payload_len: (8 + bytes.len()) as u16, ..ip };
        ip.emit(&mut out[IP_AT..]);
        let place = at as u16 | u16::from(more);
        out.extend_from_slice(&[Protocol::Tcp.raw(), 0]);
        out.extend_from_slice(&place.to_be_bytes());
        out.extend_from_slice(&(ident as u32).to_be_bytes());
    }
    out.extend_from_slice(bytes);
    out
}

/// Whether a frame holds a piece of a datagram.
pub fn is_piece(frame: &[u8]) -> bool {
    match EthRepr::parse(frame) {
        Ok((link, rest)) if link.ethertype == EtherType::Ipv4 => {
            Ipv4Repr::parse(rest).is_ok_and(|(ip, _)| ip.is_fragment())
        }
        Ok((link, rest)) if link.ethertype == EtherType::Ipv6 => {
            matches!(Ipv6Repr::parse(rest), Ok((_, Body::Piece(..))))
        }
        _ => false,
    }
}

/// What a router says of a datagram that is too large for the next link: at the start the headers, then as much of it as
/// ICMP must quote.
pub fn too_large(frame: &[u8], mtu: u32) -> Option<Vec<u8>> {
    let tcp = TcpFrame::parse(frame)?;
    let mut out = vec![0; IP_AT];
    out[..6].copy_from_slice(&frame[6..12]);
    out[6..12].copy_from_slice(&frame[..6]);
    out[12..IP_AT].copy_from_slice(&frame[12..IP_AT]);
    let quoted = &frame[IP_AT..(tcp.tcp_at + 20).min(tcp.end)];
    let mtu_v6 = mtu.max(1280);
    let (mut message, at) = match tcp.way.from.0 {
        // Destination unreachable, fragmentation needed (RFC 792, RFC 1191 section 4).
        IpAddr::V4(_) => (vec![3, 4, 0, 0, 0, 0, (mtu >> 8) as u8, mtu as u8], IP_AT + ipv4::HEADER_LEN),
        // Packet too big (RFC 4443 section 3.2).
        IpAddr::V6(_) => {
            (vec![2, 0, 0, 0, 0, 0, (mtu_v6 >> 8) as u8, mtu_v6 as u8], IP_AT + ipv6::HEADER_LEN)
        }
    };
    message.extend_from_slice(quoted);
    out.resize(at, 0);
    match (tcp.way.from.0, tcp.way.to.0) {
        (IpAddr::V4(sender), IpAddr::V4(receiver)) => {
            let sum = Sum::of(&message).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let (ip, _) = Ipv4Repr::parse(&frame[IP_AT..]).ok()?;
            let total_len = (ipv4::HEADER_LEN + message.len()) as u16;
            let ip = Ipv4Repr { src: receiver, dst: sender, protocol: Protocol::Icmp, total_len, ..ip };
            ip.emit(&mut out[IP_AT..]);
        }
        (IpAddr::V6(sender), IpAddr::V6(receiver)) => {
            const ICMPV6: u8 = 58;
            let sum =
                pseudo_header_sum(receiver, sender, ICMPV6, message.len() as u32).with(&message).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            let (ip, _) = Ipv6Repr::parse(&frame[IP_AT..]).ok()?;
            let (protocol, payload_len) = (Protocol::from_raw(ICMPV6), message.len() as u16);
            let ip = Ipv6Repr { src: receiver, dst: sender, protocol, payload_len, ..ip };
            ip.emit(&mut out[IP_AT..]);
        }
        _ => return None,
    }
    out.extend_from_slice(&message);
    Some(out)
}
