//! Segments as bytes: built for the far end, taken apart when the stack sends them. Options are read and written here
//! and not by `toe_wire`, so that scripts can send any, and a mistake there shows here.

use std::fmt;
use std::net::Ipv4Addr;
use toe_wire::icmp::IcmpRepr;
use toe_wire::ipv4::{Ipv4Repr, Protocol};
use toe_wire::tcp;

/// The stack that is tested.
pub const STACK_ADDR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The script's end.
pub const FAR_ADDR: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

pub const FIN: u16 = 0x01;
pub const SYN: u16 = 0x02;
pub const RST: u16 = 0x04;
pub const PSH: u16 = 0x08;
pub const ACK: u16 = 0x10;
pub const URG: u16 = 0x20;
pub const ECE: u16 = 0x40;
pub const CWR: u16 = 0x80;

const IP_LEN: usize = 20;
const TCP_LEN: usize = 20;

/// An option of the TCP header, without padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TcpOption {
    Mss(u16),
    WindowScale(u8),
    SackPermitted,
    Sack(Vec<(u32, u32)>),
    Timestamps(u32, u32),
    FastOpen(Vec<u8>),
    Other(u8, Vec<u8>),
}

/// A TCP segment in its IPv4 datagram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: u32,
    pub ack: u32,
    /// The control bits, and above them the reserved ones.
    pub flags: u16,
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<TcpOption>,
    pub payload: Vec<u8>,
    pub ecn: u8,
    pub ttl: u8,
    pub dont_fragment: bool,
}

/// Why a datagram of the stack is none that a stack may send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPacket {
    #[error("the IPv4 header is wrong: {0:?}")]
    Ip(toe_wire::ParseError),
    #[error("it is not TCP")]
    NotTcp,
    #[error("it goes from {0} to {1}")]
    Addresses(Ipv4Addr, Ipv4Addr),
    #[error("the TCP header is cut short or its length is wrong")]
    Header,
    #[error("an option of kind {0} has a wrong length")]
    Option(u8),
    #[error("the TCP checksum is wrong")]
    Checksum,
}

