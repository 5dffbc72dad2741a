//! A slow link and the queue in front of it: when a frame has left, whether there was room for it, and whether the queue
//! was so long that it is to be marked. Plain arithmetic over `now`; [`super::lane::Lane`] asks it for each frame.

use super::plan::FaultRates;

/// From kbit/s and nanoseconds to bytes.
const NS_KBIT_PER_BYTE: u64 = 8_000_000;

/// The slow part of one direction.
#[derive(Debug)]
pub(super) struct Bottleneck {
    /// 0: it is not slow.
    rate_kbit: u32,
    queue_bytes: u32,
    mark_bytes: u32,
    /// When the last frame that was let in has left.
    idle_at_ns: u64,
}

/// What becomes of a frame that was let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) leaves_us: u64,
    /// It found a long queue.
    pub(super) mark: bool,
}

impl Bottleneck {
    pub(super) fn new(rates: &FaultRates) -> Bottleneck {
        Bottleneck {
            rate_kbit: rates.rate_kbit,
            queue_bytes: if rates.queue_bytes == 0 { u32::MAX } else { rates.queue_bytes },
            mark_bytes: if rates.mark_bytes == 0 { u32::MAX } else { rates.mark_bytes },
            idle_at_ns: 0,
        }
    }

    /// A frame of `len` bytes comes; `None` when the queue has no room for it. The frame that is leaving counts as
    /// queued with what is left of it, and an empty queue has room for any frame.
    pub(super) fn offer(&mut self, now_us: u64, len: usize) -> Option<Passage> {
        if self.rate_kbit == 0 {
            return Some(Passage { leaves_us: now_us, mark: false });
        }
        let (now, rate, len) = (now_us * 1000, u64::from(self.rate_kbit), len as u64);
        let begins = self.idle_at_ns.max(now);
        let queued = (begins - now) * rate / NS_KBIT_PER_BYTE;
        if queued > 0 && queued + len > u64::from(self.queue_bytes) {
            return None;
        }
        self.idle_at_ns = begins + len * NS_KBIT_PER_BYTE / rate;
        Some(Passage {
            leaves_us: self.idle_at_ns.div_ceil(1000),
            mark: queued >= u64::from(self.mark_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bottleneck(rate_kbit: u32, queue_bytes: u32, mark_bytes: u32) -> Bottleneck {
        Bottleneck::new(&FaultRates { rate_kbit, queue_bytes, mark_bytes, ..FaultRates::default() })
    }

    fn leaves(b: &mut Bottleneck, now_us: u64, len: usize) -> Option<u64> {
        b.offer(now_us, len).map(|passage| passage.leaves_us)
    }

    #[test]
    fn frames_leave_one_after_the_other_at_the_rate() {
        // 8 Mbit/s: a byte a microsecond.
        let mut b = bottleneck(8_000, 0, 0);
        assert_eq!(leaves(&mut b, 10, 1000), Some(1010));
        assert_eq!(leaves(&mut b, 10, 500), Some(1510));
        assert_eq!(leaves(&mut b, 1500, 100), Some(1610));
        assert_eq!(leaves(&mut b, 9000, 100), Some(9100), "time that was not used is not saved up");
    }

    #[test]
    fn fractions_of_a_microsecond_add_up() {
        // 1514 bytes at 100 Mbit/s take 121.12 us.
        let mut b = bottleneck(100_000, 0, 0);
        let all: Vec<_> = (0..1000).map(|_| leaves(&mut b, 0, 1514)).collect();
        assert_eq!((all[0], all[999]), (Some(122), Some(121_120)));
    }

    #[test]
    fn a_full_queue_refuses_and_opens_again() {
        let mut b = bottleneck(8_000, 2000, 0);
        assert_eq!(leaves(&mut b, 0, 1000), Some(1000));
        assert_eq!(leaves(&mut b, 0, 1000), Some(2000));
        assert_eq!(leaves(&mut b, 0, 1), None);
        assert_eq!(leaves(&mut b, 499, 500), None);
        assert_eq!(leaves(&mut b, 500, 500), Some(2500));
    }

    #[test]
    fn an_empty_queue_takes_a_frame_that_is_longer_than_it() {
        let mut b = bottleneck(8_000, 100, 0);
        assert_eq!(leaves(&mut b, 0, 1000), Some(1000));
        assert_eq!(leaves(&mut b, 999, 1000), None);
        assert_eq!(leaves(&mut b, 1000, 1000), Some(2000));
    }

    #[test]
    fn a_frame_that_finds_a_long_queue_is_to_be_marked() {
        let mut b = bottleneck(8_000, 0, 1500);
        let marks: Vec<bool> = (0..3).filter_map(|_| Some(b.offer(0, 1000)?.mark)).collect();
        assert_eq!(marks, [false, false, true]);
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut b = bottleneck(0, 1, 1);
        for _ in 0..10 {
            assert_eq!(b.offer(7, 60_000), Some(Passage { leaves_us: 7, mark: false }));
        }
    }
}
