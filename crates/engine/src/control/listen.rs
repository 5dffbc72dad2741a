//! Listeners: where connections come in, who may take them, and who takes the next one.

use super::fast_open::FastOpenQueue;
use std::collections::{HashMap, VecDeque};
use toe_abi::errno::Errno;
use toe_base::{Addr, AnchorHandle, Endpoint, FlowIdx, Instant, ListenerId, NetNs, QueueSetId, SessionId};

/// The place of a listener's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenerIdx(pub u32);

/// A session that holds the listener, by one of its anchors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    pub session: SessionId,
    pub anchor: AnchorHandle,
    pub queue_set: QueueSetId,
    pub id: ListenerId,
    /// Connections that it may still be handed.
    pub credit: u32,
    /// Its program takes connections: there was credit once. Of an asked listener nothing more of credit counts.
    pub takes: bool,
    /// It knows that connections wait, where they are asked for.
    pub told: bool,
    pub fd: u32,
}

/// Most connections that one holder can ask for in advance.
pub const CREDIT_MAX: u32 = 4096;
/// Longest backlog; longer ones count as this.
pub const BACKLOG_MAX: u32 = 4096;
/// Connections that are not open yet have room for so many at a listener with a short backlog.
const HALF_OPEN_MIN: u32 = 128;
/// Most anchors that hold one listener.
const ANCHORS_MAX: usize = 4096;

/// A kernel socket that a session has shown: it holds the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    pub local: Endpoint,
    /// In IPv6, and of that family alone (IPV6_V6ONLY).
    pub v6_only: bool,
    /// The same for every descriptor of this socket, in whatever process (Linux: SO_COOKIE).
    pub identity: u64,
    /// Others may be bound to the same port (SO_REUSEPORT).
    pub shares_port: bool,
    /// Where nobody else has its address and port.
    pub netns: NetNs,
    /// It listens. While it does nobody else can, whatever options either has (of those that do not, SO_REUSEADDR lets
    /// several have one port).
    pub listens: bool,
}

impl Twin {
    /// Whether all that comes to `local` at an address of the kernel's is for whoever has this socket.
    pub fn holds(&self, local: Endpoint) -> bool {
        let held = self.local;
        let covers = held.addr == local.addr
            || held.addr == local.addr.unspecified()
            || held.addr == Addr::UNSPECIFIED_V6 && !self.v6_only;
        self.listens && held.port == local.port && covers
    }
}

/// Who listens, as far as it decides who else may listen at the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    pub twin: Option<Twin>,
    pub uid: u32,
}

/// One listener.
#[derive(Debug)]
pub struct Listener {
    pub local: Endpoint,
    /// What comes by IPv4 is not for it, though it is at the unspecified address of IPv6 (RFC 3493 section 5.3).
    pub v6_only: bool,
    pub backlog: u32,
    /// It lives as long as one of these is open. Each came with what is known of who opened it.
    anchors: Vec<(AnchorHandle, Evidence)>,
    pub holders: Vec<Holder>,
    /// Several processes may take from it: each asks for a connection when its program wants one, or one that stands still
    /// would keep it from the others. Otherwise connections are handed to who has credit, in advance.
    pub is_asked: bool,
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
}

impl Listener {
    /// Whether connections that its program has not taken are as many as it wants to wait. Linux lets one more come than
    /// `listen` says.
    pub fn is_full(&self) -> bool {
        self.waiting.len() as u32 + self.handed > self.backlog
    }

    /// Whether another SYN may have a record.
    pub fn has_room_for_half_open(&self) -> bool {
        self.half_open < self.backlog.max(HALF_OPEN_MIN)
    }

    /// The next holder with credit, round robin; its credit is used up by one.
    pub fn next_taker(&mut self) -> Option<Holder> {
        let holder = self.next(|holder| holder.credit > 0)?;
        holder.credit -= 1;
        Some(*holder)
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

    /// Whether somebody with this evidence may take connections here, too: it has a descriptor of the same kernel
    /// socket, or one that Linux lets share the port, which takes the same user (SO_REUSEPORT in socket(7)).
    fn admits(&self, other: &Evidence) -> bool {
        let Some(theirs) = other.twin else { return false };
        self.anchors.iter().any(|(_, known)| {
            known.twin.is_some_and(|ours| {
                ours.identity == theirs.identity
                    || ours.shares_port && theirs.shares_port && known.uid == other.uid
            })
        })
    }

    pub fn holder_mut(&mut self, session: SessionId, id: ListenerId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|h| h.session == session && h.id == id)
    }

    /// Removes those holders that `is_gone` says.
    pub fn drop_holders(&mut self, is_gone: impl Fn(&Holder) -> bool) {
        self.holders.retain(|h| !is_gone(h));
    }

