//! What was decided of each descriptor, and the report of it that `toe why` reads from `/proc/PID/fd` (`toe_abi::why`).
//! Called wherever a decision is made.
//!
//! The words are this process's own, so a fork copies them. The report is a memory file, made at the first decision of a process. A child
//! that has decided nothing yet has its parent's: most children of a server that forks for each connection end before they decide.

use crate::debug;
use crate::socket_state::{self, State, decided_word};
use crate::tally;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use toe::{fd_table, sys};
pub use toe_abi::why::{Decided, Reason, Stack};
use toe_abi::why::{ENTRIES, LEN, MEMFD_NAME};

/// One more than the largest index written: a report begins with so many.
static USED: AtomicU32 = AtomicU32::new(0);

static REPORT: WrittenReport = WrittenReport {
    words: AtomicPtr::new(core::ptr::null_mut()),
    descriptor: AtomicI32::new(-1),
    making: AtomicU8::new(NOT_MADE),
};

/// What a fork writes, in one place. As its first value is not all zeros, the linker puts it beside the library's locks, whose page a child has a
/// copy of anyway.
#[derive(Debug)]
struct WrittenReport {
    /// The mapping; null until the first decision of this process.
    words: AtomicPtr<AtomicU32>,
    /// Its memory file, or the parent's.
    descriptor: AtomicI32,
    making: AtomicU8,
}

const NOT_MADE: u8 = 0;
const BEING_MADE: u8 = 1;
/// Made, or it failed and is not tried again.
const SETTLED: u8 = 2;

/// A decision about `fd` that no rule or engine had a part in.
pub fn set_reason(fd: c_int, stack: Stack, reason: Reason) {
    set(fd, Decided::new(stack, reason));
}

/// A decision about `fd`.
pub fn set(fd: c_int, decided: Decided) {
    let (stack, reason) = (decided.stack, decided.reason);
    tally::count(stack, reason);
    if usize::try_from(fd).is_ok_and(|fd| fd < ENTRIES) {
        make_report();
        put(fd, decided.encode());
        socket_state::add(fd, State::REPORTED);
        debug::log(format_args!("fd {fd}: {}: {}", stack.name(), reason.text()));
    }
}

/// Whether that is what was decided last.
pub fn is(fd: c_int, reason: Reason) -> bool {
    get(fd) >> 8 & 0xff == reason as u32
}

/// `fd` is closed, or no TCP socket any more.
pub fn clear(fd: c_int) {
    put(fd, 0);
}

/// `new` is the same socket as `old`, or a connection that came in through it.
pub fn copy(old: c_int, new: c_int) {
    let value = get(old);
    put(new, value);
    if value != 0 {
        socket_state::add(new, State::REPORTED);
    }
}

fn get(fd: c_int) -> u32 {
    decided_word(fd).map_or(0, |word| word.load(Ordering::SeqCst))
}

fn put(fd: c_int, value: u32) {
    let Some(word) = decided_word(fd) else { return };
    // Most descriptors that are closed have never been sockets: no page is made for them.
    if word.load(Ordering::Relaxed) == value {
        return;
    }
    if USED.load(Ordering::SeqCst) <= fd as u32 {
        USED.fetch_max(fd as u32 + 1, Ordering::SeqCst);
    }
    // In one order with what `make` does: it finds the word, or this thread finds the report.
    word.store(value, Ordering::SeqCst);
    write(REPORT.words.load(Ordering::SeqCst), fd, value);
}

/// Into the report, if there is one.
fn write(report: *mut AtomicU32, fd: c_int, value: u32) {
    if report.is_null() {
        return;
    }
    // SAFETY: needed to write into memory that another process reads. `report` is a mapping of ENTRIES words that stays for the life of this
    // process; a child does not inherit it, and has null there. Atomics may be shared.
    let words = unsafe { core::slice::from_raw_parts(report, ENTRIES) };
    if let Some(word) = usize::try_from(fd).ok().and_then(|fd| words.get(fd)) {
        word.store(value, Ordering::Relaxed);
    }
}

/// At the first decision.
fn make_report() {
    if REPORT.making.load(Ordering::Acquire) != NOT_MADE {
        return;
    }
    // Of several threads one makes it; the others' decisions it finds in the words, or they find the report.
    if REPORT.making.compare_exchange(NOT_MADE, BEING_MADE, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        make();
        REPORT.making.store(SETTLED, Ordering::Release);
    }
}

#[cold]
fn make() -> Option<()> {
    let memory = sys::Fd::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).ok()?);
    // Beyond the limit the attempt would be a signal (SIGXFSZ) that ends the program; so it goes without reports.
    if sys::file_room() < LEN as u64 {
        return None;
    }
    ftruncate(&memory, LEN as u64).ok()?;
    // SAFETY: a fresh shared mapping of our own memory file, over no existing one.
    let report = unsafe {
        mmap(core::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &memory, 0)
    };
    let report = report.ok()?;
    // SAFETY: the mapping just made. A child must not have it, or it would write into its parent's report.
    unsafe { madvise(report, LEN, Advice::LinuxDontFork) }.ok()?;
    let descriptor = sys::move_to_high(memory).into_raw();
    fd_table::mark_internal(descriptor);
    let of_parent = REPORT.descriptor.swap(descriptor, Ordering::Relaxed);
    if of_parent >= 0 {
        fd_table::forget_internal(of_parent);
        let _ = sys::close(of_parent);
    }
    REPORT.words.store(report.cast(), Ordering::SeqCst);
    for fd in 0..USED.load(Ordering::SeqCst) as c_int {
        // Again where a thread that has the report wrote a newer one meanwhile.
        let mut written = None;
        while written != Some(get(fd)) {
            let value = get(fd);
            write(report.cast(), fd, value);
            written = Some(value);
        }
    }
    Some(())
}

/// In a forked child: it has its parent's report until it decides something itself.
#[cold]
pub fn after_fork() {
    if REPORT.making.load(Ordering::Acquire) != NOT_MADE {
        REPORT.words.store(core::ptr::null_mut(), Ordering::Release);
        // A thread that was making it is not in the child.
        REPORT.making.store(NOT_MADE, Ordering::Release);
    }
}
