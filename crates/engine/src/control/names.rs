//! Whose a name is. A name is an address and a port of one network namespace, and it belongs to who bound it in the
//! kernel. All that gives somebody a name asks here: Listen, Connect from a port of the program's choice (with Fast Open
//! or without), and, because a listener is steered only while it is there, steering.
//!
//! The evidence is a kernel socket that the session has shown, its *twin*. The kernel has decided already: whether the
//! port is below `ip_unprivileged_port_start`, whether SO_REUSEADDR and SO_REUSEPORT let a second socket have it. The
//! engine asks only whether the twin says what is asked for:
//!
//! | the twin | a listener at it | a connection from it |
//! |---|---|---|
//! | none was shown, or it is gone | no | no |
//! | of another network namespace than the session | no | no |
//! | bound to another address or port | no | no |
//! | bound to all addresses of the family | at each of them | from each of them |
//! | `::` without IPV6_V6ONLY | in IPv4 as well | in IPv4 as well |
//! | `::` with IPV6_V6ONLY | in IPv6, and said so | in IPv6 |
//! | bound, and not listening | no: with SO_REUSEADDR another may be, and listen | yes, as of Linux |
//! | bound to a device, accepted, connected | the driver takes none such as a twin | likewise |
//!
//! A handle of a twin is for one command: the command uses it up, whatever comes of it.
//!
//! Two listeners whose addresses overlap may both be there when the kernel lets both twins listen: they are one socket, or
//! both have SO_REUSEPORT and are of one user. If it would not have let both, one of them is no more. A program listens
//! before it shows its socket, so the live one is the one that was seen last: what rests on the other is closed as if
//! the driver had said that it has gone ([`crate::ControlEvent::SocketGone`]). So nobody keeps a name by a socket that is no
//! more, nor takes one by showing a socket before it goes.
//!
//! A connection from a port at which another user listens is refused, though the kernel may have let both bind
//! (SO_REUSEADDR before either listened): there it takes single connections from the listener. A SYN for that listener
//! goes to it whatever connection was begun before it listened.

use crate::control::in_use::InUse;
use crate::control::listener_idx::ListenerIdx;
use crate::control::port_choice::PortCounters;
use crate::control::scopes::Scopes;
use crate::flow::key::Scope;
use crate::work::Sharing;
use std::collections::HashMap;
use toe_abi::errno::Errno;
use toe_base::{Addr, AnchorHandle, Cred, Endpoint, FlowId, Instant, NetNs, SessionId};

/// A kernel socket that a session has shown: it holds a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin {
    pub local: Endpoint,
    /// In IPv6, and of that family alone (IPV6_V6ONLY).
    pub v6_only: bool,
    /// The same for every descriptor of this socket, in whatever process (Linux: SO_COOKIE).
    pub identity: u64,
    /// The network namespace that it is of.
    pub netns: NetNs,
    /// The user who made it, as the kernel has it (Linux: the owner that fstat says).
    pub uid: u32,
    /// Others may be bound to the same port (SO_REUSEPORT).
    pub shares_port: bool,
    /// Others may be bound to the same port where nobody listens (SO_REUSEADDR).
    pub reuses: bool,
    /// It listens. While it does nobody else can, whatever options either has (of those that do not, SO_REUSEADDR lets
    /// several have one port).
    pub listens: bool,
    /// Before it was looked at: while it listens, whatever else was seen to listen there was seen earlier.
    pub seen: Instant,
}

/// What a name is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    Listen { v6_only: bool },
    Connect,
}

impl Twin {
    /// A socket that is bound there alone and does not listen, seen at a time.
    pub const fn bound(local: Endpoint, identity: u64, maker: Cred, seen: Instant) -> Twin {
        let Cred { uid, netns } = maker;
        Twin {
            local,
            v6_only: false,
            identity,
            netns,
            uid,
            shares_port: false,
            reuses: false,
            listens: false,
            seen,
        }
    }

    /// The same that listens.
    pub const fn listening(local: Endpoint, identity: u64, maker: Cred, seen: Instant) -> Twin {
        Twin { listens: true, ..Twin::bound(local, identity, maker, seen) }
    }

