//! Listeners: where connections come in, who may take them, and who takes the next one.

use super::accept_queue::AcceptQueue;
use super::fast_open::FastOpenQueue;
use super::holders::Holders;
use super::listener_idx::ListenerIdx;
use super::names::Twin;
use super::process_each::ProcessEach;
use crate::flow::key::Scope;
use crate::work::UserIdx;
use foldhash::HashMap;
use std::collections::BTreeSet;
use toe_abi::errno::Errno;
use toe_base::limits::LISTENERS_MAX;
use toe_base::{Addr, AnchorHandle, Endpoint, Instant};
use toe_tcp::deferral;

/// One listener.
#[derive(Debug)]
pub struct Listener {
    /// The namespace that its address and port mean something in.
    pub scope: Scope,
    pub local: Endpoint,
    /// Who is charged for it, and for the connections that come in at it.
    pub user: UserIdx,
    /// What comes by IPv4 is not for it, though it is at the unspecified address of IPv6 (RFC 3493 section 5.3).
    pub v6_only: bool,
    pub holders: Holders,
    pub queue: AcceptQueue,
    /// What comes to it at an address that is the kernel's too comes to the engine.
    pub is_steered: bool,
    /// When all are told that connections wait, and not only one.
    pub tell_all_at: Instant,
    /// Since when connections wait and no session holds it: a process is about to come back to it, over exec perhaps.
    pub orphan_since: Option<Instant>,
    pub fast_open: FastOpenQueue,
    /// It wants connections with their first bytes, for so many seconds (TCP_DEFER_ACCEPT); 0: as soon as they are open.
    pub defer_secs: u32,
    pub process_each: ProcessEach,
}

impl Listener {
    /// Until when a connection that begins now is not one without bytes.
    pub fn defers_until(&self, now: Instant) -> Option<Instant> {
        (self.defer_secs > 0).then(|| deferral::until(now, self.defer_secs))
    }
}

/// All listeners of an engine.
#[derive(Debug, Default)]
pub struct Listeners {
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_addr: HashMap<(Scope, Endpoint), ListenerIdx>,
    /// Those whose addresses may overlap.
    by_port: HashMap<(Scope, u16), Vec<ListenerIdx>>,
    /// Every listener whose [`Listener::tell_all_at`] comes, by that.
    due: BTreeSet<(Instant, ListenerIdx)>,
    /// Connections that came in and are not open yet.
    pub half_open: usize,
    /// Connections that ever came in.
    pub arrivals: u64,
    /// When bytes of connections that nobody has accepted were copied last, and how many at that moment.
    pub copied: (Instant, u32),
}

#[derive(Debug, Default)]
struct Slot {
    /// Which use it is in, or was last.
    generation: u32,
    listener: Option<Listener>,
}

/// Whether some address and port would be both listeners', each with whether it is for IPv6 alone.
fn overlap((one, one_alone): (Endpoint, bool), (other, other_alone): (Endpoint, bool)) -> bool {
    let covers = |all: Endpoint, alone: bool, part: Endpoint| {
        all.addr == part.addr
            || all.addr == part.addr.unspecified()
            || all.addr == Addr::UNSPECIFIED_V6 && !alone && part.addr.is_v4()
    };
    one.port == other.port && (covers(one, one_alone, other) || covers(other, other_alone, one))
}

impl Listeners {
    /// What others listen by whose addresses overlap with these, where the kernel does not let both listen.
    pub fn rivals(&self, scope: Scope, (local, v6_only): (Endpoint, bool), twin: &Twin) -> Vec<Twin> {
        let at_port = self.by_port.get(&(scope, local.port)).into_iter().flatten();
        let overlapping = at_port
            .filter_map(|idx| self.get(*idx))
            .filter(|listener| overlap((listener.local, listener.v6_only), (local, v6_only)));
        overlapping
            .flat_map(|listener| listener.holders.twins())
            .filter(|known| !known.goes_with(twin))
            .collect()
    }

