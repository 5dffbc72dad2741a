//! Which names connections have, in whatever state: what bind(2) asks before it gives one to somebody else. The kernel knows of
//! the sockets that programs have bound, and of none of the engine's connections; those that it accepted, and those whose
//! program has let go, have no socket there at all.
//!
//! Connections are counted by name and by what their sockets allow, so that an answer costs the same however many there
//! are. The counts are derived from the records: they can be rebuilt from them.

use crate::flow::key::Scope;
use crate::work::{Sharing, UserIdx};
use foldhash::HashMap;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use toe_base::{Addr, Endpoint, Instant};

/// So many ways to share there are.
const KINDS: usize = 4;

/// Connections of one name.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    of_kind: [u32; KINDS],
    /// Whose those are that share the port; none: of several users.
    sharer: Option<UserIdx>,
}

impl Counts {
    fn add(&mut self, kind: Sharing, user: UserIdx) {
        if kind.shares_port() {
            let are_there =
                self.of_kind.iter().enumerate().any(|(k, n)| Sharing::of_place(k).shares_port() && *n > 0);
            // In TIME_WAIT a connection is charged to nobody; whose its name is was known before.
            if !are_there || user != UserIdx::NOBODY {
                let is_same = !are_there || self.sharer == Some(user);
                self.sharer = is_same.then_some(user);
            }
        }
        self.of_kind[kind.place()] += 1;
    }

    fn remove(&mut self, kind: Sharing) {
        self.of_kind[kind.place()] -= 1;
    }

    fn is_none(&self) -> bool {
        self.of_kind == [0; KINDS]
    }

    fn refuse(&self, kind: Sharing, user: UserIdx) -> bool {
        let is_same = self.sharer == Some(user);
        (0..KINDS).any(|k| self.of_kind[k] > 0 && !kind.goes_with(Sharing::of_place(k), is_same))
    }
}

/// Connections of one port of a namespace.
#[derive(Debug)]
struct Port {
    v4: Counts,
    v6: Counts,
    /// As a rule all are of one address: this one's need no entry of their own.
    main_addr: Addr,
    at_main: Counts,
}

/// Names of connections that are over are kept for bind(2) at most; beyond, the oldest is given up.
const RETAINED_MAX: usize = 1 << 15;

/// A connection that is over, and had its name until then.
#[derive(Clone, Copy, Debug)]
struct RetainedName {
    until: Instant,
    local: Endpoint,
    kind: Sharing,
}

/// The names of all connections.
#[derive(Debug, Default)]
pub struct InUse {
    by_port: HashMap<(Scope, u16), Port>,
    elsewhere: HashMap<(Scope, Endpoint), Counts>,
    /// By namespace, the first to be given up first. They end with the namespace, whose number is another one's then.
    retained: HashMap<Scope, VecDeque<RetainedName>>,
    retained_len: usize,
}

impl Port {
    fn of_family(&mut self, addr: Addr) -> &mut Counts {
        if addr.is_v4() { &mut self.v4 } else { &mut self.v6 }
    }
}

impl InUse {
    pub fn add(&mut self, scope: Scope, local: Endpoint, kind: Sharing, user: UserIdx) {
        let none = Counts::default();
        let new = || Port { v4: none, v6: none, main_addr: local.addr, at_main: none };
        let port = self.by_port.entry((scope, local.port)).or_insert_with(new);
        port.of_family(local.addr).add(kind, user);
        if port.main_addr == local.addr {
            port.at_main.add(kind, user);
        } else {
            self.elsewhere.entry((scope, local)).or_default().add(kind, user);
        }
    }

    /// One that was added, as it was then.
    pub fn remove(&mut self, scope: Scope, local: Endpoint, kind: Sharing) {
        let Entry::Occupied(mut entry) = self.by_port.entry((scope, local.port)) else { return };
        let port = entry.get_mut();
        port.of_family(local.addr).remove(kind);
        if port.main_addr == local.addr {
            port.at_main.remove(kind);
        } else if let Entry::Occupied(mut counts) = self.elsewhere.entry((scope, local)) {
            counts.get_mut().remove(kind);
            if counts.get().is_none() {
                counts.remove();
            }
        }
        let port = entry.get();
        if port.v4.is_none() && port.v6.is_none() {
            entry.remove();
        }
    }

