//! Memory that ends while it is in use. Pages of a region are taken at the first touch; where the system has none left (strict
//! overcommit, a full tmpfs), or a page turns out to be broken, that touch raises SIGBUS, and the process that copies bytes
//! for everybody would die of one session's memory.
//!
//! [`install`] makes that a fact to be looked up instead: the handler finds the region that the address lies in, marks it, puts a spare page
//! in the missing one's place, and the copy goes on. From then on nothing is written to that region ([`Region::is_lost`]), and
//! whoever drives the engine ends the session ([`any_event`]). What is read of a page that was not there is zero, as of any that
//! nobody has written. Any other SIGBUS ends the process, as it does without a handler.
//!
//! For the engine's process alone, which calls [`install`]; a program's own handler of SIGBUS is not the host library's to replace.
//! The tables are of the process, as a signal is: the handler can take no lock and no memory, and is handed nothing but an address.
//!
//! [`Region::is_lost`]: crate::region::Region::is_lost

use core::ffi::{c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering};
use rustix::fd::{BorrowedFd, IntoRawFd, RawFd};
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};
use toe_abi::region::PAGE;

/// Regions that one process may have: every session's, and half as many channels as all sessions may have.
const REGIONS_MAX: usize = 8192;
/// Spare pages. One step of a copy reaches fewer, and what is lost is not written to again.
const SPARE_PAGES: usize = 64;
/// Bytes of a page as an address has them.
const PAGE_LEN: usize = PAGE as usize;

/// Where a region lies.
#[derive(Debug)]
struct RegionSlot {
    /// 0: nobody's slot.
    start: AtomicUsize,
    len: AtomicUsize,
    lost: AtomicBool,
    /// Its first page too, which says what became of the rest.
    first_lost: AtomicBool,
}

static REGIONS: [RegionSlot; REGIONS_MAX] = [const {
    let [lost, first_lost] = [const { AtomicBool::new(false) }; 2];
    RegionSlot { start: AtomicUsize::new(0), len: AtomicUsize::new(0), lost, first_lost }
}; REGIONS_MAX];
/// Where each spare page stands now.
static SPARES: [AtomicUsize; SPARE_PAGES] = [const { AtomicUsize::new(0) }; SPARE_PAGES];
static NEXT_SPARE: AtomicU32 = AtomicU32::new(0);
/// The file of the spare pages, for as long as the process lives.
static SPARE_FILE: AtomicI32 = AtomicI32::new(-1);
static EVENTS: AtomicBool = AtomicBool::new(false);
/// Handlers that have taken a spare page and perhaps not yet put it elsewhere.
pub(crate) static REPLACING: AtomicU32 = AtomicU32::new(0);

/// Makes SIGBUS in a region something to be looked up. Once, before there are regions or threads.
pub fn install() -> Result<()> {
    if SPARE_FILE.load(Ordering::Acquire) >= 0 {
        return Ok(());
    }
    let file = rustix::fs::memfd_create("toe-spare", MemfdFlags::CLOEXEC)?;
    // Taken now: there may be none when they are needed.
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, (SPARE_PAGES * PAGE_LEN) as u64)?;
    SPARE_FILE.store(file.into_raw_fd(), Ordering::Release);
    set_handler(on_sigbus as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK)
}

/// Whether a region was lost since this was asked last.
pub fn any_event() -> bool {
    EVENTS.load(Ordering::Relaxed) && EVENTS.swap(false, Ordering::AcqRel)
}

