//! MSG_FASTOPEN: sendto(2) and sendmsg(2) that connect, and have bytes for the SYN (RFC 7413). Called by `data`.

use crate::connect::{self, Verdict};
use crate::ffi::{fail, guarded};
use crate::lookup::stream;
use crate::socket_state::{self, State};
use core::ffi::c_int;
use libc::{sockaddr, socklen_t, ssize_t};
use toe::Errno;
use toe::socket::Socket;

/// Whether the call is to connect a socket whose stack is not decided.
pub fn is_asked(fd: c_int, flags: c_int) -> bool {
    flags & libc::MSG_FASTOPEN != 0 && socket_state::get(fd).has(State::TWIN)
}

/// Connects and sends. What fits the SYN goes in it when the engine has a cookie; otherwise bytes are only taken by a call
/// that waits, once connected.
///
/// # Safety
/// The address is null or points to as many readable bytes as it says.
pub unsafe fn connect_sending(
    fd: c_int,
    (addr, len): (*const sockaddr, socklen_t),
    flags: c_int,
    kernel: impl FnOnce() -> ssize_t,
    transmit: impl FnOnce(&'static Socket, c_int) -> ssize_t,
) -> ssize_t {
    let dont_wait = flags & libc::MSG_DONTWAIT != 0;
    // SAFETY: the caller's promise.
    let verdict = guarded(Verdict::Done(-1), || unsafe { connect::sending(fd, addr, len, dont_wait) });
    match verdict {
        Verdict::Pass => kernel(),
        Verdict::Kernel(why, in_kernel) => {
            let sent = kernel();
            guarded((), || connect::kernel_answered(fd, if sent < 0 { -1 } else { 0 }, (why, in_kernel)));
            sent
        }
        Verdict::Done(0) => match stream(fd) {
            Some(socket) => send(socket, dont_wait, |socket| transmit(socket, flags & !libc::MSG_FASTOPEN)),
            None => fail(Errno::EBADF) as ssize_t,
        },
        Verdict::Done(failed) => failed as ssize_t,
    }
}

fn send(
    socket: &'static Socket,
    dont_wait: bool,
    transmit: impl FnOnce(&'static Socket) -> ssize_t,
) -> ssize_t {
    let waited_for = socket.waits_for_bytes();
    let sent = transmit(socket);
    if sent < 0 || !waited_for || dont_wait || socket.nonblocking() {
        return sent;
    }
    // Linux waits for the peer, and tells when it refuses.
    guarded(-1, || match socket.wait_connected(false) {
        Ok(()) | Err(Errno::EISCONN) => sent,
        Err(error) => fail(error) as ssize_t,
    })
}
