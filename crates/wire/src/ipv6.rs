//! The IPv6 header and its extension headers (RFC 8200). Used by the engine's ingress and egress.
//!
//! Extension headers are walked and skipped, at most [`EXTENSIONS_MAX`] of them, and none is ever sent. What asks a node
//! that does not know it to drop the packet drops it; nothing is answered for that, so that nobody can have the engine
//! answer for them.

use core::net::Ipv6Addr;

use crate::{ParseError, Protocol};

/// Bytes of the fixed header, the only one that is emitted.
pub const HEADER_LEN: usize = 40;
/// Most extension headers of a packet (RFC 9288 section 2 lets a node set such limits).
pub const EXTENSIONS_MAX: usize = 8;
/// Most bytes of all extension headers together.
const EXTENSIONS_LEN_MAX: usize = 512;
/// Bytes of a fragment header.
pub const FRAGMENT_LEN: usize = 8;

// Numbers of extension headers (RFC 8200 section 4).
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Says of an option that whoever does not know it goes on (RFC 8200 section 4.2: the two highest bits are zero).
const OPTION_SKIPPED: u8 = 0;

/// An IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    pub src: Ipv6Addr,
    pub dst: Ipv6Addr,
    /// Of what stands behind all extension headers.
    pub protocol: Protocol,
    pub hop_limit: u8,
    /// DSCP and ECN (RFC 2474, RFC 3168).
    pub traffic_class: u8,
    /// 20 bits (RFC 6437).
    pub flow_label: u32,
    /// Bytes behind the fixed header, extension headers included.
    pub payload_len: u16,
}

/// The fragment header of a piece (RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    pub ident: u32,
    /// Place in the fragmentable part, in units of 8 bytes.
    pub offset: u16,
    pub more: bool,
    /// What the fragmentable part begins with: see [`upper_layer`]. Only that of the first piece counts.
    pub next_header: u8,
}

impl Fragment {
    /// What the header before it says that follows.
    pub const PROTOCOL: Protocol = Protocol::Other(FRAGMENT);

    /// Writes the header to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        out[0..2].copy_from_slice(&[self.next_header, 0]);
        out[2..4].copy_from_slice(&(self.offset << 3 | u16::from(self.more)).to_be_bytes());
        out[4..8].copy_from_slice(&self.ident.to_be_bytes());
    }
}

