//! The choice of calls that ask: options, names, readiness.

use crate::call::Call;
use crate::choose::{Chooser, by};
use crate::linux::*;
use crate::names::LEVELS;
use crate::other_options;
use crate::world::Kind;

/// Options with an int for a value.
const OPTIONS: &[(i64, i64)] = &[
    (SOL_SOCKET, SO_ERROR),
    (SOL_SOCKET, SO_TYPE),
    (SOL_SOCKET, SO_PROTOCOL),
    (SOL_SOCKET, SO_DOMAIN),
    (SOL_SOCKET, SO_ACCEPTCONN),
    (SOL_SOCKET, SO_RCVLOWAT),
    (SOL_SOCKET, SO_SNDLOWAT),
    (SOL_SOCKET, SO_KEEPALIVE),
    (SOL_SOCKET, SO_REUSEADDR),
    (SOL_SOCKET, SO_OOBINLINE),
    (SOL_SOCKET, SO_BROADCAST),
    (SOL_SOCKET, SO_PRIORITY),
    (SOL_SOCKET, SO_LINGER),
    (SOL_SOCKET, 9999),
    (IPPROTO_TCP, TCP_NODELAY),
    (IPPROTO_TCP, TCP_CORK),
    (IPPROTO_TCP, TCP_KEEPIDLE),
    (IPPROTO_TCP, TCP_KEEPINTVL),
    (IPPROTO_TCP, TCP_KEEPCNT),
    (IPPROTO_TCP, TCP_SYNCNT),
    (IPPROTO_TCP, TCP_LINGER2),
    (IPPROTO_TCP, TCP_USER_TIMEOUT),
    (IPPROTO_TCP, TCP_QUICKACK),
    (IPPROTO_TCP, TCP_DEFER_ACCEPT),
    (IPPROTO_TCP, 9999),
    (IPPROTO_IP, IP_TOS),
    (IPPROTO_IP, IP_TTL),
    (77, 1),
];

/// Kinds of wrong arguments (`differ_data.c`).
const WRONGS: usize = 20;

/// Values of any option: good ones, such as are at the bounds of some, and bad ones.
const NUMBERS: &[i64] =
    &[0, 1, 1, 2, 3, 5, 64, 100, 127, 128, 255, 256, 1000, 32767, 65535, 65536, 90_000, -1, i32::MAX as i64];

