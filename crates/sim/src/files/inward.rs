//! One call from a connection to a file, as the host library makes it.

use super::line::Line;
use super::sink::{Kind, Sink, UNTOUCHED};
use super::world::Mistake;
use crate::random::Random;
use toe_abi::errno::Errno;
use toe_transfer::{Inward, Stopped, Straight, step};

/// Longer than any call may take.
const STEPS_MAX: u32 = 50_000;

pub(super) struct Call<'a> {
    pub(super) sink: &'a mut Sink,
    pub(super) line: &'a mut Line,
    pub(super) random: &'a mut Random,
    pub(super) mistake: Option<Mistake>,
    pub(super) at: Option<u64>,
    pub(super) length: usize,
    pub(super) waits: bool,
    /// So many bytes of the stream are in files by now.
    pub(super) before: usize,
}

impl Call<'_> {
    /// Makes the call; what it returned, if all is as it must be.
    pub(super) fn run(mut self) -> Result<Result<usize, Stopped>, String> {
        self.line.was_reported = None;
        let chunk = 100 + self.random.any_size(256 << 10) as usize;
        let (began, old) = (self.at.map_or(self.sink.stands, |at| at as usize), self.sink.bytes.clone());
        let call = Inward::new(self.at, self.length, chunk, self.waits);
        let mut call = if self.sink.kind == Kind::Straight { call.straight() } else { call };
        let (mut buffer, mut steps) = (Vec::new(), 0);
        let outcome = loop {
            steps += 1;
            if steps > STEPS_MAX {
                return Err(format!("no end: {call:?}"));
            }
            match call.step() {
                step::Inward::Straight { at, most } => {
                    let how = self.straight(at, most);
                    call.went_straight(how);
                }
                step::Inward::Receive { most } if most > chunk => {
                    return Err(format!("{most} bytes for a buffer of {chunk}"));
                }
                step::Inward::Receive { most } => {
                    let got = self.line.receive(most, call.collects(), self.waits, self.random);
                    call.received(got.map(|bytes| {
                        buffer = bytes;
                        buffer.len()
                    }));
                }
                step::Inward::Write { at, held } => {
                    let written = self.sink.write(at, &buffer[held], call.is_past(), self.random);
                    let is_file = self.sink.is_file();
                    call.written(self.counted(written), || is_file);
                }
                step::Inward::PassBy { at } => {
                    let there = self.sink.kind == Kind::Blocks;
                    call.passed_by(there.then(|| at.unwrap_or(self.sink.stands as u64)));
                }
                step::Inward::PutBack { held } => match self.mistake {
                    Some(Mistake::DropsHeld) => {}
                    Some(Mistake::PutsBackLast) => self.line.came.extend(&buffer[held]),
                    _ => self.line.put_back(&buffer[held]),
                },
                step::Inward::Stand { at } => self.sink.stands = at as usize,
                step::Inward::TellNext(errno) if self.mistake != Some(Mistake::SwallowsError) => {
                    self.line.tell_next(errno)
                }
                step::Inward::TellNext(_) => {}
                step::Inward::End(outcome) => break outcome,
            }
        };
        self.check(began, &old, outcome)?;
        Ok(outcome)
    }

    fn counted(&self, written: Result<usize, Errno>) -> Result<usize, Errno> {
        match written {
            Ok(bytes @ 2..) if self.mistake == Some(Mistake::CountsLess) => Ok(bytes - 1),
            written => written,
        }
    }

    /// As a stream's receive into a pipe does.
    fn straight(&mut self, at: Option<u64>, most: usize) -> Straight {
        let (mut taken, mut file) = (0, None);
        let said = loop {
            if taken == most {
                break Ok(taken);
            }
            let next = at.map(|at| at as usize + taken);
            let part = (most - taken).min(1 + self.random.any_size(256 << 10) as usize);
            let bytes = match self.line.receive(part, false, self.waits, self.random) {
                Ok(bytes) if bytes.is_empty() => break Ok(taken),
                Ok(bytes) => bytes,
                Err(errno) if taken == 0 => break Err(errno),
                Err(errno) => {
                    if self.line.was_reported == Some(errno) {
                        self.line.tell_next(errno);
                    }
                    break Ok(taken);
                }
            };
            match self.sink.take(next, &bytes) {
                Ok(put) => {
                    taken += put;
                    self.line.put_back(&bytes[put..]);
                }
                Err(why) => {
                    self.line.put_back(&bytes);
                    file = Some(why);
                    break Ok(taken);
                }
            }
        };
        Straight { said, taken, file }
    }

    fn check(&self, began: usize, old: &[u8], outcome: Result<usize, Stopped>) -> Result<(), String> {
        let (Ok(done) | Err(Stopped { done, .. })) = outcome;
        if done > self.length {
            return Err(format!("{done} bytes of {} that were wanted", self.length));
        }
        self.check_file(began, done, old)?;
        let rest = self.before + done;
        let expected = (rest..).map(Line::expected);
        if let Some(n) = self.line.came.iter().zip(expected).position(|(came, expected)| *came != expected) {
            return Err(format!("after {done} bytes the stream goes on with another one, {n} bytes later"));
        }
        let told = self.line.was_reported;
        if told.is_some_and(|told| outcome.is_ok() || outcome.is_err_and(|stopped| stopped.errno != told)) {
            return Err(format!("the connection's error was told to a call that says {outcome:?}"));
        }
        if outcome == Ok(0) && self.length > 0 && !self.line.has_ended() && self.sink.is_file() {
            return Err("the call says that the stream has ended".to_owned());
        }
        Ok(())
    }

    /// The stream's bytes, so many, are in the file from where the call began, and nothing else has changed.
    fn check_file(&self, began: usize, done: usize, old: &[u8]) -> Result<(), String> {
        let (new, ended) = (&self.sink.bytes, began + done);
        let part = |of: &[u8], from: usize, to: usize| of[from.min(of.len())..to.min(of.len())].to_vec();
        let expected: Vec<u8> = (self.before..self.before + done).map(Line::expected).collect();
        if part(new, began, ended) != expected {
            return Err(format!("the {done} bytes from {began} on are not those of the stream"));
        }
        // What no call has written is a hole.
        let holes = part(new, old.len(), began.max(old.len()));
        let are_holes = holes.iter().all(|byte| *byte == UNTOUCHED);
        let len_max = if done > 0 { ended.max(old.len()) } else { old.len() };
        let same_before = part(new, 0, began.min(old.len())) == part(old, 0, began);
        let same_behind = part(new, ended, old.len().max(ended)) == part(old, ended, old.len().max(ended));
        if !same_before || !same_behind || !are_holes || new.len() > len_max {
            return Err(format!("{done} bytes from {began} on are said, and others were written"));
        }
        if self.at.is_none() && self.sink.stands != ended {
            return Err(format!("the file stands at {}, and not at {ended}", self.sink.stands));
        }
        Ok(())
    }
}
