//! `struct aiocb`: what a program asks for, and what became of it. Where the C library keeps the latter is part of its ABI, as
//! programs have the structure; it is kept there here, too, so that its aio_error and aio_return see it.

use super::notice::Event;
use core::ffi::c_int;
use core::mem::offset_of;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{Ordering, fence};
use libc::{aiocb, off_t};
use toe::{Errno, program_memory};

/// The structure as the C library has it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Block {
    pub fd: c_int,
    pub operation: c_int,
    /// By how much its priority is lower than the program's.
    pub lowered: c_int,
    pub buf: usize,
    pub len: usize,
    pub event: Event,
    _next: usize,
    _priority: c_int,
    _policy: c_int,
    error: c_int,
    result: isize,
    pub offset: off_t,
    _reserved: [usize; 4],
}

const _: () = assert!(size_of::<Block>() == size_of::<aiocb>());
const _: () = assert!(offset_of!(Block, event) == offset_of!(aiocb, aio_sigevent));
const _: () = assert!(offset_of!(Block, offset) == offset_of!(aiocb, aio_offset));

/// Where a program's block is. It need not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AiocbPtr(usize);

impl AiocbPtr {
    pub fn of(at: *const aiocb) -> AiocbPtr {
        AiocbPtr(at.expose_provenance())
    }

    pub fn is_null(self) -> bool {
        self.0 == 0
    }

    pub fn as_ptr(self) -> *mut aiocb {
        with_exposed_provenance_mut(self.0)
    }

    pub fn read(self) -> Option<Block> {
        // SAFETY: needed to see what the program asks for; numbers, of which all are good.
        unsafe { program_memory::read(self.as_ptr().cast::<Block>()) }.ok()
    }

    /// What aio_error(3) says.
    fn error(self) -> Option<c_int> {
        let at = self.0.checked_add(offset_of!(Block, error))?;
        // SAFETY: as above.
        unsafe { program_memory::read(with_exposed_provenance_mut::<c_int>(at)) }.ok()
    }

    /// `None`: the block is not there.
    pub fn is_in_progress(self) -> Option<bool> {
        self.error().map(|error| error == libc::EINPROGRESS)
    }

    fn put<T: Copy>(self, offset: usize, value: T) -> Result<(), Errno> {
        let at = with_exposed_provenance_mut::<T>(self.0.wrapping_add(offset));
        // SAFETY: needed because the block is the program's, which gave it for this; where it is not, it is an error.
        unsafe { program_memory::write(at, value) }
    }

    pub fn begin(self, operation: c_int) -> Result<(), Errno> {
        self.put(offset_of!(Block, operation), operation)?;
        self.put(offset_of!(Block, error), libc::EINPROGRESS)?;
        self.put(offset_of!(Block, result), 0isize)
    }

    /// From the last store on the block is the program's again. A block that is gone by then nobody looks at.
    pub fn end(self, result: Result<usize, Errno>) {
        let (result, error) = match result {
            Ok(len) => (len as isize, 0),
            Err(error) => (-1, c_int::from(error.0)),
        };
        let _ = self.put(offset_of!(Block, result), result);
        fence(Ordering::Release);
        let _ = self.put(offset_of!(Block, error), error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The C library reads what is written here.
    #[test]
    fn the_c_library_finds_what_became_of_a_request() {
        unsafe extern "C" {
            fn aio_error(block: *const aiocb) -> c_int;
            fn aio_return(block: *mut aiocb) -> isize;
        }
        // SAFETY: all zeros are a valid block, a local.
        unsafe {
            let mut block: aiocb = core::mem::zeroed();
            let aiocb = AiocbPtr::of(&raw mut block);
            aiocb.begin(1).unwrap();
            assert_eq!((aio_error(&block), block.aio_lio_opcode), (libc::EINPROGRESS, 1));
            assert_eq!(aiocb.is_in_progress(), Some(true));
            aiocb.end(Ok(7));
            assert_eq!((aio_error(&block), aio_return(&mut block)), (0, 7));
            aiocb.end(Err(Errno::EPIPE));
            assert_eq!((aio_error(&block), aio_return(&mut block)), (libc::EPIPE, -1));
        }
        assert_eq!(AiocbPtr::of(core::ptr::null()).begin(0), Err(program_memory::EFAULT));
    }
}
