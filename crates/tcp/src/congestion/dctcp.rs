//! DCTCP (RFC 8257): the window shrinks by as much of it as the network marked.

use toe_base::SeqNum;

/// alpha counts in so many parts; g is 1/16 (section 4.2).
const ONE: u32 = 1 << 20;
const GAIN_SHIFT: u32 = 4;

/// State of section 3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    alpha: u32,
    acked: u32,
    marked: u32,
    window_end: Option<SeqNum>,
    pub delayed: DelayedAcks,
}

/// Delayed ACKs for what came before the marks began or ended (section 3.2): one that covered both would tell the
/// peer wrong. They tell the opposite of each other in turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DelayedAcks {
    up_to: [SeqNum; 4],
    len: u8,
    /// What the first of them says.
    first_ece: bool,
}

impl DelayedAcks {
    /// What came up to `seq` was marked or not, and what follows is not so. One too many is joined with the last: the peer then
    /// thinks of a few bytes that they were marked, or not.
    pub fn push(&mut self, seq: SeqNum, was_marked: bool) {
        let len = usize::from(self.len);
        let last_ece = self.first_ece ^ (len % 2 == 0);
        if len == 0 {
            self.first_ece = was_marked;
        }
        if len > 0 && last_ece == was_marked || len == self.up_to.len() {
            self.up_to[len - 1] = seq;
        } else {
            self.up_to[len] = seq;
            self.len += 1;
        }
    }

    pub fn pop(&mut self) {
        self.up_to.rotate_left(1);
        self.len -= 1;
        self.first_ece ^= true;
    }

    /// Up to where the last of them tells.
    pub fn last(&self) -> Option<SeqNum> {
        self.up_to[..usize::from(self.len)].last().copied()
    }

    /// The next one: its number, and whether it says ECE.
    pub const fn first(&self) -> Option<(SeqNum, bool)> {
        if self.len > 0 { Some((self.up_to[0], self.first_ece)) } else { None }
    }
}

impl Dctcp {
    /// `struct tcp_dctcp_info`: whether it is on, alpha of 1024 parts, bytes marked and bytes in all of this window.
    pub(super) fn info(&self) -> [u32; 5] {
        [u32::from_ne_bytes([1, 0, 0, 0]), self.alpha / (ONE / 1024), self.marked, self.acked, 0]
    }
}

impl Default for Dctcp {
    /// Section 4.2: alpha starts at 1, the careful end.
    fn default() -> Self {
        Dctcp { alpha: ONE, acked: 0, marked: 0, window_end: None, delayed: DelayedAcks::default() }
    }
}

impl Dctcp {
    /// Section 3.3 steps 1 to 8: an ACK of `acked` bytes, with ECE or not. `una` and `nxt` are the connection's.
    pub fn on_ack(&mut self, (una, nxt): (SeqNum, SeqNum), acked: u32, ece: bool) {
        self.acked = self.acked.saturating_add(acked);
        if ece {
            self.marked = self.marked.saturating_add(acked);
        }
        if self.window_end.is_some_and(|end| una.before(end)) {
            return;
        }
        if self.acked > 0 {
            let part = (u64::from(self.marked) * u64::from(ONE) / u64::from(self.acked)) as u32;
            // What is left of it is rounded down, so that it comes to nothing in the end.
            self.alpha = self.alpha - self.alpha.div_ceil(1 << GAIN_SHIFT) + part.div_ceil(1 << GAIN_SHIFT);
        }
        *self = Dctcp {
            alpha: self.alpha.min(ONE),
            acked: 0,
            marked: 0,
            window_end: Some(nxt),
            delayed: self.delayed,
        };
    }

    /// Section 3.3 step 9 for marks; what is lost halves the window, as RFC 5681 has it (section 3.4).
    pub fn reduced(&self, cwnd: u32, by_mark: bool) -> u32 {
        if by_mark {
            cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
        } else {
            cwnd / 2
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_shrinks_by_half_of_what_was_marked() {
        let mut dctcp = Dctcp::default();
        for window in 1..200u32 {
            for part in 0..4u32 {
                let una = SeqNum::new(window * 400 + part * 100);
                dctcp.on_ack((una, una.plus(400)), 100, part == 0);
            }
        }
        let reduced = dctcp.reduced(100_000, true);
        assert!((86_000..=88_500).contains(&reduced), "a quarter marked: {reduced}");
        assert_eq!(dctcp.reduced(100_000, false), 50_000);
    }

    /// alpha after windows of 1000 bytes, each with so many marked.
    fn alpha_after(windows: u32, marked: u32) -> u32 {
        let mut dctcp = Dctcp::default();
        for window in 1..=windows {
            let una = SeqNum::new(window * 1000);
            dctcp.marked += marked;
            dctcp.acked += marked;
            dctcp.on_ack((una, una.plus(1000)), 1000 - marked, false);
        }
        dctcp.alpha
    }

    #[test]
    fn without_marks_alpha_becomes_nothing_and_few_marks_make_it_small() {
        assert_eq!(alpha_after(1, 0), ONE - ONE / 16, "a sixteenth is new");
        assert_eq!(alpha_after(1000, 0), 0);
        let few = alpha_after(1000, 2);
        assert!((ONE / 510..=ONE / 490).contains(&few), "two of a thousand: {few} of {ONE}");
    }

    #[test]
    fn a_loss_halves_the_window_though_nothing_was_marked() {
        let unmarked = Dctcp { alpha: ONE / 64, ..Dctcp::default() };
        assert_eq!(unmarked.reduced(100_000, false), 50_000);
        assert!(unmarked.reduced(100_000, true) > 99_000, "a mark would take little");
    }
}
