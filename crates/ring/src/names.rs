//! The word by which hosts know that somebody may have stopped to listen ([`toe_abi::region::NAMES`]). Written by the daemon, read by a
//! host that connects without waiting for the engine's answer.

use crate::region::Region;
use crate::sync::{Ordering, Words};
use toe_abi::region::NAMES;

impl Region {
    /// The engine's side.
    pub fn publish_names(&self, version: u32) {
        self.store_u32(NAMES, version, Ordering::Release);
    }

    /// The host's side. What was true when this was another number may be so no longer.
    pub fn names(&self) -> u32 {
        self.load_u32(NAMES, Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use toe_abi::region::Load;

    #[test]
    fn the_word_is_one_of_its_own() {
        let (engine, memory) = Region::create(4096).expect("memory");
        let host = Region::map(&memory, 4096).expect("the same memory");
        assert_eq!(host.names(), 0);
        engine.publish_names(7);
        assert_eq!((host.names(), host.load()), (7, Load::default()));
    }
}
