//! The choice of calls for sequences of UDP sockets: whatever two sockets of one program, or of two, do with each other over loopback, where
//! datagrams go by lanes once there were enough of them (decision 0034).

use crate::call::{Arg, Call};
use crate::choose::{Choice, Chooser, SHORT_MS, by};
use crate::linux::*;
use crate::world::{Kind, Known};

/// What may lie unread in all queues together, as Linux counts it: below what one of them holds.
const UNREAD_MAX: i64 = 100_000;

/// Kinds of control data (`differ_datagram.c`) beside none.
const CONTROLS: usize = 16;

/// Options with an int for a value that UDP sockets have.
const OPTIONS: &[(i64, i64)] = &[
    (SOL_SOCKET, SO_ERROR),
    (SOL_SOCKET, SO_TYPE),
    (SOL_SOCKET, SO_PROTOCOL),
    (SOL_SOCKET, SO_DOMAIN),
    (SOL_SOCKET, SO_RCVLOWAT),
    (SOL_SOCKET, SO_KEEPALIVE),
    (SOL_SOCKET, SO_BROADCAST),
    (SOL_SOCKET, SO_PRIORITY),
    (SOL_SOCKET, SO_RXQ_OVFL),
    (SOL_SOCKET, SO_PEEK_OFF),
    (SOL_SOCKET, SO_TIMESTAMP),
    (SOL_SOCKET, SO_TIMESTAMPNS),
    (SOL_SOCKET, SO_TIMESTAMPING),
    (IPPROTO_IP, IP_TOS),
    (IPPROTO_IP, IP_TTL),
    (IPPROTO_IP, IP_PKTINFO),
    (IPPROTO_IP, IP_RECVTOS),
    (IPPROTO_IP, IP_RECVTTL),
    (IPPROTO_IP, IP_RECVERR),
    (IPPROTO_IP, IP_MTU_DISCOVER),
    (SOL_UDP, UDP_SEGMENT),
    (SOL_UDP, UDP_GRO),
    (SOL_UDP, 9999),
];

/// What may be chosen, and how likely it is.
pub fn choices<'a>() -> Vec<(usize, Choice<'a>)> {
    vec![
        (8, Chooser::udp_socket),
        (8, Chooser::udp_bind),
        (6, Chooser::udp_connect),
        (20, Chooser::udp_send),
        (22, Chooser::udp_receive),
        (8, Chooser::volley),
        (4, Chooser::send),
        (1, Chooser::udp_shutdown),
        (4, Chooser::udp_close),
        (3, Chooser::copy),
        (4, Chooser::fcntl),
        (5, Chooser::ioctl),
        (3, Chooser::name),
        (1, Chooser::file_call),
        (3, Chooser::udp_get_option),
        (4, Chooser::udp_set_option),
        (1, Chooser::buffer_size),
        (1, Chooser::wrong),
        (6, Chooser::poll),
        (1, Chooser::epoll_create),
        (5, Chooser::epoll_ctl),
        (6, Chooser::epoll_wait),
        (1, Chooser::process),
        (1, Chooser::execute),
    ]
}