    /// A new listener at `local`, without holders yet; or the one that is there, held by one anchor more. It has no
    /// [`Listeners::rivals`].
    pub fn open(
        &mut self,
        scope: Scope,
        (local, v6_only): (Endpoint, bool),
        backlog: u32,
        anchor: AnchorHandle,
        twin: Twin,
    ) -> Result<ListenerIdx, Errno> {
        if let Some(&idx) = self.by_addr.get(&(scope, local)) {
            let listener = self.get_mut(idx).ok_or(Errno::EADDRINUSE)?;
            return listener.holders.add_lifetime(anchor, twin).map(|()| idx);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < LISTENERS_MAX => {
                self.slots.push(Slot::default());
                self.slots.len() as u32 - 1
            }
            None => return Err(Errno::ENOBUFS),
        };
        let listener = Listener {
            scope,
            local,
            user: UserIdx::NOBODY,
            v6_only,
            holders: Holders::new(anchor, twin),
            queue: AcceptQueue::new(backlog),
            is_steered: false,
            tell_all_at: Instant::FAR_FUTURE,
            orphan_since: None,
            fast_open: FastOpenQueue::default(),
            defer_secs: 0,
            process_each: ProcessEach::default(),
        };
        let place = &mut self.slots[slot as usize];
        place.listener = Some(listener);
        let idx = ListenerIdx::new(slot, place.generation);
        self.by_addr.insert((scope, local), idx);
        self.by_port.entry((scope, local.port)).or_default().push(idx);
        Ok(idx)
    }

    /// Removes a listener and returns its record.
    pub fn close(&mut self, idx: ListenerIdx) -> Option<Listener> {
        let listener = self.slot_mut(idx)?.listener.take()?;
        self.slots[idx.slot() as usize].generation = idx.next_generation();
        self.free.push(idx.slot());
        self.due.remove(&(listener.tell_all_at, idx));
        self.by_addr.remove(&(listener.scope, listener.local));
        let at = (listener.scope, listener.local.port);
        if let Some(at_port) = self.by_port.get_mut(&at) {
            at_port.retain(|known| *known != idx);
            if at_port.is_empty() {
                self.by_port.remove(&at);
            }
        }
        Some(listener)
    }

    pub fn len(&self) -> usize {
        self.by_addr.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_addr.is_empty()
    }

    pub fn get(&self, idx: ListenerIdx) -> Option<&Listener> {
        let slot = self.slots.get(idx.slot() as usize)?;
        slot.listener.as_ref().filter(|_| ListenerIdx::new(idx.slot(), slot.generation) == idx)
    }

    pub fn get_mut(&mut self, idx: ListenerIdx) -> Option<&mut Listener> {
        self.slot_mut(idx)?.listener.as_mut()
    }

