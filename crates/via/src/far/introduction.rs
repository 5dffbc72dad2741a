//! What the two say to each other first: the private data of MPA's start-up frames (`docs/via-wire.md`), and where who waits is found.

use super::Wrong;
use super::mpa::PRIVATE_MAX;
use std::net::{IpAddr, SocketAddr};
use toe_abi::via::{Attributes, NAME_LEN, NodeName};

const VERSION: u16 = 2;
const FIXED_LEN: usize = 20 + NAME_LEN;
/// Most bytes of a fragment that goes with it.
pub const EARLY_MAX: usize = PRIVATE_MAX - FIXED_LEN;

/// Discriminators 1 … 255 have a port each from here on, the others share those behind.
const PORTS: u16 = 28_672;
const SHARED_PORTS: u16 = PORTS + 256;
const SHARED: u64 = 3840;

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The program does not want it.
    Rejected = 1,
    Version = 2,
    /// Nobody waits for that node and discriminator.
    Nobody = 3,
}

impl Refusal {
    const fn from_raw(raw: u16) -> Refusal {
        match raw {
            2 => Refusal::Version,
            3 => Refusal::Nobody,
            // What will be said later on is a refusal, too.
            _ => Refusal::Rejected,
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    pub attributes: Attributes,
    pub discriminator: u64,
    /// What the sender calls itself.
    pub node: NodeName,
    /// The first fragment, of endpoints.
    pub early: Vec<u8>,
    /// Of a reply.
    pub refusal: Option<Refusal>,
}

impl Introduction {
    pub fn encode(&self) -> Vec<u8> {
        let refusal = self.refusal.map_or(0, |refusal| refusal as u16);
        let mut bytes = [VERSION.to_be_bytes(), refusal.to_be_bytes()].concat();
        bytes.extend_from_slice(&self.attributes.0.to_be_bytes());
        bytes.extend_from_slice(&self.discriminator.to_be_bytes());
        bytes.extend_from_slice(self.node.as_bytes());
        bytes.resize(FIXED_LEN, 0);
        bytes.extend_from_slice(&self.early[..self.early.len().min(EARLY_MAX)]);
        bytes
    }

    /// Of another version only that is known: `Ok(None)`.
    pub fn decode(bytes: &[u8]) -> Result<Option<Introduction>, Wrong> {
        let half = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_be_bytes([two[0], two[1]]));
        if half(0).ok_or(Wrong::Start)? != VERSION {
            return Ok(None);
        }
        let (fixed, early) = bytes.split_first_chunk::<FIXED_LEN>().ok_or(Wrong::Start)?;
        let word =
            |at: usize| fixed[at..at + 8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        let name = &fixed[FIXED_LEN - NAME_LEN..];
        let len = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN);
        let node = NodeName::new(&name[..len]).filter(|_| name[len..].iter().all(|byte| *byte == 0));
        let refusal = Some(half(2).unwrap_or_default()).filter(|refusal| *refusal != 0);
        Ok(Some(Introduction {
            attributes: Attributes(word(4)),
            discriminator: word(12),
            node: node.ok_or(Wrong::Start)?,
            early: early.to_vec(),
            refusal: refusal.map(Refusal::from_raw),
        }))
    }
}

/// Where who waits at a discriminator of that host is found.
pub fn socket_address(host: IpAddr, discriminator: u64) -> SocketAddr {
    let port = match discriminator {
        1..=255 => PORTS + discriminator as u16,
        _ => {
            let hash = discriminator.to_be_bytes().iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
            SHARED_PORTS + (hash % SHARED) as u16
        }
    };
    SocketAddr::new(host, port)
}

/// The host that a node's name stands for, if it is an address.
pub fn far_host(node: NodeName) -> Option<IpAddr> {
    std::str::from_utf8(node.as_bytes()).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn introductions_come_out_as_they_went_in() {
        let one = Introduction {
            attributes: Attributes::operations(2, true, false, 77),
            discriminator: 0x0102_0304_0506_0708,
            node: NodeName::new(b"one").expect("a name"),
            early: vec![9; 300],
            refusal: None,
        };
        let longest = NodeName::new(&[b'x'; NAME_LEN]).expect("a name");
        let refused =
            Introduction { node: longest, early: Vec::new(), refusal: Some(Refusal::Nobody), ..one.clone() };
        for introduction in [one.clone(), refused] {
            let bytes = introduction.encode();
            assert_eq!(Introduction::decode(&bytes), Ok(Some(introduction)));
            for len in 2..FIXED_LEN {
                assert_eq!(Introduction::decode(&bytes[..len]), Err(Wrong::Start), "{len}");
            }
        }
        assert_eq!(Introduction::decode(&[0]), Err(Wrong::Start));
        assert_eq!(Introduction::decode(&[0, 1]), Ok(None), "another version");
        let mut bad = one.encode();
        bad[FIXED_LEN - 1] = 1;
        assert_eq!(Introduction::decode(&bad), Err(Wrong::Start), "a name with a zero in it");
        bad[20] = 0;
        assert_eq!(Introduction::decode(&bad), Err(Wrong::Start), "no name");
    }

    #[test]
    fn ports_are_those_of_the_page() {
        let host = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(socket_address(host, 1).port(), 28_673);
        assert_eq!(socket_address(host, 255).port(), 28_927);
        for discriminator in [0, 256, 257, u64::MAX, 1 << 40] {
            let port = socket_address(host, discriminator).port();
            assert!((28_928..32_768).contains(&port), "{port}");
        }
        // FNV-1a of eight zeros is 0xa8c7f832281a39c5.
        assert_eq!(u64::from(socket_address(host, 0).port()), 28_928 + 0xa8c7_f832_281a_39c5 % 3840);
        for (name, is_far) in [("10.0.0.1", true), ("fd00::1", true), ("node1", false), ("10.0.0", false)] {
            let node = NodeName::new(name.as_bytes()).expect("a name");
            assert_eq!(far_host(node).is_some(), is_far, "{name}");
        }
    }
}