impl Segment {
    pub fn has(&self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// Bytes of sequence space.
    pub fn seq_len(&self) -> u32 {
        self.payload.len() as u32 + u32::from(self.has(SYN)) + u32::from(self.has(FIN))
    }

    /// The datagram that carries this segment from the far end; `raw` stands before the other options.
    pub fn to_datagram(&self, raw: &[u8], bad_checksum: bool) -> Vec<u8> {
        let mut options = raw.to_vec();
        for option in &self.options {
            option.write(&mut options);
        }
        options.resize(options.len().next_multiple_of(4).min(40), 0);
        let header_len = TCP_LEN + options.len();
        let mut bytes = vec![0; IP_LEN + header_len];
        let segment = &mut bytes[IP_LEN..];
        segment[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        segment[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        segment[4..8].copy_from_slice(&self.seq.to_be_bytes());
        segment[8..12].copy_from_slice(&self.ack.to_be_bytes());
        let length_and_flags = (header_len as u16 / 4) << 12 | self.flags & 0x0fff;
        segment[12..14].copy_from_slice(&length_and_flags.to_be_bytes());
        segment[14..16].copy_from_slice(&self.window.to_be_bytes());
        segment[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        segment[TCP_LEN..].copy_from_slice(&options);
        bytes.extend_from_slice(&self.payload);
        tcp::store_checksum(&mut bytes[IP_LEN..], FAR_ADDR, STACK_ADDR);
        if bad_checksum {
            bytes[IP_LEN + 16] ^= 0x5a;
        }
        let header = self.ip_header(Protocol::Tcp, bytes.len());
        header.emit(&mut bytes[..IP_LEN]);
        bytes
    }

    fn ip_header(&self, protocol: Protocol, total_len: usize) -> Ipv4Repr {
        Ipv4Repr {
            src: FAR_ADDR,
            dst: STACK_ADDR,
            protocol,
            ttl: self.ttl,
            traffic_class: self.ecn,
            ident: 0,
            dont_fragment: self.dont_fragment,
            more_fragments: false,
            fragment_offset: 0,
            total_len: total_len as u16,
        }
    }

    /// A segment of the stack. `summed`: the link would have filled the checksum in.
    pub fn parse(datagram: &[u8], summed: bool) -> Result<Segment, BadPacket> {
        let (ip, bytes) = Ipv4Repr::parse(datagram).map_err(BadPacket::Ip)?;
        if ip.protocol != Protocol::Tcp {
            return Err(BadPacket::NotTcp);
        }
        if (ip.src, ip.dst) != (STACK_ADDR, FAR_ADDR) {
            return Err(BadPacket::Addresses(ip.src, ip.dst));
        }
        let header: &[u8; TCP_LEN] = bytes.first_chunk().ok_or(BadPacket::Header)?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let options = bytes.get(TCP_LEN..header_len).ok_or(BadPacket::Header)?;
        if !summed && !tcp::checksum_is_valid(bytes, ip.src, ip.dst) {
            return Err(BadPacket::Checksum);
        }
        let two = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let four = |at: usize| u32::from(two(at)) << 16 | u32::from(two(at + 2));
        Ok(Segment {
            src_port: two(0),
            dst_port: two(2),
            seq: four(4),
            ack: four(8),
            flags: two(12) & 0x0fff,
            window: two(14),
            urgent: two(18),
            options: parse_options(options)?,
            payload: bytes[header_len..].to_vec(),
            ecn: ip.traffic_class & 3,
            ttl: ip.ttl,
            dont_fragment: ip.dont_fragment,
        })
    }

    /// What a link makes of a large segment: pieces of at most `mss` bytes.
    pub fn cut(self, mss: usize) -> Vec<Segment> {
        if self.payload.len() <= mss || mss == 0 {
            return vec![self];
        }
        let count = self.payload.len().div_ceil(mss);
        let piece = |(at, payload): (usize, &[u8])| {
            let mut piece = Segment { payload: payload.to_vec(), ..self.clone() };
            piece.seq = self.seq.wrapping_add((at * mss) as u32);
            if at + 1 < count {
                piece.flags &= !(PSH | FIN);
            }
            if at > 0 {
                piece.flags &= !CWR;
            }
            piece
        };
        self.payload.chunks(mss).enumerate().map(piece).collect()
    }
}

/// An ICMP error about a segment that the stack sent (RFC 792): its IP header and eight bytes.
pub fn icmp_error(icmp: IcmpRepr, ports: (u16, u16), seq: u32) -> Vec<u8> {
    let quoted = Segment { ttl: 60, dont_fragment: true, ..Segment::default() };
    let mut ip = quoted.ip_header(Protocol::Tcp, 1500);
    (ip.src, ip.dst) = (STACK_ADDR, FAR_ADDR);
    let mut message = vec![0; icmp.header_len() + IP_LEN + 8];
    let at = icmp.header_len();
    ip.emit(&mut message[at..at + IP_LEN]);
    let segment = &mut message[at + IP_LEN..];
    segment[0..2].copy_from_slice(&ports.0.to_be_bytes());
    segment[2..4].copy_from_slice(&ports.1.to_be_bytes());
    segment[4..8].copy_from_slice(&seq.to_be_bytes());
    icmp.emit(&mut message);
    let header = quoted.ip_header(Protocol::Icmp, IP_LEN + message.len());
    let mut bytes = vec![0; IP_LEN];
    header.emit(&mut bytes);
    bytes.extend_from_slice(&message);
    bytes
}

impl TcpOption {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            TcpOption::Mss(mss) => {
                out.extend([2, 4]);
                out.extend(mss.to_be_bytes());
            }
            TcpOption::WindowScale(shift) => out.extend([1, 3, 3, *shift]),
            TcpOption::SackPermitted => out.extend([1, 1, 4, 2]),
            TcpOption::Sack(blocks) => {
                out.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
                for (left, right) in blocks {
                    out.extend(left.to_be_bytes());
                    out.extend(right.to_be_bytes());
                }
            }
            TcpOption::Timestamps(value, echo) => {
                out.extend([1, 1, 8, 10]);
                out.extend(value.to_be_bytes());
                out.extend(echo.to_be_bytes());
            }
            TcpOption::FastOpen(cookie) => {
                out.extend([34, 2 + cookie.len() as u8]);
                out.extend(cookie);
            }
            TcpOption::Other(kind, body) => {
                out.extend([*kind, 2 + body.len() as u8]);
                out.extend(body);
            }
        }
    }
}

fn parse_options(mut bytes: &[u8]) -> Result<Vec<TcpOption>, BadPacket> {
    let mut options = Vec::new();
    loop {
        let (kind, body) = match *bytes {
            [] | [0, ..] => return Ok(options),
            [1, ref rest @ ..] => {
                bytes = rest;
                continue;
            }
            [kind, len, ref rest @ ..] if len >= 2 => {
                let body = rest.get(..usize::from(len) - 2).ok_or(BadPacket::Option(kind))?;
                bytes = &rest[body.len()..];
                (kind, body)
            }
            [kind, ..] => return Err(BadPacket::Option(kind)),
        };
        options.push(parse_option(kind, body)?);
    }
}

fn parse_option(kind: u8, body: &[u8]) -> Result<TcpOption, BadPacket> {
    let four = |at: usize| u32::from_be_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    Ok(match (kind, body.len()) {
        (2, 2) => TcpOption::Mss(u16::from_be_bytes([body[0], body[1]])),
        (3, 1) => TcpOption::WindowScale(body[0]),
        (4, 0) => TcpOption::SackPermitted,
        (5, len) if len > 0 && len % 8 == 0 => {
            TcpOption::Sack((0..len / 8).map(|at| (four(8 * at), four(8 * at + 4))).collect())
        }
        (8, 8) => TcpOption::Timestamps(four(0), four(4)),
        (34, _) => TcpOption::FastOpen(body.to_vec()),
        (2..=5 | 8, _) => return Err(BadPacket::Option(kind)),
        (kind, _) => TcpOption::Other(kind, body.to_vec()),
    })
}

/// The control bits as words of the language.
pub fn flag_words(flags: u16) -> String {
    let names = [
        (SYN, "syn"),
        (FIN, "fin"),
        (RST, "rst"),
        (PSH, "psh"),
        (URG, "urg"),
        (ECE, "ece"),
        (CWR, "cwr"),
        (ACK, "ack"),
    ];
    let words: Vec<&str> = names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    let reserved = if flags & 0xf00 != 0 { " reserved-bits" } else { "" };
    format!("{}{reserved}", words.join(" "))
}

impl fmt::Display for TcpOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TcpOption::Mss(mss) => write!(f, "mss {mss}"),
            TcpOption::WindowScale(shift) => write!(f, "wscale {shift}"),
            TcpOption::SackPermitted => f.write_str("sackok"),
            TcpOption::Sack(blocks) => write!(f, "{} sack blocks", blocks.len()),
            TcpOption::Timestamps(value, echo) => write!(f, "ts {value} {echo}"),
            TcpOption::FastOpen(cookie) if cookie.is_empty() => f.write_str("cookie request"),
            TcpOption::FastOpen(cookie) => {
                f.write_str("cookie ")?;
                cookie.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            TcpOption::Other(kind, body) => write!(f, "option {kind} of {} bytes", body.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Segment {
        Segment {
            src_port: 7000,
            dst_port: 8080,
            seq: 0xffff_fff0,
            ack: 7,
            flags: SYN | ACK | ECE,
            window: 512,
            urgent: 0,
            options: vec![
                TcpOption::Mss(1460),
                TcpOption::SackPermitted,
                TcpOption::Timestamps(1, 2),
                TcpOption::Sack(vec![(1, 2)]),
            ],
            payload: vec![1, 2, 3],
            ecn: 2,
            ttl: 64,
            dont_fragment: true,
        }
    }

    #[test]
    fn what_is_built_is_read_back_by_toe_wire() {
        let bytes = sample().to_datagram(&[], false);
        let (ip, segment) = Ipv4Repr::parse(&bytes).expect("a datagram");
        assert!(tcp::checksum_is_valid(segment, ip.src, ip.dst));
        let (header, payload) = tcp::TcpRepr::parse(segment).expect("a segment");
        assert_eq!(
            (header.options.mss, header.options.sack_permitted, payload),
            (Some(1460), true, &[1u8, 2, 3][..])
        );
        assert_eq!(header.options.sack.as_slice().len(), 1);
        let broken = sample().to_datagram(&[], true);
        assert!(!tcp::checksum_is_valid(&broken[20..], ip.src, ip.dst));
    }

    #[test]
    fn a_large_segment_is_cut_as_a_link_does() {
        let whole = Segment { flags: ACK | PSH | FIN | CWR, payload: vec![9; 2500], ..sample() };
        let pieces = whole.cut(1000);
        let seen: Vec<_> = pieces.iter().map(|p| (p.seq, p.payload.len(), p.flags)).collect();
        let first = 0xffff_fff0u32;
        assert_eq!(
            seen,
            [
                (first, 1000, ACK | CWR),
                (first.wrapping_add(1000), 1000, ACK),
                (first.wrapping_add(2000), 500, ACK | PSH | FIN)
            ]
        );
    }
}
