//! The engine's load, as its hosts see it: three words behind the region's header ([`toe_abi::region::Load`]). Written by
//! the daemon now and then, read by a host that has to choose one of several engines.

use crate::region::Region;
use crate::sync::{Ordering, Words};
use core::mem::offset_of;
use toe_abi::region::{LOAD, Load};

const FLOWS: u64 = LOAD + offset_of!(Load, flows) as u64;
const BUSY: u64 = LOAD + offset_of!(Load, busy_permille) as u64;
const AT: u64 = LOAD + offset_of!(Load, at_ms) as u64;

impl Region {
    /// The engine's side.
    pub fn publish_load(&self, load: Load) {
        self.store_u32(FLOWS, load.flows, Ordering::Relaxed);
        self.store_u32(BUSY, load.busy_permille, Ordering::Relaxed);
        self.store_u32(AT, load.at_ms, Ordering::Release);
    }

    /// The host's side. The words may be of two writings: it is a hint.
    pub fn load(&self) -> Load {
        let at_ms = self.load_u32(AT, Ordering::Acquire);
        let flows = self.load_u32(FLOWS, Ordering::Relaxed);
        Load { flows, busy_permille: self.load_u32(BUSY, Ordering::Relaxed), at_ms }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_writes_its_hosts_read() {
        let (engine, memory) = Region::create(4096).expect("memory");
        let host = Region::map(&memory, 4096).expect("the same memory");
        assert_eq!(host.load(), Load::default());
        let load = Load { flows: 7, busy_permille: 500, at_ms: 9 };
        engine.publish_load(load);
        assert_eq!(host.load(), load);
    }
}
