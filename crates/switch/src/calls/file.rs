//! Files over an engine's connection: sendfile.

use super::data::transmit;
use super::stream;
use crate::ffi::{guarded, length};
use crate::real;
use core::ffi::c_int;
use libc::{off_t, size_t, ssize_t};
use std::io::IoSlice;
use toe::socket::Socket;
use toe::{Errno, sys};

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
    match stream(out) {
        // SAFETY: the program's arguments, handed on.
        None => unsafe { real::sendfile(out, from, offset, count) },
        Some(socket) => guarded(-1, || {
            // SAFETY: as above.
            length(send_file(socket, from, unsafe { offset.as_mut() }, count))
        }),
    }
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
    socket: &'static Socket,
    file: c_int,
    offset: Option<&mut off_t>,
    count: usize,
) -> Result<usize, Errno> {
    let put =
        |part: &[u8], more| transmit(socket, &[IoSlice::new(part)], if more { libc::MSG_MORE } else { 0 });
    if let Some(offset) = offset {
        let sent = copy_file(file, *offset, count, put)?;
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
