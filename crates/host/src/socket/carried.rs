//! What went past the engine, counted as TCP_INFO shows it.

use std::time::Duration;
use toe_abi::tcp_info::FlowDetail;

/// What a channel has carried, in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    pub bytes: u64,
    pub pieces: u32,
}

/// When a count was last seen to change: a clock that is read when somebody asks, not for every message.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastSeen {
    bytes: u64,
    at: Duration,
}

impl LastSeen {
    /// Milliseconds since it changed; `None`: it never did.
    pub fn ago_ms(&mut self, bytes: u64, now: Duration) -> Option<u32> {
        if bytes != self.bytes {
            *self = LastSeen { bytes, at: now };
        }
        (bytes > 0).then(|| u32::try_from((now - self.at).as_millis()).unwrap_or(u32::MAX))
    }
}

/// What one direction of a stream has carried, and when that was last seen to change: for TCP_INFO.
#[derive(Clone, Copy, Debug, Default)]
pub struct CarriedCount {
    /// Entries with data.
    pieces: u32,
    last_seen: LastSeen,
}

impl CarriedCount {
    pub fn count(&mut self) {
        self.pieces = self.pieces.wrapping_add(1);
    }

    /// The entries had so many `bytes`.
    pub fn of(&self, bytes: u64) -> Carried {
        Carried { bytes, pieces: self.pieces }
    }

    /// Milliseconds since their bytes were seen to change; `None`: they never did.
    pub fn ago_ms(&mut self, bytes: u64, now: Duration) -> Option<u32> {
        self.last_seen.ago_ms(bytes, now)
    }
}

/// Adds what was carried past the engine: what Linux's loopback shows, where every piece is a segment and is acknowledged at
/// once.
pub fn add_carried(detail: FlowDetail, out: Carried, into: Carried) -> FlowDetail {
    let pieces = out.pieces.wrapping_add(into.pieces);
    FlowDetail {
        bytes_sent: detail.bytes_sent + out.bytes,
        bytes_acked: detail.bytes_acked + out.bytes,
        bytes_received: detail.bytes_received + into.bytes,
        data_segs_out: detail.data_segs_out.wrapping_add(out.pieces),
        data_segs_in: detail.data_segs_in.wrapping_add(into.pieces),
        segs_out: detail.segs_out.wrapping_add(pieces),
        segs_in: detail.segs_in.wrapping_add(pieces),
        delivered: detail.delivered.wrapping_add(out.pieces),
        ..detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_channel_carries_is_added_to_what_the_engine_counts() {
        let engine = FlowDetail { bytes_sent: 10, data_segs_in: 1, segs_in: 4, ..FlowDetail::default() };
        let (out, into) = (Carried { bytes: 300, pieces: 3 }, Carried { bytes: 50, pieces: 5 });
        let sum = add_carried(engine, out, into);
        assert_eq!((sum.bytes_sent, sum.bytes_acked, sum.bytes_received), (310, 300, 50));
        assert_eq!((sum.data_segs_out, sum.data_segs_in, sum.delivered), (3, 6, 3));
        assert_eq!((sum.segs_out, sum.segs_in), (8, 12));
    }

    #[test]
    fn a_count_is_dated_when_it_is_seen_to_change() {
        let mut seen = LastSeen::default();
        let at = Duration::from_millis;
        assert_eq!(seen.ago_ms(0, at(5)), None);
        assert_eq!(seen.ago_ms(9, at(10)), Some(0));
        assert_eq!(seen.ago_ms(9, at(25)), Some(15));
        assert_eq!(seen.ago_ms(10, at(30)), Some(0));
    }
}
