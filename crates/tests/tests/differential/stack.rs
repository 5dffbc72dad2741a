//! The workers on one stack: started, told their calls, ended.

use crate::call::{Call, Made};
use crate::linux::{CLOSE, F_DUPFD, F_DUPFD_CLOEXEC, LISTEN};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use toe_tests::child::Program;
use toe_tests::wait::SOON;

/// Workers at most at a time, forks included.
pub const WORKERS: usize = 3;

/// How long a worker may take for an answer; its own timer ends a call that blocks long before.
const ANSWER_WITHIN: Duration = Duration::from_secs(8);

/// What came of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    pub result: i64,
    pub errno: i64,
    /// Values by name, in the order told.
    pub values: Vec<(String, String)>,
    /// Values that differ between the stacks by their nature.
    pub raw: Vec<(String, i64)>,
}

impl Answer {
    fn parse(line: &str) -> Answer {
        let mut answer = Answer::default();
        for (name, value) in line.split_whitespace().filter_map(|word| word.split_once('=')) {
            let number = value.parse().unwrap_or(0);
            match (name, name.strip_prefix('~')) {
                ("r", _) => answer.result = number,
                ("e", _) => answer.errno = number,
                (_, Some(name)) => answer.raw.push((name.to_owned(), number)),
                _ => answer.values.push((name.to_owned(), value.to_owned())),
            }
        }
        answer
    }

    /// The descriptors that the call, which is in numbers, has made.
    pub fn descriptors(&self, call: &Call) -> Vec<i64> {
        match call.name.as_str() {
            _ if self.result < 0 => Vec::new(),
            "socket" | "accept" | "epoll_create" | "file" | "dup" | "dup2" | "dup3" => vec![self.result],
            "fcntl" if [F_DUPFD, F_DUPFD_CLOEXEC].contains(&call.number(1)) => vec![self.result],
            "pipe" => ["read", "write"].iter().filter_map(|end| self.value(end)).collect(),
            "take" => self.value("fd").into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// What a wait told: data and events.
    pub fn events(&self) -> impl Iterator<Item = (i64, i64)> {
        let number = |(_, value): &(String, String)| value.parse().unwrap_or(0);
        self.values.chunks_exact(2).map(move |event| (number(&event[0]), number(&event[1])))
    }

    /// The events of two waits together, those of a descriptor once.
    pub fn with_events_of(mut self, more: Answer) -> Answer {
        for event in more.values.chunks(2).filter(|event| event.len() == 2) {
            if !self.values.chunks(2).any(|known| known[0] == event[0]) {
                self.values.extend_from_slice(event);
                self.result += 1;
            }
        }
        let mut events: Vec<_> = self.values.chunks(2).map(<[_]>::to_vec).collect();
        events.sort_by_key(|event| event[0].1.parse::<u64>().unwrap_or(0));
        self.values = events.concat();
        self
    }

    pub fn value(&self, name: &str) -> Option<i64> {
        self.values.iter().find(|(known, _)| known == name)?.1.parse().ok()
    }
}

/// What `look` told of a descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The connection's state by Linux's numbers; zero: no TCP socket.
    pub state: i64,
    /// What poll says.
    pub ready: i64,
    /// FIONREAD, or the error's number, negative.
    pub unread: i64,
    /// F_GETFL.
    pub flags: i64,
    pub own_port: i64,
    pub peer_port: i64,
    /// The MTU of a connection's path, which is not compared: it tells on which stack a connection is.
    pub path_mtu: i64,
}

impl Seen {
    /// A connection, or what was one a moment ago.
    pub fn is_connected(&self) -> bool {
        !matches!(self.state, 0 | CLOSE | LISTEN | DATAGRAMS)
    }
}

/// In the place of a TCP socket's state, of a UDP socket (`differ_ready.c`).
const DATAGRAMS: i64 = 100;

/// Every descriptor of every worker.
pub type View = BTreeMap<(usize, i64), Seen>;

#[derive(Debug)]
struct Worker {
    orders: UnixStream,
    answers: BufReader<UnixStream>,
    parent: Option<usize>,
}

/// One stack's workers.
#[derive(Debug)]
pub struct Stack {
    listener: UnixListener,
    workers: [Option<Worker>; WORKERS],
    /// What was last seen; it says what the ports in calls are.
    pub view: View,
    /// The descriptors that calls made.
    made: HashMap<Made, i64>,
    /// By how much the ports that calls name are higher.
    shift: i64,
    program: Program,
}

impl Stack {
    /// Starts the first worker by `command`, with `dir` for the sockets between it and the driver.
    pub fn start(mut command: Command, dir: &Path, shift: i64) -> Stack {
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir(dir).expect("a directory for the workers' sockets");
        let listener = UnixListener::bind(dir.join("driver0")).expect("a socket for the workers");
        let program = Program::spawn("toe-differ", command.arg(dir));
        let mut stack = Stack {
            listener,
            workers: Default::default(),
            view: View::new(),
            made: HashMap::new(),
            shift,
            program,
        };
        stack.welcome(0, None).expect("the first worker");
        stack
    }

