//! Which process has a socket, and which others may hold its descriptor, as far as this one knows.
//!
//! Together with what the engine counts ([`toe_abi::entry::Command::CloseCopy`]) it says when a connection is in this process alone: of
//! copies that the engine is not told of this process must know, or know that it cannot.
//!
//! A fork changes no word of it: each says of which process it speaks, and what it means to that one's child is found when that looks. So a
//! child with ten thousand sockets writes to none of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A process as its sockets know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessImage {
    /// A parent has one less, as far as this library was there.
    pub image: u32,
    /// Counts children that may have copies of this process's descriptors, made by fork or otherwise. A socket that is older
    /// than the last one is shared.
    pub children: u32,
    /// The same when this process began.
    pub inherited: u32,
}

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
struct CopiesKnown {
    /// Of which process ([`ProcessImage::image`]).
    image: u32,
    /// [`ProcessImage::children`] when that process got the descriptor.
    children: u32,
    elsewhere: Elsewhere,
    /// Another session has the flow or listener: this one must show the anchor before it can use it.
    is_moved: bool,
}

/// The word, from its lowest bit: two of [`Elsewhere`], [`IS_MOVED`], from bit 8 the image, from bit 32 the children.
const IMAGE_BITS: u32 = 24;
const IS_MOVED: u64 = 4;

impl CopiesKnown {
    fn to_bits(self) -> u64 {
        let moved = if self.is_moved { IS_MOVED } else { 0 };
        u64::from(self.children) << 32 | u64::from(self.image) << 8 | moved | self.elsewhere as u64
    }

    fn from_bits(bits: u64) -> CopiesKnown {
        let elsewhere = match bits & 3 {
            0 => Elsewhere::Nobody,
            1 => Elsewhere::Counted,
            _ => Elsewhere::Uncounted,
        };
        let image = (bits >> 8) as u32 & ((1 << IMAGE_BITS) - 1);
        CopiesKnown { image, children: (bits >> 32) as u32, elsewhere, is_moved: bits & IS_MOVED != 0 }
    }

    fn went_to_child(&self, now: ProcessImage) -> bool {
        self.children != now.children
    }

    /// The same in process `now`, which may be a child of that one, or a child's. A socket `in_session` has a flow or listener there.
    fn seen_by(self, now: ProcessImage, in_session: bool) -> CopiesKnown {
        if self.image == now.image {
            return self;
        }
        // A parent that had it has told the engine of its child; a grandparent has not.
        let was_parents = in_session && !self.is_moved && self.image == parent_of(now.image);
        let is_counted = was_parents && self.elsewhere != Elsewhere::Uncounted;
        CopiesKnown {
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

/// What is known, in one word.
#[derive(Debug)]
pub(crate) struct Copies(AtomicU64);

impl Copies {
    pub const fn none() -> Copies {
        Copies(AtomicU64::new(0))
    }

    /// A socket of this process alone begins.
    pub fn begin(&self, now: ProcessImage) {
        let ProcessImage { image, children, .. } = now;
        let known = CopiesKnown { image, children, elsewhere: Elsewhere::Nobody, is_moved: false };
        self.0.store(known.to_bits(), Ordering::Release);
    }

    /// As process `now` sees it, whose socket has a flow or listener in a session, or has not.
    #[inline]
    pub fn seen_by(&self, now: ProcessImage, in_session: bool) -> CopiesSeen<'_> {
        CopiesSeen { copies: self, now, in_session }
    }
}

/// The same as a process sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopiesSeen<'a> {
    copies: &'a Copies,
    now: ProcessImage,
    in_session: bool,
}

impl CopiesSeen<'_> {
    fn known(&self) -> CopiesKnown {
        CopiesKnown::from_bits(self.copies.0.load(Ordering::Acquire)).seen_by(self.now, self.in_session)
    }

