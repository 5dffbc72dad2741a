//! TCP as a library: RFC 9293 and what the years have added to it, on two records a connection: the [`Tcb`], and [`record::PathState`] beside it.
//!
//! A segment, a command or the time goes in; what is to be sent, told and waited for comes out. There is no clock, socket,
//! thread or table in here: who has the connection, what its name is and how segments travel is the caller's.
//!
//! | to read | where |
//! |---|---|
//! | states and the transition table | [`state`] |
//! | opening, actively and passively | [`open`] |
//! | SEGMENT ARRIVES (RFC 9293 section 3.10.7) | [`segment_arrives`], one file a step |
//! | what to send now | [`output`] |
//! | how much of it is worth a unit | [`tso`] |
//! | what only asks | [`probe`] |
//! | time-outs | [`timeout`] |
//! | TIME-WAIT, in a record of its own | [`time_wait`] |
//! | what is lost, and the window until it is repaired | [`rack`], [`recovery`] |
//! | round-trip time, delivery rate | [`rtt`], [`rate`] |
//! | the congestion window while all is well, one algorithm a file | [`congestion`] |
//! | marks instead of losses | [`ecn`] |
//! | bytes in the SYN | [`fast_open`] |
//! | the largest segment that gets through | [`path_mtu`] |
//! | trouble that does not end a connection | [`soft_error`] |
//!
//! Two ends, from handshake to close:
//!
//! ```
//! use toe_abi::entry::MemRange;
//! use toe_base::{Instant, SeqNum, SessionId, arena::Arena};
//! use toe_tcp::{RxContext, Tcb, Tcp, memory::HostMemory, config::TcpConfig, open::*, outgoing::*, output::*, pressure::Pressure, record::PathState, segment::*, state::TcpState};
//!
//! # struct Memory(Vec<u8>);
//! # impl HostMemory for Memory {
//! #     fn write(&mut self, _: SessionId, at: u64, bytes: &[u8]) {
//! #         self.0[at as usize..][..bytes.len()].copy_from_slice(bytes);
//! #     }
//! #     fn read(&mut self, _: SessionId, at: u64, out: &mut [u8]) {
//! #         out.copy_from_slice(&self.0[at as usize..][..out.len()]);
//! #     }
//! #     fn copy(&mut self, from: (SessionId, u64), to: (SessionId, u64), len: u32) {
//! #         self.0.copy_within(from.1 as usize..from.1 as usize + len as usize, to.1 as usize);
//! #     }
//! # }
//! const PROGRAM: SessionId = SessionId(1);
//! let (now, config) = (Instant::from_millis(1), TcpConfig::default());
//! let limits = SendLimits { unit_max: 1460, announce_mss: 1460 };
//! let params = |iss| OpenParams {
//!     iss: SeqNum::new(iss), timestamp_offset: 0, is_local: true, is_v4: true, mss: 1460, tcp: config, now,
//! };
//! let mut tcp = Tcp::new(2, [7; 16], config);
//! // What came is put into the first half of this memory; the second is what is sent.
//! let (mut memory, mut arena) = (Memory(vec![0; 1 << 21]), Arena::new(0, 1 << 20));
//!
//! let mut client = active(&params(100));
//! let mut client_path = path_of(&client, config.congestion);
//! let cx = TxContext { now, path: &client_path, tcp: &tcp, limits };
//! let syn = prepare(&client, cx).expect("a SYN");
//! commit(&mut client, &mut client_path, &mut tcp, now, &syn);
//! let mut server = passive(&params(900), &syn.segment);
//! let mut server_path = path_of(&server, config.congestion);
//! let (mut client, mut server) = ((client, client_path), (server, server_path));
//!
//! // All that one end has to send arrives at the other.
//! let mut cross = |tcp: &mut Tcp, from: &mut (Tcb, PathState), to: &mut (Tcb, PathState), memory: &mut Memory| {
//!     let ((from, path), (to, path_back)) = (from, to);
//!     while let Some(tx) = prepare(from, TxContext { now, path, tcp, limits }) {
//!         let pieces = from.sending.queue.pieces(&tcp.extents, tx.payload_at, tx.segment.len);
//!         commit(from, path, tcp, now, &tx);
//!         let rx = RxSegment { segment: tx.segment, is_marked: false, payload: Payload::Memory(&pieces) };
//!         let (arena, pressure) = (&mut arena, Pressure::None);
//!         let (path, tcp, host) = (&mut *path_back, &mut *tcp, &mut *memory);
//!         let mut cx = RxContext { now, path, tcp, owner: PROGRAM, arena, pressure, host };
//!         toe_tcp::segment_arrives::segment_arrives(to, &mut cx, &rx);
//!     }
//! };
//! cross(&mut tcp, &mut server, &mut client, &mut memory);
//! cross(&mut tcp, &mut client, &mut server, &mut memory);
//! assert_eq!((client.0.state, server.0.state), (TcpState::Established, TcpState::Established));
//!
//! memory.write(PROGRAM, 1 << 20, b"hello");
//! client.0.sending.queue.push(&mut tcp.extents, PROGRAM, MemRange { offset: 1 << 20, len: 5 }).expect("room");
//! toe_tcp::shutdown_send(&mut client.0);
//! cross(&mut tcp, &mut client, &mut server, &mut memory);
//! let came = server.0.receiving.buffer.next_to_publish(server.0.data_nxt()).expect("five bytes");
//! assert_eq!(&memory.0[came.offset as usize..][..came.len as usize], b"hello");
//! assert_eq!(server.0.state, TcpState::CloseWait);
//!
//! toe_tcp::shutdown_send(&mut server.0);
//! cross(&mut tcp, &mut server, &mut client, &mut memory);
//! cross(&mut tcp, &mut client, &mut server, &mut memory);
//! assert_eq!((client.0.state, server.0.state), (TcpState::TimeWait, TcpState::Closed));
//! ```

