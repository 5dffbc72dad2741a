//! A listener loses a holder, its last one, or its name: what waits there is handed back, closed, or waits for who is next.

use super::Engine;
use crate::control::holders::{Holder, ON_ITS_WAY};
use crate::control::listen::Listeners;
use crate::control::listener_idx::ListenerIdx;
use crate::control::names::{Rest, Twin};
use crate::counter::Counter;
use crate::flow::key::Scope;
use crate::flow::record::Flow;
use crate::flow::tenancy::{GOES_BACK_AT_ONCE, Tenancy, TenancyEvent};
use crate::hostif::anchors::AnchorTarget;
use crate::parts::HostInterface;
use toe_abi::entry::Command;
use toe_abi::errno::Errno;
use toe_base::{AnchorHandle, Endpoint, FlowIdx, Instant, ListenerId, SessionId};
use toe_tcp::memory::HostMemory;

/// So long a listener waits for whoever was sent its kernel socket; after that the receiver is a program that knows nothing of the
/// engine.
pub(super) const ON_ITS_WAY_FOR_US: u64 = 2_000_000;

impl Engine {
    /// The last descriptor of a listener was closed: what nobody took is reset, as Linux does.
    pub(super) fn close_listener<H: HostMemory>(&mut self, now: Instant, idx: ListenerIdx, host: &mut H) {
        let Some(listener) = self.remove_listener(idx) else { return };
        for holder in &listener.holders.list {
            if let Some(session) = self.hostif.sessions.get_mut(holder.session) {
                session.listeners.remove(holder.id.0);
            }
        }
        for anchor in listener.holders.lifetimes() {
            self.hostif.anchors.release(anchor, AnchorTarget::Listener(idx));
        }
        while let Some(flow) = self.flows.came_in.pop(idx.slot()) {
            self.edit(flow, |engine, idx| {
                if engine.was_accepted(idx, host) {
                    return;
                }
                let is_half_open = matches!(engine.flows.get(*idx).conn.tenancy, Tenancy::HalfOpen { .. });
                engine.forget_in_listener(idx);
                if is_half_open {
                    // The peer learns of it when it asks, as with Linux.
                    engine.closed(idx, Errno::OK);
                } else {
                    engine.app_close(now, idx, true, host);
                }
            });
        }
    }