    /// Takes the connection of worker `number`, which has just begun.
    fn welcome(&mut self, number: usize, parent: Option<usize>) -> Result<(), String> {
        let lost = |error: std::io::Error| format!("worker {number} does not begin: {error}");
        self.listener.set_nonblocking(true).map_err(lost)?;
        let start = Instant::now();
        let orders = loop {
            match self.listener.accept() {
                Ok((orders, _)) => break orders,
                Err(error) if start.elapsed() > SOON || !self.program.is_running() => {
                    return Err(lost(error));
                }
                Err(_) => std::thread::park_timeout(Duration::from_micros(200)),
            }
        };
        orders.set_nonblocking(false).map_err(lost)?;
        orders.set_read_timeout(Some(ANSWER_WITHIN)).map_err(lost)?;
        let mut answers = BufReader::new(orders.try_clone().map_err(lost)?);
        let mut greeting = String::new();
        answers.read_line(&mut greeting).map_err(lost)?;
        self.workers[number] = Some(Worker { orders, answers, parent });
        Ok(())
    }

    pub fn has(&self, who: usize) -> bool {
        self.workers[who].is_some()
    }

    fn tell(&mut self, who: usize, order: &str) -> Result<(), String> {
        let worker = self.workers[who].as_mut().ok_or("there is no such worker")?;
        worker.orders.write_all(order.as_bytes()).map_err(|error| format!("worker {who}: {error}"))
    }

    fn hear(&mut self, who: usize) -> Result<String, String> {
        let worker = self.workers[who].as_mut().ok_or("there is no such worker")?;
        let mut line = String::new();
        match worker.answers.read_line(&mut line) {
            Ok(1..) => Ok(line),
            Ok(_) => Err(format!("worker {who} has ended:\n{}", self.program.output())),
            Err(error) => Err(format!("worker {who} hangs: {error}")),
        }
    }

    /// A call as it is on this stack.
    pub fn in_numbers(&self, call: &Call) -> Call {
        // A descriptor that is not there is -1, and its port 1, where nobody listens.
        let fd = |made: Made| self.made.get(&made).copied().unwrap_or(-1);
        let port = |who, fd| self.view.get(&(who, fd)).map_or(1, |seen| seen.own_port);
        call.in_numbers(self.shift, fd, port)
    }

    /// Has a worker make the call.
    pub fn make(&mut self, call: &Call) -> Result<Answer, String> {
        let told = self.in_numbers(call);
        let child = told.number(0) as usize;
        self.tell(call.who, &told.order())?;
        if call.is(&["exit"]) {
            return self.has_exited(call.who);
        }
        let answer = Answer::parse(&self.hear(call.who)?);
        for (nth, fd) in answer.descriptors(&told).into_iter().enumerate() {
            self.made.insert(Made { by: call.id, nth }, fd);
        }
        if call.is(&["fork"]) {
            self.welcome(child, Some(call.who))?;
        }
        Ok(answer)
    }

    fn has_exited(&mut self, who: usize) -> Result<Answer, String> {
        match self.hear(who) {
            Err(why) if why.contains("has ended") => {}
            other => return Err(format!("worker {who} was to exit: {other:?}")),
        }
        let worker = self.workers[who].take().ok_or("there is no such worker")?;
        if let Some(parent) = worker.parent.filter(|parent| self.has(*parent)) {
            self.tell(parent, &Call::new(parent, "reap", &[]).order())?;
            self.hear(parent)?;
        }
        Ok(Answer::default())
    }

    /// Asks every worker how its descriptors are.
    pub fn look(&mut self) -> Result<(), String> {
        let present: Vec<usize> = (0..WORKERS).filter(|who| self.has(*who)).collect();
        for &who in &present {
            self.tell(who, &Call::new(who, "look", &[]).order())?;
        }
        self.view.clear();
        for &who in &present {
            let answer = Answer::parse(&self.hear(who)?);
            for (fd, seen) in &answer.values {
                let numbers: Vec<i64> = seen.split(':').filter_map(|word| word.parse().ok()).collect();
                let (&[state, ready, unread, flags, own_port, peer_port, path_mtu], Ok(fd)) =
                    (&numbers[..], fd.parse())
                else {
                    return Err(format!("worker {who} told of {fd}: {seen}"));
                };
                let seen = Seen { state, ready, unread, flags, own_port, peer_port, path_mtu };
                self.view.insert((who, fd), seen);
            }
        }
        Ok(())
    }
}
