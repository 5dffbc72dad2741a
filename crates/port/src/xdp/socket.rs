//! One AF_XDP socket (Documentation/networking/af_xdp.rst in Linux) with frames of its own, bound to one receive queue.
//!
//! A frame is always somebody's. Those for receiving go round: fill ring, kernel, receive ring, [`Socket::receive`], fill
//! ring. Those for sending: free, the engine (between [`Socket::frame`] and [`Socket::commit`]), transmit ring, kernel,
//! completion ring, free.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use super::ring::{FromKernel, ToKernel, Umem};

/// Bytes of a frame's place; the kernel takes no more than a page.
const FRAME_LEN: usize = 4096;
/// What the kernel leaves free in front of a frame that it receives (XDP_PACKET_HEADROOM).
const HEADROOM: usize = 256;
/// Bytes of the longest frame that fits.
pub(super) const FRAME_MAX: usize = FRAME_LEN - HEADROOM;
/// What comes in while the engine is busy elsewhere waits in these.
const RX_FRAMES: u32 = 4096;
const TX_FRAMES: u32 = 2048;

/// How many frames a socket has; the kernel takes all of their memory at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frames {
    rx: u32,
    tx: u32,
}

impl Frames {
    /// Of the only socket, or the first of several: what is sent goes through it.
    pub(super) const FIRST: Frames = Frames { rx: RX_FRAMES, tx: TX_FRAMES };
    /// Of the others, which share what is received.
    pub(super) const FURTHER: Frames = Frames { rx: RX_FRAMES / 4, tx: 1 };
}

#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
    umem: Umem,
    fill: ToKernel<u64>,
    completion: FromKernel<u64>,
    rx: FromKernel<XdpDesc>,
    tx: ToKernel<XdpDesc>,
    /// Frames for sending that are nobody's.
    free: Vec<u64>,
    /// The frame that the engine writes, and its length.
    open: Option<(u64, usize)>,
    /// The engine found no frame free; they come back only when the kernel is asked.
    starved: bool,
}

/// What the kernel did with the frames that were to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    All,
    /// It had no room for the rest: ask again soon.
    Some,
}

impl Socket {
    /// A socket bound to queue `queue` of the interface `index`, in the driver's own memory if it can, else by copies.
    pub(super) fn open(index: u32, queue: u32, frames: Frames) -> io::Result<Socket> {
        let fd = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let umem = Umem::new((frames.rx + frames.tx) as usize * FRAME_LEN)?;
        let registration = XdpUmemReg {
            addr: umem.addr(),
            len: umem.len() as u64,
            chunk_size: FRAME_LEN as u32,
            headroom: 0,
            flags: XdpUmemRegFlags::empty(),
            tx_metadata_len: 0,
        };
        sockopt::set_xdp_umem_reg(&fd, registration)?;
        sockopt::set_xdp_umem_fill_ring_size(&fd, frames.rx)?;
        sockopt::set_xdp_umem_completion_ring_size(&fd, frames.tx)?;
        sockopt::set_xdp_rx_ring_size(&fd, frames.rx)?;
        sockopt::set_xdp_tx_ring_size(&fd, frames.tx)?;
        let at = sockopt::xdp_mmap_offsets(&fd)?;
        let socket = fd.as_fd();
        let mut fill = ToKernel::map(socket, frames.rx, at.fr, XDP_UMEM_PGOFF_FILL_RING)?;
        let completion = FromKernel::map(socket, frames.tx, at.cr, XDP_UMEM_PGOFF_COMPLETION_RING)?;
        let rx = FromKernel::map(socket, frames.rx, at.rx, XDP_PGOFF_RX_RING)?;
        let tx = ToKernel::map(socket, frames.tx, at.tx, XDP_PGOFF_TX_RING)?;
        let frame = |n: u32| u64::from(n) * FRAME_LEN as u64;
        (0..frames.rx).for_each(|n| {
            // As many as the ring has places.
            fill.push(frame(n));
        });
        fill.publish();
        let free = (frames.rx..frames.rx + frames.tx).map(frame).collect();
        let address = SocketAddrXdp::new(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, index, queue);
        rustix::net::bind(&fd, &address)?;
        Ok(Socket { fd, umem, fill, completion, rx, tx, free, open: None, starved: false })
    }

