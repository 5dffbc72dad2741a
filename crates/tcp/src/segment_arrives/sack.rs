//! What an ACK says of data beyond it and of data that came twice (RFC 2018 section 5, RFC 2883 section 4), and what that
//! and the ACK itself tell the scoreboard.

use crate::Tcp;
use crate::ack_event::{AckEvent, RttSample};
use crate::rack::{self, Heard};
use crate::rate::Sample;
use crate::record::{Particulars, PathState, SendSide, Tcb};
use crate::scoreboard::SentRange;
use crate::segment::Segment;
use toe_base::{Instant, SeqNum};
use toe_wire::tcp::{SackBlock, SackBlocks, TcpFlags};

/// Takes `ack` and the segment's SACK blocks; the numbers of the record stay as they are.
pub(super) fn take(
    tcb: &mut Tcb,
    path: &mut PathState,
    tcp: &mut Tcp,
    now: Instant,
    segment: &Segment,
    ack: SeqNum,
) -> AckEvent {
    let in_use = tcb.setup.negotiated.timestamps;
    let echo = segment.timestamps.filter(|_| in_use.is_some()).map(|(_, echo)| echo);
    let timestamps = in_use.unwrap_or_default();
    let mut event = AckEvent {
        acked: ack.distance_from(tcb.snd.una),
        pipe_before: tcb.pipe(path),
        lost_before: tcb.sending.board.lost_ever(),
        outstanding_before: tcb.outstanding(),
        echo,
        ece: segment.flags.contains(TcpFlags::ECE) && tcb.setup.ecn.on,
        ..AckEvent::default()
    };
    let heard = Heard { now, echo, min_rtt_us: path.rtt.min_us, timestamps };
    let mut sample = Sample::default();
    let mut rtt = RttSample::default();
    let recover = path.cc.recover;
    let mut overtaken = 0u32;
    let has_sack = tcb.has_sack();
    let Tcb { snd, sending: SendSide { board, .. }, .. } = tcb;
    let rack = &mut path.rack;
    let mut delivered = |range: &SentRange, in_order: bool| {
        use crate::scoreboard::Fate;
        if range.fate == Fate::Sacked {
            return;
        }
        event.delivered += range.len();
        event.originals |= !range.resent && range.end.at_or_before(recover);
        overtaken += u32::from(rack::arrived(rack, range, &heard, in_order));
        sample.take(range);
        if !range.resent {
            rtt.take(now.since_us(range.sent_at), in_order);
        }
    };
    board.acknowledge(&mut tcp.sent, ack, |range| delivered(range, true));
    if has_sack {
        // In the order of the stream, else what one ACK tells of would look like reordering.
        for block in in_order(segment, ack, snd.nxt).as_slice() {
            board.sack(&mut tcp.sent, block.left, block.right, |range| delivered(range, false));
        }
    }
    if has_sack {
        event.duplicated = duplicated(tcb, segment, ack);
    }
    if overtaken > 0
        && let Some(Particulars { reordering, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars)
    {
        reordering.seen = true;
    }
    count_trouble(tcb, tcp, &event, overtaken);
    event.rtt_us = rtt.latest;
    if path.rtt.acknowledged(&rtt, &event, timestamps.value_at(now), now) {
        tcb.sending.backoff = 0;
    }
    let lost_ever = tcb.sending.board.lost_ever();
    event.sample = sample.finish(&mut path.rate, event.delivered, lost_ever, path.rtt.min_us, now);
    event
}

fn count_trouble(tcb: &mut Tcb, tcp: &mut Tcp, event: &AckEvent, overtaken: u32) {
    if !event.ece && event.duplicated == 0 && overtaken == 0 {
        return;
    }
    let Some(Particulars { trouble, .. }) = tcp.particulars.one_mut(&mut tcb.setup.particulars) else {
        return;
    };
    trouble.overtaken = trouble.overtaken.wrapping_add(overtaken);
    trouble.dsack_dups = trouble.dsack_dups.wrapping_add((event.duplicated > 0).into());
    if event.ece {
        let segments = event.delivered.div_ceil(u32::from(tcb.snd.mss).max(1));
        trouble.delivered_marked = trouble.delivered_marked.wrapping_add(segments);
    }
}

/// RFC 2883 section 4: the first block tells of a duplicate when the ACK or the second block covers it.
fn is_duplicate_block(blocks: &[SackBlock], ack: SeqNum) -> bool {
    let Some(first) = blocks.first() else { return false };
    first.right.at_or_before(ack)
        || blocks.get(1).is_some_and(|second| {
            first.left.at_or_after(second.left) && first.right.at_or_before(second.right)
        })
}

/// Bytes that the peer got twice, as far as they were sent twice.
fn duplicated(tcb: &Tcb, segment: &Segment, ack: SeqNum) -> u32 {
    let blocks = segment.sack.as_slice();
    let Some(first) = blocks.first().filter(|_| is_duplicate_block(blocks, ack)) else { return 0 };
    let oldest = tcb.snd.una.minus(tcb.snd.max_wnd.bytes());
    let is_sane = first.left.before(first.right)
        && first.right.at_or_before(tcb.snd.nxt)
        && first.left.at_or_after(oldest)
        && first.left.after(tcb.handshake.iss);
    if is_sane { first.right.distance_from(first.left) } else { 0 }
}

/// The blocks that tell of what is out and not acknowledged, in the order of the stream.
fn in_order(segment: &Segment, ack: SeqNum, nxt: SeqNum) -> SackBlocks {
    let blocks = segment.sack.as_slice();
    let is_valid = |b: &&SackBlock| b.left.before(b.right) && b.left.after(ack) && b.right.at_or_before(nxt);
    let mut sorted = SackBlocks::NONE;
    let mut told = ack;
    while let Some(next) = blocks
        .iter()
        .skip(usize::from(is_duplicate_block(blocks, ack)))
        .filter(is_valid)
        .filter(|b| b.left.after(told))
        .min_by_key(|b| b.left.distance_from(ack))
    {
        told = next.left;
        sorted.push(*next);
    }
    sorted
}
