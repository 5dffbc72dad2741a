//! How long the engine's thread runs at a stretch where others want its core, and how late its timers may be. Called by `main`, once.

use crate::sys;
use std::num::NonZeroU64;

/// The shortest slice that Linux gives (from 6.12 on; older kernels take no notice).
const SLICE_NS: u64 = 100_000;

/// A coalescing sleep is 100 µs ([`crate::coalescing_sleeps`]).
const TIMER_SLACK_NS: Option<NonZeroU64> = NonZeroU64::new(1_000);

/// Asks for short slices. It takes no time from anybody: the thread has its share as before, in smaller pieces. But one with
/// short slices that wakes comes before one that is in the middle of a long one (EEVDF's PREEMPT_SHORT), and the programs that
/// wait for the engine wait only for what it does and not for the slices of strangers. A thread to which somebody has given another
/// policy keeps what it has.
pub fn ask_for_short_ones() {
    let Some(mut attr) = sys::scheduling() else { return };
    if attr.sched_policy == nix::libc::SCHED_OTHER as u32 {
        attr.sched_runtime = SLICE_NS;
        // A kernel that refuses leaves it as it was.
        let _ = sys::set_scheduling(&attr);
    }
    // As a rule the kernel lets timers of a thread be 50 µs late, to let several be one.
    let _ = rustix::thread::set_current_timer_slack(TIMER_SLACK_NS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_share_stays_as_it_is() {
        std::thread::spawn(|| {
            let before = sys::scheduling().expect("Linux says");
            ask_for_short_ones();
            let after = sys::scheduling().expect("Linux says");
            assert_eq!((before.sched_policy, before.sched_nice), (after.sched_policy, after.sched_nice));
        })
        .join()
        .expect("the thread");
    }
}
