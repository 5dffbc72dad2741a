//! How large a segment the path takes, where that is less than both ends would: what ICMP says (RFC 1191, RFC 8201), and where
//! ICMP does not come through, what probes and silence say (RFC 4821).
//!
//! ```text
//!            snd.mss                search_high          limit
//!    ───────────┼────────────────────────┼─────────────────┤ octets of payload
//!     gets through│  a probe lies here   │ was lost, or    │ link and peer
//!                 │                      │ ICMP said so    │ take no more
//! ```
//!
//! A connection whose segments have always got through has nothing to do here.

use crate::output;
use crate::record::{Phase, Tcb};
use crate::scoreboard::SentPool;
use toe_base::Instant;

/// Payload that is sent when large segments seem to vanish (RFC 4821 section 7.2: a path MTU of 1024 octets).
const MSS_BASE: u16 = 1024 - 40;
/// The same over IPv6, where nothing below 1280 octets is needed.
const MSS_BASE_V6: u16 = 1280 - 60;
/// Payload that ICMP cannot push a segment below (RFC 791's 576 octets; less would be an attack, RFC 5927 section 7.2).
pub const MSS_LEAST: u16 = 536;
/// Time-outs in a row after which large segments are taken to vanish (RFC 4821 section 7.7).
const SILENT_TIMEOUTS: u8 = 3;
/// A search this close is at its end.
const CLOSE_ENOUGH: u16 = 16;
/// A larger path MTU is looked for after this (RFC 1191 section 6.3, RFC 8201 section 4).
const SEARCH_AGAIN_US: u64 = 600_000_000;

/// A router says that datagrams with `mss` octets of payload are the largest that it forwards.
pub fn lowered(flow: &mut Tcb, sent: &mut SentPool, mss: u16, now: Instant) {
    let mss = mss.max(MSS_LEAST);
    if mss >= flow.snd.mss {
        return;
    }
    flow.snd.mss = mss;
    flow.mtu.search_high = mss;
    flow.mtu.search_at = now.after_us(SEARCH_AGAIN_US);
    flow.mtu.probe_end = None;
    // What was larger is gone, and that is no congestion (RFC 1191 section 6.4): it goes again in the size that fits.
    flow.board.mark_lost(sent, |_| true);
}

/// The retransmission timer ran out once more.
pub fn timed_out(flow: &mut Tcb, now: Instant) {
    flow.mtu.probe_end = None;
    if !flow.state.is_synchronized() {
        // A SYN is no large segment.
        return;
    }
    let base = if flow.is_v4 { MSS_BASE } else { MSS_BASE_V6 } - output::options_len(flow);
    if flow.rtt.timeouts == SILENT_TIMEOUTS && flow.snd.mss > base && !flow.is_local {
        flow.mtu.search_high = flow.snd.mss - 1;
        flow.snd.mss = base;
        flow.mtu.search_at = now;
    }
}

/// The size of a probe that could go now.
pub fn next_probe(flow: &Tcb, now: Instant) -> Option<u16> {
    let mtu = &flow.mtu;
    let is_idle = flow.cc.phase == Phase::Open && flow.board.lost() == 0 && flow.board.sacked() == 0;
    if flow.snd.mss >= mtu.limit || mtu.probe_end.is_some() || now < mtu.search_at || !is_idle {
        return None;
    }
    let high = if mtu.search_high > flow.snd.mss + CLOSE_ENOUGH { mtu.search_high } else { mtu.limit };
    let size = flow.snd.mss + (high - flow.snd.mss).div_ceil(2);
    let unsent = flow.queue_end().distance_from(flow.snd.nxt);
    let room = flow.snd.wnd.octets().min(flow.cc.cwnd).saturating_sub(flow.outstanding());
    // Others around it, so that its loss is noticed at once (RFC 4821 section 7.4).
    let with_others = u32::from(size) + 3 * u32::from(flow.snd.mss);
    (unsent >= with_others && room >= with_others).then_some(size)
}

