//! A connection that its program takes back: connect to AF_UNSPEC, or shutdown while it connects. Linux's `tcp_disconnect`: what was received
//! and not read is dropped, and the socket is as one that never connected, but for an error.

use super::{ALL, ConnectAnswer, DRAINED, Link, Stream};
use crate::queue::QueueIo;
use crate::socket::Shutdown;
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
        if self.disconnected || self.link == Link::Moved {
            return;
        }
        self.disconnected = true;
        if let Some(direct) = &mut self.direct {
            direct.let_go();
        }
        if !self.let_go {
            self.let_go = true;
            io.command(Command::Disconnect { flow: self.flow });
        }
        self.link = Link::Closed;
        if had_connection {
            self.error = Errno::ECONNRESET;
        }
        (self.received, self.urgent, self.tls) = (Received::default(), Urgent::default(), None);
        (self.read_shut, self.write_shut, self.peer_closed) = (false, false, false);
        self.port_left = self.addrs.take().map(|(local, _)| local.port());
        self.publish(ALL | DRAINED);
    }

    /// How it has ended here, for whoever has it next; 0: it has not.
    pub fn ending(&self) -> u8 {
        let waits = if self.error.is_ok() { 0 } else { ERROR_WAITS };
        let answer = if self.connect_answer == ConnectAnswer::InProgress { ANSWER_WAITS } else { 0 };
        match (self.disconnected, self.link) {
            (true, _) => DISCONNECTED | waits,
            (false, Link::Closed) => CLOSED | waits | answer,
            _ => answer,
        }
    }

    /// It has ended like that where it was before.
    pub fn ended_before(&mut self, ending: u8) {
        let waits = ending & ERROR_WAITS != 0;
        if ending & ANSWER_WAITS != 0 {
            self.connect_answer = ConnectAnswer::InProgress;
        }
        self.end_is_reported = ending & CLOSED != 0 && !waits;
        if ending & DISCONNECTED != 0 {
            (self.disconnected, self.let_go, self.link) = (true, true, Link::Closed);
            (self.read_shut, self.write_shut) = (false, false);
            self.port_left = self.addrs.take().map(|(local, _)| local.port());
            self.error = if waits { Errno::ECONNRESET } else { Errno::OK };
        }
    }

    /// The name of one that was not bound; it may have heard of it after that.
    pub fn port_left(&self) -> Option<SocketAddr> {
        let port = self.port_left.or(self.addrs.map(|(local, _)| local.port()));
        port.map(|port| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port))
    }

    /// shutdown of one that has no connection: an error, but it is shut all the same.
    pub fn shut_disconnected(&mut self, how: Shutdown) {
        if self.disconnected {
            self.read_shut |= how != Shutdown::Write;
            self.write_shut |= how != Shutdown::Read;
            self.publish(ALL);
        }
    }

    /// Whether it is disconnected, and then which directions its program has shut since.
    pub fn disconnected(&self) -> Option<Option<Shutdown>> {
        let shut = match (self.read_shut, self.write_shut) {
            (true, true) => Some(Shutdown::Both),
            (true, false) => Some(Shutdown::Read),
            (false, true) => Some(Shutdown::Write),
            (false, false) => None,
        };
        self.disconnected.then_some(shut)
    }
}
