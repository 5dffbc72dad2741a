//! A connection that follows [DCTCP](super::dctcp): marks that come, and ACKs that tell of them.

use super::models::Models;
use crate::record::{Algorithm, PathState, Tcb};
use toe_base::SeqNum;

/// An ACK of `acked` bytes, with ECE or not.
pub fn on_ack(tcb: &mut Tcb, path: &mut PathState, models: &mut Models, acked: u32, ece: bool) {
    let Algorithm::Dctcp(slot) = &mut path.cc.algorithm else { return };
    if let Some(dctcp) = models.dctcp.one_mut(slot) {
        dctcp.on_ack((tcb.snd.una, tcb.snd.nxt), acked, ece);
    }
}

/// RFC 8257 section 3.2: a segment came with the mark, or without. ECE tells of each, and a change is told at once.
pub fn note_mark(tcb: &mut Tcb, path: &mut PathState, models: &mut Models, is_marked: bool) {
    let was_marked = tcb.setup.ecn.echo;
    let Algorithm::Dctcp(slot) = &mut path.cc.algorithm else { return };
    if is_marked == was_marked {
        return;
    }
    let Some(dctcp) = models.dctcp.one_mut(slot) else { return };
    if dctcp.delayed.last().unwrap_or(tcb.receiving.acks.last_sent) != tcb.rcv.nxt {
        dctcp.delayed.push(tcb.rcv.nxt, was_marked);
    }
    tcb.setup.ecn.echo = is_marked;
    tcb.receiving.acks.now = true;
}

/// The next delayed ACK: its number, and whether it says ECE.
pub fn delayed_ack(path: &PathState, models: &Models) -> Option<(SeqNum, bool)> {
    match &path.cc.algorithm {
        Algorithm::Dctcp(slot) => models.dctcp.one(slot).delayed.first(),
        _ => None,
    }
}

/// It went out.
pub fn delayed_ack_sent(path: &PathState, models: &mut Models) {
    if let Algorithm::Dctcp(slot) = &path.cc.algorithm {
        models.dctcp.taken_mut(slot).into_iter().for_each(|dctcp| dctcp.delayed.pop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AlgorithmName;

    /// Marks come and go while no ACK can go out: what is told is never wrong, though it may be less than all.
    #[test]
    fn delayed_acks_tell_of_each_stretch_in_turn() {
        let (mut tcb, mut path, mut models) = (Tcb::vacant(), PathState::default(), Models::new(1));
        path.cc.algorithm = Algorithm::new(AlgorithmName::Dctcp);
        tcb.receiving.acks.last_sent = SeqNum::new(100);
        for (at, is_marked) in
            [(200, true), (300, false), (300, true), (400, false), (500, true), (600, false), (700, true)]
        {
            tcb.rcv.nxt = SeqNum::new(at);
            note_mark(&mut tcb, &mut path, &mut models, is_marked);
        }
        let mut told = Vec::new();
        while let Some((up_to, ece)) = delayed_ack(&path, &models) {
            told.push((up_to.raw(), ece));
            delayed_ack_sent(&path, &mut models);
        }
        assert_eq!(told, [(200, false), (400, true), (500, false), (700, true)]);
    }
}
