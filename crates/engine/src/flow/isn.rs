//! Numbers that an outsider must not guess: initial sequence numbers (RFC 6528), timestamp offsets, port choice.

use core::hash::Hasher;
use siphasher::sip::SipHasher24;
use toe_base::{Endpoint, Instant, SeqNum};

use crate::flow::key::{FlowKey, key_halves};

/// What a keyed hash is for. Each has a hash of its own: what one tells an outsider says nothing of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HashPurpose {
    InitialNumber,
    TimestampOffset,
    /// Where the search for a port begins.
    ConnectPort,
    /// The two parts of a SYN cookie, and the mark of one that was used.
    Cookie,
    CookieCheck,
    SpentCookie,
    FastOpenCookie,
}

/// A keyed hash of a connection, for one `purpose`.
pub fn keyed_hash(secret: &[u8; 16], key: &FlowKey, purpose: HashPurpose) -> u64 {
    let (k0, k1) = key_halves(secret);
    let mut hasher = SipHasher24::new_with_keys(k0, k1);
    key.hash_into(&mut hasher);
    hasher.write(&[purpose as u8]);
    hasher.finish()
}

/// A Fast Open cookie's: of a connection's addresses, whatever its ports, and of a number.
pub fn fast_open_hash(secret: &[u8; 16], key: &FlowKey, number: u64) -> u64 {
    let of = |end: Endpoint| Endpoint { port: 0, ..end };
    let (k0, k1) = key_halves(secret);
    let mut hasher = SipHasher24::new_with_keys(k0, k1);
    FlowKey { local: of(key.local), remote: of(key.remote), ..*key }.hash_into(&mut hasher);
    hasher.write(&[HashPurpose::FastOpenCookie as u8]);
    hasher.write_u64(number);
    hasher.finish()
}

/// ISN = M + F(4-tuple, secret), with M a clock of 4 µs (RFC 6528 section 3, RFC 9293 section 3.4.1).
pub fn initial_sequence_number(secret: &[u8; 16], key: &FlowKey, now: Instant) -> SeqNum {
    SeqNum::new(keyed_hash(secret, key, HashPurpose::InitialNumber) as u32).plus((now.as_micros() / 4) as u32)
}

/// What the timestamps of a connection start from (RFC 7323 section 7.1). Connections that follow each other on one 4-tuple have
/// the same, so that their timestamps rise from one to the next (RFC 6191).
pub fn timestamp_offset(secret: &[u8; 16], key: &FlowKey) -> u32 {
    keyed_hash(secret, key, HashPurpose::TimestampOffset) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(port: u16) -> FlowKey {
        let at = |p| Endpoint::new([10, 0, 0, 1], p);
        FlowKey::new(at(80), at(port))
    }

    #[test]
    fn numbers_of_one_tuple_rise_with_the_clock_and_tuples_differ() {
        let secret = [7; 16];
        let at = |us, port| initial_sequence_number(&secret, &key(port), Instant::from_micros(us));
        assert_eq!(at(4000, 1).diff(at(0, 1)), 1000);
        assert_ne!(at(0, 1), at(0, 2));
        assert_ne!(at(0, 1), initial_sequence_number(&[8; 16], &key(1), Instant::ZERO));
    }

    #[test]
    fn no_two_purposes_share_a_hash() {
        use HashPurpose::*;
        let all =
            [InitialNumber, TimestampOffset, ConnectPort, Cookie, CookieCheck, SpentCookie, FastOpenCookie];
        let mut hashes = all.map(|purpose| keyed_hash(&[7; 16], &key(1), purpose));
        hashes.sort_unstable();
        assert!(hashes.windows(2).all(|pair| pair[0] != pair[1]));
    }

    /// Whoever sees a SYN must not learn the uptime from its two numbers.
    #[test]
    fn timestamps_start_where_no_initial_number_tells() {
        let secret = [7; 16];
        let difference = |port| {
            let iss = initial_sequence_number(&secret, &key(port), Instant::ZERO);
            iss.raw().wrapping_sub(timestamp_offset(&secret, &key(port)))
        };
        assert_ne!(difference(1), difference(2));
        assert_ne!(difference(1), 0);
        assert_ne!(timestamp_offset(&secret, &key(1)), timestamp_offset(&[8; 16], &key(1)));
    }
}
