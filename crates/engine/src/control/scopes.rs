//! Network namespaces that sessions, listeners and connections are of: each has a small number while something is of it.
//!
//! The engine's own is always number 0 and is not counted, so that connections over links cost nothing here.

use crate::flow::key::Scope;
use std::collections::HashMap;
use toe_base::NetNs;

/// Most namespaces at one time; who comes from one more is not served.
const SCOPES_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    netns: NetNs,
    /// Sessions, listeners and connections of it.
    users: u32,
}

/// The namespaces by number, and their numbers.
#[derive(Debug)]
pub struct Scopes {
    own: NetNs,
    /// Of number 1 and so on.
    entries: Vec<Option<Entry>>,
    free: Vec<Scope>,
    by_netns: HashMap<NetNs, Scope>,
}

impl Scopes {
    pub fn new(own: NetNs) -> Scopes {
        Scopes { own, entries: Vec::new(), free: Vec::new(), by_netns: HashMap::new() }
    }

    /// The number of a namespace, for one user more of it. `None`: there are too many.
    pub fn enter(&mut self, netns: NetNs) -> Option<Scope> {
        if netns == self.own {
            return Some(Scope::OWN);
        }
        if let Some(&scope) = self.by_netns.get(&netns) {
            self.hold(scope);
            return Some(scope);
        }
        let scope = match self.free.pop() {
            Some(scope) => scope,
            None if self.entries.len() < SCOPES_MAX => {
                self.entries.push(None);
                Scope(self.entries.len() as u16)
            }
            None => return None,
        };
        self.entries[usize::from(scope.0) - 1] = Some(Entry { netns, users: 1 });
        self.by_netns.insert(netns, scope);
        Some(scope)
    }

    /// One user more of a namespace that has some.
    pub fn hold(&mut self, scope: Scope) {
        if let Some(entry) = self.entry(scope) {
            entry.users += 1;
        }
    }

    /// One user less; the number of the last one's is free. `true`: it was the last one.
    #[must_use = "what is known by the number must be forgotten with it"]
    pub fn release(&mut self, scope: Scope) -> bool {
        let Some(entry) = self.entry(scope) else { return false };
        entry.users -= 1;
        let was_last = entry.users == 0;
        if was_last {
            let netns = entry.netns;
            self.by_netns.remove(&netns);
            self.entries[usize::from(scope.0) - 1] = None;
            self.free.push(scope);
        }
        was_last
    }

    pub fn netns(&self, scope: Scope) -> NetNs {
        let known = usize::from(scope.0).checked_sub(1).and_then(|at| self.entries.get(at)?.as_ref());
        known.map_or(self.own, |entry| entry.netns)
    }

    /// Namespaces besides the engine's own.
    pub fn len(&self) -> usize {
        self.by_netns.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_netns.is_empty()
    }

    fn entry(&mut self, scope: Scope) -> Option<&mut Entry> {
        let at = usize::from(scope.0).checked_sub(1)?;
        self.entries.get_mut(at)?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_its_number_while_something_is_of_it() {
        let mut scopes = Scopes::new(NetNs(7));
        assert_eq!(scopes.enter(NetNs(7)), Some(Scope::OWN));
        let one = scopes.enter(NetNs(8)).expect("room");
        let other = scopes.enter(NetNs(9)).expect("room");
        assert_eq!(scopes.enter(NetNs(8)), Some(one));
        assert!(one != other && !one.is_own());
        assert_eq!((scopes.netns(one), scopes.netns(Scope::OWN)), (NetNs(8), NetNs(7)));
        assert!(!scopes.release(one));
        assert_eq!(scopes.enter(NetNs(10)), Some(Scope(3)), "somebody is there still");
        assert!(scopes.release(one));
        assert_eq!(scopes.enter(NetNs(11)), Some(one));
        assert!(!scopes.release(Scope::OWN));
        assert_eq!(scopes.len(), 3);
    }

    #[test]
    fn there_is_an_end_of_namespaces_and_room_again_afterwards() {
        let mut scopes = Scopes::new(NetNs(0));
        let all: Vec<_> = (1..=SCOPES_MAX as u64).filter_map(|n| scopes.enter(NetNs(n))).collect();
        assert_eq!(all.len(), SCOPES_MAX);
        assert_eq!(scopes.enter(NetNs(u64::MAX)), None);
        assert!(scopes.release(all[5]));
        assert_eq!(scopes.enter(NetNs(u64::MAX)), Some(all[5]));
    }
}