/// What stands behind the headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// A whole packet's transport bytes.
    Whole(&'a [u8]),
    /// A piece of the fragmentable part.
    Piece(Fragment, &'a [u8]),
}

impl Ipv6Repr {
    /// The header and what stands behind all extension headers, as long as the header claims (not the padding behind it).
    pub fn parse(bytes: &[u8]) -> Result<(Ipv6Repr, Body<'_>), ParseError> {
        let (mut repr, next, rest) = Self::fixed(bytes)?;
        let payload = rest.get(..usize::from(repr.payload_len)).ok_or(ParseError::Truncated)?;
        let mut walk = Walk { next, rest: payload, is_first: true };
        match walk.go_to_upper_layer()? {
            Some((fragment, piece)) => Ok((repr, Body::Piece(fragment, piece))),
            None => {
                repr.protocol = Protocol::from_raw(walk.next);
                Ok((repr, Body::Whole(walk.rest)))
            }
        }
    }

    /// The header of a packet that is quoted in an ICMPv6 error, and what is there behind its extension headers. A piece
    /// that is not the first has no transport header.
    pub fn parse_quoted(bytes: &[u8]) -> Result<(Ipv6Repr, &[u8]), ParseError> {
        let (mut repr, next, rest) = Self::fixed(bytes)?;
        let mut walk = Walk { next, rest, is_first: true };
        match walk.go_to_upper_layer()? {
            Some((Fragment { offset: 0, next_header, .. }, piece)) => {
                let (protocol, bytes) = upper_layer(next_header, piece)?;
                repr.protocol = protocol;
                Ok((repr, bytes))
            }
            Some(_) => Err(ParseError::Unsupported),
            None => {
                repr.protocol = Protocol::from_raw(walk.next);
                Ok((repr, walk.rest))
            }
        }
    }

    fn fixed(bytes: &[u8]) -> Result<(Ipv6Repr, u8, &[u8]), ParseError> {
        let (h, rest) = bytes.split_first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        let first = u32::from_be_bytes([h[0], h[1], h[2], h[3]]);
        if first >> 28 != 6 {
            return Err(ParseError::BadVersion);
        }
        let addr = |at: usize| {
            let mut bytes = [0; 16];
            bytes.copy_from_slice(&h[at..at + 16]);
            Ipv6Addr::from(bytes)
        };
        let repr = Ipv6Repr {
            src: addr(8),
            dst: addr(24),
            protocol: Protocol::from_raw(h[6]),
            hop_limit: h[7],
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            payload_len: u16::from_be_bytes([h[4], h[5]]),
        };
        Ok((repr, h[6], rest))
    }

    pub const fn header_len(&self) -> usize {
        HEADER_LEN
    }

    /// Writes the header to the front of `out`; `protocol` follows it at once.
    pub fn emit(&self, out: &mut [u8]) {
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        out[0..4].copy_from_slice(&first.to_be_bytes());
        out[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        out[6] = self.protocol.raw();
        out[7] = self.hop_limit;
        out[8..24].copy_from_slice(&self.src.octets());
        out[24..40].copy_from_slice(&self.dst.octets());
    }
}

/// The protocol and bytes behind the extension headers that stand in front of a reassembled packet's transport header.
/// A fragment header in there is refused: fragments are not nested.
pub fn upper_layer(next: u8, bytes: &[u8]) -> Result<(Protocol, &[u8]), ParseError> {
    let mut walk = Walk { next, rest: bytes, is_first: false };
    match walk.go_to_upper_layer()? {
        Some(_) => Err(ParseError::BadExtension),
        None => Ok((Protocol::from_raw(walk.next), walk.rest)),
    }
}

/// A walk along a chain of extension headers.
struct Walk<'a> {
    next: u8,
    rest: &'a [u8],
    /// Nothing but the fixed header is behind us.
    is_first: bool,
}

impl<'a> Walk<'a> {
    /// Goes on to the transport header, or to a fragment header, which it returns with the piece behind it.
    fn go_to_upper_layer(&mut self) -> Result<Option<(Fragment, &'a [u8])>, ParseError> {
        let whole = self.rest.len();
        for _ in 0..=EXTENSIONS_MAX {
            if whole - self.rest.len() > EXTENSIONS_LEN_MAX {
                return Err(ParseError::BadExtension);
            }
            match self.next {
                // RFC 8200 section 4.1: only right behind the fixed header.
                HOP_BY_HOP if !self.is_first => return Err(ParseError::BadExtension),
                HOP_BY_HOP | DESTINATION => check_options(self.skip()?)?,
                ROUTING => {
                    // RFC 8200 section 4.4: of an unknown kind it is skipped when nothing is left of the route. Of the known
                    // kinds type 0 is not to be followed (RFC 5095), and the engine forwards nothing.
                    let header = self.skip()?;
                    if header.get(3) != Some(&0) {
                        return Err(ParseError::BadExtension);
                    }
                }
                FRAGMENT => {
                    if let Some(piece) = self.fragment()? {
                        return Ok(Some(piece));
                    }
                }
                _ => return Ok(None),
            }
            self.is_first = false;
        }
        Err(ParseError::BadExtension)
    }

    /// Takes one header of the common form, and returns it.
    fn skip(&mut self) -> Result<&'a [u8], ParseError> {
        let &[next, len, ..] = self.rest else { return Err(ParseError::Truncated) };
        let (header, rest) =
            self.rest.split_at_checked((usize::from(len) + 1) * 8).ok_or(ParseError::Truncated)?;
        (self.next, self.rest) = (next, rest);
        Ok(header)
    }

    /// Takes a fragment header. A packet that is its own only fragment is a whole one (RFC 6946).
    fn fragment(&mut self) -> Result<Option<(Fragment, &'a [u8])>, ParseError> {
        let (h, rest) = self.rest.split_first_chunk::<FRAGMENT_LEN>().ok_or(ParseError::Truncated)?;
        let field = u16::from_be_bytes([h[2], h[3]]);
        let fragment = Fragment {
            ident: u32::from_be_bytes([h[4], h[5], h[6], h[7]]),
            offset: field >> 3,
            more: field & 1 != 0,
            next_header: h[0],
        };
        (self.next, self.rest) = (h[0], rest);
        Ok((fragment.more || fragment.offset != 0).then_some((fragment, rest)))
    }
}

