//! A session's memory region: a sealed memfd, mapped by the engine and by one host.
//!
//! Owns the mapping and every raw pointer into it. The ring ends, the daemon (data that arrived) and the host library
//! (data to send) call it; each access gives an offset that is checked together with its length, every time.
//!
//! **What may be assumed of the bytes: nothing.** The other process may change any of them at any moment. No
//! reference to them is ever formed, because a `&[u8]` promises that they stand still and a `&mut [u8]` that nobody
//! else looks. Bytes are copied through raw pointers; words of the ring protocol are atomics.

use core::num::NonZeroUsize;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{Mode, OFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::lost_memory::Watched;
use crate::memory_file::{READ_WRITE, checked, map_shared, map_shared_unlocked, memory_file, receive_size};
use crate::sync::Words;
use toe_abi::region::{PAGE, RegionLayout};

const _: () = assert!(usize::BITS == 64, "offsets of a region are 64-bit");

/// An access reached outside the region. On the engine's side the session that asked for it is to be fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange;

/// Bytes that are written at a time. What is lost meanwhile is written to no more, so that the spare pages suffice
/// ([`crate::lost_memory`]).
const STEP: usize = 64 << 10;

impl core::fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("outside the session's memory region")
    }
}

impl core::error::Error for OutOfRange {}

/// The mapping; unmapped when the last [`Region`] on it goes.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
    /// Bytes of it that may be used: all, or none while it is withheld and once it is gone.
    usable: AtomicU64,
    /// The address range was given back.
    is_gone: AtomicBool,
    /// The engine's side: that it outlives what the system has no page for.
    watched: Option<Watched>,
}

// SAFETY: needed so that threads can share a region. A `Mapping` is an address and a length that never change, and an atomic; it
// belongs to the process, not to a thread, and unmapping it from any thread is allowed.
unsafe impl Send for Mapping {}
// SAFETY: needed as above. What can change is an atomic.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_gone.load(Ordering::Relaxed) {
            return;
        }
        self.watched = None;
        // SAFETY: needed to give the address range back. `start` and `len` are exactly what `mmap` returned, and no
        // pointer into the range is left: every `Region` that could make one holds this `Mapping` alive.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len.get()) };
    }
}

/// A mapped region. Cheap to clone: clones share the mapping.
#[derive(Clone, Debug)]
pub struct Region {
    start: NonNull<u8>,
    /// Keeps `start .. start + len` mapped.
    mapping: Arc<Mapping>,
}

// SAFETY: needed so that a region can move to and be used by the threads of a process. The fields are constant;
// all access to the memory behind them is by atomics or by raw copies that tolerate concurrent change (see
// `Region::read`), which the other *process* can cause at any time anyway.
unsafe impl Send for Region {}
// SAFETY: as for `Send`.
unsafe impl Sync for Region {}

impl Region {
    /// The engine's side: makes a zeroed region of `len` bytes that can neither shrink nor grow, whoever holds its
    /// descriptor. Memory is taken page by page, at the first write. The descriptor is for the host, who can still punch
    /// holes into it: what is handed out is [`Region::withhold`] until it is [`Region::settle`]d.
    pub fn create(len: u64) -> Result<(Region, OwnedFd)> {
        let file = memory_file(len)?;
        Ok((Region::map_watched(&file, len)?, file))
    }

    /// Memory of this process alone, all of which the system has promised: where it cannot, that shows here and not later.
    pub fn reserve(len: u64) -> Result<Region> {
        let size = NonZeroUsize::new(len as usize).ok_or(Errno::INVAL)?;
        // SAFETY: needed because it is to be given back page by page, as the memory of sessions is. The kernel chooses the
        // address (null hint, no MAP_FIXED), so no memory of this process is replaced.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), size.get(), READ_WRITE, MapFlags::SHARED)? };
        Region::of_mapping(start, size, true)
    }

