//! The differences that stay. docs/compatibility.md has the same list for users; a test compares the two.

use crate::call::Call;
use crate::choose::Chooser;
use crate::linux::{
    CLOSE, ECONNRESET, EINVAL, EISCONN, EPIPE, EPOLLET, ESTABLISHED, F_SETFL, FIONREAD, IPPROTO_TCP,
    O_APPEND, O_ASYNC, POLLERR, POLLRDHUP, SIOCOUTQ, SO_LINGER, SO_RCVLOWAT, SOL_SOCKET, TCP_CONGESTION,
    TCP_MAXSEG, TCP_QUICKACK,
};
use crate::pair::PORTS;
use crate::stack::{Answer, Seen, View};
use crate::world::Known as Descriptor;
use std::collections::{BTreeMap, BTreeSet};

/// The kind of address (`differ_address.c`) that is none.
const UNSPECIFIED: i64 = 5;

/// What is known of a call that was answered differently.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// In numbers.
    pub call: &'a Call,
    pub kernel: &'a Answer,
    pub engine: &'a Answer,
    /// Events of edge-triggered entries may come more than once.
    pub edges: &'a Edges,
    /// How the descriptor that it was for was seen before it, on the kernel.
    pub before: Option<Seen>,
    /// There are two processes, which may have the same connections, or there were.
    pub shares: bool,
}

impl Case<'_> {
    pub fn is_option(&self, name: i64) -> bool {
        self.call.is(&["getopt", "setopt"])
            && (self.call.number(1), self.call.number(2)) == (IPPROTO_TCP, name)
    }

    /// The engine's events are among the kernel's, and the others are those of edge-triggered entries at their end.
    fn has_fewer_edges(&self) -> bool {
        let of = |answer: &Answer| answer.events().collect::<Vec<_>>();
        let (kernel, engine) = (of(self.kernel), of(self.engine));
        self.both_succeed()
            && engine.iter().all(|event| kernel.contains(event))
            && kernel.iter().all(|event| engine.contains(event) || self.edges.is_at_end(event.0))
    }

    /// The events are the same but for errors that are told on the engine only.
    fn has_more_errors(&self) -> bool {
        let of =
            |answer: &Answer, add: i64| answer.events().map(|(data, events)| (data, events | add)).collect();
        let (kernel, engine): (Vec<_>, Vec<_>) = (of(self.kernel, POLLERR), of(self.engine, POLLERR));
        let errors = |answer: &Answer| answer.events().filter(|event| event.1 & POLLERR != 0).count();
        self.shares && kernel == engine && errors(self.engine) > errors(self.kernel)
    }

    /// The same of poll's.
    fn has_more_poll_errors(&self) -> bool {
        let of = |answer: &Answer| -> Vec<i64> {
            answer.values.iter().map(|(_, value)| value.parse().unwrap_or(0)).collect()
        };
        let (kernel, engine) = (of(self.kernel), of(self.engine));
        let is_told = |(kernel, engine): (&i64, &i64)| engine == kernel || *engine == kernel | POLLERR;
        self.shares && kernel.len() == engine.len() && kernel.iter().zip(&engine).all(is_told)
    }

    pub fn both_succeed(&self) -> bool {
        self.kernel.result >= 0 && self.engine.result >= 0
    }
}

/// One of [`Edges`], which outlives its number where the connection has another.
#[derive(Clone, Debug, Default)]
struct Entry {
    /// Both ports, once there is a connection.
    names: (i64, i64),
    /// The descriptors that have it, or had it when it ended.
    holders: BTreeSet<(usize, i64)>,
}

/// Entries of epoll sets that are edge-triggered, by their data, which is the descriptor's number.
#[derive(Clone, Debug, Default)]
pub struct Edges {
    data: BTreeMap<i64, Entry>,
    /// Those of them whose connection is not (or not any more) established.
    at_end: BTreeSet<i64>,
}

impl Edges {
    /// Learns from a call in numbers that has succeeded.
    pub fn learn(&mut self, call: &Call) {
        if call.is(&["epoll_ctl"]) && call.number(3) & EPOLLET != 0 {
            self.data.insert(call.number(4), Entry::default());
        }
    }

