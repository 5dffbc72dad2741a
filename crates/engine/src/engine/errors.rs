//! What routers and hosts say of segments that did not arrive: ICMP errors, for the connection that they quote.

use super::Engine;
use crate::counter::Counter;
use crate::flow::tcp::path_mtu::path_mtu_lowered;
use crate::flow::tcp::state::TcpState;
use crate::work::{IcmpError, Trouble};

impl Engine {
    /// Anybody can send such a message, so only one about something that is on its way counts (RFC 5927 section 4.1), and
    /// none ends an established connection: what RFC 1122 section 4.2.3.9 calls a hard error is taken for a soft one
    /// (RFC 5927 section 5.2, as Linux does).
    pub(super) fn icmp_error(&mut self, error: &IcmpError) {
        let Some(idx) = self.index.get(&error.key) else {
            self.counters.add(Counter::IcmpErrorsStray);
            return;
        };
        let flow = self.flows.get_mut(idx);
        let is_on_its_way = error.seq.at_or_after(flow.snd.una) && error.seq.before(flow.snd.nxt);
        if !is_on_its_way {
            self.counters.add(Counter::IcmpErrorsStray);
            return;
        }
        match error.trouble {
            Trouble::Unreachable(errno) if flow.conn.state == TcpState::SynSent => {
                self.counters.add(Counter::IcmpErrors);
                self.closed(idx, errno);
            }
            Trouble::Unreachable(_) => self.counters.add(Counter::IcmpErrors),
            Trouble::TooBig { mtu } => {
                let is_lower = path_mtu_lowered(flow, &mut self.sent, mtu);
                self.counters.add(if is_lower { Counter::PathMtuLowered } else { Counter::IcmpErrors });
            }
        }
        self.after(idx);
    }
}
