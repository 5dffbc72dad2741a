//! Which process has a socket, and which others may hold its descriptor, as far as this one knows.
//!
//! Together with what the engine counts ([`toe_abi::entry::Command::CloseCopy`]) it says when a connection is in this process alone: of
//! copies that the engine is not told of this process must know, or know that it cannot.
//!
//! A fork changes no word of it: each says of which process it speaks, and what it means to that one's child is found when that looks. So a
//! child with ten thousand sockets writes to none of them.

use crate::fork::Process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who has copies, but for children that this process has made since it has the descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Elsewhere {
    Nobody = 0,
    /// The parent, which has told the engine of each child that it has made with it.
    Counted = 1,
    /// Somebody of whom the engine was not told.
    Uncounted = 2,
}

/// What is known of one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    /// Of which process ([`Process::image`]).
    image: u32,
    /// [`Process::children`] when that process got the descriptor.
    children: u32,
    elsewhere: Elsewhere,
    /// Another session has the flow or listener: this one must show the anchor before it can use it.
    is_moved: bool,
}

const IMAGE_BITS: u32 = 24;
const IS_MOVED: u64 = 4;

impl Known {
    fn to_bits(self) -> u64 {
        let moved = if self.is_moved { IS_MOVED } else { 0 };
        u64::from(self.children) << 32 | u64::from(self.image) << 8 | moved | self.elsewhere as u64
    }

    fn from_bits(bits: u64) -> Known {
        let elsewhere = match bits & 3 {
            0 => Elsewhere::Nobody,
            1 => Elsewhere::Counted,
            _ => Elsewhere::Uncounted,
        };
        let image = (bits >> 8) as u32 & ((1 << IMAGE_BITS) - 1);
        Known { image, children: (bits >> 32) as u32, elsewhere, is_moved: bits & IS_MOVED != 0 }
    }

    fn went_to_child(&self, now: Process) -> bool {
        self.children != now.children
    }

    /// The same in process `now`, which may be a child of that one, or a child's. A socket `in_session` has a flow or listener there.
    fn seen_by(self, now: Process, in_session: bool) -> Known {
        if self.image == now.image {
            return self;
        }
        // A parent that had it has told the engine of its child; a grandparent has not.
        let was_parents = in_session && !self.is_moved && self.image == parent_of(now.image);
        let is_counted = was_parents && self.elsewhere != Elsewhere::Uncounted;
        Known {
            image: now.image,
            children: now.inherited,
            elsewhere: if is_counted { Elsewhere::Counted } else { Elsewhere::Uncounted },
            is_moved: self.is_moved || in_session,
        }
    }
}

fn parent_of(image: u32) -> u32 {
    image.wrapping_sub(1) & ((1 << IMAGE_BITS) - 1)
}

/// The number of the process image after `image`: the child's.
pub(crate) fn child_of(image: u32) -> u32 {
    (image + 1) & ((1 << IMAGE_BITS) - 1)
}

/// What is known, in one word. All calls say who asks, and whether the socket has a flow or listener in a session.
#[derive(Debug)]
pub(crate) struct Copies(AtomicU64);

impl Copies {
    pub const fn none() -> Copies {
        Copies(AtomicU64::new(0))
    }

    fn known(&self, now: Process, in_session: bool) -> Known {
        Known::from_bits(self.0.load(Ordering::Acquire)).seen_by(now, in_session)
    }

    /// What was known before.
    fn change(&self, now: Process, in_session: bool, change: impl Fn(&mut Known)) -> Known {
        let changed = |bits: u64| {
            let mut known = Known::from_bits(bits).seen_by(now, in_session);
            change(&mut known);
            Some(known.to_bits())
        };
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        Known::from_bits(before.unwrap_or_default()).seen_by(now, in_session)
    }

    /// A socket of this process alone begins.
    pub fn begin(&self, now: Process) {
        let Process { image, children, .. } = now;
        let known = Known { image, children, elsewhere: Elsewhere::Nobody, is_moved: false };
        self.0.store(known.to_bits(), Ordering::Release);
    }

    /// It comes to have a flow or listener, and did not come with one from this process's parent.
    pub fn begin_session(&self, now: Process, in_session: bool) {
        if Known::from_bits(self.0.load(Ordering::Acquire)).image != now.image {
            self.set_moved(now, in_session, false);
        }
    }

    /// Whether another session has it, as far as is known.
    #[inline]
    pub fn is_moved(&self, now: Process, in_session: bool) -> bool {
        self.known(now, in_session).is_moved
    }

