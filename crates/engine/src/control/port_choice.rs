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

/// How far each search has come.
#[derive(Debug)]
pub struct PortCounters {
    table: Box<[u16]>,
    /// The last searches in vain.
    crowded: [(u64, Instant); 16],
}

impl Default for PortCounters {
    fn default() -> PortCounters {
        let nobody = (0, Instant::ZERO);
        PortCounters { table: vec![0; COUNTERS].into_boxed_slice(), crowded: [nobody; 16] }
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
        let (crowded, until) = self.crowded[hash as usize % self.crowded.len()];
        if crowded == hash && now < until { CROWDED_PLACES } else { usize::MAX }
    }

    /// A search found nothing.
    pub fn note_crowded(&mut self, hash: u64, now: Instant) {
        self.advance(hash, CROWDED_PLACES as u32);
        let last = &mut self.crowded[hash as usize % self.crowded.len()];
        if last.0 != hash || last.1 <= now {
            *last = (hash, now.after_us(CROWDED_US));
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
    fn who_searches_in_vain_again_and_again_searches_little() {
        let mut counters = PortCounters::default();
        let (here, there) = (0x1234_5678_0000_0001, 0x9abc_def0_0000_0002);
        let at = Instant::from_micros;
        // A search each 10 µs for a second, each of 128 places if it may.
        let mut looks = 0;
        for n in 0..100_000 {
            looks += counters.places(here, at(10 * n)).min(128);
            counters.note_crowded(here, at(10 * n));
        }
        assert!(looks < 100_000 * 20, "{looks}");
        assert_eq!(counters.places(there, at(1_000_000)), usize::MAX, "to go elsewhere is as it was");
        assert_eq!(counters.places(here, at(2_000_000)), usize::MAX, "and here after a while");
    }
}
