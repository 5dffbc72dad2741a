//! DCTCP (RFC 8257): the window shrinks by as much of it as the network marked.

use crate::flow::record::Flow;
use toe_base::SeqNum;

/// alpha counts in 1024ths; g is 1/16 (section 4.2).
const ONE: u32 = 1024;
const GAIN_SHIFT: u32 = 4;

/// State of section 3.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dctcp {
    alpha: u32,
    acked: u32,
    marked: u32,
    window_end: Option<SeqNum>,
}

impl Default for Dctcp {
    /// Section 4.2: alpha starts at 1, the careful end.
    fn default() -> Self {
        Dctcp { alpha: ONE, acked: 0, marked: 0, window_end: None }
    }
}

impl Dctcp {
    /// Section 3.3 step 9 for marks; what is lost halves the window (section 3.5).
    pub fn reduced(&self, cwnd: u32, by_mark: bool) -> u32 {
        if by_mark {
            cwnd - (u64::from(cwnd) * u64::from(self.alpha) / u64::from(2 * ONE)) as u32
        } else {
            cwnd / 2
        }
    }
}

/// Section 3.3 steps 1 to 8: an ACK of `acked` octets, with ECE or not.
pub fn on_ack(flow: &mut Flow, acked: u32, ece: bool) {
    let (una, nxt) = (flow.snd.una, flow.snd.nxt);
    let super::Algorithm::Dctcp(dctcp) = &mut flow.cc.algorithm else { return };
    dctcp.acked = dctcp.acked.saturating_add(acked);
    if ece {
        dctcp.marked = dctcp.marked.saturating_add(acked);
    }
    if dctcp.window_end.is_some_and(|end| una.before(end)) {
        return;
    }
    if dctcp.acked > 0 {
        let part = (u64::from(dctcp.marked) * u64::from(ONE) / u64::from(dctcp.acked)) as u32;
        dctcp.alpha = dctcp.alpha - (dctcp.alpha >> GAIN_SHIFT).max(dctcp.alpha.min(1))
            + part.div_ceil(1 << GAIN_SHIFT);
    }
    *dctcp = Dctcp { alpha: dctcp.alpha.min(ONE), acked: 0, marked: 0, window_end: Some(nxt) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::tcp::congestion::{Algorithm, AlgorithmName};

    #[test]
    fn the_window_shrinks_by_half_of_what_was_marked() {
        let mut flow = Flow::vacant();
        flow.cc.algorithm = Algorithm::new(AlgorithmName::Dctcp);
        for window in 1..200u32 {
            for part in 0..4u32 {
                flow.snd.una = SeqNum::new(window * 400 + part * 100);
                flow.snd.nxt = flow.snd.una.plus(400);
                on_ack(&mut flow, 100, part == 0);
            }
        }
        let Algorithm::Dctcp(dctcp) = flow.cc.algorithm else { panic!("DCTCP") };
        let reduced = dctcp.reduced(100_000, true);
        assert!((86_000..=88_500).contains(&reduced), "a quarter marked: {reduced}");
        assert_eq!(dctcp.reduced(100_000, false), 50_000);
    }
}
