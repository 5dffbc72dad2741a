//! What the driver knows of the workers' descriptors, from the kernel's answers: enough to choose calls that do
//! something, and none that would block for ever.

use crate::call::{Call, Made};
use crate::linux::{
    AF_INET, CLOSE, EPOLLET, EPOLLONESHOT, IP_MINTTL, IPPROTO_IP, IPPROTO_TCP, LISTEN, NONBLOCK, O_APPEND,
    O_ASYNC, POLLIN, SOCK_DGRAM, TCP_MAXSEG,
};
use crate::stack::{Answer, Seen, View, WORKERS};
use std::collections::{BTreeMap, BTreeSet};

/// What a descriptor is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Tcp,
    Udp,
    Epoll,
    File,
    Pipe,
    Other,
}

/// One descriptor, as the choice of a call wants it.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    pub who: usize,
    pub fd: i64,
    pub kind: Kind,
    /// Which socket, epoll set, …: copies have the same.
    pub object: usize,
    /// The call that made it.
    pub made: Made,
    pub seen: Seen,
}

impl Known {
    pub fn is_ready_to_read(&self) -> bool {
        self.seen.ready & POLLIN != 0
    }

    pub fn blocks(&self) -> bool {
        self.seen.flags & NONBLOCK == 0
    }

    /// It has, or had a moment ago, a connection.
    pub fn is_connected(&self) -> bool {
        self.kind == Kind::Tcp && self.seen.is_connected()
    }

    pub fn listens(&self) -> bool {
        self.kind == Kind::Tcp && self.seen.state == LISTEN
    }

    pub fn is_closed(&self) -> bool {
        self.kind == Kind::Tcp && self.seen.state == CLOSE
    }
}

#[derive(Clone, Copy, Debug)]
struct One {
    kind: Kind,
    object: usize,
    made: Made,
}

/// The workers and their descriptors.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub alive: [bool; WORKERS],
    fds: BTreeMap<(usize, i64), One>,
    objects: usize,
    /// Descriptors on their way to a worker.
    in_flight: [Vec<One>; WORKERS],
    /// Bytes sent on a socket since its reader was last seen with nothing unread.
    pub sent: BTreeMap<usize, i64>,
    /// What datagrams that nobody has read take up in the kernel's queues at most.
    pub datagrams_unread: i64,
    /// Sockets and sets of which there is, or once was, more than one descriptor.
    pub copied: BTreeSet<usize>,
    /// Those that had another descriptor before they listened or connected: the kernel keeps them.
    pub duplicated: BTreeSet<usize>,
    /// Those that have been sent to a process, whether or not it has taken them.
    pub passed: BTreeSet<usize>,
    /// Those that a program has got over exec.
    pub inherited: BTreeSet<usize>,
    /// Sockets to which something was done before they were connected that only the kernel can do.
    pub kernels: BTreeSet<usize>,
    /// Something is, or once was, registered edge-triggered or for one event.
    pub has_edges: bool,
    /// What has been put into epoll sets.
    pub registered: BTreeSet<usize>,
    /// All descriptors as they were last seen.
    pub known: Vec<Known>,
}

impl World {
    pub fn new() -> World {
        World { alive: [true, false, false], ..World::default() }
    }

    /// Learns from a call in numbers that the kernel has answered.
    pub fn learn(&mut self, call: &Call, answer: &Answer, view: &View) {
        let (who, fd, result) = (call.who, call.number(0), answer.result);
        let old = match call.name.as_str() {
            "take" if !self.in_flight[who].is_empty() => Some(self.in_flight[who].remove(0)),
            _ => self.fds.get(&(who, fd)).copied(),
        };
        for (nth, fd) in answer.descriptors(call).into_iter().enumerate() {
            let made = Made { by: call.id, nth };
            let one = self.made_by(call, old, made);
            self.fds.insert((who, fd), one);
        }
        if call.is(&["epoll_ctl"]) && answer.result >= 0 {
            let registered = self.fds.get(&(who, call.number(2))).map(|one| one.object);
            self.registered.extend(registered);
        }
        if call.is(&["udp_send", "write", "send", "sendto", "sendmsg", "writev", "sendmmsg"]) {
            // A skbuff, and pages of which not all is used.
            let many = if call.is(&["sendmmsg"]) { 40 * 1024 } else { 4 * 1024 };
            self.datagrams_unread += many + 2 * answer.result.max(0);
        }
        self.has_edges |= call.is(&["epoll_ctl"]) && call.number(3) & (EPOLLET | EPOLLONESHOT) != 0;
        let asks_for_kernel =
            call.is(&["shutdown"]) || call.is(&["fcntl"]) && call.number(2) & (O_APPEND | O_ASYNC) != 0;
        let in_syn = [(IPPROTO_TCP, TCP_MAXSEG), (IPPROTO_IP, IP_MINTTL)];
        let by_option = call.is(&["setopt"]) && in_syn.contains(&(call.number(1), call.number(2)));
        if asks_for_kernel || by_option {
            self.kernels.extend(old.map(|old| old.object));
        }
        match call.name.as_str() {
            "exit" => self.ended(who),
            _ if result < 0 => {}
            "fork" => self.forked(who, fd as usize),
            "exec" => {
                let own = self.fds.range((who, 0)..(who + 1, 0));
                self.inherited.extend(own.map(|(_, one)| one.object));
            }
            "pass" => {
                self.in_flight[call.number(1) as usize].extend(old);
                self.passed.extend(old.map(|old| old.object));
            }
            "write" | "send" | "sendto" | "sendmsg" | "writev" | "sendfile" => self.count(who, fd, result),
            "sendmmsg" => {
                let put = answer.values.iter().filter(|(name, _)| name == "put");
                let total = put.filter_map(|(_, value)| value.parse::<i64>().ok()).sum();
                self.count(who, fd, total);
            }
            "splice" => self.count(who, call.number(1), result),
            _ => {}
        }
        self.see(view);
    }

