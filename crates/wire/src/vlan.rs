//! IEEE 802.1Q tags: four bytes behind the hardware addresses that say which of several networks on one wire a frame is
//! of. Used by the engine's ingress and egress for ports that have such a network.

use crate::ParseError;
use crate::eth::EtherType;

/// Bytes between the hardware addresses and the EtherType of an untagged frame's place.
pub const TAG_LEN: usize = 4;

/// Twelve bits of the tag; the other four are priority and drop eligibility.
const ID_MASK: u16 = 0x0fff;

/// The number of a virtual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VlanId(u16);

impl VlanId {
    /// 0 says that a frame has a priority and no network, 4095 is reserved (IEEE 802.1Q section 9.6).
    pub const fn new(raw: u16) -> Option<VlanId> {
        if raw >= 1 && raw <= 4094 { Some(VlanId(raw)) } else { None }
    }

    pub const fn raw(self) -> u16 {
        self.0
    }
}

/// What stands behind the EtherType of a tagged frame: its network (`None` for a frame with a priority alone), the EtherType
/// of what it carries, and that.
pub fn parse(tagged: &[u8]) -> Result<(Option<VlanId>, EtherType, &[u8]), ParseError> {
    let (tag, payload) = tagged.split_first_chunk::<TAG_LEN>().ok_or(ParseError::Truncated)?;
    let id = u16::from_be_bytes([tag[0], tag[1]]) & ID_MASK;
    Ok((VlanId::new(id), EtherType::from_raw(u16::from_be_bytes([tag[2], tag[3]])), payload))
}

/// Writes the tag and the EtherType of what it carries to the front of `out`, which follows [`EtherType::Vlan`].
pub fn emit(id: VlanId, carries: EtherType, out: &mut [u8]) {
    out[0..2].copy_from_slice(&id.raw().to_be_bytes());
    out[2..4].copy_from_slice(&carries.raw().to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emit_then_parse() {
        let id = VlanId::new(4094).expect("a network");
        let mut frame = [0; TAG_LEN + 1];
        emit(id, EtherType::Ipv6, &mut frame);
        assert_eq!(frame, [0x0f, 0xfe, 0x86, 0xdd, 0]);
        assert_eq!(parse(&frame), Ok((Some(id), EtherType::Ipv6, &[0][..])));
    }

    #[test]
    fn priority_is_no_network() {
        assert_eq!(parse(&[0xe0, 0, 8, 0]), Ok((None, EtherType::Ipv4, &[][..])));
        assert_eq!(
            parse(&[0xf0, 7, 8, 0]).map(|(id, ..)| id),
            Ok(VlanId::new(7)),
            "it comes beside one, too"
        );
        assert_eq!((VlanId::new(0), VlanId::new(4095)), (None, None));
    }

    #[test]
    fn a_cut_tag_is_truncated() {
        assert_eq!(parse(&[0, 7, 8]), Err(ParseError::Truncated));
    }
}