    /// Maps a file whose pages may turn out not to be there.
    pub(crate) fn map_watched(file: impl AsFd, len: u64) -> Result<Region> {
        let size = NonZeroUsize::new(len as usize).ok_or(Errno::INVAL)?;
        Region::of_mapping(map_shared(file, size, READ_WRITE)?, size, true)
    }

    /// Maps a file whose pages, if they are not there, are the process's end: the host's side.
    pub(crate) fn map_unwatched(file: impl AsFd, len: u64) -> Result<Region> {
        let size = NonZeroUsize::new(len as usize).ok_or(Errno::INVAL)?;
        Region::of_mapping(map_shared_unlocked(file, size, READ_WRITE)?, size, false)
    }

    fn of_mapping(start: *mut core::ffi::c_void, len: NonZeroUsize, is_watched: bool) -> Result<Region> {
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        let usable = AtomicU64::new(len.get() as u64);
        // From here on it is unmapped when it goes, whatever happens.
        let mut mapping = Mapping { start, len, usable, is_gone: AtomicBool::new(false), watched: None };
        if is_watched {
            mapping.watched = Some(Watched::new(start.as_ptr() as usize, len.get())?);
        }
        Ok(Region { start, mapping: Arc::new(mapping) })
    }

    /// Makes the region of a new session and writes its header page. The descriptors are for the host: of the region's file, and of that of
    /// its receive part. That one the host only reads: it can neither write to it nor punch holes nor map it for writing, so that the engine
    /// can still give pages of it back.
    pub fn create_for(layout: &RegionLayout, session: u16) -> Result<(Region, [OwnedFd; 2])> {
        let (region, file) = Region::create(layout.len())?;
        let received = memory_file(layout.receive_len)?;
        region.put(layout, map_shared(&received, receive_size(layout)?, READ_WRITE)?)?;
        // Nobody but its owner opens it anew.
        rustix::fs::fchmod(&received, Mode::RUSR | Mode::WUSR)?;
        let name = format!("/proc/self/fd/{}", received.as_raw_fd());
        let to_read = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        region.write_record(0, &layout.header(session)).map_err(|OutOfRange| Errno::INVAL)?;
        Ok((region, [file, to_read]))
    }

