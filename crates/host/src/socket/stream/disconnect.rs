//! A connection that its program takes back: connect to AF_UNSPEC, or shutdown while it connects. Linux's `tcp_disconnect`: what was received
//! and not read is dropped, and the socket is as one that never connected, but for an error.

use super::{ALL, ConnectAnswer, DRAINED, HowClosed, Link, Stream};
use crate::queue::QueueIo;
use crate::socket::received::Received;
use crate::socket::urgent::Urgent;
use std::net::{Ipv4Addr, SocketAddr};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;

/// How a stream has ended, or is, as it is written down for who has it next.
const CLOSED: u8 = 1;
const DISCONNECTED: u8 = 2;
const ERROR_WAITS: u8 = 4;
/// connect has said that it is under way, and not yet that it is done.
const ANSWER_WAITS: u8 = 8;

impl Stream {
    /// Ends it; `had_connection`: the peer is to hear of it, and who looks here of an error.
    pub fn disconnect(&mut self, io: &mut QueueIo, had_connection: bool) {
        if self.link.is_disconnected() || self.link.is_moved() {
            return;
        }
        if let Some(direct) = &mut self.direct {
            direct.let_go();
        }
        if self.custody.let_go() {
            io.command(Command::Disconnect { flow: self.flow });
        }
        if had_connection {
            self.so_error.set(Errno::ECONNRESET);
        }
        (self.recv.received, self.recv.urgent, self.ulp.tls) = (Received::default(), Urgent::default(), None);
        self.give_up_port();
        self.publish(ALL | DRAINED);
    }

    /// It has no connection any more, and the program's next one begins anew.
    fn give_up_port(&mut self) {
        let port = self.endpoints.take_port();
        self.link = Link::Closed(HowClosed::Disconnected { port });
        self.half_close.reopen();
    }

    /// How it has ended here, for whoever has it next; 0: it has not.
    pub fn ending(&self) -> u8 {
        let waits = if self.so_error.waits() { ERROR_WAITS } else { 0 };
        let answer = if self.connect_answer == ConnectAnswer::InProgress { ANSWER_WAITS } else { 0 };
        match self.link {
            link if link.is_disconnected() => DISCONNECTED | waits,
            Link::Closed(_) => CLOSED | waits | answer,
            _ => answer,
        }
    }

    /// It has ended like that where it was before.
    pub fn ended_before(&mut self, ending: u8) {
        let waits = ending & ERROR_WAITS != 0;
        if ending & ANSWER_WAITS != 0 {
            self.connect_answer = ConnectAnswer::InProgress;
        }
        self.so_error.on_earlier_end(ending & CLOSED != 0 && !waits);
        if ending & DISCONNECTED != 0 {
            self.custody.let_go();
            self.give_up_port();
            self.so_error.set(if waits { Errno::ECONNRESET } else { Errno::OK });
        }
    }

    /// The name of one that was not bound; it may have heard of it after that.
    pub fn port_left(&self) -> Option<SocketAddr> {
        let left = self.link.port_left().flatten();
        let port = left.or(self.endpoints.local().map(|local| local.port()));
        port.map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
    }
}