impl Chooser<'_> {
    /// An option of the whole table of options, of those that the engine answers as Linux does.
    fn any_option(&mut self) -> (i64, i64) {
        loop {
            let (_, level, options) = self.rng.pick(&LEVELS);
            let option = self.rng.pick(options);
            // The size of a buffer decides nothing here.
            let is_size = option.name.contains("BUFFORCE") || option.name == "TCP_WINDOW_CLAMP";
            if option.compared && !is_size && other_options::why(option.name).is_none() {
                return (level, option.number);
            }
        }
    }

    pub fn fcntl(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        match self.rng.below(10) {
            0 => by(self.who, "fcntl", &[fd, F_GETFD]),
            1 => by(self.who, "fcntl", &[fd, F_SETFD, self.rng.below(2) as i64]),
            2 => by(self.who, "fcntl", &[fd, F_GETFL]),
            3 => by(self.who, "fcntl", &[fd, 9999]),
            4 if self.rng.chance(20) && !self.known(fd).is_some_and(|one| one.listens()) => {
                by(self.who, "fcntl", &[fd, F_SETFL, self.rng.pick(&[O_APPEND, O_ASYNC | NONBLOCK])])
            }
            _ => by(self.who, "fcntl", &[fd, F_SETFL, self.rng.pick(&[0, NONBLOCK, NONBLOCK])]),
        }
    }

    pub fn ioctl(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        match self.rng.below(10) {
            0..=2 => by(self.who, "ioctl", &[fd, FIONREAD, 7]),
            3 => by(self.who, "ioctl", &[fd, FIONBIO, self.rng.below(2) as i64]),
            4 => by(self.who, "ioctl", &[fd, 0x9999, 7]),
            5 => by(self.who, "ioctl", &[fd, self.rng.pick(&[FIONREAD, SIOCOUTQ, SIOCATMARK])]),
            6 => by(self.who, "ioctl", &[fd, SIOCATMARK, 7]),
            _ => by(self.who, "ioctl", &[fd, SIOCOUTQ, 7]),
        }
    }

    pub fn name(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        let room = self.rng.pick(&[16, 16, 16, 8, 0, 28, -1]);
        match self.rng.chance(50) {
            true => by(self.who, "getsockname", &[fd, room]),
            false => by(self.who, "getpeername", &[fd, room]),
        }
    }

    pub fn get_option(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        let room = self.rng.pick(&[4, 4, 4, 4, 8, 1, 0, 16, -1]);
        match self.rng.below(20) {
            0..=1 => by(self.who, "getopt", &[fd, IPPROTO_TCP, TCP_INFO, self.rng.pick(&[1, 104, 512])]),
            2 => by(self.who, "getopt", &[fd, IPPROTO_TCP, TCP_CONGESTION, 16]),
            3 => by(self.who, "getopt", &[fd, SOL_SOCKET, self.rng.pick(&[SO_RCVTIMEO, SO_SNDTIMEO]), 16]),
            4 => by(self.who, "getopt", &[fd, SOL_SOCKET, SO_LINGER, 8]),
            5..=7 => by(self.who, "getopt", &[fd, SOL_SOCKET, SO_ERROR, 4]),
            8 => by(self.who, "getopt", &[fd, SOL_SOCKET, SO_REUSEPORT, 4]),
            9 => by(self.who, "getopt", &[fd, IPPROTO_TCP, TCP_MAXSEG, 4]),
            10..=14 => {
                let (level, name) = self.any_option();
                by(self.who, "getopt", &[fd, level, name, room])
            }
            _ => {
                let (level, name) = self.rng.pick(OPTIONS);
                by(self.who, "getopt", &[fd, level, name, room])
            }
        }
    }

    pub fn set_option(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        if self.known(fd).is_some_and(|one| one.listens() && self.world.waiting_at(one.seen.own_port) > 0) {
            // Which connections inherit it is a known difference.
            return None;
        }
        let length = self.rng.pick(&[4, 4, 4, 4, 4, 8, 1, 0, -1]);
        let number = self.rng.pick(&[0, 1, 1, 2, 5, 100, -1]);
        match self.rng.below(16) {
            12.. => {
                let (level, name) = self.any_option();
                let number = self.rng.pick(NUMBERS);
                let number = if name == TCP_DEFER_ACCEPT && level == IPPROTO_TCP { 0 } else { number };
                by(self.who, "setopt", &[fd, level, name, length, number])
            }
            0 => by(self.who, "setopt", &[fd, SOL_SOCKET, SO_LINGER, 8, self.rng.below(2) as i64, number]),
            1 => {
                let name = self.rng.pick(&[SO_RCVTIMEO, SO_SNDTIMEO]);
                let seconds = self.rng.pick(&[0, 0, 0, -1, -1000, i64::MIN]);
                let micros = self.rng.pick(&[0, 4_000, 8_000, 1_000_000, -1]);
                by(self.who, "setopt", &[fd, SOL_SOCKET, name, 16, seconds, micros])
            }
            2 => by(self.who, "setcongestion", &[fd, self.rng.below(4) as i64]),
            3 => by(self.who, "setopt", &[fd, SOL_SOCKET, SO_REUSEADDR, 4, 1]),
            4 => by(self.who, "setopt", &[fd, SOL_SOCKET, SO_REUSEPORT, 4, number & 1]),
            5 => by(self.who, "setopt", &[fd, IPPROTO_TCP, TCP_MAXSEG, 4, self.rng.pick(&[500, 10, 1000])]),
            _ => {
                let (level, name) = self.rng.pick(OPTIONS);
                // A connection that a listener keeps back, or that an answer may not use, is a thing of its own.
                let number = if name == TCP_DEFER_ACCEPT { 0 } else { number };
                by(self.who, "setopt", &[fd, level, name, length, number])
            }
        }
    }

    /// Of a size that decides nothing here.
    pub fn buffer_size(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        let any = [65_536, 100_000, 1 << 20, i64::from(i32::MAX)];
        let (name, size) = match self.rng.below(3) {
            0 => (self.rng.pick(&[SO_SNDBUFFORCE, SO_RCVBUFFORCE]), self.rng.pick(&any[..3])),
            1 => (self.rng.pick(&[SO_SNDBUF, SO_RCVBUF]), self.rng.pick(&[-1, i64::from(i32::MIN)])),
            _ => (self.rng.pick(&[SO_SNDBUF, SO_RCVBUF]), self.rng.pick(&any)),
        };
        by(self.who, "size", &[fd, name, size])
    }

    /// Arguments that are wrong whatever the descriptor is (`differ_data.c`).
    pub fn wrong(&mut self) -> Option<Call> {
        let fd = if self.rng.chance(80) { self.socket_of_kind()? } else { self.mostly(|_| true)? };
        by(self.who, "wrong", &[fd, self.rng.below(WRONGS) as i64])
    }

    fn asked(&mut self) -> Vec<i64> {
        let mut asked = Vec::new();
        for _ in 0..self.rng.below(4) {
            if let Some(fd) = self.mostly(|_| true) {
                let events = self.rng.pick(&[
                    POLLIN,
                    POLLOUT,
                    POLLIN | POLLOUT,
                    POLLIN | POLLOUT | POLLPRI | POLLRDHUP,
                    POLLRDNORM | POLLWRNORM,
                    0,
                ]);
                asked.extend([fd, events]);
            }
        }
        asked
    }

    pub fn poll(&mut self) -> Option<Call> {
        let mut args = self.asked();
        args.insert(0, if self.rng.chance(2) { 10 } else { 0 });
        let name = self.rng.pick(&["poll", "poll", "ppoll", "select", "pselect"]);
        by(self.who, name, &args)
    }

    pub fn epoll_create(&mut self) -> Option<Call> {
        if self.those(|one| one.kind == Kind::Epoll).len() > 3 {
            return None;
        }
        match self.rng.below(8) {
            0 => by(self.who, "epoll_create", &[0, 0]),
            1 => by(self.who, "epoll_create", &[0, 5]),
            2 => by(self.who, "epoll_create", &[1]),
            _ => by(self.who, "epoll_create", &[self.rng.pick(&[0, CLOEXEC])]),
        }
    }

    pub fn epoll_ctl(&mut self) -> Option<Call> {
        let Some(set) = self.mostly(|one| one.kind == Kind::Epoll) else { return self.epoll_create() };
        let fd = {
            let kind = self.kind;
            self.mostly(|one| one.kind == kind || one.kind == Kind::Epoll)?
        };
        let mut events = self.rng.pick(&[
            POLLIN,
            POLLIN | POLLRDHUP,
            POLLIN | POLLOUT,
            POLLOUT,
            POLLIN | POLLOUT | POLLRDHUP,
            0,
        ]);
        match self.rng.below(10) {
            0..=2 => events |= EPOLLET,
            3 => events |= EPOLLONESHOT,
            4 => events |= EPOLLONESHOT | EPOLLET,
            5 if self.rng.chance(40) => events |= EPOLLEXCLUSIVE,
            6 if self.rng.chance(10) => events = -1,
            _ => {}
        }
        let op = match self.rng.below(12) {
            0..=6 => EPOLL_CTL_ADD,
            7..=9 => EPOLL_CTL_MOD,
            10 => EPOLL_CTL_DEL,
            _ => self.rng.pick(&[EPOLL_CTL_DEL, EPOLL_CTL_DEL, 9]),
        };
        by(self.who, "epoll_ctl", &[set, op, fd, events, fd])
    }

    pub fn epoll_wait(&mut self) -> Option<Call> {
        let set = self.mostly(|one| one.kind == Kind::Epoll)?;
        let room = if self.rng.chance(5) { self.rng.pick(&[0, -1]) } else { 16 };
        let time = if self.rng.chance(2) { 8 } else { 0 };
        by(self.who, "epoll_wait", &[set, room, time, self.rng.below(3) as i64])
    }
}
