//! What goes into a connection and what comes out of it.

use crate::pieces::Pieces;
use toe_abi::errno::Errno;
use toe_base::SeqNum;
use toe_base::window::{UnscaledWindow, WindowScale};
use toe_wire::link::FrameTail;
use toe_wire::tcp::{FastOpenCookie, SackBlocks, TcpFlags};

/// TCP header fields as the state machine sees them, independent of how they travelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub seq: SeqNum,
    pub ack: Option<SeqNum>,
    /// SYN, FIN, RST, PSH, and ECE and CWR of RFC 3168: `ack` and `urgent` say the others.
    pub flags: TcpFlags,
    pub window: UnscaledWindow,
    pub mss: Option<u16>,
    pub window_scale: Option<WindowScale>,
    /// The sender understands SACK (only in a SYN).
    pub sack_permitted: bool,
    /// What it has out of order.
    pub sack: SackBlocks,
    /// (TSval, TSecr), RFC 7323.
    pub timestamps: Option<(u32, u32)>,
    /// RFC 7413; it counts only with SYN.
    pub fast_open: Option<FastOpenCookie>,
    /// With the URG bit: the urgent pointer, bytes from `seq` to the one after the urgent byte.
    pub urgent: Option<u16>,
    /// Payload bytes.
    pub len: u32,
}

impl Segment {
    /// SEG.LEN of RFC 9293: payload plus one for SYN and one for FIN.
    pub const fn seq_len(&self) -> u32 {
        self.len + self.flags.syn() as u32 + self.flags.fin() as u32
    }

    /// PAWS (RFC 7323 section 5.3, R1), `ts_recent` being TS.Recent where timestamps are in use. Resets are exempt.
    pub fn is_old_duplicate(&self, ts_recent: Option<u32>) -> bool {
        match (ts_recent, self.timestamps) {
            (Some(recent), Some((value, _))) => !self.flags.rst() && (value.wrapping_sub(recent) as i32) < 0,
            _ => false,
        }
    }

    /// Table 6 of RFC 9293, with its allowance for a closed window: what starts at `rcv.nxt` still brings an ACK or RST
    /// (its text does not fit, and is cut off later). A unit that covers the whole window, from before it to behind it,
    /// is acceptable too, and so is an empty segment at the right edge.
    pub fn is_acceptable(&self, (nxt, edge): (SeqNum, SeqNum)) -> bool {
        let (first, len) = (self.seq, self.seq_len());
        if len == 0 || first == nxt {
            return first.at_or_after(nxt) && first.at_or_before(edge);
        }
        first.before(edge) && first.plus(len).after(nxt)
    }

    /// The reset that answers it, if it came for a connection that does not exist; none for a reset.
    pub fn answering_reset(&self) -> Option<Segment> {
        if self.flags.rst() {
            return None;
        }
        let (seq, ack) = match self.ack {
            Some(ack) => (ack, None),
            None => (SeqNum::new(0), Some(self.seq.plus(self.seq_len()))),
        };
        Some(Segment::reset(seq, ack))
    }

    /// A bare reset.
    pub const fn reset(seq: SeqNum, ack: Option<SeqNum>) -> Segment {
        Segment {
            seq,
            ack,
            flags: TcpFlags::RST,
            window: UnscaledWindow(0),
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: SackBlocks::NONE,
            timestamps: None,
            fast_open: None,
            urgent: None,
            len: 0,
        }
    }
}

/// A segment's bytes: in the frame that brought them, still with the link that it came by, or still in the sender's memory when both
/// ends are ours.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    Frame(&'a [u8]),
    /// From this byte of the frame on.
    Tail(&'a dyn FrameTail, usize),
    Memory(&'a Pieces),
}

/// In: a segment of the connection's, its checksum verified.
#[derive(Clone, Copy, Debug)]
pub struct RxSegment<'a> {
    pub segment: Segment,
    /// The network marked it (ECN: congestion experienced).
    pub is_marked: bool,
    pub payload: Payload<'a>,
}

/// Out: one segment to send, cut to at most [`TxSegment::mss`] by link or egress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxSegment {
    pub segment: Segment,
    /// Where the payload starts, in bytes from the first unacknowledged one.
    pub payload_at: u32,
    /// Payload bytes of one wire segment.
    pub mss: u16,
    /// The segment was sent before.
    pub is_retransmit: bool,
    /// Queues may mark it instead of dropping it.
    pub is_ect: bool,
}

/// What a segment or a timer did to a connection, for whoever has the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// Nothing that another stage must know.
    None,
    /// The three-way handshake is complete.
    Established,
    /// The connection is gone; `Errno::OK` when it ended as it should.
    Closed(Errno),
    /// The connection entered TIME_WAIT.
    TimeWait,
    /// The segment belongs to another life of this connection: answer it with RST, keep the connection.
    Reject,
    /// The connection is gone for this reason, and the peer must be told with RST.
    Abort(Errno),
    /// The same because bytes came that no program can read; the peer gets what was sent before.
    AbortBehindData,
}
