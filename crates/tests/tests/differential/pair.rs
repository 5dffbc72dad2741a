//! Both stacks side by side: a call is made on each, and what comes of it is compared.
//!
//! The engine is asynchronous and so, a little, is the kernel's loopback. So after each call both are looked at until
//! they are seen alike, and a call that only asks, or that was answered "not yet", is made again. What is still
//! different after [`PATIENCE`] is a difference.

use crate::call::Call;
use crate::known;
use crate::linux::{EAGAIN, EALREADY, EINPROGRESS, EINTR, FIONBIO, LISTEN, POLLIN, SO_ERROR, SOL_SOCKET};
use crate::stack::{Answer, Seen, Stack, WORKERS};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};
use toe_tests::engine::Engine;
use toe_tests::lab::{Lab, Side};

/// How long a difference may last.
pub const PATIENCE: Duration = Duration::from_millis(1500);

/// How long events of epoll_wait may be late of which some may be left out altogether: the kernel's come with one of 16 waits.
const LATE_EVENTS: Duration = Duration::from_millis(60);

/// The ports that calls name: the same on both stacks. Others are chosen by the stack.
pub const PORTS: std::ops::Range<i64> = 20_000..32_000;

/// Where the stacks part.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The call's place in the sequence.
    pub at: usize,
    pub call: Call,
    /// What differs: the call's answer, what is seen after it, or a worker that is lost.
    pub what: String,
    /// The same with the numbers of this case left out: to tell whether two sequences show the same difference.
    pub kind: String,
}

/// Both stacks.
#[derive(Debug)]
pub struct Pair {
    pub kernel: Stack,
    pub engine: Stack,
    edges: known::Edges,
    /// Calls that had to be asked for again.
    pub asked_again: u64,
    /// Calls right after one that hurries, and those of them whose first answer was "not yet" on the engine only.
    pub looks: u64,
    pub late_looks: u64,
    hurried: bool,
    /// How long a difference may last here.
    pub patience: Duration,
    /// The kernel's ports of connections that two workers have, or had.
    shared: BTreeSet<i64>,
    /// Listening ports (the kernel's) where connections wait, and by which stacks they came on the engine's side since none waited:
    /// an engine, the kernel.
    waiting: BTreeMap<i64, [bool; 2]>,
}

impl Pair {
    /// Fresh workers on both, in namespaces of their own.
    pub fn start(lab: &Lab, engine: &Engine, worker: &Path, shift: i64) -> Pair {
        let dir = lab.dir();
        Pair {
            kernel: Stack::start(lab.command(Side::Client, worker), &dir.join("k"), shift),
            engine: Stack::start(engine.run(lab, &worker.to_string_lossy()), &dir.join("e"), shift),
            edges: known::Edges::default(),
            asked_again: 0,
            looks: 0,
            late_looks: 0,
            hurried: false,
            patience: PATIENCE,
            shared: BTreeSet::new(),
            waiting: BTreeMap::new(),
        }
    }

    /// The workers that a call wants are there. (In a shortened sequence the call that made one may be missing.)
    pub fn can(&self, call: &Call) -> bool {
        let other = match call.name.as_str() {
            "fork" => {
                (1..WORKERS as i64).contains(&call.number(0)) && !self.kernel.has(call.number(0) as usize)
            }
            "pass" => {
                (0..WORKERS as i64).contains(&call.number(1)) && self.kernel.has(call.number(1) as usize)
            }
            _ => true,
        };
        other && call.who < WORKERS && self.kernel.has(call.who)
    }

    /// Makes a call on both, lets them settle, and gives the kernel's answer.
    pub fn make(&mut self, at: usize, call: &Call) -> Result<Answer, Box<Difference>> {
        let differs =
            |what: String, kind: String| Box::new(Difference { at, call: call.clone(), what, kind });
        let lost = |stack: &str, why: String| {
            differs(format!("on the {stack}: {why}"), format!("{} loses the {stack}'s worker", call.name))
        };
        let kernel = self.kernel.make(call).map_err(|why| lost("kernel", why))?;
        let engine = self.engine.make(call).map_err(|why| lost("engine", why))?;
        let first = (kernel.clone(), engine.clone());
        let (kernel, engine) = self.until_alike(call, kernel, engine).map_err(|why| lost("engine", why))?;
        if !self.explained(call, &kernel, &engine) {
            let what = format!("kernel {}\n    engine {}", presented(&kernel), presented(&engine));
            let kind = format!(
                "{}: {} {} not {} {}",
                call.name,
                engine.result.signum(),
                engine.errno,
                kernel.result.signum(),
                kernel.errno
            );
            return Err(differs(what, kind));
        }
        if kernel.result >= 0 {
            self.edges.learn(&self.kernel.in_numbers(call));
        }
        if self.hurried {
            self.looks += 1;
            self.late_looks += u64::from(first.0 == kernel && first.1 != engine);
        }
        self.hurried = call.hurries;
        if call.hurries {
            return Ok(kernel);
        }
        self.settle().map_err(|what| {
            let kind = format!("after {}: {}", call.name, what.split(';').next_back().unwrap_or_default());
            differs(what, kind)
        })?;
        self.note_waiting();
        Ok(kernel)
    }

