//! Making a connection's record: the active OPEN (RFC 9293 section 3.10.1) and a SYN that arrives at a listener
//! (section 3.10.7.2).

use crate::config::TcpConfig;
use crate::ecn;
use crate::outgoing::TIMESTAMPS_LEN;
use crate::receive_buffer::ReceiveBuffer;
use crate::record::{Algorithm, Congestion, ReceiveSequence, RoundTrip, Tcb};
use crate::segment::Segment;
use crate::state::TcpEvent;
use toe_base::limits::{RECEIVE_WINDOW_INITIAL, RECEIVE_WINDOW_MAX};
use toe_base::window::{WindowScale, WindowSize};
use toe_base::{Instant, SeqNum};

/// RFC 9293 section 3.7.1: what a peer without the option takes over IPv4, and over IPv6.
const MSS_DEFAULT: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// Smallest MSS that is believed: a smaller one would make each byte cost a frame.
const MSS_MIN: u16 = 48;
/// ACKs sent at once at a connection's start, as the peer's slow start needs them.
pub const QUICK_ACKS: u8 = 16;

/// What opening needs to know.
#[derive(Clone, Copy, Debug)]
pub struct OpenParams {
    /// Both ends are of one machine: no segment becomes a frame.
    pub is_local: bool,
    /// Over IPv4; else over IPv6.
    pub is_v4: bool,
    pub iss: SeqNum,
    /// What timestamps start from.
    pub timestamp_offset: u32,
    /// Largest payload of a segment on this path, without options.
    pub mss: u16,
    pub tcp: TcpConfig,
    pub now: Instant,
}

/// A connection in SYN_SENT, its SYN not sent yet.
pub fn active(params: &OpenParams) -> Tcb {
    fresh(params, TcpEvent::Open)
}

/// A connection in SYN_RECEIVED, its SYN-ACK not sent yet.
pub fn passive(params: &OpenParams, syn: &Segment) -> Tcb {
    let mut tcb = fresh(params, TcpEvent::Accept);
    take_syn(&mut tcb, syn);
    tcb.fast_open.was_passive = true;
    tcb.ecn.on = ecn::answers(params.tcp.ecn, syn);
    tcb
}

fn fresh(params: &OpenParams, event: TcpEvent) -> Tcb {
    let mut tcb = Tcb::vacant();
    tcb.is_local = params.is_local;
    tcb.is_v4 = params.is_v4;
    tcb.state = tcb.state.after(event);
    tcb.snd.iss = params.iss;
    tcb.snd.timestamp_offset = params.timestamp_offset;
    tcb.snd.una = params.iss;
    tcb.snd.up = params.iss;
    tcb.snd.nxt = params.iss;
    tcb.snd.small = params.iss;
    tcb.snd.mss = params.mss;
    tcb.rcv.scale = WindowScale::to_cover(WindowSize::new(RECEIVE_WINDOW_MAX));
    tcb.rcv.quick_acks = QUICK_ACKS;
    // On a link of our own, timestamps tell nothing that the clock does not.
    tcb.rcv.ts_recent = if params.is_local { None } else { Some(0) };
    tcb.rcv.tune_since = params.now;
    tcb.rtt = RoundTrip::initial();
    tcb.cc = Congestion::initial(params.mss, Algorithm::new(params.tcp.congestion));
    tcb.cc.recover = params.iss;
    tcb.cc.usage.round_end = params.iss;
    // It is offered where frames can be lost.
    tcb.rcv.sack_permitted = !params.is_local;
    tcb.timers.heard = params.now;
    (tcb.traffic.sent_at, tcb.traffic.received_at) = (params.now, params.now);
    tcb
}

/// The peer's SYN, with its options: they hold for the life of the connection.
pub fn take_syn(tcb: &mut Tcb, syn: &Segment) {
    tcb.rcv.irs = syn.seq;
    tcb.rcv.nxt = syn.seq.plus(1);
    tcb.rcv.up = syn.seq.minus(ReceiveSequence::LONG_AGO);
    tcb.rcv.acked = syn.seq;
    let window_max = initial_window(tcb);
    tcb.receive = ReceiveBuffer::new(tcb.receive.session, tcb.rcv.nxt, window_max);
    tcb.rcv.ts_recent = match (tcb.rcv.ts_recent, syn.timestamps) {
        (Some(_), Some((value, _))) => Some(value),
        _ => None,
    };
    let overhead = if tcb.rcv.ts_recent.is_some() { TIMESTAMPS_LEN } else { 0 };
    let theirs = mss_offered(tcb.is_v4, syn).max(MSS_MIN);
    tcb.snd.mss = tcb.snd.mss.min(theirs) - overhead;
    tcb.snd.mss_max = tcb.snd.mss;
    tcb.cc = Congestion::initial(tcb.snd.mss, tcb.cc.algorithm);
    tcb.cc.recover = tcb.snd.iss;
    tcb.cc.usage.round_end = tcb.snd.iss;
    tcb.snd.sack_permitted = tcb.rcv.sack_permitted && syn.sack_permitted;
    tcb.rcv.sack_permitted = tcb.snd.sack_permitted;
    tcb.rack.fack = tcb.snd.una;
    match syn.window_scale {
        Some(scale) => tcb.snd.scale = scale,
        None => {
            // RFC 7323 section 2.2: both sides send the option, or neither scales.
            tcb.snd.scale = WindowScale::ZERO;
            tcb.rcv.scale = WindowScale::ZERO;
        }
    }
    tcb.rcv.edge = tcb.rcv.nxt.plus(syn_window(tcb).bytes());
    // The window of a SYN is never scaled (RFC 7323 section 2.2).
    tcb.snd.wnd = syn.window.scaled(WindowScale::ZERO);
    tcb.snd.max_wnd = tcb.snd.wnd;
    tcb.snd.wl1 = syn.seq;
    tcb.snd.wl2 = tcb.snd.una;
}

/// What the peer says that it takes, or is taken to say.
pub fn mss_offered(is_v4: bool, syn: &Segment) -> u16 {
    syn.mss.unwrap_or_else(|| mss_default(is_v4))
}

/// What a peer takes that has not said it.
pub fn mss_default(is_v4: bool) -> u16 {
    if is_v4 { MSS_DEFAULT } else { MSS_DEFAULT_V6 }
}

/// The window of our SYN, which is never scaled.
pub fn syn_window(tcb: &Tcb) -> WindowSize {
    WindowSize::new(tcb.receive.window_max.min(u32::from(u16::MAX)))
}

fn initial_window(tcb: &Tcb) -> u32 {
    // Both ends share one machine's memory and no path can congest: start where a path would have grown to.
    if tcb.is_local { RECEIVE_WINDOW_INITIAL * 4 } else { RECEIVE_WINDOW_INITIAL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_names_no_size_takes_what_its_family_says() {
        let syn = Segment { syn: true, rst: false, ..Segment::reset(SeqNum::new(1), None) };
        for (is_v4, size) in [(true, 536), (false, 1220)] {
            assert_eq!(mss_offered(is_v4, &syn), size);
            assert_eq!(mss_offered(is_v4, &Segment { mss: Some(700), ..syn }), 700);
        }
    }
}
