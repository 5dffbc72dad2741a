//! What a seed does: some transfers, one after the other, of some files over some connections, by one call each or beside the program.

use super::disk::{Disk, LEN_MAX, some_size};
use super::line::Line;
use super::sink::Sink;
use super::{inward, outward};
use crate::random::{Draws, Random};
use crate::tally::{Tallies, Tally};
use toe_abi::errno::Errno;
use toe_transfer::{Asynchronous, Next, Stopped};

/// Deliberate mistakes, each of which some check must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// What a channel that ended did not take is not sent again.
    ForgetsTakenBack,
    /// Bytes go out that the file does not have any more.
    SendsStale,
    /// The last bytes go on waiting for more.
    KeepsHeld,
    /// The error that a call left to the next one is not told.
    SwallowsError,
    /// What a file did not take is lost.
    DropsHeld,
    /// Or comes after what came later.
    PutsBackLast,
    /// Of what the file took a byte less is counted.
    CountsLess,
}

impl Mistake {
    pub const ALL: [Mistake; 7] = [
        Mistake::ForgetsTakenBack,
        Mistake::SendsStale,
        Mistake::KeepsHeld,
        Mistake::SwallowsError,
        Mistake::DropsHeld,
        Mistake::PutsBackLast,
        Mistake::CountsLess,
    ];
}

/// Files and connections of a seed.
const TRANSFERS: u32 = 8;
/// Parts of a transfer beside the program, at most: it ends long before.
const PARTS_MAX: u32 = 20_000;

/// Runs one seed: what was exercised, or what was wrong.
pub fn run(seed: u64, mistake: Option<Mistake>) -> Result<Tallies, String> {
    let mut world = World { random: Random::new(seed, Draws::Files), mistake, tallies: Tallies::default() };
    for number in 0..TRANSFERS {
        let outcome = if world.random.one_in(2) { world.send() } else { world.receive() };
        outcome.map_err(|what| format!("transfer {number}: {what}"))?;
    }
    world.tallies.seeds = 1;
    Ok(world.tallies)
}

struct World {
    random: Random,
    mistake: Option<Mistake>,
    tallies: Tallies,
}

impl World {
    /// Some calls from one file to one connection.
    fn send(&mut self) -> Result<(), String> {
        let (mut disk, mut line) = (Disk::new(&mut self.random), Line::new(&mut self.random));
        for _ in 0..=self.random.below(3) {
            let position = u64::from(self.random.any_size(LEN_MAX as u32 / 4));
            let length = some_size(&mut self.random, 2 * LEN_MAX);
            if self.random.one_in(3) {
                self.asynchronous(
                    |world, done, most| {
                        let outcome =
                            world.send_once(&mut disk, &mut line, (position + done as u64, most), true)?;
                        line.goes_on(&mut world.random);
                        Ok(outcome.map_err(|errno| Stopped { done: 0, errno }))
                    },
                    length,
                )?;
            } else {
                let _ = self.send_once(&mut disk, &mut line, (position, length), false)?;
            }
        }
        Ok(())
    }

    fn send_once(
        &mut self,
        disk: &mut Disk,
        line: &mut Line,
        (position, length): (u64, usize),
        asynchronous: bool,
    ) -> Result<Result<usize, Errno>, String> {
        let (waits, more) = (!asynchronous && !self.random.one_in(3), !asynchronous && self.random.one_in(4));
        line.is_direct = line.is_direct || self.random.one_in(2);
        let mistake = self.mistake;
        let random = &mut self.random;
        let call = outward::Call {
            disk,
            line,
            random,
            mistake,
            position,
            length,
            waits,
            more,
            may_be_cancelled: asynchronous,
        };
        let outcome = call.run()?;
        self.tallies.add(Tally::FileCalls);
        self.tallies.add_many(Tally::FileBytes, outcome.unwrap_or(0) as u64);
        if outcome.is_err() {
            self.tallies.add(Tally::FileErrors);
        }
        Ok(outcome)
    }

    /// Some calls from one connection to one file.
    fn receive(&mut self) -> Result<(), String> {
        let (mut sink, mut line) = (Sink::new(&mut self.random), Line::new(&mut self.random));
        let mut before = 0;
        for _ in 0..=self.random.below(4) {
            let place =
                (sink.is_file() && !self.random.one_in(3)).then(|| u64::from(self.random.any_size(100_000)));
            let length = some_size(&mut self.random, LEN_MAX);
            if self.random.one_in(3) {
                self.asynchronous(
                    |world, done, most| {
                        let at = place.map(|at| at + done as u64);
                        let outcome =
                            world.receive_once(&mut sink, &mut line, (at, most), false, &mut before)?;
                        line.goes_on(&mut world.random);
                        Ok(outcome)
                    },
                    length,
                )?;
            } else {
                let waits = !self.random.one_in(3);
                let _ = self.receive_once(&mut sink, &mut line, (place, length), waits, &mut before)?;
            }
        }
        Ok(())
    }

    fn receive_once(
        &mut self,
        sink: &mut Sink,
        line: &mut Line,
        (at, length): (Option<u64>, usize),
        waits: bool,
        before: &mut usize,
    ) -> Result<Result<usize, Stopped>, String> {
        let (mistake, random) = (self.mistake, &mut self.random);
        let outcome =
            inward::Call { sink, line, random, mistake, at, length, waits, before: *before }.run()?;
        let (Ok(done) | Err(Stopped { done, .. })) = outcome;
        *before += done;
        self.tallies.add(Tally::FileCalls);
        self.tallies.add_many(Tally::FileBytes, done as u64);
        if outcome.is_err() {
            self.tallies.add(Tally::FileErrors);
        }
        Ok(outcome)
    }

    /// A transfer in parts that do not wait; what it comes to is what its parts came to.
    fn asynchronous(
        &mut self,
        mut part: impl FnMut(&mut World, usize, usize) -> Result<Result<usize, Stopped>, String>,
        length: usize,
    ) -> Result<(), String> {
        let mut call = Asynchronous::new(length, 1 + self.random.any_size(500_000) as usize);
        let (mut moved, mut cancelled, mut last) = (0, false, Ok(0));
        for _ in 0..PARTS_MAX {
            cancelled = cancelled || self.random.one_in(100);
            match call.step(cancelled) {
                Next::Move { done, most } => {
                    if done != moved || done + most > length {
                        return Err(format!("{moved} bytes have moved, and {most} are to go from {done} on"));
                    }
                    last = part(self, done, most)?;
                    let (Ok(bytes) | Err(Stopped { done: bytes, .. })) = last;
                    moved += bytes;
                    call.moved(last, cancelled);
                }
                Next::Wait => call.waited(),
                Next::End(outcome) => {
                    self.tallies.add(Tally::FilesBeside);
                    let (Ok(done) | Err(Stopped { done, .. })) = outcome;
                    let why = last.err().map(|stopped| stopped.errno);
                    let is_right = match outcome.err().map(|stopped| stopped.errno) {
                        None => moved == length || last == Ok(0),
                        Some(Errno::ECANCELED) => cancelled,
                        Some(errno) => why == Some(errno),
                    };
                    let is_right = is_right && done == moved;
                    return if is_right {
                        Ok(())
                    } else {
                        Err(format!(
                            "{moved} of {length} bytes have moved, last {last:?}, and it says {outcome:?}"
                        ))
                    };
                }
            }
        }
        Err("no end of a transfer beside the program".to_owned())
    }
}
