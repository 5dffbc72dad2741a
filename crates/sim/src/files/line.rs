//! A connection: what it takes and gives, and how it ends.

use super::disk::some_size;
use crate::random::Random;
use std::collections::VecDeque;
use toe_abi::errno::Errno;

/// Why a call that is to wait waits no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    ByPeer,
    BySignal,
    TooLate,
}

#[derive(Debug)]
pub(super) struct Line {
    /// What went to the peer.
    pub(super) went: Vec<u8>,
    /// How much more it takes now.
    pub(super) room: usize,
    /// What has come and was not received; the peer sends so many more, and no more after that.
    pub(super) came: VecDeque<u8>,
    to_come: usize,
    sent: usize,
    /// Bytes go by a channel: it may end at any time.
    pub(super) is_direct: bool,
    /// Told once, and then no more.
    error: Option<Errno>,
    is_dead: bool,
    /// The error was told to a call.
    pub(super) was_reported: Option<Errno>,
    calm: bool,
}

impl Line {
    pub(super) fn new(random: &mut Random) -> Line {
        Line {
            went: Vec::new(),
            room: some_size(random, 400_000),
            came: VecDeque::new(),
            to_come: some_size(random, 300_000),
            sent: 0,
            is_direct: random.one_in(2),
            error: None,
            is_dead: false,
            was_reported: None,
            calm: random.one_in(3),
        }
    }

    /// All that the peer will ever have sent, from its `n`th byte on: what must come.
    pub(super) fn expected(n: usize) -> u8 {
        (n % 251) as u8
    }

    /// The stream goes on, one way or the other.
    pub(super) fn goes_on(&mut self, random: &mut Random) {
        self.room = (self.room + some_size(random, 300_000)).min(1 << 20);
        let came = some_size(random, 200_000).min(self.to_come);
        self.came.extend((self.sent..self.sent + came).map(Line::expected));
        (self.sent, self.to_come) = (self.sent + came, self.to_come - came);
        self.may_die(random);
    }

    /// The peer may reset it at any time.
    pub(super) fn may_die(&mut self, random: &mut Random) {
        if !self.calm && !self.is_dead && random.one_in(12) {
            (self.is_dead, self.error) = (true, Some(Errno::ECONNRESET));
        }
    }

    pub(super) fn waits(&mut self, random: &mut Random) -> Woken {
        if !self.calm && random.one_in(20) {
            return random.pick(&[Woken::BySignal, Woken::TooLate]);
        }
        self.goes_on(random);
        Woken::ByPeer
    }

    /// What a send or a receive is told before all else.
    pub(super) fn fault(&mut self) -> Option<Errno> {
        if !self.is_dead {
            return None;
        }
        if let Some(errno) = self.error.take() {
            self.was_reported = Some(errno);
            return Some(errno);
        }
        Some(Errno::EPIPE)
    }

    pub(super) fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// The next call is told.
    pub(super) fn tell_next(&mut self, errno: Errno) {
        (self.error, self.was_reported) = (Some(errno), None);
    }

    /// Nothing will come any more.
    pub(super) fn has_ended(&self) -> bool {
        self.came.is_empty() && (self.to_come == 0 || self.is_dead)
    }

    /// One receive: up to `max` bytes, all of them if it is to collect and may wait.
    pub(super) fn receive(
        &mut self,
        max: usize,
        collects: bool,
        waits: bool,
        random: &mut Random,
    ) -> Result<Vec<u8>, Errno> {
        let mut got = Vec::new();
        self.may_die(random);
        loop {
            let take = self.came.len().min(max - got.len());
            got.extend(self.came.drain(..take));
            if got.len() == max || !got.is_empty() && (!collects || !waits) {
                return Ok(got);
            }
            let refusal = match self.fault_of_receive() {
                Some(outcome) => outcome,
                None if !waits => Err(Errno::EAGAIN),
                None => match self.waits(random) {
                    Woken::ByPeer => continue,
                    Woken::BySignal => Err(Errno::EINTR),
                    Woken::TooLate => Err(Errno::EAGAIN),
                },
            };
            return match refusal {
                Err(errno) if got.is_empty() => Err(errno),
                Err(errno) => {
                    // Not told to this call, which has bytes.
                    if self.was_reported == Some(errno) {
                        self.tell_next(errno);
                    }
                    Ok(got)
                }
                Ok(()) => Ok(got),
            };
        }
    }

    fn fault_of_receive(&mut self) -> Option<Result<(), Errno>> {
        if !self.has_ended() {
            return None;
        }
        match self.error.is_some() {
            true => self.fault().map(Err),
            false => Some(Ok(())),
        }
    }

    /// Bytes that were received go back, before all others.
    pub(super) fn put_back(&mut self, bytes: &[u8]) {
        let behind = std::mem::replace(&mut self.came, bytes.to_vec().into());
        self.came.extend(behind);
    }
}
