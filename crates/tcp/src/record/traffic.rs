//! What went over a connection so far, and when: for reports (`toe ss -i`, TCP_INFO). Nothing in this crate depends on it.
//! The engine does: by `sent` it charges a turn, and by `acked` and `received` both ends of a channel know what was read and written before it.

use toe_base::Instant;

/// Counted where segments go out and come in. What TCP_INFO has as 32 bits has no more here, and wraps as it does in Linux. No bytes are left
/// between them, as each record has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct Traffic {
    /// Bytes of text, those sent again included.
    pub sent: u64,
    pub acked: u64,
    pub received: u64,
    pub segments_out: u32,
    pub segments_in: u32,
    /// Of these the ones with text.
    pub text_segments_out: u32,
    pub text_segments_in: u32,
    /// When text was last sent, and last received; when it began, before there was some.
    pub sent_at: Instant,
    pub received_at: Instant,
    pub limits: Limits,
}

/// What did not go as it should, of a connection that is no longer without trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TroubleCounts {
    /// Bytes of text, segments of text, and units that went again.
    pub resent: u64,
    pub resent_segments: u32,
    pub retransmits: u32,
    /// Delivered segments whose ACK carried ECE, and received ones with a mark of congestion.
    pub delivered_marked: u32,
    pub received_marked: u32,
    /// Segments that came out of order; D-SACK blocks; segments of ours that others overtook.
    pub out_of_order: u32,
    pub dsack_dups: u32,
    pub overtaken: u32,
    pub time_outs: TimeOuts,
}

impl TroubleCounts {
    /// A unit of `len` bytes goes out again, as segments of `mss`.
    pub fn note_resent(&mut self, len: u32, mss: u16) {
        self.retransmits = self.retransmits.saturating_add(1);
        if len > 0 {
            self.resent += u64::from(len);
            self.resent_segments = self.resent_segments.wrapping_add(segments(len, mss));
        }
    }
}

impl Traffic {
    /// A unit of `len` bytes goes out, as segments of `mss`.
    pub fn note_sent(&mut self, now: Instant, len: u32, mss: u16) {
        let segments = segments(len, mss);
        self.segments_out = self.segments_out.wrapping_add(segments);
        if len == 0 {
            return;
        }
        self.sent += u64::from(len);
        self.text_segments_out = self.text_segments_out.wrapping_add(segments);
        self.sent_at = now;
    }

    /// A unit with `len` bytes has come in.
    pub fn note_received(&mut self, now: Instant, len: u32, mss: u16) {
        let segments = segments(len, mss);
        self.segments_in = self.segments_in.wrapping_add(segments);
        if len > 0 {
            self.text_segments_in = self.text_segments_in.wrapping_add(segments);
            self.received_at = now;
        }
    }
}

/// As how many segments a unit goes over a link.
fn segments(len: u32, mss: u16) -> u32 {
    // Most are one, and that needs no division.
    if len <= u32::from(mss) { 1 } else { len.div_ceil(u32::from(mss).max(1)) }
}

/// What a connection with something to send waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It has nothing to send.
    #[default]
    Nothing,
    /// For the network.
    Path,
    /// For the peer's window.
    Window,
}

/// How long it was busy, and how long of that the peer's window held it up (tcp_info: busy_time, rwnd_limited).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    wait: Wait,
    since: Instant,
    /// Clocks that run while it is busy, and while the window holds it up.
    busy: Instant,
    window: Instant,
}

impl Limits {
    /// It waits for this from now on.
    pub fn note(&mut self, now: Instant, wait: Wait) {
        if self.wait != wait {
            let (busy, window) = (self.busy_us(now), self.window_us(now));
            let (busy, window) = (Instant::from_micros(busy), Instant::from_micros(window));
            *self = Limits { wait, since: now, busy, window };
        }
    }

    pub fn busy_us(&self, now: Instant) -> u64 {
        self.busy.as_micros() + if self.wait == Wait::Nothing { 0 } else { now.since_us(self.since) }
    }

    pub fn window_us(&self, now: Instant) -> u64 {
        self.window.as_micros() + if self.wait == Wait::Window { now.since_us(self.since) } else { 0 }
    }
}

/// Time-outs of the whole connection, and how long it took until they were overcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeOuts {
    pub count: u16,
    pub overcome: u16,
    us: u64,
    /// Since when there are some that are not.
    since: Option<Instant>,
}

impl TimeOuts {
    pub fn note(&mut self, now: Instant) {
        self.count = self.count.saturating_add(1);
        self.since.get_or_insert(now);
    }

    /// Something was acknowledged.
    pub fn overcome(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.us += now.since_us(since);
            self.overcome = self.overcome.saturating_add(1);
        }
    }

    pub fn us(&self, now: Instant) -> u64 {
        self.us + self.since.map_or(0, |since| now.since_us(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_for_what_was_waited_for() {
        let mut limits = Limits::default();
        let at = Instant::from_millis;
        limits.note(at(10), Wait::Path);
        limits.note(at(12), Wait::Path);
        limits.note(at(15), Wait::Window);
        assert_eq!((limits.busy_us(at(18)), limits.window_us(at(18))), (8_000, 3_000));
        limits.note(at(20), Wait::Nothing);
        limits.note(at(90), Wait::Path);
        assert_eq!((limits.busy_us(at(91)), limits.window_us(at(91))), (11_000, 5_000));
    }

    #[test]
    fn time_outs_are_told_from_their_first_on() {
        let mut time_outs = TimeOuts::default();
        let at = Instant::from_millis;
        time_outs.overcome(at(1));
        time_outs.note(at(200));
        time_outs.note(at(600));
        assert_eq!((time_outs.count, time_outs.overcome, time_outs.us(at(700))), (2, 0, 500_000));
        time_outs.overcome(at(800));
        assert_eq!((time_outs.overcome, time_outs.us(at(900))), (1, 600_000));
    }
}
