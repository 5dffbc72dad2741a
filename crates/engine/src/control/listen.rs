//! Listeners: where connections come in, who may take them, and who takes the next one.

use super::ahead::Allowance;
use super::fast_open::FastOpenQueue;
use super::names::Twin;
use super::process_each::ProcessEach;
use crate::flow::key::Scope;
use crate::work::{Sharing, UserIdx};
use foldhash::HashMap;
use std::collections::{BTreeSet, VecDeque};
use toe_abi::errno::Errno;
use toe_base::limits::LISTENERS_MAX;
use toe_base::{Addr, AnchorHandle, Endpoint, FlowIdx, Instant, ListenerId, QueueSetId, SessionId};
use toe_tcp::deferral;

/// The place of a listener's record, and which use of that it is: one that has gone is not taken for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerIdx(pub(crate) u32);

/// Bits of a [`ListenerIdx`] that are the place.
const SLOT_BITS: u32 = LISTENERS_MAX.trailing_zeros();

impl ListenerIdx {
    const fn new(slot: u32, generation: u32) -> ListenerIdx {
        ListenerIdx(generation << SLOT_BITS | slot)
    }

    /// The place alone.
    pub const fn slot(self) -> u32 {
        self.0 & (LISTENERS_MAX as u32 - 1)
    }
}

/// A session that holds the listener, by one of its anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionId,
    pub anchor: AnchorHandle,
    pub queue_set: QueueSetId,
    pub id: ListenerId,
    /// Connections that it may still be handed.
    pub credit: u32,
    /// Its program takes connections: there was credit once.
    pub takes: bool,
    /// What it may be handed besides a connection that it asks for.
    pub ahead: Allowance,
    /// It knows that connections wait, where they are asked for.
    pub told: bool,
    pub fd: u32,
}

impl Holder {
    /// One that does not take connections yet, and has no name for the listener.
    pub fn new(session: SessionId, queue_set: QueueSetId, anchor: AnchorHandle, fd: u32) -> Holder {
        Holder {
            session,
            anchor,
            queue_set,
            id: ListenerId::default(),
            credit: 0,
            takes: false,
            ahead: Allowance::default(),
            told: false,
            fd,
        }
    }
}

