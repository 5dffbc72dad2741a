//! Fast Open (RFC 7413) on one connection: the program's first bytes in the SYN, and what of them is taken.
//!
//! | | where |
//! |---|---|
//! | whether the SYN waits for bytes, and how many fit it | [`waits`], [`syn_len`], by [`super::output`] |
//! | bytes of a peer's SYN are the program's (section 4.2.2) | [`take_syn_text`] |
//! | a SYN-ACK that takes the bytes, or not (section 4.2.2) | [`super::segment_arrives`], `syn_sent` |
//! | cookies and limits | [`crate::control::fast_open`] |

use crate::open::mss_default;
use crate::record::{Opening, OpeningPool, SynText, Tcb};
use crate::scoreboard::SentPool;
use crate::state::TcpState;
use toe_wire::tcp::{FastOpenCookie, OPTIONS_LEN_MAX};

pub use crate::segment_arrives::take_syn_text;

/// The SYN asks for a cookie.
pub fn ask(tcb: &mut Tcb, openings: &mut OpeningPool) {
    if let Some(opening) = openings.one_mut(&mut tcb.handshake.fast_open.opening) {
        opening.option = Some(FastOpenCookie::REQUEST);
    }
}

/// A connection that has come in is opened so. One that is opened as most are needs nothing for it.
pub fn open_so(tcb: &mut Tcb, openings: &mut OpeningPool, opening: Opening) {
    if opening != Opening::default()
        && let Some(slot) = openings.one_mut(&mut tcb.handshake.fast_open.opening)
    {
        *slot = opening;
    }
}

/// The SYN will have the program's first bytes, as many as a segment holds that the server took last time (RFC 7413
/// section 4.1.3), with room for all options that somebody on the way may add.
pub fn wait_for_bytes(tcb: &mut Tcb, openings: &mut OpeningPool, cookie: FastOpenCookie, mss: Option<u16>) {
    let most = mss.unwrap_or_else(|| mss_default(tcb.is_v4)).min(tcb.snd.mss);
    let Some(opening) = openings.one_mut(&mut tcb.handshake.fast_open.opening) else { return };
    opening.option = Some(cookie);
    opening.room = most.saturating_sub(OPTIONS_LEN_MAX as u16);
    tcb.handshake.fast_open.syn_text = SynText::Awaited;
}

/// Whether the SYN waits for the program's first bytes.
pub fn waits(tcb: &Tcb) -> bool {
    tcb.handshake.fast_open.syn_text == SynText::Awaited
        && tcb.sending.queue.is_empty()
        && !tcb.snd.fin.is_queued()
}

/// Bytes that go in the first SYN.
pub fn syn_len(tcb: &Tcb, opening: &Opening) -> u32 {
    // Its link may carry less by now than when it was opened.
    let carried = tcb.snd.mss.saturating_sub(OPTIONS_LEN_MAX as u16);
    tcb.sending.queue.len().min(u32::from(opening.room.min(carried)))
}

/// Whether the SYN, or the SYN-ACK, is to be sent again: bytes that went with it or behind it wait for the handshake
/// (RFC 7413 section 4.2.2: what is sent again has none).
pub fn is_syn_lost(tcb: &Tcb, sent: &SentPool) -> bool {
    tcb.sending.board.first_lost(sent).is_some_and(|range| range.start == tcb.handshake.iss)
}

/// Whether nothing at all was heard of the peer on a connection whose SYN had the option: after the SYN's time-out; and
/// after two of what followed, should something on the way let the handshake through and nothing else (RFC 7413 section
/// 7.1). Said once.
pub fn is_unanswered(tcb: &Tcb, openings: &mut OpeningPool) -> bool {
    let Some(opening) = openings.taken_mut(&tcb.handshake.fast_open.opening) else { return false };
    let is_silent = match tcb.state {
        TcpState::SynSent => tcb.sending.timeouts >= 1,
        TcpState::Established | TcpState::FinWait1 => {
            opening.sent > 0 && tcb.sending.timeouts >= 2 && tcb.rcv.nxt == tcb.handshake.irs.plus(1)
        }
        _ => false,
    };
    let is_ours = opening.option.is_some() && !tcb.handshake.fast_open.was_passive;
    is_ours && is_silent && !core::mem::replace(&mut opening.was_lost, true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::send_queue::ExtentPool;
    use toe_abi::entry::MemRange;
    use toe_base::SessionId;

    #[test]
    fn a_syn_has_no_more_than_its_link_carries_by_then() {
        let (mut tcb, mut openings) = (Tcb::vacant(), OpeningPool::of_smallest(1));
        tcb.snd.mss = 1460;
        wait_for_bytes(&mut tcb, &mut openings, FastOpenCookie::REQUEST, Some(1460));
        tcb.sending
            .queue
            .push(&mut ExtentPool::new(1), SessionId(1), MemRange { offset: 0, len: 2000 })
            .expect("room");
        let opening = openings.one(&tcb.handshake.fast_open.opening);
        assert_eq!(syn_len(&tcb, &opening), 1420);
        tcb.snd.mss = 1000;
        assert_eq!(syn_len(&tcb, &opening), 960);
    }
}
