//! How fast bytes arrive at the peer (draft-cheng-iccrg-delivery-rate-estimation), and pacing.
//! [`stamp`] when a stretch goes out, [`Sample`] when it is delivered.

use crate::record::{DeliveryRate, Pacing, Particulars, ParticularsPool, PathState, Tcb};
use crate::scoreboard::{DeliveryStamp, Losses, SentRange};
use toe_base::Instant;

/// What to note of `len` bytes that go out now.
pub fn stamp(tcb: &mut Tcb, path: &mut PathState, now: Instant, len: u32) -> DeliveryStamp {
    if tcb.pipe(path) == 0 {
        // Nothing is out: a new flight begins, and the time before it says nothing.
        path.rate.first_sent_at = now;
        path.rate.delivered_at = now;
    }
    DeliveryStamp {
        delivered: path.rate.delivered,
        delivered_at: path.rate.delivered_at,
        first_sent_at: path.rate.first_sent_at,
        in_flight: tcb.pipe(path).saturating_add(len),
        lost: tcb.sending.board.lost_ever(),
        app_limited: is_app_limited(&path.rate),
    }
}

/// The program has nothing more to send while the window would allow it (section 3.3).
pub fn note_app_limited(tcb: &mut Tcb, path: &mut PathState) {
    let until = (path.rate.delivered + u64::from(tcb.pipe(path))).max(1);
    path.rate.app_limited = true;
    path.rate.app_limited_until = until as u32;
}

/// Whether what is sent now is limited by the program. That lasts until something is delivered that was sent later.
pub const fn is_app_limited(rate: &DeliveryRate) -> bool {
    rate.app_limited
}

/// The most recently sent of what one ACK delivered.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    latest: Option<(Instant, DeliveryStamp)>,
}

impl Sample {
    pub fn take(&mut self, range: &SentRange) {
        if self.latest.is_none_or(|(_, stamp)| range.stamp.delivered >= stamp.delivered) {
            self.latest = Some((range.sent_at, range.stamp));
        }
    }

    /// `bytes` were delivered by this ACK. `lost_ever`: bytes that were ever marked lost.
    pub fn finish(
        self,
        rate: &mut DeliveryRate,
        bytes: u32,
        lost_ever: u32,
        min_rtt_us: u32,
        now: Instant,
    ) -> RateSample {
        rate.delivered += u64::from(bytes);
        if bytes > 0 {
            rate.delivered_at = now;
        }
        let beyond = (rate.delivered as u32).wrapping_sub(rate.app_limited_until) as i32;
        rate.app_limited &= beyond <= 0;
        let Some((sent_at, stamp)) = self.latest else { return RateSample::default() };
        rate.first_sent_at = sent_at;
        let send_us = sent_at.since_us(stamp.first_sent_at);
        let ack_us = now.since_us(stamp.delivered_at);
        let interval_us = send_us.max(ack_us);
        let mut result = RateSample {
            bw: 0,
            delivered: (rate.delivered - stamp.delivered).min(u64::from(u32::MAX)) as u32,
            lost: lost_ever.wrapping_sub(stamp.lost),
            tx_in_flight: stamp.in_flight,
            prior_delivered: stamp.delivered,
            app_limited: stamp.app_limited,
        };
        // Shorter than any round trip: ACKs that came in a bunch.
        if interval_us == 0 || interval_us < u64::from(min_rtt_us) {
            return result;
        }
        let sample = (rate.delivered - stamp.delivered).saturating_mul(1_000_000) / interval_us;
        result.bw = sample;
        // What a program held back says only that the path can do at least so much.
        if !stamp.app_limited || sample >= rate.latest {
            rate.latest = sample;
            rate.latest_app_limited = stamp.app_limited;
        }
        result
    }
}

/// What one ACK tells of the rate at which its path delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateSample {
    /// Bytes a second; 0: the ACKs came too close together to tell.
    pub bw: u64,
    /// Bytes delivered, and lost, since the newest of what this ACK delivers was sent.
    pub delivered: u32,
    pub lost: u32,
    /// Bytes in the network when that was sent, and delivered by then.
    pub tx_in_flight: u32,
    pub prior_delivered: u64,
    pub app_limited: bool,
}

