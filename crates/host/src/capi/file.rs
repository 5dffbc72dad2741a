//! `toe_directwrite`, `toe_directread`, and the same beside the program: `toe_transfer_…`.

use super::arguments::find;
use super::{count, fail};
use crate::file::job::{Job, Way};
use crate::file::{PinnedFile, Stopped};
use crate::socket::{RecvFlags, SendFlags};
use crate::sys;
use libc::{off_t, ssize_t};
use std::ffi::c_int;
use toe_abi::errno::Errno;

/// A transfer beside the program.
#[allow(non_camel_case_types, reason = "as C has it")]
#[derive(Debug)]
pub struct toe_transfer(Job);

/// A position of the program's: none, when it is negative.
fn position(offset: off_t) -> Option<u64> {
    u64::try_from(offset).ok()
}

/// Sends `length` bytes of `file` from `offset` on, without the program's hands: a part a call, or all of it in one (TOE_ALL: to its
/// end). The file's position stays. The bytes are those that the file has when they are taken, each one copied once.
///
/// Blocks until all is in the engine's hands, unless the socket is non-blocking: then as much as fits. SO_SNDTIMEO limits the wait.
/// A disk is waited for in any case.
///
/// Returns the bytes sent: fewer than `length` where the file has ended; 0: it has no more. Or -1 with errno, if none were: EBADF: `file`
/// is not open for reading; EINVAL: a negative offset; ESPIPE, EISDIR: what it is has no positions; EIO and others of read(2); and those
/// of toe_send, with its SIGPIPE.
#[unsafe(no_mangle)]
pub extern "C" fn toe_directwrite(file: c_int, fd: c_int, offset: off_t, length: usize) -> ssize_t {
    let outcome = find(fd).and_then(|socket| {
        let from = position(offset).ok_or(Errno::EINVAL)?;
        socket.send_file(&PinnedFile::of(sys::borrow(file)), from, length, SendFlags::default())
    });
    if outcome == Err(Errno::EPIPE) {
        sys::raise_sigpipe();
    }
    count(outcome)
}

/// Receives `length` bytes into `file`, without the program's hands: at `offset`, or where the file stands when that is -1 (pipes, too,
/// and what is open for appending). TOE_ALL: all that the peer sends.
///
/// Blocks until all are written, or the stream has ended, unless the socket is non-blocking: then as many as are there. SO_RCVTIMEO limits
/// the wait.
///
/// Returns the bytes written: fewer than `length` where the stream, or the room for the file, has ended; 0: the stream has. Or -1 with
/// errno, if none were: ENOSPC, EDQUOT, EFBIG (and SIGXFSZ: RLIMIT_FSIZE), EIO, EBADF: `file` is not open for writing; EAGAIN: a pipe is
/// full, or nothing is there; and those of toe_recv. What has come and was not written is there for the next call.
#[unsafe(no_mangle)]
pub extern "C" fn toe_directread(fd: c_int, file: c_int, offset: off_t, length: usize) -> ssize_t {
    let outcome = find(fd).and_then(|socket| {
        let file = PinnedFile::of(sys::borrow(file));
        match socket.receive_file(&file, position(offset), length, RecvFlags::default()) {
            Ok(done) | Err(Stopped { done: done @ 1.., .. }) => Ok(done),
            Err(Stopped { errno, .. }) => Err(errno),
        }
    });
    count(outcome)
}

fn begin(fd: c_int, file: c_int, way: Result<Way, Errno>, length: usize) -> *mut toe_transfer {
    let job = find(fd).and_then(|socket| Job::begin(socket, sys::borrow(file), way?, length));
    match job {
        Ok(job) => Box::into_raw(Box::new(toe_transfer(job))),
        Err(errno) => {
            fail(errno);
            std::ptr::null_mut()
        }
    }
}

/// Begins what toe_directwrite does, in a thread of the library's, whether the socket blocks or not: the program goes on at once, and may
/// close both descriptors. Nothing else is to be sent on the socket until it is over. No SIGPIPE is raised.
///
/// A file that the process has locks of (fcntl F_SETLK) is used by the program's own descriptor, because with the close of another one the locks would go:
/// that one is to stay open, or it ends with EBADF. A lock that is taken while it is under way does not outlive an exec.
/// A child made by fork() has nothing of the transfer; one made by _Fork() or clone() has a copy of the file's descriptor until it executes something
/// or ends, and who reads from a pipe sees no end before.
///
/// Does not block. Returns a handle for toe_transfer_end, or a null pointer with errno: EAGAIN: there can be no thread; EMFILE; EBADF,
/// ENOTSOCK, EINVAL; ECONNREFUSED: there is no engine any more.
#[unsafe(no_mangle)]
pub extern "C" fn toe_directwrite_begin(
    file: c_int,
    fd: c_int,
    offset: off_t,
    length: usize,
) -> *mut toe_transfer {
    begin(fd, file, position(offset).map(Way::Write).ok_or(Errno::EINVAL), length)
}

/// Begins what toe_directread does in the same way. Nothing else is to be received on the socket until it is over.
#[unsafe(no_mangle)]
pub extern "C" fn toe_directread_begin(
    fd: c_int,
    file: c_int,
    offset: off_t,
    length: usize,
) -> *mut toe_transfer {
    begin(fd, file, Ok(Way::Read(position(offset))), length)
}

/// # Safety
/// `transfer` is a handle that has not been ended.
unsafe fn job<'a>(transfer: *const toe_transfer) -> &'a Job {
    // SAFETY: the caller's promise, which is the C program's.
    unsafe { &(*transfer).0 }
}

/// A descriptor that is readable when the transfer is over, for toe_poll, toe_epoll_ctl and the kernel's. It goes with toe_transfer_end.
///
/// # Safety
/// `transfer` is a handle that has not been ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toe_transfer_fd(transfer: *const toe_transfer) -> c_int {
    use rustix::fd::AsRawFd;
    // SAFETY: the caller's promise.
    unsafe { job(transfer) }.descriptor().as_raw_fd()
}

/// Bytes that are sent, or written, by now.
///
/// # Safety
/// `transfer` is a handle that has not been ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toe_transfer_done(transfer: *const toe_transfer) -> usize {
    // SAFETY: the caller's promise.
    unsafe { job(transfer) }.done()
}

/// Ends it before its time, within a twentieth of a second: with ECANCELED, unless it is over before. Does not block.
///
/// # Safety
/// `transfer` is a handle that has not been ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toe_transfer_cancel(transfer: *const toe_transfer) {
    // SAFETY: the caller's promise.
    unsafe { job(transfer) }.cancel();
}

/// Waits until the transfer is over and frees the handle. `done`, unless it is null: how many bytes went.
///
/// Returns 0, or -1 with the errno of toe_directwrite or toe_directread that ended it, or ECANCELED. What came and was not written is there to be
/// received.
///
/// # Safety
/// `transfer` is a handle that has not been ended; `done` is null or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn toe_transfer_end(transfer: *mut toe_transfer, done: *mut usize) -> c_int {
    // SAFETY: a handle is what `Box::into_raw` gave, and it is given back once: the caller's promise.
    let transfer = unsafe { Box::from_raw(transfer) };
    let (bytes, status) = match transfer.0.end() {
        Ok(bytes) => (bytes, 0),
        Err(Stopped { done, errno }) => (done, fail(errno)),
    };
    if !done.is_null() {
        // SAFETY: the caller's promise.
        unsafe { done.write(bytes) };
    }
    status
}
