//! How a connection was opened and set up. One part of the record ([`super::Tcb`]).

use super::{FastOpen, Hears};
use crate::pool::PoolSlot;
use toe_base::window::WindowScale;
use toe_base::{Instant, SeqNum};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setup {
    pub negotiated: Negotiated,
    pub ecn: Ecn,
    pub options: Options,
    /// Where [`super::ParticularsPool`] has what most connections have as it is from the beginning, once it has been changed.
    pub particulars: PoolSlot,
}

/// Where both streams begin, and how the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// Of the two sequence spaces (RFC 9293 section 3.3.1).
    pub iss: SeqNum,
    pub irs: SeqNum,
    pub fast_open: FastOpen,
}

/// What the SYNs of both ends say: offered in ours, and agreed on once the peer's has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// RFC 7323 section 2.
    pub snd_scale: WindowScale,
    pub rcv_scale: WindowScale,
    pub sack: Sack,
    pub timestamps: Option<TimestampUse>,
}

/// Selective acknowledgements (RFC 2018) and what came twice (RFC 2883).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sack {
    #[default]
    Off,
    Offered,
    Agreed,
}

/// Timestamps (RFC 7323 section 3). No bytes are left between them, as each record has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(Rust, packed(2))]
pub struct TimestampUse {
    /// TS.Recent (section 4.3).
    pub recent: u32,
    /// What ours start from.
    pub offset: u32,
}

impl TimestampUse {
    /// TSval: the millisecond clock plus a secret offset for each connection (section 7.1).
    pub fn value_at(self, at: Instant) -> u32 {
        at.tcp_timestamp_ms().wrapping_add(self.offset)
    }
}

/// Explicit congestion notification (RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ecn {
    /// Both ends do it.
    pub on: bool,
    /// ACKs carry ECE until the peer says CWR; with DCTCP, until a segment comes without a mark.
    pub echo: bool,
    /// The next new segment says CWR.
    pub tell_reduced: bool,
}

/// What the program set, but for what few set ([`super::WaitTimes`], [`super::Nagle`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    pub keepalive: bool,
    /// The program takes no more.
    pub receive_shut: bool,
    /// Diffserv field in its place in the byte, and TTL or hop limit, of what is sent.
    pub traffic_class: u8,
    pub hop_limit: u8,
    pub soft_errors: Hears,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            keepalive: false,
            receive_shut: false,
            traffic_class: 0,
            hop_limit: toe_wire::ipv4::TTL,
            soft_errors: Hears::None,
        }
    }
}
