//! The memory that an AF_XDP socket shares with the kernel: the frames (UMEM), and the four rings through which they
//! change hands. Used by [`super::socket`] alone, which says whose each frame is.
//!
//! A ring has one producer and one consumer; each side owns one index and only reads the other's. The kernel is the
//! other side here, so its indices are trusted, as what a system call returns is.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};

/// A mapping, undone when this is dropped.
#[derive(Debug)]
struct Mapping {
    at: NonNull<u8>,
    len: usize,
}

// SAFETY: needed because of the pointer. The mapping belongs to this value alone, so moving it to another thread moves it.
unsafe impl Send for Mapping {}

impl Mapping {
    fn anonymous(len: usize) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: needed for memory aligned to pages. The address is the kernel's choice, so nothing else is there.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, access, MapFlags::PRIVATE) }?;
        Ok(Mapping { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }

    fn of_socket(socket: BorrowedFd<'_>, len: usize, at: u64) -> io::Result<Mapping> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: needed to share memory with the kernel. The address is the kernel's choice, so nothing else is there.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, flags, socket, at) }?;
        Ok(Mapping { at: NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: needed to undo the mapping; all that refers to it borrows its owner.
        let _ = unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.len) };
    }
}

/// The frames.
#[derive(Debug)]
pub(super) struct Umem {
    memory: Mapping,
}

impl Umem {
    pub(super) fn new(len: usize) -> io::Result<Umem> {
        Ok(Umem { memory: Mapping::anonymous(len)? })
    }

    pub(super) fn addr(&self) -> u64 {
        self.memory.at.as_ptr() as u64
    }

    pub(super) fn len(&self) -> usize {
        self.memory.len
    }

    /// The bytes of a frame that is ours now; `None` when they do not lie in the memory.
    pub(super) fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        let start = self.start_of(at, len)?;
        // SAFETY: needed because the kernel writes frames, too. `start + len` is inside the mapping, which lives as long as
        // `self`; the caller has taken the frame out of a ring and has not given it back, so the kernel leaves it alone.
        Some(unsafe { slice::from_raw_parts(self.memory.at.as_ptr().add(start), len) })
    }

    /// The same for writing.
    pub(super) fn bytes_mut(&mut self, at: u64, len: usize) -> Option<&mut [u8]> {
        let start = self.start_of(at, len)?;
        // SAFETY: as in `bytes`; and `self` is borrowed exclusively, so nobody else here refers to the memory.
        Some(unsafe { slice::from_raw_parts_mut(self.memory.at.as_ptr().add(start), len) })
    }

    fn start_of(&self, at: u64, len: usize) -> Option<usize> {
        let start = usize::try_from(at).ok()?;
        (start.checked_add(len)? <= self.memory.len).then_some(start)
    }
}

/// A value that lies in a ring: any pattern of bytes is one.
pub(super) trait Entry: Copy {}
impl Entry for u64 {}
impl Entry for XdpDesc {}

/// One ring, mapped.
#[derive(Debug)]
struct Shared<T> {
    memory: Mapping,
    offsets: XdpRingOffset,
    size: u32,
    _entries: PhantomData<T>,
}

impl<T: Entry> Shared<T> {
    /// Maps the ring of `size` entries, a power of two, that the kernel has made and keeps at `at`.
    fn map(socket: BorrowedFd<'_>, size: u32, offsets: XdpRingOffset, at: u64) -> io::Result<Shared<T>> {
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let inside = |offset: u64| offset as usize + size_of::<u32>() <= len && offset.is_multiple_of(4);
        let indices = [Some(offsets.producer), Some(offsets.consumer), offsets.flags];
        if !size.is_power_of_two()
            || !indices.into_iter().flatten().all(inside)
            || !offsets.desc.is_multiple_of(8)
        {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let memory = Mapping::of_socket(socket, len, at)?;
        Ok(Shared { memory, offsets, size, _entries: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: needed because the kernel writes it, too. `map` has checked that the word lies in the mapping and is
        // aligned; the mapping lives as long as `self`; all access to the word is atomic.
        unsafe { &*self.memory.at.as_ptr().add(offset as usize).cast::<AtomicU32>() }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn needs_wakeup(&self) -> bool {
        let flags = self.offsets.flags.map_or(0, |at| self.word(at).load(Ordering::Relaxed));
        XdpRingFlags::from_bits_retain(flags).contains(XdpRingFlags::XDP_RING_NEED_WAKEUP)
    }

    fn entry(&self, index: u32) -> *mut T {
        let slot = (index & (self.size - 1)) as usize;
        // SAFETY: needed to find the entry; the place is below the ring's size, so it lies in the mapping.
        unsafe { self.memory.at.as_ptr().add(self.offsets.desc as usize).cast::<T>().add(slot) }
    }
}

/// A ring into which entries are put for the kernel: of frames to fill, or to send.
#[derive(Debug)]
pub(super) struct ToKernel<T> {
    ring: Shared<T>,
    /// What was put in so far; the kernel sees it after [`ToKernel::publish`].
    next: u32,
    /// Entries before this are known to have been taken.
    taken: u32,
}

impl<T: Entry> ToKernel<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        size: u32,
        offsets: XdpRingOffset,
        at: u64,
    ) -> io::Result<Self> {
        Ok(ToKernel { ring: Shared::map(socket, size, offsets, at)?, next: 0, taken: 0 })
    }

    /// Puts an entry in; `false` when there is no room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.taken) == self.ring.size {
            self.taken = self.taken_by_kernel();
            if self.next.wrapping_sub(self.taken) == self.ring.size {
                return false;
            }
        }
        // SAFETY: needed to write what the kernel reads. The place is free: the kernel has taken what stood there, and does
        // not look at it again before `publish`. It is aligned, as the entries begin on a multiple of 8.
        unsafe { self.ring.entry(self.next).write(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Lets the kernel see what was put in.
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before they are seen.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Entries that the kernel has not taken yet.
    pub(super) fn waiting(&self) -> u32 {
        self.next.wrapping_sub(self.taken_by_kernel())
    }

    fn taken_by_kernel(&self) -> u32 {
        // Acquire: the kernel has read the entries before their places are written anew.
        self.ring.consumer().load(Ordering::Acquire)
    }

    /// Whether the kernel takes nothing before it is called.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.needs_wakeup()
    }
}

/// A ring out of which the kernel's entries are taken: of frames that arrived, or were sent.
#[derive(Debug)]
pub(super) struct FromKernel<T> {
    ring: Shared<T>,
    next: u32,
    /// Entries before this are known to be there.
    there: u32,
}

impl<T: Entry> FromKernel<T> {
    pub(super) fn map(
        socket: BorrowedFd<'_>,
        size: u32,
        offsets: XdpRingOffset,
        at: u64,
    ) -> io::Result<Self> {
        Ok(FromKernel { ring: Shared::map(socket, size, offsets, at)?, next: 0, there: 0 })
    }

    /// Takes an entry out.
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.next == self.there {
            // Acquire: the entries are read after the index that says that they are there.
            self.there = self.ring.producer().load(Ordering::Acquire);
            if self.next == self.there {
                return None;
            }
        }
        // SAFETY: needed to read what the kernel wrote. It has published this entry and does not write the place again before
        // `release`; any bytes are a T.
        let entry = unsafe { self.ring.entry(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(entry)
    }

    /// Gives the places of all that was taken out back to the kernel.
    pub(super) fn release(&mut self) {
        // Release: the entries were read before the kernel may write their places.
        self.ring.consumer().store(self.next, Ordering::Release);
    }
}
