//! The program's file for the length of a call. Another thread may close its number, or give that to something else; a call of Linux's goes
//! on with the file that it found, so one that is to wait keeps a copy of the descriptor.

use super::copy::Copy;
use crate::file::locks::has_own_locks;
use crate::session::Session;
use crate::sys;
use rustix::fd::BorrowedFd;
use std::cell::OnceCell;
use toe_abi::errno::Errno;

/// A descriptor of the program's and, once the call waits, what goes on standing for its file.
#[derive(Debug)]
pub struct PinnedFile<'a> {
    file: BorrowedFd<'a>,
    pinned: OnceCell<Pinned>,
}

#[derive(Debug)]
enum Pinned {
    Copy(Copy),
    /// There can be none: device and inode of the file, to know it by. `None`: it was no file by then.
    Identity(Option<(u64, u64)>),
}

impl<'a> PinnedFile<'a> {
    pub fn of(file: BorrowedFd<'a>) -> PinnedFile<'a> {
        PinnedFile { file, pinned: OnceCell::new() }
    }

    /// What to read from or write to.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match self.pinned.get() {
            Some(Pinned::Copy(copy)) => copy.fd(),
            _ => self.file,
        }
    }

    /// The call cannot go on at once: from here on the file is the one that has the number now. Nothing is done for one that can.
    pub fn keep(&self, engine: Option<&'static Session>) {
        self.pinned.get_or_init(|| {
            let pinned = engine.filter(|_| !sys::is_filtered()).map(|session| Pinned::of(session, self.file));
            pinned.and_then(Result::ok).unwrap_or_else(|| Pinned::Identity(identity(self.file)))
        });
    }

    /// One that is kept from the beginning.
    pub fn pinned(session: &'static Session, file: BorrowedFd<'a>) -> Result<PinnedFile<'a>, Errno> {
        Ok(PinnedFile { file, pinned: OnceCell::from(Pinned::of(session, file)?) })
    }

    /// Whether what was just read, or is to be written, through [`PinnedFile::fd`] is this file's. Where no copy could be kept the number may be another's by now.
    pub fn is_same(&self) -> bool {
        match self.pinned.get() {
            Some(Pinned::Identity(then)) => then.is_some() && identity(self.file) == *then,
            _ => true,
        }
    }
}

impl Pinned {
    /// No copy of a file that this process has locks of: its close, also that by exec, would end them. When the program closes its own
    /// descriptor of such a file they are gone by its hand.
    fn of(session: &'static Session, file: BorrowedFd<'_>) -> Result<Pinned, Errno> {
        match has_own_locks(file) {
            true => Ok(Pinned::Identity(identity(file))),
            false => Copy::of(session, file).map(Pinned::Copy),
        }
    }
}

fn identity(file: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    fn file() -> std::fs::File {
        rustix::fs::memfd_create("kept-test", rustix::fs::MemfdFlags::CLOEXEC).expect("a file").into()
    }

    #[test]
    fn without_a_copy_another_file_at_the_number_is_known() {
        let (first, second) = (file(), file());
        let number = sys::dup_anywhere(&first).expect("room");
        let pinned = PinnedFile::of(sys::borrow(number.raw()));
        assert!(pinned.is_same(), "nothing is asked of a call that does not wait");
        // Without an engine there is no session to keep a copy in.
        pinned.keep(None);
        assert!(pinned.is_same());
        sys::dup_onto(&second, number.raw(), true).expect("it is open");
        assert!(!pinned.is_same());
    }
}
