//! Who has the keys of a connection: the process that set them. What its children, the programs that it executes and those that it passes the
//! descriptor to would send without keys is not what the peer waits for, and two processes with one key would use a nonce twice. So whoever
//! has no keys cannot take the connection over, and knows by a mark of the open file, which all of them share: O_NOATIME, which does nothing to
//! an anchor.

use crate::socket::Socket;
use crate::sys;
use rustix::fd::RawFd;
use toe_abi::errno::Errno;

const MARK: i32 = libc::O_NOATIME;

/// Whether the connection of this anchor has keys somewhere.
pub fn is_marked(anchor: RawFd) -> bool {
    // Where system calls are filtered a further one may be the process's end.
    !crate::sys::is_filtered() && sys::fcntl(anchor, libc::F_GETFL, 0).is_ok_and(|flags| flags & MARK != 0)
}

/// Marks the anchor `fd`, or takes the mark away.
fn set_mark(fd: RawFd, on: bool) -> Result<(), Errno> {
    let flags = sys::fcntl(fd, libc::F_GETFL, 0)?;
    let flags = if on { flags | MARK } else { flags & !MARK };
    sys::fcntl(fd, libc::F_SETFL, flags.into()).map(|_| ())
}

impl Socket {
    pub(super) fn mark_keys(&self) -> Result<(), Errno> {
        self.fds.ask(|fd| set_mark(fd, true))
    }

    /// The anchor `fd` is to serve another connection.
    pub(crate) fn unmark_keys(fd: RawFd) {
        let _ = set_mark(fd, false);
    }

    /// What the library has set among the flags of its descriptor, and the program is neither to see nor to take away.
    pub fn own_flags(&self) -> i32 {
        if self.peek_stream(|stream| stream.ulp.tls.is_some()) == Some(true) { MARK } else { 0 }
    }
}
