//! TCP on one [`Flow`] record: RFC 9293, with RFC 5681/6582 congestion control, RFC 6298 timers, RFC 7323 options and
//! RFC 6528 sequence numbers.
//!
//! | to read | where |
//! |---|---|
//! | states and the transition table | [`state`] |
//! | opening, actively and passively | [`open`] |
//! | SEGMENT ARRIVES (RFC 9293 section 3.10.7) | [`segment_arrives`], one file a step |
//! | what to send now | [`output`] |
//! | time-outs | [`timeout`] |
//! | round-trip time, congestion window | [`rtt`], [`congestion`] |
//!
//! Nothing here touches a port, a ring, the flow table or another flow.

pub mod congestion;
pub mod isn;
pub mod open;
pub mod output;
pub mod rtt;
pub mod segment_arrives;
pub mod state;
pub mod timeout;

use toe_base::Instant;
use toe_base::arena::Arena;

use crate::counter::Counters;
use crate::flow::record::Flow;

/// What the steps of SEGMENT ARRIVES need beside the record.
#[derive(Debug)]
pub struct RxContext<'a, H> {
    pub now: Instant,
    /// Receive memory of the session that the flow's data goes to.
    pub arena: &'a mut Arena,
    pub host: &'a mut H,
    pub counters: &'a mut Counters,
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
