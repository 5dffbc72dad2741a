//! Copies of descriptors of the program's files. With the close of any descriptor of a file a process loses its locks of it (fcntl(2), F_SETLK),
//! so there is none of a file that it has locks of; and one that it comes to lock later is not closed before they are gone.

use super::kind::at_hand;
use crate::own_fds::OwnCopy;
use crate::session::Session;
use crate::sys::{self, Fd};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::fs::FileType;
use toe_abi::errno::Errno;

/// Such a copy.
#[derive(Debug)]
pub struct Copy {
    copy: Option<OwnCopy>,
    is_file: bool,
}

impl Copy {
    pub fn of(session: &'static Session, file: BorrowedFd<'_>) -> Result<Copy, Errno> {
        let is_file = at_hand(file).is_some_and(|known| known.kind == FileType::RegularFile);
        let fd = file.as_raw_fd();
        let copy = if is_file { session.own_fds().copy_of_file(fd) } else { session.own_fds().copy_of(fd) };
        Ok(Copy { copy: Some(copy?), is_file })
    }

    /// Another descriptor of the file that the library has opened.
    pub fn keep(session: &'static Session, opened: Fd) -> Result<Copy, Errno> {
        Ok(Copy { copy: Some(session.own_fds().keep_file(opened)?), is_file: true })
    }

    /// One that an earlier call had and that is still open for its locks' sake.
    pub fn again(session: &Session, wanted: impl Fn(RawFd) -> bool) -> Option<Copy> {
        session.own_fds().take_unused(wanted).map(|copy| Copy { copy: Some(copy), is_file: true })
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        sys::borrow(self.copy.as_ref().map_or(-1, OwnCopy::raw))
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.copy.take().filter(|_| self.is_file).into_iter().for_each(OwnCopy::close_without_locks);
    }
}
