//! What most connections have as it is from the beginning, and which only a few have otherwise. One part of the record ([`super::Tcb`]);
//! [`crate::timeout`], [`crate::rate`], [`crate::rack`] and [`crate::path_mtu`] work on it.

use super::TroubleCounts;
use crate::pool::Pool;
use crate::record_ends::RecordEnds;
use toe_base::limits::RECEIVE_WINDOW_MAX;
use toe_base::{Instant, SeqNum};

/// Where the particulars of all connections lie that have some. Each can have some, until its end.
pub type ParticularsPool = Pool<Particulars, 1>;

/// Of a connection without a place they are the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Particulars {
    pub patience: WaitTimes,
    pub pacing: Pacing,
    pub search: Search,
    pub deadlines: Deadlines,
    pub reordering: Reordering,
    pub trouble: TroubleCounts,
    /// No empty segment out of the window is answered before this.
    pub next_stray_answer: Instant,
    /// Window auto-tuning stops here.
    pub receive_window_limit: u32,
    /// Where what is in the send queue must not meet in a segment.
    pub record_ends: RecordEnds,
}

impl Default for Particulars {
    fn default() -> Self {
        Particulars {
            patience: WaitTimes::default(),
            pacing: Pacing::default(),
            search: Search::default(),
            deadlines: Deadlines::default(),
            reordering: Reordering::default(),
            trouble: TroubleCounts::default(),
            next_stray_answer: Instant::ZERO,
            receive_window_limit: RECEIVE_WINDOW_MAX,
            record_ends: RecordEnds::default(),
        }
    }
}

/// What the path was seen to put in another order (RFC 8985 section 6.2): the variables of RACK have their names there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reordering {
    pub seen: bool,
    pub reo_wnd_mult: u8,
    pub reo_wnd_persist: u8,
    /// One D-SACK a round trip widens the reordering window.
    pub dsack_round: Option<SeqNum>,
}

/// What it waits for beside [`super::Timers`]; `FAR_FUTURE` when not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    pub keepalive: Instant,
    /// A partial segment held by TCP_CORK or MSG_MORE goes out.
    pub cork: Instant,
    /// The next paced unit may go.
    pub pace: Instant,
}

impl Deadlines {
    /// The earliest deadline.
    pub fn earliest(&self) -> Instant {
        self.keepalive.min(self.cork).min(self.pace)
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        let off = Instant::FAR_FUTURE;
        Deadlines { keepalive: off, cork: off, pace: off }
    }
}

/// How long it waits, as the program set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimes {
    pub keep_idle_secs: u16,
    pub keep_interval_secs: u16,
    pub keep_count: u8,
    /// How often a SYN is sent again once the waits double; 0: the system's default.
    pub syn_retries: u8,
    /// 0: the system's default.
    pub user_timeout_ms: u32,
    /// How long FIN_WAIT_2 lasts without a program; none: not at all.
    pub fin_wait_2_secs: Option<u16>,
}

impl WaitTimes {
    /// How long FIN_WAIT_2 lasts without a program that has said so (RFC 9293 leaves it open; Linux: tcp_fin_timeout).
    pub const FIN_WAIT_2_SECS: u16 = 60;
}

impl Default for WaitTimes {
    /// Linux's defaults: tcp_keepalive_time, _intvl, _probes.
    fn default() -> Self {
        WaitTimes {
            keep_idle_secs: 7200,
            keep_interval_secs: 75,
            keep_count: 9,
            syn_retries: 0,
            user_timeout_ms: 0,
            fin_wait_2_secs: Some(WaitTimes::FIN_WAIT_2_SECS),
        }
    }
}

/// When it may send, if that is spread: by a model of the path, after a rest, or because the program wants it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pacing {
    /// Bytes a second that may go out; 0: not paced.
    pub rate: u64,
    /// What the program allows at most (SO_MAX_PACING_RATE); 0: anything.
    pub rate_max: u32,
    /// When the next may, if paced.
    pub next_send_at: Instant,
    /// Pacing held it back, and it was called later than that: it makes up for it.
    pub is_late: bool,
}

/// A search for the largest segment that the path takes, once that is less than link and peer do: see [`crate::path_mtu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Search {
    /// One more was lost; 0: none was.
    pub high: u16,
    /// No probe before this.
    pub at: Instant,
    /// A probe is on its way, of so many bytes, and ends here; 0: none is.
    pub probe_size: u16,
    pub probe_end: SeqNum,
}
