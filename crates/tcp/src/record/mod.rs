//! A connection as plain data: no pointers, no heap, fixed layout. It can be copied, moved to another table or kept
//! in a snapshot; timers, ready lists and the lookup index are derived from it.
//!
//! Split by the stage that touches it: [`Conn`] (who and where), [`SendSequence`] / [`ReceiveSequence`] (RFC 9293
//! section 3.3.1), [`Scoreboard`] (what is on its way), [`Congestion`], [`Rack`], [`RoundTrip`], [`DeliveryRate`], [`Ecn`], [`FastOpen`],
//! [`Traffic`],
//! [`Timers`], and [`Report`] (what the host has yet to be told).

mod fast_open;
mod particulars;
mod path;
mod reports;
mod soft_error;
mod traffic;

pub use fast_open::{Deferral, FastOpen, Opening, OpeningPool};
pub use particulars::{Deadlines, Pacing, Particulars, ParticularsPool, Reordering, Search, WaitTimes};
pub use path::{
    Algorithm, Congestion, DeliveryRate, Ecn, Frto, Phase, Prr, Rack, Repair, RepairPool, RoundTrip,
    TailProbe, Undo, WindowUse,
};
pub use soft_error::{Hears, Noted};
pub use traffic::{Traffic, TroubleCounts, Wait};

pub use reports::{AckReports, ReportPool};

use crate::pool::PoolSlot;
use crate::reassembly::Reassembly;
use crate::receive_buffer::ReceiveBuffer;
use crate::scoreboard::Scoreboard;
use crate::send_queue::SendQueue;
use crate::state::TcpState;
use core::mem::offset_of;
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;
use toe_base::window::{WindowScale, WindowSize};
use toe_base::{Instant, SeqNum, SessionId};

/// One connection, in the order in which it is asked: what each segment of an established one looks at, what congestion control knows of
/// its path, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Tcb {
    /// Changed by [`Tcb::enter`] alone.
    pub state: TcpState,
    /// Both ends are of one machine, and no segment between them becomes a frame.
    pub is_local: bool,
    /// Over IPv4; else over IPv6.
    pub is_v4: bool,
    /// No program has it any more: it finishes alone.
    pub orphaned: bool,
    pub snd: SendSequence,
    pub rcv: ReceiveSequence,
    pub receive: ReceiveBuffer,
    pub held: Reassembly,
    pub send_queue: SendQueue,
    /// What is on its way, and what became of it.
    pub board: Scoreboard,
    pub timers: Timers,
    pub traffic: Traffic,
    pub events: TcpEvents,
    /// Where [`ParticularsPool`] has what most connections have as it is from the beginning, once it has been changed.
    pub particulars: PoolSlot,
    pub rtt: RoundTrip,
    pub cc: Congestion,
    pub rack: Rack,
    pub rate: DeliveryRate,
    pub ecn: Ecn,
    pub options: Options,
    pub fast_open: FastOpen,
}

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
    pub iss: SeqNum,
    /// What timestamps start from.
    pub timestamp_offset: u32,
    pub scale: WindowScale,
    /// One past the last segment that went out less than full (Minshall's variant of Nagle's algorithm).
    pub small: SeqNum,
    /// Largest window that the peer ever offered (Nagle and SWS avoidance, RFC 9293 section 3.8.6.2.1).
    pub max_wnd: WindowSize,
    /// Segment payload limit towards the peer, options subtracted.
    pub mss: u16,
    /// The same that link and peer take: the path may take less.
    pub mss_max: u16,
    /// The program will send no more: FIN follows the queue.
    pub fin_queued: bool,
    /// The peer acknowledged our SYN.
    pub syn_acked: bool,
    /// The peer acknowledged our FIN.
    pub fin_acked: bool,
    /// Held-back data goes out now: the cork timer ran out.
    pub uncork: bool,
    /// The last `Send` said that more will follow at once.
    pub more: bool,
    /// The peer understands selective acknowledgements (RFC 2018).
    pub sack_permitted: bool,
    /// The tail is to be sent again, or a new segment, to learn of a loss there (RFC 8985 section 7).
    pub tail_probe: bool,
    /// A window probe is to be sent now.
    pub probe: bool,
    /// A keepalive probe is to be sent now.
    pub keepalive_probe: bool,
}