    /// The TIME_WAIT of a connection between two local ends is over, which is far shorter than Linux's; for who wants to be bound
    /// it is as long as there. A connection may have the name at once.
    pub fn keep(
        &mut self,
        (now, until): (Instant, Instant),
        (scope, local): (Scope, Endpoint),
        kind: Sharing,
        user: UserIdx,
    ) {
        self.forget_retained(now, scope);
        if self.retained_len >= RETAINED_MAX && !self.give_up_oldest(scope, |_| true) {
            // Other namespaces have them all.
            return;
        }
        self.add(scope, local, kind, user);
        self.retained.entry(scope).or_default().push_back(RetainedName { until, local, kind });
        self.retained_len += 1;
    }

    /// Gives up what was kept until now in a namespace.
    pub fn forget_retained(&mut self, now: Instant, scope: Scope) {
        while self.give_up_oldest(scope, |name| name.until <= now) {}
    }

    /// Nothing is of the namespace any more: who has its number next is another one.
    pub fn forget_scope(&mut self, scope: Scope) {
        while self.give_up_oldest(scope, |_| true) {}
    }

    fn give_up_oldest(&mut self, scope: Scope, may_go: impl FnOnce(&RetainedName) -> bool) -> bool {
        let Entry::Occupied(mut of_scope) = self.retained.entry(scope) else { return false };
        if !of_scope.get().front().is_some_and(may_go) {
            return false;
        }
        let Some(RetainedName { local, kind, .. }) = of_scope.get_mut().pop_front() else { return false };
        if of_scope.get().is_empty() {
            of_scope.remove();
        }
        self.retained_len -= 1;
        self.remove(scope, local, kind);
        true
    }

    /// Whether connections are in the way of a socket of this kind and user that is to be bound there.
    pub fn refuses(
        &self,
        scope: Scope,
        (local, v6_only): (Endpoint, bool),
        kind: Sharing,
        user: UserIdx,
    ) -> bool {
        let Some(port) = self.by_port.get(&(scope, local.port)) else { return false };
        match local.addr {
            Addr::UNSPECIFIED_V4 => port.v4.refuse(kind, user),
            Addr::UNSPECIFIED_V6 => port.v6.refuse(kind, user) || !v6_only && port.v4.refuse(kind, user),
            addr if addr == port.main_addr => port.at_main.refuse(kind, user),
            _ => self.elsewhere.get(&(scope, local)).is_some_and(|counts| counts.refuse(kind, user)),
        }
    }

    /// Forgets all; what was kept of connections that are over stays.
    pub fn clear(&mut self) {
        let (retained, retained_len) = (core::mem::take(&mut self.retained), self.retained_len);
        *self = InUse::default();
        for (scope, RetainedName { local, kind, .. }) in
            retained.iter().flat_map(|(s, all)| all.iter().map(move |k| (s, k)))
        {
            self.add(*scope, *local, *kind, UserIdx::NOBODY);
        }
        (self.retained, self.retained_len) = (retained, retained_len);
    }

