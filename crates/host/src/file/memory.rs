//! Files that lie in memory (tmpfs, and with it memfd). Their reads and writes take no flag that nothing is to be waited for, and need
//! none but for pages that were swapped out. Used by [`super::source`].

use super::kind::is_file;
use rustix::fd::{AsRawFd, BorrowedFd};

/// As `f_type` of statfs(2) has it.
const TMPFS_MAGIC: u32 = 0x0102_1994;
/// Most that is looked at in one go: it takes time for each page.
const LOOK: u64 = 4 << 20;
/// The number of cachestat(2), on every processor; libc's table has it only on some.
const SYS_CACHESTAT: libc::c_long = 451;

/// Whether the file is of this kind.
pub fn is_in_memory(file: BorrowedFd<'_>) -> bool {
    is_file(file) && rustix::fs::fstatfs(file).is_ok_and(|fs| fs.f_type as u32 == TMPFS_MAGIC)
}

/// Which part of such a file was seen to have nothing swapped out.
#[derive(Debug, Default)]
pub struct Memory {
    from: u64,
    to: u64,
}

impl Memory {
    /// Whether none of `len` bytes from `position` on was swapped out when it was looked, of `left` that will be asked for. `false` also
    /// where that cannot be known.
    pub fn has(&mut self, file: BorrowedFd<'_>, position: u64, len: usize, left: usize) -> bool {
        let end = position.saturating_add(len as u64);
        if position < self.from || end > self.to {
            let look = LOOK.min(left as u64).max(len as u64);
            if swapped(file, position, look) != Some(false) {
                return false;
            }
            (self.from, self.to) = (position, position.saturating_add(look));
        }
        true
    }
}

/// Whether pages of this range were swapped out; `None`: the kernel does not tell (it is older than Linux 6.5, or the file another user's).
fn swapped(file: BorrowedFd<'_>, position: u64, len: u64) -> Option<bool> {
    // struct cachestat_range, and struct cachestat: nr_cache, nr_dirty, nr_writeback, nr_evicted, nr_recently_evicted.
    let range = [position, len];
    let mut stat = [0u64; 5];
    // SAFETY: needed because no crate has the call. Both are as long as the kernel's structures, which consist of words of 64 bits, and
    // outlive the call.
    let outcome = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), stat.as_mut_ptr(), 0 as libc::c_uint)
    };
    (outcome == 0).then_some(stat[3] > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn a_file_in_memory_is_known_and_what_is_there_is_at_hand() {
        let fd = rustix::fs::memfd_create("memory-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        assert!(is_in_memory(fd.as_fd()));
        let (pipe, _other) = rustix::pipe::pipe().expect("a pipe");
        assert!(!is_in_memory(pipe.as_fd()));
        assert!(!is_in_memory(rustix::fs::CWD.as_fd()));
        rustix::io::write(&fd, &[1; 10_000]).expect("room");
        // Where the kernel knows the call, holes and what is past the end are at hand too.
        if let Some(is_swapped) = swapped(fd.as_fd(), 0, 4096) {
            assert!(!is_swapped);
            let mut memory = Memory::default();
            assert!(memory.has(fd.as_fd(), 100, 9_000, 9_000));
            assert!(memory.has(fd.as_fd(), 1 << 30, 1 << 23, usize::MAX));
        }
    }
}