/// Receive sequence space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveSequence {
    pub nxt: SeqNum,
    /// The last urgent byte that the peer has told of; one that has long been read, if there is none.
    pub up: SeqNum,
    pub irs: SeqNum,
    /// Right edge of the window as last advertised; it never moves back.
    pub edge: SeqNum,
    pub scale: WindowScale,
    /// `rcv.nxt` when an ACK last went out.
    pub acked: SeqNum,
    /// Where the peer's FIN stands, once it was seen.
    pub fin: Option<SeqNum>,
    /// The FIN is in order: `nxt` is one past it.
    pub fin_received: bool,
    /// An ACK must go out now.
    pub ack_now: bool,
    /// The peer is told of what came out of order and twice (RFC 2018, RFC 2883).
    pub sack_permitted: bool,
    /// Where [`ReportPool`] has what ACKs tell of beside `nxt`, once there is something.
    pub reports: PoolSlot,
    /// Duplicate ACKs owed: one for each segment that came out of order, however many came in one batch. The peer
    /// counts them (RFC 5681 section 4.2).
    pub dup_acks: u8,
    /// ACKs still to be sent at once, while the peer is in slow start.
    pub quick_acks: u8,
    /// TS.Recent (RFC 7323 section 4.3), when timestamps are in use.
    pub ts_recent: Option<u32>,
    /// Window auto-tuning: bytes consumed since, and when the measurement began.
    pub tune_consumed: u32,
    pub tune_since: Instant,
}

impl ReceiveSequence {
    /// An urgent byte this far behind `nxt` has been read, whatever the window, and bytes that came past the engine before `nxt` do not reach
    /// back to it; farther behind, it would seem to lie ahead one day.
    pub const LONG_AGO: u32 = 1 << 30;
}

/// Deadlines, but for those that few connections have ([`Deadlines`]); `FAR_FUTURE` when not armed. The wheel holds the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    pub retransmit: Instant,
    /// Tail loss probe (RFC 8985 section 7.2).
    pub tail_probe: Instant,
    /// What is late by then is lost (RFC 8985 section 6.3).
    pub reorder: Instant,
    /// Zero-window probe (RFC 9293 section 3.8.6.1).
    pub persist: Instant,
    pub delayed_ack: Instant,
    /// TIME_WAIT, or FIN_WAIT_2 without a program.
    pub linger: Instant,
    /// Idle receive memory goes back.
    pub release: Instant,
    /// When the peer was last heard.
    pub heard: Instant,
    /// Since when the oldest unacknowledged data waits without progress.
    pub stalled_since: Instant,
    pub probes_sent: u8,
}

/// What the program set, but for what few set ([`WaitTimes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub no_delay: bool,
    pub cork: bool,
    pub keepalive: bool,
    /// The program takes no more.
    pub receive_shut: bool,
    /// Diffserv field in its place in the byte, and TTL or hop limit, of what is sent.
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub soft_errors: Hears,
}

/// What the program has yet to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpEvents {
    /// Bytes of the owner's send memory that are its own again.
    pub sent: u32,
    /// The same, of bytes that came too late to be sent: they come back behind those that are still in the queue.
    pub sent_behind: u32,
    /// Where the urgent byte is ([`ReceiveSequence::up`]).
    pub urgent: bool,
    /// [`Errno::OK`]: none.
    pub soft_error: Errno,
    /// The one that is only noted.
    pub noted: Noted,
    /// The peer sends no more.
    pub peer_closed: bool,
}

impl Default for Timers {
    fn default() -> Self {
        let off = Instant::FAR_FUTURE;
        Timers {
            retransmit: off,
            tail_probe: off,
            reorder: off,
            persist: off,
            delayed_ack: off,
            linger: off,
            release: off,
            heard: Instant::ZERO,
            stalled_since: off,
            probes_sent: 0,
        }
    }
}

