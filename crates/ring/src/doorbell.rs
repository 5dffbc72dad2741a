//! Host wakes engine: the `doorbell_wanted` word of the region's header, and an eventfd.
//!
//! The two sides run the same dance from opposite ends:
//!
//! | host | engine |
//! |---|---|
//! | 1. store entries (release) | 1. store `doorbell_wanted` ≠ 0 |
//! | 2. fence, sequentially consistent | 2. fence, sequentially consistent |
//! | 3. load `doorbell_wanted`; ≠ 0: write the eventfd | 3. look at every ring again; nothing there: sleep |
//! | 4. store 0 if it is still what it was | |
//!
//! Step 4 spares the next entries the system call while the engine, woken, waits for its core. The word is another one for each
//! sleep (its upper bits count), so that a host which was held up between its steps 3 and 4 does not undo the announcement of the next.
//!
//! Without the fences both step 3s may read the old value, because a store may still wait in its own core's store
//! buffer when the load that follows it has already been made: the host would see "awake", the engine "empty", and
//! the entry would lie there until something else happened. The two fences have one order; whichever side is second
//! sees the other's step 1. Release and acquire alone do not give that.
//!
//! Used by the host library ([`HostDoorbell`]) and the daemon ([`EngineDoorbell`], [`EngineSleep`]).

use crate::region::Region;
use crate::sync::{Ordering, Words, fence};
use core::cell::Cell;
use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, IoSliceMut, ReadWriteFlags, Result};
use toe_abi::region::{DOORBELL_FOR_ENTRIES, DOORBELL_FOR_HEAD, DOORBELL_SLEEP_SHIFT, DOORBELL_WANTED};

/// An eventfd: by which a sleeper is woken.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A new one, non-blocking and closed by exec.
    pub fn new() -> Result<EventFd> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(EventFd)
    }

    /// Wakes whoever sleeps on it, now or next.
    pub fn signal(&self) -> Result<()> {
        match rustix::io::write(&self.0, &1u64.to_ne_bytes()) {
            // The count is at its limit, so it is readable: whoever sleeps is awake already.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Makes it quiet; `true` when it had been signalled. Never blocks, whatever the other holder has done to the
    /// descriptor: flags such as O_NONBLOCK belong to both, so each call says for itself that it does not wait.
    pub fn drain(&self) -> Result<bool> {
        let mut count = [0; 8];
        let mut slices = [IoSliceMut::new(&mut count)];
        // Offset -1 means "no offset": an eventfd has none.
        match rustix::io::preadv2(&self.0, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl From<OwnedFd> for EventFd {
    fn from(fd: OwnedFd) -> EventFd {
        EventFd(fd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Steps 2 to 4 of the host: wakes the engine by `signal` if it sleeps and wants to hear of what was stored just before. `true` when it
/// was.
pub(crate) fn ring<M: Words, E>(
    memory: &M,
    what: u32,
    signal: impl FnOnce() -> core::result::Result<(), E>,
) -> core::result::Result<bool, E> {
    fence(Ordering::SeqCst);
    let word = memory.load_u32(DOORBELL_WANTED, Ordering::Relaxed);
    if word & what == 0 {
        return Ok(false);
    }
    signal()?;
    // Relaxed: it says nothing of anything else. Of the engine's next sleep the word is another one.
    memory.replace_u32(DOORBELL_WANTED, word, 0, Ordering::Relaxed);
    Ok(true)
}

/// The host's side; one for a session, shared by its threads.
#[derive(Debug)]
pub struct HostDoorbell<M = Region> {
    memory: M,
    eventfd: EventFd,
}

impl<M: Words> HostDoorbell<M> {
    pub fn new(memory: M, eventfd: OwnedFd) -> HostDoorbell<M> {
        HostDoorbell { memory, eventfd: EventFd(eventfd) }
    }

    /// After publishing entries, once a batch: wakes the engine if it sleeps. `true` when it was rung.
    pub fn ring_if_wanted(&self) -> Result<bool> {
        self.ring_noting(|| ())
    }

    /// The same; `note` is called before the engine is woken.
    pub fn ring_noting(&self, note: impl FnOnce()) -> Result<bool> {
        ring(&self.memory, DOORBELL_FOR_ENTRIES, || {
            note();
            self.eventfd.signal()
        })
    }

    /// After publishing the head of `cpl`, once a batch: wakes the engine if it sleeps *and* waits for room there.
    pub fn ring_for_head(&self) -> Result<bool> {
        ring(&self.memory, DOORBELL_FOR_HEAD, || self.eventfd.signal())
    }
}

impl<M> AsFd for HostDoorbell<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// The engine's side; one for each session.
///
/// It is never made quiet: to read it would wake all who wait until it can be written to, and its host may have any number of those.
/// Whoever sleeps on it is woken by each ring (edge-triggered), not while it has been rung.
#[derive(Debug)]
pub struct EngineDoorbell<M = Region> {
    memory: M,
    eventfd: EventFd,
    sleeps: Cell<u32>,
}

impl<M: Words> EngineDoorbell<M> {
    pub fn new(memory: M, eventfd: EventFd) -> EngineDoorbell<M> {
        EngineDoorbell { memory, eventfd, sleeps: Cell::new(0) }
    }
}

impl<M> AsFd for EngineDoorbell<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// What `doorbell_wanted` says in the sleep of this number.
pub(crate) const fn word_of(for_head: bool, sleep: u32) -> u32 {
    let head = if for_head { DOORBELL_FOR_HEAD } else { 0 };
    DOORBELL_FOR_ENTRIES | head | sleep << DOORBELL_SLEEP_SHIFT
}

/// An announced sleep of the engine. It may sleep only after it has looked at every ring again.
#[derive(Debug)]
#[must_use = "look at every ring again before sleeping, and call `end` afterwards"]
pub struct EngineSleep(());

impl EngineSleep {
    /// Steps 1 and 2 for all sessions. `for_head` is given with a session for which completions wait until its host
    /// has made room.
    pub fn announce<'a, M: Words + 'a>(
        sessions: impl IntoIterator<Item = (&'a EngineDoorbell<M>, bool)>,
    ) -> EngineSleep {
        EngineSleep::announce_in(sessions.into_iter().map(|(doorbell, for_head)| {
            let sleep = doorbell.sleeps.get().wrapping_add(1);
            doorbell.sleeps.set(sleep);
            (&doorbell.memory, word_of(for_head, sleep))
        }))
    }

    pub(crate) fn announce_in<'a, M: Words + 'a>(
        memories: impl Iterator<Item = (&'a M, u32)>,
    ) -> EngineSleep {
        for (memory, word) in memories {
            // Exchanged, not stored: then a host's step 4 comes before it in the word's order, or fails.
            memory.swap_u32(DOORBELL_WANTED, word, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        EngineSleep(())
    }

    /// The engine is awake again (or did not sleep after all): hosts need not ring. One that rings all the same just
    /// before it notices is harmless.
    pub fn end<'a, M: Words + 'a>(self, sessions: impl IntoIterator<Item = &'a EngineDoorbell<M>>) {
        self.end_in(sessions.into_iter().map(|doorbell| &doorbell.memory));
    }

    pub(crate) fn end_in<'a, M: Words + 'a>(self, memories: impl Iterator<Item = &'a M>) {
        for memory in memories {
            memory.swap_u32(DOORBELL_WANTED, 0, Ordering::Relaxed);
        }
    }
}
