//! The planes put on threads, and what a datagram costs then that comes in and whose text goes out again: what `toe plan --verify` sets
//! beside what it predicts.
//!
//! Each thread has an engine of its own, which does its planes' part: run to completion both of them, batch by batch; apart the
//! receive plane on one thread fills batches that the transmit plane on another takes out of a bounded [`Queue`].

use crate::batches::{Batch, Queue};
use crate::harness::{Checksums, HEADERS, Harness, PORT, frame};
use crate::median::{SIZES, left, median};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::sync::Barrier;
use std::time::Instant;

/// Batches of one round, and rounds, of which the median counts.
const BATCHES: usize = 600;
const ROUNDS: usize = 9;

/// What a plane costs besides when another core empties the batches that it fills, or fills those that it empties.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct HandOver {
    pub put_ns: f64,
    pub take_ns: f64,
}

/// One size of packets: all of it nanoseconds of one datagram.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    pub size: usize,
    /// What a layout is predicted from: each plane by itself, measured in the same minute.
    pub receive_ns: f64,
    pub transmit_ns: f64,
    /// How many times as long a plane takes while the other core is at work, too.
    #[serde(rename = "beside")]
    pub slowdown: f64,
    pub hand_over: HandOver,
    /// Measured: both planes on one thread, on two threads each, one plane a thread.
    pub one_thread_ns: f64,
    pub two_threads_ns: Option<f64>,
    pub apart_ns: Option<f64>,
}

#[derive(Debug, Serialize)]
pub struct Report {
    /// Cores that this process may use.
    pub cores: usize,
    pub rows: Vec<Row>,
}

/// Measures for some seconds.
pub fn measure() -> Report {
    let cores = cores();
    Report { cores: cores.len(), rows: SIZES.into_iter().map(|size| row(size, &cores, BATCHES)).collect() }
}

fn cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None);
    (0..CpuSet::MAX_CPU).filter(|core| allowed.is_ok_and(|allowed| allowed.is_set(*core))).collect()
}

/// What planes cost besides when they are on threads of their own.
pub fn apart_costs(size: usize) -> (HandOver, f64) {
    let (run, cores) = (Run { size, batches: BATCHES / 4 }, cores());
    let [first, second, ..] = *cores else { return (HandOver::default(), 1.0) };
    let rounds: Vec<_> = (0..ROUNDS).map(|_| run.apart_costs([first, second])).collect();
    let of = |figure: fn(&(HandOver, f64)) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
    (HandOver { put_ns: of(|r| r.0.put_ns), take_ns: of(|r| r.0.take_ns) }, of(|r| r.1))
}

/// Each round has every figure, turn and turn about, so that a machine that becomes slower does so for all of them.
fn row(size: usize, cores: &[usize], batches: usize) -> Row {
    let run = Run { size, batches };
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        rounds.push(run.round(cores));
    }
    let of = |figure: fn(&Row) -> f64| median(&mut rounds.iter().map(figure).collect::<Vec<_>>());
    let two = cores.len() > 1;
    Row {
        size,
        receive_ns: of(|row| row.receive_ns),
        transmit_ns: of(|row| row.transmit_ns),
        slowdown: of(|row| row.slowdown),
        hand_over: HandOver {
            put_ns: of(|row| row.hand_over.put_ns),
            take_ns: of(|row| row.hand_over.take_ns),
        },
        one_thread_ns: of(|row| row.one_thread_ns),
        two_threads_ns: two.then(|| of(|row| row.two_threads_ns.unwrap_or_default())),
        apart_ns: two.then(|| of(|row| row.apart_ns.unwrap_or_default())),
    }
}

#[derive(Clone, Copy, Debug)]
struct Run {
    size: usize,
    batches: usize,
}

impl Run {
    fn round(self, cores: &[usize]) -> Row {
        let (receive_ns, transmit_ns) = (self.receive_alone(), self.transmit_alone());
        let one_thread_ns = self.to_completion();
        let mut row = Row {
            size: self.size,
            receive_ns,
            transmit_ns,
            slowdown: 1.0,
            hand_over: HandOver::default(),
            one_thread_ns,
            two_threads_ns: None,
            apart_ns: None,
        };
        if let [first, second, ..] = *cores {
            (row.hand_over, row.slowdown) = self.apart_costs([first, second]);
            let complete = || self.to_completion();
            let two = at_once([first, second], [&complete, &complete]);
            row.two_threads_ns = Some(1.0 / two.iter().map(|ns| 1.0 / ns).sum::<f64>());
            row.apart_ns = Some(self.apart([first, second]));
        }
        row
    }

    fn apart_costs(self, cores: [usize; 2]) -> (HandOver, f64) {
        let (receive_ns, transmit_ns) = (self.receive_alone(), self.transmit_alone());
        let both = at_once(cores, [&|| self.receive_alone(), &|| self.transmit_alone()]);
        let slowdown = both.iter().sum::<f64>() / (receive_ns + transmit_ns).max(f64::MIN_POSITIVE);
        let hand_over = HandOver {
            put_ns: left(self.receive_and_put(cores), receive_ns * slowdown),
            take_ns: left(self.take_and_transmit(cores), transmit_ns * slowdown),
        };
        (hand_over, slowdown)
    }

    fn frames(self) -> Vec<Vec<u8>> {
        vec![frame(self.size, PORT); Batch::MOST]
    }

