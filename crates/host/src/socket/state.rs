//! What has become of a socket's connection, as poll, getsockopt and TCP_INFO show it.

use crate::socket::{Kind, Link, Shutdown, Socket};
use toe_abi::command::FlowInfo;

impl Socket {
    /// The connection's state by Linux's numbers; 0: it has none.
    pub(super) fn state(&self) -> u8 {
        if self.disconnected().is_some() {
            return CLOSED;
        }
        match known_state(self, self.flow_info().map_or(0, |info| info.state)) {
            // Its last wait is not the program's any more: what that has is closed.
            TIME_WAIT => CLOSED,
            state => state,
        }
    }

    pub(super) fn flow_info(&self) -> Option<FlowInfo> {
        let (mut queue, slot_id) = self.lock_owner_queue()?;
        let flow = queue.stream(slot_id, self).map(|(_, stream)| stream.flow)?;
        Some(queue.flow_info(flow))
    }

    /// Whether both directions are open: TCP_ESTABLISHED.
    pub fn is_established(&self) -> bool {
        self.kind() == Kind::Stream && self.state() == ESTABLISHED
    }

    /// Whether it has no connection (any more): what has to be set before one may be set now.
    pub fn has_no_connection(&self) -> bool {
        self.kind() != Kind::Stream || self.state() == CLOSED
    }

    /// Whether its program has taken its connection back, and may connect anew; and then which directions it has shut since.
    pub fn disconnected(&self) -> Option<Option<Shutdown>> {
        self.peek_stream(|stream| stream.link.is_disconnected().then(|| stream.half_close.shut_by_program()))
            .flatten()
    }

    /// Where the urgent byte is, if there is one that has not been read past.
    pub(crate) fn urgent_at(&self) -> Option<u64> {
        self.peek_stream(|stream| stream.recv.urgent.position_in_stream()).flatten()
    }

    pub fn tells_by_signals(&self) -> bool {
        self.settings.lock().signals
    }

    /// O_ASYNC: the owner of the descriptor is told of input and output by signals ([`crate::signal_io`]).
    pub fn tell_by_signals(&self, on: bool) {
        self.settings.lock().signals = on;
    }
}

/// The `state` that the engine tells of a connection, with what the peer has said itself and the engine may not know yet.
pub(super) fn known_state(socket: &Socket, state: u8) -> u8 {
    match (state, socket.peek_stream(|stream| (stream.link, stream.half_close.has_peer_closed()))) {
        (0, _) => 0,
        (_, Some((Link::Closed(_), _))) => CLOSED,
        (ESTABLISHED, Some((_, true))) => CLOSE_WAIT,
        (FIN_WAIT1, Some((_, true))) => CLOSING,
        (FIN_WAIT2, Some((_, true))) => TIME_WAIT,
        _ => state,
    }
}

pub(super) const SYN_RECV: u8 = 3;

pub(super) const CLOSED: u8 = 7;

/// States of connections, by Linux's numbers.
const ESTABLISHED: u8 = 1;

const FIN_WAIT1: u8 = 4;

const FIN_WAIT2: u8 = 5;

const TIME_WAIT: u8 = 6;

const CLOSE_WAIT: u8 = 8;

const CLOSING: u8 = 11;
