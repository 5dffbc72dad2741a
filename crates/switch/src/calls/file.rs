//! sendfile and copy_file_range where one of the two is an engine's socket. What is wrong with a call is looked for in Linux's
//! order.

use super::data::transmit;
use super::{listener, splice, stream};
use crate::ffi::{errno, guarded, last_errno, length, restarted};
use crate::real;
use core::ffi::{c_int, c_uint};
use libc::{off_t, size_t, ssize_t};
use rustix::fs::FileType;
use std::io::IoSlice;
use toe::socket::Socket;
use toe::{Errno, program_memory, sys};

/// Octets read from the file at a time.
const CHUNK: usize = 64 << 10;

/// # Safety
/// As sendfile(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    restarted(|| {
        // SAFETY: the program's arguments.
        let place = || unsafe { offset.as_mut() };
        if !offset.is_null() && stream(out).is_some() && program_memory::check(offset, 1).is_err() {
            return length(Err(program_memory::EFAULT));
        }
        match (stream(out), stream(from)) {
            (_, Some(socket)) => {
                guarded(-1, || length(from_connection(socket, out, !offset.is_null(), count)))
            }
            (Some(socket), None) => guarded(-1, || {
                let put = |part: &[u8], more| {
                    transmit(socket, &[IoSlice::new(part)], if more { libc::MSG_MORE } else { 0 })
                };
                length(send_file(from, place(), count, put))
            }),
            // Its twin bears a mark of ours that the kernel would take for the reason to refuse.
            (None, None) if listener(out).is_some() => {
                guarded(-1, || length(send_file(from, place(), count, |part, _| to_listener(out, part))))
            }
            // SAFETY: the program's arguments, handed on.
            (None, None) => unsafe {
                super::leave_lanes(out);
                real::sendfile(out, from, offset, count)
            },
        }
    })
}

/// Of a socket there is nothing to copy from or to: programs that try it first go on otherwise.
///
/// # Safety
/// As copy_file_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut off_t,
    to: c_int,
    to_offset: *mut off_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    let other = match (stream(from), stream(to)) {
        // SAFETY: the program's arguments, handed on.
        (None, None) => unsafe { return real::copy_file_range(from, from_offset, to, to_offset, len, flags) },
        (Some(_), _) => to,
        (None, Some(_)) => from,
    };
    let refused = match rustix::fs::fstat(sys::borrow(other)) {
        Err(error) => toe::errno::from_os(error),
        Ok(stat)
            if stream(other).is_none() && FileType::from_raw_mode(stat.st_mode) == FileType::Directory =>
        {
            errno(libc::EISDIR)
        }
        Ok(_) => Errno::EINVAL,
    };
    length(Err(refused))
}

/// What Linux says, and does, to who writes to a listener.
pub fn to_listener(fd: c_int, octets: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the octets are readable.
    match unsafe { real::write(fd, octets.as_ptr().cast(), octets.len()) } {
        ..0 => Err(last_errno()),
        put => Ok(put as usize),
    }
}

/// A connection has no position, so nothing is sent out of it; but a pipe takes what there is.
fn from_connection(
    socket: &'static Socket,
    out: c_int,
    has_offset: bool,
    count: usize,
) -> Result<usize, Errno> {
    if has_offset {
        return Err(errno(libc::ESPIPE));
    }
    let stat = rustix::fs::fstat(sys::borrow(out)).map_err(toe::errno::from_os)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        return Err(Errno::EINVAL);
    }
    let how = if socket.nonblocking() { libc::SPLICE_F_NONBLOCK } else { 0 };
    if count == 0 { Ok(0) } else { splice::out_of(socket, out, count, how) }
}

/// # Safety
/// As sendfile(2); off_t has 64 bits on the systems that this library is for.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    // SAFETY: the program's arguments, handed on.
    unsafe { sendfile(out, from, offset, count) }
}

