//! Listeners whose program starts a process for each connection. Such a process has to attach before it can use the one that it was
//! given, which costs more than all that a short connection saves; the kernel's stack needs none of that. A listener that is found to
//! be of that kind leaves clients of this host to the kernel's listener at the same name for a while (decision 0030).
//!
//! Each listener has one of these. The engine notes claims in it, and asks it when somebody connects.

use toe_base::Instant;

/// So many connections a second make it one: a process for each takes a tenth of a core at that rate (0.6 ms each).
const PER_SECOND: u32 = 128;
const SECOND_US: u64 = 1_000_000;
/// How long it is the kernel's until it is tried again, which costs [`PER_SECOND`] such connections: less than a hundredth of the time.
const KERNELS_US: u64 = 10 * SECOND_US;

/// What is known of one listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessEach {
    /// Whether all programs that listen take the kernel's connections, too; `None`: none has said so yet.
    kernel_too: Option<bool>,
    since: Instant,
    claims: u32,
    kernels_until: Instant,
}

impl ProcessEach {
    /// A program listens.
    pub fn on_listen(&mut self, kernel_too: bool) {
        self.kernel_too = Some(self.kernel_too.unwrap_or(true) && kernel_too);
    }

    /// One of its connections is the first thing that a process has claimed. `true`: from now on it may be the kernel's.
    pub fn on_first_claim(&mut self, now: Instant) -> bool {
        if now.since_us(self.since) >= SECOND_US {
            (self.since, self.claims) = (now, 0);
        }
        self.claims += 1;
        let becomes_kernels = self.claims >= PER_SECOND;
        if becomes_kernels {
            (self.kernels_until, self.claims) = (now.after_us(KERNELS_US), 0);
        }
        becomes_kernels
    }

    /// Whether clients that have the kernel's stack, too, do better there.
    pub fn is_kernels(&self, now: Instant) -> bool {
        // One that listens as well may have begun since.
        self.kernel_too == Some(true) && now < self.kernels_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::ZERO.after_us(5 * SECOND_US + us)
    }

    fn claimed(kernel_too: &[bool], gap_us: u64, times: u64) -> (ProcessEach, Instant) {
        let mut listener = ProcessEach::default();
        kernel_too.iter().for_each(|too| listener.on_listen(*too));
        (0..times).for_each(|n| _ = listener.on_first_claim(at(n * gap_us)));
        (listener, at(times * gap_us))
    }

    #[test]
    fn many_a_second_are_the_kernels_for_a_while() {
        let (listener, now) = claimed(&[true], 7_000, u64::from(PER_SECOND));
        assert!(listener.is_kernels(now));
        assert!(listener.is_kernels(now.after_us(KERNELS_US - 8_000)));
        assert!(!listener.is_kernels(now.after_us(KERNELS_US)));
        let (listener, now) = claimed(&[true], 7_000, u64::from(PER_SECOND) - 1);
        assert!(!listener.is_kernels(now));
    }

    #[test]
    fn few_a_second_stay() {
        let (listener, now) = claimed(&[true], 8_000, 10 * u64::from(PER_SECOND));
        assert!(!listener.is_kernels(now));
    }

    #[test]
    fn one_that_does_not_take_the_kernels_ends_it_when_it_comes() {
        let (mut listener, now) = claimed(&[true], 1_000, 10 * u64::from(PER_SECOND));
        assert!(listener.is_kernels(now));
        listener.on_listen(false);
        assert!(!listener.is_kernels(now));
    }

    #[test]
    fn where_the_kernel_has_nobody_who_takes_them_they_stay() {
        for kernel_too in [&[][..], &[false], &[true, false], &[false, true]] {
            let (listener, now) = claimed(kernel_too, 1_000, 10 * u64::from(PER_SECOND));
            assert!(!listener.is_kernels(now), "{kernel_too:?}");
        }
    }
}
