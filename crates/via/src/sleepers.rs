//! The threads of a process that wait: one of them sleeps on the interrupt and tells the others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When a wait is over. `None`: never.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    pub fn after(limit: Option<Duration>) -> Deadline {
        Deadline(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// The same, or so long from now on if that is earlier.
    pub fn at_most(self, limit: Duration) -> Deadline {
        Deadline::after(Some(self.left().map_or(limit, |left| left.min(limit))))
    }

    /// `None`: no limit.
    fn left(self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    pub fn is_over(self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

/// What one of them sleeps on.
pub trait InterruptLine {
    /// Sleeps until it comes, or so long. Spurious ends are possible.
    fn wait(&self, limit: Option<Duration>);

    /// Whether it had come. From here on it has to come again.
    fn drain(&self) -> bool;
}

#[derive(Debug, Default)]
struct Inside {
    /// A thread sleeps on the interrupt.
    has_leader: bool,
    round: u64,
}

/// Where the threads of a process sleep.
#[derive(Debug, Default)]
pub struct Sleepers {
    inside: Mutex<Inside>,
    woken: Condvar,
}

impl Sleepers {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be read before it is looked whether there is reason to sleep.
    pub fn round(&self) -> u64 {
        self.lock().round
    }

    /// Takes an interrupt that has come, if no thread sleeps on it. The round that begins then, or still is.
    pub fn take_interrupt(&self, interrupt: &impl InterruptLine) -> u64 {
        let mut inside = self.lock();
        if !inside.has_leader && interrupt.drain() {
            inside.round += 1;
            self.woken.notify_all();
        }
        inside.round
    }

    /// Sleeps until a round begins that is not `since`, or until the deadline. `arm` says that a wake-up is wanted, and looks once more:
    /// `true`: there is no reason to sleep. Spurious ends are possible.
    pub fn sleep(
        &self,
        interrupt: &impl InterruptLine,
        since: u64,
        deadline: Deadline,
        arm: impl FnOnce() -> bool,
    ) {
        let mut inside = self.lock();
        if inside.round != since {
            return;
        }
        if inside.has_leader {
            if !arm() {
                self.follow(inside, since, deadline);
            }
            return;
        }
        inside.has_leader = true;
        drop(inside);
        if !arm() {
            interrupt.wait(deadline.left());
        }
        interrupt.drain();
        let mut inside = self.lock();
        inside.has_leader = false;
        inside.round += 1;
        drop(inside);
        self.woken.notify_all();
    }

    fn follow(&self, mut inside: MutexGuard<'_, Inside>, since: u64, deadline: Deadline) {
        while inside.round == since {
            let Some(left) = deadline.left() else {
                inside = self.woken.wait(inside).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if left.is_zero() {
                return;
            }
            let waited = self.woken.wait_timeout(inside, left).unwrap_or_else(PoisonError::into_inner);
            inside = waited.0;
        }
    }
}
