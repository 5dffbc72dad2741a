//! The TCP header proper: fields, flags and the checksum with its pseudo-header.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

use toe_base::window::UnscaledWindow;
use toe_base::{Addr, SeqNum};

use super::options::{OPTIONS_LEN_MAX, TcpOptions};
use crate::checksum::pseudo_header_sum;
use crate::{ParseError, Protocol};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;
/// Bytes of the largest header.
pub const HEADER_LEN_MAX: usize = HEADER_LEN + OPTIONS_LEN_MAX;

/// The control bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(u8);

impl TcpFlags {
    pub const NONE: TcpFlags = TcpFlags(0);
    pub const FIN: TcpFlags = TcpFlags(0x01);
    pub const SYN: TcpFlags = TcpFlags(0x02);
    pub const RST: TcpFlags = TcpFlags(0x04);
    pub const PSH: TcpFlags = TcpFlags(0x08);
    pub const ACK: TcpFlags = TcpFlags(0x10);
    pub const URG: TcpFlags = TcpFlags(0x20);
    pub const ECE: TcpFlags = TcpFlags(0x40);
    pub const CWR: TcpFlags = TcpFlags(0x80);

    pub const fn from_raw(raw: u8) -> TcpFlags {
        TcpFlags(raw)
    }

    pub const fn raw(self) -> u8 {
        self.0
    }

    /// All of `other`'s bits are set.
    pub const fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// At least one of `other`'s bits is set.
    pub const fn intersects(self, other: TcpFlags) -> bool {
        self.0 & other.0 != 0
    }

    /// Both sets of bits; `|` in constants.
    #[must_use]
    pub const fn with(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }

    /// The same if `is_set`, else as they are.
    #[must_use]
    pub const fn with_if(self, other: TcpFlags, is_set: bool) -> TcpFlags {
        if is_set { self.with(other) } else { self }
    }

    #[must_use]
    pub const fn without(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 & !other.0)
    }

    pub const fn syn(self) -> bool {
        self.intersects(Self::SYN)
    }

    pub const fn fin(self) -> bool {
        self.intersects(Self::FIN)
    }

    pub const fn rst(self) -> bool {
        self.intersects(Self::RST)
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;

    fn bitor(self, other: TcpFlags) -> TcpFlags {
        self.with(other)
    }
}

impl BitOrAssign for TcpFlags {
    fn bitor_assign(&mut self, other: TcpFlags) {
        *self = self.with(other);
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NAMES: [&str; 8] = ["FIN", "SYN", "RST", "PSH", "ACK", "URG", "ECE", "CWR"];
        let mut separator = "";
        for (bit, name) in NAMES.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                write!(f, "{separator}{name}")?;
                separator = "|";
            }
        }
        if self.0 == 0 { f.write_str("-") } else { Ok(()) }
    }
}

/// A TCP header. The ACK bit and the acknowledgement number are one thing, `ack`: after a parse `flags` has ACK
/// exactly when `ack` is there, and `emit` goes by `ack` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRepr {
    pub src_port: u16,
    pub dst_port: u16,
    pub seq: SeqNum,
    pub ack: Option<SeqNum>,
    pub flags: TcpFlags,
    pub window: UnscaledWindow,
    pub urgent: u16,
    pub options: TcpOptions,
}

impl TcpRepr {
    /// The header and the payload behind it. The checksum is [`checksum_is_valid`]'s business, because a link may
    /// have checked it already.
    pub fn parse(segment: &[u8]) -> Result<(TcpRepr, &[u8]), ParseError> {
        let h = segment.first_chunk::<HEADER_LEN>().ok_or(ParseError::Truncated)?;
        let header_len = usize::from(h[12] >> 4) * 4;
        if header_len < HEADER_LEN {
            return Err(ParseError::BadHeaderLength);
        }
        let option_bytes = segment.get(HEADER_LEN..header_len).ok_or(ParseError::Truncated)?;
        let flags = TcpFlags::from_raw(h[13]);
        let ack = SeqNum::new(u32::from_be_bytes([h[8], h[9], h[10], h[11]]));
        let repr = TcpRepr {
            src_port: u16::from_be_bytes([h[0], h[1]]),
            dst_port: u16::from_be_bytes([h[2], h[3]]),
            seq: SeqNum::new(u32::from_be_bytes([h[4], h[5], h[6], h[7]])),
            ack: flags.contains(TcpFlags::ACK).then_some(ack),
            flags,
            window: UnscaledWindow(u16::from_be_bytes([h[14], h[15]])),
            urgent: u16::from_be_bytes([h[18], h[19]]),
            options: TcpOptions::parse(option_bytes)?,
        };
        Ok((repr, &segment[header_len..]))
    }

    /// Bytes that [`TcpRepr::emit`] writes: 20 to 60, a multiple of 4.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + self.options.encoded_len()
    }

    /// Sequence space that this segment takes with `payload_len` bytes of payload: SEG.LEN of RFC 9293.
    pub fn sequence_len(&self, payload_len: u32) -> u32 {
        payload_len + u32::from(self.flags.syn()) + u32::from(self.flags.fin())
    }

    /// Writes the header to the front of `out`, its checksum field zero: [`store_checksum`] or [`store_pseudo_sum`]
    /// comes next, when the payload stands behind the header.
    pub fn emit(&self, out: &mut [u8]) {
        let header_len = self.header_len();
        let out = &mut out[..header_len];
        let flags = match self.ack {
            Some(_) => self.flags.with(TcpFlags::ACK),
            None => self.flags.without(TcpFlags::ACK),
        };
        out[0..2].copy_from_slice(&self.src_port.to_be_bytes());
        out[2..4].copy_from_slice(&self.dst_port.to_be_bytes());
        out[4..8].copy_from_slice(&self.seq.raw().to_be_bytes());
        out[8..12].copy_from_slice(&self.ack.unwrap_or_default().raw().to_be_bytes());
        // At most 60 bytes, so the length in words fits its 4 bits.
        out[12] = (header_len as u8 / 4) << 4;
        out[13] = flags.raw();
        out[14..16].copy_from_slice(&self.window.0.to_be_bytes());
        out[16..18].copy_from_slice(&[0, 0]);
        out[18..20].copy_from_slice(&self.urgent.to_be_bytes());
        self.options.emit(&mut out[HEADER_LEN..]);
    }
}

