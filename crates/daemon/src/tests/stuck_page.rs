//! Memory whose page comes when the test says so: until then, who copies from it waits, and so does who wants a lock of his.

#![expect(unsafe_code, reason = "memory whose faults this process answers has no safe face")]

use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// From linux/userfaultfd.h: `struct uffdio_api`, `uffdio_register` and `uffdio_zeropage`, as words.
const UFFDIO_API: u32 = 0xc018_aa3f;
const UFFDIO_REGISTER: u32 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u32 = 0xc020_aa04;
const UFFD_API: u64 = 0xaa;
const REGISTER_MODE_MISSING: u64 = 1;
const PAGE_LEN: usize = 4096;

#[derive(Debug)]
pub(crate) struct StuckPage {
    at: usize,
    faults: OwnedFd,
    has_come: AtomicBool,
}

impl StuckPage {
    /// `None`: this process may not decide about faults of the kernel's in its memory, as an unprivileged one may not.
    pub(crate) fn new() -> Option<StuckPage> {
        // SAFETY: needed because the call is declared unsafe. It makes a descriptor, which concerns only what is registered.
        let faults = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.ok()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: needed to get a page of its own; the kernel chooses where. It is never unmapped.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_LEN, rights, MapFlags::PRIVATE) }.ok()?;
        let page = StuckPage { at: at as usize, faults, has_come: AtomicBool::new(false) };
        page.ask(UFFDIO_API, [UFFD_API, 0, 0, 0]);
        page.ask(UFFDIO_REGISTER, [page.at as u64, PAGE_LEN as u64, REGISTER_MODE_MISSING, 0]);
        Some(page)
    }

    fn ask(&self, request: u32, mut words: [u64; 4]) {
        unsafe extern "C" {
            fn ioctl(fd: i32, request: core::ffi::c_ulong, ...) -> i32;
        }
        let request = core::ffi::c_ulong::from(request);
        // SAFETY: needed because rustix has none of these. Each reads and writes at most 32 bytes, which `words` has.
        let result = unsafe { ioctl(self.faults.as_raw_fd(), request, words.as_mut_ptr()) };
        assert_eq!(result, 0, "request {request:#x}");
    }

    /// A byte of the page, to be written to some file by a thread that may stand still.
    pub(crate) fn byte(&self) -> &'static [u8] {
        // SAFETY: needed to name memory that is not there. The page is mapped for ever, and nobody changes it.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, 1) }
    }

    /// The page, for the kernel to write to while a thread stands still. Once.
    pub(crate) fn room(&self) -> &'static mut [MaybeUninit<u8>] {
        // SAFETY: needed to name memory that is not there. The page is mapped for ever, and its one user is who asked for it.
        unsafe { std::slice::from_raw_parts_mut(self.at as *mut MaybeUninit<u8>, PAGE_LEN) }
    }

    /// Until somebody waits for the page.
    pub(crate) fn wait_for_fault(&self) {
        let mut event = [0; 32];
        assert_eq!(rustix::io::read(&self.faults, &mut event), Ok(event.len()));
    }

    /// The page comes.
    pub(crate) fn let_go(&self) {
        if !self.has_come.swap(true, Ordering::AcqRel) {
            self.ask(UFFDIO_ZEROPAGE, [self.at as u64, PAGE_LEN as u64, 0, 0]);
        }
    }
}

/// Whoever waits must not do so for ever, whatever becomes of the test.
impl Drop for StuckPage {
    fn drop(&mut self) {
        self.let_go();
    }
}

/// How long the engine may stand still before the test lets it go, and fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A host that stands still in a call that takes the page, and keeps the locks that it has until this goes.
#[derive(Debug)]
pub(crate) struct Holding {
    page: Arc<StuckPage>,
    holder: Option<JoinHandle<()>>,
    watch: Option<(Sender<()>, JoinHandle<bool>)>,
    /// One at a time: tests look whether a thread of this process stands still.
    _alone: MutexGuard<'static, ()>,
}

impl Holding {
    /// `hold` makes the call.
    pub(crate) fn new(hold: impl FnOnce(&StuckPage) + Send + 'static) -> Option<Holding> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let page = Arc::new(StuckPage::new()?);
        let held = Arc::clone(&page);
        let holder = std::thread::spawn(move || hold(&held));
        page.wait_for_fault();
        let (done, is_done) = channel();
        let watched = Arc::clone(&page);
        let watch = std::thread::spawn(move || {
            let in_time = is_done.recv_timeout(PATIENCE).is_ok();
            watched.let_go();
            in_time
        });
        Some(Holding { page, holder: Some(holder), watch: Some((done, watch)), _alone: alone })
    }

    /// Ends it. The engine has not stood still so far.
    pub(crate) fn let_go(mut self) {
        let (done, watch) = self.watch.take().expect("until now");
        let _ = done.send(());
        let in_time = watch.join().expect("a watch");
        self.holder.take().expect("until now").join().expect("held");
        assert!(in_time, "the engine stands still");
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.page.let_go();
    }
}
