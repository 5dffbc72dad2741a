//! SYN cookies (RFC 4987 section 3.6): a SYN-ACK whose sequence number holds all that the listener would have to remember,
//! so that a flood of SYNs costs no memory.
//!
//! ```text
//!   31      24 23                    0
//!  ┌──────────┬───────────────────────┐
//!  │ minute   │ hash              MSS │   + another hash + the peer's own sequence number
//!  └──────────┴───────────────────────┘
//! ```
//!
//! The first hash covers minute, MSS and the peer's number, so that no other segment of the same connection passes for the
//! one that brings a cookie back.
//!
//! What does not fit goes into the low bits of the timestamp that the peer sends back, as Linux has it: window scale,
//! SACK, ECN. A peer without timestamps does without these.

use crate::flow::isn::{HashPurpose, keyed_hash};
use crate::flow::key::FlowKey;
use toe_base::window::WindowScale;
use toe_base::{Instant, SeqNum};

/// Minutes that a cookie is good for, the one that it was made in included.
const MINUTES: u32 = 2;
const MINUTE_US: u64 = 60_000_000;
/// The sizes that are told apart; a peer's counts as the largest that is not larger. Those of PPPoE, of a tunnel, and of
/// Ethernet with and without jumbo frames are among them.
const MSS_TABLE: [u16; 8] = [88, 536, 1220, 1300, 1440, 1452, 1460, 8960];
/// What a peer may send before it hears more than a SYN-ACK: the window of that.
const LEAD_MAX: u32 = 1 << 16;
const LOW_MASK: u32 = 0x00ff_ffff;
/// The MSS's place in the table.
const INDEX_MASK: u32 = 0b111;

const _: () = assert!(MSS_TABLE.len() == INDEX_MASK as usize + 1);

/// How long after the last cookie they are believed.
pub const BELIEVED_FOR_US: u64 = MINUTES as u64 * MINUTE_US;

/// The sequence number of a SYN-ACK.
pub fn make(secret: &[u8; 16], key: &FlowKey, peer_seq: SeqNum, mss: u16, now: Instant) -> SeqNum {
    let index = MSS_TABLE.iter().rposition(|&entry| entry <= mss).unwrap_or(0) as u32;
    let minute = minute_of(now);
    let low = low_bits(secret, key, (minute, peer_seq, index));
    let number =
        plain_hash(secret, key).wrapping_add(peer_seq.raw()).wrapping_add(minute << 24).wrapping_add(low);
    SeqNum::new(number)
}

/// The MSS of the peer whose ACK brings back `cookie`; `None`: it is none, or too old.
pub fn check(
    secret: &[u8; 16],
    key: &FlowKey,
    peer_seq: SeqNum,
    cookie: SeqNum,
    now: Instant,
) -> Option<u16> {
    let number = cookie.raw().wrapping_sub(plain_hash(secret, key)).wrapping_sub(peer_seq.raw());
    let (minute, age) = (minute_of(now), age_of(number, now));
    if age >= MINUTES {
        return None;
    }
    let index = number & INDEX_MASK;
    let low = low_bits(secret, key, (minute.wrapping_sub(age), peer_seq, index));
    (number & LOW_MASK == low).then(|| MSS_TABLE[index as usize])
}

/// Whether `cookie` may be one although the peer's SYN had not the number before `seq`: what follows the ACK that brings a
/// cookie back has a later one, and may overtake that ACK. Of segments that have nothing to do with a cookie one in a
/// hundred passes.
pub fn may_follow(secret: &[u8; 16], key: &FlowKey, seq: SeqNum, cookie: SeqNum, now: Instant) -> bool {
    let number = cookie.raw().wrapping_sub(plain_hash(secret, key)).wrapping_sub(seq.raw());
    [number, number.wrapping_add(LEAD_MAX)].into_iter().any(|number| age_of(number, now) < MINUTES)
}

/// Minutes since a cookie without its plain hash and the peer's number was made, were it one.
fn age_of(number: u32, now: Instant) -> u32 {
    minute_of(now).wrapping_sub(number >> 24) & 0xff
}

fn minute_of(now: Instant) -> u32 {
    (now.as_micros() / MINUTE_US) as u32
}

fn plain_hash(secret: &[u8; 16], key: &FlowKey) -> u32 {
    keyed_hash(secret, key, HashPurpose::Cookie) as u32
}

fn low_bits(secret: &[u8; 16], key: &FlowKey, (minute, peer_seq, index): (u32, SeqNum, u32)) -> u32 {
    // They stand in the secret: SipHash mixes it and the key alike.
    let mut secret = *secret;
    let covered = [minute, peer_seq.raw(), index].into_iter().flat_map(u32::to_le_bytes);
    for (byte, mix) in secret.iter_mut().zip(covered) {
        *byte ^= mix;
    }
    keyed_hash(&secret, key, HashPurpose::CookieCheck) as u32 & LOW_MASK & !INDEX_MASK | index
}

