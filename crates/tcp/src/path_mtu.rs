//! How large a segment the path takes, where that is less than both ends would: what ICMP says (RFC 1191, RFC 8201), and where
//! ICMP does not come through, what probes and silence say (RFC 4821).
//!
//! ```text
//!            snd.mss                search.high        snd.mss_max
//!    ───────────┼────────────────────────┼─────────────────┤ bytes of payload
//!     gets through│  a probe lies here   │ was lost, or    │ link and peer
//!                 │                      │ ICMP said so    │ take no more
//! ```
//!
//! A connection whose segments have always got through has nothing to do here.

use crate::record::{Particulars, ParticularsPool, PathState, Phase, Search, Tcb};
use crate::{Tcp, outgoing};
use toe_base::Instant;

/// Payload that is sent when large segments seem to vanish (RFC 4821 section 7.2: a path MTU of 1024 bytes).
const MSS_BASE: u16 = 1024 - 40;
/// The same over IPv6, where nothing below 1280 bytes is needed.
const MSS_BASE_V6: u16 = 1280 - 60;
/// Payload that ICMP cannot push a segment below (RFC 791's 576 bytes; less would be an attack, RFC 5927 section 7.2).
pub const MSS_LEAST: u16 = 536;
/// Time-outs in a row after which large segments are taken to vanish (RFC 4821 section 7.7).
const SILENT_TIMEOUTS: u8 = 3;
/// A search this close is at its end.
const CLOSE_ENOUGH: u16 = 16;
/// A larger path MTU is looked for after this (RFC 1191 section 6.3, RFC 8201 section 4).
const SEARCH_AGAIN_US: u64 = 600_000_000;

