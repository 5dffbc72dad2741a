//! Memory whose page comes when the test says so: until then, who copies from it waits, and so does who wants a lock of his.

#![expect(unsafe_code, reason = "memory whose faults this process answers has no safe face")]

use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

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
        // SAFETY: needed because rustix has none of these. Each reads and writes at most 32 octets, which `words` has.
        let result = unsafe { ioctl(self.faults.as_raw_fd(), request, words.as_mut_ptr()) };
        assert_eq!(result, 0, "request {request:#x}");
    }

    /// An octet of the page, to be written to some file by a thread that may stand still.
    pub(crate) fn octet(&self) -> &'static [u8] {
        // SAFETY: needed to name memory that is not there. The page is mapped for ever, and nobody changes it.
        unsafe { std::slice::from_raw_parts(self.at as *const u8, 1) }
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
