//! Waiting. All of a process's connections have one interrupt, that of its session; of several threads that wait one sleeps on it and tells
//! the others.
//!
//! A thread that waits reads the *round* first, then looks whether what it waits for is there, and sleeps until the round is another one. So an
//! interrupt that another thread has taken is not lost: whoever takes one begins a new round.

use crate::error::Error;
use crate::session::Session;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looks before the clock is looked at and others are let run: a few µs, in which a peer that is at it answers.
const LOOKS_AT_ONCE: u32 = 64;

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
    pub fn take_interrupt(&self, session: &Session) -> u64 {
        let mut inside = self.lock();
        if !inside.has_leader && session.drain_interrupt() {
            inside.round += 1;
            self.woken.notify_all();
        }
        inside.round
    }

    /// Sleeps until a round begins that is not `since`, or until the deadline. `arm` says that a wake-up is wanted, and looks once more:
    /// `true`: there is no reason to sleep. Spurious ends are possible.
    fn sleep(&self, session: &Session, since: u64, deadline: Deadline, arm: impl FnOnce() -> bool) {
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
            session.wait_for_interrupt(deadline.left());
        }
        session.drain_interrupt();
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

/// Waits until `look` gives something, for as long as the deadline and the engine live. `arm` is called before the last look before each
/// sleep.
pub fn until<T>(
    session: &Session,
    deadline: Deadline,
    arm: impl Fn(),
    mut look: impl FnMut() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    loop {
        let round = session.sleepers.round();
        if let Some(found) = look()? {
            return Ok(found);
        }
        if deadline.is_over() {
            return Err(Error::TimedOut);
        }
        if session.is_gone() {
            return Err(Error::NoEngine);
        }
        let mut found = None;
        session.sleepers.sleep(session, round, deadline, || {
            arm();
            let looked = look();
            let is_there = !matches!(looked, Ok(None));
            found = Some(looked);
            is_there
        });
        if let Some(Ok(Some(found))) = found {
            return Ok(found);
        }
        if let Some(Err(error)) = found {
            return Err(error);
        }
    }
}

/// What is known of the peer of who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// It may be at anything.
    Anywhere,
    /// A message is half on its way. A peer that slept takes longer to wake up than a look takes: if this side slept then in its turn, the two
    /// would go on to wake each other for every part of the message.
    InTheMiddle,
}

/// Looks again for a short time, before a wait sleeps: whether `is_so` became true. Beside others that use up their slices not for long, as
/// all waits of the host library ([`toe::wait::spin`]).
#[inline]
pub fn look(peer: Peer, mut is_so: impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS_AT_ONCE {
        if is_so() {
            return true;
        }
        std::hint::spin_loop();
    }
    look_on(peer, &mut is_so)
}

#[cold]
fn look_on(peer: Peer, is_so: &mut dyn FnMut() -> bool) -> bool {
    #[cfg(test)]
    if tests::is_blind() {
        return false;
    }
    let mut attempt = || Ok(is_so().then_some(()));
    let found = match peer {
        Peer::Anywhere => toe::wait::spin(&mut attempt),
        Peer::InTheMiddle => toe::wait::spin_beside_peer(&mut attempt),
    };
    matches!(found, Ok(Some(())))
}

#[cfg(test)]
pub(crate) mod tests {
    //! Threads that sleep at once.

    use std::cell::Cell;

    thread_local! {
        static BLIND: Cell<bool> = const { Cell::new(false) };
    }

    /// From here on this thread does not look, so that it sleeps.
    pub(crate) fn do_not_look() {
        BLIND.set(true);
    }

    pub(super) fn is_blind() -> bool {
        BLIND.get()
    }
}