/// Most connections that one holder can ask for in advance.
pub const CREDIT_MAX: u32 = 4096;
/// Longest backlog; longer ones count as this.
pub const BACKLOG_MAX: u32 = 4096;
/// Connections that are not open yet have room for so many at a listener with a short backlog.
const HALF_OPEN_MIN: u32 = 128;
/// Most anchors that hold one listener.
const ANCHORS_MAX: usize = 4096;

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
    pub backlog: u32,
    /// It lives as long as one of these is open. Each came with the kernel socket that gives whoever opened it the name.
    anchors: Vec<(AnchorHandle, Twin)>,
    pub holders: Vec<Holder>,
    /// Several processes may take from it. Where only one of them does, and has given credit since it last made a child, connections are handed to it in
    /// advance, as of a listener that is not shared. Else each asks for a connection when its program wants one, or one that stands still would keep it from the others.
    pub is_shared: bool,
    /// One who let go of it said that others may have the kernel's socket: it may be on its way to them.
    pub is_passed_on: bool,
    /// What comes to it at an address that is the kernel's too comes to the engine.
    pub is_steered: bool,
    /// When all are told that connections wait, and not only one.
    pub tell_all_at: Instant,
    /// Since when connections wait and no session holds it: a process is about to come back to it, over exec perhaps.
    pub orphan_since: Option<Instant>,
    /// Whose turn it is.
    turn: usize,
    /// Established connections that no session has been handed.
    pub waiting: VecDeque<FlowIdx>,
    /// Connections in SYN_RECEIVED.
    pub half_open: u32,
    /// Those of them that their peers hold to be open and that find no place in the backlog, in their order.
    pub line: VecDeque<FlowIdx>,
    /// Connections handed to a session and not taken by its program yet.
    pub handed: u32,
    /// Until then an ACK may bring a cookie back.
    pub cookies_until: Instant,
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

    /// Whether connections that its program has not taken are as many as it wants to wait. Linux lets one more come than
    /// `listen` says.
    pub fn is_full(&self) -> bool {
        self.waiting.len() as u32 + self.handed > self.backlog
    }

    /// Whether another SYN may have a record.
    pub fn has_room_for_half_open(&self) -> bool {
        self.half_open < self.backlog.max(HALF_OPEN_MIN)
    }

    /// How many sessions take connections.
    pub fn takers(&self) -> usize {
        self.holders.iter().filter(|holder| holder.takes).count()
    }

    /// Whether each asks for a connection when its program wants one.
    pub fn is_asked(&self) -> bool {
        let mut takers = self.holders.iter().filter(|holder| holder.takes);
        self.is_shared && !matches!((takers.next(), takers.next()), (Some(only), None) if only.credit > 0)
    }

    /// The next holder with credit, round robin.
    pub fn next_taker(&mut self) -> Option<Holder> {
        self.next(|holder| holder.credit > 0).copied()
    }

    /// The next holder to be told that connections wait, of those that can be.
    pub fn next_untold(&mut self, can_be: impl Fn(&Holder) -> bool) -> Option<Holder> {
        let holder = self.next(|holder| holder.takes && !holder.told && can_be(holder))?;
        holder.told = true;
        Some(*holder)
    }

    /// All holders that can be told and are not. Whose turn it is stays as it was: with two of them the first would
    /// otherwise be the first each time, and take everything.
    pub fn all_untold(&mut self, can_be: impl Fn(&Holder) -> bool) -> Vec<Holder> {
        let untold = self.holders.iter_mut().filter(|holder| holder.takes && !holder.told && can_be(holder));
        untold
            .map(|holder| {
                holder.told = true;
                *holder
            })
            .collect()
    }

    fn next(&mut self, is_it: impl Fn(&Holder) -> bool) -> Option<&mut Holder> {
        let n = self.holders.len();
        let at = (0..n).map(|step| (self.turn + step) % n).find(|&at| is_it(&self.holders[at]))?;
        self.turn = at + 1;
        self.holders.get_mut(at)
    }

    /// Whether all who listen here are of this user.
    pub fn is_of(&self, uid: u32) -> bool {
        self.anchors.iter().all(|(_, twin)| twin.uid == uid)
    }

    pub fn holder_mut(&mut self, session: SessionId, id: ListenerId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.session == session && h.id == id)
    }

    /// Removes those holders that `is_gone` says.
    pub fn drop_holders(&mut self, is_gone: impl Fn(&Holder) -> bool) {
        self.holders.retain(|h| !is_gone(h));
    }

    /// The anchor holds the listener no more. Returns what it came with.
    pub fn drop_anchor(&mut self, anchor: AnchorHandle) -> Option<Twin> {
        let at = self.anchors.iter().position(|(known, _)| *known == anchor)?;
        Some(self.anchors.remove(at).1)
    }

    /// Its last anchor is gone, and the kernel's socket holds it: that is in a message that nobody has received yet, or its
    /// receiver has not listened yet.
    pub fn is_on_its_way(&self) -> bool {
        self.anchors.first().is_some_and(|(anchor, _)| *anchor == ON_ITS_WAY)
    }

    /// From here on the kernel's socket alone holds it; that one is returned. `None`: it has other anchors.
    pub fn send_on_its_way(&mut self, anchor: AnchorHandle) -> Option<Twin> {
        let [(last, twin)] = self.anchors.as_mut_slice() else { return None };
        if *last != anchor {
            return None;
        }
        *last = ON_ITS_WAY;
        Some(*twin)
    }

    /// Whether no anchor holds it.
    pub fn is_unanchored(&self) -> bool {
        self.anchors.is_empty()
    }

    /// What connections that come in let others have of their name: as the socket that was shown first.
    pub fn sharing(&self) -> Sharing {
        self.anchors.first().map_or_else(Sharing::default, |(_, twin)| twin.sharing())
    }

    /// The kernel sockets that give its holders the name.
    pub fn twins(&self) -> impl Iterator<Item = Twin> {
        self.anchors.iter().map(|(_, twin)| *twin)
    }

    /// What it rests on: each anchor with its twin's identity.
    pub fn rests(&self) -> impl Iterator<Item = (u64, AnchorHandle)> {
        self.anchors.iter().map(|(anchor, twin)| (twin.identity, *anchor))
    }

    pub fn anchors(&self) -> impl Iterator<Item = AnchorHandle> {
        self.anchors.iter().map(|(anchor, _)| *anchor)
    }
}