    /// What was known before.
    fn change(&self, change: impl Fn(&mut CopiesKnown)) -> CopiesKnown {
        let seen = |bits: u64| CopiesKnown::from_bits(bits).seen_by(self.now, self.in_session);
        let changed = |bits: u64| {
            let mut known = seen(bits);
            change(&mut known);
            Some(known.to_bits())
        };
        let before = self.copies.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, changed);
        seen(before.unwrap_or_default())
    }

    /// It comes to have a flow or listener, and did not come with one from this process's parent.
    pub fn begin_session(&self) {
        if CopiesKnown::from_bits(self.copies.0.load(Ordering::Acquire)).image != self.now.image {
            self.set_moved(false);
        }
    }

    /// Whether another session has it, as far as is known: this one must show the anchor before it can use it.
    #[inline]
    pub fn is_moved(&self) -> bool {
        self.known().is_moved
    }

    pub fn set_moved(&self, is_moved: bool) {
        self.change(|known| known.is_moved = is_moved);
    }

    /// Whether another process may hold the descriptor.
    pub fn exist(&self) -> bool {
        let known = self.known();
        known.elsewhere != Elsewhere::Nobody || known.went_to_child(self.now)
    }

    /// The engine knows from here on that this process has it, and not of children that it made before.
    pub fn claimed(&self) {
        self.change(|known| {
            if known.went_to_child(self.now) {
                known.elsewhere = Elsewhere::Uncounted;
            }
        });
    }

    /// Others have it, or will have it, of whom the engine is not told.
    pub fn note_uncounted(&self) {
        self.change(|known| known.elsewhere = Elsewhere::Uncounted);
    }

    /// The engine counts one copy, that of this process. Whether that is all that there is to know: then no other process has it.
    pub fn is_single(&self) -> bool {
        if self.known().went_to_child(self.now) {
            return false;
        }
        // Another thread may be sending the descriptor to somebody at this moment: what it notes stays.
        let before = self.change(|known| {
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

    const PARENT: ProcessImage = ProcessImage { image: 7, children: 3, inherited: 0 };

    fn child_of_process(parent: ProcessImage) -> ProcessImage {
        let children = parent.children + 1;
        ProcessImage { image: child_of(parent.image), children, inherited: children }
    }

    fn with_another_child(now: ProcessImage) -> ProcessImage {
        ProcessImage { children: now.children + 1, ..now }
    }

    fn begun() -> Copies {
        let copies = Copies::none();
        copies.begin(PARENT);
        copies
    }

    #[test]
    fn what_the_engine_is_not_told_of_stays_shared() {
        let copies = begun();
        assert!(!copies.seen_by(PARENT, true).exist() && copies.seen_by(PARENT, true).is_single());
        let child = child_of_process(PARENT);
        assert!(copies.seen_by(child, true).exist(), "the parent has it");
        assert!(copies.seen_by(child, true).is_single(), "and has closed it, as the engine says");
        assert!(!copies.seen_by(child, true).exist());
        let copies = begun();
        copies.seen_by(PARENT, true).set_moved(true);
        assert!(!copies.seen_by(child, true).is_single(), "who had it then has told nobody of this child");
        assert!(!copies.seen_by(child_of_process(child), true).is_single(), "nor of the one after");
        let copies = begun();
        copies.seen_by(with_another_child(PARENT), true).claimed();
        assert!(
            !copies.seen_by(with_another_child(PARENT), true).is_single(),
            "a child was made before it was claimed"
        );
        let copies = begun();
        assert!(copies.seen_by(with_another_child(PARENT), true).exist(), "a child has it");
        assert!(!copies.seen_by(with_another_child(PARENT), true).is_single());
        copies.seen_by(PARENT, true).note_uncounted();
        copies.seen_by(PARENT, true).claimed();
        assert!(
            copies.seen_by(PARENT, true).exist() && !copies.seen_by(PARENT, true).is_single(),
            "it was sent to somebody"
        );
        assert!(!copies.seen_by(child, true).is_single(), "nor does a child know of that one");
    }

    #[test]
    fn what_a_session_had_is_another_sessions_in_a_child() {
        let copies = begun();
        let child = child_of_process(PARENT);
        assert!(!copies.seen_by(PARENT, true).is_moved() && copies.seen_by(child, true).is_moved());
        assert!(!copies.seen_by(child, false).is_moved(), "what is in no session needs no claim");
        copies.seen_by(child, true).set_moved(false);
        assert!(
            !copies.seen_by(child, true).is_moved() && copies.seen_by(child, true).is_single(),
            "the child has claimed it"
        );
        let grandchild = child_of_process(child);
        assert!(copies.seen_by(grandchild, true).is_moved(), "for itself");
        assert!(copies.seen_by(child_of_process(grandchild), true).is_moved());
    }

    #[test]
    fn a_grandparent_has_told_nobody_of_a_grandchild() {
        let copies = begun();
        let grandchild = child_of_process(child_of_process(PARENT));
        assert!(copies.seen_by(grandchild, true).is_moved() && !copies.seen_by(grandchild, true).is_single());
    }

    #[test]
    fn a_socket_that_connects_in_a_child_is_shared() {
        let copies = begun();
        let child = child_of_process(PARENT);
        // What it is before it has a flow holds once it has one.
        copies.seen_by(child, false).begin_session();
        assert!(!copies.seen_by(child, true).is_moved());
        assert!(copies.seen_by(child, true).exist() && !copies.seen_by(child, true).is_single());
    }
}