    /// Learns how the descriptors are now.
    pub fn see(&mut self, view: &View) {
        for (fd, entry) in &mut self.data {
            if entry.names == (0, 0) {
                let named = view.iter().find(|((_, seen), s)| seen == fd && s.peer_port != 0);
                entry.names = named.map_or((0, 0), |(_, s)| (s.own_port, s.peer_port));
            }
            let has_it = |s: &Seen| s.peer_port != 0 && (s.own_port, s.peer_port) == entry.names;
            let now: BTreeSet<_> = view.iter().filter(|(_, s)| has_it(s)).map(|(key, _)| *key).collect();
            match now.is_empty() {
                true => entry.holders.retain(|key| view.contains_key(key)),
                false => entry.holders = now,
            }
        }
        let is_at_end = |(fd, entry): &(&i64, &Entry)| {
            let has_it = |key: &(usize, i64)| key.1 == **fd || entry.holders.contains(key);
            view.iter().any(|(key, s)| has_it(key) && s.state != ESTABLISHED)
        };
        self.at_end = self.data.iter().filter(is_at_end).map(|(fd, _)| *fd).collect();
    }

    fn has_any_at_end(&self) -> bool {
        !self.at_end.is_empty()
    }

    fn is_at_end(&self, data: i64) -> bool {
        self.at_end.contains(&data)
    }

    /// An epoll set is seen ready on the kernel only, which one of those may be the cause of.
    pub fn explain(&self, kernel: &Seen, engine: &Seen) -> bool {
        let is_set = (kernel.state, kernel.unread) == (0, -EINVAL);
        is_set && kernel.ready != 0 && engine.ready == 0 && !self.at_end.is_empty()
    }
}

