//! A connection as plain data: no pointers, no heap, fixed layout. It can be copied, moved to another table or kept
//! in a snapshot; timers, ready lists and the lookup index are derived from it.
//!
//! Split by the stage that touches it: [`Conn`] (who and where), [`SendSequence`] / [`ReceiveSequence`] (RFC 9293
//! section 3.3.1), [`Scoreboard`] (what is on its way), [`Congestion`], [`Rack`], [`RoundTrip`], [`DeliveryRate`], [`Ecn`], [`FastOpen`],
//! [`Traffic`],
//! [`Timers`], and [`Report`] (what the host has yet to be told).

mod fast_open;
mod path;
mod traffic;

pub use fast_open::FastOpen;
pub use path::{Congestion, DeliveryRate, Ecn, Frto, PathMtu, Phase, Prr, Rack, RoundTrip, Undo, WindowUse};
pub use traffic::{Traffic, Wait};

use crate::control::listen::ListenerIdx;
use crate::flow::key::{FlowKey, NO_KEY};
use crate::flow::reassembly::{Reassembly, SeqRange};
use crate::flow::receive_buffer::ReceiveBuffer;
use crate::flow::record_ends::RecordEnds;
use crate::flow::scoreboard::Scoreboard;
use crate::flow::send_queue::SendQueue;
use crate::flow::tcp::soft_error::{Hears, Noted};
use crate::flow::tcp::state::TcpState;
use crate::flow::tcp::timeout::FIN_WAIT_2_SECS;
use crate::work::{Owner, Path, Sharing, UserIdx};
use toe_abi::channel::Side;
use toe_abi::errno::Errno;
use toe_base::arena::Block;
use toe_base::limits::RECEIVE_WINDOW_INITIAL;
use toe_base::window::{WindowScale, WindowSize};
use toe_base::{AnchorHandle, ChannelId, Instant, ListenerId, SeqNum, SessionId};
use toe_wire::tcp::SackBlocks;

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    pub conn: Conn,
    pub snd: SendSequence,
    pub rcv: ReceiveSequence,
    /// What is on its way, and what became of it.
    pub board: Scoreboard,
    pub cc: Congestion,
    pub rack: Rack,
    pub rtt: RoundTrip,
    pub rate: DeliveryRate,
    pub traffic: Traffic,
    pub ecn: Ecn,
    pub mtu: PathMtu,
    pub fast_open: FastOpen,
    /// The listener that it comes in at wants it with its first octets.
    pub deferral: Option<Deferral>,
    pub timers: Timers,
    pub options: Options,
    pub report: Report,
    pub send_queue: SendQueue,
    /// Where what is in the send queue must not meet in a segment.
    pub record_ends: RecordEnds,
    pub receive: ReceiveBuffer,
    pub held: Reassembly,
}

/// Who the connection is between, who holds it, and where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conn {
    pub key: FlowKey,
    pub path: Path,
    pub state: TcpState,
    pub owner: Owner,
    /// Who is charged for it.
    pub user: UserIdx,
    /// The descriptor pair whose last close ends the flow; none before it is accepted.
    pub anchor: Option<AnchorHandle>,
    /// The listener that counts it: the one that it came in at, until it is accepted or ends.
    pub listener: Option<ListenerIdx>,
    /// The listener that it came in at, until it is accepted: when that is closed, nobody can accept it any more.
    pub came_in: Option<ListenerIdx>,
    /// It stands in that one's line of connections for which there is no place.
    pub in_line: bool,
    /// The name by which the holder that was handed it knows that listener.
    pub handed_to: ListenerId,
    /// From when on, if that holder's program has not taken it, another may have it.
    pub goes_back_at: Option<Instant>,
    /// It is the answer to that holder's question.
    pub asked_for: bool,
    /// Its owner has been told that it goes to another session, which has not got it yet.
    pub leaving: bool,
    /// RST follows what can be sent now.
    pub abort_when_idle: bool,
    /// The program has let go: the engine finishes alone.
    pub app_closed: bool,
    /// When the program lets go, the peer is to get RST (SO_LINGER with time 0).
    pub abort_at_close: bool,
    /// The owner took it from the listener (`Command::Accept`), or made it by `Connect`.
    pub accepted: bool,
    /// Its number among all that came in, so that one which is given back waits in its old place.
    pub arrival: u64,
    /// In the lookup index under its key.
    pub indexed: bool,
    /// Its segments come to the engine because it is steered by itself, not by a listener or a reserved port.
    pub steered: bool,
    /// Staging memory that holds moved send data.
    pub staged: Option<Block>,
    /// Nobody has it: where the options wait in staging memory that its last owner wrote down ([`toe_abi::command::SocketOptions`]).
    pub options: Option<Block>,
    /// A closed session whose region still holds send data.
    pub pinned: Option<SessionId>,
    /// Octets go through this slot of a channel, not through the engine.
    pub direct: Option<Direct>,
    /// No channel for this connection any more.
    pub no_direct: bool,
    /// How far it is on the way to a channel.
    pub earning: Earning,
    /// The owner was asked to give the flow up and has not answered.
    pub asked_to_yield: bool,
    /// The driver keeps octets for whoever claims the flow, which come before those of the engine.
    pub prefix_unread: bool,
    /// Such octets went to the next owner, who may still have some that nobody else can reach.
    pub carried: bool,
    /// What it counts as, once no program has it.
    pub leftover: Leftover,
}

