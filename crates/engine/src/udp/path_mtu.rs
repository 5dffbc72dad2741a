//! How large the packets may be that get to a peer: what routers have said (RFC 1191, RFC 8201) and for how long it is believed. The link's own
//! limit is the caller's.

use toe_base::{Addr, Instant};

/// Peers of which something is known; the one that was heard of longest ago makes room.
const PEERS_MAX: usize = 256;
/// Linux: net.ipv4.route.mtu_expires, net.ipv6.route.mtu_expires.
const BELIEVED_US: u64 = 600_000_000;
/// Linux: net.ipv4.route.min_pmtu. Nobody makes packets smaller by a message.
const LEAST_V4: u16 = 552;
/// RFC 8200 section 5.
const LEAST_V6: u16 = 1280;

#[derive(Clone, Copy, Debug)]
struct Known {
    peer: Addr,
    mtu: u16,
    until: Instant,
}

/// By peer, in the order in which they were heard of.
#[derive(Debug, Default)]
pub struct PathMtus(Vec<Known>);

impl PathMtus {
    /// A router says what is the most that it can pass on to a peer.
    pub fn learn(&mut self, now: Instant, peer: Addr, mtu: u32) {
        let least = if peer.is_v4() { LEAST_V4 } else { LEAST_V6 };
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX).max(least);
        self.0.retain(|known| known.peer != peer && now < known.until);
        if self.0.len() >= PEERS_MAX {
            self.0.remove(0);
        }
        self.0.push(Known { peer, mtu, until: now.after_us(BELIEVED_US) });
    }

    pub fn of(&self, now: Instant, peer: Addr) -> Option<u16> {
        let known = self.0.iter().find(|known| known.peer == peer)?;
        (now < known.until).then_some(known.mtu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Addr = Addr::v4(core::net::Ipv4Addr::new(10, 0, 0, 9));

    #[test]
    fn what_was_said_last_is_believed_for_ten_minutes() {
        let (mut paths, now) = (PathMtus::default(), Instant::from_micros(5));
        assert_eq!(paths.of(now, PEER), None);
        paths.learn(now, PEER, 1400);
        paths.learn(now, PEER, 1200);
        assert_eq!(paths.of(now, PEER), Some(1200));
        assert_eq!(paths.of(now.after_us(BELIEVED_US - 1), PEER), Some(1200));
        assert_eq!(paths.of(now.after_us(BELIEVED_US), PEER), None);
    }

    #[test]
    fn nobody_makes_packets_tiny_or_the_list_long() {
        let (mut paths, now) = (PathMtus::default(), Instant::from_micros(5));
        let v6 = Addr::v6("fd00::9".parse().expect("an address"), 0);
        paths.learn(now, PEER, 68);
        paths.learn(now, v6, 68);
        assert_eq!((paths.of(now, PEER), paths.of(now, v6)), (Some(552), Some(1280)));
        for n in 0..=u16::MAX {
            let [a, b] = n.to_be_bytes();
            paths.learn(now, Addr::from([10, 9, a, b]), 1000);
        }
        assert_eq!((paths.0.len(), paths.of(now, PEER)), (PEERS_MAX, None));
    }
}
