//! A connection as plain data: no pointers, no heap, fixed layout. It can be copied, moved to another table or kept
//! in a snapshot; timers, ready lists and the lookup index are derived from it.
//!
//! Split by who works on it: [`SendSequence`] / [`ReceiveSequence`] (RFC 9293 section 3.3.1), [`SendSide`] and [`ReceiveSide`] (the bytes of
//! either direction and what is owed for them), [`Timers`], [`Setup`] (what was agreed on and set), [`Status`] (what is told and
//! reported). [`PathState`], what is known of the path, is a record beside it.

mod fast_open;
mod particulars;
mod path;
mod reports;
mod sequence;
mod setup;
mod sides;
mod soft_error;
mod timers;
mod traffic;

pub use fast_open::{Deferral, FastOpen, Opening, OpeningPool, SynText};
pub use particulars::{Deadlines, Pacing, Particulars, ParticularsPool, Reordering, Search, WaitTimes};
pub use path::{
    Algorithm, Congestion, DeliveryRate, Frto, PathState, Phase, Prr, Rack, RackTimers, Repair, RepairPool,
    RoundTrip, TailProbe, Undo, WindowTuning, WindowUse,
};
pub use sequence::{Fin, PeerFin, ReceiveSequence, SendSequence};
pub use setup::{Ecn, Handshake, Negotiated, Options, Sack, Setup, TimestampUse};
pub use sides::{AckPolicy, Nagle, SendDue};
pub use soft_error::{Hears, Noted};
pub use timers::{PeerTimer, Timers};
pub use traffic::{Traffic, TroubleCounts, Wait};

pub use reports::{AckReports, ReportPool};

use crate::reassembly::Reassembly;
use crate::receive_buffer::ReceiveBuffer;
use crate::scoreboard::Scoreboard;
use crate::send_queue::SendQueue;
use crate::state::TcpState;
use core::mem::offset_of;
use toe_abi::errno::Errno;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;
use toe_base::{SeqNum, SessionId};

/// One connection, but for what is known of its path ([`PathState`]). In the order in which it is asked: what each segment of an established
/// one looks at, what each is counted in, and how it began.
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
    pub sending: SendSide,
    pub receiving: ReceiveSide,
    pub timers: Timers,
    pub setup: Setup,
    pub status: Status,
    pub handshake: Handshake,
}

/// The bytes that go out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendSide {
    pub queue: SendQueue,
    /// What is on its way, and what became of it.
    pub board: Scoreboard,
    pub nagle: Nagle,
    pub due: SendDue,
    /// Window probes, or keepalive probes, since the peer was last heard.
    pub probes: u8,
    /// Times that the time-out was doubled; that lasts until a round trip is measured (Karn).
    pub backoff: u8,
    /// Time-outs since something was last acknowledged.
    pub timeouts: u8,
}

/// The bytes that come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveSide {
    pub buffer: ReceiveBuffer,
    /// What came out of order.
    pub held: Reassembly,
    pub acks: AckPolicy,
}

impl Default for ReceiveSide {
    fn default() -> Self {
        ReceiveSide {
            buffer: ReceiveBuffer::new(SessionId(0), SeqNum::default(), RECEIVE_WINDOW_INITIAL),
            held: Reassembly::default(),
            acks: AckPolicy::default(),
        }
    }
}

/// What the program has yet to hear, and what went over the connection, for reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Status {
    pub events: TcpEvents,
    pub traffic: Traffic,
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

impl TcpEvents {
    /// What came too late to be sent goes back to the owner, once nothing before it is in use.
    pub fn return_late_bytes(&mut self, queue: &SendQueue) {
        if queue.is_empty() {
            self.sent = self.sent.saturating_add(core::mem::take(&mut self.sent_behind));
        }
    }
}

/// Each connection costs this much, [`PathState`] beside it: a field more is a decision.
const _: () = assert!(size_of::<Tcb>() <= 360 && size_of::<PathState>() <= 152);

/// What a segment that comes in order, an ACK of something new and a segment that goes out look at, before they come to what is known of
/// the path. Of what lies behind it they only count ([`Traffic`]). It is to be three cache lines: what is missing says decision 0043.
const _: () = assert!(offset_of!(Tcb, status.traffic) <= 272);

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
            sending: SendSide::default(),
            receiving: ReceiveSide::default(),
            timers: Timers::default(),
            setup: Setup::default(),
            status: Status::default(),
            handshake: Handshake::default(),
        }
    }

    /// What was kept for what the program says will follow (TCP_CORK, MSG_MORE) goes out.
    pub fn release_corked(&mut self) {
        self.sending.nagle.cork = false;
        self.sending.nagle.more = false;
    }

    /// Whether the peer understands selective acknowledgements, and so do we (RFC 2018).
    pub fn has_sack(&self) -> bool {
        self.setup.negotiated.sack == Sack::Agreed
    }

    /// TS.Recent (RFC 7323 section 4.3), when timestamps are in use.
    pub fn ts_recent(&self) -> Option<u32> {
        self.setup.negotiated.timestamps.map(|timestamps| timestamps.recent)
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
    pub fn pipe(&self, path: &PathState) -> u32 {
        let board = &self.sending.board;
        let left = board.sacked() + board.lost() + path.cc.dup_acks * u32::from(self.snd.mss);
        self.outstanding().saturating_sub(left)
    }

    /// One past the last queued byte; FIN's own number when one is queued.
    pub fn queue_end(&self) -> SeqNum {
        self.data_una().plus(self.sending.queue.len())
    }

    /// Whether a program has given it bytes, or the end: whoever has it next would go on in the middle of another's stream.
    pub fn is_written(&self) -> bool {
        self.snd.fin.is_queued() || self.queue_end() != self.handshake.iss.plus(1)
    }

    /// The sequence number of the first byte in the send queue: `snd.una`, not counting SYN and FIN.
    pub fn data_una(&self) -> SeqNum {
        if !self.snd.syn_acked {
            self.handshake.iss.plus(1)
        } else if self.snd.fin.is_acked() {
            self.snd.una.minus(1)
        } else {
            self.snd.una
        }
    }

    /// `rcv.nxt`, not counting the peer's FIN: where the stream's bytes end.
    pub fn data_nxt(&self) -> SeqNum {
        if self.rcv.fin == PeerFin::Received { self.rcv.nxt.minus(1) } else { self.rcv.nxt }
    }
}