/// A connection that no program has any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Leftover {
    #[default]
    No,
    /// It is still closing.
    Orphan,
    /// The same, and its peer has all octets: but for the end of the stream nothing can be lost.
    ToldOrphan,
    TimeWait,
}

/// A connection's place in a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    pub channel: ChannelId,
    pub slot: u32,
    pub side: Side,
    pub generation: u16,
}

/// Counts what a local connection receives, to tell when an attempt at a channel is due: at 4 units and then less and
/// less often, so that a short connection pays nothing and a refused one does not pay for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Earning {
    units: u32,
    next: u32,
    /// Attempts that found the channel offered and not taken yet.
    early: u8,
}

impl Earning {
    /// The first attempt: an answer in two or three pieces (a header, a file) does not make a connection one that lasts.
    const FIRST: u32 = 4;
    /// Attempts after which a refused connection makes no more.
    const UNITS_MAX: u32 = 128;
    /// A channel that is being taken is asked for at every unit, this often; then ever more seldom, as the host may be
    /// one that takes none.
    const EARLY_MAX: u8 = 64;

    /// One more; whether an attempt is due.
    pub fn unit(&mut self) -> bool {
        self.units = self.units.saturating_add(1);
        self.units == self.next
    }

    pub fn refused(&mut self) {
        self.next = if self.units < Self::UNITS_MAX { self.units.next_power_of_two().max(2) } else { 0 };
        if self.next == self.units {
            self.next = self.units * 2;
        }
    }

    pub fn not_ready(&mut self) {
        let soon = self.early < Self::EARLY_MAX;
        self.early = self.early.saturating_add(1);
        self.next = if soon { self.units.saturating_add(1) } else { self.units.saturating_mul(2) };
    }
}

impl Default for Earning {
    fn default() -> Self {
        Earning { units: 0, next: Self::FIRST, early: 0 }
    }
}

/// Until when a bare ACK does not complete the handshake, and whether one has come ([`crate::flow::tcp::deferral`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    pub until: Instant,
    pub is_heard: bool,
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
    /// One past the urgent octet, until that is acknowledged.
    pub up: Option<SeqNum>,
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
    pub soft_error: Noted,
}

/// Receive sequence space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveSequence {
    pub nxt: SeqNum,
    /// The last urgent octet that the peer has told of.
    pub up: Option<SeqNum>,
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
    /// What came twice and has yet to be told of, an ACK each.
    pub duplicates: Duplicates,
    /// A number within each of the ranges that ACKs reported last, the latest first (RFC 2018 section 4).
    pub reported: [SeqNum; SackBlocks::MAX],
    /// All ranges up to here were reported.
    pub reported_up_to: SeqNum,
    /// Duplicate ACKs owed: one for each segment that came out of order, however many came in one batch. The peer
    /// counts them (RFC 5681 section 4.2).
    pub dup_acks: u8,
    /// ACKs still to be sent at once, while the peer is in slow start.
    pub quick_acks: u8,
    /// TS.Recent (RFC 7323 section 4.3), when timestamps are in use.
    pub ts_recent: Option<u32>,
    /// Window auto-tuning: octets consumed since, and when the measurement began.
    pub tune_consumed: u32,
    pub tune_since: Instant,
}

/// A few ranges, first come first told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicates {
    ranges: [SeqRange; 4],
    len: u8,
}

