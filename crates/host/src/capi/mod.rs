//! The `toe_` functions of `include/toe.h`: the socket and epoll calls with a prefix (TOE Manager thesis, section 3.3).
//!
//! Called by C programs that link the library. Each function turns C arguments into those of the Rust interface and
//! an error into -1 and `errno`. The header is generated from the comments here.

mod arguments;
pub mod datagram;
pub mod epoll;
pub mod file;
pub mod socket;
mod stream;

use crate::stack::{EngineIdx, Stack};
use crate::sys;
use std::ffi::c_int;
use toe_abi::errno::Errno;

fn fail(errno: Errno) -> c_int {
    sys::set_errno(errno);
    -1
}

fn status(result: Result<(), Errno>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(errno) => fail(errno),
    }
}

fn count(result: Result<usize, Errno>) -> libc::ssize_t {
    match result {
        Ok(n) => n as libc::ssize_t,
        Err(errno) => fail(errno) as libc::ssize_t,
    }
}

/// Attaches this process to an engine: to the one whose socket's path is in the environment variable TOE_ENGINE, else
/// to the user's engine named "default", else to root's. Calling it again while attached does nothing. The other
/// functions attach by themselves at first use; call this to find out early.
///
/// Blocks until the engine has answered. Any thread may call it.
///
/// Returns 0, or -1 with errno:
/// ECONNREFUSED: no engine listens there; EACCES, EPERM: the engine refuses this user; EPROTO: the engine speaks
/// another version of the host interface; ENOMEM, EMFILE: out of memory or descriptors.
#[unsafe(no_mangle)]
pub extern "C" fn toe_init() -> c_int {
    status(Stack::attach(EngineIdx::FIRST).map(|_| ()))
}

/// Ends the session: the engine ends every connection and listener of this process, with FIN, or RST where received
/// data was not read. Their descriptors stay open until toe_close and then give ECONNRESET.
///
/// Does not block. Any thread may call it; threads inside other functions return.
#[unsafe(no_mangle)]
pub extern "C" fn toe_terminate() {
    Stack::detach();
}
