//! What a connection remembers of Fast Open. One part of the record ([`super::Tcb`]); [`crate::fast_open`] works
//! on it.

use toe_wire::tcp::FastOpenCookie;

/// RFC 7413.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpen {
    /// The option of our first SYN, or of our first SYN-ACK.
    pub option: Option<FastOpenCookie>,
    /// The first SYN waits for the program's first bytes, and has room for so many.
    pub waits: bool,
    pub room: u16,
    /// Bytes that it had.
    pub sent: u32,
    /// The SYN's bytes were taken: by the peer, or of the peer.
    pub taken: bool,
    /// It came in at a listener.
    pub was_passive: bool,
    /// The program may have it though its handshake is not complete, and was not told of that.
    pub early: bool,
    /// That our SYN was not answered has been noted.
    pub was_lost: bool,
}