    fn slot_mut(&mut self, idx: ListenerIdx) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(idx.slot() as usize)?;
        (ListenerIdx::new(idx.slot(), slot.generation) == idx).then_some(slot)
    }

    /// When all holders of a listener are to be told that connections wait.
    pub fn set_tell_all(&mut self, idx: ListenerIdx, at: Instant) {
        let Some(listener) = self.get_mut(idx) else { return };
        let before = core::mem::replace(&mut listener.tell_all_at, at);
        if before != at {
            self.due.remove(&(before, idx));
            if !at.is_far_future() {
                self.due.insert((at, idx));
            }
        }
    }

    /// No listener is due before this.
    pub fn next_due(&self) -> Instant {
        self.due.first().map_or(Instant::FAR_FUTURE, |(at, _)| *at)
    }

    /// A listener whose time has come.
    pub fn due(&mut self, now: Instant) -> Option<ListenerIdx> {
        self.due.first().filter(|(at, _)| *at <= now).map(|(_, idx)| *idx)
    }

    /// The listener for a connection to `local`: one bound to the address goes before one bound to all of its family, and
    /// that before one of both families.
    pub fn find(&self, scope: Scope, local: Endpoint) -> Option<ListenerIdx> {
        let any = local.at(local.addr.unspecified());
        let of_family =
            self.by_addr.get(&(scope, local)).or_else(|| self.by_addr.get(&(scope, any))).copied();
        of_family.or_else(|| {
            let both = self.by_addr.get(&(scope, local.at(Addr::UNSPECIFIED_V6))).copied()?;
            self.get(both).filter(|listener| !listener.v6_only).map(|_| both)
        })
    }

    /// Whether somebody else than this user listens where `local` is, or at a part of it.
    pub fn others_listen_at(&self, scope: Scope, local: Endpoint, uid: u32) -> bool {
        let listener = self.find(scope, local).and_then(|idx| self.get(idx));
        listener.is_some_and(|listener| !listener.holders.is_of(uid))
    }

    /// What is in a slot; `None` behind the last one.
    pub fn in_slot(&self, slot: u32) -> Option<Option<&Listener>> {
        self.slots.get(slot as usize).map(|slot| slot.listener.as_ref())
    }

    pub fn iter(&self) -> impl Iterator<Item = (ListenerIdx, &Listener)> {
        let of_slot = |(at, slot): (usize, &'_ Slot)| ListenerIdx::new(at as u32, slot.generation);
        self.slots.iter().enumerate().filter_map(move |at| Some((of_slot(at), at.1.listener.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toe_base::Cred;

    fn at(ip: [u8; 4], port: u16) -> Endpoint {
        Endpoint::new(ip, port)
    }

    /// A kernel socket that is bound there and listens.
    fn twin(identity: u64, local: Endpoint) -> Twin {
        Twin::listening(local, identity, Cred::of_user(10), Instant::ZERO)
    }

    fn open(listeners: &mut Listeners, local: Endpoint, twin: Twin) -> ListenerIdx {
        listeners.open(Scope::OWN, (local, false), 5, AnchorHandle(1), twin).expect("free")
    }

    #[test]
    fn the_bound_address_goes_before_any_address() {
        let mut listeners = Listeners::default();
        let any = open(&mut listeners, at([0; 4], 80), twin(7, at([0; 4], 80)));
        let one = open(&mut listeners, at([10, 0, 0, 2], 80), twin(7, at([0; 4], 80)));
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 80)), Some(one));
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 3], 80)), Some(any));
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 81)), None);
        listeners.close(one);
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 80)), Some(any));
    }

    #[test]
    fn whom_the_kernel_would_not_let_listen_beside_another_is_its_rival() {
        let mut listeners = Listeners::default();
        let (any, one, other) = (at([0; 4], 80), at([10, 0, 0, 2], 80), at([10, 0, 0, 3], 80));
        let first = twin(7, any);
        let idx = open(&mut listeners, one, first);
        let rivals = |listeners: &Listeners, local, twin: &Twin| {
            let found = listeners.rivals(Scope::OWN, (local, false), twin).into_iter();
            found.map(|known| known.identity).collect::<Vec<_>>()
        };
        for local in [any, one] {
            assert_eq!(rivals(&listeners, local, &twin(8, local)), [7], "{local:?}");
        }
        assert_eq!(rivals(&listeners, other, &twin(8, other)), [], "no part of what is listened at");
        assert_eq!(rivals(&listeners, at([0; 4], 81), &twin(8, any)), []);
        assert_eq!(listeners.rivals(Scope(1), (any, false), &twin(8, any)), [], "another namespace");
        assert_eq!(rivals(&listeners, any, &first), [], "the same socket");
        listeners.close(idx);
        assert_eq!(rivals(&listeners, any, &twin(8, any)), []);
    }

    #[test]
    fn a_name_is_another_in_another_namespace() {
        let mut listeners = Listeners::default();
        let local = at([127, 0, 0, 1], 80);
        let own = open(&mut listeners, local, twin(7, local));
        let other =
            listeners.open(Scope(1), (local, false), 5, AnchorHandle(2), twin(8, local)).expect("free");
        assert_eq!(listeners.find(Scope::OWN, local), Some(own));
        assert_eq!(listeners.find(Scope(1), local), Some(other));
        assert_eq!(listeners.find(Scope(2), local), None);
    }

    #[test]
    fn a_listener_of_both_families_takes_what_no_other_of_ipv4_does() {
        let both = Endpoint::new(Addr::UNSPECIFIED_V6, 80);
        let mut listeners = Listeners::default();
        let mut open = |local, v6_only| {
            listeners.open(Scope::OWN, (local, v6_only), 5, AnchorHandle(1), twin(7, both)).expect("free")
        };
        let (any_v6, only_v6) = (open(both, false), open(Endpoint { port: 81, ..both }, true));
        let one_v6 = open(Endpoint::new(Addr::LOCALHOST_V6, 80), false);
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 80)), Some(any_v6));
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 81)), None, "it said that it wants none");
        assert_eq!(listeners.find(Scope::OWN, Endpoint::new(Addr::LOCALHOST_V6, 81)), Some(only_v6));
        assert_eq!(listeners.find(Scope::OWN, Endpoint::new(Addr::LOCALHOST_V6, 80)), Some(one_v6));
        let [any_v4, other] =
            [81, 80].map(|port| self::open(&mut listeners, at([0; 4], port), twin(7, both)));
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 81)), Some(any_v4), "both have the port");
        assert_eq!(listeners.find(Scope::OWN, at([10, 0, 0, 2], 80)), Some(other), "the nearer one");
    }

    #[test]
    fn families_overlap_as_they_do_in_linux() {
        let all = Endpoint { addr: Addr::UNSPECIFIED_V6, port: 80 };
        let one = Endpoint::new(Addr::LOCALHOST_V6, 80);
        let cases = [
            ((all, false), (at([0; 4], 80), false), true),
            ((all, false), (at([10, 0, 0, 2], 80), false), true),
            ((all, true), (at([0; 4], 80), false), false),
            ((all, true), (one, false), true),
            ((one, false), (at([0; 4], 80), false), false),
        ];
        for (first, second, is_one) in cases {
            assert_eq!(
                (overlap(first, second), overlap(second, first)),
                (is_one, is_one),
                "{first:?} {second:?}"
            );
        }
    }
}
