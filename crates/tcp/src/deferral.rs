//! A listener that wants connections only once they have something to say (TCP_DEFER_ACCEPT, as Linux has it): the ACK that would
//! complete the handshake is passed over if nothing comes with it, and the peer's first bytes complete it instead. When the time is
//! over the SYN-ACK goes once more, and whatever answers that completes the handshake.

use crate::record::{OpeningPool, PathState, PeerTimer, Tcb};
use crate::segment::Segment;
use crate::state::TcpState;
use crate::{Tcp, rtt};
use toe_base::Instant;

/// Longest time that is counted: more is as much.
const SECS_MAX: u32 = 1 << 16;

/// The time rounded up to where a SYN-ACK that is not answered would go again: after 1, 3, 7, … seconds.
pub fn until(now: Instant, secs: u32) -> Instant {
    let secs = secs.min(SECS_MAX);
    let whole = (secs + 1).next_power_of_two() - 1;
    now.after_us(u64::from(whole) * 1_000_000)
}

/// Whether this segment, which acknowledges our SYN, is passed over. Nothing is sent to the peer then until the time is over.
pub fn passes_over(tcb: &mut Tcb, openings: &mut OpeningPool, now: Instant, segment: &Segment) -> bool {
    let is_bare = segment.len == 0 && !segment.flags.fin() && !segment.flags.syn();
    let opening = openings.taken_mut(&tcb.handshake.fast_open.opening);
    let deferral = opening.and_then(|opening| opening.deferral.as_mut());
    let Some(deferral) = deferral.filter(|deferral| is_bare && now < deferral.until) else {
        return false;
    };
    if tcb.state != TcpState::SynReceived || tcb.handshake.fast_open.early {
        return false;
    }
    deferral.is_heard = true;
    tcb.timers.peer = PeerTimer::Retransmit(deferral.until);
    // It counts from then on how often that is tried.
    tcb.timers.stalled_since = deferral.until;
    tcb.sending.timeouts = 0;
    true
}

/// The time is over: the SYN-ACK goes once more, and nothing of it was lost. `false`: it is no such time-out.
pub fn ends(tcb: &mut Tcb, path: &PathState, tcp: &mut Tcp, now: Instant) -> bool {
    if !was_heard(tcb, &tcp.openings) || tcb.state != TcpState::SynReceived || tcb.sending.timeouts > 0 {
        return false;
    }
    tcb.sending.board.mark_lost(&mut tcp.sent, |_| true);
    tcb.sending.timeouts = 1;
    tcb.timers.peer = PeerTimer::Retransmit(now.after_us(rtt::retransmit_us(tcb, path)));
    true
}

/// Whether the peer had answered the SYN-ACK long before the handshake was complete: what took so long says nothing of the path.
pub fn was_heard(tcb: &Tcb, openings: &OpeningPool) -> bool {
    openings.one(&tcb.handshake.fast_open.opening).deferral.is_some_and(|deferral| deferral.is_heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_rounded_up_to_a_retransmission() {
        let secs = |secs| until(Instant::ZERO, secs).as_micros() / 1_000_000;
        assert_eq!([1, 2, 3, 4, 7, 8, 30].map(secs), [1, 3, 3, 7, 7, 15, 31]);
        assert!(secs(u32::MAX) > 60_000);
    }
}
