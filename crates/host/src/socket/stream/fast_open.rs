//! A connection whose SYN takes the program's first bytes with it (TCP Fast Open, RFC 7413): until the program has sent them
//! it is writable, though it is not connected.

use super::{ConnectTold, OUT, Stream};
use crate::socket::stream::syn_room;
use toe_abi::command::FlowInfo;

impl Stream {
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

/// Whether the program has bytes for the SYN (TCP Fast Open, RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FastOpen {
    #[default]
    No,
    /// MSG_FASTOPEN: they come with this call.
    Message,
    /// TCP_FASTOPEN_CONNECT: with the first one that sends.
    Option,
}
