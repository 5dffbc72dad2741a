//! Connections that a process is handed ahead of its asking, by a listener that several processes take from: how many, and which of
//! them go back because their program does not take them. Plain state machines; `engine/ahead.rs` joins them.

use std::collections::BTreeMap;
use toe_base::{FlowIdx, Instant, QueueSetId, SessionId};

/// Most that one process is handed so.
const MOST: u32 = 16;
/// So often a process asks, and is handed nothing more, after some had to be taken back from it.
const WARY_FOR: u32 = 64;
/// A host that is at its connections is looked at again after so long, twice as long each time, and this at most: one that says so for good may have
/// left as many connections as its user may have.
const AGAIN_US: u64 = 100;
const AGAIN_MAX_US: u64 = 1_000_000;

/// What one process may be handed. A program that comes back soon takes what it was handed; one that serves each connection to its end,
/// or waits for something else, does not, and what waits for it would wait in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    most: u32,
    wary: u32,
}

impl Default for Allowance {
    fn default() -> Allowance {
        Allowance { most: 1, wary: 0 }
    }
}

impl Allowance {
    /// Its program asks for a connection: it has taken all that it was handed.
    pub fn asked(&mut self) {
        match self.wary.checked_sub(1) {
            Some(wary) => self.wary = wary,
            None => self.most = (self.most * 2).min(MOST),
        }
    }

    /// How many connections it may be handed besides the one that it asked for.
    pub fn most(self) -> u32 {
        if self.wary > 0 { 0 } else { self.most }
    }

    /// It has let one wait.
    pub fn was_late(&mut self) {
        *self = Allowance { most: 1, wary: WARY_FOR };
    }
}

/// A connection that goes back to its listener. Its session has been told (`Moved`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoesBack {
    pub session: SessionId,
    pub queue_set: QueueSetId,
    pub(crate) flow: FlowIdx,
    /// Its number among all that came in: the record may be another connection's by now.
    pub(crate) arrival: u64,
    wait_us: u64,
}

impl GoesBack {
    pub fn new(session: SessionId, queue_set: QueueSetId, flow: FlowIdx, arrival: u64) -> GoesBack {
        GoesBack { session, queue_set, flow, arrival, wait_us: AGAIN_US }
    }
}

/// All of them, by when they are looked at next.
#[derive(Debug, Default)]
pub struct GoBack {
    by_due: BTreeMap<(Instant, u64), GoesBack>,
}

impl GoBack {
    pub fn add(&mut self, due: Instant, one: GoesBack) {
        self.by_due.insert((due, one.arrival), one);
    }

    /// Its host was at its connections.
    pub fn later(&mut self, now: Instant, mut one: GoesBack) {
        let due = now.after_us(one.wait_us);
        one.wait_us = (one.wait_us * 2).min(AGAIN_MAX_US);
        self.add(due, one);
    }

    pub fn next(&mut self, now: Instant) -> Option<GoesBack> {
        let first = self.by_due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    pub fn due(&self) -> Instant {
        self.by_due.first_key_value().map_or(Instant::FAR_FUTURE, |((due, _), _)| *due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_again_and_again_may_have_more() {
        let mut allowance = Allowance::default();
        let most: Vec<u32> = (0..6)
            .map(|_| {
                allowance.asked();
                allowance.most()
            })
            .collect();
        assert_eq!(most, [2, 4, 8, 16, 16, 16]);
    }

    #[test]
    fn who_let_one_wait_is_handed_nothing_for_a_while() {
        let mut allowance = Allowance::default();
        allowance.asked();
        allowance.was_late();
        for _ in 0..WARY_FOR {
            assert_eq!(allowance.most(), 0);
            allowance.asked();
        }
        assert_eq!(allowance.most(), 1);
    }

    #[test]
    fn a_host_that_stays_busy_is_looked_at_ever_more_seldom_and_holds_up_nobody() {
        let mut back = GoBack::default();
        let one = |session, arrival| {
            GoesBack::new(SessionId(session), QueueSetId(0), FlowIdx(arrival), u64::from(arrival))
        };
        back.add(Instant::ZERO, one(1, 1));
        let mut now = Instant::ZERO;
        let mut looks = 0;
        while now.as_micros() < 10_000_000 {
            now = back.due();
            let stays = back.next(now).expect("due");
            back.later(now, stays);
            looks += 1;
        }
        assert!((20..25).contains(&looks), "{looks}");
        back.add(now, one(2, 2));
        assert_eq!(back.next(now).map(|one| one.session), Some(SessionId(2)));
        assert_eq!(back.next(now), None);
    }
}
