//! Who has a connection, and what is written down of that: its record's owner, the owner word, options that another process may ask for, what
//! is charged to whom. A change of hands ([`super::claim`], [`super::hand_out`], [`super::session_end`]) is made of these.

use super::Edit;
use crate::control::holders::Holder;
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::control::process_each;
use crate::flow::tenancy::TenancyEvent;
use crate::hostif::session::Beginning;
use crate::parts::{FlowMemory, HostInterface, Records};
use crate::store::FlowStore;
use crate::work::Owner;
use core::sync::atomic::Ordering;
use toe_abi::command::{NO_HANDLE, SocketOptions};
use toe_abi::entry::MemRange;
use toe_abi::errno::Errno;
use toe_abi::owner_word::Owned;
use toe_base::{AnchorHandle, FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::{HostMemory, SharedMemory};
use toe_tcp::receive_buffer::{Destination, Prefetched};
use toe_tcp::send_queue::Extent;
use zerocopy::IntoBytes;

/// Of what came out of order so many bytes go along: they are copied at once, as what fills the gaps between them may come at any time.
const OUT_OF_ORDER_MAX: u32 = 1 << 20;

impl FlowMemory<'_> {
    /// Moves unread data to another session's memory; `asker` may have copied of it ([`super::carry`]).
    pub(super) fn move_receive_memory<H: HostMemory>(
        &mut self,
        idx: Edit<'_>,
        asker: SessionId,
        to: impl Into<Destination>,
        host: &mut H,
    ) -> bool {
        let to = to.into();
        let flow = self.flows.get_mut(idx);
        if flow.tcb.receiving.buffer.session == to.session {
            return to.unread.is_none();
        }
        let held = flow.tcb.receiving.held.ranges(&self.tcp.held).iter();
        let out_of_order: u32 = held.map(|range| range.end.distance_from(range.start)).sum();
        if out_of_order > OUT_OF_ORDER_MAX {
            self.forget_out_of_order(idx);
        }
        let flow = self.flows.get_mut(idx);
        let ready = self.hostif.carried.get_mut(asker, (*idx, flow.conn.key, flow.conn.user));
        let ahead = ready.and_then(|ready| ready.received.take_if(|(session, _)| *session == to.session));
        let ahead = ahead.map(|(_, ahead)| ahead);
        let (data_nxt, from) = (flow.tcb.data_nxt(), flow.tcb.receiving.buffer.session);
        let held = flow.tcb.receiving.held.ranges(&self.tcp.held);
        let user = flow.conn.user;
        let moved = self.hostif.sessions.with_two_arenas((from, to.session), user, |from, to_arena| {
            flow.tcb.receiving.buffer.move_to((to, ahead), from, to_arena, host, held, data_nxt).is_ok()
        });
        moved.unwrap_or(false)
    }

    /// Copies unacknowledged send data into the memory's own memory, so that the old owners' is their own again; `asker` may have copied of
    /// it ([`super::carry`]).
    pub(super) fn stage_send_data<H: HostMemory>(
        &mut self,
        idx: Edit<'_>,
        asker: SessionId,
        host: &mut H,
    ) -> bool {
        let flow = self.flows.get(*idx);
        let (queue, owner) = (flow.tcb.sending.queue, flow.conn.tenancy.owner());
        if !queue.uses_other_than(&self.tcp.extents, SessionId(0)) {
            return true;
        }
        let (user, start) = (flow.conn.user, flow.tcb.data_una());
        let ready = self.hostif.carried.get_mut(asker, (*idx, flow.conn.key, flow.conn.user));
        let ahead = ready.and_then(|ready| ready.sent.take_if(|ahead| ahead.serves(start, queue.len())));
        let staging = self.hostif.sessions.arena(SessionId(0), user);
        let fresh = || staging.alloc(queue.len()).map(|block| Prefetched { block, start, len: 0 });
        let Some(ahead) = ahead.or_else(fresh) else { return false };
        let (block, done) = (ahead.block, ahead.end().distance_from(start));
        let begin = block.offset() + u64::from(start.distance_from(ahead.start));
        let mut at = begin + u64::from(done);
        for piece in queue.pieces(&self.tcp.extents, done, queue.len() - done).iter() {
            let Extent { session, range } = *piece;
            host.copy((session, range.offset), (SessionId(0), at), range.len);
            at += u64::from(range.len);
        }
        let flow = self.flows.get_mut(idx);
        if !owner.is_nobody() {
            let back = queue
                .bytes_of(&self.tcp.extents, owner.session)
                .saturating_add(flow.tcb.status.events.sent_behind);
            flow.tcb.status.events.sent = flow.tcb.status.events.sent.saturating_add(back);
            flow.tcb.status.events.sent_behind = 0;
        }
        let (extents, range) = (&mut self.tcp.extents, MemRange { offset: begin, len: queue.len() });
        flow.tcb.sending.queue.clear(extents);
        let pushed = flow.tcb.sending.queue.push(extents, SessionId(0), range);
        debug_assert!(pushed.is_ok(), "an empty queue takes one extent");
        if let Some(block) = self.flows.change_aside(idx, |aside| aside.staged.replace(block)) {
            self.hostif.sessions.arena(SessionId(0), user).free(block);
        }
        true
    }
}

