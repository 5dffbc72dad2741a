//! Files in memory that two processes map, and the mapping of them.

use core::num::NonZeroUsize;
use core::ptr;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags};
use toe_abi::region::{PAGE, RegionLayout};

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A file of `len` zeroed bytes in memory that can neither shrink nor grow.
pub(crate) fn memory_file(len: u64) -> Result<OwnedFd> {
    let file = rustix::fs::memfd_create("toe-region", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(file)
}

/// Such a file, if it is one.
pub(crate) fn checked(file: &impl AsFd, len: u64) -> Result<BorrowedFd<'_>> {
    let is_sealed = rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::SHRINK | SealFlags::GROW);
    let is_so_long = u64::try_from(rustix::fs::fstat(file)?.st_size) == Ok(len);
    if is_sealed && is_so_long { Ok(file.as_fd()) } else { Err(Errno::INVAL) }
}

/// Bytes of a receive part, which is a file of its own and so whole pages.
pub(crate) fn receive_size(layout: &RegionLayout) -> Result<NonZeroUsize> {
    let size = NonZeroUsize::new(layout.receive_len as usize);
    size.filter(|_| layout.receive_len.is_multiple_of(PAGE)).ok_or(Errno::INVAL)
}

/// Maps all of a file, for both sides to see.
pub(crate) fn map_shared(
    file: impl AsFd,
    len: NonZeroUsize,
    access: ProtFlags,
) -> Result<*mut core::ffi::c_void> {
    let flags = MapFlags::SHARED | MapFlags::NORESERVE;
    // SAFETY: needed because a shared mapping is what the interface is made of. The kernel chooses the address
    // (null hint, no MAP_FIXED), so no memory of this process is replaced; the file is as long as the mapping
    // and sealed, so pages of it cannot vanish.
    unsafe { rustix::mm::mmap(ptr::null_mut(), len.get(), access, flags, file, 0) }
}

/// The same in a program that may have asked for all of its future memory to be locked (mlockall(2)): hundreds of MiB would be
/// made at once, of which a program with one connection uses a few pages. One page is mapped, as locked as it must be,
/// unlocked, and grown: what is grown is as locked as what it was.
pub(crate) fn map_shared_unlocked(
    file: impl AsFd,
    len: NonZeroUsize,
    access: ProtFlags,
) -> Result<*mut core::ffi::c_void> {
    use rustix::mm::{MremapFlags, mremap, munlock, munmap};
    let page = NonZeroUsize::new(PAGE as usize).filter(|page| *page < len).unwrap_or(len);
    let start = map_shared(file, page, access)?;
    // SAFETY: needed as in `map_shared`. The range is the mapping that was made just now, to which nothing refers; where it
    // cannot grow, it goes.
    unsafe {
        let _ = munlock(start, page.get());
        mremap(start, page.get(), len.get(), MremapFlags::MAYMOVE)
            .inspect_err(|_| _ = munmap(start, page.get()))
    }
}
