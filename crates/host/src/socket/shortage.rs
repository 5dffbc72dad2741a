//! What a send that stopped waits for.

/// Both may be missing at once. Whoever has neither may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shortage {
    /// Room in the ring, or memory that nobody gives back but others. Nothing announces that: it is looked for again soon.
    pub starved: bool,
    /// Room in its own memory: what is outstanding there is to be acknowledged, or read.
    pub draining: bool,
}

impl Shortage {
    /// There was no memory for a send of a stream that has so much `outstanding`: with some the next acknowledgement helps; without, it is
    /// memory that is short.
    pub fn of_memory(outstanding: u32) -> Shortage {
        Shortage { starved: outstanding == 0, draining: outstanding > 0 }
    }

    pub fn is_none(&self) -> bool {
        !self.starved && !self.draining
    }

    /// Nothing announces what is waited for: look again soon.
    pub fn retry_soon(&mut self) {
        self.starved = true;
    }
}
