//! TCP_NOTSENT_LOWAT: a program that wants to decide late what it sends next keeps little in the queue that has not gone out. What the
//! engine has is not known here until it tells ([`Completion::WentOut`]), so what is counted may be too much for a moment. A
//! channel's bytes are at once where the peer can read them.
//!
//! [`Completion::WentOut`]: toe_abi::entry::Completion::WentOut

/// A stream's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsent {
    /// 0: it is of no concern.
    low_water: u32,
    bytes: u32,
}

impl Unsent {
    /// Linux counts the gap that a disconnect leaves in the sequence numbers, of a window at least, as unsent.
    pub fn counts_gap(&self) -> bool {
        (1..=1 << 16).contains(&self.low_water)
    }

    pub fn set_low_water(&mut self, low_water: u32) {
        self.low_water = low_water;
        self.bytes = if low_water > 0 { self.bytes } else { 0 };
    }

    /// The engine was given so many.
    pub fn given(&mut self, bytes: u32) {
        if self.low_water > 0 {
            self.bytes = self.bytes.saturating_add(bytes);
        }
    }

    /// So many of those, or of earlier ones, went out.
    pub fn went_out(&mut self, bytes: u32) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    /// Whether a call may give the engine more, once it has given it so many (Linux: sk_stream_memory_free).
    pub fn has_room_behind(&self, bytes: u32) -> bool {
        self.low_water == 0 || self.bytes.saturating_add(bytes) < self.low_water
    }

    /// Whether it counts as writable: that begins at half of the mark, or a program would be woken for every segment.
    pub fn is_low(&self) -> bool {
        self.low_water == 0 || u64::from(self.bytes) * 2 < u64::from(self.low_water)
    }
}