impl Duplicates {
    /// One too many is left out: the sender then knows less, and nothing wrong.
    pub fn push(&mut self, range: SeqRange) {
        if let Some(place) = self.ranges.get_mut(usize::from(self.len)) {
            *place = range;
            self.len += 1;
        }
    }

    pub fn first(&self) -> Option<SeqRange> {
        (self.len > 0).then_some(self.ranges[0])
    }

    pub fn pop(&mut self) {
        self.ranges.rotate_left(1);
        self.len = self.len.saturating_sub(1);
    }
}

/// Deadlines; `FAR_FUTURE` when not armed. The wheel holds the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    pub retransmit: Instant,
    /// Tail loss probe (RFC 8985 section 7.2).
    pub tail_probe: Instant,
    /// What is late by then is lost (RFC 8985 section 6.3).
    pub reorder: Instant,
    /// The next paced unit may go.
    pub pace: Instant,
    /// Zero-window probe (RFC 9293 section 3.8.6.1).
    pub persist: Instant,
    pub delayed_ack: Instant,
    pub keepalive: Instant,
    /// TIME_WAIT, or FIN_WAIT_2 without a program.
    pub linger: Instant,
    /// A partial segment held by TCP_CORK or MSG_MORE goes out.
    pub cork: Instant,
    /// Idle receive memory goes back.
    pub release: Instant,
    /// When the peer was last heard.
    pub heard: Instant,
    /// No empty segment out of the window is answered before this.
    pub next_stray_answer: Instant,
    /// Since when the oldest unacknowledged data waits without progress.
    pub stalled_since: Instant,
    pub probes_sent: u8,
}

/// What the program set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub no_delay: bool,
    pub cork: bool,
    pub keepalive: bool,
    pub keep_idle_secs: u32,
    pub keep_interval_secs: u32,
    pub keep_count: u32,
    /// 0: the system's default.
    pub user_timeout_ms: u32,
    /// How often a SYN is sent again once the waits double; 0: the system's default.
    pub syn_retries: u8,
    /// Window auto-tuning stops here.
    pub receive_window_limit: u32,
    /// The program takes no more.
    pub receive_shut: bool,
    /// Diffserv field in its place in the octet, and TTL or hop limit, of what is sent.
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub soft_errors: Hears,
    /// How long FIN_WAIT_2 lasts without a program; none: not at all.
    pub fin_wait_2_secs: Option<u32>,
    /// While the record is in the index, it is counted so ([`crate::control::in_use`]).
    pub sharing: Sharing,
}

/// What the owner has yet to be told, in this order: accepted, connected, direct, data, sent, soft error, peer closed,
/// reset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub accepted: Option<toe_base::ListenerId>,
    pub connected: Option<Errno>,
    /// [`Conn::direct`] is new.
    pub direct: bool,
    /// Octets of the owner's send memory that are its own again.
    pub sent: u32,
    /// The same, of octets that came too late to be sent: they come back behind those that are still in the queue.
    pub sent_behind: u32,
    /// The urgent octet.
    pub urgent: Option<SeqNum>,
    pub soft_error: Option<Errno>,
    /// The owner wants to hear of what has gone out.
    pub unsent: Option<Unsent>,
    /// The state and the soft error that the flow information record shows.
    pub state: TcpState,
    pub shown_error: Noted,
    pub peer_closed: bool,
    pub peer_closed_told: bool,
    pub reset: Option<Errno>,
    pub reset_told: bool,
}

/// What has gone out is news when fewer octets than half of the mark have not (`FlowOption::UnsentLowWater`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    pub low_water: u32,
    /// How far it has been told.
    pub told: SeqNum,
}

impl Default for Timers {
    fn default() -> Self {
        let off = Instant::FAR_FUTURE;
        Timers {
            retransmit: off,
            tail_probe: off,
            reorder: off,
            pace: off,
            persist: off,
            delayed_ack: off,
            keepalive: off,
            linger: off,
            cork: off,
            release: off,
            heard: Instant::ZERO,
            next_stray_answer: Instant::ZERO,
            stalled_since: off,
            probes_sent: 0,
        }
    }
}

impl Report {
    /// What came too late to be sent goes back to the owner, once nothing before it is in use.
    pub fn return_late_octets(&mut self, queue: &SendQueue) {
        if queue.is_empty() {
            self.sent = self.sent.saturating_add(core::mem::take(&mut self.sent_behind));
        }
    }
}