/// A difference that is meant, and why.
#[derive(Debug)]
pub struct Known {
    /// What is different, as docs/compatibility.md names it.
    pub title: &'static str,
    explains: fn(&Case<'_>) -> bool,
}

/// All of them.
pub const KNOWN: &[Known] = &[
    Known {
        title: "TCP_CONGESTION",
        explains: |case| {
            case.call.is(&["setcongestion"]) || case.is_option(TCP_CONGESTION) && case.both_succeed()
        },
    },
    Known {
        title: "TCP_MAXSEG of a connection",
        explains: |case| case.is_option(TCP_MAXSEG) && case.both_succeed(),
    },
    Known {
        title: "epoll_wait with ready sockets of both stacks",
        // The driver waits again until all have been told (`pair.rs`).
        explains: |_| false,
    },
    Known {
        title: "Edge-triggered events at a connection's end",
        explains: |case| {
            case.call.is(&["epoll_wait"]) && case.has_fewer_edges()
                || case.call.is(&["poll", "ppoll", "select", "pselect"]) && case.edges.has_any_at_end() && {
                    // The set itself is asked.
                    (0..case.kernel.result).contains(&case.engine.result)
                }
        },
    },
    Known {
        title: "TCP_QUICKACK's value",
        explains: |case| case.is_option(TCP_QUICKACK) && case.both_succeed(),
    },
    Known {
        title: "Options of a listener that change while connections wait",
        // The calls are not chosen: what they do is seen at any later time.
        explains: |_| false,
    },
    Known {
        title: "SO_RCVLOWAT's largest value",
        explains: |case| {
            let asks = case.call.is(&["getopt"])
                && (case.call.number(1), case.call.number(2)) == (SOL_SOCKET, SO_RCVLOWAT);
            asks && case.both_succeed()
        },
    },
    Known {
        title: "The error of a connection that several processes have",
        explains: |case| {
            let closed = case.before.is_some_and(|before| before.state == CLOSE);
            let told = case.kernel.result >= 0 && [EPIPE, ECONNRESET].contains(&case.engine.errno);
            let written = (case.kernel.errno, case.engine.errno) == (EPIPE, ECONNRESET);
            let connected =
                case.call.is(&["connect"]) && (case.kernel.errno, case.engine.result) == (EISCONN, 0);
            case.shares
                && (connected
                    || written
                    || closed && told
                    || case.call.is(&["epoll_wait"]) && case.has_more_errors()
                    || case.call.is(&["poll", "ppoll"]) && case.has_more_poll_errors())
        },
    },
    Known {
        title: "O_APPEND of a socket",
        // The calls are not chosen (`choose_rest.rs`).
        explains: |_| false,
    },
    Known {
        title: "The order of connections that come in by both stacks",
        // A sequence ends where it could be seen (`pair.rs`).
        explains: |_| false,
    },
    Known {
        title: "SO_LINGER's time when a negative one was set",
        explains: |case| {
            case.call.is(&["getopt"])
                && (case.call.number(1), case.call.number(2)) == (SOL_SOCKET, SO_LINGER)
                && case.both_succeed()
        },
    },
    Known { title: "Edge-triggered events of a connection that processes share", explains: |_| false },
    Known {
        title: "connect(AF_UNSPEC) of a connection",
        explains: |case| {
            let address = |answer: &Answer| answer.value("ip");
            let is_retained =
                address(case.kernel).is_some_and(|ip| ip != 0) && address(case.engine) == Some(0);
            let is_answered_alike =
                (case.kernel.result, case.kernel.errno) == (case.engine.result, case.engine.errno);
            case.call.is(&["getsockname", "bind"]) && is_answered_alike && is_retained
        },
    },
    Known { title: "bind of a connection that was reset", explains: |_| false },
    Known {
        title: "bind to the port of an engine's connection, by a program outside of the engine",
        explains: |_| false,
    },
    Known {
        title: "The address of a connection whose socket was bound to all addresses",
        explains: |_| false,
    },
    Known { title: "SO_RCVBUF that is lowered later", explains: |_| false },
    Known { title: "An epoll set that is shared by fork", explains: |_| false },
    // The call is not chosen (`choose.rs`).
    Known { title: "An epoll set that goes over exec", explains: |_| false },
    // The calls are not chosen.
    Known { title: "A descriptor in an epoll set that is passed on and then closed", explains: |_| false },
    Known { title: "Connections that wait at a listener that is passed on", explains: |_| false },
    Known { title: "What is told with SIGIO", explains: |_| false },
    Known { title: "A negative time limit that is set before exec, and used after it", explains: |_| false },
    Known {
        title: "A connection with more than 16 MiB unread that goes to another process",
        explains: |_| false,
    },
    Known {
        title: "Bytes unread after a reset",
        explains: |case| {
            const READS: [&str; 6] = ["read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg"];
            let counts = case.call.is(&["ioctl"]) && case.call.number(1) == FIONREAD;
            (counts || case.shares && case.call.is(&READS))
                && case.both_succeed()
                && case.before.is_some_and(|seen| seen.state == CLOSE)
        },
    },
    Known {
        title: "SIOCOUTQ after the connection's end",
        explains: |case| {
            case.call.is(&["ioctl"])
                && case.call.number(1) == SIOCOUTQ
                && case.both_succeed()
                && case.before.is_some_and(|seen| seen.state == CLOSE)
        },
    },
    Known { title: "sendmmsg to a peer that has closed", explains: |_| false },
    // The calls do not get that far: what they send is acknowledged at once, stays with who sent it, or is less.
    Known { title: "SIOCOUTQ while bytes are on their way", explains: |_| false },
    Known { title: "SIOCOUTQ of a connection that came from another process", explains: |_| false },
    Known { title: "MSG_PEEK with MSG_WAITALL for more than 64 KiB", explains: |_| false },
];

/// The call would show a known difference at any later time, so it is not chosen.
pub fn leaves_out(call: &Call, chooser: &Chooser<'_>) -> bool {
    if call.is(&["fork", "pass"]) && chooser.world.has_edges {
        return true;
    }
    if call.is(&["exec"]) && chooser.world.known.iter().any(|one| one.seen.flags & O_ASYNC != 0) {
        return true;
    }
    if ends_in_a_set(call, chooser) || parts_holders(call, chooser) {
        return true;
    }
    let Some(one) = chooser.known(call.number(0)) else { return false };
    let has_signals = one.seen.flags & O_ASYNC != 0;
    if call.is(&["pass"]) && (one.listens() || has_signals || chooser.world.registered.contains(&one.object))
    {
        return true;
    }
    let all = &chooser.world.known;
    let passed = &chooser.world.passed;
    let elsewhere = |one: Descriptor| {
        passed.contains(&one.object) || all.iter().any(|o| o.object == one.object && o.who != one.who)
    };
    match call.name.as_str() {
        "connect" => {
            // The other hears of it when it asks the next time.
            elsewhere(one) && call.number(1) == UNSPECIFIED
        }
        "bind" => {
            let names_port = call.number(2) != 0;
            let in_use = |other: &Descriptor| other.is_connected() && PORTS.contains(&other.seen.own_port);
            let of_kernel = chooser.world.copied.contains(&one.object);
            one.is_closed() && one.seen.own_port != 0 || names_port && (of_kernel || all.iter().any(in_use))
        }
        "epoll_ctl" => {
            let is_edge = call.number(3) & EPOLLET != 0;
            elsewhere(one) || is_edge && chooser.known(call.number(2)).is_some_and(elsewhere)
        }
        "fcntl" => {
            let sets = call.number(1) == F_SETFL;
            sets && elsewhere(one) && (has_signals || call.number(2) & O_ASYNC != 0)
        }
        "shutdown" => one.listens() && elsewhere(one),
        "setopt" | "size" | "setcongestion" => one.listens() && (elsewhere(one) || one.is_ready_to_read()),
        "listen" if one.seen.ready & POLLERR != 0 => true,
        "sendfile" | "listen" => one.seen.flags & O_APPEND != 0,
        "sendmmsg" => one.seen.ready & POLLRDHUP != 0,
        _ => false,
    }
}

/// The next program makes a listener an engine's that the kernel keeps for another process, which sees the kernel's connections only.
fn parts_holders(call: &Call, chooser: &Chooser<'_>) -> bool {
    let world = chooser.world;
    let has_kernels = |one: &Descriptor| {
        let is_retained = one.who == chooser.who && one.listens() && world.duplicated.contains(&one.object);
        is_retained && world.known.iter().any(|other| other.object == one.object && other.who != one.who)
    };
    call.is(&["exec"]) && world.known.iter().any(has_kernels)
}

/// The call closes a descriptor of something that is in an epoll set, and that another process has, too.
fn ends_in_a_set(call: &Call, chooser: &Chooser<'_>) -> bool {
    let closed = match call.name.as_str() {
        "close" | "abort" => call.number(0)..=call.number(0),
        "close_range" => call.number(0)..=call.number(1),
        "dup2" | "dup3" => call.number(1)..=call.number(1),
        _ => return false,
    };
    let world = chooser.world;
    let ends = |one: Descriptor| {
        let elsewhere = world.known.iter().any(|o| o.object == one.object && o.who != one.who);
        elsewhere && world.registered.contains(&one.object)
    };
    closed.filter_map(|fd| chooser.known(fd)).any(ends)
}

/// A descriptor whose connection was reset has bytes that Linux would have dropped.
pub fn seen(kernel: &Seen, engine: &Seen) -> bool {
    let alike = (kernel.state, kernel.ready, kernel.flags) == (engine.state, engine.ready, engine.flags);
    alike && kernel.state == CLOSE && engine.unread > kernel.unread
}

/// A connection that two processes have was reset, and the error has been told to the other one only on the kernel.
pub fn seen_of_shared(kernel: &Seen, engine: &Seen) -> bool {
    let alike = (kernel.state, kernel.flags) == (engine.state, engine.flags);
    let reset = kernel.state == CLOSE || kernel.ready & POLLRDHUP != 0;
    alike && reset && engine.ready == kernel.ready | POLLERR
}

/// A known difference explains the two answers.
pub fn explains(case: &Case<'_>) -> bool {
    KNOWN.iter().any(|known| (known.explains)(case))
}

#[test]
fn every_known_difference_is_documented_and_no_other() {
    let path = toe_tests::bins::workspace().join("docs/compatibility.md");
    let text = std::fs::read_to_string(path).expect("docs/compatibility.md");
    let (begin, end) = ("<!-- known differences -->", "<!-- end of known differences -->");
    let part = text.split(begin).nth(1).and_then(|rest| rest.split(end).next()).expect("the section");
    let rows = part.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |")?.split_once(" | "));
    let mut listed: Vec<&str> =
        rows.filter(|(title, reason)| *title != "what differs" && !reason.is_empty()).map(|r| r.0).collect();
    let mut known: Vec<&str> = KNOWN.iter().map(|known| known.title).collect();
    listed.sort_unstable();
    known.sort_unstable();
    assert_eq!(listed, known, "the known differences of docs/compatibility.md and of this table");
}
