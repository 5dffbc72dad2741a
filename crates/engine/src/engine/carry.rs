//! What goes along with a connection that changes hands is copied in steps, before it does: megabytes of it, into memory whose
//! pages are yet to come, would hold up everybody for as long. The change itself copies the rest, or all if nobody has asked for steps.

use super::Engine;
use crate::hostif::anchors::AnchorTarget;
use crate::hostif::carried::Ready;
use crate::parts::FlowMemory;
use toe_base::{AnchorHandle, FlowIdx, SessionId};
use toe_tcp::memory::HostMemory;
use toe_tcp::receive_buffer::{Destination, Prefetched};
use toe_tcp::send_queue::Extent;

/// Bytes of one step.
pub(super) const STEP: u32 = 256 << 10;

/// The connection, if the session may have it.
pub(super) fn claimed(engine: &mut Engine, asker: SessionId, anchor: AnchorHandle) -> Option<FlowIdx> {
    engine.hostif.may_show(asker, anchor).ok()?;
    let Some(AnchorTarget::Flow(idx)) = engine.hostif.anchors.get(anchor) else { return None };
    engine.records().memory().may_own(idx, asker).ok()?;
    Some(idx)
}

/// One step of what goes along to `to`: what is to be sent first, then what was received. Whether there are more.
pub(super) fn carry<H: HostMemory>(
    memory: &mut FlowMemory<'_>,
    asker: SessionId,
    (idx, to): (FlowIdx, Destination),
    host: &mut H,
) -> bool {
    let flow = memory.flows.get(idx);
    let of = (idx, flow.conn.key, flow.conn.user);
    if memory.hostif.carried.get_mut(asker, of).is_none() {
        if sent_len(memory, idx).max(received_len(memory, idx, &to)) <= STEP {
            return false;
        }
        memory.hostif.forget_carried(asker);
        memory.hostif.carried.insert(asker, Ready { of, sent: None, received: None });
    }
    let Some(ready) = memory.hostif.carried.get_mut(asker, of) else { return false };
    let mut known = Ready { of, sent: ready.sent.take(), received: ready.received.take() };
    let is_more = carry_sent(memory, &mut known, host) || carry_received(memory, &mut known, &to, host);
    memory.hostif.carried.insert(asker, known);
    is_more
}

/// How much of what it has to send would be copied.
fn sent_len(memory: &FlowMemory<'_>, idx: FlowIdx) -> u32 {
    let queue = memory.flows.get(idx).tcb.sending.queue;
    if queue.uses_other_than(&memory.tcp.extents, SessionId(0)) { queue.len() } else { 0 }
}

/// The same of what it has received.
fn received_len(memory: &FlowMemory<'_>, idx: FlowIdx, to: &Destination) -> u32 {
    let tcb = &memory.flows.get(idx).tcb;
    let is_there = tcb.receiving.buffer.session == to.session;
    if is_there { 0 } else { tcb.data_nxt().distance_from(tcb.receiving.buffer.start_at(to)) }
}

fn carry_sent<H: HostMemory>(memory: &mut FlowMemory<'_>, ready: &mut Ready, host: &mut H) -> bool {
    let (idx, _, payer) = ready.of;
    let need = sent_len(memory, idx);
    let start = memory.flows.get(idx).tcb.data_una();
    let staging = memory.hostif.sessions.arena(SessionId(0), payer);
    if let Some(ahead) = ready.sent.take_if(|ahead| !ahead.serves(start, need)) {
        staging.free(ahead.block);
    }
    if need <= STEP && ready.sent.is_none() {
        return false;
    }
    if ready.sent.is_none() {
        ready.sent = staging.alloc(need).map(|block| Prefetched { block, start, len: 0 });
    }
    let Some(ahead) = &mut ready.sent else { return false };
    let done = ahead.end().distance_from(start);
    let len = STEP.min(need - done);
    let queue = memory.flows.get(idx).tcb.sending.queue;
    let mut at = ahead.block.offset() + u64::from(ahead.len);
    for piece in queue.pieces(&memory.tcp.extents, done, len).iter() {
        let Extent { session, range } = *piece;
        host.copy((session, range.offset), (SessionId(0), at), range.len);
        at += u64::from(range.len);
    }
    ahead.len += len;
    need - done > len
}

fn carry_received<H: HostMemory>(
    memory: &mut FlowMemory<'_>,
    ready: &mut Ready,
    to: &Destination,
    host: &mut H,
) -> bool {
    let (idx, _, payer) = ready.of;
    let need = received_len(memory, idx, to);
    let tcb = &memory.flows.get(idx).tcb;
    let (start, nxt) = (tcb.receiving.buffer.start_at(to), tcb.data_nxt());
    let sessions = &mut memory.hostif.sessions;
    let is_other =
        |(session, ahead): &mut (SessionId, Prefetched)| *session != to.session || !ahead.serves(start, need);
    if let Some((session, ahead)) = ready.received.take_if(is_other) {
        sessions.arena(session, payer).free(ahead.block);
    }
    if need <= STEP && ready.received.is_none() {
        return false;
    }
    if ready.received.is_none() {
        let block = sessions.arena(to.session, payer).alloc(need);
        ready.received = block.map(|block| (to.session, Prefetched { block, start, len: 0 }));
    }
    let Some((_, ahead)) = &mut ready.received else { return false };
    tcb.receiving.buffer.prefetch(to, ahead, STEP, nxt, host);
    ahead.end().before(nxt)
}
