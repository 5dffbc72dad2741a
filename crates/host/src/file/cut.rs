//! A file that is cut short while it is read. The kernel sets the new size, then wipes what is left of the last page (or of the larger
//! folio that it is part of) out; a read that has looked at the size before may copy what has been wiped already, and says that it was there.
//! Linux's own read and sendfile give such zeros; a transfer does not, but for what is left of that (decision 0037).
//!
//! Used by [`super::source`] after each read of a file.

use super::kind;
use rustix::fd::BorrowedFd;

/// What is wiped out ends where some page of the file does, or the read did.
const PAGE: u64 = 4096;

/// How many of `got` bytes, which were read from `position` on, are of the file. The file is asked only where a page ends in a zero, as
/// to ask is a system call; whoever sees the zero sees the new size, which was set before.
pub fn of_the_file(file: BorrowedFd<'_>, position: u64, got: usize, byte: impl Fn(usize) -> u8) -> usize {
    let Some(last) = got.checked_sub(1) else { return 0 };
    let first_end = (PAGE - 1 - position % PAGE) as usize;
    let mut page_ends = (first_end..last).step_by(PAGE as usize);
    if byte(last) != 0 && page_ends.all(|at| byte(at) != 0) {
        return got;
    }
    let left = kind::size(file).map(|size| size.saturating_sub(position));
    left.and_then(|left| usize::try_from(left).ok()).map_or(got, |left| left.min(got))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    /// A file of so many bytes, and what was read of it when it had more.
    fn remaining(size: u64, position: u64, read: &[u8]) -> usize {
        let file = rustix::fs::memfd_create("cut-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::fs::ftruncate(&file, size).expect("room");
        of_the_file(file.as_fd(), position, read.len(), |at| read[at])
    }

    #[test]
    fn what_was_wiped_out_is_not_of_the_file() {
        let mut read = [7; 3 * 4096];
        assert_eq!(remaining(5000, 0, &read), read.len(), "what was there when it was read");
        read[5000..8192].fill(0);
        assert_eq!(remaining(5000, 0, &read), 5000, "the rest of its page");
        assert_eq!(remaining(5000, 0, &read[..6000]), 5000);
        assert_eq!(remaining(5000, 4096, &read[4096..]), 904);
        assert_eq!(remaining(5000, 4000, &read[4000..]), 1000);
        assert_eq!(remaining(0, 4000, &read[4000..]), 0);
        assert_eq!(remaining(1 << 20, 0, &read), read.len(), "zeros of the file");
        assert_eq!(remaining(10, 10, &[]), 0);
    }
}
