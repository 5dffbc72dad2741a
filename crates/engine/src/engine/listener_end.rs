//! A listener loses a holder, its last one, or its name: what waits there is handed back, closed, or waits for who is next.

use crate::control::holders::{Holder, ON_ITS_WAY};
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::control::names::{Rest, Twin};
use crate::counter::Counter;
use crate::flow::key::Scope;
use crate::flow::record::Flow;
use crate::flow::tenancy::{GOES_BACK_AT_ONCE, Tenancy, TenancyEvent};
use crate::hostif::anchors::AnchorTarget;
use crate::parts::{Accepting, HostInterface, Records};
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, Endpoint, FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::HostMemory;

/// So long a listener waits for whoever was sent its kernel socket; after that the receiver is a program that knows nothing of the
/// engine.
pub(super) const ON_ITS_WAY_FOR_US: u64 = 2_000_000;

impl<H: HostMemory> Accepting<'_, '_, H> {
    /// The last descriptor of a listener was closed: what nobody took is reset, as Linux does.
    pub(super) fn close_listener(&mut self, idx: ListenerIdx) {
        let Some(listener) = self.records.remove_listener(idx) else { return };
        for holder in &listener.holders.list {
            if let Some(session) = self.records.hostif.sessions.get_mut(holder.session) {
                session.listeners.remove(holder.id.0);
            }
        }
        for anchor in listener.holders.lifetimes() {
            self.records.hostif.anchors.release(anchor, AnchorTarget::Listener(idx));
        }
        while let Some(flow) = self.records.flows.came_in.pop(idx.slot()) {
            self.edit(flow, |room, idx| {
                if room.was_accepted(idx) {
                    return;
                }
                let is_half_open =
                    matches!(room.records.flows.get(*idx).conn.tenancy, Tenancy::HalfOpen { .. });
                room.records.forget_in_listener(idx);
                if is_half_open {
                    // The peer learns of it when it asks, as with Linux.
                    room.records.closed(idx, Errno::OK);
                } else {
                    room.records.app_close(room.now, idx, true, room.host);
                }
            });
        }
    }

    /// The last descriptor of one of a listener's anchors was closed.
    pub(super) fn close_listener_anchor(&mut self, idx: ListenerIdx, anchor: AnchorHandle) {
        if self.records.listeners.unanchor(self.records.names, idx, anchor) {
            self.close_listener(idx);
            return;
        }
        self.drop_holders_of(idx, anchor);
    }

    fn drop_holders_of(&mut self, idx: ListenerIdx, anchor: AnchorHandle) {
        let Some(listener) = self.records.listeners.get(idx) else { return };
        let gone: Vec<Holder> =
            listener.holders.list.iter().filter(|h| h.anchor == anchor).copied().collect();
        for holder in gone {
            self.drop_listener_holder(holder.session, holder.id, false);
        }
    }

    /// One session lets go of a listener; what it was handed and did not take goes to others.
    pub(super) fn drop_listener_holder(&mut self, session: SessionId, id: ListenerId, last: bool) {
        let Some(record) = self.records.hostif.sessions.get_mut(session) else { return };
        let Some(idx) = record.listeners.remove(id.0) else {
            self.records.counters.add(Counter::StaleEntries);
            return;
        };
        let is_mine = |flow: &FlowIdx| self.records.flows.get(*flow).conn.tenancy.was_handed(session, id);
        let mine: Vec<FlowIdx> = self.records.flows.came_in.iter(idx.slot()).filter(is_mine).collect();
        let mut anchor = None;
        if let Some(listener) = self.records.listeners.get_mut(idx) {
            anchor = listener.holders.get_mut(session, id).map(|holder| holder.anchor);
            listener.holders.remove(|h| h.session == session && h.id == id);
        }
        let mut goes_back_later = false;
        for flow in mine {
            self.edit(flow, |room, idx| {
                let Flow { conn, tcb, .. } = room.records.flows.get_mut(idx);
                // One that has ended goes nowhere, and there is nothing to copy.
                let may_wait = conn.tenancy.listener().is_some() && !tcb.is_written();
                if may_wait && !room.records.listeners.may_copy_more(room.now) {
                    conn.tenancy.apply(TenancyEvent::StaysUntil(GOES_BACK_AT_ONCE));
                    goes_back_later = true;
                } else if room.was_accepted(idx) {
                    // It lives on without its listener.
                } else if may_wait && room.take_untaken(idx) {
                    room.records.listeners.return_to_listener(room.records.flows, idx);
                } else {
                    // If it has ended this session will not ask for it any more.
                    room.records.app_close(room.now, idx, true, room.host);
                }
            });
        }
        // At once, not at the anchor's hang-up: after close() has returned nobody may get in any more. Other sessions
        // that hold the listener by the same anchor know better than the one that says it was the last.
        let listener = self.records.listeners.get(idx).filter(|_| last);
        if let Some((listener, anchor)) = listener.zip(anchor)
            && listener.holders.list.iter().all(|holder| holder.anchor != anchor)
        {
            self.records.hostif.anchors.release(anchor, AnchorTarget::Listener(idx));
            if self.records.listeners.unanchor(self.records.names, idx, anchor) {
                self.close_listener(idx);
                return;
            }
        }
        self.hand_out(idx);
        if goes_back_later {
            self.records.listeners.set_tell_all(idx, self.now.after_us(1));
        }
    }

