//! What a connection remembers while it is being opened, if there is something out of the ordinary. One part of the record
//! ([`super::Tcb`]); [`crate::fast_open`] and [`crate::deferral`] work on it.

use crate::pool::{Pool, PoolSlot};
use toe_base::Instant;
use toe_wire::tcp::FastOpenCookie;

/// RFC 7413.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// Where [`OpeningPool`] has what Fast Open and deferral need.
    pub opening: PoolSlot,
    pub syn_text: SynText,
    /// It came in at a listener.
    pub was_passive: bool,
    /// The program may have it though its handshake is not complete, and was not told of that.
    pub early: bool,
}

/// The program's bytes in a SYN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynText {
    #[default]
    None,
    /// The first SYN waits for some.
    Awaited,
    /// They were taken: by the peer, or of the peer.
    Taken,
}

/// Where the openings of all connections lie that are out of the ordinary. Each can have one.
pub type OpeningPool = Pool<Opening, 1>;

/// Most connections open without.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// The option of our first SYN, or of our first SYN-ACK.
    pub option: Option<FastOpenCookie>,
    /// The first SYN has room for so many bytes, and had so many.
    pub room: u16,
    pub sent: u32,
    /// That our SYN was not answered has been noted.
    pub was_lost: bool,
    /// The listener that it comes in at wants it with its first bytes.
    pub deferral: Option<Deferral>,
}

/// Until when a bare ACK does not complete the handshake, and whether one has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deferral {
    pub until: Instant,
    pub is_heard: bool,
}
