//! This process among its parent and children: whether it is still who it was, and who may have copies of what it has.
//!
//! The handlers of [`crate::fork`] write it; everybody else asks it.

use crate::socket::copies::{ProcessImage, child_of};
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// What is written at each fork, in one place: of each page that a child writes to it gets a copy. As its first value is not all zeros, the
/// linker puts it beside the library's other locks and not among its large tables.
static FAMILY: Family = Family {
    pid: AtomicI32::new(NO_PID),
    forks: AtomicU32::new(0),
    forking: AtomicU32::new(0),
    children: AtomicU32::new(0),
    image: AtomicU32::new(0),
    inherited: AtomicU32::new(0),
    asked: AtomicU32::new(0),
};

const NO_PID: i32 = -1;

/// This process and its children.
#[derive(Debug)]
#[repr(align(128))]
struct Family {
    /// This process, to know the child of a vfork by.
    pid: AtomicI32,
    /// Counts forks.
    forks: AtomicU32,
    /// Threads between the preparations for a fork and its end: the C library lets several prepare at once.
    forking: AtomicU32,
    /// See [`ProcessImage`].
    children: AtomicU32,
    image: AtomicU32,
    inherited: AtomicU32,
    /// How often [`is_vfork_child`] has found by its number that this is no such child.
    asked: AtomicU32,
}

/// How many forks there were.
pub fn count() -> u32 {
    FAMILY.forks.load(Ordering::Relaxed)
}

/// This process.
#[inline]
pub(crate) fn image() -> ProcessImage {
    let Family { image, children, inherited, .. } = &FAMILY;
    let [image, children, inherited] =
        [image, children, inherited].map(|count| count.load(Ordering::Relaxed));
    ProcessImage { image, children, inherited }
}

/// Whether a fork is under way: no stream may begin to use a channel, which would not follow it into the child.
pub fn is_forking() -> bool {
    FAMILY.forking.load(Ordering::Acquire) > 0
}

/// Forks of this process are noted from now on.
pub(crate) fn note_process() {
    FAMILY.pid.store(sys::pid(), Ordering::Relaxed);
}

/// A child is about to be made in another way than by fork.
pub(crate) fn note_child() {
    FAMILY.children.fetch_add(1, Ordering::Relaxed);
}

/// A thread prepares for a fork.
pub(crate) fn begin_fork() {
    FAMILY.forking.fetch_add(1, Ordering::AcqRel);
}

/// The fork is over; this is the parent.
pub(crate) fn note_fork() {
    FAMILY.forks.fetch_add(1, Ordering::Relaxed);
    FAMILY.children.fetch_add(1, Ordering::Relaxed);
    FAMILY.forking.fetch_sub(1, Ordering::AcqRel);
}

/// The same in the child.
pub(crate) fn note_fork_in_child() {
    FAMILY.forks.fetch_add(1, Ordering::Relaxed);
    let children = FAMILY.children.load(Ordering::Relaxed).wrapping_add(1);
    FAMILY.children.store(children, Ordering::Relaxed);
    FAMILY.inherited.store(children, Ordering::Relaxed);
    FAMILY.image.store(child_of(FAMILY.image.load(Ordering::Relaxed)), Ordering::Relaxed);
    FAMILY.forking.store(0, Ordering::Release);
    FAMILY.asked.store(0, Ordering::Relaxed);
    FAMILY.pid.store(sys::pid(), Ordering::Relaxed);
}

/// Whether a child may run in this process's memory, if somebody says so by [`note_shared_memory`].
static MAY_BE_SHARED: AtomicBool = AtomicBool::new(false);

/// Who asks less often does without a page of its own: a child that serves one connection.
const ASKED_OFTEN: u32 = 64;

/// A word that is 1 here and that the kernel wipes in the child of any fork, also of one that no handler sees. It is there from
/// [`watch_shared_memory`] on.
static NOT_WIPED: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// From now on [`note_shared_memory`] is called before every vfork.
pub fn watch_shared_memory() {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    const PAGE: usize = 4096;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: needed for a page that the kernel wipes in a child. A new private mapping, at an address of the kernel's
    // choice, that is never unmapped; the advice changes nothing in this process.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE)
            .and_then(|page| madvise(page, PAGE, Advice::LinuxWipeOnFork).map(|()| page))
    };
    if let Ok(page) = page {
        NOT_WIPED.store(page.cast(), Ordering::Release);
    }
}

fn not_wiped() -> Option<&'static AtomicU32> {
    let word = NOT_WIPED.load(Ordering::Acquire);
    // SAFETY: needed because the address is in an atomic. It is null or that of a page that stays mapped, and all access
    // to the word is atomic.
    (!word.is_null()).then(|| unsafe { &*word })
}

/// Whether this process certainly is the one that [`note_process`] or [`note_fork_in_child`] saw.
fn is_known_process() -> bool {
    FAMILY.asked.load(Ordering::Relaxed) >= ASKED_OFTEN
        && !MAY_BE_SHARED.load(Ordering::Relaxed)
        && not_wiped().is_some_and(|word| word.load(Ordering::Relaxed) == 1)
}

/// A child may be made that runs in this process's memory.
pub fn note_shared_memory() {
    MAY_BE_SHARED.store(true, Ordering::SeqCst);
}

/// Whether this is a child of vfork, which runs in its parent's memory until it executes something.
pub fn is_vfork_child() -> bool {
    if is_known_process() {
        return false;
    }
    let pid = FAMILY.pid.load(Ordering::Relaxed);
    let is_child = pid != NO_PID && pid != sys::pid();
    let asked = FAMILY.asked.load(Ordering::Relaxed);
    if !is_child && asked < ASKED_OFTEN {
        // Two threads that count as one only ask once more.
        if asked + 1 == ASKED_OFTEN
            && let Some(word) = not_wiped()
        {
            word.store(1, Ordering::Relaxed);
        }
        FAMILY.asked.store(asked + 1, Ordering::Relaxed);
    }
    is_child
}