/// The options of a hop-by-hop or destination header: none may ask to drop the packet.
fn check_options(header: &[u8]) -> Result<(), ParseError> {
    const PAD_1: u8 = 0;
    let mut options = header.get(2..).unwrap_or_default();
    while let [kind, after @ ..] = options {
        if *kind == PAD_1 {
            options = after;
            continue;
        }
        let [len, data @ ..] = after else { return Err(ParseError::BadExtension) };
        if kind >> 6 != OPTION_SKIPPED {
            return Err(ParseError::BadExtension);
        }
        options = data.get(usize::from(*len)..).ok_or(ParseError::BadExtension)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn repr(payload_len: u16) -> Ipv6Repr {
        Ipv6Repr {
            src: "2001:db8::1".parse().expect("an address"),
            dst: "2001:db8::2".parse().expect("an address"),
            protocol: Protocol::Tcp,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            payload_len,
        }
    }

    /// A packet whose first header behind the fixed one is `next`.
    fn packet(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN];
        repr(payload.len() as u16).emit(&mut bytes);
        bytes[6] = next;
        bytes.extend_from_slice(payload);
        bytes
    }

    fn upper(next: u8, payload: &[u8]) -> Result<(Protocol, usize), ParseError> {
        match Ipv6Repr::parse(&packet(next, payload))? {
            (repr, Body::Whole(bytes)) => Ok((repr.protocol, bytes.len())),
            (_, Body::Piece(..)) => panic!("whole"),
        }
    }

    #[test]
    fn each_fault_has_its_reason() {
        let good = packet(6, &[7; 20]);
        assert!(Ipv6Repr::parse(&good).is_ok());
        assert_eq!(Ipv6Repr::parse(&good[..39]), Err(ParseError::Truncated));
        assert_eq!(Ipv6Repr::parse(&good[..59]), Err(ParseError::Truncated));
        let mut other = good;
        other[0] = 0x45;
        assert_eq!(Ipv6Repr::parse(&other), Err(ParseError::BadVersion));
    }

    #[test]
    fn extension_headers_are_skipped_and_padding_is_cut() {
        // Hop-by-hop with a router alert, destination options with PadN, routing with nothing left, then TCP.
        let mut chain = vec![DESTINATION, 0, 5, 2, 0, 0, 1, 0];
        chain.extend([ROUTING, 0, 1, 4, 0, 0, 0, 0]);
        chain.extend([6, 0, 4, 0, 0, 0, 0, 0]);
        chain.extend([9; 20]);
        assert_eq!(upper(HOP_BY_HOP, &chain), Ok((Protocol::Tcp, 20)));
        let mut padded = packet(6, &[9; 20]);
        padded.extend([0; 6]);
        assert!(matches!(Ipv6Repr::parse(&padded), Ok((_, Body::Whole(bytes))) if bytes.len() == 20));
    }

    #[test]
    fn what_asks_to_be_dropped_is_dropped() {
        let bad = Err(ParseError::BadExtension);
        assert_eq!(upper(ROUTING, &[6, 0, 0, 1, 0, 0, 0, 0]), bad, "a route that goes on (RFC 5095)");
        assert_eq!(upper(DESTINATION, &[6, 0, 0x41, 4, 0, 0, 0, 0]), bad, "an option to drop for");
        assert_eq!(upper(HOP_BY_HOP, &[6, 0, 0xc2, 4, 0, 1, 0, 0]), bad, "a jumbogram");
        assert_eq!(upper(DESTINATION, &[6, 0, 1, 9, 0, 0, 0, 0]), bad, "an option beyond its header");
        let late = [HOP_BY_HOP, 0, 1, 4, 0, 0, 0, 0, 6, 0, 1, 4, 0, 0, 0, 0];
        assert_eq!(upper(DESTINATION, &late), bad, "hop-by-hop is first or not at all");
        assert_eq!(upper(DESTINATION, &[6, 1, 1, 4, 0, 0, 0, 0]), Err(ParseError::Truncated));
    }

    #[test]
    fn a_chain_is_no_longer_than_its_limits() {
        let chain = |n: usize| {
            let mut bytes: Vec<u8> = (1..n).flat_map(|_| [DESTINATION, 0, 1, 4, 0, 0, 0, 0]).collect();
            bytes.extend([6, 0, 1, 4, 0, 0, 0, 0]);
            bytes
        };
        assert_eq!(upper(DESTINATION, &chain(EXTENSIONS_MAX)), Ok((Protocol::Tcp, 0)));
        assert_eq!(upper(DESTINATION, &chain(EXTENSIONS_MAX + 1)), Err(ParseError::BadExtension));
        let mut long = vec![0; 1024];
        long[1] = 127;
        long[0] = 6;
        assert_eq!(upper(DESTINATION, &long), Err(ParseError::BadExtension));
    }

    #[test]
    fn fragments_say_so_and_a_lone_one_is_whole() {
        let piece = packet(FRAGMENT, &[6, 0, 0, 9, 0, 0, 0, 5, 1, 2, 3, 4, 5, 6, 7, 8]);
        let fragment = Fragment { ident: 5, offset: 1, more: true, next_header: 6 };
        let (_, body) = Ipv6Repr::parse(&piece).expect("a good piece");
        assert_eq!(body, Body::Piece(fragment, &[1, 2, 3, 4, 5, 6, 7, 8]));
        assert_eq!(upper(FRAGMENT, &[6, 0, 0, 0, 0, 0, 0, 5, 1, 2]), Ok((Protocol::Tcp, 2)), "RFC 6946");
        assert_eq!(upper_layer(DESTINATION, &[6, 0, 1, 4, 0, 0, 0, 0, 1]), Ok((Protocol::Tcp, &[1][..])));
        assert_eq!(upper_layer(FRAGMENT, &[6, 0, 0, 9, 0, 0, 0, 5]), Err(ParseError::BadExtension));
    }

    proptest! {
        #[test]
        fn emit_then_parse(
            src: [u8; 16], dst: [u8; 16], hop_limit: u8, traffic_class: u8, flow_label in 0u32..1 << 20,
            payload in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let (src, dst) = (src.into(), dst.into());
            let payload_len = payload.len() as u16;
            let repr = Ipv6Repr { src, dst, protocol: Protocol::Tcp, hop_limit, traffic_class, flow_label, payload_len };
            let mut bytes = vec![0; repr.header_len()];
            repr.emit(&mut bytes);
            bytes.extend_from_slice(&payload);
            prop_assert_eq!(Ipv6Repr::parse(&bytes), Ok((repr, Body::Whole(&payload[..]))));
            prop_assert_eq!(Ipv6Repr::parse_quoted(&bytes), Ok((repr, &payload[..])));
        }

        #[test]
        fn arbitrary_bytes_never_panic(
            next in prop::sample::select(vec![0u8, 6, 43, 44, 60]),
            payload in proptest::collection::vec(prop::sample::select(vec![0u8, 1, 5, 6, 43, 44, 60, 255]), 0..120),
            cut in 0usize..200,
        ) {
            let bytes = packet(next, &payload);
            let bytes = &bytes[..cut.min(bytes.len())];
            let _ = Ipv6Repr::parse(bytes);
            let _ = Ipv6Repr::parse_quoted(bytes);
            let _ = upper_layer(next, &payload);
        }
    }
}