#![forbid(unsafe_code)]

pub mod ack_event;
pub mod config;
pub mod congestion;
pub mod counter;
pub mod deferral;
pub mod ecn;
pub mod fast_open;
pub mod limit;
pub mod memory;
pub mod open;
pub mod options;
pub mod outgoing;
pub mod output;
pub mod path_mtu;
pub mod pieces;
pub mod pool;
pub mod pressure;
pub mod probe;
pub mod rack;
pub mod rate;
pub mod reassembly;
pub mod receive_buffer;
pub mod record;
pub mod record_ends;
pub mod recovery;
pub mod rtt;
pub mod scoreboard;
pub mod segment;
pub mod segment_arrives;
pub mod send_queue;
pub mod soft_error;
pub mod state;
mod stretches;
pub mod time_wait;
pub mod timeout;
mod tso;

pub use record::Tcb;

use toe_base::arena::Arena;
use toe_base::{Instant, SeqNum, SessionId};

use config::TcpConfig;
use congestion::models::Models;
use counter::Counters;
use limit::RateLimit;
use pressure::Pressure;
use reassembly::HeldPool;
use record::{OpeningPool, ParticularsPool, PathState, RepairPool, ReportPool};
use record_ends::RecordEndPool;
use scoreboard::SentPool;
use send_queue::ExtentPool;
use time_wait::TimeWaitContext;

/// Challenge ACKs (RFC 5961 section 7), as many as Linux had when it had such a limit.
const CHALLENGES_A_SECOND: u32 = 1000;

/// What all connections have together: the memory of what has no bound in one record, the limits and the counts.
#[derive(Debug)]
pub struct Tcp {
    /// What is on its way.
    pub sent: SentPool,
    /// What came out of order.
    pub held: HeldPool,
    /// Where the bytes lie that are in send queues, but for the first of each.
    pub extents: ExtentPool,
    /// Where the records end that are in send queues.
    pub record_ends: RecordEndPool,
    /// Of congestion control.
    pub models: Models,
    /// Of loss recovery.
    pub repairs: RepairPool,
    /// Of Fast Open, and of listeners that wait for first bytes.
    pub openings: OpeningPool,
    /// Of what ACKs tell of beside how far the stream has come.
    pub reports: ReportPool,
    /// What few connections have otherwise than the others, what did not go as it should among it.
    pub particulars: ParticularsPool,
    pub config: TcpConfig,
    /// Of challenge ACKs.
    pub challenges: RateLimit,
    pub counters: Counters,
}

/// The pools, as [`Tcp::used`] counts their places.
pub const POOLS: [&str; 11] = [
    "sent",
    "chunks of sent",
    "losses",
    "held",
    "extents",
    "record ends",
    "models",
    "repairs",
    "openings",
    "reports",
    "particulars",
];
pub type PoolUse = [usize; POOLS.len()];

