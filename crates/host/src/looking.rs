//! How long a thread looks for what it waits for before it sleeps. A plain state machine over the clock, one for each
//! thread; [`crate::spin`] does what it says.
//!
//! A wait looks in two ways. First it *spins*: what comes from another processor is mostly there within a few µs. Then it
//! *yields* between two looks: a thread that needs this processor only for a moment brings what is waited for. Each way ends by itself:
//!
//! - *Neither has found anything several times in a row*: then only one wait in many looks.
//! - *What comes is brought by yields*: then spinning is time lost, and is left out for some waits.
//! - *A yield took so long that somebody used up a time slice.* A thread that gives the processor away waits there for all the others to use
//!   theirs, and gives up its lag, too (EEVDF), so that its next wake-ups come late. One that sleeps comes before them. So for some
//!   time nobody of this thread's waits yields, whatever yields have found.
//!
//! Two threads that wait for each other may also share a processor while another is idle: each finds what it waits for by letting the other run, so
//! neither sleeps, and the scheduler, which looks for a processor where a thread wakes up, leaves them where they are. So a thread that has found
//! everything like that many times in a row sleeps once ([`Together`]).
//!
//! A thread begins with what the process's threads have met last ([`LATEST`]): where each connection has a thread of its own, none
//! lives long enough to find out.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a wait spins: some times what a peer on another processor needs for an answer, and about what a sleep and a wake-up cost.
const SPIN_FOR: Duration = Duration::from_micros(5);
/// For so many waits in a row spinning is left out at most, where yields bring what comes.
const UNSPUN_MAX: u32 = 255;
/// How long a wait looks again and again, the spinning included, before it sleeps.
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
/// For how long after that no wait yields: four times as long each time that it was so again, and less after yields that came back soon. At the most so
/// long that a program which waits a hundred times a second sees less than one wait in a hundred held up.
const CROWDED_FOR_MIN: Duration = Duration::from_millis(20);
const CROWDED_FOR_MAX: Duration = Duration::from_millis(5120);
/// So many yields that come back soon make it a third.
const SHORT_YIELDS: u32 = 64;

/// What the thread knows that has learnt something last. A hint, to be wrong at the cost of a few sleeps and spins.
static LATEST: AtomicU64 = AtomicU64::new(Latest { crowded: Crowded::NEVER, unspun: 1 }.packed());

/// What a thread knows of the others on its core.
#[derive(Clone, Copy, Debug)]
struct Crowded {
    until: Duration,
    /// How long the next time will be.
    next: Duration,
}

impl Crowded {
    const NEVER: Crowded = Crowded { until: Duration::ZERO, next: CROWDED_FOR_MIN };
}

/// What a new thread begins with.
#[derive(Clone, Copy, Debug)]
struct Latest {
    crowded: Crowded,
    /// [`Spins::next`].
    unspun: u32,
}

impl Latest {
    /// [`UNSPUN_MAX`], and [`CROWDED_FOR_MAX`] in ms, take so many bits.
    const UNSPUN_BITS: u32 = 8;
    const NEXT_BITS: u32 = 13;

    const fn packed(self) -> u64 {
        let Crowded { until, next } = self.crowded;
        let crowded = (until.as_millis() as u64) << Latest::NEXT_BITS | next.as_millis() as u64;
        crowded << Latest::UNSPUN_BITS | self.unspun as u64
    }

    fn unpacked(word: u64) -> Latest {
        let low = |word: u64, bits: u32| word & ((1 << bits) - 1);
        let crowded = word >> Latest::UNSPUN_BITS;
        let until = Duration::from_millis(crowded >> Latest::NEXT_BITS);
        let next = Duration::from_millis(low(crowded, Latest::NEXT_BITS));
        Latest { crowded: Crowded { until, next }, unspun: low(word, Latest::UNSPUN_BITS) as u32 }
    }

