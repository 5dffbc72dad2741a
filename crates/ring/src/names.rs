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

    #[test]
    fn what_the_engine_writes_its_hosts_read() {
        let (engine, memory) = Region::create(4096).expect("memory");
        let host = Region::map(&memory, 4096).expect("the same memory");
        assert_eq!(host.names(), 0);
        engine.publish_names(7);
        assert_eq!(host.names(), 7);
        assert_eq!(host.load(), toe_abi::region::Load::default(), "a word of its own");
    }
}
