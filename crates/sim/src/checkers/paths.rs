//! Paths: what a connection believes of its path can be. The congestion window holds a segment and no more than any path carries; the
//! time-out is above the round trip by what keeps it from coming in vain, and no longer than RFC 6298 allows; what is counted as in
//! the network, lost or received is part of what was sent.

use toe_engine::Engine;

/// Four of the largest windows that any peer offers.
const CWND_MAX: u32 = 64 << 20;
/// RFC 6298 section 2.5, as Linux has it.
const RTO_MAX_US: u32 = 120_000_000;
/// What it exceeds the round trip by at least.
const RTO_MARGIN_US: u32 = 200_000;

/// To be asked when nothing is ready to be sent.
pub fn are_sane(engine: &Engine) -> Result<(), String> {
    for path in engine.view().audit_paths().filter(|path| path.state.is_synchronized()) {
        let wrong = |what: &str| Err(format!("{what}: {path:?}"));
        // In recovery it may be what is in the network, which the options of one segment keep below a whole one (RFC 9937 section 6.2).
        if path.cwnd < path.mss.min(path.pipe.max(1)) || path.cwnd > CWND_MAX {
            return wrong("a congestion window that cannot be");
        }
        if path.ssthresh < 2 * path.mss.min(536) {
            return wrong("a slow start threshold below two segments");
        }
        let least_us = if path.srtt_us == 0 { 0 } else { path.srtt_us.saturating_add(RTO_MARGIN_US) };
        if path.rto_us > RTO_MAX_US || path.rto_us < least_us.min(RTO_MAX_US) {
            return wrong("a time-out that cannot be");
        }
        if path.pipe > path.outstanding || path.sacked + path.lost > path.outstanding {
            return wrong("more of it than was sent");
        }
    }
    Ok(())
}
