//! When something goes out, or not, for the bytes of either direction. One part of the record ([`super::Tcb`]); [`crate::output`] and
//! [`crate::segment_arrives`] work on it.

use crate::pool::PoolSlot;
use toe_base::SeqNum;

/// What holds back less than a segment (RFC 9293 section 3.7.4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nagle {
    /// One past the last segment that went out less than full (Minshall's variant of Nagle's algorithm).
    pub small: SeqNum,
    /// TCP_NODELAY: that does not hold it back.
    pub no_delay: bool,
    /// TCP_CORK: it waits for more.
    pub cork: bool,
    /// The last `Send` said that more will follow at once.
    pub more: bool,
}

/// What a timer wants sent: a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendDue(u8);

impl SendDue {
    /// A window probe.
    pub const WINDOW_PROBE: SendDue = SendDue(1);
    /// A keepalive probe.
    pub const KEEPALIVE: SendDue = SendDue(2);
    /// The tail again, or a new segment, to learn of a loss there (RFC 8985 section 7).
    pub const TAIL_PROBE: SendDue = SendDue(4);
    /// What [`Nagle`] held back: the cork timer ran out.
    pub const UNCORKED: SendDue = SendDue(8);

    pub const fn has(self, one: SendDue) -> bool {
        self.0 & one.0 != 0
    }

    pub const fn add(&mut self, one: SendDue) {
        self.0 |= one.0;
    }

    pub const fn remove(&mut self, one: SendDue) {
        self.0 &= !one.0;
    }
}

/// When ACKs go out (RFC 5681 section 4.2), and what they tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckPolicy {
    /// Last.ACK.sent of RFC 7323: `rcv.nxt` when an ACK last went out.
    pub last_sent: SeqNum,
    /// Where [`super::ReportPool`] has what ACKs tell of beside `rcv.nxt`, once there is something.
    pub reports: PoolSlot,
    /// One must go out now.
    pub now: bool,
    /// Duplicate ACKs owed: one for each segment that came out of order, however many came in one batch. The peer
    /// counts them (RFC 5681 section 4.2).
    pub duplicates: u8,
    /// ACKs still to be sent at once, while the peer is in slow start.
    pub quick: u8,
}

impl AckPolicy {
    /// Duplicates that may be owed: more tell the peer nothing new.
    const DUPLICATES_MAX: u8 = 16;

    /// Something came out of order.
    pub fn owe_duplicate(&mut self) {
        self.duplicates = self.duplicates.saturating_add(1).min(Self::DUPLICATES_MAX);
    }
}