/// It went out, and ends at `snd.nxt`.
pub fn probe_sent(flow: &mut Tcb, size: u16) {
    flow.mtu.probe_end = Some(flow.snd.nxt);
    flow.mtu.probe_size = size;
    if size > flow.mtu.search_high {
        // A new search.
        flow.mtu.search_high = flow.mtu.limit;
    }
}

/// Something was acknowledged.
pub fn acknowledged(flow: &mut Tcb, now: Instant) {
    if flow.mtu.probe_end.is_some_and(|end| flow.snd.una.at_or_after(end)) {
        flow.mtu.probe_end = None;
        flow.snd.mss = flow.mtu.probe_size.min(flow.mtu.limit);
        rest_if_found(flow, now);
    }
}

/// Something is newly lost. Whether it is the probe alone: then the path is too narrow for it, not congested (RFC 4821
/// section 7.6.2).
pub fn is_probe_alone_lost(flow: &mut Tcb, sent: &SentPool, now: Instant) -> bool {
    let Some(end) = flow.mtu.probe_end else { return false };
    let lost = flow.board.first_lost(sent).filter(|lost| lost.len() == flow.board.lost());
    if lost.is_none_or(|lost| lost.end != end || lost.len() != u32::from(flow.mtu.probe_size)) {
        return false;
    }
    flow.mtu.probe_end = None;
    flow.mtu.search_high = flow.mtu.probe_size - 1;
    rest_if_found(flow, now);
    true
}

