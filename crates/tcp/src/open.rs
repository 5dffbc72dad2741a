//! Making a connection's record: the active OPEN (RFC 9293 section 3.10.1) and a SYN that arrives at a listener
//! (section 3.10.7.2).

use crate::config::{AlgorithmName, TcpConfig};
use crate::ecn;
use crate::outgoing::TIMESTAMPS_LEN;
use crate::receive_buffer::ReceiveBuffer;
use crate::record::{
    Algorithm, Congestion, Negotiated, PathState, ReceiveSequence, RoundTrip, Sack, Tcb, TimestampUse,
};
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
    take_syn_options(&mut tcb, syn);
    tcb.handshake.fast_open.was_passive = true;
    tcb.setup.ecn.on = ecn::answers(params.tcp.ecn, syn);
    tcb
}

/// What is known of the path of a connection that was just made.
pub fn path_of(tcb: &Tcb, algorithm: AlgorithmName) -> PathState {
    let mut path = PathState { rtt: RoundTrip::initial(), ..PathState::default() };
    path.tuning.since = tcb.timers.heard;
    begin_path(&mut path, tcb, Algorithm::new(algorithm));
    path
}

/// Nothing was acknowledged yet.
fn begin_path(path: &mut PathState, tcb: &Tcb, algorithm: Algorithm) {
    path.cc = Congestion::initial(tcb.snd.mss, algorithm);
    path.cc.recover = tcb.handshake.iss;
    path.cc.usage.round_end = tcb.handshake.iss;
    path.rack.fack = tcb.snd.una;
}

fn fresh(params: &OpenParams, event: TcpEvent) -> Tcb {
    let mut tcb = Tcb::vacant();
    tcb.is_local = params.is_local;
    tcb.is_v4 = params.is_v4;
    tcb.state = tcb.state.after(event);
    tcb.handshake.iss = params.iss;
    tcb.snd.una = params.iss;
    tcb.snd.up = params.iss;
    tcb.snd.nxt = params.iss;
    tcb.sending.nagle.small = params.iss;
    tcb.snd.mss = params.mss;
    tcb.setup.negotiated.rcv_scale = WindowScale::to_cover(WindowSize::new(RECEIVE_WINDOW_MAX));
    tcb.receiving.acks.quick = QUICK_ACKS;
    // On a link of our own, timestamps tell nothing that the clock does not.
    let timestamps = TimestampUse { recent: 0, offset: params.timestamp_offset };
    tcb.setup.negotiated.timestamps = (!params.is_local).then_some(timestamps);
    // It is offered where frames can be lost.
    tcb.setup.negotiated.sack = if params.is_local { Sack::Off } else { Sack::Offered };
    tcb.timers.heard = params.now;
    (tcb.status.traffic.sent_at, tcb.status.traffic.received_at) = (params.now, params.now);
    tcb
}

/// The peer's SYN, with its options: they hold for the life of the connection.
pub fn take_syn(tcb: &mut Tcb, path: &mut PathState, syn: &Segment) {
    take_syn_options(tcb, syn);
    begin_path(path, tcb, path.cc.algorithm);
}

fn take_syn_options(tcb: &mut Tcb, syn: &Segment) {
    tcb.handshake.irs = syn.seq;
    tcb.rcv.nxt = syn.seq.plus(1);
    tcb.rcv.up = syn.seq.minus(ReceiveSequence::LONG_AGO);
    tcb.receiving.acks.last_sent = syn.seq;
    let window_max = initial_window(tcb);
    tcb.receiving.buffer = ReceiveBuffer::new(tcb.receiving.buffer.session, tcb.rcv.nxt, window_max);
    let Negotiated { sack, timestamps, .. } = &mut tcb.setup.negotiated;
    *timestamps = match (*timestamps, syn.timestamps) {
        (Some(ours), Some((recent, _))) => Some(TimestampUse { recent, ..ours }),
        _ => None,
    };
    *sack = if *sack != Sack::Off && syn.sack_permitted { Sack::Agreed } else { Sack::Off };
    let overhead = if tcb.ts_recent().is_some() { TIMESTAMPS_LEN } else { 0 };
    let theirs = mss_offered(tcb.is_v4, syn).max(MSS_MIN);
    tcb.snd.mss = tcb.snd.mss.min(theirs) - overhead;
    tcb.snd.mss_max = tcb.snd.mss;
    match syn.window_scale {
        Some(scale) => tcb.setup.negotiated.snd_scale = scale,
        None => {
            // RFC 7323 section 2.2: both sides send the option, or neither scales.
            tcb.setup.negotiated.snd_scale = WindowScale::ZERO;
            tcb.setup.negotiated.rcv_scale = WindowScale::ZERO;
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
    WindowSize::new(tcb.receiving.buffer.window_max.min(u32::from(u16::MAX)))
}

fn initial_window(tcb: &Tcb) -> u32 {
    // Both ends share one machine's memory and no path can congest: start where a path would have grown to.
    if tcb.is_local { RECEIVE_WINDOW_INITIAL * 4 } else { RECEIVE_WINDOW_INITIAL }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_wire::tcp::TcpFlags;

    #[test]
    fn a_peer_that_names_no_size_takes_what_its_family_says() {
        let syn = Segment { flags: TcpFlags::SYN, ..Segment::reset(SeqNum::new(1), None) };
        for (is_v4, size) in [(true, 536), (false, 1220)] {
            assert_eq!(mss_offered(is_v4, &syn), size);
            assert_eq!(mss_offered(is_v4, &Segment { mss: Some(700), ..syn }), 700);
        }
    }
}