impl TcpEvents {
    /// What came too late to be sent goes back to the owner, once nothing before it is in use.
    pub fn return_late_bytes(&mut self, queue: &SendQueue) {
        if queue.is_empty() {
            self.sent = self.sent.saturating_add(core::mem::take(&mut self.sent_behind));
        }
    }
}

impl Timers {
    /// The earliest of these: [`crate::Tcp::deadline`] knows the others.
    pub(crate) fn earliest(&self) -> Instant {
        let all = [
            self.retransmit,
            self.tail_probe,
            self.reorder,
            self.persist,
            self.delayed_ack,
            self.linger,
            self.release,
        ];
        all.into_iter().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Disarms everything that concerns the peer.
    pub(crate) fn stop_all(&mut self) {
        let Timers { heard, release, .. } = *self;
        *self = Timers { heard, release, ..Timers::default() };
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            no_delay: false,
            cork: false,
            keepalive: false,
            receive_shut: false,
            traffic_class: 0,
            hop_limit: toe_wire::ipv4::TTL,
            soft_errors: Hears::None,
        }
    }
}

/// Each connection costs this much, and each segment of an established one looks at so much before it comes to the congestion control: a field
/// more is a decision.
const _: () = assert!(size_of::<Tcb>() <= 536 && offset_of!(Tcb, rtt) <= 380);

impl Tcb {
    /// A record that stands for no connection.
    pub fn vacant() -> Tcb {
        Tcb {
            state: TcpState::default(),
            is_local: true,
            is_v4: true,
            orphaned: false,
            snd: SendSequence::default(),
            rcv: ReceiveSequence::default(),
            board: Scoreboard::default(),
            cc: Congestion::default(),
            rack: Rack::default(),
            rtt: RoundTrip::default(),
            rate: DeliveryRate::default(),
            traffic: Traffic::default(),
            ecn: Ecn::default(),
            particulars: PoolSlot::default(),
            fast_open: FastOpen::default(),
            timers: Timers::default(),
            options: Options::default(),
            events: TcpEvents::default(),
            send_queue: SendQueue::default(),
            receive: ReceiveBuffer::new(SessionId(0), SeqNum::default(), RECEIVE_WINDOW_INITIAL),
            held: Reassembly::default(),
        }
    }

    /// What was kept for what the program says will follow (TCP_CORK, MSG_MORE) goes out.
    pub fn release_kept(&mut self) {
        self.options.cork = false;
        self.snd.more = false;
    }

    /// Whether the urgent byte is not acknowledged.
    pub fn is_urgent(&self) -> bool {
        self.snd.up.after(self.snd.una)
    }

    /// Bytes sent and not cumulatively acknowledged.
    pub fn outstanding(&self) -> u32 {
        self.snd.nxt.distance_from(self.snd.una)
    }

    /// Bytes believed to be in the network: RFC 6675's pipe, RFC 5681's FlightSize when nothing is amiss.
    pub fn pipe(&self) -> u32 {
        let left = self.board.sacked() + self.board.lost() + self.cc.dup_acks * u32::from(self.snd.mss);
        self.outstanding().saturating_sub(left)
    }

    /// One past the last queued byte; FIN's own number when one is queued.
    pub fn queue_end(&self) -> SeqNum {
        self.data_una().plus(self.send_queue.len())
    }

    /// Whether a program has given it bytes, or the end: whoever has it next would go on in the middle of another's stream.
    pub fn is_written(&self) -> bool {
        self.snd.fin_queued || self.queue_end() != self.snd.iss.plus(1)
    }

    /// The sequence number of the first byte in the send queue: `snd.una`, not counting SYN and FIN.
    pub fn data_una(&self) -> SeqNum {
        if !self.snd.syn_acked {
            self.snd.iss.plus(1)
        } else if self.snd.fin_acked {
            self.snd.una.minus(1)
        } else {
            self.snd.una
        }
    }

    /// `rcv.nxt`, not counting the peer's FIN: where the stream's bytes end.
    pub fn data_nxt(&self) -> SeqNum {
        if self.rcv.fin_received { self.rcv.nxt.minus(1) } else { self.rcv.nxt }
    }
}