    /// Connections counted.
    pub fn len(&self) -> usize {
        let of = |counts: &Counts| counts.of_kind.iter().map(|n| *n as usize).sum::<usize>();
        self.by_port.values().map(|port| of(&port.v4) + of(&port.v6)).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.by_port.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Scope = Scope::OWN;
    const ME: UserIdx = UserIdx(1);
    const OTHER: UserIdx = UserIdx(2);
    const PLAIN: Sharing = Sharing::new(false, false);
    const REUSING: Sharing = Sharing::new(true, false);
    const SHARING: Sharing = Sharing::new(false, true);

    fn at(ip: [u8; 4]) -> Endpoint {
        Endpoint::new(ip, 80)
    }

    fn refuses(in_use: &InUse, local: Endpoint, kind: Sharing) -> bool {
        in_use.refuses(HERE, (local, false), kind, ME)
    }

    #[test]
    fn a_connection_is_in_the_way_unless_both_let_others_have_the_name() {
        let mut in_use = InUse::default();
        let one = at([127, 0, 0, 1]);
        for (kind, free) in
            [(PLAIN, [false; 3]), (REUSING, [false, true, false]), (SHARING, [false, false, true])]
        {
            in_use.add(HERE, one, kind, ME);
            for (asked, free) in [PLAIN, REUSING, SHARING].into_iter().zip(free) {
                assert_eq!(refuses(&in_use, one, asked), !free, "{asked:?} beside {kind:?}");
                assert_eq!(refuses(&in_use, at([0; 4]), asked), !free);
            }
            in_use.remove(HERE, one, kind);
            assert!(in_use.is_empty());
        }
    }

    #[test]
    fn who_shares_a_port_shares_it_with_his_own() {
        let mut in_use = InUse::default();
        let one = at([127, 0, 0, 1]);
        in_use.add(HERE, one, SHARING, ME);
        assert!(in_use.refuses(HERE, (one, false), SHARING, OTHER));
        in_use.add(HERE, one, SHARING, OTHER);
        assert!(refuses(&in_use, one, SHARING), "there are others, too");
    }

    #[test]
    fn a_name_is_kept_for_its_time_and_only_so_many_are() {
        let mut in_use = InUse::default();
        let (one, at_ms) = (at([127, 0, 0, 1]), |ms: u64| Instant::from_micros(ms * 1000));
        in_use.keep((at_ms(0), at_ms(60)), (HERE, one), PLAIN, ME);
        in_use.clear();
        in_use.forget_retained(at_ms(59), HERE);
        assert!(refuses(&in_use, one, PLAIN));
        in_use.forget_retained(at_ms(60), HERE);
        assert!(!refuses(&in_use, one, PLAIN) && in_use.is_empty());
        for port in 0..=RETAINED_MAX {
            let local = Endpoint { port: port as u16, ..one };
            in_use.keep((at_ms(0), at_ms(60)), (HERE, local), PLAIN, ME);
        }
        assert_eq!(in_use.len(), RETAINED_MAX);
        assert!(!refuses(&in_use, Endpoint { port: 0, ..one }, PLAIN), "the oldest");
    }

    /// Once, its user's other sockets were refused as soon as the connection's own TIME_WAIT was over.
    #[test]
    fn a_name_that_is_kept_is_still_its_users() {
        let mut in_use = InUse::default();
        let one = at([127, 0, 0, 1]);
        in_use.add(HERE, one, SHARING, ME);
        let until = Instant::from_millis(60);
        in_use.keep((Instant::ZERO, until), (HERE, one), SHARING, UserIdx::NOBODY);
        in_use.remove(HERE, one, SHARING);
        assert!(!refuses(&in_use, one, SHARING) && refuses(&in_use, one, PLAIN));
        assert!(in_use.refuses(HERE, (one, false), SHARING, OTHER));
    }

    #[test]
    fn names_that_are_kept_end_with_their_namespace_and_crowd_out_only_their_own() {
        let mut in_use = InUse::default();
        let (now, until, there) = (Instant::ZERO, Instant::from_micros(1), Scope(1));
        let port = |port: usize| Endpoint { port: port as u16, ..at([127, 0, 0, 1]) };
        in_use.keep((now, until), (HERE, port(1)), PLAIN, ME);
        for n in 0..RETAINED_MAX {
            in_use.keep((now, until), (there, port(n)), PLAIN, OTHER);
        }
        assert!(refuses(&in_use, port(1), PLAIN), "another namespace has as many as there may be");
        in_use.forget_scope(there);
        assert!(!in_use.refuses(there, (port(5), false), PLAIN, ME));
        assert_eq!(in_use.len(), 1);
    }

    #[test]
    fn names_are_apart_by_address_family_and_namespace() {
        let mut in_use = InUse::default();
        let (one, other) = (at([127, 0, 0, 1]), at([127, 0, 0, 2]));
        let six = Endpoint::new(Addr::LOCALHOST_V6, 80);
        let any_six = Endpoint::new(Addr::UNSPECIFIED_V6, 80);
        in_use.add(HERE, one, PLAIN, ME);
        assert!(refuses(&in_use, any_six, PLAIN), "it would be bound in IPv4, too");
        assert!(!in_use.refuses(HERE, (any_six, true), PLAIN, ME));
        assert!(!refuses(&in_use, other, PLAIN) && !refuses(&in_use, six, PLAIN));
        assert!(!in_use.refuses(Scope(3), (one, false), PLAIN, ME));
        in_use.add(HERE, other, PLAIN, ME);
        in_use.add(HERE, six, PLAIN, ME);
        assert_eq!(in_use.len(), 3);
        in_use.remove(HERE, one, PLAIN);
        assert!(!refuses(&in_use, one, PLAIN) && refuses(&in_use, other, PLAIN));
        assert!(refuses(&in_use, at([0; 4]), PLAIN) && in_use.refuses(HERE, (any_six, true), PLAIN, ME));
        in_use.remove(HERE, other, PLAIN);
        in_use.remove(HERE, six, PLAIN);
        assert!(in_use.is_empty() && in_use.elsewhere.is_empty());
    }
}