impl Chooser<'_> {
    fn udp(&mut self) -> Option<i64> {
        self.mostly(|one| one.kind == Kind::Udp)
    }

    fn bound(&mut self) -> Option<Known> {
        self.one(|one| one.kind == Kind::Udp && one.seen.own_port != 0)
    }

    fn udp_socket(&mut self) -> Option<Call> {
        if self.those(|_| true).len() > 9 && !self.rng.chance(10) {
            return self.udp_close();
        }
        let flags = self.rng.pick(&[0, 0, NONBLOCK, CLOEXEC]);
        by(self.who, "socket", &[AF_INET, SOCK_DGRAM | flags, self.rng.pick(&[0, 0, 17, 6])])
    }

    fn udp_bind(&mut self) -> Option<Call> {
        let fd = match self.one(|one| one.kind == Kind::Udp && one.seen.own_port == 0) {
            Some(one) if self.rng.chance(90) => one.fd,
            _ => self.udp()?,
        };
        let kind = self.rng.pick(&[0, 0, 0, 0, 1, 1, 2, 3, 4, 7]);
        by(self.who, "bind", &[fd, kind, self.port()])
    }

    /// The address of somebody's socket, or of nobody's.
    fn peer(&mut self, call: &mut Call) {
        let is_bound = |one: &&Known| one.kind == Kind::Udp && one.seen.own_port != 0;
        let bound: Vec<Known> = self.world.known.iter().filter(is_bound).copied().collect();
        if bound.is_empty() || self.rng.chance(8) {
            let kind = self.rng.pick(&[0, 0, 2, 3, 4, 6]);
            let port = self.rng.pick(&[self.base_port + 9, self.base_port, 0]);
            call.args.extend([Arg::Number(kind), Arg::Number(port)]);
        } else {
            let to = self.rng.pick(&bound);
            call.args.extend([Arg::Number(self.rng.pick(&[0, 0, 0, 1, 2])), Arg::PortOf(to.who, to.made)]);
        }
    }

    fn udp_connect(&mut self) -> Option<Call> {
        let fd = self.udp()?;
        if self.rng.chance(20) {
            return by(self.who, "connect", &[fd, 5, 0]);
        }
        let mut call = Call::new(self.who, "connect", &[fd]);
        self.peer(&mut call);
        Some(call)
    }

    fn datagram_len(&mut self) -> i64 {
        match self.rng.below(12) {
            0 => 0,
            1..=6 => 1 + self.rng.below(100) as i64,
            7..=9 => 1 + self.rng.below(1400) as i64,
            10 => 1 + self.rng.below(6000) as i64,
            _ => self.rng.pick(&[300, 400, 65_507, 65_508]),
        }
    }

    fn udp_send(&mut self) -> Option<Call> {
        let length = self.datagram_len();
        if self.world.datagrams_unread + length > UNREAD_MAX {
            return None;
        }
        let fd = self.udp()?;
        let mut call = Call::new(self.who, "udp_send", &[fd]);
        if self.rng.chance(30) {
            call.args.extend([Arg::Number(6), Arg::Number(0)]);
        } else {
            self.peer(&mut call);
        }
        let flags = self.rng.pick(&[0, 0, 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_DONTWAIT, MSG_OOB, MSG_EOR]);
        let control = if self.rng.chance(75) { 0 } else { 1 + self.rng.below(CONTROLS) as i64 };
        let seed = self.rng.below(1000) as i64;
        call.args.extend([length, flags, seed, control].map(Arg::Number));
        Some(call)
    }

    fn udp_receive(&mut self) -> Option<Call> {
        let ready = self.one(|one| one.kind == Kind::Udp && one.is_ready_to_read());
        let fd = match ready {
            Some(one) if self.rng.chance(70) => one.fd,
            _ => self.udp()?,
        };
        let known = self.known(fd);
        let mut flags = self.rng.pick(&[0, 0, 0, 0, MSG_PEEK, MSG_TRUNC, MSG_PEEK | MSG_TRUNC, MSG_WAITALL]);
        if self.rng.chance(4) {
            flags |= self.rng.pick(&[MSG_OOB, MSG_ERRQUEUE]);
        }
        let mut limit = None;
        if known.is_some_and(|one| one.blocks() && !one.is_ready_to_read()) {
            match self.rng.chance(3) {
                true => limit = Some(SHORT_MS),
                false => flags |= MSG_DONTWAIT,
            }
        }
        let room = self.rng.pick(&[0, 1, 50, 500, 2000, 65_535, 65_535]);
        let mut call = match self.rng.below(8) {
            0 if flags == 0 => Call::new(self.who, "read", &[fd, room]),
            1 => Call::new(self.who, "recv", &[fd, room, flags]),
            2 => Call::new(self.who, "recvfrom", &[fd, room, flags]),
            3 if flags & MSG_ERRQUEUE == 0 => {
                Call::new(self.who, "recvmmsg", &[fd, flags | MSG_DONTWAIT, 0, 100, 2000, 700])
            }
            _ => Call::new(
                self.who,
                "udp_receive",
                &[fd, flags, room, self.rng.pick(&[0, 255, 255, 8, 20, 40])],
            ),
        };
        call.limit_ms = limit.unwrap_or(call.limit_ms);
        Some(call)
    }

    /// Between sockets of this program in whose queues nothing is.
    fn volley(&mut self) -> Option<Call> {
        if self.world.datagrams_unread > 0 {
            return None;
        }
        let from = self.one(|one| one.kind == Kind::Udp)?;
        let to = self.bound()?;
        let count = self.rng.pick(&[1, 5, 40, 40, 70]);
        let length = self.rng.pick(&[1, 64, 64, 1200, 3000]);
        by(self.who, "volley", &[from.fd, to.fd, count, length])
    }

    fn udp_shutdown(&mut self) -> Option<Call> {
        let fd = self.udp()?;
        by(self.who, "shutdown", &[fd, self.rng.below(4) as i64])
    }

    fn udp_close(&mut self) -> Option<Call> {
        if self.those(|_| true).len() < 4 && !self.rng.chance(20) {
            return None;
        }
        let fd = self.mostly(|_| true)?;
        by(self.who, "close", &[fd])
    }

    fn udp_get_option(&mut self) -> Option<Call> {
        let (fd, (level, name)) = (self.udp()?, self.rng.pick(OPTIONS));
        by(self.who, "getopt", &[fd, level, name, self.rng.pick(&[4, 4, 4, 8, 1, 0])])
    }

    fn udp_set_option(&mut self) -> Option<Call> {
        let (fd, (level, name)) = (self.udp()?, self.rng.pick(OPTIONS));
        let number = self.rng.pick(&[0, 0, 1, 1, 2, 100, -1]);
        by(self.who, "setopt", &[fd, level, name, self.rng.pick(&[4, 4, 4, 8, 1, 0]), number])
    }
}