    /// The anchor holds the listener no more. `true`: no other does.
    pub fn drop_anchor(&mut self, anchor: AnchorHandle) -> bool {
        self.anchors.retain(|(known, _)| *known != anchor);
        self.anchors.is_empty()
    }

    /// The kernel socket is gone or listens no more: it says nothing about the port any longer.
    fn forget_twin(&mut self, identity: u64) {
        for (_, evidence) in &mut self.anchors {
            evidence.twin = evidence.twin.filter(|twin| twin.identity != identity);
        }
    }

    /// The kernel sockets that hold the port.
    pub fn holding_twins(&self) -> impl Iterator<Item = Twin> {
        let local = self.local;
        self.anchors.iter().filter_map(|(_, known)| known.twin).filter(move |twin| twin.holds(local))
    }

    pub fn anchors(&self) -> impl Iterator<Item = AnchorHandle> {
        self.anchors.iter().map(|(anchor, _)| *anchor)
    }
}

/// All listeners of an engine.
#[derive(Debug)]
pub struct Listeners {
    records: Vec<Option<Listener>>,
    by_addr: HashMap<Endpoint, ListenerIdx>,
    /// Not after any [`Listener::tell_all_at`].
    next_due: Instant,
}

impl Default for Listeners {
    fn default() -> Listeners {
        Listeners { records: Vec::new(), by_addr: HashMap::new(), next_due: Instant::FAR_FUTURE }
    }
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
    /// A new listener at `local`, without holders yet; or the one that is there, held by one anchor more, when that
    /// admits who comes.
    pub fn open(
        &mut self,
        (local, v6_only): (Endpoint, bool),
        backlog: u32,
        anchor: AnchorHandle,
        evidence: Evidence,
    ) -> Result<ListenerIdx, Errno> {
        if let Some(&idx) = self.by_addr.get(&local) {
            let there = self.get_mut(idx).filter(|listener| listener.admits(&evidence));
            let listener = there.ok_or(Errno::EADDRINUSE)?;
            if listener.anchors.len() >= ANCHORS_MAX {
                return Err(Errno::EMFILE);
            }
            listener.anchors.push((anchor, evidence));
            return Ok(idx);
        }
        // Of what somebody listens at nobody else gets a part, nor all that it is a part of, unless the kernel has said so.
        if evidence.twin.is_none()
            && self.iter().any(|(_, listener)| overlap((listener.local, listener.v6_only), (local, v6_only)))
        {
            return Err(Errno::EADDRINUSE);
        }
        let slot = match self.records.iter().position(Option::is_none) {
            Some(slot) => slot,
            None => {
                self.records.push(None);
                self.records.len() - 1
            }
        };
        let listener = Listener {
            local,
            v6_only,
            backlog: backlog.clamp(1, BACKLOG_MAX),
            anchors: vec![(anchor, evidence)],
            holders: Vec::new(),
            is_asked: false,
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
        };
        self.records[slot] = Some(listener);
        let idx = ListenerIdx(slot as u32);
        self.by_addr.insert(local, idx);
        Ok(idx)
    }

    /// Removes a listener and returns its record.
    pub fn close(&mut self, idx: ListenerIdx) -> Option<Listener> {
        let listener = self.records.get_mut(idx.0 as usize)?.take()?;
        self.by_addr.remove(&listener.local);
        Some(listener)
    }

    pub fn get(&self, idx: ListenerIdx) -> Option<&Listener> {
        self.records.get(idx.0 as usize)?.as_ref()
    }

    pub fn get_mut(&mut self, idx: ListenerIdx) -> Option<&mut Listener> {
        self.records.get_mut(idx.0 as usize)?.as_mut()
    }

    /// When all holders of a listener are to be told that connections wait.
    pub fn set_tell_all(&mut self, idx: ListenerIdx, at: Instant) {
        if let Some(listener) = self.get_mut(idx) {
            listener.tell_all_at = at;
        }
        // Looked for again when it is due; most often it has moved on by then.
        self.next_due = self.next_due.min(at);
    }

    /// No listener is due before this.
    pub fn next_due(&self) -> Instant {
        self.next_due
    }

    /// A listener whose time has come.
    pub fn due(&mut self, now: Instant) -> Option<ListenerIdx> {
        if self.next_due > now {
            return None;
        }
        let due = self.iter().find(|(_, listener)| listener.tell_all_at <= now).map(|(idx, _)| idx);
        if due.is_none() {
            let ahead = self.iter().map(|(_, listener)| listener.tell_all_at).min();
            self.next_due = ahead.unwrap_or(Instant::FAR_FUTURE);
        }
        due
    }

