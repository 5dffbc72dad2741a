//! Counts decisions for `toe run --explain` (`toe_abi::why::TALLY_VARIABLE`): in memory that `toe run` made and that all
//! processes of the program share. Without it nothing is counted. Written by `why.rs`.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use rustix::fs::{Mode, OFlags, SealFlags, open};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::path::Path;
use toe::sys;
use toe_abi::why::{Reason, Stack, TALLY_ENTRIES, TALLY_LEN, TALLY_VARIABLE, tally_index};

static COUNTS: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Called once, when the library is loaded.
pub fn open_if_wanted() {
    let Some(path) = toe::environment::var_os(TALLY_VARIABLE) else { return };
    // Another user's may not be opened where it was made; this process may have inherited the descriptor. Else it is not counted.
    let number = Path::new(&path).file_name().unwrap_or_default();
    let Some(memory) =
        memory_at(Path::new(&path)).or_else(|| memory_at(&Path::new("/proc/self/fd").join(number)))
    else {
        return;
    };
    // SAFETY: needed to share memory with other processes. A new mapping over no existing one; it is never unmapped.
    let counts = unsafe {
        mmap(
            core::ptr::null_mut(),
            TALLY_LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &memory,
            0,
        )
    };
    if let Ok(counts) = counts {
        COUNTS.store(counts.cast(), Ordering::Release);
    }
}

/// The counts, if that is what is there: any other file may have the number.
fn memory_at(path: &Path) -> Option<sys::Fd> {
    let memory = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map(sys::Fd::from).ok()?;
    let is_whole = rustix::fs::fstat(&memory).is_ok_and(|stat| stat.st_size as usize == TALLY_LEN);
    let stays_whole =
        rustix::fs::fcntl_get_seals(&memory).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    (is_whole && stays_whole).then_some(memory)
}

/// A socket's stack was decided.
pub fn count(stack: Stack, reason: Reason) {
    let counts = COUNTS.load(Ordering::Acquire);
    if counts.is_null() || reason == Reason::Undecided {
        return;
    }
    let index = tally_index(stack, reason);
    debug_assert!(index < TALLY_ENTRIES);
    // SAFETY: needed because the counts are shared memory. `counts` is a mapping of TALLY_ENTRIES words, and a place is
    // below that; all access is atomic.
    unsafe { &*counts.add(index) }.fetch_add(1, Ordering::Relaxed);
}
