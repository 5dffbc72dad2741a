//! TCP_INFO and TCP_CC_INFO: the engine is asked, and what went past it, through a channel, is added.
//!
//! Nothing is kept up to date for those who never ask: the question costs an entry and its answer, as a `connect` does. Called
//! by [`super::options`].

use crate::queue::{Queue, QueueSet};
use crate::socket::Socket;
use crate::sys;
use std::time::Duration;
use toe_abi::entry::Command;
use toe_abi::tcp_info::{FlowDetail, TCP_INFO_LEN};
use toe_base::FlowId;
use zerocopy::IntoBytes;

/// What a channel has carried, in one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    pub bytes: u64,
    pub pieces: u32,
}

/// When a count was last seen to change: a clock that is read when somebody asks, not for every message.
#[derive(Clone, Copy, Debug, Default)]
pub struct LastSeen {
    bytes: u64,
    at: Duration,
}

impl LastSeen {
    /// Milliseconds since it changed; `None`: it never did.
    pub fn ago_ms(&mut self, bytes: u64, now: Duration) -> Option<u32> {
        if bytes != self.bytes {
            *self = LastSeen { bytes, at: now };
        }
        (bytes > 0).then(|| u32::try_from((now - self.at).as_millis()).unwrap_or(u32::MAX))
    }
}

impl Queue {
    /// Publishes a question about something of `socket`, `Inspect` or `CountWaiting`; the token of its result, or `None` when there is no room now.
    pub(super) fn start_asking(
        &mut self,
        home: &'static QueueSet,
        socket: &'static Socket,
        question: impl FnOnce(u32) -> Command,
    ) -> Option<u32> {
        if !self.io.deferred.is_empty() {
            // What it is to tell of comes first.
            return None;
        }
        let token = self.io.stack.next_token();
        self.io.ring.push_command(question(token)).ok()?;
        Some(self.await_result(token, home, socket))
    }

    /// What the engine has written down.
    fn flow_detail(&self, flow: FlowId) -> FlowDetail {
        let layout = self.io.stack.layout();
        if flow.slot() >= layout.flows as usize {
            return FlowDetail::default();
        }
        self.io.region.read_record(layout.flow_detail(flow.slot())).unwrap_or_default()
    }
}

impl Socket {
    /// `struct tcp_info`.
    pub(super) fn tcp_info(&'static self) -> [u8; TCP_INFO_LEN] {
        let detail = self.detail();
        let mut info = [0; TCP_INFO_LEN];
        info.copy_from_slice(&detail.as_bytes()[..TCP_INFO_LEN]);
        info
    }

    /// `union tcp_cc_info`, and how many of its bytes the algorithm fills.
    pub(super) fn congestion_info(&'static self) -> ([u8; 20], usize) {
        let detail = self.detail();
        let mut info = [0; 20];
        info.copy_from_slice(detail.cc.as_bytes());
        (info, (detail.cc_len as usize).min(info.len()))
    }

    /// The largest IP datagram of the connection's path (IP_MTU).
    pub fn path_mtu(&'static self) -> u32 {
        self.detail().pmtu
    }

    /// Bytes that the program has sent and the engine has not (SIOCOUTQNSD).
    pub fn not_sent(&'static self) -> usize {
        self.detail().notsent_bytes as usize
    }

    fn detail(&'static self) -> FlowDetail {
        // Another process may have taken it before the engine came to the question.
        let detail = self.ask_detail().or_else(|| self.ask_detail());
        let known = detail
            .map(|detail| FlowDetail { state: super::options::known_state(self, detail.state), ..detail });
        known.unwrap_or(FlowDetail { state: super::options::CLOSED, ..FlowDetail::default() })
    }

    /// Connections that wait at this listener at engines. Linux tells of its own as `tcpi_unacked`.
    pub fn count_waiting(&'static self) -> u32 {
        let _ = self.settle();
        let of = |member: &'static Socket| {
            let listener = member.with_listener(|_, listener| listener.id)?;
            let home = member.home()?;
            let question = |token| Command::CountWaiting { listener, token };
            member.command(home, &mut |queue| queue.start_asking(home, member, question)).ok()
        };
        self.members(0).filter_map(of).sum()
    }

    /// `None`: the engine is gone, or has nothing to say of it.
    fn ask_detail(&'static self) -> Option<FlowDetail> {
        let _ = self.settle();
        let _ = self.wait_for_turn();
        // As it is: what only this process can reach would go back to the engine with any other look, and the flow with it.
        let flow = self.peek_stream(|stream| stream.flow);
        let (flow, home) = (flow?, self.home()?);
        if self.disconnected().is_some() {
            return None;
        }
        let mut ask =
            |queue: &mut Queue| queue.start_asking(home, self, |token| Command::Inspect { flow, token });
        self.command(home, &mut ask).ok()?;
        let detail = home.lock().flow_detail(flow);
        let with_carried = self.peek_stream(|stream| match &mut stream.direct {
            Some(direct) => direct.add_to(detail, sys::now()),
            None => detail,
        });
        Some(with_carried.unwrap_or(detail))
    }
}

/// Adds what was carried past the engine: what Linux's loopback shows, where every piece is a segment and is acknowledged at
/// once.
pub fn add_carried(detail: FlowDetail, out: Carried, into: Carried) -> FlowDetail {
    let pieces = out.pieces.wrapping_add(into.pieces);
    FlowDetail {
        bytes_sent: detail.bytes_sent + out.bytes,
        bytes_acked: detail.bytes_acked + out.bytes,
        bytes_received: detail.bytes_received + into.bytes,
        data_segs_out: detail.data_segs_out.wrapping_add(out.pieces),
        data_segs_in: detail.data_segs_in.wrapping_add(into.pieces),
        segs_out: detail.segs_out.wrapping_add(pieces),
        segs_in: detail.segs_in.wrapping_add(pieces),
        delivered: detail.delivered.wrapping_add(out.pieces),
        ..detail
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_channel_carries_is_added_to_what_the_engine_counts() {
        let engine = FlowDetail { bytes_sent: 10, data_segs_in: 1, segs_in: 4, ..FlowDetail::default() };
        let (out, into) = (Carried { bytes: 300, pieces: 3 }, Carried { bytes: 50, pieces: 5 });
        let sum = add_carried(engine, out, into);
        assert_eq!((sum.bytes_sent, sum.bytes_acked, sum.bytes_received), (310, 300, 50));
        assert_eq!((sum.data_segs_out, sum.data_segs_in, sum.delivered), (3, 6, 3));
        assert_eq!((sum.segs_out, sum.segs_in), (8, 12));
    }

    #[test]
    fn a_count_is_dated_when_it_is_seen_to_change() {
        let mut seen = LastSeen::default();
        let at = Duration::from_millis;
        assert_eq!(seen.ago_ms(0, at(5)), None);
        assert_eq!(seen.ago_ms(9, at(10)), Some(0));
        assert_eq!(seen.ago_ms(9, at(25)), Some(15));
        assert_eq!(seen.ago_ms(10, at(30)), Some(0));
    }
}
