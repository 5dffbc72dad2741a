//! Writes the why table (`toe_abi::why`): for each descriptor, which stack and why. `toe why` reads it from
//! `/proc/PID/fd`. Called wherever a decision is made; never read back by the switch layer itself.

use crate::debug;
use crate::socket_state::{self, State};
use crate::tally;
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use toe::{fd_table, sys};
pub use toe_abi::why::{Decided, Reason, Stack};
use toe_abi::why::{ENTRIES, LEN, MEMFD_NAME};

/// The mapped table; null until the first TCP socket.
static TABLE: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// One more than the largest index written: a forked child copies no further.
static USED: AtomicU32 = AtomicU32::new(0);

static MAKING: AtomicU8 = AtomicU8::new(NOT_MADE);
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
    let Some(table) = table() else { return };
    if let Some(word) = word(table, fd) {
        word.store(decided.encode(), Ordering::Relaxed);
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
        socket_state::add(fd, State::REPORTED);
        debug::log(format_args!("fd {fd}: {}: {}", stack.name(), reason.text()));
    }
}

/// Whether that is what was decided last.
pub fn is(fd: c_int, reason: Reason) -> bool {
    let table = TABLE.load(Ordering::Acquire);
    let word = if table.is_null() { None } else { word(table, fd) };
    word.is_some_and(|word| word.load(Ordering::Relaxed) >> 8 & 0xff == reason as u32)
}

/// `fd` is closed, or no TCP socket any more.
pub fn clear(fd: c_int) {
    put(fd, 0);
}

/// `new` is the same socket as `old`, or a connection that came in through it.
pub fn copy(old: c_int, new: c_int) {
    let table = TABLE.load(Ordering::Acquire);
    if let (false, Some(from)) = (table.is_null(), word(table, old)) {
        let value = from.load(Ordering::Relaxed);
        put(new, value);
        if value != 0 {
            socket_state::add(new, State::REPORTED);
        }
    }
}

fn put(fd: c_int, value: u32) {
    let table = TABLE.load(Ordering::Acquire);
    if table.is_null() {
        return;
    }
    if let Some(word) = word(table, fd) {
        if value == 0 && word.load(Ordering::Relaxed) == 0 {
            return;
        }
        word.store(value, Ordering::Relaxed);
        USED.fetch_max(fd as u32 + 1, Ordering::Relaxed);
    }
}

fn word<'a>(table: *mut AtomicU32, fd: c_int) -> Option<&'a AtomicU32> {
    let index = usize::try_from(fd).ok().filter(|&i| i < ENTRIES)?;
    // SAFETY: `table` is a mapping of ENTRIES words that is never unmapped while other threads run (only a forked
    // child replaces it, before it has a second thread); atomics may be shared with readers in other processes.
    Some(unsafe { &*table.add(index) })
}

/// The table, made at the first use.
fn table() -> Option<*mut AtomicU32> {
    let table = TABLE.load(Ordering::Acquire);
    if !table.is_null() {
        return Some(table);
    }
    // Of several threads one makes it; the others go without an entry rather than wait for a report.
    MAKING.compare_exchange(NOT_MADE, BEING_MADE, Ordering::AcqRel, Ordering::Acquire).ok()?;
    let made = make();
    MAKING.store(SETTLED, Ordering::Release);
    made
}

#[cold]
fn make() -> Option<*mut AtomicU32> {
    let memory = sys::Fd::from(memfd_create(MEMFD_NAME, MemfdFlags::CLOEXEC).ok()?);
    // Beyond the limit the attempt would be a signal (SIGXFSZ) that ends the program; so it goes without reports.
    if sys::file_room() < LEN as u64 {
        return None;
    }
    ftruncate(&memory, LEN as u64).ok()?;
    // SAFETY: a fresh shared mapping of our own memory file, over no existing one.
    let table = unsafe {
        mmap(core::ptr::null_mut(), LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &memory, 0)
    };
    let table = table.ok()?.cast::<AtomicU32>();
    let descriptor = sys::move_to_high(memory).into_raw();
    fd_table::mark_internal(descriptor);
    DESCRIPTOR.store(descriptor, Ordering::Relaxed);
    TABLE.store(table, Ordering::Release);
    Some(table)
}

/// In a forked child: a table of its own, with what the parent had written.
#[cold]
pub fn after_fork() {
    if MAKING.load(Ordering::Acquire) == NOT_MADE {
        return;
    }
    let old = TABLE.swap(core::ptr::null_mut(), Ordering::AcqRel);
    // The thread that was making it is not in the child.
    MAKING.store(NOT_MADE, Ordering::Release);
    if old.is_null() {
        return;
    }
    let descriptor = DESCRIPTOR.swap(-1, Ordering::Relaxed);
    fd_table::forget_internal(descriptor);
    let _ = sys::close(descriptor);
    if table().is_some() {
        let used = USED.load(Ordering::Relaxed).min(ENTRIES as u32) as c_int;
        for fd in 0..used {
            put(fd, word(old, fd).map_or(0, |w| w.load(Ordering::Relaxed)));
        }
    }
    // SAFETY: the mapping that `make` made in the parent; the child has one thread, and it no longer uses it.
    let _ = unsafe { munmap(old.cast(), LEN) };
}