fn send_file(
    file: c_int,
    offset: Option<&mut off_t>,
    count: usize,
    put: impl FnMut(&[u8], bool) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    if let Some(offset) = offset {
        if count == 0 {
            // Nothing is read, so this is all that finds out what is wrong with the file.
            return match rustix::io::pread(sys::borrow(file), &mut [0u8; 0], 0) {
                Err(rustix::io::Errno::BADF) => Err(Errno::EBADF),
                Err(rustix::io::Errno::SPIPE) => Err(errno(libc::ESPIPE)),
                _ if *offset < 0 => Err(Errno::EINVAL),
                _ => Ok(0),
            };
        }
        let sent = copy_file(file, *offset, count, put).map_err(|error| match error {
            // What has no positions has none to begin at.
            Errno::EINVAL if !has_positions(file) => errno(libc::ESPIPE),
            error => error,
        })?;
        *offset += sent as off_t;
        return Ok(sent);
    }
    // Without an offset the file's position counts, and moves by what was sent.
    let descriptor = sys::borrow(file);
    let position = rustix::fs::tell(descriptor).map_err(|error| match error {
        rustix::io::Errno::BADF => Errno::EBADF,
        _ => Errno::EINVAL,
    })?;
    let sent = copy_file(file, position as off_t, count, put)?;
    let _ = rustix::fs::seek(descriptor, rustix::fs::SeekFrom::Start(position + sent as u64));
    Ok(sent)
}

/// Whether one can read at a position of it.
fn has_positions(file: c_int) -> bool {
    let mut nothing: [u8; 0] = [];
    rustix::io::pread(sys::borrow(file), &mut nothing, 0) != Err(rustix::io::Errno::SPIPE)
}

/// Hands the file's octets from `position` to `put` (the octets, and whether more will come) until `count` are gone, the
/// file ends or `put` takes less than it was given. An error counts only when nothing was put.
fn copy_file(
    file: c_int,
    position: off_t,
    count: usize,
    mut put: impl FnMut(&[u8], bool) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let position = u64::try_from(position).map_err(|_| Errno::EINVAL)?;
    let count = count.min(crate::ffi::RW_MAX);
    let mut chunk = vec![0; CHUNK.min(count)];
    let mut done = 0;
    while done < count {
        let want = chunk.len().min(count - done);
        let got = match rustix::io::pread(sys::borrow(file), &mut chunk[..want], position + done as u64) {
            Ok(0) => break,
            Ok(got) => got,
            Err(_) if done > 0 => break,
            // There are things with a position of which nothing can be sent.
            Err(rustix::io::Errno::ISDIR | rustix::io::Errno::SPIPE) => return Err(Errno::EINVAL),
            Err(error) => return Err(toe::errno::from_os(error)),
        };
        match put(&chunk[..got], done + got < count && got == want) {
            Ok(sent) => {
                done += sent;
                if sent < got {
                    break;
                }
            }
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::fd::AsRawFd;

    fn file_of(len: usize) -> std::fs::File {
        let memory = rustix::fs::memfd_create("switch-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(memory);
        file.write_all(&(0..len).map(|n| (n % 251) as u8).collect::<Vec<_>>()).unwrap();
        file
    }

    #[test]
    fn a_whole_file_goes_in_chunks_and_says_when_more_comes() {
        let file = file_of(150_000);
        let (mut got, mut mores) = (Vec::new(), Vec::new());
        let sent = copy_file(file.as_raw_fd(), 5, 1 << 20, |part, more| {
            got.extend_from_slice(part);
            mores.push(more);
            Ok(part.len())
        });
        assert_eq!(sent, Ok(149_995));
        assert!(got.iter().enumerate().all(|(n, &octet)| octet == ((n + 5) % 251) as u8));
        assert_eq!(mores, [true, true, false]);
    }

    #[test]
    fn a_full_socket_gives_a_partial_result_or_its_error() {
        let file = file_of(200_000);
        let mut room = 100_000;
        let mut put = |part: &[u8], _| {
            let taken = part.len().min(room);
            room -= taken;
            if taken == 0 { Err(Errno::EAGAIN) } else { Ok(taken) }
        };
        assert_eq!(copy_file(file.as_raw_fd(), 0, 200_000, &mut put), Ok(100_000));
        assert_eq!(copy_file(file.as_raw_fd(), 100_000, 100_000, &mut put), Err(Errno::EAGAIN));
    }

    #[test]
    fn nothing_comes_after_the_end_or_from_a_bad_place() {
        let file = file_of(10);
        let mut put = |part: &[u8], _| Ok(part.len());
        assert_eq!(copy_file(file.as_raw_fd(), 10, 5, &mut put), Ok(0));
        assert_eq!(copy_file(file.as_raw_fd(), 0, 0, &mut put), Ok(0));
        assert_eq!(copy_file(file.as_raw_fd(), -1, 5, &mut put), Err(Errno::EINVAL));
        assert_eq!(copy_file(-1, 0, 5, &mut put), Err(Errno::EBADF));
    }
}
