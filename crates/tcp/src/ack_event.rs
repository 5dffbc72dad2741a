//! What one ACK brought: to loss recovery, congestion control and the round trip.

use crate::rate::RateSample;

/// What one ACK brought, after the scoreboard has taken it.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckEvent {
    /// Bytes that `snd.una` went forward by.
    pub acked: u32,
    /// Bytes that the peer is newly known to have, in order or not.
    pub delivered: u32,
    /// Some of them had been sent once only, and before the present phase began.
    pub originals: bool,
    /// Bytes that it got twice (D-SACK).
    pub duplicated: u32,
    /// A duplicate ACK by RFC 5681 section 2.
    pub is_duplicate: bool,
    /// Bytes in the network before it came, and not cumulatively acknowledged.
    pub pipe_before: u32,
    pub outstanding_before: u32,
    /// [`crate::scoreboard::Scoreboard::lost_ever`] before it came.
    pub lost_before: u32,
    pub rtt_us: Option<u32>,
    pub sample: RateSample,
    /// TSecr.
    pub echo: Option<u32>,
    pub ece: bool,
}

/// Round trips of what one ACK delivered and that was sent once (Karn, RFC 6298 section 3).
#[derive(Clone, Copy, Debug, Default)]
pub struct RttSample {
    /// Of the first byte: with the peer's delay of its ACK, as the time-out needs it.
    pub first: Option<u32>,
    /// Of the last one: closest to the path's own.
    pub latest: Option<u32>,
}

impl RttSample {
    pub(crate) fn take(&mut self, us: u64, in_order: bool) {
        let us = us.min(u64::from(u32::MAX)) as u32;
        if in_order || self.first.is_none() {
            self.first.get_or_insert(us);
        }
        self.latest = Some(us);
    }
}
