//! TCP on one [`Tcb`] record: RFC 9293 and what the years have added to it.
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
//! | what is lost, and the window until it is repaired | [`rack`], [`recovery`] |
//! | round-trip time, delivery rate | [`rtt`], [`rate`] |
//! | the congestion window while all is well, one algorithm a file | [`congestion`] |
//! | marks instead of losses | [`ecn`] |
//! | octets in the SYN | [`fast_open`] |
//! | the largest segment that gets through | [`path_mtu`] |
//! | trouble that does not end a connection | [`soft_error`] |
//!
//! Nothing here touches a port, a ring, the flow table or another flow.

#![forbid(unsafe_code)]

pub mod congestion;
pub mod counter;
pub mod deferral;
pub mod ecn;
pub mod fast_open;
pub mod limit;
pub mod memory;
pub mod open;
pub mod output;
pub mod path_mtu;
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
pub mod timeout;
mod tso;

pub use record::Tcb;

use toe_base::arena::Arena;
use toe_base::{Instant, SessionId};

use counter::Counters;
use ecn::EcnMode;
use limit::RateLimit;
use pressure::Pressure;
use reassembly::HeldPool;
use record_ends::RecordEndPool;
use scoreboard::SentPool;

/// What the steps of SEGMENT ARRIVES need beside the record.
#[derive(Debug)]
pub struct RxContext<'a, H> {
    pub now: Instant,
    /// Who has the connection and is told what of its send memory is free; session 0: nobody.
    pub owner: SessionId,
    /// Receive memory of the session that the flow's data goes to.
    pub arena: &'a mut Arena,
    /// How scarce what it has is.
    pub pressure: Pressure,
    /// What all flows have on their way.
    pub sent: &'a mut SentPool,
    /// What came out of order, of all flows.
    pub held: &'a mut HeldPool,
    /// Where the records end that all flows have in their send queues.
    pub record_ends: &'a mut RecordEndPool,
    pub ecn: EcnMode,
    /// A reset does not end TIME_WAIT.
    pub rfc1337: bool,
    pub host: &'a mut H,
    pub counters: &'a mut Counters,
    /// Of challenge ACKs, all connections together.
    pub challenges: &'a mut RateLimit,
}

/// The program stopped sending: FIN goes out behind all that is queued (RFC 9293 section 3.10.4, CLOSE call).
pub fn shutdown_send(flow: &mut Tcb) {
    use state::{TcpEvent, TcpState};
    if flow.snd.fin_queued || !flow.state.may_send() {
        return;
    }
    flow.snd.fin_queued = true;
    if matches!(flow.state, TcpState::Established | TcpState::CloseWait) {
        flow.state = flow.state.after(TcpEvent::Close);
    }
}
