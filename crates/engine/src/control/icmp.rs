//! Answers to what concerns no connection: echo requests (RFC 1122 section 3.2.2.6) and segments for connections
//! that do not exist (RFC 9293 section 3.10.7.1).

use crate::work::ControlFrame;
use toe_base::Addr;
use toe_wire::link::MacAddr;

/// Longest echo data that is sent back; a longer request is not answered.
pub const ECHO_MAX: usize = 1472;

/// The reply to an echo request, or `None` when it is too long to be worth memory.
pub fn echo_reply(
    to_mac: MacAddr,
    to: Addr,
    source: Addr,
    ident: u16,
    seq: u16,
    data: &[u8],
) -> Option<ControlFrame> {
    (data.len() <= ECHO_MAX).then(|| ControlFrame::EchoReply {
        to_mac,
        to,
        source,
        ident,
        seq,
        data: data.to_vec(),
    })
}