impl Records<'_> {
    /// A process that began with a connection ends: perhaps it was made for that one.
    pub(super) fn note_end_of(&mut self, now: Instant, beginning: Beginning) {
        let Beginning::Connection(claim) = beginning else { return };
        let at = self.listeners.find(claim.scope, claim.local);
        let listener = at.and_then(|at| self.listeners.get_mut(at));
        // Another user's listener may have the name by now.
        if let Some(listener) = listener.filter(|listener| listener.user == claim.user)
            && process_each::is_short(claim.at, now)
            && listener.process_each.on_short(now)
        {
            self.names.note_lapse();
        }
    }
}

impl HostInterface {
    /// The options that only hosts know go from who has, or had, the flow to `to`: to nobody, they wait in the engine's own memory.
    /// `false`: there is not enough of that.
    pub(super) fn move_options<H: HostMemory>(
        &mut self,
        flows: &mut FlowStore,
        idx: Edit<'_>,
        to: Owner,
        host: &mut H,
    ) -> bool {
        let conn = &flows.get(*idx).conn;
        let (from, user) = (conn.tenancy.owner(), conn.user);
        let mut record = SocketOptions::default();
        if let Some(block) = flows.aside(*idx).options {
            host.read(SessionId(0), block.offset(), record.as_mut_bytes());
        } else if let Some(at) = self.place_of_options(from) {
            host.read(from.session, at, record.as_mut_bytes());
            if record.flow != from.flow_id.raw() || conn.tenancy.hold().is_none() {
                return true;
            }
            // The id may come again.
            host.write(from.session, at, NO_HANDLE.as_bytes());
        } else {
            return true;
        }
        if let Some(at) = self.place_of_options(to) {
            record.flow = to.flow_id.raw();
            host.write(to.session, at, record.as_bytes());
            self.forget_options(flows, idx);
        } else if flows.aside(*idx).options.is_none() {
            let block = self.sessions.arena(SessionId(0), user).alloc(size_of::<SocketOptions>() as u32);
            let Some(block) = block else { return false };
            host.write(SessionId(0), block.offset(), record.as_bytes());
            flows.change_aside(idx, |aside| aside.options = Some(block));
        }
        true
    }

    /// A session has the flow from now on, and its user is charged for it.
    pub(super) fn own(&mut self, flows: &mut FlowStore, idx: Edit<'_>, event: TenancyEvent) {
        let tenancy = &mut flows.get_mut(idx).conn.tenancy;
        tenancy.apply(event);
        let owner = tenancy.owner();
        self.charge_flow_to(flows, idx, self.sessions.user_of(owner.session));
    }

