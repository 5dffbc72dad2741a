//! Where the search for a free port number begins: RFC 6056 section 3.3.4 (algorithm 4, "double-hash port selection"), Linux's
//! `table_perturb`. Called by the engine for connections that name no port.
//!
//! A keyed hash of what the port is for gives the place, and which of many counters is added to it. With one counter for all,
//! whoever opens connections of its own sees in their ports how many others were opened meanwhile, by anybody to
//! anywhere; two that share one of these are few, and nobody can tell which they are.

/// Counters, as many as Linux has.
const COUNTERS: usize = 1 << 16;

/// How far each search has come.
#[derive(Debug)]
pub struct PortCounters {
    table: Box<[u16]>,
}

impl Default for PortCounters {
    fn default() -> PortCounters {
        PortCounters { table: vec![0; COUNTERS].into_boxed_slice() }
    }
}

impl PortCounters {
    /// Where a search begins whose hash is this, as a number to be taken modulo the numbers that there are.
    pub fn begin(&self, hash: u64) -> u32 {
        ((hash >> 32) as u32).wrapping_add(u32::from(self.table[hash as usize % COUNTERS]))
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
}
