//! Options that a host sets ([`FlowOption`]): what they change of a connection in TCP.

use crate::config::AlgorithmName;
use crate::record::{Hears, Particulars, PathState, SendDue, Tcb, WaitTimes};
use crate::{Tcp, congestion, timeout};
use toe_abi::entry::FlowOption;
use toe_base::Instant;
use toe_base::limits::{RECEIVE_WINDOW_INITIAL, WINDOW_MAX, WINDOW_MIN};

/// The part of the traffic class that is not Diffserv's.
const ECN_BITS: u8 = 0b11;

/// Any value is taken: a host may send what it likes.
pub fn set(tcb: &mut Tcb, path: &mut PathState, tcp: &mut Tcp, now: Instant, option: FlowOption, value: u32) {
    let options = &mut tcb.setup.options;
    match option {
        FlowOption::NoDelay => {
            tcb.sending.nagle.no_delay = value != 0;
            // Linux: what is held back goes out, by TCP_CORK, too.
            if value != 0 && tcb.queue_end().after(tcb.snd.nxt) {
                tcb.sending.due.add(SendDue::UNCORKED);
            }
        }
        FlowOption::Cork => {
            let nagle = &mut tcb.sending.nagle;
            nagle.cork = value != 0;
            // Linux: with its end what MSG_MORE holds goes out, too.
            nagle.more &= nagle.cork;
        }
        FlowOption::KeepAlive => options.keepalive = value != 0,
        FlowOption::KeepIdleSecs
        | FlowOption::KeepIntervalSecs
        | FlowOption::KeepCount
        | FlowOption::UserTimeoutMs
        | FlowOption::SynRetries
        | FlowOption::FinWait2Secs => {
            if let Some(Particulars { patience, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars) {
                set_patience(patience, option, value);
            }
        }
        FlowOption::ReceiveShut => options.receive_shut = value != 0,
        FlowOption::ReceiveWindowMax => limit_receive_window(tcb, tcp, value.clamp(WINDOW_MIN, WINDOW_MAX)),
        FlowOption::Congestion => {
            if let Some(name) = AlgorithmName::from_number(value) {
                congestion::choose(tcb, path, tcp, name);
            }
        }
        FlowOption::MaxPacingRate => congestion::limit_pacing(tcb, path, &mut tcp.particulars, value),
        FlowOption::TrafficClass => options.traffic_class = value as u8 & !ECN_BITS,
        FlowOption::HopLimit => {
            if let Ok(limit @ 1..) = u8::try_from(value) {
                options.hop_limit = limit;
            }
        }
        FlowOption::SoftErrors => options.soft_errors = Hears::from_value(value),
        // Whoever calls this knows what they are to it: TCP has nothing to do with them.
        FlowOption::UnsentLowWater
        | FlowOption::SharesName
        | FlowOption::TellEnd
        | FlowOption::AbortAtClose => {}
    }
    if matches!(option, FlowOption::KeepAlive | FlowOption::KeepIdleSecs) {
        timeout::rearm_keepalive(tcb, &mut tcp.particulars, now);
    }
}

/// More seconds than a record has room for, which Linux takes for none of these options, are as many as it has.
fn seconds(value: u32) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// How long it waits for what.
fn set_patience(patience: &mut WaitTimes, option: FlowOption, value: u32) {
    match option {
        FlowOption::KeepIdleSecs => patience.keep_idle_secs = seconds(value).max(1),
        FlowOption::KeepIntervalSecs => patience.keep_interval_secs = seconds(value).max(1),
        FlowOption::KeepCount => patience.keep_count = value.clamp(1, 127) as u8,
        FlowOption::UserTimeoutMs => patience.user_timeout_ms = value,
        FlowOption::SynRetries => patience.syn_retries = value.min(u32::from(timeout::SYN_RETRIES_MAX)) as u8,
        FlowOption::FinWait2Secs => patience.fin_wait_2_secs = (value != u32::MAX).then_some(seconds(value)),
        _ => {}
    }
}

fn limit_receive_window(tcb: &mut Tcb, tcp: &mut Tcp, wanted: u32) {
    if let Some(particulars) = tcp.particulars.one_mut(&mut tcb.setup.particulars) {
        particulars.receive_window_limit = wanted;
    }
    // Of less than a segment a sender that avoids silly windows (RFC 9293 section 3.8.6.2.1) would wait for its timer
    // each time. What was offered stays offered; a larger window comes as it is earned.
    let segment = if tcb.is_local { RECEIVE_WINDOW_INITIAL } else { u32::from(tcb.snd.mss) };
    tcb.receiving.buffer.window_max = tcb.receiving.buffer.window_max.min(wanted.max(segment));
}
