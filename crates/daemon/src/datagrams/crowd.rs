//! Who is to be let run before more is taken from links, which would be lost: a program that reads, or was woken, and finds no processor. Within
//! bounds: whoever reads one by one on a processor that others want could else have the engine give way in each round. Told by the parent; asked
//! by the run loop.

use toe_base::{Cred, Instant};

#[derive(Debug, Default)]
pub(super) struct Crowd {
    whose: Option<Cred>,
    /// The engine has given way, and works for as long, and for a round at least: on a processor that nobody else wants that takes no time.
    works_until: Instant,
    has_given_way: bool,
    works: bool,
}

impl Crowd {
    pub fn begin_round(&mut self, now: Instant) {
        self.works = std::mem::take(&mut self.has_given_way) || now < self.works_until;
    }

    /// A program of this user's could not be given all.
    pub fn note(&mut self, whose: Cred) {
        if !self.works {
            self.whose = Some(whose);
        }
    }

    pub fn is_some(&self) -> bool {
        self.whose.is_some()
    }

    /// For whom the engine is to give way, once.
    pub fn take(&mut self) -> Option<Cred> {
        self.whose.take()
    }

    /// It did, for so long.
    pub fn gave_way(&mut self, now: Instant, took_us: u64) {
        self.works_until = now.after_us(took_us);
        self.has_given_way = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_works_for_as_long_as_it_gave_way() {
        let (mut crowd, now) = (Crowd::default(), Instant::from_micros(1));
        let whose = Cred::of_user(7);
        crowd.begin_round(now);
        crowd.note(whose);
        assert!(crowd.is_some());
        assert_eq!((crowd.take(), crowd.take()), (Some(whose), None));
        crowd.gave_way(now, 3_000);
        for (after_us, gives_way) in [(0, false), (2_999, false), (3_000, true)] {
            crowd.begin_round(now.after_us(after_us));
            crowd.note(whose);
            assert_eq!(crowd.take().is_some(), gives_way, "{after_us}");
        }
    }
    #[test]
    fn no_two_rounds_in_a_row_are_without_links() {
        let (mut crowd, now) = (Crowd::default(), Instant::from_micros(1));
        for round in 0..10 {
            crowd.begin_round(now);
            crowd.note(Cred::of_user(7));
            assert_eq!(crowd.is_some(), round % 2 == 0, "{round}");
            if crowd.take().is_some() {
                crowd.gave_way(now, 0);
            }
        }
    }
}
