//! How long an engine may be silent before its program goes on without it.
//!
//! An engine answers within a round of its loop. One that is stopped, or hangs, holds nobody: what is new is then the kernel's. But a
//! machine with more to do than it can lets both wait for a processor, and a virtual one may be stopped as a whole. So this is no time
//! of day: of what passes between two looks of the waiting thread at most [`PIECE`] counts. It gives up when it has itself come to its
//! turn so often that an engine that works would have come to its own.

use crate::sys;
use std::cell::Cell;
use std::time::Duration;

/// What an engine has for an answer.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// What counts at most between two looks: longer than a processor is away where all is well, and a small part of [`ANSWER_WITHIN`].
pub const PIECE: Duration = Duration::from_millis(50);

/// The silence of one wait.
#[derive(Debug)]
pub struct Silence {
    left: Cell<Duration>,
    looked_at: Cell<Duration>,
}

impl Silence {
    /// Begins now.
    pub fn within(limit: Duration) -> Silence {
        Silence::since(sys::now(), limit)
    }

    fn since(now: Duration, limit: Duration) -> Silence {
        Silence { left: Cell::new(limit), looked_at: Cell::new(now) }
    }

    /// A look that found nothing: how long to wait for the next one. Zero: it has been long enough.
    pub fn look(&self) -> Duration {
        self.look_at(sys::now())
    }

    fn look_at(&self, now: Duration) -> Duration {
        let passed = now.saturating_sub(self.looked_at.replace(now));
        self.left.set(self.left.get().saturating_sub(passed.min(PIECE)));
        self.left.get().min(PIECE)
    }

    pub fn is_over(&self) -> bool {
        self.left.get().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Looks so long after each other, in ms, and what is left of 1 s after them.
    fn left_after(gaps: &[u64]) -> Duration {
        let silence = Silence::since(ms(0), ANSWER_WITHIN);
        let mut now = 0;
        for gap in gaps {
            now += gap;
            silence.look_at(ms(now));
        }
        silence.left.get()
    }

    /// A virtual machine that stood still, and a waiting thread that had no processor: the engine had none either.
    #[test]
    fn a_time_in_which_nobody_looked_counts_as_one_piece() {
        assert_eq!(left_after(&[5_000]), ms(950));
        assert_eq!(left_after(&[10, 5_000, 10]), ms(930));
        assert_eq!(left_after(&[400; 19]), ms(50));
    }

    #[test]
    fn who_looks_all_the_time_waits_for_the_limit() {
        assert_eq!(left_after(&[1; 999]), ms(1));
        assert_eq!(left_after(&[50; 20]), ms(0));
    }

    #[test]
    fn the_next_look_is_due_within_what_is_left() {
        let silence = Silence::since(ms(0), ms(80));
        assert_eq!(silence.look_at(ms(10)), PIECE);
        assert_eq!(silence.look_at(ms(60)), ms(20));
        assert!(!silence.is_over());
        assert_eq!((silence.look_at(ms(90)), silence.is_over()), (ms(0), true));
    }
}