    /// What a call has made; `old` is what it was made from.
    fn made_by(&mut self, call: &Call, old: Option<One>, made: Made) -> One {
        let kind = match call.name.as_str() {
            "socket" if call.number(0) != AF_INET => Kind::Other,
            "socket" if call.number(1) & 15 == SOCK_DGRAM => Kind::Udp,
            "socket" | "accept" => Kind::Tcp,
            "epoll_create" => Kind::Epoll,
            "file" => Kind::File,
            "pipe" => Kind::Pipe,
            _ => {
                self.copied.extend(old.map(|old| old.object));
                let is_undecided =
                    |old: &One| self.known.iter().any(|one| one.object == old.object && one.is_closed());
                self.duplicated.extend(old.filter(is_undecided).map(|old| old.object));
                return old.map_or(One { kind: Kind::Other, object: 0, made }, |old| One { made, ..old });
            }
        };
        self.objects += 1;
        One { kind, object: self.objects, made }
    }

    fn count(&mut self, who: usize, fd: i64, bytes: i64) {
        if let Some(one) = self.fds.get(&(who, fd)) {
            *self.sent.entry(one.object).or_default() += bytes;
        }
    }

    fn forked(&mut self, parent: usize, child: usize) {
        self.alive[child] = true;
        self.copied.extend(self.fds.values().map(|one| one.object));
        let copies: Vec<_> = self.fds.range((parent, 0)..(parent + 1, 0)).map(|(k, v)| (k.1, *v)).collect();
        self.fds.extend(copies.into_iter().map(|(fd, known)| ((child, fd), known)));
    }

    fn ended(&mut self, who: usize) {
        self.alive[who] = false;
        self.in_flight[who].clear();
        self.fds.retain(|(owner, _), _| *owner != who);
    }

    pub fn has_in_flight(&self, who: usize) -> bool {
        !self.in_flight[who].is_empty()
    }

    /// Takes over what was just seen.
    fn see(&mut self, view: &View) {
        self.fds.retain(|key, _| view.contains_key(key));
        self.known = view
            .iter()
            .filter_map(|(&(who, fd), seen)| {
                let One { kind, object, made } = *self.fds.get(&(who, fd))?;
                Some(Known { who, fd, kind, object, made, seen: *seen })
            })
            .collect();
        let has_unread =
            |one: &Known| one.kind == Kind::Udp && (one.is_ready_to_read() || one.seen.unread > 0);
        if !self.known.iter().any(has_unread) {
            self.datagrams_unread = 0;
        }
        let drained: Vec<usize> = self
            .known
            .iter()
            .filter(|one| one.is_connected() && self.reader_of(one).is_some_and(|peer| peer.seen.unread == 0))
            .map(|one| one.object)
            .collect();
        for object in drained {
            self.sent.remove(&object);
        }
    }

    /// The other end of a connection, when somebody has accepted it.
    pub fn reader_of(&self, one: &Known) -> Option<&Known> {
        let (own, peer) = (one.seen.own_port, one.seen.peer_port);
        self.known.iter().find(|other| {
            other.kind == Kind::Tcp && own != 0 && (other.seen.own_port, other.seen.peer_port) == (peer, own)
        })
    }

    /// Bytes that a socket has sent and nobody has read.
    pub fn outstanding(&self, one: &Known) -> i64 {
        self.sent.get(&one.object).copied().unwrap_or(0)
    }

    /// Connections that wait on a listening port, as far as is seen: ends that nobody has accepted.
    pub fn waiting_at(&self, port: i64) -> usize {
        let mut objects: Vec<usize> = self
            .known
            .iter()
            .filter(|one| one.is_connected() && one.seen.peer_port == port && self.reader_of(one).is_none())
            .map(|one| one.object)
            .collect();
        objects.sort_unstable();
        objects.dedup();
        objects.len()
    }
}