/// What a SYN offered and the cookie has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    pub window_scale: Option<WindowScale>,
    pub sack: bool,
    pub ecn: bool,
}

const SCALE_MASK: u32 = 0xf;
const NO_SCALE: u32 = 0xf;
const SACK_BIT: u32 = 1 << 4;
const ECN_BIT: u32 = 1 << 5;
const OFFER_MASK: u32 = 0x3f;

impl Offer {
    /// The timestamp to send instead of `timestamp`: not later, so that those that follow are.
    pub fn into_timestamp(self, timestamp: u32) -> u32 {
        let bits = self.window_scale.map_or(NO_SCALE, |scale| u32::from(scale.shift()))
            | if self.sack { SACK_BIT } else { 0 }
            | if self.ecn { ECN_BIT } else { 0 };
        let with_bits = timestamp & !OFFER_MASK | bits;
        if (timestamp.wrapping_sub(with_bits) as i32) < 0 {
            with_bits.wrapping_sub(OFFER_MASK + 1)
        } else {
            with_bits
        }
    }

    /// From the timestamp that came back.
    pub fn from_timestamp(timestamp: u32) -> Offer {
        let scale = timestamp & SCALE_MASK;
        Offer {
            window_scale: (scale != NO_SCALE).then(|| WindowScale::from_option(scale as u8)),
            sack: timestamp & SACK_BIT != 0,
            ecn: timestamp & ECN_BIT != 0,
        }
    }
}

/// Cookies that have made a connection. One makes no second: a copy of its ACK that comes when the first has ended would
/// hand the program bytes that it has had. (Linux remembers none of them, and is open to this.)
#[derive(Debug)]
pub struct SpentCookies {
    /// A mark's low bits say in which set it stands; the newest comes first, and the oldest of the set goes.
    sets: Box<[[u64; SET_LEN]; SETS]>,
}

/// In a flood real peers are few; of those, two thousand are safe at a time: one engine in a thousand then has a set with more
/// of them than places.
const SETS: usize = 256;
const SET_LEN: usize = 24;
/// 2^64 divided by the golden ratio: neighbouring cookies stand far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for SpentCookies {
    fn default() -> SpentCookies {
        SpentCookies { sets: Box::new([[0; SET_LEN]; SETS]) }
    }
}

impl SpentCookies {
    pub fn spend(&mut self, secret: &[u8; 16], key: &FlowKey, cookie: SeqNum) {
        let mark = SpentCookies::mark(secret, key, cookie);
        let set = &mut self.sets[mark as usize % SETS];
        set.rotate_right(1);
        set[0] = mark;
    }

    pub fn is_spent(&self, secret: &[u8; 16], key: &FlowKey, cookie: SeqNum) -> bool {
        let mark = SpentCookies::mark(secret, key, cookie);
        self.sets[mark as usize % SETS].contains(&mark)
    }

