//! Listeners that leave clients of this host to the kernel's listener at the same name: because nobody takes from them here, or because
//! their program starts a process for each connection. Such a process has to attach before it can use the one that it was
//! given, which costs more than all that a short connection saves; the kernel's stack needs none of that (decision 0030).
//!
//! Each listener has one of these. The engine notes in it what processes end that began with one of its connections, and what waits in vain, and
//! asks it when somebody connects.

use toe_base::Instant;

/// A process that ends so soon has had one short connection.
const SHORT_US: u64 = 1_000_000;
/// So many of them within [`WINDOW_US`] make a listener one of these.
const SHORTS: u32 = 16;
const WINDOW_US: u64 = 10_000_000;
/// How long it is the kernel's until it is tried again.
const KERNELS_US: u64 = 10_000_000;
/// With so many connections it is tried: on a busy machine each costs its client some slices of others.
const TRIALS: u32 = 4;
/// How long their processes are waited for.
const TRIAL_US: u64 = 2 * SHORT_US;

/// Whether a process that begins at one moment and ends at the other is such a one.
pub fn is_short(begun: Instant, ended: Instant) -> bool {
    ended.since_us(begun) < SHORT_US
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Engines,
    Kernels {
        until: Instant,
    },
    /// Until a program takes one here.
    NobodyTakes,
    /// Some connections more are the engine's, to see whether it still is what it was.
    Tried {
        until: Instant,
        left: u32,
    },
}

/// Whose a new connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    Engines,
    /// It is the last of a trial: from now on others are the kernel's.
    EnginesLast,
    Kernels,
}

/// What is known of one listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEach {
    /// Whether all programs that listen take the kernel's connections, too; `None`: none has said so yet.
    kernel_too: Option<bool>,
    phase: Phase,
    /// Short ones since then.
    since: Instant,
    shorts: u32,
}

impl ProcessEach {
    /// A program listens.
    pub fn on_listen(&mut self, kernel_too: bool) {
        self.kernel_too = Some(self.kernel_too.unwrap_or(true) && kernel_too);
    }

    /// A process that began with one of its connections has ended soon. `true`: from now on they may be the kernel's.
    pub fn on_short(&mut self, now: Instant) -> bool {
        let most = match self.phase {
            Phase::Kernels { .. } | Phase::NobodyTakes => return false,
            Phase::Tried { .. } => TRIALS,
            Phase::Engines => SHORTS,
        };
        if now.since_us(self.since) >= WINDOW_US {
            (self.since, self.shorts) = (now, 0);
        }
        self.shorts += 1;
        let becomes_kernels = self.shorts >= most;
        if becomes_kernels {
            self.phase = Phase::Kernels { until: now.after_us(KERNELS_US) };
        }
        becomes_kernels
    }

    /// Connections wait, and no program that listens has ever taken one: whoever is to take them may know the kernel's listener alone. `true`:
    /// from now on they are the kernel's.
    pub fn on_nobody_takes(&mut self) -> bool {
        let may_be_kernels = self.kernel_too == Some(true) && self.phase != Phase::NobodyTakes;
        if may_be_kernels {
            self.phase = Phase::NobodyTakes;
        }
        may_be_kernels
    }

    /// A program takes connections. `true`: from now on they are the engine's again.
    pub fn on_taker(&mut self) -> bool {
        let was_left = self.phase == Phase::NobodyTakes;
        if was_left {
            self.phase = Phase::Engines;
        }
        was_left
    }

    /// Whether connections are the kernel's because nobody takes them here.
    pub fn is_left(&self) -> bool {
        self.phase == Phase::NobodyTakes
    }

