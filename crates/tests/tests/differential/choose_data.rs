//! The choice of calls that move bytes.

use crate::call::Call;
use crate::choose::{Chooser, OUTSTANDING_MAX, SHORT_MS, by};
use crate::linux::*;
use crate::world::{Kind, Known};

impl Chooser<'_> {
    fn length(&mut self) -> i64 {
        match self.rng.below(12) {
            0 => 0,
            1..=4 => 1 + self.rng.below(16) as i64,
            5..=9 => 1 + self.rng.below(700) as i64,
            _ => 1 + self.rng.below(5000) as i64,
        }
    }

    fn lengths(&mut self) -> Vec<i64> {
        let count = self.rng.pick(&[0, 1, 2, 2, 3, 4]);
        (0..count).map(|_| self.length()).collect()
    }

    fn reader(&mut self) -> Option<i64> {
        let ready = self.one(|one| one.is_connected() && one.is_ready_to_read());
        match ready {
            Some(one) if self.rng.chance(70) => Some(one.fd),
            _ => self.mostly(|one| one.kind == Kind::Tcp),
        }
    }

    pub fn receive(&mut self) -> Option<Call> {
        let fd = self.reader()?;
        let length = if self.rng.chance(30) { 8192 } else { self.length() };
        let mut flags = self.rng.pick(&[0, 0, 0, MSG_PEEK, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_NOSIGNAL]);
        if self.rng.chance(3) {
            flags |= self.rng.pick(&[MSG_OOB, 0x2000, MSG_WAITALL | MSG_PEEK, MSG_TRUNC | MSG_PEEK]);
        }
        let known = self.known(fd);
        let waits = known.is_some_and(|one| {
            one.blocks() && (!one.is_ready_to_read() || flags & MSG_WAITALL != 0 && one.seen.unread < length)
        });
        let mut limit = None;
        let may_wait = self.rng.chance(3);
        if waits && may_wait {
            limit = Some(SHORT_MS);
        } else if waits || self.rng.chance(20) {
            flags |= MSG_DONTWAIT;
        }
        let no_flags = !waits || may_wait;
        let mut parts = self.lengths();
        let mut call = match self.rng.below(9) {
            0 if no_flags => Call::new(self.who, "read", &[fd, length]),
            1 if no_flags => {
                parts.insert(0, fd);
                Call::new(self.who, "readv", &parts)
            }
            2 if no_flags => Call::new(self.who, "pread", &[fd, length, self.rng.pick(&[0, 5, -1])]),
            3 => Call::new(self.who, "recvfrom", &[fd, length, flags]),
            4 | 5 => {
                parts.splice(0..0, [fd, flags]);
                Call::new(self.who, "recvmsg", &parts)
            }
            6 => {
                parts.splice(0..0, [fd, flags | MSG_DONTWAIT, self.rng.below(2) as i64]);
                Call::new(self.who, "recvmmsg", &parts)
            }
            _ => Call::new(self.who, "recv", &[fd, length, flags]),
        };
        call.limit_ms = limit.unwrap_or(call.limit_ms);
        Some(call)
    }

    /// A socket that may send `length` bytes more.
    fn sender(&mut self, length: i64) -> Option<i64> {
        let room: Vec<i64> = self
            .those(|one| {
                one.is_connected() && self.world.outstanding(one) + length.max(700) <= OUTSTANDING_MAX
            })
            .iter()
            .map(|one| one.fd)
            .collect();
        if room.is_empty() || self.rng.chance(4) {
            // Those that have no connection answer with errors; the others have no room now.
            return self.mostly(|one| one.kind == Kind::Tcp && !one.is_connected()).filter(|fd| {
                self.known(*fd)
                    .is_none_or(|one| !one.is_connected() && one.kind != Kind::Pipe || room.contains(fd))
            });
        }
        Some(self.rng.pick(&room))
    }

    pub fn send(&mut self) -> Option<Call> {
        let (length, seed) = (self.length(), self.rng.below(1000) as i64);
        let mut parts = self.lengths();
        let fd = match self.kind {
            Kind::Udp if self.world.datagrams_unread > 20_000 => return None,
            Kind::Udp => self.socket_of_kind()?,
            _ => self.sender(length.max(parts.iter().sum()))?,
        };
        let mut flags = self.rng.pick(&[0, 0, 0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_DONTWAIT | MSG_NOSIGNAL]);
        if self.rng.chance(4) {
            flags |= MSG_MORE;
        }
        if self.rng.chance(6) {
            flags |= MSG_EOR;
        }
        match self.rng.below(9) {
            0 | 1 => by(self.who, "write", &[fd, length, seed]),
            2 => {
                parts.splice(0..0, [fd, seed]);
                by(self.who, "writev", &parts)
            }
            3 if self.rng.chance(30) => {
                by(self.who, "pwrite", &[fd, length, self.rng.pick(&[0, 3, -1]), seed])
            }
            4 => by(self.who, "sendto", &[fd, length, flags, seed, self.base_port]),
            5 => {
                parts.splice(0..0, [fd, flags, seed]);
                by(self.who, "sendmsg", &parts)
            }
            6 => {
                parts.splice(0..0, [fd, flags, seed]);
                by(self.who, "sendmmsg", &parts)
            }
            _ => by(self.who, "send", &[fd, length, flags, seed]),
        }
    }

    pub fn send_file(&mut self) -> Option<Call> {
        let file = self.mostly(|one| one.kind == Kind::File)?;
        let count = self.length();
        let out = self.sender(count)?;
        let offset = self.rng.pick(&[-1, -1, 0, 100, 8000, 9000]);
        by(self.who, "sendfile", &[out, file, offset, count])
    }

    pub fn splice(&mut self) -> Option<Call> {
        // SPLICE_F_NONBLOCK, with and without SPLICE_F_MORE.
        let flags = self.rng.pick(&[2, 2, 6]);
        let count = 1 + self.rng.below(600) as i64;
        let pipe = self.one(|one| one.kind == Kind::Pipe)?.fd;
        if self.rng.chance(50) {
            let to = self.sender(count)?;
            return by(self.who, "splice", &[pipe, to, count, flags]);
        }
        let from = self.one(|one: &Known| one.kind == Kind::Tcp)?;
        if from.blocks() && !from.is_ready_to_read() {
            return None;
        }
        by(self.who, "splice", &[from.fd, pipe, count, flags])
    }

    pub fn file_call(&mut self) -> Option<Call> {
        let fd = self.socket_of_kind()?;
        if self.known(fd).is_some_and(|one| one.kind == Kind::File) {
            return None;
        }
        match self.rng.below(7) {
            0 | 1 => by(self.who, "fstat", &[fd]),
            6 => by(self.who, "path", &[fd, self.rng.below(2) as i64]),
            2 => by(self.who, "lseek", &[fd, 0, self.rng.below(4) as i64]),
            3 => by(self.who, "fsync", &[fd]),
            4 => by(self.who, "ftruncate", &[fd, 0]),
            _ => by(self.who, "pread", &[fd, 10, 0]),
        }
    }
}
