//! What bounds a congestion window and what lets it grow, whatever the algorithm.

use toe_base::limits::WINDOW_MAX;
use toe_base::{Instant, SeqNum};

/// RFC 6928 section 2: ten segments, and no more bytes than ten of Ethernet's size.
pub fn initial_window(mss: u16) -> u32 {
    let mss = u32::from(mss);
    (10 * mss).min(14_600.max(2 * mss))
}

/// Windows in use stay far from half of the sequence space.
pub(crate) const CWND_MAX: u32 = WINDOW_MAX * 4;

/// What an ACK says to an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub now: Instant,
    /// Bytes newly acknowledged.
    pub acked: u32,
    pub mss: u32,
    pub srtt_us: u32,
    /// This ACK's own measurement.
    pub rtt_us: Option<u32>,
    pub una: SeqNum,
    pub nxt: SeqNum,
}