    /// Hands at most `budget` frames to `each`; returns how many there were.
    pub(super) fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8])) -> usize {
        let mut count = 0;
        while count < budget {
            let Some(desc) = self.rx.pop() else { break };
            if let Some(bytes) = self.umem.bytes(desc.addr, desc.len as usize) {
                each(bytes);
            }
            // There is room: it came from there.
            self.fill.push(desc.addr - desc.addr % FRAME_LEN as u64);
            count += 1;
        }
        if count > 0 {
            self.rx.release();
            self.fill.publish();
        }
        if self.fill.needs_wakeup() {
            // Drivers that receive into these frames stop when they have none; this lets them look again.
            let _ = rustix::net::recv(&self.fd, &mut [0u8; 0], rustix::net::RecvFlags::DONTWAIT);
        }
        count
    }

    /// Room for a frame to be sent.
    pub(super) fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if len > FRAME_MAX {
            return None;
        }
        if self.free.is_empty() {
            self.reap();
        }
        let Some(&at) = self.free.last() else {
            self.starved = true;
            return None;
        };
        self.open = Some((at, len));
        self.umem.bytes_mut(at, len)
    }

    /// Queues the frame that was given out last; returns its length.
    pub(super) fn commit(&mut self) -> Option<usize> {
        let (addr, len) = self.open.take()?;
        // The ring has a place for each frame.
        if !self.tx.push(XdpDesc { addr, len: len as u32, options: XdpDescOptions::empty() }) {
            return None;
        }
        self.free.pop();
        Some(len)
    }

    /// Takes back the frames that were sent.
    fn reap(&mut self) {
        let mut any = false;
        while let Some(at) = self.completion.pop() {
            self.free.push(at);
            any = true;
        }
        if any {
            self.completion.release();
            self.starved = false;
        }
    }

    /// Lets the kernel send what is queued.
    pub(super) fn flush(&mut self) -> io::Result<Sent> {
        self.open = None;
        self.tx.publish();
        self.reap();
        let mut waiting = self.tx.waiting();
        while waiting > 0 && self.tx.needs_wakeup() {
            // One call sends a part of a long queue only, and says EAGAIN then.
            let result = rustix::net::send(&self.fd, &[], rustix::net::SendFlags::DONTWAIT);
            self.reap();
            let left = self.tx.waiting();
            match result {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::BUSY | rustix::io::Errno::NOBUFS)
                | Ok(_)
                    if left == waiting =>
                {
                    break;
                }
                Err(
                    rustix::io::Errno::AGAIN
                    | rustix::io::Errno::BUSY
                    | rustix::io::Errno::NOBUFS
                    | rustix::io::Errno::INTR,
                )
                | Ok(_) => waiting = left,
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(if waiting == 0 { Sent::All } else { Sent::Some })
    }

    /// Whether [`Socket::flush`] wants to be called again although nothing new is queued.
    pub(super) fn is_stalled(&self) -> bool {
        self.starved || self.tx.waiting() > 0 && self.tx.needs_wakeup()
    }

    /// The error that waits, if any: the interface is gone.
    pub(super) fn take_error(&self) -> io::Result<()> {
        match sockopt::socket_error(&self.fd)? {
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Frames that were for this socket and that it had no room for.
    pub(super) fn dropped(&self) -> u64 {
        let Ok(statistics) = sockopt::xdp_statistics(&self.fd) else { return 0 };
        statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0)
    }

    /// Whether frames are received and sent without a copy.
    pub(super) fn is_zero_copy(&self) -> bool {
        use rustix::net::xdp::XdpOptionsFlags;
        sockopt::xdp_options(&self.fd).is_ok_and(|o| o.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.fd.as_raw_fd()
    }
}