    /// Learns, when both have settled, by which stack each connection came that nobody has accepted.
    fn note_waiting(&mut self) {
        let view = &self.kernel.view;
        let has_some = |port: i64| {
            let is_there = |seen: &Seen| (seen.state, seen.own_port) == (LISTEN, port);
            view.values().any(|seen| is_there(seen) && seen.ready & POLLIN != 0)
        };
        self.waiting.retain(|port, _| has_some(*port));
        for (key, seen) in view.iter().filter(|(_, seen)| seen.is_connected() && has_some(seen.peer_port)) {
            let names = (seen.peer_port, seen.own_port);
            let is_accepted = view.values().any(|other| (other.own_port, other.peer_port) == names);
            if let Some(here) = self.engine.view.get(key).filter(|_| !is_accepted) {
                let is_kernels = here.path_mtu == seen.path_mtu;
                self.waiting.entry(seen.peer_port).or_default()[usize::from(is_kernels)] = true;
            }
        }
    }

    /// Which of the connections that wait is accepted first is a known difference from here on.
    pub fn has_unknown_order(&self) -> bool {
        self.waiting.values().any(|stacks| *stacks == [true; 2])
    }

    /// The answers are alike, or their difference is known.
    fn explained(&self, call: &Call, kernel: &Answer, engine: &Answer) -> bool {
        let call = &self.kernel.in_numbers(call);
        let before = self.kernel.view.get(&(call.who, call.number(0))).copied();
        let shares = !self.shared.is_empty() || self.kernel.view.keys().any(|(who, _)| *who != call.who);
        let case = known::Case { call, kernel, engine, edges: &self.edges, before, shares };
        alike(kernel, engine) || known::explains(&case)
    }

    /// Asks again what may be asked again.
    fn until_alike(
        &mut self,
        call: &Call,
        mut kernel: Answer,
        mut engine: Answer,
    ) -> Result<(Answer, Answer), String> {
        let start = Instant::now();
        // Events that may be left out are waited for a moment all the same: they may be late ones of the kernel's.
        let late = |engine: &Answer, kernel: &Answer| {
            call.is(&["epoll_wait"]) && engine.result < kernel.result && start.elapsed() < LATE_EVENTS
        };
        while (!self.explained(call, &kernel, &engine) || late(&engine, &kernel))
            && start.elapsed() < self.patience
        {
            let (of_kernel, of_engine) = self.who_is_asked_again(call, &kernel, &engine);
            if !of_kernel && !of_engine {
                break;
            }
            self.asked_again += 1;
            std::thread::park_timeout(Duration::from_millis(1));
            if of_kernel {
                kernel = self.kernel.make(call)?;
            }
            if of_engine {
                let more = self.engine.make(call)?;
                engine = if call.is(&["epoll_wait"]) { engine.with_events_of(more) } else { more };
            }
        }
        Ok((kernel, engine))
    }

    /// The kernel, the engine.
    fn who_is_asked_again(&self, call: &Call, kernel: &Answer, engine: &Answer) -> (bool, bool) {
        if only_asks(call) {
            return (true, true);
        }
        // Beside load Linux's own loopback may be late with a connection.
        let is_late = self.hurried && kernel.errno == EAGAIN && engine.result >= 0;
        if is_late || was_cut_short(call, kernel, engine) {
            return (true, false);
        }
        (false, not_yet(call, kernel, engine) || was_cut_short(call, engine, kernel))
    }

