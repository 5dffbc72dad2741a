//! Files that were opened with O_DIRECT: their disks take and give whole blocks, from and to memory that begins at one. Bytes of a connection
//! begin and end anywhere. So what is read is read around what is wanted, and what is written goes by the page cache.

use super::copy::Copy;
use super::kind::at_hand;
use crate::file::locks::has_own_locks;
use crate::session::Session;
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

/// Reads up to `len` bytes from `position` on into `buffer`, whole blocks around them. Where in it they begin; it ends with them.
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
pub fn buffered(session: &'static Session, file: BorrowedFd<'_>) -> Option<Copy> {
    let flags = rustix::fs::fcntl_getfl(file).ok()?;
    let known = at_hand(file)?;
    let takes_pages = matches!(known.kind, FileType::RegularFile | FileType::BlockDevice);
    if !has_mark(flags) || !takes_pages || flags & OFlags::RWMODE == OFlags::RDONLY {
        return None;
    }
    let again = flags & OFlags::APPEND | OFlags::WRONLY;
    let open = |closed| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        rustix::fs::open(path, again | closed, Mode::empty()).ok().map(Fd::from)
    };
    if !has_own_locks(file) {
        return Copy::keep(session, sys::move_to_high(open(OFlags::CLOEXEC)?)).ok();
    }
    // It stays open as long as the locks, and as they do over exec: where the program's own descriptor ends them there, it is closed there, too.
    // One such for all calls; and to move it would close a descriptor of the file.
    let is_such = |fd| {
        let is_open_so = |flags: OFlags| flags & (OFlags::APPEND | OFlags::RWMODE | OFlags::DIRECT) == again;
        at_hand(sys::borrow(fd)).is_some_and(|other| other.file == known.file)
            && rustix::fs::fcntl_getfl(sys::borrow(fd)).is_ok_and(is_open_so)
    };
    let goes_by_exec = rustix::io::fcntl_getfd(file).ok()?.contains(rustix::io::FdFlags::CLOEXEC);
    let closed = if goes_by_exec { OFlags::CLOEXEC } else { OFlags::empty() };
    Copy::again(session, is_such).or_else(|| Copy::keep(session, open(closed)?).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;

    #[test]
    fn blocks_around_what_is_wanted_are_read_and_left_out() {
        let bytes: Vec<u8> = (0..20_000u32).map(|n| (n % 251) as u8).collect();
        let fd = rustix::fs::memfd_create("blocks", rustix::fs::MemfdFlags::CLOEXEC).expect("a file");
        rustix::io::write(&fd, &bytes).expect("room");
        let mut buffer = Vec::new();
        for (position, len, there) in
            [(0, 1, 1), (4095, 2, 2), (5000, 9000, 9000), (19_990, 100, 10), (20_000, 5, 0)]
        {
            let at = read(fd.as_fd(), position, len, &mut buffer).expect("read");
            let from = position as usize;
            assert_eq!(buffer[at..], bytes[from.min(20_000)..from.min(20_000) + there], "from {position}");
        }
    }
}