    /// The minute is in the cookie, so that it is never the same again.
    fn mark(secret: &[u8; 16], key: &FlowKey, cookie: SeqNum) -> u64 {
        keyed_hash(secret, key, HashPurpose::SpentCookie)
            .wrapping_add(u64::from(cookie.raw()).wrapping_mul(SPREAD))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{Addr, Endpoint};

    const SECRET: [u8; 16] = [3; 16];
    const PEER: SeqNum = SeqNum::new(0x8000_1234);

    fn key(port: u16) -> FlowKey {
        let at = |p| Endpoint::new(Addr::v4([10, 0, 0, 1].into()), p);
        FlowKey::new(at(80), at(port))
    }

    fn at(secs: u64) -> Instant {
        Instant::from_micros(1_000_000 * secs)
    }

    #[test]
    fn what_follows_a_cookie_is_told_from_most_that_does_not() {
        for ahead in [1, 1000, 65_535] {
            let cookie = make(&SECRET, &key(1), PEER, 1460, at(59));
            assert!(may_follow(&SECRET, &key(1), PEER.plus(ahead), cookie, at(60)), "{ahead}");
            assert!(!may_follow(&SECRET, &key(1), PEER.plus(ahead), cookie, at(180)), "too old");
        }
        // Where the sum of hash and number crosses into the next minute's, too.
        for port in 1..5_000 {
            let cookie = make(&SECRET, &key(port), PEER, 1460, at(59));
            assert!(may_follow(&SECRET, &key(port), PEER.plus(65_536), cookie, at(60)), "{port}");
        }
        let strangers = (0..10_000u32).filter(|n| {
            let cookie = SeqNum::new(n.wrapping_mul(0x9e37_79b9));
            may_follow(&SECRET, &key(2), PEER, cookie, at(59))
        });
        assert!(strangers.count() < 200);
    }

    #[test]
    fn a_cookie_brings_the_mss_back_for_a_minute_or_two() {
        for (offered, kept) in
            [(1460, 1460), (1459, 1452), (9000, 8960), (600, 536), (50, 88), (65_535, 8960)]
        {
            let cookie = make(&SECRET, &key(1), PEER, offered, at(59));
            assert_eq!(check(&SECRET, &key(1), PEER, cookie, at(59)), Some(kept));
            assert_eq!(check(&SECRET, &key(1), PEER, cookie, at(119)), Some(kept), "of the minute before");
            assert_eq!(check(&SECRET, &key(1), PEER, cookie, at(120)), None, "too old");
        }
    }

    #[test]
    fn a_cookie_is_good_for_its_connection_alone() {
        let cookie = make(&SECRET, &key(1), PEER, 1460, at(10));
        assert_eq!(check(&SECRET, &key(2), PEER, cookie, at(10)), None, "another port");
        assert_eq!(check(&[4; 16], &key(1), PEER, cookie, at(10)), None, "another engine");
        assert_eq!(check(&SECRET, &key(1), PEER.plus(100), cookie, at(10)), None, "another SYN");
        assert_eq!(check(&SECRET, &key(1), PEER, cookie.plus(50), at(10)), None, "made up");
    }

    /// Found by toe-sim, seed 381: the ACK of a FIN made an ended connection anew.
    #[test]
    fn no_later_segment_of_a_connection_brings_its_cookie_back() {
        let cookie = make(&SECRET, &key(1), PEER, 1460, at(10));
        for n in 1..2000 {
            assert_eq!(check(&SECRET, &key(1), PEER, cookie.plus(n), at(10)), None, "it sent {n} bytes");
            assert_eq!(check(&SECRET, &key(1), PEER.plus(n), cookie.plus(n), at(10)), None, "both did");
        }
    }

    #[test]
    fn a_spent_cookie_is_known_by_its_connection() {
        let mut spent = SpentCookies::default();
        let cookie = make(&SECRET, &key(1), PEER, 1460, at(10));
        assert!(!spent.is_spent(&SECRET, &key(1), cookie));
        spent.spend(&SECRET, &key(1), cookie);
        assert!(spent.is_spent(&SECRET, &key(1), cookie));
        assert!(!spent.is_spent(&SECRET, &key(2), cookie), "another port");
        let next = make(&SECRET, &key(1), PEER.plus(7), 1460, at(10));
        assert!(!spent.is_spent(&SECRET, &key(1), next), "the next one of the same port");
    }

    /// Found by toe-sim, seed 973171: another cookie had taken the place, and a copy of the ACK made a second connection.
    #[test]
    fn two_thousand_spent_cookies_are_known() {
        let mut spent = SpentCookies::default();
        let cookies: Vec<_> =
            (1..=2000).map(|port| (port, make(&SECRET, &key(port), PEER, 1460, at(10)))).collect();
        for (port, cookie) in &cookies {
            spent.spend(&SECRET, &key(*port), *cookie);
        }
        assert!(cookies.iter().all(|(port, cookie)| spent.is_spent(&SECRET, &key(*port), *cookie)));
    }

    #[test]
    fn guesses_are_right_as_seldom_as_24_bits_let_them() {
        let right = (0..1_000_000u32)
            .filter(|guess| {
                let cookie = SeqNum::new(guess.wrapping_mul(2_654_435_761));
                check(&SECRET, &key(7), PEER, cookie, at(600)).is_some()
            })
            .count();
        // 2 minutes of 256, 8 sizes of 2^24.
        assert!(right <= 2, "{right} of a million");
    }

    #[test]
    fn what_was_offered_rides_on_the_timestamp_which_goes_on_rising() {
        for scale in [None, Some(0), Some(7), Some(14)] {
            for bits in 0..4u32 {
                let window_scale = scale.map(WindowScale::from_option);
                let offer = Offer { window_scale, sack: bits & 1 != 0, ecn: bits & 2 != 0 };
                for clock in [0, 63, 64, 1_000_003, u32::MAX] {
                    let sent = offer.into_timestamp(clock);
                    assert_eq!(Offer::from_timestamp(sent), offer);
                    let behind = clock.wrapping_sub(sent) as i32;
                    assert!((0..128).contains(&behind), "{sent} at {clock}");
                }
            }
        }
    }
}
