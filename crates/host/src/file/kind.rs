//! What a descriptor of the program's is of, as far as a transfer asks. Each question is a system call (fstat(2), statx(2)).

use rustix::fd::BorrowedFd;
use rustix::fs::FileType;

/// `None`: it is no descriptor.
pub fn kind(file: BorrowedFd<'_>) -> Option<FileType> {
    rustix::fs::fstat(file).ok().map(|stat| FileType::from_raw_mode(stat.st_mode))
}

/// Of a regular file, as it is now; `None`: it is none.
pub fn size(file: BorrowedFd<'_>) -> Option<u64> {
    let stat = rustix::fs::fstat(file).ok()?;
    is_regular(&stat).then_some(stat.st_size as u64)
}

pub fn is_regular(stat: &rustix::fs::Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub fn is_file(file: BorrowedFd<'_>) -> bool {
    kind(file) == Some(FileType::RegularFile)
}

pub fn is_pipe(file: BorrowedFd<'_>) -> bool {
    kind(file) == Some(FileType::Fifo)
}

/// What is known of a descriptor's file without a question to its disk, which may not answer.
#[derive(Clone, Copy, Debug)]
pub struct AtHand {
    pub kind: FileType,
    /// Device and inode.
    pub file: (u64, u64),
}

/// `None`: it is no descriptor, or the kernel does not say.
pub fn at_hand(file: BorrowedFd<'_>) -> Option<AtHand> {
    use rustix::fs::{AtFlags, StatxFlags, makedev, statx};
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let known = statx(file, c"", flags, StatxFlags::TYPE | StatxFlags::INO).ok()?;
    let device = makedev(known.stx_dev_major, known.stx_dev_minor);
    Some(AtHand { kind: FileType::from_raw_mode(known.stx_mode.into()), file: (device, known.stx_ino) })
}