    fn texts(self) -> Batch {
        let (mut texts, text) = (Batch::default(), vec![0x5a; self.size - HEADERS]);
        (0..Batch::MOST).for_each(|_| texts.push(&text));
        texts
    }

    /// Nanoseconds of one datagram of all batches.
    fn each(self, mut batch: impl FnMut(usize)) -> f64 {
        // The first ones meet cold memory.
        let cold = self.batches / 8;
        (0..cold).for_each(&mut batch);
        let before = Instant::now();
        (cold..cold + self.batches).for_each(&mut batch);
        before.elapsed().as_nanos() as f64 / (self.batches * Batch::MOST) as f64
    }

    fn receive_alone(self) -> f64 {
        let (mut harness, mut into, frames) =
            (Harness::new(Checksums::ByEngine), Batch::default(), self.frames());
        self.each(|_| harness.receive_plane(&frames, &mut into))
    }

    fn transmit_alone(self) -> f64 {
        let (mut harness, texts) = (Harness::new(Checksums::ByEngine), self.texts());
        self.each(|_| harness.transmit_plane(&texts))
    }

    fn to_completion(self) -> f64 {
        let (mut harness, mut memory, frames) =
            (Harness::new(Checksums::ByEngine), Batch::default(), self.frames());
        self.each(|_| {
            harness.receive_plane(&frames, &mut memory);
            harness.transmit_plane(&memory);
        })
    }

    fn apart(self, cores: [usize; 2]) -> f64 {
        let queue = Queue::default();
        let receive = || {
            let (mut harness, frames) = (Harness::new(Checksums::ByEngine), self.frames());
            let ns = self.each(|n| queue.fill(n, |batch| harness.receive_plane(&frames, batch)));
            queue.end();
            ns
        };
        let transmit = || {
            let mut harness = Harness::new(Checksums::ByEngine);
            self.each(|n| {
                queue.take(n, |batch| harness.transmit_plane(batch));
            })
        };
        let [filled, taken] = at_once(cores, [&receive, &transmit]);
        filled.max(taken)
    }
}

/// What it takes to hand batches over: one of the planes is at one end of a queue, and at the other end a core that does nothing but copy. Only the
/// plane's work counts, not its waits.
impl Run {
    fn receive_and_put(self, cores: [usize; 2]) -> f64 {
        let queue = Queue::default();
        let fill = || {
            let (mut harness, frames) = (Harness::new(Checksums::ByEngine), self.frames());
            let mut work = Work::default();
            self.each(|n| queue.fill(n, |batch| work.time(|| harness.receive_plane(&frames, batch))));
            queue.end();
            work.each_ns()
        };
        let take = || {
            let mut out = Batch::default();
            self.each(|n| {
                queue.take(n, |batch| copy(batch, &mut out));
            })
        };
        at_once(cores, [&fill, &take])[0]
    }

    fn take_and_transmit(self, cores: [usize; 2]) -> f64 {
        let queue = Queue::default();
        let fill = || {
            let texts = self.texts();
            let ns = self.each(|n| queue.fill(n, |batch| copy(&texts, batch)));
            queue.end();
            ns
        };
        let take = || {
            let (mut harness, mut work) = (Harness::new(Checksums::ByEngine), Work::default());
            self.each(|n| {
                queue.take(n, |batch| work.time(|| harness.transmit_plane(batch)));
            });
            work.each_ns()
        };
        at_once(cores, [&fill, &take])[1]
    }
}

fn copy(from: &Batch, to: &mut Batch) {
    to.clear();
    from.iter().for_each(|text| to.push(text));
}

/// Time of some batches, without the waits between them.
#[derive(Debug, Default)]
struct Work {
    nanos: u128,
    batches: usize,
}

impl Work {
    fn time(&mut self, work: impl FnOnce()) {
        let before = Instant::now();
        work();
        self.nanos += before.elapsed().as_nanos();
        self.batches += 1;
    }

    fn each_ns(&self) -> f64 {
        self.nanos as f64 / (self.batches * Batch::MOST).max(1) as f64
    }
}

/// Two measurements on cores of their own, begun together.
fn at_once(cores: [usize; 2], work: [&(dyn Fn() -> f64 + Sync); 2]) -> [f64; 2] {
    let start = Barrier::new(2);
    let on = |core, work: &(dyn Fn() -> f64 + Sync)| {
        let mut set = CpuSet::new();
        set.set(core);
        // A refusal leaves the choice to the kernel.
        let _ = sched_setaffinity(None, &set);
        start.wait();
        work()
    };
    std::thread::scope(|scope| {
        let second = scope.spawn(|| on(cores[1], work[1]));
        let first = scope.spawn(|| on(cores[0], work[0])).join();
        [first.unwrap_or_default(), second.join().unwrap_or_default()]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_that_can_be_run_is_measured() {
        let all = row(250, &[0, 1], 8);
        assert!(all.receive_ns > 0.0 && all.transmit_ns > 0.0 && all.one_thread_ns > 0.0);
        assert!(all.two_threads_ns.is_some_and(|ns| ns > 0.0) && all.apart_ns.is_some_and(|ns| ns > 0.0));
        assert!(all.hand_over.put_ns >= 0.0 && all.hand_over.take_ns >= 0.0);
        let one = row(64, &[0], 8);
        assert!(one.one_thread_ns > 0.0 && one.apart_ns.is_none() && one.two_threads_ns.is_none());
    }
}