/// Whether the checksum of `segment` (header and payload) is right for these addresses. A segment longer than an
/// IP packet is not.
pub fn checksum_is_valid(segment: &[u8], src: impl Into<Addr>, dst: impl Into<Addr>) -> bool {
    let Ok(len) = u16::try_from(segment.len()) else { return false };
    let len = u32::from(len);
    pseudo_header_sum(src, dst, Protocol::Tcp.raw(), len).with(segment).is_valid()
}

/// Computes and stores the checksum of `segment` (an emitted header and its payload, less than 64 KiB).
pub fn store_checksum(segment: &mut [u8], src: impl Into<Addr>, dst: impl Into<Addr>) {
    store(segment, 0);
    let sum = pseudo_header_sum(src, dst, Protocol::Tcp.raw(), segment.len() as u32).with(segment);
    store(segment, sum.checksum());
}

/// Stores what a link wants to find that computes the checksum itself ([`crate::link::PartialChecksum`]): the sum of
/// the pseudo-header. `segment_len` counts header and payload; only the header needs to be in `segment`.
pub fn store_pseudo_sum(segment: &mut [u8], src: impl Into<Addr>, dst: impl Into<Addr>, segment_len: u16) {
    store(segment, pseudo_header_sum(src, dst, Protocol::Tcp.raw(), u32::from(segment_len)).folded());
}

fn store(segment: &mut [u8], value: u16) {
    let at = usize::from(super::CHECKSUM_OFFSET);
    segment[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::any_options;
    use super::*;
    use crate::Sum;
    use core::net::Ipv4Addr;
    use proptest::prelude::*;

    const SRC: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
    const DST: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

    /// A header whose options all fit.
    fn any_repr() -> impl Strategy<Value = TcpRepr> {
        let fixed = any::<(u16, u16, u32, Option<u32>, u8, u16, u16)>();
        (fixed, any_options()).prop_map(
            |((src_port, dst_port, seq, ack, flags, window, urgent), mut options)| {
                options.sack = Default::default();
                let ack = ack.map(SeqNum::new);
                let flags = TcpFlags::from_raw(flags).without(TcpFlags::ACK);
                TcpRepr {
                    src_port,
                    dst_port,
                    seq: SeqNum::new(seq),
                    ack,
                    flags: if ack.is_some() { flags | TcpFlags::ACK } else { flags },
                    window: UnscaledWindow(window),
                    urgent,
                    options,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn emit_then_parse(repr in any_repr(), payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut segment = vec![0xee; repr.header_len()];
            repr.emit(&mut segment);
            segment.extend_from_slice(&payload);
            store_checksum(&mut segment, SRC, DST);
            prop_assert!(checksum_is_valid(&segment, SRC, DST));
            prop_assert_eq!(TcpRepr::parse(&segment), Ok((repr, payload.as_slice())));
            let flipped = segment.len() - 1;
            segment[flipped] ^= 4;
            prop_assert!(!checksum_is_valid(&segment, SRC, DST));
        }

        #[test]
        fn a_link_can_finish_the_checksum(repr in any_repr(), payload in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut segment = vec![0; repr.header_len()];
            repr.emit(&mut segment);
            segment.extend_from_slice(&payload);
            let len = segment.len() as u16;
            store_pseudo_sum(&mut segment, SRC, DST, len);
            let finished = Sum::of(&segment).checksum();
            segment[16..18].copy_from_slice(&finished.to_be_bytes());
            prop_assert!(checksum_is_valid(&segment, SRC, DST));
        }

        #[test]
        fn arbitrary_bytes_never_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..100), words in 0u8..16) {
            if let Some(byte) = bytes.get_mut(12) {
                *byte = words << 4;
            }
            let _ = checksum_is_valid(&bytes, SRC, DST);
            let _ = TcpRepr::parse(&bytes);
        }
    }

    #[test]
    fn each_fault_has_its_reason() {
        let mut segment = [0; HEADER_LEN];
        assert_eq!(TcpRepr::parse(&segment[..19]), Err(ParseError::Truncated));
        segment[12] = 4 << 4;
        assert_eq!(TcpRepr::parse(&segment), Err(ParseError::BadHeaderLength));
        segment[12] = 6 << 4;
        assert_eq!(TcpRepr::parse(&segment), Err(ParseError::Truncated));
        segment[12] = 5 << 4;
        assert!(TcpRepr::parse(&segment).is_ok());
        assert!(!checksum_is_valid(&[0; 70_000], SRC, DST));
    }

    #[test]
    fn flags_print_as_names() {
        assert_eq!(format!("{:?}", TcpFlags::SYN | TcpFlags::ACK), "SYN|ACK");
        assert_eq!(format!("{:?}", TcpFlags::NONE), "-");
    }
}
