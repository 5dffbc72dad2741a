//! Storms: of empty segments no more are sent than there was reason for, and while nothing arrives, nothing is sent again and again.
//!
//! What takes a sequence number may be answered, and so may a program's reading what came; an empty segment is answered at most now and
//! then (RFC 5961 sections 5 and 7, and what Linux does beyond it), or two ends would answer each other for ever.

use crate::frame::{TcpFrame, Way};
use std::collections::BTreeMap;
use toe_base::SeqNum;

/// Empty segments that may be sent without reason: answers to what came from nobody, keepalives, probes.
const EMPTY_A_SECOND: u64 = 10;
/// What is saved of reasons that gave rise to nothing.
const REASONS_MAX: u64 = 4096;
/// Bytes of the smallest segment whose arrival is a reason.
const SMALLEST: u32 = 32;
/// The retransmission timer doubles from this on, up to that.
const RTO_MIN_US: u64 = 200_000;
const RTO_MAX_US: u64 = 120_000_000;
/// Beyond time-outs: probes of the tail, of a closed window and of the path's MTU, SYNs before they double, a clock that jumps.
const AGAIN_BESIDE: u64 = 16;

/// What one end says to the other.
#[derive(Debug)]
struct Talk {
    /// For so many empty segments there is a reason.
    reasons: u64,
    /// Until when time has given reasons.
    counted_us: u64,
    /// Since when nothing has come from the other end.
    silent_since_us: u64,
    /// How often what begins there was sent in that time.
    sent: BTreeMap<u32, u64>,
}

impl Talk {
    fn new(now_us: u64) -> Talk {
        Talk { reasons: 64, counted_us: now_us, silent_since_us: now_us, sent: BTreeMap::new() }
    }
}

/// All connections.
#[derive(Debug, Default)]
pub struct Storms {
    talks: BTreeMap<Way, Talk>,
}

impl Storms {
    fn talk(&mut self, way: Way, now_us: u64) -> &mut Talk {
        let talk = self.talks.entry(way).or_insert_with(|| Talk::new(now_us));
        let earned = (now_us - talk.counted_us) * EMPTY_A_SECOND / 1_000_000;
        if earned > 0 {
            talk.counted_us = now_us;
            talk.reasons = (talk.reasons + earned).min(REASONS_MAX);
        }
        talk
    }

    /// A segment arrives at an engine, whoever sent it.
    pub fn arrived(&mut self, tcp: &TcpFrame, now_us: u64) {
        let talk = self.talk(tcp.way.back(), now_us);
        let numbers = tcp.seq_end().distance_from(tcp.header.seq);
        talk.reasons = (talk.reasons + 2 * u64::from(numbers.div_ceil(SMALLEST))).min(REASONS_MAX);
        talk.silent_since_us = now_us;
        talk.sent.clear();
    }

    /// An engine sends a segment.
    pub fn sent(&mut self, tcp: &TcpFrame, now_us: u64) -> Result<(), String> {
        if tcp.header.flags.rst() {
            return Ok(());
        }
        let talk = self.talk(tcp.way, now_us);
        if tcp.seq_end() == tcp.header.seq {
            let left = talk.reasons.checked_sub(1);
            talk.reasons = left
                .ok_or_else(|| format!("an empty segment without reason: {:?} {:?}", tcp.way, tcp.header))?;
            return Ok(());
        }
        let silent_us = now_us - talk.silent_since_us;
        let doublings = u64::from((1 + silent_us / RTO_MIN_US).ilog2());
        let allowed = AGAIN_BESIDE + doublings + silent_us / RTO_MAX_US;
        let count = talk.sent.entry(SeqNum::raw(tcp.header.seq)).or_default();
        *count += 1;
        if *count > allowed {
            return Err(format!(
                "{count} times in {silent_us} us of silence: {:?} {:?}",
                tcp.way, tcp.header
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::window::UnscaledWindow;
    use toe_wire::TcpRepr;
    use toe_wire::tcp::{TcpFlags, TcpOptions};

    fn frame(from: u8, seq: u32, len: usize) -> TcpFrame {
        let end = |n: u8| ([10, 0, 0, n].into(), 80);
        let header = TcpRepr {
            src_port: 80,
            dst_port: 80,
            seq: SeqNum::new(seq),
            ack: Some(SeqNum::new(0)),
            flags: TcpFlags::ACK,
            window: UnscaledWindow(1),
            urgent: 0,
            options: TcpOptions::default(),
        };
        TcpFrame {
            way: Way { from: end(from), to: end(3 - from) },
            header,
            tcp_at: 0,
            payload_at: 0,
            end: len,
        }
    }

    #[test]
    fn two_ends_that_answer_each_other_are_found() {
        let mut storms = Storms::default();
        let war = (0..10_000).try_for_each(|round: u64| {
            let sender = 1 + (round % 2) as u8;
            storms.arrived(&frame(3 - sender, 5, 0), round * 50);
            storms.sent(&frame(sender, 5, 0), round * 50)
        });
        assert!(war.is_err());
    }

    #[test]
    fn answers_to_data_and_now_and_then_are_none() {
        let mut storms = Storms::default();
        for round in 0..10_000 {
            storms.arrived(&frame(1, round * 100, 100), u64::from(round) * 50);
            storms.sent(&frame(2, 0, 0), u64::from(round) * 50).expect("it was asked for");
        }
        for second in 1..1000 {
            storms.sent(&frame(2, 0, 0), second * 1_000_000).expect("one a second");
        }
    }

    #[test]
    fn what_is_sent_again_without_doubling_is_found() {
        let mut storms = Storms::default();
        let mut doubling_us = 0;
        for time_out in 0..15 {
            storms.sent(&frame(1, 7, 100), doubling_us).expect("as RFC 6298 has it");
            doubling_us += (RTO_MIN_US << time_out).min(RTO_MAX_US);
        }
        let steady = (0..100).try_for_each(|round| storms.sent(&frame(2, 7, 100), round * RTO_MIN_US));
        assert!(steady.is_err());
    }
}
