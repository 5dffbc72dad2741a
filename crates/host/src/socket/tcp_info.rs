//! TCP_INFO and TCP_CC_INFO: the engine is asked, and what went past it, through a channel, is added.
//!
//! Nothing is kept up to date for those who never ask: the question costs an entry and its answer, as a `connect` does. Called
//! by [`super::options`].

use crate::queue::Queue;
use crate::socket::Socket;
use crate::sys;
use toe_abi::entry::Command;
use toe_abi::tcp_info::{FlowDetail, TCP_INFO_LEN};
use zerocopy::IntoBytes;

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
        let known = detail.map(|detail| FlowDetail {
            state: crate::socket::state::known_state(self, detail.state),
            ..detail
        });
        known.unwrap_or(FlowDetail { state: super::state::CLOSED, ..FlowDetail::default() })
    }

    /// Connections that wait at this listener at engines. Linux tells of its own as `tcpi_unacked`.
    pub fn count_waiting(&'static self) -> u32 {
        let _ = self.settle();
        let of = |member: &'static Socket| {
            let listener = member.with_listener(|_, listener| listener.id)?;
            let owner_queue = member.owner_queue()?;
            let question = |token| Command::CountWaiting { listener, token };
            member.command(owner_queue, &mut |queue| queue.start_asking(owner_queue, member, question)).ok()
        };
        self.members(0).filter_map(of).sum()
    }

    /// `None`: the engine is gone, or has nothing to say of it.
    fn ask_detail(&'static self) -> Option<FlowDetail> {
        let _ = self.settle();
        let _ = self.await_connect();
        // As it is: what only this process can reach would go back to the engine with any other look, and the flow with it.
        let flow = self.peek_stream(|stream| stream.flow);
        let (flow, owner_queue) = (flow?, self.owner_queue()?);
        if self.disconnected().is_some() {
            return None;
        }
        let mut ask = |queue: &mut Queue| {
            queue.start_asking(owner_queue, self, |token| Command::Inspect { flow, token })
        };
        self.command(owner_queue, &mut ask).ok()?;
        let detail = owner_queue.lock().flow_detail(flow);
        let with_carried = self.peek_stream(|stream| match &mut stream.direct {
            Some(direct) => direct.add_to(detail, sys::now()),
            None => detail,
        });
        Some(with_carried.unwrap_or(detail))
    }
}
