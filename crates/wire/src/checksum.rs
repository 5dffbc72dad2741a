//! The Internet checksum (RFC 1071): a one's complement sum of 16-bit words. Used by the IPv4, ICMP and TCP modules,
//! and by the engine's egress for segments whose checksum the link does not fill in.

use toe_base::Addr;

/// A running sum. Sums of pieces add up to the sum of the whole as long as every piece but the last has an even
/// number of bytes.
///
/// Kept in the machine's own byte order: the one's complement sum of byte-swapped words is the byte-swapped sum
/// (RFC 1071 section 1.2 B), so the swap is done once, at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(u64);

impl Sum {
    pub const ZERO: Sum = Sum(0);

    /// The sum of `bytes`; an odd last byte counts as if a zero followed it.
    pub fn of(bytes: &[u8]) -> Sum {
        // Words of 32 bits into 64-bit lanes: no carry can be lost below 2^32 words, and the independent lanes let
        // the compiler use vector adds.
        let mut blocks = bytes.chunks_exact(32);
        let mut total = Sum::ZERO;
        if bytes.len() >= 32 {
            let mut lanes = [0u64; 8];
            for block in &mut blocks {
                for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
                    *lane += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
                }
            }
            total = lanes.iter().fold(total, |sum, lane| sum.plus_u64(*lane));
        }
        let mut words = blocks.remainder().chunks_exact(2);
        for word in &mut words {
            total.0 += u64::from(u16::from_ne_bytes([word[0], word[1]]));
        }
        if let [last] = words.remainder() {
            total.0 += u64::from(u16::from_ne_bytes([*last, 0]));
        }
        total
    }

    /// This sum with the bytes of `bytes` added.
    #[must_use]
    pub fn with(self, bytes: &[u8]) -> Sum {
        self.plus_u64(Sum::of(bytes).0)
    }

    /// This sum with one more 16-bit word, given as a number.
    #[must_use]
    pub fn with_word(self, word: u16) -> Sum {
        self.plus_u64(u64::from(word.to_be()))
    }

    /// The sum of two adjacent pieces, the first of even length.
    #[must_use]
    pub fn join(self, other: Sum) -> Sum {
        self.plus_u64(other.0)
    }

    /// The folded sum, not complemented: what a link expects in the checksum field when it is to finish the job.
    pub fn folded(self) -> u16 {
        let mut sum = (self.0 & 0xffff_ffff) + (self.0 >> 32);
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::from_be(sum as u16)
    }

    /// The checksum: the complement of the folded sum.
    pub fn checksum(self) -> u16 {
        !self.folded()
    }

    /// Whether bytes that include their checksum field are intact.
    pub fn is_valid(self) -> bool {
        self.folded() == 0xffff
    }

    /// Adds with the upper half folded in first, so that the running value stays far from overflow.
    fn plus_u64(self, n: u64) -> Sum {
        Sum((self.0 & 0xffff_ffff) + (self.0 >> 32) + (n & 0xffff_ffff) + (n >> 32))
    }
}

/// The sum of the pseudo-header of a transport segment of `len` bytes (RFC 9293 section 3.1, RFC 8200 section 8.1).
pub fn pseudo_header_sum(src: impl Into<Addr>, dst: impl Into<Addr>, protocol: u8, len: u32) -> Sum {
    // Both families add the addresses, the length and the protocol; only how many zeros stand between differs.
    address_sum(src.into())
        .join(address_sum(dst.into()))
        .with_word((len >> 16) as u16)
        .with_word(len as u16)
        .with_word(u16::from(protocol))
}

fn address_sum(addr: Addr) -> Sum {
    match addr.to_v4() {
        Some(v4) => Sum::of(&v4.octets()),
        None => Sum::of(&addr.to_v6().octets()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for pair in bytes.chunks(2) {
            sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn rfc_1071_example() {
        assert_eq!(Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]).folded(), 0xddf2);
    }

    #[test]
    fn the_pseudo_header_of_either_family() {
        let (v4, v6) = (Addr::from([10, 0, 0, 1]), Addr::LOCALHOST_V6);
        let of_v4 = [10, 0, 0, 1, 10, 0, 0, 1, 0, 6, 0, 20];
        assert_eq!(pseudo_header_sum(v4, v4, 6, 20).folded(), plain(&of_v4));
        let mut of_v6 = [0; 40];
        (of_v6[15], of_v6[31], of_v6[35], of_v6[39]) = (1, 1, 20, 6);
        assert_eq!(pseudo_header_sum(v6, v6, 6, 20).folded(), plain(&of_v6));
        let full = "2001:db8:3:4:5:6:7:8".parse::<core::net::Ipv6Addr>().expect("an address");
        of_v6[..16].copy_from_slice(&full.octets());
        assert_eq!(pseudo_header_sum(full, v6, 6, 20).folded(), plain(&of_v6), "every byte counts");
        let zoned = Addr::v6("fe80::1".parse().expect("an address"), 0x1234_5678);
        let plain_one = Addr::v6("fe80::1".parse().expect("an address"), 0);
        assert_eq!(
            pseudo_header_sum(zoned, v6, 6, 20),
            pseudo_header_sum(plain_one, v6, 6, 20),
            "no zone on a wire"
        );
    }

    #[test]
    fn the_largest_datagram_of_ones_does_not_overflow() {
        let ones = [0xffu8; 65_535];
        assert_eq!(Sum::of(&ones).folded(), plain(&ones));
    }

    proptest! {
        #[test]
        fn equals_the_definition(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert_eq!(Sum::of(&bytes).folded(), plain(&bytes));
        }

        #[test]
        fn pieces_add_up(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..200) {
            let cut = (cut * 2).min(bytes.len() & !1);
            let (a, b) = bytes.split_at(cut);
            prop_assert_eq!(Sum::of(a).with(b).folded(), plain(&bytes));
            prop_assert_eq!(Sum::of(a).join(Sum::of(b)).folded(), plain(&bytes));
        }

        #[test]
        fn a_stored_checksum_makes_it_valid(mut bytes in proptest::collection::vec(any::<u8>(), 2..200)) {
            bytes[0] = 0;
            bytes[1] = 0;
            let sum = Sum::of(&bytes).checksum();
            bytes[..2].copy_from_slice(&sum.to_be_bytes());
            prop_assert!(Sum::of(&bytes).is_valid());
        }
    }
}
