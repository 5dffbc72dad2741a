//! Streams that leave their channel, and those that are given back to the engine.
//!
//! A sender counts bytes before it has stored their entry. So whoever ends a direction may know of bytes that are not
//! here yet: its peer stores them within the time of a copy, or was stopped or killed there and never does. Nobody waits
//! for that with a lock in hand. A stream that is still owed bytes is noted in its channel ([`Leaving`]), every drain
//! looks again, and a call that must have them waits between two drains ([`crate::queue::QueueSet::wait_until_left`]). A peer that is
//! late has broken the contract: all connections over the channel are reset at once, so that a call waits once however
//! many there are.
//!
//! A stream that is given back may also lack bytes that come before the channel's and that the engine still brings, if its
//! peer has told the truth. It is noted in [`crate::queue::Queue`] ([`Yielding`]), every drain tries again, and who must have it done waits
//! in the same way. One that waits too long is reset.
//!
//! A user whose session has made anybody wait so long is remembered ([`Distrusted`]): he would only need a new session to do it
//! again.
//!
//! Part of [`crate::queue`], behind its lock.

use crate::send_memory::SEND_LIMIT_MAX;
use crate::slots::SlotId;
use crate::sys;
use std::collections::VecDeque;
use std::time::Duration;
use toe_base::Cred;

/// How long a sender that has counted bytes may take to store their entry.
pub const LAST_ENTRY_WITHIN: Duration = Duration::from_secs(1);

/// How long the engine may take to bring what comes before bytes of a channel, and to take a stream back: many times what it
/// needs on a machine with more to do than cores, and no program waits for ever for one that has stopped.
pub(crate) const GIVEN_BACK_WITHIN: Duration = Duration::from_secs(2);
/// How often a thread that waits looks before it sleeps between two looks, and for how long then.
pub(crate) const LOOKS_AT_ONCE: u32 = 32;
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_micros(50);

/// How long no connection uses a channel with a user who was distrusted, and how many such users are known by name.
const DISTRUSTED_FOR: Duration = Duration::from_secs(600);
const DISTRUSTED_MAX: usize = 64;

/// Bytes that a stream keeps itself so that the engine can bring more.
pub(crate) const VACATED_MAX: usize = SEND_LIMIT_MAX as usize;

/// A stream that is to be given back, and cannot be yet.
#[derive(Clone, Copy, Debug)]
pub struct Yielding {
    pub(crate) slot_id: SlotId,
    /// How long the engine may take to bring what comes first. `None`: nothing does; there is no memory for what is unread, and it
    /// stays here until it is read or there is some.
    pub(crate) until: Option<Duration>,
}

/// What becomes of giving a stream back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attempt {
    /// Nothing is left to do.
    Done,
    /// The engine has to bring or to say something first.
    Early,
    /// There is no memory for what is unread: of the session's to send from, or of the engine's.
    NoMemory,
}

/// Users whose sessions have not sent what they said was on its way. Connections with them go through the engine, which waits for
/// nobody; a machine that was stopped for that long makes one of somebody honest, so that it is not for ever.
#[derive(Debug, Default)]
pub(crate) struct Distrusted {
    until: VecDeque<(Cred, Duration)>,
}

impl Distrusted {
    pub fn contains(&self, user: Cred) -> bool {
        !self.until.is_empty() && {
            let now = sys::now();
            self.until.iter().any(|(known, until)| *known == user && *until > now)
        }
    }

    pub(crate) fn add(&mut self, user: Cred) {
        self.until.retain(|(known, _)| *known != user);
        if self.until.len() >= DISTRUSTED_MAX {
            self.until.pop_front();
        }
        self.until.push_back((user, sys::now() + DISTRUSTED_FOR));
    }
}

/// The streams of one channel that are owed bytes.
#[derive(Debug, Default)]
pub struct Leaving {
    pub(crate) streams: Vec<SlotId>,
    /// When the first of them has waited long enough, on the clock of [`sys::now`].
    pub(crate) until: Duration,
    /// The peer was late, and nothing has come from it since: it is given no more time.
    pub(crate) is_late: bool,
}

impl Leaving {
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    pub(crate) fn add(&mut self, slot_id: SlotId) {
        if self.streams.is_empty() {
            self.until = sys::now() + if self.is_late { Duration::ZERO } else { LAST_ENTRY_WITHIN };
        }
        if !self.streams.contains(&slot_id) {
            self.streams.push(slot_id);
        }
    }

    /// An entry has come.
    pub fn note_life(&mut self) {
        self.is_late = false;
    }
}
