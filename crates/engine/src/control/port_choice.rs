//! Where the search for a free port number begins: RFC 6056 section 3.3.4 (algorithm 4, "double-hash port selection"), Linux's
//! `table_perturb`. Called by the engine for connections that name no port.
//!
//! A keyed hash of what the port is for gives the place, and which of many counters is added to it. With one counter for all,
//! whoever opens connections of its own sees in their ports how many others were opened meanwhile, by anybody to
//! anywhere; two that share one of these are few, and nobody can tell which they are.

use toe_base::Instant;

/// Counters, as many as Linux has.
const COUNTERS: usize = 1 << 16;

/// Where a search found nothing, those of the next so many µs are short ones: of so many places.
const CROWDED_US: u64 = 1_000;
const CROWDED_PLACES: usize = 16;
/// What was seen longer ago says nothing of what is free now.
const CROWDED_FOR_US: u64 = 1_000_000;

/// How far each search has come.
#[derive(Debug)]
pub struct PortCounters {
    table: Box<[u16]>,
    /// The last searches in vain.
    crowded: [Crowded; 16],
}

/// Searches for one thing that found nothing, one after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Crowded {
    hash: u64,
    /// They look at few places until then.
    until: Instant,
    /// Places in a row that they looked at.
    walked: u32,
}

impl Default for PortCounters {
    fn default() -> PortCounters {
        PortCounters { table: vec![0; COUNTERS].into_boxed_slice(), crowded: [Crowded::default(); 16] }
    }
}

impl PortCounters {
    /// Where a search begins whose hash is this, as a number to be taken modulo the numbers that there are.
    pub fn begin(&self, hash: u64) -> u32 {
        ((hash >> 32) as u32).wrapping_add(u32::from(self.table[hash as usize % COUNTERS]))
    }

    /// How many places a search is to look at: fewer where one has just looked in vain, so that a program that goes on asking
    /// does not get the engine to search all the time.
    pub fn places(&self, hash: u64, now: Instant) -> usize {
        let last = &self.crowded[hash as usize % self.crowded.len()];
        if last.hash == hash && now < last.until { CROWDED_PLACES } else { usize::MAX }
    }

    /// A search found nothing where it began nor at the `looked` places behind. The next goes on there; once they have been all
    /// round, of `count` places, there is no free one, and this says so.
    pub fn note_crowded(&mut self, hash: u64, now: Instant, (looked, count): (u32, u32)) -> bool {
        self.advance(hash, looked);
        let last = &mut self.crowded[hash as usize % self.crowded.len()];
        if last.hash != hash || now >= last.until.after_us(CROWDED_FOR_US) {
            *last = Crowded { hash, ..Crowded::default() };
        }
        if last.until <= now {
            last.until = now.after_us(CROWDED_US);
        }
        last.walked = last.walked.saturating_add(looked);
        let is_none_free = last.walked >= count;
        if is_none_free {
            last.walked = 0;
        }
        is_none_free
    }

    /// A search found a place.
    pub fn note_found(&mut self, hash: u64) {
        let last = &mut self.crowded[hash as usize % self.crowded.len()];
        if last.hash == hash {
            last.walked = 0;
        }
    }

    /// The search tried so many numbers; the next begins behind them.
    pub fn advance(&mut self, hash: u64, tried: u32) {
        let counter = &mut self.table[hash as usize % COUNTERS];
        *counter = counter.wrapping_add(tried as u16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn searches_for_one_thing_follow_each_other_and_others_do_not_show() {
        let mut counters = PortCounters::default();
        let (here, there) = (0x1234_5678_0000_0001, 0x9abc_def0_0000_0002);
        let (first, other) = (counters.begin(here), counters.begin(there));
        counters.advance(here, 1);
        assert_eq!(counters.begin(here), first.wrapping_add(1));
        for _ in 0..1000 {
            counters.advance(here, 3);
        }
        assert_eq!(counters.begin(there), other, "what was opened elsewhere");
    }

    #[test]
    fn searches_that_went_all_round_in_vain_say_that_nothing_is_free() {
        let mut counters = PortCounters::default();
        let (here, at) = (0x1234_5678_0000_0001, Instant::from_micros);
        let begun = counters.begin(here);
        let mut vain = |n, looked| counters.note_crowded(here, at(n), (looked, 100));
        assert!(!vain(1, 64) && !vain(2, 16) && !vain(3, 16) && vain(4, 16));
        assert!(!vain(5, 16), "and then anew");
        assert_eq!(counters.begin(here), begun.wrapping_add(128));
        counters.note_found(here);
        let mut vain = |n, looked| counters.note_crowded(here, at(n), (looked, 100));
        assert!(!vain(6, 90));
        assert!(!vain(10_000_000, 90), "the first are long ago");
        assert!(vain(10_000_001, 10));
    }

    #[test]
    fn who_searches_in_vain_again_and_again_searches_little() {
        let mut counters = PortCounters::default();
        let (here, there) = (0x1234_5678_0000_0001, 0x9abc_def0_0000_0002);
        let at = Instant::from_micros;
        // A search each 10 µs for a second, each of 128 places if it may.
        let mut looks = 0;
        for n in 0..100_000 {
            looks += counters.places(here, at(10 * n)).min(128);
            let looked = counters.places(here, at(10 * n)).min(64) as u32;
            counters.note_crowded(here, at(10 * n), (looked, u32::MAX));
        }
        assert!(looks < 100_000 * 20, "{looks}");
        assert_eq!(counters.places(there, at(1_000_000)), usize::MAX, "to go elsewhere is as it was");
        assert_eq!(counters.places(here, at(2_000_000)), usize::MAX, "and here after a while");
    }
}