    /// A client that has the kernel's stack, too, connects: whether it does better there.
    pub fn next(&mut self, now: Instant) -> Whose {
        // One that listens as well may have begun since.
        if self.kernel_too != Some(true) {
            return Whose::Engines;
        }
        match self.phase {
            Phase::Engines => return Whose::Engines,
            Phase::NobodyTakes => return Whose::Kernels,
            Phase::Kernels { until } if now < until => return Whose::Kernels,
            Phase::Kernels { .. } => {
                self.phase = Phase::Tried { until: now.after_us(TRIAL_US), left: TRIALS };
                (self.since, self.shorts) = (now, 0);
            }
            Phase::Tried { until, .. } if now >= until => {
                self.phase = Phase::Engines;
                return Whose::Engines;
            }
            Phase::Tried { .. } => {}
        }
        let Phase::Tried { left, .. } = &mut self.phase else { return Whose::Engines };
        let Some(rest) = left.checked_sub(1) else { return Whose::Kernels };
        *left = rest;
        if rest == 0 { Whose::EnginesLast } else { Whose::Engines }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::ZERO;

    fn at(us: u64) -> Instant {
        START.after_us(5 * WINDOW_US + us)
    }

    fn after_shorts(kernel_too: &[bool], gap_us: u64, times: u32) -> (ProcessEach, Instant) {
        let mut listener = ProcessEach::default();
        kernel_too.iter().for_each(|too| listener.on_listen(*too));
        (0..u64::from(times)).for_each(|n| _ = listener.on_short(at(n * gap_us)));
        (listener, at(u64::from(times) * gap_us))
    }

    #[test]
    fn after_many_short_ones_they_are_the_kernels_for_a_while() {
        let (mut listener, now) = after_shorts(&[true], 7_000, SHORTS);
        assert_eq!(listener.next(now), Whose::Kernels);
        assert_eq!(listener.next(now.after_us(KERNELS_US - 8_000)), Whose::Kernels);
        let (mut listener, now) = after_shorts(&[true], 7_000, SHORTS - 1);
        assert_eq!(listener.next(now), Whose::Engines);
    }

    #[test]
    fn few_stay() {
        let (mut listener, now) = after_shorts(&[true], WINDOW_US / u64::from(SHORTS) + 1, 20 * SHORTS);
        assert_eq!(listener.next(now), Whose::Engines);
    }

    #[test]
    fn a_trial_has_few_connections_and_goes_on_when_they_are_short() {
        let (mut listener, now) = after_shorts(&[true], 1_000, SHORTS);
        let now = now.after_us(KERNELS_US);
        let trial: Vec<Whose> = (0..6).map(|_| listener.next(now)).collect();
        assert_eq!(trial[..3], [Whose::Engines; 3]);
        assert_eq!(trial[3..], [Whose::EnginesLast, Whose::Kernels, Whose::Kernels]);
        let ends: Vec<bool> = (0..TRIALS).map(|_| listener.on_short(now.after_us(1_000))).collect();
        assert_eq!(ends, [false, false, false, true]);
        assert_eq!(listener.next(now.after_us(KERNELS_US)), Whose::Kernels);
    }

    #[test]
    fn after_a_trial_of_long_ones_they_are_the_engines() {
        let (mut listener, now) = after_shorts(&[true], 1_000, SHORTS);
        let now = now.after_us(KERNELS_US);
        (0..6).for_each(|_| _ = listener.next(now));
        assert!(!listener.on_short(now.after_us(1_000)));
        assert_eq!(listener.next(now.after_us(TRIAL_US - 1)), Whose::Kernels);
        assert_eq!(listener.next(now.after_us(TRIAL_US)), Whose::Engines);
        assert_eq!(listener.next(now.after_us(TRIAL_US)), Whose::Engines);
    }

    #[test]
    fn one_that_does_not_take_the_kernels_ends_it_when_it_comes() {
        let (mut listener, now) = after_shorts(&[true], 1_000, SHORTS);
        assert_eq!(listener.next(now), Whose::Kernels);
        listener.on_listen(false);
        assert_eq!(listener.next(now), Whose::Engines);
    }

    #[test]
    fn where_the_kernel_has_nobody_who_takes_them_they_stay() {
        for kernel_too in [&[][..], &[false], &[true, false], &[false, true]] {
            let (mut listener, now) = after_shorts(kernel_too, 1_000, 10 * SHORTS);
            assert_eq!(listener.next(now), Whose::Engines, "{kernel_too:?}");
        }
    }
}
