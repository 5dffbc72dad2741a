//! Starvation: of several connections that must come to their ends, none stands still while others move.

use crate::checkers::streams::Streams;
use crate::pattern::StreamId;
use std::collections::BTreeMap;

/// So long one may stand still: twice as long as all may.
const STARVES_US: u64 = 600_000_000;
/// How often it is looked at.
const LOOK_US: u64 = 75_000_000;

/// Of a direction: bytes handed over and read, and whether the end was.
type Moved = [(u64, bool); 2];

/// When each connection was last seen to have moved.
#[derive(Debug, Default)]
pub struct Starvation {
    next_look_us: u64,
    seen: BTreeMap<u32, (Moved, u64)>,
}

impl Starvation {
    /// Whether it is time to look at all connections.
    pub fn is_due(&mut self, now_us: u64) -> bool {
        let is_due = now_us >= self.next_look_us;
        if is_due {
            self.next_look_us = now_us + LOOK_US;
        }
        is_due
    }

    /// Whether nothing has moved on the connection for long.
    pub fn stands_still(&mut self, conn: u32, streams: &Streams, now_us: u64) -> bool {
        let of = [0, 1].map(|side| streams.get(StreamId { conn, side }));
        let moved = of.map(|stream| (stream.handed + stream.read, stream.eof));
        let (known, since_us) = self.seen.entry(conn).or_insert((moved, now_us));
        if moved != *known {
            (*known, *since_us) = (moved, now_us);
        }
        now_us - *since_us > STARVES_US
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_stands_still_beside_others_is_found() {
        let (mut streams, mut starvation) = (Streams::default(), Starvation::default());
        let [moves, starves] = [streams.open(), streams.open()];
        for look in 0..100 {
            let now_us = look * LOOK_US;
            assert!(starvation.is_due(now_us) && !starvation.is_due(now_us));
            streams.handed(StreamId { conn: moves, side: 0 }, 1);
            assert!(!starvation.stands_still(moves, &streams, now_us));
            assert_eq!(starvation.stands_still(starves, &streams, now_us), now_us > STARVES_US);
        }
    }
}
