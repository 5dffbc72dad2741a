//! How many lines of the log hosts may cause.

use toe_base::Instant;

/// Lets through at most [`LogLimit::PER_SECOND`] lines a second of those that hosts can cause at will.
#[derive(Debug, Default)]
pub struct LogLimit {
    second: u64,
    lines: u32,
}

impl LogLimit {
    const PER_SECOND: u32 = 10;

    pub fn allows(&mut self, now: Instant) -> bool {
        let second = now.as_micros() / 1_000_000;
        if second != self.second {
            *self = LogLimit { second, lines: 0 };
        }
        self.lines = self.lines.saturating_add(1);
        self.lines <= Self::PER_SECOND
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_cannot_fill_the_log() {
        let mut limit = LogLimit::default();
        let at = |s: u64| Instant::from_millis(s * 1000);
        assert_eq!((0..100).filter(|_| limit.allows(at(5))).count(), 10);
        assert!(limit.allows(at(6)), "the next second has its own lines");
    }
}