    /// The last descriptor of a listener's last anchor was closed. If others may have the kernel's socket, that holds the listener for
    /// a moment: in a message it outlives all descriptors (unix(7), SCM_RIGHTS), and Linux loses no connection meanwhile.
    pub(super) fn send_listener_on_its_way(&mut self, idx: ListenerIdx, anchor: AnchorHandle) -> bool {
        let passed_on = self.records.listeners.get_mut(idx).filter(|listener| listener.holders.is_passed_on);
        let Some(twin) = passed_on.and_then(|listener| listener.holders.send_on_its_way(anchor)) else {
            return false;
        };
        self.records.names.rests.remove(twin.identity, Rest::Listener(idx, anchor));
        self.records.names.rests.add(&twin, Rest::Listener(idx, ON_ITS_WAY));
        self.records.names.note_lapse();
        self.records.names.doubted.push(twin.identity);
        // Nobody listens by it any more; what was handed out and not taken waits again.
        self.drop_holders_of(idx, anchor);
        if let Some(listener) = self.records.listeners.get_mut(idx) {
            listener.holders.is_shared = true;
            listener.orphan_since = Some(self.now);
        }
        self.records.listeners.set_tell_all(idx, self.now.after_us(ON_ITS_WAY_FOR_US));
        true
    }

    /// [`Command::CloseListener`] and [`Command::EndListener`].
    pub(super) fn listener_ends(&mut self, session: SessionId, command: Command) {
        let Records { hostif, listeners, counters, .. } = &mut self.records;
        match command {
            Command::CloseListener { listener, last } => {
                hostif.note_passed_on(listeners, session, listener, last);
                self.drop_listener_holder(session, listener, last);
            }
            // At once: the kernel's socket may listen again before the next look at it.
            Command::EndListener { listener } => match hostif.twin_of(listeners, session, listener) {
                Some(twin) => self.twin_gone((twin.identity, twin.seen)),
                None => counters.add(Counter::StaleEntries),
            },
            _ => {}
        }
    }

    /// [`crate::ControlEvent::SocketGone`].
    pub(super) fn twin_gone(&mut self, (identity, looked_at): (u64, Instant)) {
        for rest in self.records.names.rests.take(identity, looked_at) {
            match rest {
                Rest::Presented(session, id) => {
                    if let Some(record) = self.records.hostif.sessions.get_mut(session) {
                        record.twins.remove(id);
                    }
                }
                Rest::Listener(listener, anchor) => {
                    self.records.counters.add(Counter::TwinsGone);
                    self.records.hostif.anchors.release(anchor, AnchorTarget::Listener(listener));
                    self.close_listener_anchor(listener, anchor);
                }
            }
        }
    }

    /// Makes room for a listener: of those that the kernel would not let listen beside this twin, the ones seen earlier
    /// are no more. EADDRINUSE: one was seen later, so it is this twin that is no more.
    pub(super) fn oust_rivals(
        &mut self,
        (scope, local, v6_only): (Scope, Endpoint, bool),
        twin: &Twin,
    ) -> Result<(), Errno> {
        let rivals = self.records.listeners.rivals(scope, (local, v6_only), twin);
        if rivals.iter().any(|rival| rival.seen >= twin.seen) {
            return Err(Errno::EADDRINUSE);
        }
        for rival in rivals {
            self.twin_gone((rival.identity, twin.seen));
        }
        Ok(())
    }
}

impl Listeners {
    /// Whether a listener that no session takes from is kept: connections wait at it, or its kernel socket is on its way.
    pub(super) fn is_orphaned(&mut self, now: Instant, idx: ListenerIdx) -> bool {
        let Some(listener) = self.get_mut(idx) else { return false };
        let orphaned = listener.holders.takers() == 0
            && (!listener.queue.waiting.is_empty() || listener.holders.is_on_its_way());
        listener.orphan_since = orphaned.then(|| listener.orphan_since.unwrap_or(now));
        orphaned
    }
}

impl HostInterface {
    /// The kernel's socket by which a session has a listener.
    fn twin_of(&self, listeners: &mut Listeners, session: SessionId, id: ListenerId) -> Option<Twin> {
        let idx = self.sessions.get(session)?.listener(id)?;
        listeners.get_mut(idx)?.holders.twin_of(session, id)
    }

    /// A session lets go of a listener, and says whether nobody else has it.
    pub(super) fn note_passed_on(
        &mut self,
        listeners: &mut Listeners,
        session: SessionId,
        id: ListenerId,
        last: bool,
    ) {
        let idx = self.sessions.get(session).and_then(|session| session.listener(id));
        if let Some(listener) = idx.and_then(|idx| listeners.get_mut(idx)) {
            listener.holders.is_passed_on |= !last;
        }
    }
}