impl RateSample {
    /// Too much was lost for what was in the network. A peer without SACK tells of one loss a round trip only.
    pub fn is_lossy(&self, has_sack: bool) -> bool {
        Losses::excess_of(self.lost, self.tx_in_flight) || self.lost > 0 && !has_sack
    }
}

/// Largest and smallest amount that leaves at once when pacing: a millisecond's worth between these.
const QUANTUM_MAX: u64 = 64 << 10;
const QUANTUM_MIN_SEGMENTS: u32 = 2;
/// What a paced sender makes up for in any case: timers are as late as this. One that was idle, or waited for ACKs, makes up for no more.
const LATE_MIN_US: u64 = 2_000;

/// Bytes that leave at once at this rate (draft-ietf-ccwg-bbr-05 section 5.6.3).
pub fn quantum(pacing: u64, mss: u32) -> u32 {
    ((pacing / 1000).min(QUANTUM_MAX) as u32).max(QUANTUM_MIN_SEGMENTS * mss)
}

/// Bytes that pacing lets go now.
pub fn paced_room(pacing: &Pacing, now: Instant, mss: u32) -> u32 {
    match pacing.rate {
        0 => u32::MAX,
        _ if now < pacing.next_send_at => 0,
        rate => quantum(rate, mss),
    }
}

/// `len` bytes went out: when the next may. A sender that pacing held back and that is called late makes up for half a round trip: on a busy
/// machine that may be tens of ms, and whoever loses them each time takes his own lateness for the path's bandwidth.
pub fn note_paced(tcb: &Tcb, path: &PathState, pool: &mut ParticularsPool, now: Instant, len: u32) {
    let Some(Particulars { pacing, deadlines, .. }) = pool.taken_mut(&tcb.setup.particulars) else { return };
    let Some(us) = (u64::from(len) * 1_000_000).checked_div(pacing.rate) else { return };
    pacing.is_late |= deadlines.pace <= now;
    let late_us = if pacing.is_late { LATE_MIN_US.max(u64::from(path.rtt.srtt_us) / 2) } else { LATE_MIN_US };
    let earliest = Instant::from_micros(now.as_micros().saturating_sub(late_us));
    pacing.next_send_at = pacing.next_send_at.max(earliest).after_us(us);
    pacing.is_late &= pacing.next_send_at < now;
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// A sender of a million bytes a second, over 40 ms, whose next segment is due at 100 ms.
    fn paced() -> (Tcb, PathState, ParticularsPool) {
        let (mut tcb, mut path, mut pool) =
            (Tcb::vacant(), PathState::default(), ParticularsPool::of_smallest(1));
        path.rtt.srtt_us = 40_000;
        let next_send_at = Instant::from_millis(100);
        let pacing = Pacing { rate: 1_000_000, next_send_at, ..Pacing::default() };
        pool.one_mut(&mut tcb.setup.particulars).expect("a place").pacing = pacing;
        (tcb, path, pool)
    }

    /// Segments that go out at once at that time.
    fn at_once(tcb: &Tcb, path: &PathState, pool: &mut ParticularsPool, now: Instant) -> u32 {
        let mut segments = 0;
        while paced_room(&pool.one(&tcb.setup.particulars).pacing, now, MSS) > 0 {
            note_paced(tcb, path, pool, now, MSS);
            segments += 1;
        }
        segments
    }

    #[test]
    fn who_is_called_late_makes_up_for_half_a_round_trip_and_who_was_idle_does_not() {
        for (late_ms, is_held_back, segments) in
            [(0, true, 1), (10, true, 11), (70, true, 21), (70, false, 3)]
        {
            let (tcb, path, mut pool) = paced();
            if is_held_back {
                let particulars = pool.taken_mut(&tcb.setup.particulars).expect("paced");
                particulars.deadlines.pace = Instant::from_millis(100);
            }
            let now = Instant::from_millis(100 + late_ms);
            assert_eq!(
                at_once(&tcb, &path, &mut pool, now),
                segments,
                "{late_ms} ms, held back: {is_held_back}"
            );
            let pacing = pool.one(&tcb.setup.particulars).pacing;
            assert!(!pacing.is_late && pacing.next_send_at > now);
        }
    }
}
