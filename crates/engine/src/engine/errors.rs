//! What routers and hosts say of segments that did not arrive: ICMP errors, for the connection that they quote.

use crate::counter::Counter;
use crate::egress::builder::ip_header_len;
use crate::flow::record::Flow;
use crate::parts::Records;
use crate::work::{IcmpError, Trouble};
use toe_base::Instant;
use toe_tcp::outgoing::options_len;
use toe_tcp::state::TcpState;
use toe_tcp::{path_mtu, soft_error};
use toe_wire::tcp::HEADER_LEN;

/// No link of IPv6 carries less (RFC 8200 section 5, RFC 8201 section 4).
const MTU_MIN_V6: u32 = 1280;
/// What links carry, for routers that do not say it (RFC 1191 section 7.1).
const PLATEAUS: [u32; 7] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006];

impl Records<'_> {
    /// Anybody can send such a message, so only one about something that is on its way counts (RFC 5927 section 4.1), and
    /// none ends an established connection: what RFC 1122 section 4.2.3.9 calls a hard error is taken for a soft one
    /// (RFC 5927 section 5.2, as Linux does), of which the program hears ([`soft_error`]).
    pub(super) fn icmp_error(&mut self, now: Instant, error: &IcmpError) {
        let Some(idx) = self.flows.find(&error.key) else {
            self.counters.add(Counter::IcmpErrorsStray);
            return;
        };
        let flow = self.flows.get(idx);
        let is_on_its_way = error.seq.at_or_after(flow.tcb.snd.una) && error.seq.before(flow.tcb.snd.nxt);
        if !is_on_its_way && !is_keepalive_probe(flow, error) {
            self.counters.add(Counter::IcmpErrorsStray);
            return;
        }
        let counter = self.edit(idx, |records, idx| {
            let flow = records.flows.get_mut(idx);
            match error.trouble {
                Trouble::Unreachable(errno) if flow.tcb.state == TcpState::SynSent => {
                    records.closed(idx, errno)
                }
                Trouble::Unreachable(errno) => soft_error::arrived(&mut flow.tcb, errno),
                Trouble::TooBig { mtu } => {
                    let before = flow.tcb.snd.mss;
                    let mss = payload_within(flow, mtu, error.datagram_len);
                    path_mtu::lowered(&mut flow.tcb, records.tcp, mss, now);
                    if flow.tcb.snd.mss < before {
                        return Counter::PathMtuLowered;
                    }
                }
            }
            Counter::IcmpErrors
        });
        self.counters.add(counter);
    }
}

/// Whether the message is about a keepalive probe that has no answer yet: that has a number before the window.
fn is_keepalive_probe(flow: &Flow, error: &IcmpError) -> bool {
    flow.tcb.sending.probes > 0 && error.seq == flow.tcb.snd.una.minus(1)
}

/// Bytes of payload in packets of `mtu` bytes; 0: a router did not say how large they may be, only that `datagram_len` is too
/// much (RFC 1191 section 5).
fn payload_within(flow: &Flow, mtu: u32, datagram_len: u32) -> u16 {
    let peer = flow.conn.key.remote.addr;
    let headers = (ip_header_len(peer) + HEADER_LEN) as u32 + u32::from(options_len(&flow.tcb));
    let mtu = match mtu {
        0 => PLATEAUS.into_iter().find(|plateau| *plateau < datagram_len).unwrap_or(0),
        mtu => mtu,
    };
    let mtu = if peer.is_v6() { mtu.max(MTU_MIN_V6) } else { mtu };
    u16::try_from(mtu.saturating_sub(headers)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{Addr, Endpoint};

    fn flow(addr: Addr, mss: u16) -> Flow {
        let mut flow = Flow::vacant();
        let end = Endpoint { addr, port: 1 };
        flow.conn.key = crate::flow::key::FlowKey::new(end, end);
        flow.tcb.snd.mss = mss;
        flow
    }

    #[test]
    fn a_packet_holds_what_its_headers_leave() {
        let v4 = flow([10, 0, 0, 1].into(), 1460);
        assert_eq!(payload_within(&v4, 1400, 1500), 1360);
        assert_eq!(payload_within(&v4, 20, 1500), 0);
        assert_eq!(payload_within(&v4, 0, 1500), 1492 - 40, "the next that links have");
        assert_eq!(payload_within(&v4, 0, 1492), 1006 - 40);
        assert_eq!(payload_within(&v4, 0, 940), 0);
    }

    #[test]
    fn in_ipv6_it_is_1280_at_least() {
        let v6 = flow(Addr::LOCALHOST_V6, 1440);
        assert_eq!(payload_within(&v6, 1400, 1500), 1340);
        assert_eq!(payload_within(&v6, 1000, 1500), 1220);
    }
}
