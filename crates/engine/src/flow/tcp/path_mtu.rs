//! Path MTU discovery by what routers say (RFC 1191, RFC 8201). Called with ICMP errors that quote a segment on its way.

use crate::flow::record::Flow;
use crate::flow::scoreboard::SentPool;
use crate::flow::tcp::output::options_len;
use toe_wire::tcp::HEADER_LEN;
use toe_wire::{ipv4, ipv6};

/// Less is not believed (Linux: min_pmtu): with it anybody who guesses a sequence number could make the connection
/// crawl (RFC 5927 section 7.2).
const MTU_MIN_V4: u32 = 552;
/// No link of IPv6 carries less (RFC 8200 section 5, RFC 8201 section 4).
const MTU_MIN_V6: u32 = 1280;
/// What links carry, for routers that do not say it (RFC 1191 section 7.1).
const PLATEAUS: [u32; 7] = [32_000, 17_914, 8166, 4352, 2002, 1492, 1006];

/// A packet of this connection was larger than `mtu`, which a link on its way carries; 0: nobody said how large it may be.
/// What was sent in larger segments is lost, though not by congestion: it goes out again in smaller ones, and the
/// congestion window stays (RFC 8201 section 5.4). Returns whether anything is smaller now.
pub fn path_mtu_lowered(flow: &mut Flow, pool: &mut SentPool, mtu: u32) -> bool {
    let is_v4 = flow.conn.key.is_v4();
    let ip_len = if is_v4 { ipv4::HEADER_LEN } else { ipv6::HEADER_LEN };
    let options_len = options_len(flow);
    let overhead = (ip_len + HEADER_LEN) as u32 + u32::from(options_len);
    let mtu = match mtu {
        0 => {
            let now = u32::from(flow.snd.mss) + overhead;
            PLATEAUS.into_iter().find(|plateau| *plateau < now).unwrap_or(0)
        }
        mtu => mtu,
    };
    let mtu = mtu.max(if is_v4 { MTU_MIN_V4 } else { MTU_MIN_V6 });
    let mss = u16::try_from(mtu - overhead).unwrap_or(u16::MAX);
    if mss >= flow.snd.mss {
        return false;
    }
    flow.snd.mss = mss;
    flow.board.mark_lost(pool, |range| range.len() > u32::from(mss));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::{Addr, Endpoint};

    fn flow(addr: Addr, mss: u16) -> (Flow, SentPool) {
        let mut flow = Flow::vacant();
        let end = Endpoint { addr, port: 1 };
        flow.conn.key = crate::flow::key::FlowKey { local: end, remote: end };
        flow.snd.mss = mss;
        (flow, SentPool::new(4))
    }

    #[test]
    fn the_segment_size_follows_the_mtu_down_and_never_up() {
        let (mut flow, mut pool) = flow([10, 0, 0, 1].into(), 1460);
        assert!(path_mtu_lowered(&mut flow, &mut pool, 1400));
        assert_eq!(flow.snd.mss, 1360);
        assert!(!path_mtu_lowered(&mut flow, &mut pool, 1500), "a router does not raise it");
        assert_eq!(flow.snd.mss, 1360);
        assert!(path_mtu_lowered(&mut flow, &mut pool, 68));
        assert_eq!(flow.snd.mss, 512, "no smaller than Linux makes it");
    }

    #[test]
    fn an_old_router_names_no_mtu_and_the_next_plateau_is_tried() {
        let (mut flow, mut pool) = flow([10, 0, 0, 1].into(), 1460);
        assert!(path_mtu_lowered(&mut flow, &mut pool, 0));
        assert_eq!(flow.snd.mss, 1492 - 40);
        assert!(path_mtu_lowered(&mut flow, &mut pool, 0));
        assert_eq!(flow.snd.mss, 1006 - 40);
    }

    #[test]
    fn ipv6_goes_down_to_1280() {
        let (mut flow, mut pool) = flow(Addr::LOCALHOST_V6, 1440);
        assert!(path_mtu_lowered(&mut flow, &mut pool, 1000));
        assert_eq!(flow.snd.mss, 1220);
        assert!(!path_mtu_lowered(&mut flow, &mut pool, 1280));
    }
}
