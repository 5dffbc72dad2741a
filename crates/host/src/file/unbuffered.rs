//! Files that were opened with O_DIRECT: their disks take and give whole blocks, from and to memory that begins at one. Octets of a connection
//! begin and end anywhere. So what is read is read around what is wanted, and what is written goes by the page cache.

use super::copy::has_locks;
use super::kind::kind;
use crate::sys::{self, Fd};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno as Os;

/// No disk wants more.
const BLOCK: usize = 4096;

pub fn has_mark(flags: OFlags) -> bool {
    flags.contains(OFlags::DIRECT)
}

pub fn is_unbuffered(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(file).is_ok_and(has_mark)
}

/// Reads up to `len` octets from `position` on into `buffer`, whole blocks around them. Where in it they begin; it ends with them.
pub fn read(file: BorrowedFd<'_>, position: u64, len: usize, buffer: &mut Vec<u8>) -> Result<usize, Os> {
    let before = (position % BLOCK as u64) as usize;
    let blocks = (before + len).next_multiple_of(BLOCK);
    buffer.clear();
    buffer.resize(blocks + BLOCK, 0);
    let start = buffer.as_ptr().addr().wrapping_neg() % BLOCK;
    let got = rustix::io::pread(file, &mut buffer[start..start + blocks], position - before as u64)?;
    buffer.truncate(start + got.min(before + len));
    Ok((start + before).min(buffer.len()))
}

/// The same file or block device by the page cache, to be written to; if it is such a one, and can be opened again.
pub fn buffered(file: BorrowedFd<'_>) -> Option<Fd> {
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    let takes_pages = matches!(kind(file), Some(FileType::RegularFile | FileType::BlockDevice));
    if !has_mark(flags) || !takes_pages || flags & OFlags::RWMODE == OFlags::RDONLY {
        return None;
    }
    let again = (flags - OFlags::DIRECT - OFlags::RWMODE) & OFlags::APPEND | OFlags::WRONLY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), again, Mode::empty());
    // To move it would close a descriptor of the file.
    let place = |fd: Fd| if has_locks(file) { fd } else { sys::move_to_high(fd) };
    opened.ok().map(Fd::from).map(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn blocks_around_what_is_wanted_are_read_and_left_out() {
        let octets: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        let fd = rustix::fs::memfd_create("blocks", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::io::write(&fd, &octets).expect("room");
        let mut buffer = Vec::new();
        for (position, len, there) in
            [(0, 1, 1), (4095, 2, 2), (5000, 9000, 9000), (19_990, 100, 10), (20_000, 5, 0)]
        {
            let at = read(fd.as_fd(), position, len, &mut buffer).expect("read");
            let from = position as usize;
            assert_eq!(buffer[at..], octets[from.min(20_000)..from.min(20_000) + there], "from {position}");
        }
    }
}
