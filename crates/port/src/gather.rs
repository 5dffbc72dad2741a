//! One frame to the kernel in one call, its payload taken from where it lies: for large frames, whose copy into a batch
//! costs more than the call. Both drivers that write frames to a descriptor use it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::AtomicU8;

use toe_wire::link::TxOffload;

use crate::batch::TxQueue;
use crate::port::PortCounters;
use crate::virtio_net;

/// Pieces of a frame: its virtio-net header, its head, and of its tail what is left.
const PIECES_MAX: usize = 16;

/// Sends the frame that `headers` and `tail` make, behind what was in `queue`, which is flushed and therefore empty unless the
/// kernel had no room. Whether it was sent: an error is met again, and told, by whoever sends the copy.
pub(crate) fn send(
    fd: BorrowedFd<'_>,
    queue: &TxQueue,
    counters: &mut PortCounters,
    (headers, tail): (&[u8], &[&[AtomicU8]]),
    offload: TxOffload,
) -> bool {
    let frame_len = headers.len() + tail.iter().map(|piece| piece.len()).sum::<usize>();
    let Some(virtio_header) = virtio_net::encode(offload, frame_len) else { return false };
    let sent = queue.is_empty() && write(fd, &virtio_header, headers, tail).is_ok();
    if sent {
        counters.sent(frame_len);
    }
    sent
}

/// All of it or nothing: frames go whole.
fn write(fd: BorrowedFd<'_>, virtio_header: &[u8], headers: &[u8], tail: &[&[AtomicU8]]) -> io::Result<()> {
    if tail.len() > PIECES_MAX - 2 {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let vector = |start: *const u8, len| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
    let mut vectors = [vector(std::ptr::null(), 0); PIECES_MAX];
    vectors[0] = vector(virtio_header.as_ptr(), virtio_header.len());
    vectors[1] = vector(headers.as_ptr(), headers.len());
    for (slot, piece) in vectors[2..].iter_mut().zip(tail) {
        *slot = vector(piece.as_ptr().cast(), piece.len());
    }
    let count = (2 + tail.len()) as libc::c_int;
    // SAFETY: needed because the tail may be changing while it is read, so that no slice of plain bytes may be made of
    // it. The first `count` vectors name memory that is borrowed until this returns; the kernel only reads it, although
    // the C type is not const, and what it finds in the tail is the sender's own affair.
    let result = unsafe { libc::writev(fd.as_raw_fd(), vectors.as_ptr(), count) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortCounter;
    use std::io::Read;
    use std::os::fd::AsFd;

    fn bytes(bytes: &[u8]) -> Vec<AtomicU8> {
        bytes.iter().copied().map(AtomicU8::new).collect()
    }

    #[test]
    fn a_frame_goes_out_whole_and_is_counted() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let (one, two) = (bytes(b"pay"), bytes(b"load"));
        let mut counters = PortCounters::default();
        let frame = (&b"head"[..], &[&one[..], &two[..]][..]);
        assert!(send(writer.as_fd(), &TxQueue::new(), &mut counters, frame, TxOffload::default()));
        drop(writer);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("readable");
        assert_eq!(&read[virtio_net::HEADER_LEN..], b"headpayload");
        assert_eq!((counters.get(PortCounter::TxFrames), counters.get(PortCounter::TxBytes)), (1, 11));
    }

    #[test]
    fn what_waits_goes_first_and_what_fails_is_not_counted() {
        let (_reader, writer) = io::pipe().expect("a pipe");
        let tail = bytes(b"x");
        let mut counters = PortCounters::default();
        let mut queue = TxQueue::new();
        queue.frame(60).expect("room");
        queue.commit(TxOffload::default(), &mut counters);
        let frame = (&b"head"[..], &[&tail[..]][..]);
        assert!(!send(writer.as_fd(), &queue, &mut counters, frame, TxOffload::default()));
        let many = [&tail[..]; PIECES_MAX];
        assert!(!send(
            writer.as_fd(),
            &TxQueue::new(),
            &mut counters,
            (b"head", &many),
            TxOffload::default()
        ));
        let (reader, _writer) = io::pipe().expect("a pipe");
        assert!(!send(reader.as_fd(), &TxQueue::new(), &mut counters, frame, TxOffload::default()));
        assert_eq!(counters, PortCounters::default());
    }
}