    /// A kernel socket is gone or listens no more. Returns the listeners that were steered because of it and because of no
    /// other, which are steered no longer.
    pub fn forget_twin(&mut self, identity: u64) -> Vec<Endpoint> {
        let mut ended = Vec::new();
        for listener in self.records.iter_mut().flatten() {
            listener.forget_twin(identity);
            if listener.is_steered && listener.holding_twins().next().is_none() {
                listener.is_steered = false;
                ended.push(listener.local);
            }
        }
        ended
    }

    /// The listener for a connection to `local`: one bound to the address goes before one bound to all of its family, and
    /// that before one of both families.
    pub fn find(&self, local: Endpoint) -> Option<ListenerIdx> {
        let any = local.at(local.addr.unspecified());
        let of_family = self.by_addr.get(&local).or_else(|| self.by_addr.get(&any)).copied();
        of_family.or_else(|| {
            let both = self.by_addr.get(&local.at(Addr::UNSPECIFIED_V6)).copied()?;
            self.get(both).filter(|listener| !listener.v6_only).map(|_| both)
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = (ListenerIdx, &Listener)> {
        self.records.iter().enumerate().filter_map(|(i, r)| Some((ListenerIdx(i as u32), r.as_ref()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ip: [u8; 4], port: u16) -> Endpoint {
        Endpoint::new(ip, port)
    }

    #[test]
    fn the_bound_address_goes_before_any_address() {
        let mut listeners = Listeners::default();
        let local = at([0; 4], 80);
        let twin =
            Twin { local, v6_only: false, identity: 7, shares_port: true, netns: NetNs(0), listens: true };
        let evidence = Evidence { twin: Some(twin), uid: 10 };
        let mut open = |ip, anchor| listeners.open((at(ip, 80), false), 5, AnchorHandle(anchor), evidence);
        let any = open([0; 4], 1).expect("free");
        let one = open([10, 0, 0, 2], 2).expect("free");
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(one));
        assert_eq!(listeners.find(at([10, 0, 0, 3], 80)), Some(any));
        assert_eq!(listeners.find(at([10, 0, 0, 2], 81)), None);
        listeners.close(one);
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(any));
    }

    /// Found by toe-sim, seed 3984: a session took the connections of another one's listener.
    #[test]
    fn without_a_kernel_socket_nobody_takes_a_part_of_what_another_listens_at() {
        for (first, second) in [([0; 4], [10, 0, 0, 2]), ([10, 0, 0, 2], [0; 4]), ([0; 4], [0; 4])] {
            let mut listeners = Listeners::default();
            let mut open =
                |ip, port| listeners.open((at(ip, port), false), 5, AnchorHandle(1), Evidence::default());
            open(first, 80).expect("free");
            assert_eq!(open(second, 80), Err(Errno::EADDRINUSE));
            assert!(open(second, 81).is_ok() && open([10, 0, 0, 3], 82).is_ok());
        }
    }

    /// Node.js with two workers at one listener: on a busy machine one of them took everything.
    #[test]
    fn whoever_was_told_second_is_told_first_the_next_time_though_all_were_told() {
        let mut listeners = Listeners::default();
        let local = (at([0; 4], 80), false);
        let idx = listeners.open(local, 5, AnchorHandle(1), Evidence::default()).expect("free");
        let listener = listeners.get_mut(idx).expect("open");
        for session in [1, 2] {
            listener.holders.push(Holder {
                session: SessionId(session),
                anchor: AnchorHandle(1),
                queue_set: QueueSetId(0),
                id: ListenerId::default(),
                credit: 0,
                takes: true,
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
    fn the_same_kernel_socket_or_a_shared_port_lets_another_in() {
        let evidence = |identity, shares_port, uid| {
            let local = at([0; 4], 80);
            Evidence {
                twin: Some(Twin {
                    local,
                    v6_only: false,
                    identity,
                    shares_port,
                    netns: NetNs(0),
                    listens: true,
                }),
                uid,
            }
        };
        let mut listeners = Listeners::default();
        let mut open =
            |anchor, evidence| listeners.open((at([0; 4], 80), false), 5, AnchorHandle(anchor), evidence);
        let idx = open(1, evidence(7, false, 10)).expect("free");
        assert_eq!(open(2, evidence(8, true, 10)), Err(Errno::EADDRINUSE), "the first does not share");
        assert_eq!(open(2, Evidence { twin: None, uid: 10 }), Err(Errno::EADDRINUSE));
        assert_eq!(open(2, evidence(7, false, 99)), Ok(idx), "whoever has the descriptor has the right");
        let listener = listeners.get_mut(idx).expect("open");
        assert!(!listener.drop_anchor(AnchorHandle(1)) && listener.drop_anchor(AnchorHandle(2)));

        listeners.close(idx);
        let mut open =
            |anchor, evidence| listeners.open((at([0; 4], 80), false), 5, AnchorHandle(anchor), evidence);
        let idx = open(1, evidence(7, true, 10)).expect("free");
        assert_eq!(open(2, evidence(8, true, 10)), Ok(idx));
        assert_eq!(open(3, evidence(9, true, 11)), Err(Errno::EADDRINUSE), "another user");
        assert_eq!(open(3, evidence(9, false, 10)), Err(Errno::EADDRINUSE), "does not share");
    }

    #[test]
    fn a_listener_of_both_families_takes_what_no_other_of_ipv4_does() {
        let both = Endpoint::new(Addr::UNSPECIFIED_V6, 80);
        let mut listeners = Listeners::default();
        let twin = Twin {
            local: both,
            v6_only: false,
            identity: 7,
            shares_port: true,
            netns: NetNs(0),
            listens: true,
        };
        let evidence = Evidence { twin: Some(twin), uid: 10 };
        let mut open =
            |local, v6_only| listeners.open((local, v6_only), 5, AnchorHandle(1), evidence).expect("free");
        let (any_v6, only_v6) = (open(both, false), open(Endpoint { port: 81, ..both }, true));
        let one_v6 = open(Endpoint::new(Addr::LOCALHOST_V6, 80), false);
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(any_v6));
        assert_eq!(listeners.find(at([10, 0, 0, 2], 81)), None, "it said that it wants none");
        assert_eq!(listeners.find(Endpoint::new(Addr::LOCALHOST_V6, 81)), Some(only_v6));
        assert_eq!(listeners.find(Endpoint::new(Addr::LOCALHOST_V6, 80)), Some(one_v6));
        let mut open = |local| listeners.open((local, false), 5, AnchorHandle(1), evidence).expect("free");
        let any_v4 = open(at([0; 4], 81));
        let other = open(at([0; 4], 80));
        assert_eq!(listeners.find(at([10, 0, 0, 2], 81)), Some(any_v4), "both have the port");
        assert_eq!(listeners.find(at([10, 0, 0, 2], 80)), Some(other), "the nearer one");
    }

    #[test]
    fn without_a_kernel_socket_families_overlap_as_they_do_in_linux() {
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
    fn a_twin_holds_what_the_kernel_gives_it() {
        let twin = |local: Endpoint| Twin {
            local,
            v6_only: false,
            identity: 7,
            shares_port: false,
            netns: NetNs(0),
            listens: true,
        };
        let v4 = |ip: [u8; 4]| at(ip, 80);
        let (any, one, other) = (at([0; 4], 80), at([10, 0, 0, 2], 80), at([10, 0, 0, 3], 80));
        assert!(twin(v4([0; 4])).holds(any) && twin(v4([0; 4])).holds(one));
        assert!(twin(v4([10, 0, 0, 2])).holds(one));
        assert!(!twin(v4([10, 0, 0, 2])).holds(any), "somebody else may have the other addresses");
        assert!(!twin(v4([10, 0, 0, 2])).holds(other));
        assert!(!twin(v4([0; 4])).holds(at([10, 0, 0, 2], 81)));
        let dual = twin(Endpoint::new(Addr::UNSPECIFIED_V6, 80));
        assert!(dual.holds(any) && dual.holds(one) && dual.holds(dual.local));
        assert!(dual.holds(Endpoint::new(Addr::LOCALHOST_V6, 80)));
        let v6_only = Twin { v6_only: true, ..dual };
        assert!(!v6_only.holds(one) && v6_only.holds(dual.local));
        assert!(!twin(any).holds(dual.local), "somebody else may have IPv6");
        let bound = Twin { listens: false, ..twin(v4([0; 4])) };
        assert!(!bound.holds(one), "another may be bound there, and listen");
    }

    #[test]
    fn connections_go_round_the_holders_that_asked_for_some() {
        let mut listeners = Listeners::default();
        let opened = listeners.open((at([0; 4], 80), false), 5, AnchorHandle(1), Evidence::default());
        let listener = listeners.get_mut(opened.expect("free")).expect("open");
        for (session, credit) in [(1, 2), (2, 0), (3, 2)] {
            listener.holders.push(Holder {
                session: SessionId(session),
                anchor: AnchorHandle(1),
                queue_set: QueueSetId(0),
                id: ListenerId::default(),
                credit,
                takes: session != 2,
                told: false,
                fd: 3,
            });
        }
        let order: Vec<_> = std::iter::from_fn(|| listener.next_taker()).map(|h| h.session.0).collect();
        assert_eq!(order, [1, 3, 1, 3]);
        let told: Vec<_> =
            std::iter::from_fn(|| listener.next_untold(|_| true)).map(|h| h.session.0).collect();
        assert_eq!(told, [1, 3], "each once, though the credit of both is used up");
    }
}
