//! Frames as they come in, in memory that the kernel fills (packet(7), PACKET_RX_RING, version 2): a look at it is a load,
//! and a frame is read where it lies.
//!
//! A slot holds a frame of a common link's size. Of a larger one (segments that the sender's kernel left together, or
//! that this one joined) the kernel puts the whole into the socket's queue besides, to be received by a call as without
//! a ring, and says so in the slot; the two are in the same order. Used by [`super::PacketPort`] alone.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use crate::virtio_net;

/// Bytes of a slot: the kernel's header of it, some 80, and a frame of 1514.
const SLOT_LEN: usize = 2048;
const SLOTS: usize = 8192;
/// The kernel takes memory in pieces of this size.
const BLOCK: usize = 128 << 10;

// From linux/if_packet.h.
const STATUS_KERNEL: u32 = 0;
const STATUS_USER: u32 = 1;
const STATUS_COPY: u32 = 2;

/// `struct tpacket_req`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    block_size: u32,
    block_nr: u32,
    frame_size: u32,
    frame_nr: u32,
}

/// What to ask the kernel for before [`RxRing::map`].
pub(super) const REQUEST: Request = Request {
    block_size: BLOCK as u32,
    block_nr: (SLOTS * SLOT_LEN / BLOCK) as u32,
    frame_size: SLOT_LEN as u32,
    frame_nr: SLOTS as u32,
};

/// What undoes [`REQUEST`].
pub(super) const NO_RING: Request = Request { block_size: 0, block_nr: 0, frame_size: 0, frame_nr: 0 };

/// The beginning of `struct tpacket2_hdr`, which is where a slot begins.
#[repr(C)]
#[derive(Debug)]
struct Header {
    status: AtomicU32,
    len: u32,
    snaplen: u32,
    mac: u16,
    net: u16,
}

/// What the next slot holds.
#[derive(Debug)]
pub(super) enum Next<'a> {
    /// virtio-net header and frame.
    Frame(&'a [u8]),
    /// The next packet of the socket's queue stands here: virtio-net header and the beginning of the frame, and how long that is.
    Queued(&'a [u8], usize),
    /// A frame that fits neither slot nor queue: it is lost.
    Lost,
}

/// The ring, mapped.
#[derive(Debug)]
pub(super) struct RxRing {
    /// `SLOTS` slots of `SLOT_LEN` bytes, shared with the kernel.
    slots: NonNull<u8>,
    next: usize,
    _owns: PhantomData<[u8]>,
}

// SAFETY: needed because of the pointer. The mapping belongs to this value alone, so moving it to another thread moves it.
unsafe impl Send for RxRing {}

impl RxRing {
    const LEN: usize = SLOTS * SLOT_LEN;

    /// Maps the ring of `socket`, which the kernel has made as [`REQUEST`] says.
    pub(super) fn map(socket: BorrowedFd<'_>) -> io::Result<RxRing> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: needed to share memory with the kernel. The address is the kernel's choice, so nothing else is there.
        let at = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), Self::LEN, access, MapFlags::SHARED, socket.as_fd(), 0)
        }?;
        let slots = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(RxRing { slots, next: 0, _owns: PhantomData })
    }

    fn slot(&self, n: usize) -> *const u8 {
        self.slots.as_ptr().wrapping_add(n % SLOTS * SLOT_LEN)
    }

    /// The status word of slot `n`.
    fn status(&self, n: usize) -> &AtomicU32 {
        // SAFETY: needed because the kernel writes it, too. The slot lies in the mapping, which lives as long as `self`
        // and is aligned to pages, as slots are to `SLOT_LEN`; all access to this word is atomic.
        unsafe { &*self.slot(n).cast::<AtomicU32>() }
    }

    /// The slot that is due, if the kernel has filled it.
    pub(super) fn next(&self) -> Option<Next<'_>> {
        // Acquire: what the kernel wrote before the status is seen after it.
        let status = self.status(self.next).load(Ordering::Acquire);
        if status & STATUS_USER == 0 {
            return None;
        }
        // SAFETY: needed to read what the kernel wrote. A slot with this status is the reader's until `release`, which
        // borrows `self` exclusively; a slot begins with this header, which has the alignment of the slot at most.
        let header = unsafe { &*self.slot(self.next).cast::<Header>() };
        let (len, mac) = (header.snaplen as usize, usize::from(header.mac));
        let begin = mac.checked_sub(virtio_net::HEADER_LEN).filter(|_| mac + len <= SLOT_LEN);
        let packet = begin.map(|begin| {
            let from = self.slot(self.next).wrapping_add(begin);
            // SAFETY: as above; `begin + HEADER_LEN + len` is at most `SLOT_LEN`, so this lies in the slot.
            unsafe { slice::from_raw_parts(from, virtio_net::HEADER_LEN + len) }
        });
        Some(match packet {
            _ if status & STATUS_COPY != 0 => Next::Queued(packet.unwrap_or_default(), header.len as usize),
            Some(packet) if header.len == header.snaplen => Next::Frame(packet),
            _ => Next::Lost,
        })
    }

    /// How many slots from the one that is due on, `most` at most, stand for packets of the socket's queue.
    pub(super) fn queued(&self, most: usize) -> usize {
        const QUEUED: u32 = STATUS_USER | STATUS_COPY;
        let is_queued = |n: &usize| self.status(self.next + n).load(Ordering::Acquire) & QUEUED == QUEUED;
        (0..most).take_while(is_queued).count()
    }

    /// Gives `count` slots back to the kernel.
    pub(super) fn release(&mut self, count: usize) {
        for _ in 0..count {
            // Release: the frame was read before the kernel may write the next one here.
            self.status(self.next).store(STATUS_KERNEL, Ordering::Release);
            self.next = (self.next + 1) % SLOTS;
        }
    }
}

impl Drop for RxRing {
    fn drop(&mut self) {
        // SAFETY: needed to undo `map`; nothing refers to the mapping any more, as all that did borrowed `self`.
        let _ = unsafe { rustix::mm::munmap(self.slots.as_ptr().cast(), Self::LEN) };
    }
}

const _: () = assert!((SLOTS * SLOT_LEN).is_multiple_of(BLOCK) && BLOCK.is_multiple_of(SLOT_LEN));
const _: () = assert!(size_of::<Header>() == 16);