/// In the place of an anchor: no directory has this number.
pub const ON_ITS_WAY: AnchorHandle = AnchorHandle(toe_abi::command::NO_HANDLE);

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
        overlapping.flat_map(Listener::twins).filter(|known| !known.goes_with(twin)).collect()
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
            if listener.anchors.len() >= ANCHORS_MAX {
                return Err(Errno::EMFILE);
            }
            listener.anchors.push((anchor, twin));
            return Ok(idx);
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
            backlog: backlog.min(BACKLOG_MAX),
            anchors: vec![(anchor, twin)],
            holders: Vec::new(),
            is_shared: false,
            is_passed_on: false,
            is_steered: false,
            tell_all_at: Instant::FAR_FUTURE,
            orphan_since: None,
            turn: 0,
            waiting: VecDeque::new(),
            half_open: 0,
            line: VecDeque::new(),
            handed: 0,
            cookies_until: Instant::ZERO,
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
        self.slots[idx.slot() as usize].generation =
            (idx.0 >> SLOT_BITS).wrapping_add(1) << SLOT_BITS >> SLOT_BITS;
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
        listener.is_some_and(|listener| !listener.is_of(uid))
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

    /// Node.js with two workers at one listener: on a busy machine one of them took everything.
    #[test]
    fn whoever_was_told_second_is_told_first_the_next_time_though_all_were_told() {
        let mut listeners = Listeners::default();
        let idx = open(&mut listeners, at([0; 4], 80), twin(7, at([0; 4], 80)));
        let listener = listeners.get_mut(idx).expect("open");
        for session in [1, 2] {
            listener.holders.push(Holder {
                session: SessionId(session),
                anchor: AnchorHandle(1),
                queue_set: QueueSetId(0),
                id: ListenerId::default(),
                credit: 0,
                takes: true,
                ahead: Allowance::default(),
                told: false,
                fd: 3,
            });
        }
        let firsts = [(); 4].map(|()| {
            let first = listener.next_untold(|_| true).map(|holder| holder.session.0);
            assert_eq!(listener.all_untold(|_| true).len(), 1, "the other one, a moment later");
            listener.holders.iter_mut().for_each(|holder| holder.told = false);
            first
        });
        assert_eq!(firsts, [Some(1), Some(2), Some(1), Some(2)]);
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

    #[test]
    fn connections_go_round_the_holders_that_asked_for_some() {
        let mut listeners = Listeners::default();
        let idx = open(&mut listeners, at([0; 4], 80), twin(7, at([0; 4], 80)));
        let listener = listeners.get_mut(idx).expect("open");
        for (session, credit) in [(1, 2), (2, 0), (3, 2)] {
            listener.holders.push(Holder {
                session: SessionId(session),
                anchor: AnchorHandle(1),
                queue_set: QueueSetId(0),
                id: ListenerId::default(),
                credit,
                takes: session != 2,
                ahead: Allowance::default(),
                told: false,
                fd: 3,
            });
        }
        let mut next = || {
            let taker = listener.next_taker()?;
            listener.holder_mut(taker.session, taker.id).expect("holds it").credit -= 1;
            Some(taker.session.0)
        };
        let order: Vec<_> = std::iter::from_fn(&mut next).collect();
        assert_eq!(order, [1, 3, 1, 3]);
        let told: Vec<_> =
            std::iter::from_fn(|| listener.next_untold(|_| true)).map(|h| h.session.0).collect();
        assert_eq!(told, [1, 3], "each once, though the credit of both is used up");
    }
}
