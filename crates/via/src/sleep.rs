//! Waiting. All of a process's connections have one interrupt, that of its session; of several threads that wait one sleeps on it and tells
//! the others.
//!
//! A thread that waits reads the *round* first, then looks whether what it waits for is there, and sleeps until the round is another one. So an
//! interrupt that another thread has taken is not lost: whoever takes one begins a new round.

use crate::error::Error;
use crate::session::Session;
pub use crate::sleepers::Deadline;

/// Looks before the clock is looked at and others are let run: a few µs, in which a peer that is at it answers.
const LOOKS_AT_ONCE: u32 = 64;

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
        Peer::InTheMiddle => toe::wait::spin_with_peer(&mut attempt),
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
