//! Soft errors: what hinders a connection and does not end it (RFC 9293 sections 3.9.1.8, 3.9.2.2 and 3.8.3). A program that
//! asked hears of each at once; for any other the last one is noted until the peer acknowledges something, shown in the
//! connection's information, and is what the program is told if the connection ends by a time-out.
//!
//! Called for ICMP errors and silent neighbours ([`crate::engine`]), time-outs and the ACK step.

use crate::record::{Hears, Noted, Tcb};
use toe_abi::errno::Errno;

/// Time-outs after which the path is looked at, and whoever asked is told: R1 of RFC 9293 section 3.8.3.
pub const PATH_RETRIES: u8 = 3;

/// Something is said to hinder the connection.
pub fn arrived(tcb: &mut Tcb, errno: Errno) {
    if tcb.setup.options.soft_errors == Hears::None {
        tcb.status.events.noted = Noted { errno, count: tcb.status.events.noted.count.wrapping_add(1) };
    } else {
        tcb.status.events.soft_error = errno;
    }
}

/// The retransmission timer ran out once more. Between local ends that is want of memory, not trouble on the way.
pub fn timed_out(tcb: &mut Tcb) {
    let is_r1 = tcb.sending.timeouts == PATH_RETRIES && tcb.state.is_synchronized() && !tcb.is_local;
    if is_r1 && tcb.setup.options.soft_errors == Hears::IcmpAndR1 {
        tcb.status.events.soft_error = Errno::ETIMEDOUT;
    }
}

/// The peer acknowledges what it got: whatever was in the way is so no more.
pub fn overcome(tcb: &mut Tcb) {
    tcb.status.events.noted.errno = Errno::OK;
}

/// What a program is told whose connection is given up after so many attempts.
pub fn reason_to_give_up(tcb: &Tcb) -> Errno {
    let noted = tcb.status.events.noted.errno;
    if noted.is_ok() { Errno::ETIMEDOUT } else { noted }
}
