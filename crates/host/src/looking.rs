//! How long a thread looks for what it waits for before it sleeps. A plain state machine over the clock, one for each
//! thread; [`crate::wait::spin`] does what it says.
//!
//! To look again, with others let run in between, is cheaper than to sleep and be woken while what is waited for comes from
//! another core, or from a thread that only needs this one for a moment. Two things say that it is not:
//!
//! - *It has found nothing several times in a row*: then only one wait in many looks.
//! - *Letting others run took so long that somebody used up a time slice*. There a thread that gives the processor away
//!   waits for all the others to use theirs, and one that sleeps and is woken comes before them (EEVDF: it has lag). So
//!   for some time nobody of this thread's waits looks at all, whatever the looks have found.
//!
//! Two threads that wait for each other may also share a processor while another is idle: each finds what it waits for by letting the other run, so
//! neither sleeps, and the scheduler, which looks for a processor where a thread wakes up, leaves them where they are. So a thread that has found
//! everything like that many times in a row sleeps once ([`Together`]).
//!
//! A thread begins with what the process's threads have met last ([`LATEST`]): where each connection has a thread of its own, none
//! lives long enough to find out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a wait looks again and again before it sleeps.
const LOOK_FOR: Duration = Duration::from_micros(20);
/// How long a wait looks whose peer is in the middle of something with it: as long as that one takes to wake up, at which it may be.
const LOOK_FOR_PEER: Duration = Duration::from_micros(200);
/// After so many waits in a row that looked and found nothing, a thread sleeps at once…
const FRUITLESS_MAX: u32 = 8;
/// …but tries again once in so many waits.
const LOOK_AGAIN: u32 = 32;
/// Letting others run takes this long where one of them has used up its slice: the kernel's shortest (base_slice_ns, 0.7 ms and
/// more) and no switch to a thread that only does a little.
const CROWDED: Duration = Duration::from_micros(500);
/// For how long after that no wait looks: twice as long each time that it was so again, half as long when it was not.
const CROWDED_FOR_MIN: Duration = Duration::from_millis(20);
const CROWDED_FOR_MAX: Duration = Duration::from_millis(640);

/// Until when the thread that met others last does not look, and how long the next time would be. A hint, to be wrong at the cost of
/// a few sleeps.
static LATEST: AtomicU64 = AtomicU64::new(Crowded::NEVER.packed());

/// What a thread knows of the others on its core.
#[derive(Clone, Copy, Debug)]
struct Crowded {
    until: Duration,
    /// How long the next time will be.
    next: Duration,
}

impl Crowded {
    const NEVER: Crowded = Crowded { until: Duration::ZERO, next: CROWDED_FOR_MIN };
    /// [`CROWDED_FOR_MAX`] in µs takes so many bits.
    const NEXT_BITS: u32 = 20;

    const fn packed(self) -> u64 {
        (self.until.as_micros() as u64) << Crowded::NEXT_BITS | self.next.as_micros() as u64
    }

    const fn unpacked(word: u64) -> Crowded {
        let next = Duration::from_micros(word & ((1 << Crowded::NEXT_BITS) - 1));
        Crowded { until: Duration::from_micros(word >> Crowded::NEXT_BITS), next }
    }
}

/// A first look that found something after letting others run for so long: who brought it has run meanwhile, on this very processor.
const BROUGHT: Duration = Duration::from_micros(1);
/// After so many in a row a thread sleeps once; if that changes nothing, twice as many the next time.
const TOGETHER_MIN: u32 = 256;
const TOGETHER_MAX: u32 = 1 << 16;

/// Whether the thread shares its processor with whom it waits for.
#[derive(Clone, Copy, Debug)]
struct Together {
    in_a_row: u32,
    most: u32,
}

impl Together {
    const NO: Together = Together { in_a_row: 0, most: TOGETHER_MIN };

