//! Which other processes may hold a socket's descriptor, as far as this one knows.
//!
//! Together with what the engine counts ([`toe_abi::entry::Command::CloseCopy`]) it says when a connection is in this process alone: of
//! copies that the engine is not told of this process must know, or know that it cannot.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

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

#[derive(Debug)]
pub(crate) struct Copies {
    elsewhere: AtomicU8,
    /// [`crate::fork::children`] when this process got its descriptor; so are the numbers that calls are given.
    children: AtomicU32,
}

impl Copies {
    pub const fn none() -> Copies {
        Copies { elsewhere: AtomicU8::new(Elsewhere::Nobody as u8), children: AtomicU32::new(0) }
    }

    fn elsewhere(&self) -> Elsewhere {
        match self.elsewhere.load(Ordering::Relaxed) {
            0 => Elsewhere::Nobody,
            1 => Elsewhere::Counted,
            _ => Elsewhere::Uncounted,
        }
    }

    fn set(&self, elsewhere: Elsewhere) {
        self.elsewhere.store(elsewhere as u8, Ordering::Relaxed);
    }

    /// A socket of this process alone begins.
    pub fn begin(&self, children: u32) {
        self.set(Elsewhere::Nobody);
        self.children.store(children, Ordering::Relaxed);
    }

    /// Whether another process may hold the descriptor.
    pub fn exist(&self, children: u32) -> bool {
        self.elsewhere() != Elsewhere::Nobody || self.went_to_child(children)
    }

    fn went_to_child(&self, children: u32) -> bool {
        self.children.load(Ordering::Relaxed) != children
    }

    /// In the child of a fork. `was_parents`: the parent had the connection, and has told the engine of the child.
    pub fn came_by_fork(&self, was_parents: bool, children: u32) {
        let is_counted = was_parents && self.elsewhere() != Elsewhere::Uncounted;
        self.set(if is_counted { Elsewhere::Counted } else { Elsewhere::Uncounted });
        self.children.store(children, Ordering::Relaxed);
    }

    /// The engine knows from here on that this process has it, and not of children that it made before.
    pub fn claimed(&self, children: u32) {
        if self.went_to_child(children) {
            self.note_uncounted();
        }
    }

    /// Others have it, or will have it, of whom the engine is not told.
    pub fn note_uncounted(&self) {
        self.set(Elsewhere::Uncounted);
    }

    /// The engine counts one copy, that of this process. Whether that is all that there is to know: then no other process has it.
    pub fn is_single(&self, children: u32) -> bool {
        if self.went_to_child(children) {
            return false;
        }
        // Another thread may be sending the descriptor to somebody at this moment: what it notes stays.
        let (counted, nobody) = (Elsewhere::Counted as u8, Elsewhere::Nobody as u8);
        let before = self.elsewhere.compare_exchange(counted, nobody, Ordering::Relaxed, Ordering::Relaxed);
        before != Err(Elsewhere::Uncounted as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_engine_is_not_told_of_stays_shared() {
        let copies = Copies::none();
        copies.begin(3);
        assert!(!copies.exist(3) && copies.is_single(3));
        copies.came_by_fork(true, 3);
        assert!(copies.exist(3), "the parent has it");
        assert!(copies.is_single(3), "and has closed it, as the engine says");
        assert!(!copies.exist(3));
        copies.came_by_fork(false, 3);
        assert!(!copies.is_single(3), "who had it then has told nobody of this child");
        copies.came_by_fork(true, 3);
        assert!(!copies.is_single(3), "nor of the one before");
        copies.begin(3);
        copies.came_by_fork(true, 3);
        copies.claimed(4);
        assert!(!copies.is_single(4), "a child was made before it was claimed");
        copies.begin(3);
        assert!(copies.exist(4) && !copies.is_single(4), "a child has it");
        copies.note_uncounted();
        copies.claimed(3);
        assert!(copies.exist(3) && !copies.is_single(3), "it was sent to somebody");
    }
}