    /// Looks at both until they are seen alike; the error says what is not.
    fn settle(&mut self) -> Result<(), String> {
        let start = Instant::now();
        let mut looks = 0;
        loop {
            self.kernel.look().map_err(|why| format!("on the kernel: {why}"))?;
            self.engine.look().map_err(|why| format!("on the engine: {why}"))?;
            self.edges.see(&self.kernel.view);
            self.note_shared();
            let Some(difference) = self.seen_differently() else { return Ok(()) };
            if start.elapsed() > self.patience {
                return Err(difference);
            }
            looks += 1;
            if looks > 4 {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
    }

    fn note_shared(&mut self) {
        let view = &self.kernel.view;
        let has_another =
            |who: usize, port: i64| view.iter().any(|((w, _), s)| *w != who && s.own_port == port);
        let shared = view.iter().filter(|((who, _), seen)| has_another(*who, seen.own_port));
        let ports: Vec<i64> = shared.map(|(_, seen)| seen.own_port).filter(|port| *port != 0).collect();
        self.shared.extend(ports);
    }

    fn seen_differently(&self) -> Option<String> {
        let (kernel, engine) = (&self.kernel.view, &self.engine.view);
        for (&(who, fd), k) in kernel {
            let Some(e) = engine.get(&(who, fd)) else {
                return Some(format!("seen p{who} {fd}: not open on the engine;not open on the engine"));
            };
            let is_shared = self.shared.contains(&k.own_port);
            let is_known = self.edges.explain(k, e) || is_shared && known::seen_of_shared(k, e);
            if let Some(what) = field_that_differs(k, e).filter(|_| !is_known) {
                return Some(format!("seen p{who} {fd}: kernel {k:?}\n    engine {e:?};{what}"));
            }
        }
        let more = engine.keys().find(|key| !kernel.contains_key(key));
        more.map(|(who, fd)| format!("seen p{who} {fd}: open on the engine only;open on the engine only"))
    }
}

fn field_that_differs(kernel: &Seen, engine: &Seen) -> Option<String> {
    let port = |port: i64| if PORTS.contains(&port) { port } else { port.min(1) };
    let fields = [
        ("state", kernel.state, engine.state),
        ("ready", kernel.ready, engine.ready),
        ("unread", kernel.unread, engine.unread),
        ("flags", kernel.flags, engine.flags),
        ("own port", port(kernel.own_port), port(engine.own_port)),
        ("peer's port", port(kernel.peer_port), port(engine.peer_port)),
    ];
    if known::seen(kernel, engine) {
        return None;
    }
    let (name, k, e) = fields.into_iter().find(|(_, k, e)| k != e)?;
    Some(match name {
        "unread" => "unread".to_owned(),
        _ => format!("{name} {e} not {k}"),
    })
}

fn presented(answer: &Answer) -> String {
    let mut text = format!("{} errno {}", answer.result, answer.errno);
    for (name, value) in &answer.values {
        text.push_str(&format!(" {name}={value}"));
    }
    for (name, value) in &answer.raw {
        text.push_str(&format!(" ({name} {value})"));
    }
    text
}

/// The answers are equal but for ports that a stack chose.
fn alike(kernel: &Answer, engine: &Answer) -> bool {
    let same = |(k, e): (&(String, i64), &(String, i64))| {
        k.0 == e.0 && (k.1 == e.1 || [k.1, e.1].iter().all(|port| *port > 0 && !PORTS.contains(port)))
    };
    kernel.result == engine.result
        && kernel.errno == engine.errno
        && kernel.values == engine.values
        && kernel.raw.len() == engine.raw.len()
        && kernel.raw.iter().zip(&engine.raw).all(same)
}

/// The call changes nothing, so both may be asked again.
fn only_asks(call: &Call) -> bool {
    match call.name.as_str() {
        "poll" | "ppoll" | "select" | "pselect" | "getsockname" | "getpeername" | "fstat" => true,
        "getopt" => call.number(1) != SOL_SOCKET || call.number(2) != SO_ERROR,
        "ioctl" => call.number(1) != FIONBIO,
        _ => false,
    }
}

/// The worker's timer has ended a wait before its own limit did (SO_RCVTIMEO), as it may beside load: nothing was done.
fn was_cut_short(call: &Call, cut: &Answer, other: &Answer) -> bool {
    const WAITS: [&str; 6] = ["accept", "read", "readv", "recv", "recvfrom", "recvmsg"];
    call.is(&WAITS) && (cut.errno, other.errno) == (EINTR, EAGAIN)
}

/// The engine has not done anything yet, and may do it later.
fn not_yet(call: &Call, kernel: &Answer, engine: &Answer) -> bool {
    if engine.result < 0 {
        return [EAGAIN, EINPROGRESS, EALREADY].contains(&engine.errno)
            && engine.errno != kernel.errno
            && kernel.errno != EINTR;
    }
    match call.name.as_str() {
        // Of sockets of both stacks that are ready the engine's come first.
        "epoll_wait" => engine.result < kernel.result,
        "getopt" => engine.value("value") != kernel.value("value"),
        _ => false,
    }
}
