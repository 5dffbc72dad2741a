//! By what a listener is known in the engine.

use toe_base::limits::LISTENERS_MAX;

/// The place of a listener's record, and which use of that it is: one that has gone is not taken for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerIdx(pub(crate) u32);

/// Bits of a [`ListenerIdx`] that are the place.
const SLOT_BITS: u32 = LISTENERS_MAX.trailing_zeros();

impl ListenerIdx {
    pub(super) const fn new(slot: u32, generation: u32) -> ListenerIdx {
        ListenerIdx(generation << SLOT_BITS | slot)
    }

    /// The place alone.
    pub const fn slot(self) -> u32 {
        self.0 & (LISTENERS_MAX as u32 - 1)
    }

    /// Of whoever has the place next.
    pub(super) const fn next_generation(self) -> u32 {
        (self.0 >> SLOT_BITS).wrapping_add(1) << SLOT_BITS >> SLOT_BITS
    }
}
