//! The choice of the next call: at random, by weights that depend on what there is.

use crate::call::{Arg, Call};
use crate::choose_datagram;
use crate::linux::*;
use crate::rng::Rng;
use crate::stack::WORKERS;
use crate::world::{Kind, Known, World};

/// Descriptors of a worker, about: with more, closing becomes likelier.
const DESCRIPTORS: usize = 14;
/// Bytes on their way in one direction, so that the size of no buffer decides.
pub const OUTSTANDING_MAX: i64 = 12 << 10;
/// Connections that wait to be accepted on one port.
const WAITING_MAX: usize = 6;
/// How long a call may block that will block.
pub const SHORT_MS: u32 = 25;

/// Chooses calls for one sequence.
#[derive(Debug)]
pub struct Chooser<'a> {
    pub rng: &'a mut Rng,
    pub world: &'a World,
    /// The first of the ports of this sequence.
    pub base_port: i64,
    pub who: usize,
    /// Of which kind the sockets are.
    pub kind: Kind,
}

pub type Choice<'a> = fn(&mut Chooser<'a>) -> Option<Call>;

/// A call that was chosen.
pub fn by(who: usize, name: &str, args: &[i64]) -> Option<Call> {
    Some(Call::new(who, name, args))
}

/// What may be chosen, and how likely it is.
fn choices<'a>() -> Vec<(usize, Choice<'a>)> {
    vec![
        (9, Chooser::socket),
        (6, Chooser::bind),
        (6, Chooser::listen),
        (12, Chooser::connect),
        (12, Chooser::accept),
        (4, Chooser::shutdown),
        (1, Chooser::disconnect),
        (5, Chooser::close),
        (5, Chooser::copy),
        (5, Chooser::fcntl),
        (5, Chooser::ioctl),
        (3, Chooser::name),
        (3, Chooser::file_call),
        (14, Chooser::receive),
        (16, Chooser::send),
        (3, Chooser::send_file),
        (2, Chooser::splice),
        (5, Chooser::get_option),
        (5, Chooser::set_option),
        (1, Chooser::buffer_size),
        (1, Chooser::wrong),
        (6, Chooser::poll),
        (1, Chooser::epoll_create),
        (6, Chooser::epoll_ctl),
        (7, Chooser::epoll_wait),
        (4, Chooser::process),
        (3, Chooser::execute),
        (3, Chooser::pass),
        (1, Chooser::other_descriptor),
        (2, Chooser::end_listener),
    ]
}

