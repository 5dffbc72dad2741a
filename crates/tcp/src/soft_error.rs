//! Soft errors: what hinders a connection and does not end it (RFC 9293 sections 3.9.1.8, 3.9.2.2 and 3.8.3). A program that
//! asked hears of each at once; for any other the last one is noted until the peer acknowledges something, shown in the
//! connection's information, and is what the program is told if the connection ends by a time-out.
//!
//! Called for ICMP errors and silent neighbours ([`crate::engine`]), time-outs and the ACK step.

use super::timeout::PATH_RETRIES;
use crate::record::Tcb;
use toe_abi::errno::Errno;

/// Which soft errors the program hears of as they come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hears {
    /// They are only noted (SHLD-20).
    #[default]
    None,
    /// Those that ICMP messages tell.
    Icmp,
    /// The same, and that retransmissions reached R1. Linux tells nobody of that, and a program that only knows Linux would take
    /// it for the end: hence a word of its own.
    IcmpAndR1,
}

impl Hears {
    /// What [`toe_abi::entry::FlowOption::SoftErrors`] says.
    pub const fn from_value(value: u32) -> Hears {
        match value {
            0 => Hears::None,
            2 => Hears::IcmpAndR1,
            _ => Hears::Icmp,
        }
    }
}

/// The last one that was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// [`Errno::OK`]: none since the peer last acknowledged something.
    pub errno: Errno,
    /// How many were noted, modulo 256.
    pub count: u8,
}

/// Something is said to hinder the connection.
pub fn arrived(tcb: &mut Tcb, errno: Errno) {
    if tcb.options.soft_errors == Hears::None {
        tcb.snd.soft_error = Noted { errno, count: tcb.snd.soft_error.count.wrapping_add(1) };
    } else {
        tcb.events.soft_error = Some(errno);
    }
}

/// The retransmission timer ran out once more. Between local ends that is want of memory, not trouble on the way.
pub fn timed_out(tcb: &mut Tcb) {
    let is_r1 = tcb.rtt.timeouts == PATH_RETRIES && tcb.state.is_synchronized() && !tcb.is_local;
    if is_r1 && tcb.options.soft_errors == Hears::IcmpAndR1 {
        tcb.events.soft_error = Some(Errno::ETIMEDOUT);
    }
}

/// The peer acknowledges what it got: whatever was in the way is so no more.
pub fn overcome(tcb: &mut Tcb) {
    tcb.snd.soft_error.errno = Errno::OK;
}

/// What a program is told whose connection is given up after so many attempts.
pub fn reason_to_give_up(tcb: &Tcb) -> Errno {
    let noted = tcb.snd.soft_error.errno;
    if noted.is_ok() { Errno::ETIMEDOUT } else { noted }
}