impl Tcp {
    /// For so many connections at most. `secret` hides how much of a limit is left.
    pub fn new(connections: usize, secret: [u8; 16], config: TcpConfig) -> Tcp {
        Tcp {
            sent: SentPool::new(connections),
            held: HeldPool::new(connections),
            extents: ExtentPool::of_smallest(connections),
            record_ends: RecordEndPool::new(connections),
            models: Models::new(connections),
            repairs: RepairPool::of_smallest(connections),
            openings: OpeningPool::of_smallest(connections),
            reports: ReportPool::of_smallest(connections),
            particulars: ParticularsPool::of_smallest(connections),
            config,
            challenges: RateLimit::new(secret, CHALLENGES_A_SECOND),
            counters: Counters::default(),
        }
    }

    /// Places of the pools that connections have, a number a pool, in the order of [`POOLS`].
    pub fn used(&self) -> PoolUse {
        let [sent, chunks, losses] = self.sent.used_by_all();
        [
            sent,
            chunks,
            losses,
            self.held.used(),
            self.extents.used(),
            self.record_ends.used(),
            self.models.used(),
            self.repairs.used(),
            self.openings.used(),
            self.reports.used(),
            self.particulars.used(),
        ]
    }

    /// The same of one connection.
    pub fn used_by(&self, tcb: &Tcb, path: &PathState) -> PoolUse {
        let [sent, chunks, losses] = tcb.sending.board.places(&self.sent);
        [
            sent,
            chunks,
            losses,
            tcb.receiving.held.places(),
            tcb.sending.queue.slots(),
            self.particulars.one(&tcb.setup.particulars).record_ends.places(),
            path.cc.algorithm.slots(),
            path.cc.repair.len(),
            tcb.handshake.fast_open.opening.len(),
            tcb.receiving.acks.reports.len(),
            tcb.setup.particulars.len(),
        ]
    }

    /// Gives back all places that a connection has.
    pub fn vacate(&mut self, tcb: &mut Tcb, path: &mut PathState) {
        tcb.sending.board.clear(&mut self.sent);
        tcb.receiving.held.clear(&mut self.held);
        tcb.sending.queue.clear(&mut self.extents);
        self.forget_record_ends(tcb);
        path.cc.algorithm.clear(&mut self.models);
        self.repairs.vacate(&mut path.cc.repair);
        self.openings.vacate(&mut tcb.handshake.fast_open.opening);
        self.reports.vacate(&mut tcb.receiving.acks.reports);
        self.particulars.vacate(&mut tcb.setup.particulars);
    }

    /// Where the records end that are in its send queue.
    pub(crate) fn record_ends_of(&self, tcb: &Tcb) -> &[SeqNum] {
        let particulars = self.particulars.taken(&tcb.setup.particulars);
        particulars.map_or(&[], |particulars| particulars.record_ends.ends(&self.record_ends))
    }

    /// There is nothing in its send queue any more.
    pub fn forget_record_ends(&mut self, tcb: &Tcb) {
        if let Some(particulars) = self.particulars.taken_mut(&tcb.setup.particulars) {
            particulars.record_ends.clear(&mut self.record_ends);
        }
    }

    /// For a segment of a connection in TIME_WAIT.
    pub fn in_time_wait(&mut self, now: Instant) -> TimeWaitContext<'_> {
        let Tcp { config, challenges, counters, .. } = self;
        TimeWaitContext { now, rfc1337: config.rfc1337, challenges, counters }
    }
}

/// What the steps of SEGMENT ARRIVES need beside the record.
#[derive(Debug)]
pub struct RxContext<'a, H> {
    pub now: Instant,
    /// What is known of the connection's path.
    pub path: &'a mut PathState,
    pub tcp: &'a mut Tcp,
    /// Who has the connection and is told what of its send memory is free; session 0: nobody.
    pub owner: SessionId,
    /// Receive memory of the session that the connection's data goes to.
    pub arena: &'a mut Arena,
    /// How scarce what it has is.
    pub pressure: Pressure,
    pub host: &'a mut H,
}

/// The program stopped sending: FIN goes out behind all that is queued (RFC 9293 section 3.10.4, CLOSE call).
pub fn shutdown_send(tcb: &mut Tcb) {
    use record::Fin;
    use state::{TcpEvent, TcpState};
    if tcb.snd.fin.is_queued() || !tcb.state.may_send() {
        return;
    }
    tcb.snd.fin = Fin::Queued;
    if matches!(tcb.state, TcpState::Established | TcpState::CloseWait) {
        tcb.state = tcb.state.after(TcpEvent::Close);
    }
}
