//! How many connections a process is handed ahead of its asking, by a listener that several processes take from. `engine/prefetch.rs` has the rest.

/// Most that one process is handed so.
const MOST: u32 = 16;
/// So often a process asks, and is handed nothing more, after some had to be taken back from it.
const WARY_FOR: u32 = 64;

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
}
