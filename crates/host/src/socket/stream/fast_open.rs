//! A connection whose SYN takes the program's first bytes with it (TCP Fast Open, RFC 7413): until the program has sent them
//! it is writable, though it is not connected.

use super::{ConnectAnswer, OUT, Stream};
use crate::socket::FastOpen;
use toe_abi::command::FlowInfo;

impl Stream {
    /// The engine may have a cookie of the server's.
    pub fn open_fast(&mut self, fast: FastOpen, info: &FlowInfo) {
        self.link.read_syn_room(info);
        if !self.link.waits_for_bytes() {
            return;
        }
        if fast == FastOpen::Message {
            // The call that sends them is the one that connects.
            self.connect_answer = ConnectAnswer::InProgress;
        }
        self.publish(OUT);
    }
}
