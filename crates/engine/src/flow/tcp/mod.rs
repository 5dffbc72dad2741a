//! TCP on one [`Flow`] record: RFC 9293 and what the years have added to it.
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

pub mod congestion;
pub mod deferral;
pub mod ecn;
pub mod fast_open;
pub mod isn;
pub mod open;
pub mod output;
pub mod path_mtu;
pub mod probe;
pub mod rack;
pub mod rate;
pub mod recovery;
pub mod rtt;
pub mod segment_arrives;
pub mod soft_error;
pub mod state;
pub mod timeout;
mod tso;

use toe_base::Instant;
use toe_base::arena::Arena;

use crate::counter::Counters;
use crate::flow::limit::RateLimit;
use crate::flow::pressure::Pressure;
use crate::flow::reassembly::HeldPool;
use crate::flow::record::Flow;
use crate::flow::record_ends::RecordEndPool;
use crate::flow::scoreboard::SentPool;
use ecn::EcnMode;

/// What the steps of SEGMENT ARRIVES need beside the record.
#[derive(Debug)]
pub struct RxContext<'a, H> {
    pub now: Instant,
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
pub fn shutdown_send(flow: &mut Flow) {
    use state::{TcpEvent, TcpState};
    if flow.snd.fin_queued || !flow.conn.state.may_send() {
        return;
    }
    flow.snd.fin_queued = true;
    if matches!(flow.conn.state, TcpState::Established | TcpState::CloseWait) {
        flow.conn.state = flow.conn.state.after(TcpEvent::Close);
    }
}