    /// The host's side of that.
    pub fn map_for(layout: &RegionLayout, [file, to_read]: [impl AsFd; 2]) -> Result<Region> {
        let region = Region::map(file, layout.len())?;
        let to_read = checked(&to_read, layout.receive_len)?;
        region.put(layout, map_shared_unlocked(to_read, receive_size(layout)?, ProtFlags::READ)?)?;
        let (start, len) = (region.start.as_ptr().cast(), region.mapping.len.get());
        // SAFETY: needed to keep it from children of forks, which would only have to give it back. The range is exactly what was mapped, and
        // nothing changes in this process.
        unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxDontFork) }.map(|()| region)
    }

    /// Puts what is mapped elsewhere into the place of the receive part.
    fn put(&self, layout: &RegionLayout, received: *mut core::ffi::c_void) -> Result<()> {
        let size = receive_size(layout)?.get();
        let at = self.at(layout.receive_offset(), size).map_err(|OutOfRange| Errno::INVAL)?;
        let (flags, to) = (rustix::mm::MremapFlags::MAYMOVE, at.cast());
        // SAFETY: needed because the region is one range of addresses. `received` is a mapping of `size` bytes that was made just now and to
        // which nothing refers; the place is within the region's mapping (checked above), on page borders (`receive_size`), and nobody
        // has looked there yet.
        unsafe {
            rustix::mm::mremap_fixed(received, size, size, flags, to)
                .inspect_err(|_| _ = rustix::mm::munmap(received, size))
                .map(|_| ())
        }
    }

    /// The host's side: maps a region that an engine made. `EINVAL` unless it is exactly `len` bytes long and sealed
    /// against shrinking, without which a later access could end in SIGBUS. Where the system has no memory for a page at its
    /// first touch it still does, as in any memory of a program's own.
    pub fn map(file: impl AsFd, len: u64) -> Result<Region> {
        Region::map_unwatched(checked(&file, len)?, len)
    }

    /// Before others get the file: every access is out of range until it is [`Region::settle`]d or [`Region::open`]ed. Who has the file
    /// can punch holes into it, and a page fault in a hole waits until the punch is over, which takes as long as he likes: he
    /// makes thousands of mappings, from which each page has to be taken.
    pub fn withhold(&self) {
        self.mapping.usable.store(0, Ordering::Release);
    }

    /// The end of [`Region::withhold`], once all who are to write have mapped it: from now on nobody punches (or asks the system to, by
    /// MADV_REMOVE), writes by a system call or maps it for writing, and what is mapped goes on. EPERM: somebody has kept it
    /// from that.
    ///
    /// It waits for the lock of the file's inode, which whoever has the file holds for as long as he likes: a `write` to it
    /// of memory that comes late. So not to be called by a thread for which others wait. Once it is settled nothing here waits for that lock.
    pub fn settle(&self, file: impl AsFd) -> Result<()> {
        let file = file.as_fd();
        if !rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::FUTURE_WRITE) {
            rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?;
        }
        self.open();
        Ok(())
    }

    /// The end of [`Region::withhold`] on the side of a host, who has heard that it is settled.
    pub fn open(&self) {
        if !self.mapping.is_gone.load(Ordering::Relaxed) {
            self.mapping.usable.store(self.mapping.len.get() as u64, Ordering::Release);
        }
    }

    /// The host's side of what the engine alone writes, of which the same holds.
    pub fn map_to_read(file: impl AsFd, len: u64) -> Result<Region> {
        let size = NonZeroUsize::new(len as usize).ok_or(Errno::INVAL)?;
        let is_sealed = rustix::fs::fcntl_get_seals(file.as_fd())?.contains(SealFlags::SHRINK);
        if !is_sealed || u64::try_from(rustix::fs::fstat(file.as_fd())?.st_size) != Ok(len) {
            return Err(Errno::INVAL);
        }
        // SAFETY: needed as in `map_shared`.
        let start = unsafe {
            rustix::mm::mmap(ptr::null_mut(), size.get(), ProtFlags::READ, MapFlags::SHARED, file, 0)?
        };
        Region::of_mapping(start, size, false)
    }

    /// Whether the system had no memory for a byte of it. Nothing is written to it any more.
    pub fn is_lost(&self) -> bool {
        self.mapping.watched.as_ref().is_some_and(Watched::is_lost)
    }

    /// Bytes in the region.
    pub fn len(&self) -> u64 {
        self.mapping.usable.load(Ordering::Relaxed)
    }

    /// Whether it has been given up, or is withheld.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives the address range back, whoever else has a clone: to all of them every access is out of range from now on.
    /// For the child of a fork, whose parent's regions would take up its address space.
    ///
    /// # Safety
    /// No other thread is in a method of the region or a clone, and nobody holds what [`Region::lend`] gave.
    pub unsafe fn abandon(&self) {
        self.mapping.usable.store(0, Ordering::Relaxed);
        if self.mapping.is_gone.swap(true, Ordering::Relaxed) {
            return;
        }
        // SAFETY: needed to give the address range back. It is exactly what `mmap` returned; no pointer into it is in use,
        // as nobody is in a method (the caller's promise), and none will be made, as every access is checked against 0.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.mapping.len.get()) };
    }

    /// Whether `len` bytes from `offset` lie in the region.
    pub fn contains(&self, offset: u64, len: u64) -> bool {
        let usable = self.len();
        offset <= usable && len <= usable - offset
    }

    /// The address of `offset`, good for `len` bytes.
    fn at(&self, offset: u64, len: usize) -> core::result::Result<*mut u8, OutOfRange> {
        if !self.contains(offset, len as u64) {
            return Err(OutOfRange);
        }
        // SAFETY: needed to get from the checked offset to an address. `offset` is at most the length of
        // the one mapping that starts at `start`, so the result is within it or one past its end.
        Ok(unsafe { self.start.as_ptr().add(offset as usize) })
    }

    /// The same, to be written to: nowhere in a region that is lost.
    fn at_mut(&self, offset: u64, len: usize) -> core::result::Result<*mut u8, OutOfRange> {
        if self.is_lost() { Err(OutOfRange) } else { self.at(offset, len) }
    }

    /// Copies `from` into the region past this core's cache: what is large, and another core reads next.
    pub fn write_past_cache(&self, offset: u64, from: &[u8]) -> core::result::Result<(), OutOfRange> {
        let mut offset = offset;
        self.at(offset, from.len())?;
        for step in from.chunks(STEP) {
            let to = self.at_mut(offset, step.len())?;
            // SAFETY: needed as in `write`, and sound for the same reasons.
            unsafe { crate::copies::past_cache(step.as_ptr(), to, step.len()) };
            offset += step.len() as u64;
        }
        Ok(())
    }

    /// Copies `from` into the region.
    pub fn write(&self, offset: u64, from: &[u8]) -> core::result::Result<(), OutOfRange> {
        let mut offset = offset;
        self.at(offset, from.len())?;
        for step in from.chunks(STEP) {
            let to = self.at_mut(offset, step.len())?;
            // SAFETY: needed because the bytes are shared with another process. `to` is good for `step.len()` bytes
            // (checked above) and `step` is ordinary memory, which the mapping never overlaps because no reference into
            // it exists. On concurrent change see `read`; what the other side finds then is its own loss.
            unsafe { ptr::copy_nonoverlapping(step.as_ptr(), to, step.len()) };
            offset += step.len() as u64;
        }
        Ok(())
    }

    /// [`Region::write`], and the CRC32C of what was written behind what `crc` is that of.
    pub fn write_summed(&self, offset: u64, from: &[u8], crc: u32) -> core::result::Result<u32, OutOfRange> {
        let (mut offset, mut crc) = (offset, crc);
        self.at(offset, from.len())?;
        for step in from.chunks(STEP) {
            let to = self.at_mut(offset, step.len())?;
            // SAFETY: needed as in `write`, and sound for the same reasons.
            crc = unsafe { crate::summed::copy(crc, step.as_ptr(), to, step.len()) };
            offset += step.len() as u64;
        }
        Ok(crc)
    }

    /// [`Region::read`], and the CRC32C of what was read behind what `crc` is that of.
    pub fn read_summed(&self, offset: u64, to: &mut [u8], crc: u32) -> core::result::Result<u32, OutOfRange> {
        let from = self.at(offset, to.len())?;
        // SAFETY: needed as in `read`, and sound for the same reasons.
        Ok(unsafe { crate::summed::copy(crc, from, to.as_mut_ptr(), to.len()) })
    }

    /// Copies `len` bytes from here to another region, and gives the CRC32C of what was copied behind what `crc` is that of.
    pub fn copy_summed(
        &self,
        offset: u64,
        to: &Region,
        to_offset: u64,
        len: usize,
        crc: u32,
    ) -> core::result::Result<u32, OutOfRange> {
        if Arc::ptr_eq(&self.mapping, &to.mapping) {
            return Err(OutOfRange);
        }
        let (source, mut crc, mut done) = (self.at(offset, len)?, crc, 0);
        to.at(to_offset, len)?;
        while done < len {
            let step = STEP.min(len - done);
            let target = to.at_mut(to_offset + done as u64, step)?;
            // SAFETY: needed to move data between two memories without a detour. Both pointers are good for `step` bytes (checked above),
            // and two mappings are apart. On concurrent change see `read`.
            crc = unsafe { crate::summed::copy(crc, source.add(done), target, step) };
            done += step;
        }
        Ok(crc)
    }

    /// Reads from a file straight into the region: up to `len` bytes from `position` on, as far as they are at hand. Fails with
    /// EAGAIN where a disk would have to be waited for, and with EOPNOTSUPP where the file cannot tell; unless it `may_wait`.
    pub fn read_file(
        &self,
        offset: u64,
        len: usize,
        file: impl AsFd,
        position: u64,
        may_wait: bool,
    ) -> Result<usize> {
        let to = self.at_mut(offset, len).map_err(|OutOfRange| Errno::FAULT)?;
        let position = libc::off_t::try_from(position).map_err(|_| Errno::INVAL)?;
        let into = libc::iovec { iov_base: to.cast(), iov_len: len };
        let (file, flags) = (file.as_fd().as_raw_fd(), if may_wait { 0 } else { libc::RWF_NOWAIT });
        // SAFETY: needed because a slice of shared bytes cannot be had (see `read`). `to` is good for `len` bytes, which the kernel
        // writes as it copies for any other program: what the other side does to them meanwhile is its own loss.
        let got = unsafe { libc::preadv2(file, &into, 1, position, flags) };
        count(got)
    }

    /// The same from a pipe, whose bytes are there.
    pub fn read_pipe(&self, offset: u64, len: usize, pipe: impl AsFd) -> Result<usize> {
        let to = self.at_mut(offset, len).map_err(|OutOfRange| Errno::FAULT)?;
        // SAFETY: as for `read_file`.
        count(unsafe { libc::read(pipe.as_fd().as_raw_fd(), to.cast(), len) })
    }

    /// Writes bytes of the region to a file, at `position` or where it stands, and waits for it unless it is `now` or never (EAGAIN;
    /// EOPNOTSUPP: the file cannot tell).
    pub fn write_file(
        &self,
        offset: u64,
        len: usize,
        file: impl AsFd,
        position: Option<u64>,
        now: bool,
    ) -> Result<usize> {
        let from = self.lend(offset, len).map_err(|OutOfRange| Errno::FAULT)?;
        // -1: where it stands.
        let position = position.map_or(Ok(-1), libc::off_t::try_from).map_err(|_| Errno::INVAL)?;
        let out_of = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: len };
        let (file, flags) = (file.as_fd().as_raw_fd(), if now { libc::RWF_NOWAIT } else { 0 });
        // SAFETY: needed because a slice of shared bytes cannot be had (see `read`). They are good to be read for the call (`lend`), by
        // the kernel, which takes what it finds.
        let put = unsafe { libc::pwritev2(file, &out_of, 1, position, flags) };
        count(put)
    }

    /// Copies from the region into `to`. When the other side writes there meanwhile, each byte is an old or a new
    /// one.
    pub fn read(&self, offset: u64, to: &mut [u8]) -> core::result::Result<(), OutOfRange> {
        let from = self.at(offset, to.len())?;
        // SAFETY: needed because the bytes are shared with another process. `from` is good for `to.len()` bytes
        // (checked above) and `to` cannot overlap the mapping. The other process may be writing: Rust's memory model
        // has no word for that (a racing copy of plain bytes is a data race inside one program, and an atomic
        // memcpy does not exist), so what counts is what the compiler can make of this call: it sees one copy
        // through a pointer that it knows nothing about, out of memory to which no reference exists, into bytes for
        // which every value is valid. It cannot assume that a second copy would find the same, and nothing here
        // copies twice. What is read is checked by whoever uses it, as data from outside.
        unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// [`Region::read`] for much that another core has written.
    pub fn read_much(&self, offset: u64, to: &mut [u8]) -> core::result::Result<(), OutOfRange> {
        let from = self.at(offset, to.len())?;
        // SAFETY: needed as in `read`, and sound for the same reasons.
        unsafe { crate::copies::in_vectors(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// The bytes of a range, for a system call to read. Whoever loads them finds what the other side wrote last.
    pub fn lend(&self, offset: u64, len: usize) -> core::result::Result<&[AtomicU8], OutOfRange> {
        let start = self.at(offset, len)?;
        // SAFETY: needed to hand the bytes on without a copy. `start` is good for `len` bytes (checked above), the
        // mapping outlives the borrow of `self`, a byte needs no alignment, and atomics may change under a shared
        // reference. This process copies plain bytes over them only by other methods of the region, of whose effect on
        // a concurrent access `read` speaks.
        Ok(unsafe { core::slice::from_raw_parts(start.cast::<AtomicU8>().cast_const(), len) })
    }

    /// Copies `len` bytes from one region to another, or within one; ranges may overlap.
    pub fn copy_between(
        from: &Region,
        from_offset: u64,
        to: &Region,
        to_offset: u64,
        len: u32,
    ) -> core::result::Result<(), OutOfRange> {
        let len = len as usize;
        let source = from.at(from_offset, len)?;
        let target = to.at_mut(to_offset, len)?;
        // What is yet to be copied must not be overwritten: to a place behind, the last step comes first.
        let is_backwards = (1..len).contains(&target.addr().wrapping_sub(source.addr()));
        let mut done = 0;
        while done < len && !to.is_lost() {
            let count = STEP.min(len - done);
            let at = if is_backwards { len - done - count } else { done };
            // SAFETY: needed to move data between sessions without a detour. Both pointers are good for `len` bytes
            // (checked above), of which these are a part; `ptr::copy` allows overlap. On concurrent change see `read`.
            unsafe { ptr::copy(source.add(at), target.add(at), count) };
            done += count;
        }
        Ok(())
    }

    /// Writes a record of the interface (a header, an argument block, flow information).
    pub fn write_record<T: IntoBytes + Immutable>(
        &self,
        offset: u64,
        record: &T,
    ) -> core::result::Result<(), OutOfRange> {
        self.write(offset, record.as_bytes())
    }

    /// Reads a record of the interface. Every bit pattern is a valid `T`; what it says is still to be checked.
    pub fn read_record<T: FromBytes + IntoBytes>(&self, offset: u64) -> core::result::Result<T, OutOfRange> {
        let mut record = <T as FromZeros>::new_zeroed();
        self.read(offset, record.as_mut_bytes())?;
        Ok(record)
    }

    fn u32_at(&self, offset: u64) -> core::result::Result<&AtomicU32, OutOfRange> {
        let at = self.at(offset, size_of::<u32>())?.cast::<u32>();
        if !at.is_aligned() {
            return Err(OutOfRange);
        }
        // SAFETY: needed because words of the protocol are read and written by two processes. The pointer is
        // aligned, in the mapping, and the mapping outlives the borrow of `self`. An atomic may change under a
        // shared reference, from this process or another. Nobody copies plain bytes over the words of the protocol.
        Ok(unsafe { AtomicU32::from_ptr(at) })
    }

    /// A word that the other side may change at the same time. `None`: it is out of range, or the memory is lost.
    pub fn word(&self, offset: u64) -> Option<&AtomicU64> {
        self.u64_at(offset).ok().filter(|_| !self.is_lost())
    }

    fn u64_at(&self, offset: u64) -> core::result::Result<&AtomicU64, OutOfRange> {
        let at = self.at(offset, size_of::<u64>())?.cast::<u64>();
        if !at.is_aligned() {
            return Err(OutOfRange);
        }
        // SAFETY: as in `u32_at`.
        Ok(unsafe { AtomicU64::from_ptr(at) })
    }

    /// Reads the word at `offset` (acquire). A misaligned offset counts as out of range.
    pub fn read_u32(&self, offset: u64) -> core::result::Result<u32, OutOfRange> {
        Ok(self.u32_at(offset)?.load(Ordering::Acquire))
    }

    /// Writes the word at `offset` (release). A misaligned offset counts as out of range.
    pub fn write_u32(&self, offset: u64, value: u32) -> core::result::Result<(), OutOfRange> {
        self.at_mut(offset, size_of::<u32>())?;
        self.u32_at(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// The same for a word of the first page, which is written also where another page of the region was lost.
    pub fn mark(&self, offset: u64, value: u32) -> core::result::Result<(), OutOfRange> {
        let is_gone = self.mapping.watched.as_ref().is_some_and(Watched::is_first_page_lost);
        if is_gone || offset >= PAGE {
            return Err(OutOfRange);
        }
        self.u32_at(offset)?.store(value, Ordering::Release);
        Ok(())
    }

    /// Whether it is the same mapping, and not just one of another session with its number.
    pub fn is_same(&self, other: &Region) -> bool {
        Arc::ptr_eq(&self.mapping, &other.mapping)
    }

    /// Gives the memory of the whole pages in a range back to the system; they read as zero afterwards. The bytes
    /// of the range must mean nothing to anyone any more.
    ///
    /// It waits for the lock of the file's inode, which whoever has the file holds for as long as he likes: a `write` to it
    /// of memory that comes late. So not to be called for a host's region by a thread for which others wait.
    pub fn fill_hole(&self, offset: u64, len: u64) -> Result<()> {
        if !self.contains(offset, len) {
            return Err(Errno::INVAL);
        }
        let first = offset.next_multiple_of(PAGE);
        let last = (offset + len) / PAGE * PAGE;
        if last <= first {
            return Ok(());
        }
        let at = self.at(first, (last - first) as usize).map_err(|OutOfRange| Errno::INVAL)?;
        // SAFETY: needed because the system call takes an address. The range was checked to lie in the mapping, and
        // the call only makes bytes of it zero, as the other process could at any time.
        unsafe { rustix::mm::madvise(at.cast(), (last - first) as usize, Advice::LinuxRemove) }
    }
}

impl Words for Region {
    fn spans(&self, offset: u64, len: u64) -> bool {
        self.contains(offset, len) && offset.is_multiple_of(8)
    }

    #[inline]
    fn load_u64(&self, offset: u64, order: Ordering) -> u64 {
        self.u64_at(offset).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn store_u64(&self, offset: u64, value: u64, order: Ordering) {
        if let (false, Ok(word)) = (self.is_lost(), self.u64_at(offset)) {
            word.store(value, order);
        }
    }

    #[inline]
    fn load_u32(&self, offset: u64, order: Ordering) -> u32 {
        self.u32_at(offset).map_or(0, |word| word.load(order))
    }

    #[inline]
    fn store_u32(&self, offset: u64, value: u32, order: Ordering) {
        if let (false, Ok(word)) = (self.is_lost(), self.u32_at(offset)) {
            word.store(value, order);
        }
    }

    fn replace_u64(&self, offset: u64, old: u64, new: u64, order: Ordering) -> bool {
        let exchange = |word: &AtomicU64| word.compare_exchange(old, new, order, Ordering::Relaxed).is_ok();
        !self.is_lost() && self.u64_at(offset).is_ok_and(exchange)
    }

    fn swap_u32(&self, offset: u64, value: u32, order: Ordering) -> u32 {
        let swap = |word: &AtomicU32| {
            if self.is_lost() { word.load(Ordering::Acquire) } else { word.swap(value, order) }
        };
        self.u32_at(offset).map_or(0, swap)
    }

    fn replace_u32(&self, offset: u64, old: u32, new: u32, order: Ordering) -> bool {
        let exchange = |word: &AtomicU32| word.compare_exchange(old, new, order, Ordering::Relaxed).is_ok();
        !self.is_lost() && self.u32_at(offset).is_ok_and(exchange)
    }

    fn fetch_or_u64(&self, offset: u64, bits: u64, order: Ordering) -> u64 {
        let or = |word: &AtomicU64| {
            if self.is_lost() { word.load(Ordering::Acquire) } else { word.fetch_or(bits, order) }
        };
        self.u64_at(offset).map_or(0, or)
    }
}

/// What a system call said: so many bytes, or what went wrong.
fn count(bytes: isize) -> Result<usize> {
    usize::try_from(bytes)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
