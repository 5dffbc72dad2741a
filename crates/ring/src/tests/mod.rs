//! Tests of the ring protocol: with real shared memory, and (under `cfg(loom)`) with a model of the memory.

#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod hostile;
#[cfg(not(loom))]
mod lane;
#[cfg(loom)]
mod loom;
#[cfg(loom)]
mod loom_lane;
#[cfg(loom)]
mod loom_owner_word;
#[cfg(loom)]
mod loom_pending_wakes;
#[cfg(loom)]
mod loom_via;
#[cfg(not(loom))]
mod lost_memory;
#[cfg(not(loom))]
mod moderation;
#[cfg(not(loom))]
mod queue_set;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod ring;
#[cfg(not(loom))]
mod via;
#[cfg(not(loom))]
mod wake;

/// An interrupt whose name nobody else of this process has.
#[cfg(not(loom))]
fn interrupt() -> (crate::irq::IrqLine, rustix::fd::OwnedFd) {
    static MADE: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);
    let number = MADE.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
    let name = format!("toe-ring-test-{}-{number}", std::process::id());
    crate::irq::irq_pair(std::env::temp_dir().join(name)).unwrap()
}

/// A small seeded generator (splitmix64), so that a failing run can be had again.
#[cfg(not(loom))]
struct Random(u64);

#[cfg(not(loom))]
impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