    /// Whether the kernel has given `local` to whoever has this socket, in its namespace and for this purpose.
    pub fn holds(&self, local: Endpoint, purpose: Purpose) -> bool {
        let held = self.local;
        let is_dual = held.addr == Addr::UNSPECIFIED_V6 && !self.v6_only;
        let covers = held.addr == local.addr || held.addr == local.addr.unspecified() || is_dual;
        let enough = match purpose {
            // What listens at all addresses of IPv6 takes those of IPv4 as well, unless it says that it does not.
            Purpose::Listen { v6_only } => {
                let wants_both = local.addr == Addr::UNSPECIFIED_V6 && !v6_only;
                self.listens && (is_dual || !wants_both)
            }
            Purpose::Connect => true,
        };
        local.port != 0 && held.port == local.port && covers && enough
    }

    /// What connections that come in at it let others have of its name.
    pub const fn sharing(&self) -> Sharing {
        Sharing::new(self.reuses, self.shares_port)
    }

    /// Whether Linux lets both have one port at a time, and listen: two descriptors of one socket, or two sockets of
    /// one user that share the port (SO_REUSEPORT in socket(7)).
    pub fn goes_with(&self, other: &Twin) -> bool {
        let both_share = self.shares_port && other.shares_port && self.uid == other.uid;
        self.identity == other.identity || both_share
    }
}

/// The rule: a name needs a live twin of the session's own namespace that holds it. EACCES otherwise, whatever the user:
/// root's sockets, too, are the kernel's to give.
pub fn require(
    presented: Option<Twin>,
    netns: NetNs,
    local: Endpoint,
    purpose: Purpose,
) -> Result<Twin, Errno> {
    let holds = |twin: &Twin| twin.netns == netns && twin.holds(local, purpose);
    presented.filter(holds).ok_or(Errno::EACCES)
}

/// What the engine knows of names besides who listens.
#[derive(Debug)]
pub struct Names {
    pub scopes: Scopes,
    pub rests: Rests,
    pub in_use: InUse,
    /// How often a name has lapsed: see [`Names::note_lapse`].
    pub lapses: u32,
    /// Twins that the driver is to look at, by identity.
    pub doubted: Vec<u64>,
    pub port_counters: PortCounters,
}

impl Names {
    /// Of an engine whose links are in this namespace.
    pub fn new(own: NetNs) -> Names {
        Names {
            scopes: Scopes::new(own),
            rests: Rests::default(),
            in_use: InUse::default(),
            port_counters: PortCounters::default(),
            lapses: 0,
            doubted: Vec::new(),
        }
    }

    /// Who could be connected to before may not be there any more, or has to be asked for in another way.
    pub fn note_lapse(&mut self) {
        self.lapses = self.lapses.wrapping_add(1);
    }

    /// One user less of a namespace; with the last one its names go.
    pub fn leave(&mut self, scope: Scope) {
        if self.scopes.release(scope) {
            self.in_use.forget_scope(scope);
        }
    }
}

/// What rests on a twin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// A handle that no command has used yet.
    Presented(SessionId, FlowId),
    /// An anchor of a listener.
    Listener(ListenerIdx, AnchorHandle),
}

/// From each twin to what rests on it, so that one that has gone is found at once; and when it was seen for that.
#[derive(Debug, Default)]
pub struct Rests {
    by_identity: HashMap<u64, Vec<(Rest, Instant)>>,
}

impl Rests {
    pub fn add(&mut self, twin: &Twin, rest: Rest) {
        self.by_identity.entry(twin.identity).or_default().push((rest, twin.seen));
    }

    pub fn remove(&mut self, identity: u64, rest: Rest) {
        let Some(rests) = self.by_identity.get_mut(&identity) else { return };
        if let Some(at) = rests.iter().position(|(known, _)| *known == rest) {
            rests.swap_remove(at);
        }
        if rests.is_empty() {
            self.by_identity.remove(&identity);
        }
    }

