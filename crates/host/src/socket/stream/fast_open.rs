//! A connection whose SYN takes the program's first bytes with it (TCP Fast Open, RFC 7413): until the program has sent them
//! it is writable, though it is not connected.

use super::{ConnectTold, Link, OUT, Stream};
use crate::socket::FastOpen;
use toe_abi::command::{FLOW_WAITS_FOR_DATA, FlowInfo};

/// Bytes that fit a SYN that waits for them; 0: it does not wait.
pub(super) fn syn_room(info: &FlowInfo) -> u32 {
    if info.flags & FLOW_WAITS_FOR_DATA != 0 { info.mss.into() } else { 0 }
}

impl Stream {
    /// Whether the SYN waits for the first bytes that the program sends.
    pub fn waits_for_bytes(&self) -> bool {
        self.syn_room > 0 && self.link == Link::Connecting
    }

    /// The engine may have a cookie of the server's.
    pub fn open_fast(&mut self, fast: FastOpen, info: &FlowInfo) {
        self.syn_room = syn_room(info);
        if !self.waits_for_bytes() {
            return;
        }
        if fast == FastOpen::Message {
            // The call that sends them is the one that connects.
            self.told = ConnectTold::InProgress;
        }
        self.publish(OUT);
    }
}