    /// Says what its owner may do from here on. Before the owner hears of the flow.
    pub(super) fn write_owner_word<H: HostMemory>(
        &mut self,
        flows: &FlowStore,
        idx: FlowIdx,
        says: Owned,
        host: &mut H,
    ) {
        let Owner { session, flow_id, .. } = flows.get(idx).conn.tenancy.owner();
        if let Some(record) = self.sessions.get(session) {
            let at = record.layout.owner_word(flow_id.slot());
            let word = host.word(SharedMemory::OfSession(session), at);
            word.into_iter().for_each(|word| word.store(says.word(flow_id), Ordering::Release));
        }
    }

    /// Takes the flow from its owner, unless the owner was faster ([`toe_abi::owner_word`]).
    pub(super) fn withdraw<H: HostMemory>(&mut self, flows: &FlowStore, idx: FlowIdx, host: &mut H) -> bool {
        let tenancy = &flows.get(idx).conn.tenancy;
        let (owner, says) = (tenancy.owner(), if tenancy.is_held() { Owned::Held } else { Owned::Offered });
        let Some(at) = self.sessions.get(owner.session).map(|s| s.layout.owner_word(owner.flow_id.slot()))
        else {
            return true;
        };
        let flow = owner.flow_id;
        let (from, to) = (says.word(flow), Owned::Withdrawn.word(flow));
        // Where no host can change it, it says what the engine knows.
        host.word(SharedMemory::OfSession(owner.session), at)
            .is_none_or(|word| word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    pub(super) fn forget_options(&mut self, flows: &mut FlowStore, idx: Edit<'_>) {
        if let Some(block) = flows.change_aside(idx, |aside| aside.options.take()) {
            self.sessions.arena(SessionId(0), flows.get(*idx).conn.user).free(block);
        }
    }

    /// Nobody on the host side has the flow any more.
    pub(super) fn disown(&mut self, flows: &mut FlowStore, idx: Edit<'_>) {
        let flow = flows.get_mut(idx);
        let owner = flow.conn.tenancy.owner();
        flow.conn.tenancy.apply(TenancyEvent::Left);
        // What was for this owner is not for the next one.
        flow.tcb.status.events.sent = 0;
        flow.tcb.status.events.sent_behind = 0;
        self.outbox.remove(*idx);
        if let Some(session) = self.sessions.get_mut(owner.session) {
            session.leave_slot(owner);
        }
    }

    /// A session holds the listener from now on, and by this name; one that does so by the same anchor has it already.
    pub(super) fn hold_listener(
        &mut self,
        listeners: &mut Listeners,
        mut holder: Holder,
        idx: ListenerIdx,
    ) -> Result<ListenerId, Errno> {
        let listener = listeners.get_mut(idx).ok_or(Errno::EBADF)?;
        let same = |known: &&Holder| known.session == holder.session && known.anchor == holder.anchor;
        if let Some(known) = listener.holders.list.iter().find(same) {
            return Ok(known.id);
        }
        let record = self.sessions.get_mut(holder.session).ok_or(Errno::EBADF)?;
        holder.id = ListenerId(record.listeners.insert(idx).ok_or(Errno::EMFILE)?);
        listener.holders.list.push(holder);
        listener.orphan_since = None;
        listener.holders.is_shared |= listener.holders.list.len() > 1;
        Ok(holder.id)
    }

    /// Where the owner of a flow writes its options down. `None`: it is nobody.
    fn place_of_options(&self, owner: Owner) -> Option<u64> {
        let session = self.sessions.get(owner.session).filter(|_| !owner.is_nobody())?;
        Some(session.layout.socket_options(owner.flow_id.slot()))
    }

    /// Whether what the session shows counts. ENOENT: it is a copy of an anchor whose session has said of nobody else.
    pub(super) fn may_show(&self, session: SessionId, anchor: AnchorHandle) -> Result<(), Errno> {
        if self.anchors.is_private_from(anchor, session) { Err(Errno::ENOENT) } else { Ok(()) }
    }
}
