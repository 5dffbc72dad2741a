//! How often the engine answers what anybody may send it, all connections together.

use core::hash::Hasher;
use siphasher::sip::SipHasher13;
use toe_base::Instant;

const SECOND_US: u64 = 1_000_000;

/// So many a second, counted anew each second.
///
/// Whoever can find out how much of the limit is left learns whether others used it, and with it whether a guess about a
/// connection of theirs was right (CVE-2016-5696). So the limit is another one each second, and secret.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    a_second: u32,
    secret: [u8; 16],
    second: u64,
    left: u32,
}

impl RateLimit {
    /// `a_second` on average.
    pub const fn new(secret: [u8; 16], a_second: u32) -> RateLimit {
        RateLimit { a_second, secret, second: u64::MAX, left: 0 }
    }

    /// Whether one more may go.
    pub fn allows(&mut self, now: Instant) -> bool {
        let second = now.as_micros() / SECOND_US;
        if second != self.second {
            self.second = second;
            self.left = self.of_second(second);
        }
        let allowed = self.left > 0;
        self.left -= u32::from(allowed);
        allowed
    }

    /// Between half of the limit and one and a half of it.
    fn of_second(&self, second: u64) -> u32 {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write_u64(second);
        let spread = u64::from(self.a_second).max(1);
        self.a_second / 2 + (hasher.finish() % spread) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(limit: &mut RateLimit, second: u64) -> u32 {
        (0..10_000).filter(|_| limit.allows(Instant::from_micros(second * SECOND_US))).count() as u32
    }

    #[test]
    fn a_limit_is_kept_and_nobody_knows_it() {
        let mut limit = RateLimit::new([5; 16], 1000);
        let seconds: Vec<u32> = (0..50).map(|second| allowed(&mut limit, second)).collect();
        assert!(seconds.iter().all(|n| (500..1500).contains(n)), "{seconds:?}");
        let mut different = seconds.clone();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 40, "{seconds:?}");
        let mean = seconds.iter().sum::<u32>() / 50;
        assert!((850..1150).contains(&mean), "{mean}");
    }
}
