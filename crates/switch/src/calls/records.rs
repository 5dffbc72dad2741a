//! Control messages of TLS records on an engine's connection: the type that a program gives with sendmsg, and the one that it is told by
//! recvmsg ([`toe::tls`]).

use super::data::{explained, transmit_by};
use crate::ffi::Vectors;
use core::ffi::c_int;
use libc::{cmsghdr, iovec, msghdr};
use toe::Errno;
use toe::program_memory::{self, check};
use toe::socket::{RecvFlags, SendFlags, Socket};
use toe::tls::{SOL_TLS, TLS_SET_RECORD_TYPE};

/// Control data beyond this is not looked at for a type.
const CONTROL_MAX: usize = 512;
const HEADER: usize = size_of::<cmsghdr>();

/// The record type that a message's control data asks for. EINVAL: a message of that kind that is not one byte long, as Linux says.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn asked_type(message: &msghdr) -> Result<Option<u8>, Errno> {
    let len = message.msg_controllen.min(CONTROL_MAX);
    if len < HEADER || message.msg_control.is_null() {
        return Ok(None);
    }
    let mut control = [0u8; CONTROL_MAX];
    // SAFETY: the program's, which may not be there; ours has room, and is apart.
    unsafe { program_memory::copy(control.as_mut_ptr(), message.msg_control.cast::<u8>(), len) }?;
    let mut rest = &control[..len];
    while let Some((head, _)) = rest.split_at_checked(HEADER) {
        let word = |at: usize| c_int::from_ne_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let size = head.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes));
        let (level, name) = (word(HEADER - 8), word(HEADER - 4));
        if !(HEADER..=rest.len()).contains(&size) {
            return Err(Errno::EINVAL);
        }
        if (level, name) == (SOL_TLS, TLS_SET_RECORD_TYPE) {
            // SAFETY: it takes a number only.
            let one = unsafe { libc::CMSG_LEN(1) } as usize;
            return if size < one { Err(Errno::EINVAL) } else { Ok(rest.get(HEADER).copied()) };
        }
        let step = size.next_multiple_of(size_of::<usize>());
        rest = rest.get(step..).unwrap_or(&[]);
    }
    Ok(None)
}

/// sendmsg(2) of a record of `kind`.
///
/// # Safety
/// `iov` describes readable memory.
pub unsafe fn transmit_record(
    socket: &'static Socket,
    (iov, count): (*const iovec, usize),
    kind: u8,
    is_quiet: bool,
    how: SendFlags,
) -> Result<usize, Errno> {
    // SAFETY: the caller's promise.
    let vectors = unsafe { Vectors::of_message(iov, count)? };
    // SAFETY: as above.
    transmit_by(socket, is_quiet, || socket.send_record(unsafe { vectors.buffers() }, kind, how))
}

/// recvmsg(2), with the record's type in the control data if the connection has records.
///
/// # Safety
/// The message describes writable memory.
pub unsafe fn receive_record(
    socket: &'static Socket,
    message: &mut msghdr,
    how: RecvFlags,
) -> Result<(usize, Option<u8>), Errno> {
    // SAFETY: it takes a number only.
    let needed = unsafe { libc::CMSG_LEN(1) } as usize;
    let can_tell = message.msg_controllen >= needed
        && !message.msg_control.is_null()
        && check(message.msg_control.cast::<u8>(), needed).is_ok();
    // SAFETY: the caller's promise.
    let mut vectors = unsafe { Vectors::of_message(message.msg_iov, message.msg_iovlen)? };
    // SAFETY: as above.
    let got = socket.recv_record(unsafe { vectors.buffers_mut() }, can_tell, how);
    if let Err(errno) = got {
        return explained(socket, Err(errno)).map(|got| (got, None));
    }
    got
}