    fn load() -> Latest {
        Latest::unpacked(LATEST.load(Ordering::Relaxed))
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

/// Whether spinning pays.
#[derive(Clone, Copy, Debug)]
struct Spins {
    /// Waits that leave it out.
    unspun: u32,
    /// How many it will be the next time.
    next: u32,
}

impl Spins {
    const NEW: Spins = Spins { unspun: 0, next: 1 };

    fn as_of(latest: u32) -> Spins {
        Spins { unspun: latest - latest.min(1), next: latest.max(1) }
    }

    /// Whether the next wait spins.
    fn begin(&mut self) -> bool {
        let spins = self.unspun == 0;
        self.unspun = self.unspun.saturating_sub(1);
        spins
    }

    /// A wait span, and what it waited for came later, or not: that cost many times what a yield that was saved is worth.
    fn was_too_short(&mut self) {
        *self = Spins { unspun: self.next, next: (self.next * 2 + 1).min(UNSPUN_MAX) };
    }

    fn was_long_enough(&mut self) {
        self.next = (self.next - 1).max(1);
    }
}

/// How a wait looks: it spins until one time, and then yields until the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LookPlan {
    pub spins_until: Duration,
    pub yields_until: Duration,
}

/// What a look has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LookOutcome {
    Spinning,
    /// By the first yield, which took so long. Where it `is_much`, one processor's caches are worth more than the switches cost.
    AtFirstYield {
        took: Duration,
        is_much: bool,
    },
    Later,
    Nothing,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Looking {
    /// It has waited before.
    is_known: bool,
    /// It is to look at all.
    looks: bool,
    fruitless: u32,
    spins: Spins,
    crowded: Crowded,
    together: Together,
}

impl Looking {
    pub const fn new() -> Looking {
        Looking {
            is_known: false,
            looks: true,
            fruitless: 0,
            spins: Spins::NEW,
            crowded: Crowded::NEVER,
            together: Together::NO,
        }
    }

    /// Of a thread none of whose waits looks.
    pub const fn never() -> Looking {
        Looking { is_known: true, looks: false, ..Looking::new() }
    }

    /// A wait begins. `None`: it sleeps at once.
    pub fn begin(&mut self, now: Duration) -> Option<LookPlan> {
        self.begin_as(now, Latest::load)
    }

    fn begin_as(&mut self, now: Duration, latest: impl FnOnce() -> Latest) -> Option<LookPlan> {
        if self.fruitless >= FRUITLESS_MAX && !self.fruitless.is_multiple_of(LOOK_AGAIN) {
            self.fruitless = self.fruitless.wrapping_add(1);
            return None;
        }
        if self.together.parts() {
            return None;
        }
        self.look_for(now, LOOK_FOR, latest)
    }

    /// The same of a wait whose peer is known to be at it: however often looks have found nothing.
    pub fn begin_with_peer(&mut self, now: Duration) -> Option<LookPlan> {
        self.look_for(now, LOOK_FOR_PEER, Latest::load)
    }

    fn look_for(
        &mut self,
        now: Duration,
        for_so_long: Duration,
        latest: impl FnOnce() -> Latest,
    ) -> Option<LookPlan> {
        if !self.looks {
            return None;
        }
        let yields = !self.is_crowded(now, latest);
        let spins = self.spins.begin();
        // Where nobody yields its peer may have to be woken: two that sleep for each other begin to spin again by this alone.
        let spins_for = match (spins, yields) {
            (true, true) => SPIN_FOR,
            (true, false) => LOOK_FOR,
            (false, _) => Duration::ZERO,
        };
        let yields_for = if yields { for_so_long } else { Duration::ZERO };
        (spins || yields).then_some(LookPlan { spins_until: now + spins_for, yields_until: now + yields_for })
    }

    fn is_crowded(&mut self, now: Duration, latest: impl FnOnce() -> Latest) -> bool {
        if !self.is_known {
            self.is_known = true;
            let Latest { crowded, unspun } = latest();
            (self.crowded, self.spins) = (crowded, Spins::as_of(unspun));
        }
        now < self.crowded.until
    }

