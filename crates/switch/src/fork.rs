//! What this process has done by which others may have its sockets, or its threads other networks' than its sessions with engines. Noted by
//! `calls::process`, which see those calls.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Processes made otherwise than by fork.
static MADE: AtomicU32 = AtomicU32::new(0);

/// Processes that this one has made so far in other ways than fork, as far as known.
pub fn made_otherwise() -> u32 {
    MADE.load(Ordering::Relaxed)
}

pub fn note_new_process() {
    MADE.fetch_add(1, Ordering::Relaxed);
}

/// Whether the caller runs in a child of vfork, which shares the parent's memory until it executes something: it must change none of our
/// tables, and is known by its process id. Once there was one it costs a system call: asked only where one of our tables would change.
pub fn in_vfork_child() -> bool {
    toe::process::is_vfork_child()
}

/// A thread has gone to another network namespace, or may have.
static MOVED: AtomicBool = AtomicBool::new(false);

/// Whether some thread may be in another network namespace than the sessions with engines are of. Its sockets stay with the
/// kernel from then on, those of all threads: whose a new one is, nobody notes.
pub fn may_have_moved() -> bool {
    MOVED.load(Ordering::Relaxed)
}

pub fn note_moved() {
    MOVED.store(true, Ordering::Relaxed);
}
