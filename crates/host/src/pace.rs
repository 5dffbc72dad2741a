//! The pace at which the bytes of one call come. A call that wants many of them, over a slow link, would be woken for each segment and have
//! nothing to do but to sleep again; so it sleeps through some of them, for a while that nothing but a signal ends. A plain state machine over
//! the clock; [`crate::wait`] does what it says.
//!
//! Nobody waits for what it has not read yet but its peer, when the window is full. That shows as a coalescing sleep that brings less than the pace
//! promised, and then the call is woken by each segment again for a while.

use std::cell::Cell;
use std::time::Duration;

/// What a coalescing sleep is to bring: few enough for any window, and several segments.
const PART: usize = 16 << 10;
/// The longest coalescing sleep: the end of the stream is found so much later, which is to be nothing beside what made coalescing sleeps worth while.
const LONGEST: Duration = Duration::from_millis(5);
/// Where a part takes less, the segments of a sleep join by themselves.
const SHORTEST: Duration = Duration::from_micros(200);
/// So many sleeps that would have been coalescing sleeps come before the first one, and twice as many after each that brought too little.
const AGAIN_MIN: u32 = 8;
const AGAIN_MAX: u32 = 1024;

/// Of one call.
#[derive(Debug)]
pub struct Pace<'a> {
    all: usize,
    /// Bytes that have come.
    got: &'a Cell<usize>,
    state: Cell<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    /// When the last sleep began, and what had come by then.
    since: Option<(Duration, usize)>,
    /// What the coalescing sleep that the call is in is to bring.
    promised: Option<usize>,
    /// Sleeps until the next coalescing sleep, and how many it will be after one that brings too little.
    wait: u32,
    next_wait: u32,
}

impl<'a> Pace<'a> {
    /// Of a call that wants `all` bytes and counts those that have come in `got`.
    pub fn new(all: usize, got: &'a Cell<usize>) -> Pace<'a> {
        let state = State { since: None, promised: None, wait: AGAIN_MIN, next_wait: AGAIN_MIN * 2 };
        Pace { all, got, state: Cell::new(state) }
    }

    /// The call is about to sleep: how long it may before it needs to be woken. `None`: not at all.
    pub fn coalescing_sleep(&self, now: Duration) -> Option<Duration> {
        let (mut state, got) = (self.state.get(), self.got.get());
        let before = state.since.replace((now, got));
        let sleep = before
            .and_then(|(since, had)| self.sleep_after(&mut state, got - had, now.saturating_sub(since)));
        self.state.set(state);
        sleep
    }

    /// The last sleep took so long and brought so much.
    fn sleep_after(&self, state: &mut State, came: usize, took: Duration) -> Option<Duration> {
        if state.promised.take().is_some_and(|promised| came < promised / 2) {
            state.wait = state.next_wait;
            state.next_wait = (state.next_wait * 2).min(AGAIN_MAX);
        }
        if came == 0 {
            return None;
        }
        let part = took.as_nanos() * PART as u128 / came as u128;
        let sleep = Duration::from_nanos(u64::try_from(part).unwrap_or(u64::MAX)).min(LONGEST);
        let promised = (came as u128 * sleep.as_nanos() / took.as_nanos().max(1)) as usize;
        // The end is to be found when it comes.
        if sleep < SHORTEST || self.all - self.got.get() <= 2 * promised {
            return None;
        }
        if let Some(wait) = state.wait.checked_sub(1) {
            state.wait = wait;
            return None;
        }
        state.promised = Some(promised);
        Some(sleep)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: usize = 1448;

    /// A sender that puts a segment on the wire so often.
    struct Wire {
        got: Cell<usize>,
        now: Duration,
        every: Duration,
        /// What it sends before it waits for its receiver.
        window: usize,
    }

    impl Wire {
        fn new(every_us: u64, window: usize) -> Wire {
            let every = Duration::from_micros(every_us);
            Wire { got: Cell::new(0), now: Duration::from_secs(1), every, window }
        }

        /// So many sleeps of one call; how many of them were coalescing sleeps.
        fn sleeps(&mut self, count: u32, all: usize) -> u32 {
            let got = self.got.clone();
            let pace = Pace::new(all, &got);
            let mut coalescing_sleeps = 0;
            for _ in 0..count {
                let sleep = pace.coalescing_sleep(self.now);
                coalescing_sleeps += u32::from(sleep.is_some());
                let slept = sleep.unwrap_or(Duration::ZERO).max(self.every);
                let segments = (slept.as_nanos() / self.every.as_nanos()) as usize;
                self.now += slept;
                got.set(got.get() + (segments * SEGMENT).min(self.window));
            }
            self.got.set(got.get());
            coalescing_sleeps
        }
    }

    #[test]
    fn over_a_slow_link_it_sleeps_through_several_segments() {
        let mut wire = Wire::new(120, usize::MAX);
        let began = wire.now;
        assert_eq!(wire.sleeps(200, usize::MAX), 200 - 1 - AGAIN_MIN);
        let a_sleep = wire.got.get() / 200;
        assert!((PART / 2..=PART).contains(&a_sleep), "{a_sleep}");
        assert!(wire.now - began < 200 * LONGEST);
    }

    #[test]
    fn a_fast_link_wakes_it() {
        assert_eq!(Wire::new(12, usize::MAX).sleeps(200, usize::MAX), 0);
    }

    #[test]
    fn a_peer_that_waits_for_its_window_ends_the_naps() {
        let coalescing_sleeps = Wire::new(120, 2 * SEGMENT).sleeps(1000, usize::MAX);
        assert!((1..=7).contains(&coalescing_sleeps), "{coalescing_sleeps}: ever more seldom");
    }

    #[test]
    fn the_last_bytes_are_waited_for_awake() {
        let all = 60 * SEGMENT;
        let mut wire = Wire::new(120, usize::MAX);
        let got = wire.got.clone();
        let pace = Pace::new(all, &got);
        while got.get() < all {
            let sleep = pace.coalescing_sleep(wire.now);
            let left = all - got.get();
            let slept = sleep.unwrap_or(wire.every);
            wire.now += slept;
            let came = (slept.as_nanos() / wire.every.as_nanos()) as usize * SEGMENT;
            assert!(sleep.is_none() || came < left, "it slept past the end");
            got.set(got.get() + came);
        }
    }

    #[test]
    fn what_does_not_come_is_waited_for_awake() {
        let got = Cell::new(0);
        let pace = Pace::new(usize::MAX, &got);
        let mut now = Duration::from_secs(1);
        for _ in 0..100 {
            now += Duration::from_millis(1);
            assert_eq!(pace.coalescing_sleep(now), None);
        }
    }
}
