//! The variables of the two sequence spaces (RFC 9293 section 3.3.1), with their names there. One part of the record ([`super::Tcb`]).

use toe_base::SeqNum;
use toe_base::window::WindowSize;

/// Send sequence space.
///
/// ```text
///      una                      nxt        una + queued (+ FIN)
///   ────┬────────────────────────┬──────────────┬─────
///  acked│ sent: in flight, sacked│ queued, not  │
///       │ or lost (scoreboard)   │ sent         │
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendSequence {
    pub una: SeqNum,
    /// One past the urgent byte, until that is acknowledged; else `una` (RFC 9293 section 3.8.5).
    pub up: SeqNum,
    /// One past the highest number ever sent.
    pub nxt: SeqNum,
    pub wnd: WindowSize,
    pub wl1: SeqNum,
    pub wl2: SeqNum,
    /// Largest window that the peer ever offered (Nagle and SWS avoidance, RFC 9293 section 3.8.6.2.1).
    pub max_wnd: WindowSize,
    /// Segment payload limit towards the peer, options subtracted.
    pub mss: u16,
    /// The same that link and peer take: the path may take less.
    pub mss_max: u16,
    /// The peer acknowledged our SYN.
    pub syn_acked: bool,
    pub fin: Fin,
}

/// Where the end of what we send stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fin {
    #[default]
    None,
    /// The program will send no more: FIN follows the queue.
    Queued,
    /// The peer acknowledged it.
    Acked,
}

impl Fin {
    pub const fn is_queued(self) -> bool {
        !matches!(self, Fin::None)
    }

    pub const fn is_acked(self) -> bool {
        matches!(self, Fin::Acked)
    }
}

/// Receive sequence space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveSequence {
    pub nxt: SeqNum,
    /// The last urgent byte that the peer has told of; one that has long been read, if there is none.
    pub up: SeqNum,
    /// Right edge of the window as last advertised; it never moves back.
    pub edge: SeqNum,
    pub fin: PeerFin,
}

/// Where the peer's FIN stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PeerFin {
    #[default]
    None,
    /// It came, and has this number; something before it is missing.
    Seen(SeqNum),
    /// It is in order: `nxt` is one past it.
    Received,
}

impl ReceiveSequence {
    /// An urgent byte this far behind `nxt` has been read, whatever the window, and bytes that came past the engine before `nxt` do not reach
    /// back to it; farther behind, it would seem to lie ahead one day.
    pub const LONG_AGO: u32 = 1 << 30;
}