impl Timers {
    /// The earliest deadline.
    pub fn earliest(&self) -> Instant {
        let all = [
            self.retransmit,
            self.tail_probe,
            self.reorder,
            self.pace,
            self.persist,
            self.delayed_ack,
            self.keepalive,
            self.linger,
            self.cork,
            self.release,
        ];
        all.into_iter().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// Disarms everything that concerns the peer.
    pub fn stop_all(&mut self) {
        let Timers { heard, next_stray_answer, release, .. } = *self;
        *self = Timers { heard, next_stray_answer, release, ..Timers::default() };
    }
}

impl Default for Options {
    /// Linux's defaults: tcp_keepalive_time, _intvl, _probes.
    fn default() -> Self {
        Options {
            no_delay: false,
            cork: false,
            keepalive: false,
            keep_idle_secs: 7200,
            keep_interval_secs: 75,
            keep_count: 9,
            user_timeout_ms: 0,
            syn_retries: 0,
            receive_window_limit: toe_base::limits::RECEIVE_WINDOW_MAX,
            receive_shut: false,
            traffic_class: 0,
            hop_limit: crate::work::TTL,
            soft_errors: Hears::None,
            fin_wait_2_secs: Some(FIN_WAIT_2_SECS),
            sharing: Sharing::default(),
        }
    }
}

impl Flow {
    /// A record that stands for no connection.
    pub fn vacant() -> Flow {
        Flow {
            conn: Conn {
                key: NO_KEY,
                path: Path::Local,
                state: TcpState::Closed,
                owner: Owner::default(),
                user: UserIdx::NOBODY,
                anchor: None,
                listener: None,
                came_in: None,
                in_line: false,
                handed_to: ListenerId::default(),
                goes_back_at: None,
                asked_for: false,
                leaving: false,
                abort_when_idle: false,
                app_closed: false,
                abort_at_close: false,
                accepted: false,
                arrival: 0,
                indexed: false,
                steered: false,
                staged: None,
                options: None,
                pinned: None,
                direct: None,
                no_direct: false,
                earning: Earning::default(),
                asked_to_yield: false,
                prefix_unread: false,
                carried: false,
                leftover: Leftover::No,
            },
            snd: SendSequence::default(),
            rcv: ReceiveSequence::default(),
            board: Scoreboard::default(),
            cc: Congestion::default(),
            rack: Rack::default(),
            rtt: RoundTrip::default(),
            rate: DeliveryRate::default(),
            traffic: Traffic::default(),
            ecn: Ecn::default(),
            mtu: PathMtu::default(),
            fast_open: FastOpen::default(),
            deferral: None,
            timers: Timers::default(),
            options: Options::default(),
            report: Report::default(),
            send_queue: SendQueue::default(),
            record_ends: RecordEnds::default(),
            receive: ReceiveBuffer::new(SessionId(0), SeqNum::default(), RECEIVE_WINDOW_INITIAL),
            held: Reassembly::default(),
        }
    }

    pub fn is_local(&self) -> bool {
        self.conn.path == Path::Local
    }

    /// Octets sent and not cumulatively acknowledged.
    pub fn outstanding(&self) -> u32 {
        self.snd.nxt.distance_from(self.snd.una)
    }

    /// Octets believed to be in the network: RFC 6675's pipe, RFC 5681's FlightSize when nothing is amiss.
    pub fn pipe(&self) -> u32 {
        let left = self.board.sacked() + self.board.lost() + self.cc.dup_acks * u32::from(self.snd.mss);
        self.outstanding().saturating_sub(left)
    }

    /// One past the last queued octet; FIN's own number when one is queued.
    pub fn queue_end(&self) -> SeqNum {
        self.data_una().plus(self.send_queue.len())
    }

    /// Whether a program has given it octets, or the end: whoever has it next would go on in the middle of another's stream.
    pub fn is_written(&self) -> bool {
        self.snd.fin_queued || self.queue_end() != self.snd.iss.plus(1)
    }

    /// The sequence number of the first octet in the send queue: `snd.una`, not counting SYN and FIN.
    pub fn data_una(&self) -> SeqNum {
        if !self.snd.syn_acked {
            self.snd.iss.plus(1)
        } else if self.snd.fin_acked {
            self.snd.una.minus(1)
        } else {
            self.snd.una
        }
    }

    /// `rcv.nxt`, not counting the peer's FIN: where the stream's octets end.
    pub fn data_nxt(&self) -> SeqNum {
        if self.rcv.fin_received { self.rcv.nxt.minus(1) } else { self.rcv.nxt }
    }
}