    /// All that rests on a twin as it was seen until then, and does not any more.
    pub fn take(&mut self, identity: u64, until: Instant) -> Vec<Rest> {
        let Some(rests) = self.by_identity.get_mut(&identity) else { return Vec::new() };
        let taken = rests.extract_if(.., |(_, seen)| *seen <= until).map(|(rest, _)| rest).collect();
        if rests.is_empty() {
            self.by_identity.remove(&identity);
        }
        taken
    }

    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Rest)> + '_ {
        self.by_identity.iter().flat_map(|(identity, rests)| rests.iter().map(|(rest, _)| (*identity, *rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: NetNs = NetNs(1);
    const MAKER: Cred = Cred { uid: 10, netns: HERE };
    const LISTEN: Purpose = Purpose::Listen { v6_only: false };

    fn at(ip: [u8; 4], port: u16) -> Endpoint {
        Endpoint::new(ip, port)
    }

    fn twin(local: Endpoint) -> Twin {
        Twin::listening(local, 7, MAKER, Instant::ZERO)
    }

    #[test]
    fn a_twin_holds_what_the_kernel_gives_it() {
        let v4 = |ip: [u8; 4]| twin(at(ip, 80));
        let (any, one, other) = (at([0; 4], 80), at([10, 0, 0, 2], 80), at([10, 0, 0, 3], 80));
        assert!(v4([0; 4]).holds(any, LISTEN) && v4([0; 4]).holds(one, LISTEN));
        assert!(v4([10, 0, 0, 2]).holds(one, LISTEN));
        assert!(!v4([10, 0, 0, 2]).holds(any, LISTEN), "somebody else may have the other addresses");
        assert!(!v4([10, 0, 0, 2]).holds(other, LISTEN));
        assert!(!v4([0; 4]).holds(at([10, 0, 0, 2], 81), LISTEN));
        assert!(!twin(at([0; 4], 0)).holds(at([0; 4], 0), LISTEN), "no port at all");
        let dual = twin(Endpoint::new(Addr::UNSPECIFIED_V6, 80));
        assert!(dual.holds(any, LISTEN) && dual.holds(one, LISTEN) && dual.holds(dual.local, LISTEN));
        assert!(dual.holds(Endpoint::new(Addr::LOCALHOST_V6, 80), LISTEN));
        let v6_only = Twin { v6_only: true, ..dual };
        assert!(!v6_only.holds(one, LISTEN) && !v6_only.holds(one, Purpose::Connect));
        assert!(!v6_only.holds(v6_only.local, LISTEN), "it would take what comes in IPv4 as well");
        assert!(v6_only.holds(v6_only.local, Purpose::Listen { v6_only: true }));
        assert!(!twin(any).holds(dual.local, LISTEN), "somebody else may have IPv6");
    }

    #[test]
    fn who_only_has_bound_may_connect_and_not_listen() {
        let bound = Twin { listens: false, ..twin(at([0; 4], 80)) };
        let name = at([10, 0, 0, 2], 80);
        assert!(!bound.holds(name, LISTEN), "another may be bound there, and listen");
        assert!(bound.holds(name, Purpose::Connect));
    }

    #[test]
    fn a_name_needs_a_twin_of_the_sessions_own_namespace() {
        let name = at([10, 0, 0, 2], 80);
        let presented = twin(name);
        for purpose in [LISTEN, Purpose::Connect] {
            assert_eq!(require(None, HERE, name, purpose), Err(Errno::EACCES));
            assert_eq!(require(Some(presented), NetNs(2), name, purpose), Err(Errno::EACCES));
            assert_eq!(require(Some(presented), HERE, name, purpose), Ok(presented));
        }
    }

    #[test]
    fn two_listen_at_one_port_as_the_kernel_lets_them() {
        let known = |identity, shares_port, uid| Twin { identity, shares_port, uid, ..twin(at([0; 4], 80)) };
        let first = known(7, true, 10);
        assert!(first.goes_with(&known(8, true, 10)));
        assert!(!first.goes_with(&known(8, true, 11)), "another user");
        assert!(!first.goes_with(&known(8, false, 10)) && !known(8, false, 10).goes_with(&first));
        assert!(first.goes_with(&known(7, false, 11)), "whoever has the descriptor has the right");
    }

    #[test]
    fn what_rests_on_a_twin_is_found_by_it() {
        let mut rests = Rests::default();
        let presented = |n| Rest::Presented(SessionId(n), FlowId::default());
        let [first, other] = [7, 8].map(|identity| Twin { identity, ..twin(at([0; 4], 80)) });
        [presented(1), presented(2), presented(1)].into_iter().for_each(|rest| rests.add(&first, rest));
        rests.add(&other, presented(3));
        rests.remove(7, presented(1));
        rests.remove(9, presented(1));
        // Shown again, before it is known here that it was gone meanwhile.
        let again = Twin { seen: Instant::from_millis(2), ..first };
        rests.add(&again, presented(4));
        assert_eq!(rests.take(7, Instant::from_millis(1)).len(), 2);
        assert_eq!(rests.take(7, Instant::from_millis(1)), []);
        assert_eq!(rests.take(7, again.seen), [presented(4)]);
        assert_eq!(rests.iter().collect::<Vec<_>>(), [(8, presented(3))]);
    }
}
