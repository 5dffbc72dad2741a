//! DCTCP (RFC 8257): the window shrinks by as much of it as the network marked.

use super::Models;
use crate::record::{Algorithm, Tcb};
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
    delayed: DelayedAcks,
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
    fn push(&mut self, seq: SeqNum, was_marked: bool) {
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

    fn pop(&mut self) {
        self.up_to.rotate_left(1);
        self.len -= 1;
        self.first_ece ^= true;
    }

    /// The next one: its number, and whether it says ECE.
    const fn first(&self) -> Option<(SeqNum, bool)> {
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
    /// Section 3.3 step 9 for marks; what is lost halves the window, as RFC 5681 has it (section 3.4).
    pub fn reduced(&self, cwnd: u32, by_mark: bool) -> u32 {
        if by_mark {
            cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
        } else {
            cwnd / 2
        }
    }
}

/// Section 3.3 steps 1 to 8: an ACK of `acked` bytes, with ECE or not.
pub fn on_ack(tcb: &mut Tcb, models: &mut Models, acked: u32, ece: bool) {
    let (una, nxt) = (tcb.snd.una, tcb.snd.nxt);
    let Algorithm::Dctcp(slot) = &mut tcb.cc.algorithm else { return };
    let Some(dctcp) = models.dctcp.one_mut(slot) else { return };
    dctcp.acked = dctcp.acked.saturating_add(acked);
    if ece {
        dctcp.marked = dctcp.marked.saturating_add(acked);
    }
    if dctcp.window_end.is_some_and(|end| una.before(end)) {
        return;
    }
    if dctcp.acked > 0 {
        let part = (u64::from(dctcp.marked) * u64::from(ONE) / u64::from(dctcp.acked)) as u32;
        // What is left of it is rounded down, so that it comes to nothing in the end.
        dctcp.alpha = dctcp.alpha - dctcp.alpha.div_ceil(1 << GAIN_SHIFT) + part.div_ceil(1 << GAIN_SHIFT);
    }
    let (alpha, delayed) = (dctcp.alpha.min(ONE), dctcp.delayed);
    *dctcp = Dctcp { alpha, acked: 0, marked: 0, window_end: Some(nxt), delayed };
}

/// Section 3.2: a segment came with the mark, or without. ECE tells of each, and a change is told at once.
pub fn note_mark(tcb: &mut Tcb, models: &mut Models, is_marked: bool) {
    let was_marked = tcb.ecn.echo;
    let Algorithm::Dctcp(slot) = &mut tcb.cc.algorithm else { return };
    if is_marked == was_marked {
        return;
    }
    let Some(dctcp) = models.dctcp.one_mut(slot) else { return };
    let told = dctcp
        .delayed
        .first()
        .map_or(tcb.rcv.acked, |_| dctcp.delayed.up_to[usize::from(dctcp.delayed.len) - 1]);
    if told != tcb.rcv.nxt {
        dctcp.delayed.push(tcb.rcv.nxt, was_marked);
    }
    tcb.ecn.echo = is_marked;
    tcb.rcv.ack_now = true;
}

/// The next delayed ACK: its number, and whether it says ECE.
pub fn delayed_ack(tcb: &Tcb, models: &Models) -> Option<(SeqNum, bool)> {
    match &tcb.cc.algorithm {
        Algorithm::Dctcp(slot) => models.dctcp.one(slot).delayed.first(),
        _ => None,
    }
}

/// It went out.
pub fn delayed_ack_sent(tcb: &Tcb, models: &mut Models) {
    if let Algorithm::Dctcp(slot) = &tcb.cc.algorithm {
        models.dctcp.taken_mut(slot).into_iter().for_each(|dctcp| dctcp.delayed.pop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Algorithm, AlgorithmName};

    fn state<'a>(tcb: &mut Tcb, models: &'a mut Models) -> &'a mut Dctcp {
        let Algorithm::Dctcp(slot) = &mut tcb.cc.algorithm else { panic!("DCTCP") };
        models.dctcp.one_mut(slot).expect("a place")
    }

    #[test]
    fn the_window_shrinks_by_half_of_what_was_marked() {
        let (mut tcb, mut models) = (Tcb::vacant(), Models::new(1));
        tcb.cc.algorithm = Algorithm::new(AlgorithmName::Dctcp);
        for window in 1..200u32 {
            for part in 0..4u32 {
                tcb.snd.una = SeqNum::new(window * 400 + part * 100);
                tcb.snd.nxt = tcb.snd.una.plus(400);
                on_ack(&mut tcb, &mut models, 100, part == 0);
            }
        }
        let dctcp = state(&mut tcb, &mut models);
        let reduced = dctcp.reduced(100_000, true);
        assert!((86_000..=88_500).contains(&reduced), "a quarter marked: {reduced}");
        assert_eq!(dctcp.reduced(100_000, false), 50_000);
    }

    /// alpha after windows of 1000 bytes, each with so many marked.
    fn alpha_after(windows: u32, marked: u32) -> u32 {
        let (mut tcb, mut models) = (Tcb::vacant(), Models::new(1));
        tcb.cc.algorithm = Algorithm::new(AlgorithmName::Dctcp);
        for window in 1..=windows {
            tcb.snd.una = SeqNum::new(window * 1000);
            tcb.snd.nxt = tcb.snd.una.plus(1000);
            let dctcp = state(&mut tcb, &mut models);
            dctcp.marked += marked;
            dctcp.acked += marked;
            on_ack(&mut tcb, &mut models, 1000 - marked, false);
        }
        let dctcp = state(&mut tcb, &mut models);
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

    /// Marks come and go while no ACK can go out: what is told is never wrong, though it may be less than all.
    #[test]
    fn delayed_acks_tell_of_each_stretch_in_turn() {
        let (mut tcb, mut models) = (Tcb::vacant(), Models::new(1));
        tcb.cc.algorithm = Algorithm::new(AlgorithmName::Dctcp);
        tcb.rcv.acked = SeqNum::new(100);
        for (at, is_marked) in
            [(200, true), (300, false), (300, true), (400, false), (500, true), (600, false), (700, true)]
        {
            tcb.rcv.nxt = SeqNum::new(at);
            note_mark(&mut tcb, &mut models, is_marked);
        }
        let mut told = Vec::new();
        while let Some((up_to, ece)) = delayed_ack(&tcb, &models) {
            told.push((up_to.raw(), ece));
            delayed_ack_sent(&tcb, &mut models);
        }
        assert_eq!(told, [(200, false), (400, true), (500, false), (700, true)]);
    }
}