/// A region's slot among those that the handler knows.
#[derive(Debug)]
pub(crate) struct Watched(&'static RegionSlot);

impl Watched {
    /// Before anything of the region is touched. Refused where there are too many.
    pub(crate) fn new(start: usize, len: usize) -> Result<Watched> {
        let is_free = |slot: &&RegionSlot| {
            slot.start.compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let slot = REGIONS.iter().find(is_free).ok_or(Errno::NOMEM)?;
        slot.len.store(len, Ordering::Release);
        Ok(Watched(slot))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.0.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn is_first_page_lost(&self) -> bool {
        self.0.first_lost.load(Ordering::Relaxed)
    }
}

impl Drop for Watched {
    /// Before its addresses are given back: something else may come to be there, to which nobody may put a page.
    fn drop(&mut self) {
        let slot = self.0;
        let (start, len) = (slot.start.load(Ordering::Acquire), slot.len.swap(0, Ordering::AcqRel));
        for spare in &SPARES {
            let at = spare.load(Ordering::SeqCst);
            if at.wrapping_sub(start) < len {
                let _ = spare.compare_exchange(at, 0, Ordering::SeqCst, Ordering::Relaxed);
            }
        }
        // One in another thread has perhaps taken a page of here before that. It makes a few system calls.
        while REPLACING.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
        slot.lost.store(false, Ordering::Release);
        slot.first_lost.store(false, Ordering::Release);
        slot.start.store(0, Ordering::Release);
    }
}

fn set_handler(handler: usize, flags: c_int) -> Result<()> {
    // SAFETY: needed because there is no safe way to hear of SIGBUS: it must be answered before the faulting instruction goes
    // on. All bytes of `sigaction` may be 0.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: needed as above. `handler` is a handler of three arguments if `flags` say so (`install`), or SIG_DFL; `action`
    // lives through the call.
    let result = unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(Errno::INVAL) }
}

/// Atomics and system calls only: it may interrupt anything.
extern "C" fn on_sigbus(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: needed to learn the address. The kernel hands a handler with SA_SIGINFO a `siginfo_t`, which for a signal of its own
    // (a code above 0) has the address of the fault.
    let (code, at) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let is_here = |slot: &&RegionSlot| {
        at.wrapping_sub(slot.start.load(Ordering::Acquire)) < slot.len.load(Ordering::Acquire)
    };
    let Some(slot) = REGIONS.iter().find(is_here).filter(|_| code > 0) else { return end_as_without() };
    slot.lost.store(true, Ordering::Release);
    if at.wrapping_sub(slot.start.load(Ordering::Acquire)) < PAGE_LEN {
        slot.first_lost.store(true, Ordering::Release);
    }
    EVENTS.store(true, Ordering::Release);
    REPLACING.fetch_add(1, Ordering::SeqCst);
    let replaced = replace_page(at & !(PAGE_LEN - 1));
    REPLACING.fetch_sub(1, Ordering::SeqCst);
    if replaced.is_err() {
        end_as_without();
    }
}

/// The signal comes again when the handler returns, and there is none then.
fn end_as_without() {
    let _ = set_handler(libc::SIG_DFL, 0);
    // SAFETY: needed so that a signal that somebody sent ends the process too. It is allowed in a handler.
    let _ = unsafe { libc::raise(libc::SIGBUS) };
}

/// Puts a page of zeros at `at`, a page of a region.
fn replace_page(at: usize) -> Result<()> {
    let file: RawFd = SPARE_FILE.load(Ordering::Acquire);
    let spare = NEXT_SPARE.fetch_add(1, Ordering::AcqRel) as usize % SPARE_PAGES;
    let before = SPARES[spare].swap(at, Ordering::SeqCst);
    let fixed = MapFlags::FIXED | MapFlags::NORESERVE;
    if before != 0 {
        // It stands elsewhere, in a region that was lost and is not written to any more: that may read zeros for ever,
        // which takes no memory, and must not read what is written here.
        // SAFETY: needed to take the page from there. `before` is a page of a region that is still mapped (`Watched::drop`
        // forgets those of one that ends, and waits for who has found one before that), to which no reference exists, and which
        // stays readable.
        unsafe {
            rustix::mm::mmap_anonymous(
                before as *mut c_void,
                PAGE_LEN,
                ProtFlags::READ,
                MapFlags::PRIVATE | fixed,
            )?;
        }
    }
    // SAFETY: needed to borrow the descriptor that `install` left open for good.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    // SAFETY: needed because the page that was there cannot be had. `at` is a page of a region that the interrupted thread is
    // accessing, so it stays mapped meanwhile; nothing but the region's bytes lies there, to which no reference exists.
    let page = unsafe {
        rustix::mm::mmap(
            at as *mut c_void,
            PAGE_LEN,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | fixed,
            file,
            (spare * PAGE_LEN) as u64,
        )?
    };
    // SAFETY: needed so that nothing of an earlier use is read. The page was mapped just now, writable, and the file has it.
    unsafe { ptr::write_bytes(page.cast::<u8>(), 0, PAGE_LEN) };
    Ok(())
}