    /// Others were let run between these times.
    pub fn let_run(&mut self, before: Duration, after: Duration) {
        let Crowded { next, .. } = self.crowded;
        if after.saturating_sub(before) >= CROWDED {
            self.crowded = Crowded { until: after + next, next: (next * 4).min(CROWDED_FOR_MAX) };
            self.tell_others();
        } else {
            // Most yields beside a thread that never stops come back at once, so a single one says little.
            self.crowded.next = (next - next / SHORT_YIELDS).max(CROWDED_FOR_MIN);
        }
    }

    fn tell_others(&self) {
        let latest = Latest { crowded: self.crowded, unspun: self.spins.next };
        LATEST.store(latest.packed(), Ordering::Relaxed);
    }

    /// A look is over; `has_spun`: it began with spinning.
    pub fn end(&mut self, found: LookOutcome, has_spun: bool) {
        let before = self.spins.next;
        match found {
            LookOutcome::Spinning => self.spins.was_long_enough(),
            _ if has_spun => self.spins.was_too_short(),
            _ => {}
        }
        if self.spins.next != before {
            self.tell_others();
        }
        match found {
            LookOutcome::Nothing => self.fruitless = self.fruitless.wrapping_add(1),
            _ => self.fruitless = 0,
        }
        match found {
            LookOutcome::AtFirstYield { took, is_much } => self.together.found(took >= BROUGHT && !is_much),
            LookOutcome::Spinning | LookOutcome::Later => self.together.found(false),
            LookOutcome::Nothing => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(us: u64) -> Duration {
        Duration::from_micros(us)
    }

    const fn brought(after: Duration, is_much: bool) -> LookOutcome {
        LookOutcome::AtFirstYield { took: after, is_much }
    }

    impl Looking {
        /// Alone in its process.
        fn begin_at(&mut self, now: Duration) -> Option<LookPlan> {
            self.begin_as(now, || Latest { crowded: Crowded::NEVER, unspun: 1 })
        }

        /// How long the next wait spins and then yields, in µs.
        fn plan(&mut self, now: Duration) -> Option<(u64, u64)> {
            let look = self.begin_at(now)?;
            let since = |end: Duration| end.saturating_sub(now).as_micros() as u64;
            Some((since(look.spins_until), since(look.yields_until)))
        }

        /// So many waits that end so; how many slept at once.
        fn sleeps(&mut self, waits: u32, found: LookOutcome) -> u32 {
            let mut slept = 0;
            for _ in 0..waits {
                match self.begin_at(us(7)) {
                    Some(look) => self.end(found, look.spins_until > us(7)),
                    None => slept += 1,
                }
            }
            slept
        }
    }

    #[test]
    fn a_new_thread_knows_what_the_others_have_met() {
        let mut looking = Looking::new();
        let crowded = Crowded { until: us(30_000), next: us(40_000) };
        let latest = Latest { crowded, unspun: 4 }.packed();
        assert_eq!(looking.begin_as(us(10), || Latest::unpacked(latest)), None);
        assert_eq!(looking.plan(us(29_999)), None);
        assert_eq!(looking.plan(us(30_000)), Some((0, 20)), "the others would not have spun");
        assert_eq!(looking.plan(us(30_000)), Some((5, 20)));
        looking.let_run(us(30_000), us(33_000));
        assert_eq!(looking.plan(us(72_999)), Some((20, 0)));
        assert_eq!(looking.plan(us(73_000)), Some((5, 20)));
    }

    #[test]
    fn a_thread_that_never_looks_sleeps_at_once_however_long_it_lives() {
        let mut looking = Looking::never();
        for now in [0, 1, 1_000_000, u64::MAX] {
            assert_eq!(looking.begin_at(us(now)), None);
            assert_eq!(looking.begin_with_peer(us(now)), None);
        }
    }

    #[test]
    fn looking_that_pays_goes_on_and_looking_in_vain_fades() {
        let mut looking = Looking::new();
        assert_eq!(looking.sleeps(100, LookOutcome::Later), 0);
        assert_eq!(looking.sleeps(FRUITLESS_MAX, LookOutcome::Nothing), 0);
        let (waits, looked) = (10 * LOOK_AGAIN, 10);
        assert_eq!(looking.sleeps(waits, LookOutcome::Nothing), waits - looked, "one in so many");
        while looking.begin_at(us(7)).is_none() {}
        looking.end(LookOutcome::Later, false);
        assert_eq!(looking.sleeps(100, LookOutcome::Later), 0, "it pays again");
    }

    #[test]
    fn two_that_share_a_processor_part_once_in_a_while() {
        let mut looking = Looking::new();
        let little = brought(us(2), false);
        assert_eq!(looking.sleeps(TOGETHER_MIN, little), 0);
        assert_eq!(looking.sleeps(1, little), 1);
        assert_eq!(looking.sleeps(TOGETHER_MIN * 2, little), 0, "it has changed nothing");
        assert_eq!(looking.sleeps(1, little), 1);
        assert_eq!(looking.sleeps(100_000, brought(us(0), false)), 0, "they have parted");
        assert_eq!(looking.sleeps(TOGETHER_MIN + 1, little), 1, "and met again");
        assert_eq!(looking.sleeps(100_000, brought(us(2), true)), 0, "much at a time");
        for _ in 0..10_000 {
            assert_eq!(looking.sleeps(TOGETHER_MIN / 2, little), 0);
            looking.end(LookOutcome::Later, false);
        }
    }

    #[test]
    fn beside_a_thread_that_uses_up_its_slice_nobody_yields() {
        let mut looking = Looking::new();
        assert_eq!(looking.plan(us(10)), Some((5, 20)));
        looking.let_run(us(10), us(60));
        assert_eq!(looking.plan(us(61)), Some((5, 20)), "somebody else had a little to do");
        looking.let_run(us(61), us(3_000));
        assert_eq!(looking.plan(us(3_001)), Some((20, 0)), "whatever it has found");
        assert_eq!(looking.plan(us(22_999)), Some((20, 0)));
        assert_eq!(looking.plan(us(23_000)), Some((5, 20)), "they may have gone");
        looking.let_run(us(23_000), us(26_000));
        assert_eq!(looking.plan(us(105_999)), Some((20, 0)), "they have not: four times as long");
        assert_eq!(looking.plan(us(106_000)), Some((5, 20)));
        for _ in 0..4 {
            looking.let_run(us(106_000), us(106_003));
        }
        looking.let_run(us(110_000), us(113_000));
        assert_eq!(looking.plan(us(400_000)), Some((20, 0)), "a few that came back at once say little");
        for _ in 0..400 {
            looking.let_run(us(500_000), us(500_003));
        }
        looking.let_run(us(501_000), us(504_000));
        assert_eq!(looking.plan(us(524_000)), Some((5, 20)), "now and then only");
    }

    #[test]
    fn a_program_that_waits_seldom_yields_in_less_than_one_wait_of_a_hundred() {
        let mut looking = Looking::new();
        let (mut yields, mut now) = (0, us(0));
        for _ in 0..6000 {
            now += us(10_000);
            if looking.plan(now).is_some_and(|(_, yields)| yields > 0) {
                yields += 1;
                looking.let_run(now, now + us(4_000));
            }
        }
        assert!((5..60).contains(&yields), "{yields}");
    }

    #[test]
    fn who_is_brought_what_comes_by_yields_spins_seldom() {
        let mut looking = Looking::new();
        let mut spun = 0;
        for _ in 0..6400 {
            let look = looking.begin_at(us(7)).expect("it pays");
            let spins = look.spins_until > us(7);
            spun += u32::from(spins);
            looking.end(LookOutcome::Later, spins);
        }
        assert!((25..40).contains(&spun), "{spun}");
        // Its peer has gone to another processor.
        for _ in 0..UNSPUN_MAX * UNSPUN_MAX {
            let look = looking.begin_at(us(7)).expect("it pays");
            let spins = look.spins_until > us(7);
            looking.end(if spins { LookOutcome::Spinning } else { LookOutcome::Later }, spins);
        }
        assert_eq!(looking.plan(us(7)), Some((5, 20)));
        looking.end(LookOutcome::Spinning, true);
        assert_eq!(looking.plan(us(7)), Some((5, 20)), "it spins each time");
    }
}