    pub fn set_moved(&self, now: Process, in_session: bool, is_moved: bool) {
        self.change(now, in_session, |known| known.is_moved = is_moved);
    }

    /// Whether another process may hold the descriptor.
    pub fn exist(&self, now: Process, in_session: bool) -> bool {
        let known = self.known(now, in_session);
        known.elsewhere != Elsewhere::Nobody || known.went_to_child(now)
    }

    /// The engine knows from here on that this process has it, and not of children that it made before.
    pub fn claimed(&self, now: Process, in_session: bool) {
        self.change(now, in_session, |known| {
            if known.went_to_child(now) {
                known.elsewhere = Elsewhere::Uncounted;
            }
        });
    }

    /// Others have it, or will have it, of whom the engine is not told.
    pub fn note_uncounted(&self, now: Process, in_session: bool) {
        self.change(now, in_session, |known| known.elsewhere = Elsewhere::Uncounted);
    }

    /// The engine counts one copy, that of this process. Whether that is all that there is to know: then no other process has it.
    pub fn is_single(&self, now: Process, in_session: bool) -> bool {
        if self.known(now, in_session).went_to_child(now) {
            return false;
        }
        // Another thread may be sending the descriptor to somebody at this moment: what it notes stays.
        let before = self.change(now, in_session, |known| {
            if known.elsewhere == Elsewhere::Counted {
                known.elsewhere = Elsewhere::Nobody;
            }
        });
        before.elsewhere != Elsewhere::Uncounted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Process = Process { image: 7, children: 3, inherited: 0 };

    fn child_of_process(parent: Process) -> Process {
        let children = parent.children + 1;
        Process { image: child_of(parent.image), children, inherited: children }
    }

    fn with_another_child(now: Process) -> Process {
        Process { children: now.children + 1, ..now }
    }

    fn begun() -> Copies {
        let copies = Copies::none();
        copies.begin(PARENT);
        copies
    }

    #[test]
    fn what_the_engine_is_not_told_of_stays_shared() {
        let copies = begun();
        assert!(!copies.exist(PARENT, true) && copies.is_single(PARENT, true));
        let child = child_of_process(PARENT);
        assert!(copies.exist(child, true), "the parent has it");
        assert!(copies.is_single(child, true), "and has closed it, as the engine says");
        assert!(!copies.exist(child, true));
        let copies = begun();
        copies.set_moved(PARENT, true, true);
        assert!(!copies.is_single(child, true), "who had it then has told nobody of this child");
        assert!(!copies.is_single(child_of_process(child), true), "nor of the one after");
        let copies = begun();
        copies.claimed(with_another_child(PARENT), true);
        assert!(
            !copies.is_single(with_another_child(PARENT), true),
            "a child was made before it was claimed"
        );
        let copies = begun();
        assert!(copies.exist(with_another_child(PARENT), true), "a child has it");
        assert!(!copies.is_single(with_another_child(PARENT), true));
        copies.note_uncounted(PARENT, true);
        copies.claimed(PARENT, true);
        assert!(copies.exist(PARENT, true) && !copies.is_single(PARENT, true), "it was sent to somebody");
        assert!(!copies.is_single(child, true), "nor does a child know of that one");
    }

    #[test]
    fn what_a_session_had_is_another_sessions_in_a_child() {
        let copies = begun();
        let child = child_of_process(PARENT);
        assert!(!copies.is_moved(PARENT, true) && copies.is_moved(child, true));
        assert!(!copies.is_moved(child, false), "what is in no session needs no claim");
        copies.set_moved(child, true, false);
        assert!(!copies.is_moved(child, true) && copies.is_single(child, true), "the child has claimed it");
        let grandchild = child_of_process(child);
        assert!(copies.is_moved(grandchild, true), "for itself");
        assert!(copies.is_moved(child_of_process(grandchild), true));
    }

    #[test]
    fn a_grandparent_has_told_nobody_of_a_grandchild() {
        let copies = begun();
        let grandchild = child_of_process(child_of_process(PARENT));
        assert!(copies.is_moved(grandchild, true) && !copies.is_single(grandchild, true));
    }

    #[test]
    fn a_socket_that_connects_in_a_child_is_shared() {
        let copies = begun();
        let child = child_of_process(PARENT);
        // What it is before it has a flow holds once it has one.
        copies.begin_session(child, false);
        assert!(!copies.is_moved(child, true));
        assert!(copies.exist(child, true) && !copies.is_single(child, true));
    }
}
