//! One call from a file to a connection, as the host library makes it.

use super::disk::Disk;
use super::line::{Line, Woken};
use super::world::Mistake;
use crate::random::Random;
use toe_abi::errno::Errno;
use toe_transfer::{Outward, step};

/// Longer than any call may take, in steps and looks.
const STEPS_MAX: u32 = 50_000;

pub(super) struct Call<'a> {
    pub(super) disk: &'a mut Disk,
    pub(super) line: &'a mut Line,
    pub(super) random: &'a mut Random,
    pub(super) mistake: Option<Mistake>,
    pub(super) position: u64,
    pub(super) length: usize,
    pub(super) waits: bool,
    pub(super) more: bool,
    /// Of a transfer beside the program, which is cancelled now and then.
    pub(super) may_be_cancelled: bool,
}

/// What happened in it.
#[derive(Debug, Default)]
struct Seen {
    readahead: Vec<u8>,
    steps: u32,
    is_cancelled: bool,
    /// It was not to wait, a signal came, the time was over, or the connection is gone.
    was_stopped: bool,
    /// The last bytes went with the word that more follow.
    more_follows: bool,
    was_let_go: bool,
}

impl Call<'_> {
    /// Makes the call; what it returned, if all is as it must be.
    pub(super) fn run(mut self) -> Result<Result<usize, Errno>, String> {
        self.disk.begin();
        self.line.was_reported = None;
        let (before, had_room) = (self.line.went.len(), self.line.room > 0);
        let readahead_max = 100 + self.random.any_size(128 << 10) as usize;
        let mut call = Outward::new(self.position, self.length, readahead_max, had_room, self.more);
        let mut seen = Seen::default();
        let outcome = loop {
            seen.steps += 1;
            if seen.steps > STEPS_MAX {
                return Err(format!("no end: {call:?}"));
            }
            self.disk.change(self.random);
            match call.step() {
                step::Outward::Look { .. } => call.looked(Ok(self.disk.look())),
                step::Outward::Readahead { position, most } => {
                    self.check_place(&call, position, most)?;
                    self.refill(&mut call, &mut seen);
                }
                step::Outward::Send => {
                    let outcome = self.send(&mut call, &mut seen)?;
                    call.went(outcome);
                }
                step::Outward::LetGo => seen.was_let_go = self.mistake != Some(Mistake::KeepsHeld),
                step::Outward::Ask { position } => {
                    let first = match self.disk.read(position, 1, self.random) {
                        Ok(bytes) if bytes.is_empty() => Some(Ok(0)),
                        Ok(_) => None,
                        Err(errno) => Some(Err(errno)),
                    };
                    call.asked(first);
                }
                step::Outward::TellNext(errno) if self.mistake != Some(Mistake::SwallowsError) => {
                    self.line.tell_next(errno)
                }
                step::Outward::TellNext(_) => {}
                step::Outward::End(outcome) => break outcome,
            }
        };
        self.check(before, outcome, &seen)?;
        Ok(outcome)
    }

    fn check_place(&self, call: &Outward, position: u64, most: usize) -> Result<(), String> {
        if position != call.position() || most == 0 {
            return Err(format!("{most} bytes are to be read from {position} on: {call:?}"));
        }
        Ok(())
    }

    fn refill(&mut self, call: &mut Outward, seen: &mut Seen) {
        if !call.waits() {
            return;
        }
        if self.may_be_cancelled && self.random.one_in(30) {
            seen.is_cancelled = true;
        }
        if seen.is_cancelled {
            return call.cancel();
        }
        let outcome = self.disk.read(call.position(), call.wanted_readahead(), self.random);
        if !call.by_blocks() && outcome == Err(Errno::EINVAL) {
            call.goes_by_blocks();
        }
        call.on_readahead(outcome.map(|bytes| {
            seen.readahead = bytes;
            seen.readahead.len()
        }));
    }

    /// Puts up to `max` bytes at the end of what went.
    fn put(&mut self, call: &mut Outward, seen: &mut Seen, max: usize) -> usize {
        let readahead = call.readahead().min(max);
        if readahead > 0 {
            let from = seen.readahead.len() - call.readahead();
            self.line.went.extend_from_slice(&seen.readahead[from..from + readahead]);
            call.put_readahead(readahead);
            return readahead;
        }
        if seen.is_cancelled {
            call.cancel();
            return 0;
        }
        let max = max.min(call.left_in_all());
        let mut outcome = self.disk.read_at_hand(call.position(), max, self.random);
        if self.mistake == Some(Mistake::SendsStale) && outcome.as_ref().is_ok_and(Vec::is_empty) {
            // As a page by reference would: it still has what the file has not.
            outcome = Ok(vec![0; max.min(100)]);
        }
        let bytes = outcome.as_ref().cloned().unwrap_or_default();
        let put = call.read_at_hand(outcome.map(|bytes| bytes.len()));
        self.line.went.extend_from_slice(&bytes[..put]);
        put
    }

    /// As a stream's send does: what there is room for, again and again if it may wait.
    fn send(&mut self, call: &mut Outward, seen: &mut Seen) -> Result<Result<usize, Errno>, String> {
        let mut sent = 0;
        self.line.may_die(self.random);
        loop {
            seen.steps += 1;
            if seen.steps > STEPS_MAX {
                return Err(format!("no end of sending: {call:?}"));
            }
            self.disk.change(self.random);
            self.refill(call, seen);
            if self.line.is_dead() {
                seen.was_stopped = true;
                // Some went before: the error is for the next call.
                return Ok(if sent > 0 { Ok(sent) } else { Err(self.line.fault().unwrap_or(Errno::EPIPE)) });
            }
            sent += self.take(call, seen);
            if call.is_done() {
                return Ok(Ok(sent));
            }
            if call.waits() {
                continue;
            }
            let errno = if self.waits {
                match self.line.waits(self.random) {
                    Woken::ByPeer => continue,
                    Woken::BySignal => Errno::EINTR,
                    Woken::TooLate => Errno::EAGAIN,
                }
            } else {
                Errno::EAGAIN
            };
            seen.was_stopped = true;
            return Ok(if sent > 0 { Ok(sent) } else { Err(errno) });
        }
    }

    fn take(&mut self, call: &mut Outward, seen: &mut Seen) -> usize {
        let mut sent = 0;
        while call.left() > 0 && self.line.room > 0 {
            let most = 1 + self.random.any_size(300_000) as usize;
            let piece = call.left().min(self.line.room).min(most.max(self.random.pick(&[1, 1 << 16])));
            let (before, is_certain) = (self.line.went.len(), call.readahead() >= piece);
            let put = if is_certain { piece } else { self.put(call, seen, piece) };
            if put == 0 {
                break;
            }
            if self.line.is_direct && self.random.one_in(2) {
                // The channel has ended: the rest goes by the engine.
                self.line.is_direct = false;
                self.line.went.truncate(before);
                if !is_certain && self.mistake != Some(Mistake::ForgetsTakenBack) {
                    call.take_back(put);
                }
                break;
            }
            if is_certain {
                self.put(call, seen, piece);
            }
            self.line.room -= put;
            sent += put;
            seen.more_follows = call.left() > 0 || self.more;
        }
        sent
    }

    fn check(&self, before: usize, outcome: Result<usize, Errno>, seen: &Seen) -> Result<(), String> {
        let went = &self.line.went[before..];
        let said = outcome.unwrap_or(0);
        if said != went.len() {
            return Err(format!("{} bytes went, and the call says {outcome:?}", went.len()));
        }
        let from = self.position as usize;
        if let Some(n) = (0..went.len()).find(|n| !self.disk.had(from + n, went[*n])) {
            return Err(format!("the byte at {} was never in the file", from + n));
        }
        if self.line.was_reported.is_some_and(|errno| outcome != Err(errno)) {
            return Err(format!("the connection's error was told to a call that says {outcome:?}"));
        }
        let is_free = !seen.was_stopped && !seen.is_cancelled;
        let there = self.disk.len.saturating_sub(from).min(self.length);
        if is_free && !self.disk.was_disturbed && outcome != Ok(there) {
            return Err(format!("{there} bytes were there, and the call says {outcome:?}"));
        }
        if is_free && said > 0 && said < self.length && !self.more && seen.more_follows && !seen.was_let_go {
            return Err("the last bytes wait for more that does not come".to_owned());
        }
        Ok(())
    }
}