    /// The last descriptor of one of a listener's anchors was closed.
    pub(super) fn close_listener_anchor<H: HostMemory>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) {
        if self.listeners.unanchor(&mut self.names, idx, anchor) {
            self.close_listener(now, idx, host);
            return;
        }
        self.drop_holders_of(now, idx, anchor, host);
    }

    fn drop_holders_of<H: HostMemory>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) {
        let Some(listener) = self.listeners.get(idx) else { return };
        let gone: Vec<Holder> =
            listener.holders.list.iter().filter(|h| h.anchor == anchor).copied().collect();
        for holder in gone {
            self.drop_listener_holder(now, holder.session, holder.id, false, host);
        }
    }

    /// One session lets go of a listener; what it was handed and did not take goes to others.
    pub(super) fn drop_listener_holder<H: HostMemory>(
        &mut self,
        now: Instant,
        session: SessionId,
        id: ListenerId,
        last: bool,
        host: &mut H,
    ) {
        let Some(record) = self.hostif.sessions.get_mut(session) else { return };
        let Some(idx) = record.listeners.remove(id.0) else {
            self.counters.add(Counter::StaleEntries);
            return;
        };
        let is_mine = |flow: &FlowIdx| self.flows.get(*flow).conn.tenancy.was_handed(session, id);
        let mine: Vec<FlowIdx> = self.flows.came_in.iter(idx.slot()).filter(is_mine).collect();
        let mut anchor = None;
        if let Some(listener) = self.listeners.get_mut(idx) {
            anchor = listener.holders.get_mut(session, id).map(|holder| holder.anchor);
            listener.holders.remove(|h| h.session == session && h.id == id);
        }
        let mut goes_back_later = false;
        for flow in mine {
            self.edit(flow, |engine, idx| {
                let Flow { conn, tcb, .. } = engine.flows.get_mut(idx);
                // One that has ended goes nowhere, and there is nothing to copy.
                let may_wait = conn.tenancy.listener().is_some() && !tcb.is_written();
                if may_wait && !engine.listeners.may_copy_more(now) {
                    conn.tenancy.apply(TenancyEvent::StaysUntil(GOES_BACK_AT_ONCE));
                    goes_back_later = true;
                } else if engine.was_accepted(idx, host) {
                    // It lives on without its listener.
                } else if may_wait && engine.take_untaken(now, idx, host) {
                    engine.listeners.return_to_listener(&mut engine.flows, idx);
                } else {
                    // If it has ended this session will not ask for it any more.
                    engine.app_close(now, idx, true, host);
                }
            });
        }
        // At once, not at the anchor's hang-up: after close() has returned nobody may get in any more. Other sessions
        // that hold the listener by the same anchor know better than the one that says it was the last.
        let listener = self.listeners.get(idx).filter(|_| last);
        if let Some((listener, anchor)) = listener.zip(anchor)
            && listener.holders.list.iter().all(|holder| holder.anchor != anchor)
        {
            self.hostif.anchors.release(anchor, AnchorTarget::Listener(idx));
            if self.listeners.unanchor(&mut self.names, idx, anchor) {
                self.close_listener(now, idx, host);
                return;
            }
        }
        self.hand_out(now, idx, host);
        if goes_back_later {
            self.listeners.set_tell_all(idx, now.after_us(1));
        }
    }

    /// The last descriptor of a listener's last anchor was closed. If others may have the kernel's socket, that holds the listener for
    /// a moment: in a message it outlives all descriptors (unix(7), SCM_RIGHTS), and Linux loses no connection meanwhile.
    pub(super) fn send_listener_on_its_way<H: HostMemory>(
        &mut self,
        now: Instant,
        idx: ListenerIdx,
        anchor: AnchorHandle,
        host: &mut H,
    ) -> bool {
        let passed_on = self.listeners.get_mut(idx).filter(|listener| listener.holders.is_passed_on);
        let Some(twin) = passed_on.and_then(|listener| listener.holders.send_on_its_way(anchor)) else {
            return false;
        };
        self.names.rests.remove(twin.identity, Rest::Listener(idx, anchor));
        self.names.rests.add(&twin, Rest::Listener(idx, ON_ITS_WAY));
        self.names.note_lapse();
        self.names.doubted.push(twin.identity);
        // Nobody listens by it any more; what was handed out and not taken waits again.
        self.drop_holders_of(now, idx, anchor, host);
        if let Some(listener) = self.listeners.get_mut(idx) {
            listener.holders.is_shared = true;
            listener.orphan_since = Some(now);
        }
        self.listeners.set_tell_all(idx, now.after_us(ON_ITS_WAY_FOR_US));
        true
    }

    /// [`crate::ControlEvent::SocketGone`].
    pub(super) fn twin_gone<H: HostMemory>(
        &mut self,
        now: Instant,
        (identity, looked_at): (u64, Instant),
        host: &mut H,
    ) {
        for rest in self.names.rests.take(identity, looked_at) {
            match rest {
                Rest::Presented(session, id) => {
                    if let Some(record) = self.hostif.sessions.get_mut(session) {
                        record.twins.remove(id);
                    }
                }
                Rest::Listener(listener, anchor) => {
                    self.counters.add(Counter::TwinsGone);
                    self.hostif.anchors.release(anchor, AnchorTarget::Listener(listener));
                    self.close_listener_anchor(now, listener, anchor, host);
                }
            }
        }
    }

    /// Makes room for a listener: of those that the kernel would not let listen beside this twin, the ones seen earlier
    /// are no more. EADDRINUSE: one was seen later, so it is this twin that is no more.
    pub(super) fn oust_rivals<H: HostMemory>(
        &mut self,
        now: Instant,
        (scope, local, v6_only): (Scope, Endpoint, bool),
        twin: &Twin,
        host: &mut H,
    ) -> Result<(), Errno> {
        let rivals = self.listeners.rivals(scope, (local, v6_only), twin);
        if rivals.iter().any(|rival| rival.seen >= twin.seen) {
            return Err(Errno::EADDRINUSE);
        }
        for rival in rivals {
            self.twin_gone(now, (rival.identity, twin.seen), host);
        }
        Ok(())
    }
}

/// [`Command::CloseListener`] and [`Command::EndListener`].
pub(super) fn by_command<H: HostMemory>(
    engine: &mut Engine,
    now: Instant,
    session: SessionId,
    command: Command,
    host: &mut H,
) {
    let Engine { hostif, listeners, .. } = engine;
    match command {
        Command::CloseListener { listener, last } => {
            hostif.note_passed_on(listeners, session, listener, last);
            engine.drop_listener_holder(now, session, listener, last, host);
        }
        // At once: the kernel's socket may listen again before the next look at it.
        Command::EndListener { listener } => match hostif.twin_of(listeners, session, listener) {
            Some(twin) => engine.twin_gone(now, (twin.identity, twin.seen), host),
            None => engine.counters.add(Counter::StaleEntries),
        },
        _ => {}
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