/// The search is at its end for a while.
fn rest_if_found(flow: &mut Tcb, now: Instant) {
    let is_found = flow.mtu.search_high <= flow.snd.mss + CLOSE_ENOUGH;
    if is_found && flow.mtu.search_high < flow.mtu.limit {
        flow.mtu.search_at = now.after_us(SEARCH_AGAIN_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::SentRange;
    use crate::state::TcpState;
    use toe_base::SeqNum;

    /// A sender of four segments of 1000 octets, the second of them a probe of 1400, and the rest of a large window.
    fn with_probe(sent: &mut SentPool) -> Tcb {
        let mut flow = Tcb::vacant();
        flow.snd.mss = 1000;
        flow.mtu.limit = 1460;
        flow.mtu.search_high = 1460;
        flow.cc.cwnd = 20_000;
        for end in [1000, 2400, 3400, 4400] {
            let range = SentRange { start: flow.snd.nxt, end: SeqNum::new(end), ..SentRange::default() };
            flow.board.sent(sent, SentRange { sent_at: Instant::from_millis(u64::from(end)), ..range });
            flow.snd.nxt = range.end;
            if end == 2400 {
                probe_sent(&mut flow, 1400);
            }
        }
        flow
    }

    #[test]
    fn a_lost_probe_is_told_from_a_loss() {
        let mut sent = SentPool::new(1);
        let now = Instant::from_millis(10_000);
        let mut flow = with_probe(&mut sent);
        flow.board.mark_lost(&mut sent, |r| r.end == SeqNum::new(2400));
        assert!(is_probe_alone_lost(&mut flow, &sent, now));
        assert_eq!((flow.mtu.search_high, flow.mtu.probe_end), (1399, None), "the path takes less");
        assert!(!is_probe_alone_lost(&mut flow, &sent, now), "known by now");

        let mut sent = SentPool::new(1);
        let mut flow = with_probe(&mut sent);
        flow.board.mark_lost(&mut sent, |r| r.end.at_or_before(SeqNum::new(3400)));
        assert!(!is_probe_alone_lost(&mut flow, &sent, now), "the first was lost, too");
        flow.board.unmark_lost(&mut sent);
        flow.board.mark_lost(&mut sent, |r| r.end.after(SeqNum::new(1000)));
        assert!(!is_probe_alone_lost(&mut flow, &sent, now), "others were lost, too");
    }

    /// RFC 1191 section 3, RFC 8201 section 4, RFC 5927 section 7.2.
    #[test]
    fn what_a_router_says_makes_nothing_larger_and_not_much_smaller() {
        for (said, mss) in [(1400, 1000), (1000, 1000), (900, 900), (20, 536)] {
            let mut sent = SentPool::new(1);
            let mut flow = with_probe(&mut sent);
            lowered(&mut flow, &mut sent, said, Instant::from_millis(1));
            assert_eq!(flow.snd.mss, mss, "{said}");
            assert_eq!(flow.board.lost() > 0, mss < 1000, "{said}");
        }
    }

    /// RFC 4821 section 7.2; over IPv6 nothing below 1280 octets is needed (RFC 8201 section 4).
    #[test]
    fn silence_leads_to_a_size_that_every_path_takes() {
        for (is_v4, packet) in [(true, 1024 - 40), (false, 1280 - 60)] {
            let mut flow = with_probe(&mut SentPool::new(1));
            flow.is_v4 = is_v4;
            flow.is_local = false;
            flow.rcv.ts_recent = Some(1);
            flow.snd.mss = 1440;
            flow.rtt.timeouts = SILENT_TIMEOUTS;
            timed_out(&mut flow, Instant::from_millis(1));
            assert_eq!(flow.snd.mss, 1440, "a SYN says nothing of large segments");
            flow.state = TcpState::Established;
            flow.rtt.timeouts = SILENT_TIMEOUTS - 1;
            timed_out(&mut flow, Instant::from_millis(1));
            assert_eq!(flow.snd.mss, 1440);
            flow.rtt.timeouts += 1;
            timed_out(&mut flow, Instant::from_millis(1));
            assert_eq!(flow.snd.mss, packet - 12, "timestamps take their part");
        }
    }

    /// A sender with so much to send that was told of a path of 900 octets, all of it answered.
    fn lowered_with(queued: u32) -> Tcb {
        use toe_abi::entry::MemRange;
        use toe_base::SessionId;
        let mut sent = SentPool::new(1);
        let mut flow = with_probe(&mut sent);
        lowered(&mut flow, &mut sent, 900, Instant::from_millis(1));
        flow.board.clear(&mut sent);
        flow.snd.una = flow.snd.nxt;
        flow.snd.syn_acked = true;
        flow.snd.wnd = toe_base::window::WindowSize::new(20_000);
        flow.send_queue.push(SessionId(0), MemRange { offset: 0, len: queued }).expect("room");
        flow
    }

    /// RFC 1191 section 6.3, RFC 8201 section 4.
    #[test]
    fn a_larger_size_is_tried_ten_minutes_after_a_router_spoke() {
        let flow = lowered_with(20_000);
        for (secs, is_tried) in [(0, false), (299, false), (599, false), (601, true)] {
            assert_eq!(
                next_probe(&flow, Instant::from_millis(secs * 1000 + 1)).is_some(),
                is_tried,
                "{secs} s"
            );
        }
    }

    /// RFC 4821 section 7.4: three others have to come behind it, or only a time-out would tell that it was lost.
    #[test]
    fn a_probe_needs_others_behind_it() {
        let now = Instant::from_millis(700_000);
        let size = u32::from(next_probe(&lowered_with(20_000), now).expect("enough to send"));
        let enough = size + 3 * 900;
        assert_eq!(next_probe(&lowered_with(enough - 1), now), None);
        assert!(next_probe(&lowered_with(enough), now).is_some());
        let mut flow = lowered_with(20_000);
        flow.cc.cwnd = enough - 1;
        assert_eq!(next_probe(&flow, now), None, "the window would hold them back");
    }

    #[test]
    fn nothing_is_tried_while_something_is_missing() {
        let mut sent = SentPool::new(1);
        let now = Instant::from_millis(10_000);
        let mut flow = with_probe(&mut sent);
        flow.mtu.probe_end = None;
        flow.snd.wnd = toe_base::window::WindowSize::new(20_000);
        flow.board.mark_lost(&mut sent, |r| r.end == SeqNum::new(1000));
        assert_eq!(next_probe(&flow, now), None);
        flow.board.unmark_lost(&mut sent);
        flow.board.sack(&mut sent, SeqNum::new(1000), SeqNum::new(2400), |_| {});
        assert_eq!(next_probe(&flow, now), None);
    }
}
