//! The virtio-net header (virtio 1.2 section 5.1.6), as TAP and AF_PACKET put it before each frame: 10 bytes, in the
//! machine's byte order. Both drivers use it; nothing else knows its encoding.

use toe_wire::link::{Cut, RxOffload, TxOffload};

/// Bytes of `struct virtio_net_hdr` without the count of merged buffers.
pub const HEADER_LEN: usize = 10;

const FLAG_NEEDS_CSUM: u8 = 1;
const FLAG_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
/// Datagrams, one behind the other (UDP_SEGMENT).
const GSO_UDP_L4: u8 = 5;
/// May stand beside a GSO type: some segment had CWR set.
const GSO_ECN: u8 = 0x80;

/// Why a received header was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderError {
    /// A kind of segmentation that the engine cannot take apart (UFO: one datagram of many frames).
    UnknownSegmentation,
    /// Segments without a size.
    NoSegmentSize,
    /// The checksum's place is outside the frame.
    ChecksumOutside,
}

/// Reads the header of a received frame of `frame_len` bytes.
pub fn decode(header: &[u8; HEADER_LEN], frame_len: usize) -> Result<RxOffload, HeaderError> {
    let [flags, gso, _, _, size0, size1, start0, start1, offset0, offset1] = *header;
    let gso_size = u16::from_ne_bytes([size0, size1]);
    let coalesced_mss = match gso & !GSO_ECN {
        GSO_NONE => None,
        GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 if gso_size == 0 => return Err(HeaderError::NoSegmentSize),
        GSO_TCPV4 | GSO_TCPV6 | GSO_UDP_L4 => Some(gso_size),
        _ => return Err(HeaderError::UnknownSegmentation),
    };
    let needs_checksum = flags & FLAG_NEEDS_CSUM != 0;
    if needs_checksum {
        let start = usize::from(u16::from_ne_bytes([start0, start1]));
        let offset = usize::from(u16::from_ne_bytes([offset0, offset1]));
        if start + offset + 2 > frame_len {
            return Err(HeaderError::ChecksumOutside);
        }
    }
    // A checksum still to be filled in belongs to a frame that has not been on a wire since its sender made it.
    Ok(RxOffload { checksum_ok: needs_checksum || flags & FLAG_DATA_VALID != 0, coalesced_mss })
}

/// The header for a frame of `frame_len` bytes that is to be sent; `None` when what is asked of the link does not
/// fit the frame, or when segments are asked for without checksums.
pub fn encode(offload: TxOffload, frame_len: usize) -> Option<[u8; HEADER_LEN]> {
    let mut header = [0; HEADER_LEN];
    if let Some(checksum) = offload.checksum {
        if usize::from(checksum.start) + usize::from(checksum.offset) + 2 > frame_len {
            return None;
        }
        header[0] = FLAG_NEEDS_CSUM;
        header[6..8].copy_from_slice(&checksum.start.to_ne_bytes());
        header[8..10].copy_from_slice(&checksum.offset.to_ne_bytes());
    }
    if let Some(segmentation) = offload.segmentation {
        let whole = usize::from(segmentation.header_len) <= frame_len;
        if offload.checksum.is_none() || segmentation.mss == 0 || !whole {
            return None;
        }
        header[1] = match segmentation.cut {
            Cut::TcpV4 => GSO_TCPV4,
            Cut::TcpV6 => GSO_TCPV6,
            Cut::Datagrams => GSO_UDP_L4,
        };
        header[2..4].copy_from_slice(&segmentation.header_len.to_ne_bytes());
        header[4..6].copy_from_slice(&segmentation.mss.to_ne_bytes());
    }
    Some(header)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use toe_wire::link::{PartialChecksum, Segmentation};

    const CHECKSUM: PartialChecksum = PartialChecksum { start: 34, offset: 16 };

    #[test]
    fn a_plain_frame_has_a_zero_header() {
        assert_eq!(encode(TxOffload::default(), 60), Some([0; HEADER_LEN]));
        assert_eq!(decode(&[0; HEADER_LEN], 60), Ok(RxOffload::default()));
    }

    #[test]
    fn a_large_frame_arrives_as_one() {
        for (cut, kind) in [(Cut::TcpV4, 1), (Cut::TcpV6, 4), (Cut::Datagrams, 5)] {
            let segmentation = Segmentation { header_len: 54, mss: 1448, cut };
            let offload = TxOffload { checksum: Some(CHECKSUM), segmentation: Some(segmentation) };
            let header = encode(offload, 9000).expect("fits");
            assert_eq!(header[1], kind, "as virtio 1.2 section 5.1.6 numbers them");
            assert_eq!(decode(&header, 9000), Ok(RxOffload { checksum_ok: true, coalesced_mss: Some(1448) }));
        }
    }

    #[test]
    fn either_checksum_flag_is_enough() {
        let mut header =
            encode(TxOffload { checksum: Some(CHECKSUM), segmentation: None }, 60).expect("fits");
        assert_eq!(decode(&header, 60), Ok(RxOffload { checksum_ok: true, coalesced_mss: None }));
        header[0] = FLAG_DATA_VALID;
        assert_eq!(decode(&header, 60), Ok(RxOffload { checksum_ok: true, coalesced_mss: None }));
        header[0] = 0;
        assert_eq!(decode(&header, 60), Ok(RxOffload::default()));
    }

    #[test]
    fn contradictions_are_refused() {
        let offload = TxOffload { checksum: Some(CHECKSUM), segmentation: None };
        assert_eq!(encode(offload, 51), None);
        let header = encode(offload, 52).expect("just fits");
        assert_eq!(decode(&header, 51), Err(HeaderError::ChecksumOutside));

        let segmentation = Segmentation { header_len: 54, mss: 1448, cut: Cut::TcpV4 };
        assert_eq!(encode(TxOffload { checksum: None, segmentation: Some(segmentation) }, 9000), None);
        let no_size = Segmentation { mss: 0, ..segmentation };
        assert_eq!(encode(TxOffload { checksum: Some(CHECKSUM), segmentation: Some(no_size) }, 9000), None);

        let mut header = [0; HEADER_LEN];
        header[1] = GSO_TCPV4 | GSO_ECN;
        assert_eq!(decode(&header, 60), Err(HeaderError::NoSegmentSize));
        header[1] = 3;
        assert_eq!(decode(&header, 60), Err(HeaderError::UnknownSegmentation));
    }

    proptest! {
        #[test]
        fn arbitrary_headers_never_panic(header: [u8; HEADER_LEN], frame_len in 0usize..70_000) {
            let _ = decode(&header, frame_len);
        }
    }
}
