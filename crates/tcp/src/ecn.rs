//! Explicit congestion notification (RFC 3168) at both ends of a connection.
//!
//! | | where |
//! |---|---|
//! | agreed on in the handshake (section 6.1.1) | [`answers`], [`accepted`] |
//! | a mark arrives; ACKs say so (section 6.1.3) | [`data_arrived`] |
//! | an ACK says so; the window shrinks, CWR tells (section 6.1.2) | [`super::recovery`], [`super::output`] |

use crate::config::EcnMode;
use crate::congestion::marks;
use crate::congestion::models::Models;
use crate::record::{Algorithm, PathState, Tcb};
use crate::segment::Segment;
use toe_wire::tcp::TcpFlags;

/// Whether a SYN asks for it and it is given.
pub fn answers(mode: EcnMode, syn: &Segment) -> bool {
    mode != EcnMode::Off && syn.flags.contains(TcpFlags::ECE.with(TcpFlags::CWR))
}

/// Whether the SYN-ACK to a SYN that asked agrees. Both bits echoed come from a peer that reflects what it does not know.
pub fn accepted(mode: EcnMode, syn_ack: &Segment) -> bool {
    let flags = syn_ack.flags;
    mode == EcnMode::Request && flags.contains(TcpFlags::ECE) && !flags.contains(TcpFlags::CWR)
}

/// A segment with text arrived, with the congestion-experienced mark or not.
pub fn data_arrived(
    tcb: &mut Tcb,
    path: &mut PathState,
    models: &mut Models,
    segment: &Segment,
    is_marked: bool,
) {
    if !tcb.setup.ecn.on || segment.len == 0 {
        return;
    }
    if matches!(path.cc.algorithm, Algorithm::Dctcp(_)) {
        marks::note_mark(tcb, path, models, is_marked);
    } else {
        if segment.flags.contains(TcpFlags::CWR) {
            tcb.setup.ecn.echo = false;
        }
        if is_marked {
            tcb.receiving.acks.now |= !tcb.setup.ecn.echo;
            tcb.setup.ecn.echo = true;
        }
    }
}