/// A router says that datagrams with `mss` bytes of payload are the largest that it forwards.
pub fn lowered(tcb: &mut Tcb, tcp: &mut Tcp, mss: u16, now: Instant) {
    let mss = mss.max(MSS_LEAST);
    if mss >= tcb.snd.mss {
        return;
    }
    tcb.snd.mss = mss;
    if let Some(Particulars { search, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars) {
        search.high = mss;
        search.at = now.after_us(SEARCH_AGAIN_US);
        search.probe_size = 0;
    }
    // What was larger is gone, and that is no congestion (RFC 1191 section 6.4): it goes again in the size that fits.
    tcb.sending.board.mark_lost(&mut tcp.sent, |_| true);
}

/// The retransmission timer ran out once more.
pub fn timed_out(tcb: &mut Tcb, pool: &mut ParticularsPool, now: Instant) {
    if let Some(Particulars { search, .. }) = pool.taken_mut(&tcb.setup.particulars) {
        search.probe_size = 0;
    }
    if !tcb.state.is_synchronized() {
        // A SYN is no large segment.
        return;
    }
    let base = if tcb.is_v4 { MSS_BASE } else { MSS_BASE_V6 } - outgoing::options_len(tcb);
    if tcb.sending.timeouts == SILENT_TIMEOUTS
        && tcb.snd.mss > base
        && !tcb.is_local
        && let Some(Particulars { search, .. }) = pool.one_mut(&mut tcb.setup.particulars)
    {
        search.high = tcb.snd.mss - 1;
        search.at = now;
        tcb.snd.mss = base;
    }
}

/// The size of a probe that could go now.
pub fn next_probe(tcb: &Tcb, path: &PathState, pool: &ParticularsPool, now: Instant) -> Option<u16> {
    if tcb.snd.mss_max <= tcb.snd.mss {
        return None;
    }
    let search = pool.one(&tcb.setup.particulars).search;
    let is_idle =
        path.cc.phase == Phase::Open && tcb.sending.board.lost() == 0 && tcb.sending.board.sacked() == 0;
    if search.probe_size > 0 || now < search.at || !is_idle {
        return None;
    }
    let high = if search.high > tcb.snd.mss + CLOSE_ENOUGH { search.high } else { tcb.snd.mss_max };
    let size = tcb.snd.mss + (high - tcb.snd.mss).div_ceil(2);
    let unsent = tcb.queue_end().distance_from(tcb.snd.nxt);
    let room = tcb.snd.wnd.bytes().min(path.cc.cwnd).saturating_sub(tcb.outstanding());
    // Others around it, so that its loss is noticed at once (RFC 4821 section 7.4).
    let with_others = u32::from(size) + 3 * u32::from(tcb.snd.mss);
    (unsent >= with_others && room >= with_others).then_some(size)
}

/// It went out, and ends at `snd.nxt`.
pub fn probe_sent(tcb: &mut Tcb, pool: &mut ParticularsPool, size: u16) {
    let Some(Particulars { search, .. }) = pool.one_mut(&mut tcb.setup.particulars) else { return };
    search.probe_end = tcb.snd.nxt;
    search.probe_size = size;
    if size > search.high {
        // A new search.
        search.high = tcb.snd.mss_max;
    }
}

/// Something was acknowledged.
pub fn acknowledged(tcb: &mut Tcb, pool: &mut ParticularsPool, now: Instant) {
    let Some(Particulars { search, .. }) = pool.taken_mut(&tcb.setup.particulars) else { return };
    if search.probe_size > 0 && tcb.snd.una.at_or_after(search.probe_end) {
        tcb.snd.mss = core::mem::take(&mut search.probe_size).min(tcb.snd.mss_max);
        rest_if_found(tcb, search, now);
    }
}

/// Something is newly lost. Whether it is the probe alone: then the path is too narrow for it, not congested (RFC 4821
/// section 7.6.2).
pub fn is_probe_alone_lost(tcb: &Tcb, tcp: &mut Tcp, now: Instant) -> bool {
    let Some(Particulars { search, .. }) = tcp.particulars.taken_mut(&tcb.setup.particulars) else {
        return false;
    };
    let (size, end) = (search.probe_size, search.probe_end);
    let lost = tcb.sending.board.first_lost(&tcp.sent).filter(|lost| lost.len() == tcb.sending.board.lost());
    if size == 0 || lost.is_none_or(|lost| lost.end != end || lost.len() != u32::from(size)) {
        return false;
    }
    search.probe_size = 0;
    search.high = size - 1;
    rest_if_found(tcb, search, now);
    true
}

/// The search is at its end for a while.
fn rest_if_found(tcb: &Tcb, search: &mut Search, now: Instant) {
    let is_found = search.high <= tcb.snd.mss + CLOSE_ENOUGH;
    if is_found && search.high < tcb.snd.mss_max {
        search.at = now.after_us(SEARCH_AGAIN_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scoreboard::SentRange;
    use crate::state::TcpState;
    use toe_base::SeqNum;

    fn pools() -> Tcp {
        Tcp::new(1, [0; 16], crate::config::TcpConfig::default())
    }

    fn search(tcb: &Tcb, tcp: &Tcp) -> Search {
        tcp.particulars.one(&tcb.setup.particulars).search
    }

    /// A sender of four segments of 1000 bytes, the second of them a probe of 1400, and the rest of a large window.
    fn with_probe(tcp: &mut Tcp) -> (Tcb, PathState) {
        let mut tcb = Tcb::vacant();
        let mut path = PathState::default();
        tcb.snd.mss = 1000;
        tcb.snd.mss_max = 1460;
        path.cc.cwnd = 20_000;
        for end in [1000, 2400, 3400, 4400] {
            let range = SentRange { start: tcb.snd.nxt, end: SeqNum::new(end), ..SentRange::default() };
            tcb.sending
                .board
                .sent(&mut tcp.sent, SentRange { sent_at: Instant::from_millis(u64::from(end)), ..range });
            tcb.snd.nxt = range.end;
            if end == 2400 {
                probe_sent(&mut tcb, &mut tcp.particulars, 1400);
            }
        }
        (tcb, path)
    }

    #[test]
    fn a_lost_probe_is_told_from_a_loss() {
        let mut tcp = pools();
        let now = Instant::from_millis(10_000);
        let (mut tcb, _) = with_probe(&mut tcp);
        tcb.sending.board.mark_lost(&mut tcp.sent, |r| r.end == SeqNum::new(2400));
        assert!(is_probe_alone_lost(&tcb, &mut tcp, now));
        let Search { high, probe_size, .. } = search(&tcb, &tcp);
        assert_eq!((high, probe_size), (1399, 0), "the path takes less");
        assert!(!is_probe_alone_lost(&tcb, &mut tcp, now), "known by now");

        let mut tcp = pools();
        let (mut tcb, _) = with_probe(&mut tcp);
        tcb.sending.board.mark_lost(&mut tcp.sent, |r| r.end.at_or_before(SeqNum::new(3400)));
        assert!(!is_probe_alone_lost(&tcb, &mut tcp, now), "the first was lost, too");
        tcb.sending.board.unmark_lost(&mut tcp.sent);
        tcb.sending.board.mark_lost(&mut tcp.sent, |r| r.end.after(SeqNum::new(1000)));
        assert!(!is_probe_alone_lost(&tcb, &mut tcp, now), "others were lost, too");
    }

    /// RFC 1191 section 3, RFC 8201 section 4, RFC 5927 section 7.2.
    #[test]
    fn what_a_router_says_makes_nothing_larger_and_not_much_smaller() {
        for (said, mss) in [(1400, 1000), (1000, 1000), (900, 900), (20, 536)] {
            let mut tcp = pools();
            let (mut tcb, _) = with_probe(&mut tcp);
            lowered(&mut tcb, &mut tcp, said, Instant::from_millis(1));
            assert_eq!(tcb.snd.mss, mss, "{said}");
            assert_eq!(tcb.sending.board.lost() > 0, mss < 1000, "{said}");
        }
    }

    /// RFC 4821 section 7.2; over IPv6 nothing below 1280 bytes is needed (RFC 8201 section 4).
    #[test]
    fn silence_leads_to_a_size_that_every_path_takes() {
        for (is_v4, packet) in [(true, 1024 - 40), (false, 1280 - 60)] {
            let mut tcp = pools();
            let (mut tcb, _) = with_probe(&mut tcp);
            tcb.is_v4 = is_v4;
            tcb.is_local = false;
            tcb.setup.negotiated.timestamps = Some(crate::record::TimestampUse::default());
            tcb.snd.mss = 1440;
            tcb.sending.timeouts = SILENT_TIMEOUTS;
            timed_out(&mut tcb, &mut tcp.particulars, Instant::from_millis(1));
            assert_eq!(tcb.snd.mss, 1440, "a SYN says nothing of large segments");
            tcb.state = TcpState::Established;
            tcb.sending.timeouts = SILENT_TIMEOUTS - 1;
            timed_out(&mut tcb, &mut tcp.particulars, Instant::from_millis(1));
            assert_eq!(tcb.snd.mss, 1440);
            tcb.sending.timeouts += 1;
            timed_out(&mut tcb, &mut tcp.particulars, Instant::from_millis(1));
            assert_eq!(tcb.snd.mss, packet - 12, "timestamps take their part");
        }
    }

    /// A sender with so much to send that was told of a path of 900 bytes, all of it answered.
    fn lowered_with(queued: u32) -> (Tcb, PathState, Tcp) {
        use toe_abi::entry::MemRange;
        use toe_base::SessionId;
        let mut tcp = pools();
        let (mut tcb, path) = with_probe(&mut tcp);
        lowered(&mut tcb, &mut tcp, 900, Instant::from_millis(1));
        tcb.sending.board.clear(&mut tcp.sent);
        tcb.snd.una = tcb.snd.nxt;
        tcb.snd.syn_acked = true;
        tcb.snd.wnd = toe_base::window::WindowSize::new(20_000);
        let range = MemRange { offset: 0, len: queued };
        tcb.sending.queue.push(&mut tcp.extents, SessionId(0), range).expect("room");
        (tcb, path, tcp)
    }

    /// RFC 1191 section 6.3, RFC 8201 section 4.
    #[test]
    fn a_larger_size_is_tried_ten_minutes_after_a_router_spoke() {
        let (tcb, path, tcp) = lowered_with(20_000);
        for (secs, is_tried) in [(0, false), (299, false), (599, false), (601, true)] {
            let now = Instant::from_millis(secs * 1000 + 1);
            assert_eq!(next_probe(&tcb, &path, &tcp.particulars, now).is_some(), is_tried, "{secs} s");
        }
    }

    /// RFC 4821 section 7.4: three others have to come behind it, or only a time-out would tell that it was lost.
    #[test]
    fn a_probe_needs_others_behind_it() {
        let now = Instant::from_millis(700_000);
        let next = |(tcb, path, tcp): (Tcb, PathState, Tcp)| next_probe(&tcb, &path, &tcp.particulars, now);
        let size = u32::from(next(lowered_with(20_000)).expect("enough to send"));
        let enough = size + 3 * 900;
        assert_eq!(next(lowered_with(enough - 1)), None);
        assert!(next(lowered_with(enough)).is_some());
        let (tcb, mut path, tcp) = lowered_with(20_000);
        path.cc.cwnd = enough - 1;
        assert_eq!(next((tcb, path, tcp)), None, "the window would hold them back");
    }

    #[test]
    fn nothing_is_tried_while_something_is_missing() {
        let mut tcp = pools();
        let now = Instant::from_millis(10_000);
        let (mut tcb, path) = with_probe(&mut tcp);
        tcp.particulars.one_mut(&mut tcb.setup.particulars).expect("a place").search.probe_size = 0;
        tcb.snd.wnd = toe_base::window::WindowSize::new(20_000);
        tcb.sending.board.mark_lost(&mut tcp.sent, |r| r.end == SeqNum::new(1000));
        assert_eq!(next_probe(&tcb, &path, &tcp.particulars, now), None);
        tcb.sending.board.unmark_lost(&mut tcp.sent);
        tcb.sending.board.sack(&mut tcp.sent, SeqNum::new(1000), SeqNum::new(2400), |_| {});
        assert_eq!(next_probe(&tcb, &path, &tcp.particulars, now), None);
    }
}