    fn found(&mut self, is_brought: bool) {
        if is_brought {
            self.in_a_row += 1;
        } else {
            *self = Together::NO;
        }
    }

    /// Whether the next wait is to sleep.
    fn parts(&mut self) -> bool {
        let parts = self.in_a_row >= self.most;
        if parts {
            *self = Together { in_a_row: 0, most: (self.most * 2).min(TOGETHER_MAX) };
        }
        parts
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Looking {
    /// It has waited before.
    is_known: bool,
    fruitless: u32,
    crowded: Crowded,
    together: Together,
}

impl Looking {
    pub const fn new() -> Looking {
        Looking { is_known: false, fruitless: 0, crowded: Crowded::NEVER, together: Together::NO }
    }

    /// Of a thread none of whose waits looks.
    pub const fn never() -> Looking {
        let crowded = Crowded { until: Duration::MAX, next: CROWDED_FOR_MAX };
        Looking { is_known: true, fruitless: 0, crowded, together: Together::NO }
    }

    /// A wait begins. Until when it looks; `None`: it sleeps at once.
    pub fn begin(&mut self, now: Duration) -> Option<Duration> {
        self.begin_as(now, || Crowded::unpacked(LATEST.load(Ordering::Relaxed)))
    }

    fn begin_as(&mut self, now: Duration, latest: impl FnOnce() -> Crowded) -> Option<Duration> {
        if self.is_crowded(now, latest) {
            return None;
        }
        if self.fruitless >= FRUITLESS_MAX && !self.fruitless.is_multiple_of(LOOK_AGAIN) {
            self.fruitless = self.fruitless.wrapping_add(1);
            return None;
        }
        if self.together.parts() {
            return None;
        }
        Some(now + LOOK_FOR)
    }

    /// The same of a wait whose peer is known to be at it: however often looks have found nothing.
    pub fn begin_beside_peer(&mut self, now: Duration) -> Option<Duration> {
        let latest = || Crowded::unpacked(LATEST.load(Ordering::Relaxed));
        if self.is_crowded(now, latest) { None } else { Some(now + LOOK_FOR_PEER) }
    }

    fn is_crowded(&mut self, now: Duration, latest: impl FnOnce() -> Crowded) -> bool {
        if !self.is_known {
            self.is_known = true;
            self.crowded = latest();
        }
        now < self.crowded.until
    }

    /// Others were let run between these times.
    pub fn let_run(&mut self, before: Duration, after: Duration) {
        if after.saturating_sub(before) >= CROWDED {
            let Crowded { next, .. } = self.crowded;
            self.crowded = Crowded { until: after + next, next: (next * 2).min(CROWDED_FOR_MAX) };
            LATEST.store(self.crowded.packed(), Ordering::Relaxed);
        } else {
            self.crowded.next = (self.crowded.next / 2).max(CROWDED_FOR_MIN);
        }
    }

    pub fn found(&mut self) {
        self.fruitless = 0;
    }

    /// The first look of a wait found something, after others were let run for so long. Where it `is_much`, one processor's caches are worth more
    /// than the switches cost.
    pub fn found_at_first(&mut self, is_much: bool, after: Duration) {
        self.together.found(after >= BROUGHT && !is_much);
    }

    /// A later one found them.
    pub fn found_later(&mut self) {
        self.together.found(false);
    }

    pub fn found_nothing(&mut self) {
        self.fruitless = self.fruitless.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Looking {
        /// Alone in its process.
        fn begin_at(&mut self, now: Duration) -> Option<Duration> {
            self.begin_as(now, || Crowded::NEVER)
        }
    }

    #[test]
    fn a_new_thread_knows_what_the_others_have_met() {
        let mut looking = Looking::new();
        let of_others = Crowded { until: us(30), next: us(40_000) };
        assert_eq!(looking.begin_as(us(10), || Crowded::unpacked(of_others.packed())), None);
        assert!(looking.begin_as(us(30), || unreachable!("it has met others itself")).is_some());
        looking.let_run(us(30), us(3_030));
        assert_eq!(looking.begin_at(us(43_029)), None);
        assert!(looking.begin_at(us(43_030)).is_some());
    }

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    #[test]
    fn a_thread_that_never_looks_sleeps_at_once_however_long_it_lives() {
        let mut looking = Looking::never();
        for now in [0, 1, 1_000_000, u64::MAX] {
            assert_eq!(looking.begin_at(us(now)), None);
            assert_eq!(looking.begin_beside_peer(us(now)), None);
        }
    }

    #[test]
    fn looking_that_pays_goes_on_and_looking_in_vain_fades() {
        let mut looking = Looking::new();
        for _ in 0..100 {
            assert_eq!(looking.begin_at(us(7)), Some(us(27)));
            looking.found();
        }
        for _ in 0..FRUITLESS_MAX {
            assert!(looking.begin_at(us(7)).is_some());
            looking.found_nothing();
        }
        let looked = (0..10 * LOOK_AGAIN).filter(|_| {
            let looks = looking.begin_at(us(7)).is_some();
            if looks {
                looking.found_nothing();
            }
            looks
        });
        assert_eq!(looked.count(), 10, "one in so many");
        while looking.begin_at(us(7)).is_none() {}
        looking.found();
        assert!(looking.begin_at(us(7)).is_some(), "it pays again");
    }

    #[test]
    fn two_that_share_a_processor_part_once_in_a_while() {
        let mut looking = Looking::new();
        let sleeps = |looking: &mut Looking, waits: u32, is_much: bool, after: Duration| {
            let slept = (0..waits).filter(|_| {
                let sleeps = looking.begin_at(us(7)).is_none();
                if !sleeps {
                    looking.found();
                    looking.found_at_first(is_much, after);
                }
                sleeps
            });
            slept.count()
        };
        assert_eq!(sleeps(&mut looking, TOGETHER_MIN, false, us(2)), 0);
        assert_eq!(sleeps(&mut looking, 1, false, us(2)), 1);
        assert_eq!(sleeps(&mut looking, TOGETHER_MIN * 2, false, us(2)), 0, "it has changed nothing");
        assert_eq!(sleeps(&mut looking, 1, false, us(2)), 1);
        assert_eq!(sleeps(&mut looking, 100_000, false, us(0)), 0, "they have parted");
        assert_eq!(sleeps(&mut looking, TOGETHER_MIN + 1, false, us(2)), 1, "and met again");
        assert_eq!(sleeps(&mut looking, 100_000, true, us(2)), 0, "much at a time");
        for _ in 0..10_000 {
            assert_eq!(sleeps(&mut looking, TOGETHER_MIN / 2, false, us(2)), 0);
            looking.found_later();
        }
    }

    #[test]
    fn beside_a_thread_that_uses_up_its_slice_nobody_looks() {
        let mut looking = Looking::new();
        assert!(looking.begin_at(us(10)).is_some());
        looking.let_run(us(10), us(60));
        looking.found();
        assert!(looking.begin_at(us(61)).is_some(), "somebody else had a little to do");
        looking.let_run(us(61), us(3_000));
        looking.found();
        assert_eq!(looking.begin_at(us(3_001)), None, "although it has found what it looked for");
        assert_eq!(looking.begin_at(us(22_999)), None);
        assert!(looking.begin_at(us(23_000)).is_some(), "they may have gone");
        looking.let_run(us(23_000), us(26_000));
        assert_eq!(looking.begin_at(us(65_999)), None, "they have not: twice as long");
        assert!(looking.begin_at(us(66_000)).is_some());
        looking.let_run(us(66_000), us(66_003));
        looking.let_run(us(66_003), us(66_006));
        looking.let_run(us(70_000), us(73_000));
        assert!(looking.begin_at(us(93_000)).is_some(), "now and then only");
    }
}