impl Chooser<'_> {
    pub fn next(&mut self) -> Call {
        let choices = if self.kind == Kind::Udp { choose_datagram::choices() } else { choices() };
        let total: usize = choices.iter().map(|(weight, _)| weight).sum();
        loop {
            let alive: Vec<usize> = (0..WORKERS).filter(|who| self.world.alive[*who]).collect();
            self.who = self.rng.pick(&alive);
            let mut at = self.rng.below(total);
            let choice = choices.iter().find(|(weight, _)| {
                let found = at < *weight;
                at = at.saturating_sub(*weight);
                found
            });
            if let Some(mut call) = choice.and_then(|(_, choose)| choose(self)) {
                if crate::known::leaves_out(&call, self) {
                    continue;
                }
                call.name_descriptors(|fd| self.known(fd).map(|known| known.made));
                return call;
            }
        }
    }

    /// The caller's descriptors that are wanted.
    pub fn those(&self, wanted: impl Fn(&Known) -> bool) -> Vec<Known> {
        self.world.known.iter().filter(|one| one.who == self.who && wanted(one)).copied().collect()
    }

    pub fn one(&mut self, wanted: impl Fn(&Known) -> bool) -> Option<Known> {
        let those = self.those(wanted);
        (!those.is_empty()).then(|| self.rng.pick(&those))
    }

    /// A descriptor that is wanted; now and then any, or a number that is none. `None`: there is nothing of use.
    pub fn mostly(&mut self, wanted: impl Fn(&Known) -> bool) -> Option<i64> {
        match self.rng.below(100) {
            0..=1 => Some(self.rng.pick(&[-1, 77, 1500])),
            2..=5 => self.one(|one| one.kind != Kind::Pipe).map(|one| one.fd),
            _ => self.one(wanted).map(|one| one.fd),
        }
    }

    /// One of the sockets that the sequence is about, mostly.
    pub fn socket_of_kind(&mut self) -> Option<i64> {
        let kind = self.kind;
        self.mostly(|one| one.kind == kind)
    }

    pub fn known(&self, fd: i64) -> Option<Known> {
        self.world.known.iter().find(|one| one.who == self.who && one.fd == fd).copied()
    }

    pub fn port(&mut self) -> i64 {
        self.base_port + self.rng.below(5) as i64
    }

    /// A look, right after `call` has returned, at what it did: the first since then, so nothing has helped it to be seen.
    pub fn look_at_once(&mut self, call: &Call) -> Option<Call> {
        if !call.is(&["connect", "write", "send", "close", "abort", "shutdown"]) || !self.rng.chance(20) {
            return None;
        }
        let (who, one) = match call.args.get(2) {
            Some(Arg::PortOf(who, made)) => {
                (*who, *self.world.known.iter().find(|one| one.who == *who && one.made == *made)?)
            }
            _ => {
                let Some(Arg::Made(made)) = call.args.first() else { return None };
                let of = |one: &&Known| one.who == call.who && one.made == *made && one.is_connected();
                let reader = *self.world.reader_of(self.world.known.iter().find(of)?)?;
                (reader.who, reader)
            }
        };
        self.who = who;
        let mut look = match one.listens() {
            // It would get one that came before.
            true if one.is_ready_to_read() => return None,
            true => Call::new(who, "accept", &[one.fd, NONBLOCK, 16]).within(SHORT_MS),
            false if self.rng.chance(50) => Call::new(who, "ioctl", &[one.fd, FIONREAD, 7]),
            false => Call::new(who, "poll", &[0, one.fd, POLLIN | POLLRDHUP]),
        };
        look.name_descriptors(|fd| self.known(fd).map(|known| known.made));
        Some(look)
    }

    fn socket(&mut self) -> Option<Call> {
        if self.those(|_| true).len() > DESCRIPTORS && !self.rng.chance(10) {
            return self.close();
        }
        let flags = self.rng.pick(&[0, 0, NONBLOCK, NONBLOCK, CLOEXEC, NONBLOCK | CLOEXEC]);
        match self.rng.below(40) {
            0 => by(self.who, "socket", &[AF_INET, 99, 0]),
            1 => by(self.who, "socket", &[AF_INET, SOCK_STREAM, 17]),
            2 => by(self.who, "socket", &[999, SOCK_STREAM, 0]),
            3 => by(self.who, "socket", &[AF_UNIX, SOCK_DGRAM | NONBLOCK, 0]),
            4 => by(self.who, "socket", &[AF_INET, SOCK_STREAM | flags | 0x100, 0]),
            _ => by(self.who, "socket", &[AF_INET, SOCK_STREAM | flags, self.rng.pick(&[0, 6])]),
        }
    }

    fn bind(&mut self) -> Option<Call> {
        let fd = self.mostly(|one| one.is_closed() && one.seen.own_port == 0)?;
        let port = if self.rng.chance(80) { self.port() } else { 0 };
        let kind = self.rng.pick(&[0, 0, 0, 0, 0, 1, 1, 1, 2, 3, 4, 7]);
        by(self.who, "bind", &[fd, kind, port])
    }

    fn listen(&mut self) -> Option<Call> {
        let fd = self.mostly(|one| (one.is_closed() && one.seen.own_port != 0) || one.listens())?;
        let backlog = self.rng.pick(&[16, 128, 1 << 20, -1]);
        by(self.who, "listen", &[fd, backlog])
    }

    fn connect(&mut self) -> Option<Call> {
        let fd = if self.rng.chance(85) {
            self.one(Known::is_closed).map(|one| one.fd)
        } else {
            self.mostly(|one| one.kind == Kind::Tcp)
        }?;
        if self.known(fd).is_some_and(|one| self.is_kernels(&one)) {
            // Which of the connections is accepted first is a known difference.
            return None;
        }
        let listeners: Vec<Known> = self.world.known.iter().filter(|one| one.listens()).copied().collect();
        let kind = self.rng.pick(&[0, 0, 0, 0, 0, 0, 1, 2]);
        if !listeners.is_empty() && self.rng.chance(85) {
            let to = self.rng.pick(&listeners);
            let same = |other: &&Known| other.seen.own_port == to.seen.own_port && other.object != to.object;
            if listeners.iter().any(|other| same(&other)) {
                // Which of them gets the connection is the stack's choice.
                return None;
            }
            if self.world.inherited.contains(&to.object) && self.world.kernels.contains(&to.object) {
                // What only the kernel can do was done to it by a program that is gone.
                return None;
            }
            // At one that came over exec those that wait meanwhile are the kernel's, or another program's that is gone.
            let most = if self.world.inherited.contains(&to.object) { 1 } else { WAITING_MAX };
            if self.world.waiting_at(to.seen.own_port) >= most {
                return None;
            }
            let mut call = Call::new(self.who, "connect", &[fd, kind]);
            call.args.push(Arg::PortOf(to.who, to.made));
            return Some(call);
        }
        match self.rng.below(12) {
            0 => by(self.who, "connect", &[fd, 5, 0]),
            1 => by(self.who, "connect", &[fd, self.rng.pick(&[3, 4, 6, 7]), self.base_port]),
            2 if self.known(fd).is_some_and(|one| one.seen.own_port != 0) => {
                let mut call = Call::new(self.who, "connect", &[fd, 0]);
                call.args.push(Arg::PortOf(self.who, self.known(fd)?.made));
                Some(call)
            }
            _ => {
                // A port where nobody listens.
                by(self.who, "connect", &[fd, kind, self.base_port + 9])
            }
        }
    }

    /// The socket stays with the kernel, or is there for now; or it has had a connection.
    fn is_kernels(&self, one: &Known) -> bool {
        let world = self.world;
        let kept = world.copied.contains(&one.object) || world.kernels.contains(&one.object);
        one.is_closed() && (one.seen.own_port != 0 || kept)
    }

    fn accept(&mut self) -> Option<Call> {
        let fd = match self.one(|one| one.listens() && one.is_ready_to_read()) {
            Some(one) if self.rng.chance(85) => one.fd,
            _ => self.mostly(Known::listens)?,
        };
        let flags = self.rng.pick(&[-1, -1, 0, NONBLOCK, NONBLOCK, CLOEXEC, 1 << 5]);
        let room = self.rng.pick(&[-1, 16, 16, 16, 8, 28]);
        let call = Call::new(self.who, "accept", &[fd, flags, room]);
        self.if_ready(call, fd)
    }

    /// A call that waits for input: when it would block, it is rare and blocks for a short time.
    pub fn if_ready(&mut self, call: Call, fd: i64) -> Option<Call> {
        match self.known(fd) {
            Some(one) if one.blocks() && !one.is_ready_to_read() => {
                self.rng.chance(2).then(|| call.within(SHORT_MS))
            }
            _ => Some(call),
        }
    }

    fn shutdown(&mut self) -> Option<Call> {
        let fd = self.mostly(|one| one.is_connected() || one.listens())?;
        if self.known(fd).is_some_and(|one| one.listens()) && !self.rng.chance(10) {
            return None;
        }
        let how = self.rng.pick(&[0, 1, 1, 1, 2, 2, 3, -1]);
        by(self.who, "shutdown", &[fd, how])
    }

    fn disconnect(&mut self) -> Option<Call> {
        let fd = self.one(Known::is_connected)?.fd;
        by(self.who, "connect", &[fd, 5, 0])
    }

    fn close(&mut self) -> Option<Call> {
        let many = self.those(|_| true).len();
        if many < DESCRIPTORS / 2 && !self.rng.chance(30) {
            return None;
        }
        if self.rng.chance(4) {
            let first = 3 + self.rng.below(12) as i64;
            let last = first + self.rng.below(4) as i64 - 1;
            let flags = if self.rng.chance(25) { 4 } else { 0 };
            return by(self.who, "close_range", &[first, last, flags]);
        }
        let fd = self.mostly(|_| true)?;
        if self.known(fd).is_some_and(|one| one.listens()) && !self.rng.chance(25) {
            return None;
        }
        let resets = self.known(fd).is_some_and(|one| one.is_connected()) && self.rng.chance(20);
        by(self.who, if resets { "abort" } else { "close" }, &[fd])
    }

    /// The ends that a listener can come to, and what keeps it from that.
    fn end_listener(&mut self) -> Option<Call> {
        let fd = self.one(Known::listens)?.fd;
        match self.rng.below(6) {
            0 => by(self.who, "close", &[fd]),
            1 | 2 => by(self.who, "shutdown", &[fd, self.rng.below(4) as i64]),
            3 | 4 => by(self.who, "connect", &[fd, 5, 0]),
            _ => by(self.who, "dup", &[fd]),
        }
    }

    pub fn copy(&mut self) -> Option<Call> {
        let fd = self.mostly(|one| one.seen.state != CLOSE || one.fd % 4 == 0)?;
        let to = 3 + self.rng.below(30) as i64;
        match self.rng.below(7) {
            0 | 1 => by(self.who, "dup", &[fd]),
            2 => by(self.who, "dup2", &[fd, to]),
            3 => by(self.who, "dup2", &[fd, self.rng.pick(&[fd, to, -1])]),
            4 => by(self.who, "dup3", &[fd, to, self.rng.pick(&[0, CLOEXEC, 1])]),
            5 => by(self.who, "fcntl", &[fd, F_DUPFD, self.rng.pick(&[0, 20, to, -1])]),
            _ => by(self.who, "fcntl", &[fd, F_DUPFD_CLOEXEC, to]),
        }
    }

    fn other_descriptor(&mut self) -> Option<Call> {
        if self.those(|_| true).len() > DESCRIPTORS {
            return None;
        }
        let seed = self.rng.below(100) as i64;
        match self.rng.chance(50) {
            true => by(self.who, "file", &[seed]),
            false => by(self.who, "pipe", &[NONBLOCK]),
        }
    }

    pub fn process(&mut self) -> Option<Call> {
        if self.who != 0 && self.rng.chance(15) {
            return by(self.who, "exit", &[]);
        }
        if !self.those(|one| one.is_closed()).is_empty() {
            return None;
        }
        let free = (0..WORKERS).find(|who| !self.world.alive[*who]);
        match free {
            Some(child) if self.rng.chance(if child == 1 { 60 } else { 15 }) => {
                by(self.who, "fork", &[child as i64])
            }
            _ => None,
        }
    }

    /// The same program again, with the descriptors that exec leaves it. (What becomes of an epoll set is a known difference.)
    pub fn execute(&mut self) -> Option<Call> {
        if !self.those(|one| one.kind == Kind::Epoll).is_empty() {
            return None;
        }
        by(self.who, "exec", &[])
    }

    fn pass(&mut self) -> Option<Call> {
        if self.world.has_in_flight(self.who) {
            return by(self.who, "take", &[self.rng.below(2) as i64]);
        }
        let others: Vec<usize> =
            (0..WORKERS).filter(|who| *who != self.who && self.world.alive[*who]).collect();
        if others.is_empty() {
            return None;
        }
        let to = self.rng.pick(&others);
        let fd = self.one(|one| one.is_connected() || one.listens())?.fd;
        by(self.who, "pass", &[fd, to as i64])
    }
}
