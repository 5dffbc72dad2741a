//! The system calls of the AF_PACKET port (packet(7)): the socket, its filter, and batches in and out.

use std::cell::Cell;
use std::io;
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::atomic::AtomicU8;

use toe_base::limits::FRAME_MAX;

use super::ring::{self, RxRing};
use crate::alignment;
use crate::batch::{BATCH_MAX, Packets, Send as SendPackets};
use crate::virtio_net;

// From linux/if_packet.h.
const PACKET_RX_RING: libc::c_int = 5;
const PACKET_COPY_THRESH: libc::c_int = 7;
const PACKET_VERSION: libc::c_int = 10;
const TPACKET_V2: libc::c_int = 1;
const PACKET_STATISTICS: libc::c_int = 6;
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
const PACKET_HOST: u32 = 0;
const PACKET_BROADCAST: u32 = 1;
const PACKET_MULTICAST: u32 = 2;

const EMPTY: libc::iovec = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };

/// Packets that one receive call takes.
pub(super) const RECEIVE_BATCH: usize = 32;
/// Bytes of a packet's place: header and the largest frame, in whole cache lines.
const SLOT: usize = (virtio_net::HEADER_LEN + FRAME_MAX).next_multiple_of(64);

/// A non-blocking AF_PACKET socket.
#[derive(Debug)]
pub(super) struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// A socket that receives nothing until it is bound.
    pub(super) fn open() -> io::Result<PacketSocket> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made this descriptor and nobody else owns it.
        Ok(PacketSocket { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Any socket that keeps packets apart.
    #[cfg(test)]
    pub(super) fn of(fd: OwnedFd) -> PacketSocket {
        PacketSocket { fd }
    }

    /// Options and filter; all before the bind, so that no frame comes in under other rules.
    pub(super) fn configure(&self, receive_memory: i32, send_memory: i32) -> io::Result<()> {
        self.set(libc::SOL_PACKET, PACKET_VNET_HDR, &1i32)?;
        // Linux before 4.20 lacks this option; there, the filter below keeps our own frames out.
        let _ = self.set(libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1i32);
        self.set_memory(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive_memory)?;
        self.set_memory(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send_memory)?;
        self.attach_filter()
    }

    /// Makes the receive ring; before the bind, and after `configure`.
    pub(super) fn make_ring(&self) -> io::Result<RxRing> {
        self.set(libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V2)?;
        // Any number but 0: frames that are too large for a place go to the queue besides.
        self.set(libc::SOL_PACKET, PACKET_COPY_THRESH, &1i32)?;
        self.set(libc::SOL_PACKET, PACKET_RX_RING, &ring::REQUEST)?;
        RxRing::map(self.as_fd()).inspect_err(|_| self.remove_ring())
    }

    /// Undoes [`PacketSocket::make_ring`] once the ring is unmapped: frames go to the queue again.
    ///
    /// Needed when the ring stands still: Linux does not give a place back in which it was to put a frame that the
    /// virtio-net header cannot describe, and drops all that follow.
    pub(super) fn remove_ring(&self) {
        let _ = self.set(libc::SOL_PACKET, PACKET_RX_RING, &ring::NO_RING);
    }

    /// The forced form goes beyond the administrator's limit but needs CAP_NET_ADMIN.
    fn set_memory(&self, forced: libc::c_int, plain: libc::c_int, bytes: i32) -> io::Result<()> {
        self.set(libc::SOL_SOCKET, forced, &bytes).or_else(|_| self.set(libc::SOL_SOCKET, plain, &bytes))
    }

    fn set<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
        let len = mem::size_of::<T>() as libc::socklen_t;
        // SAFETY: the pointer and length describe `value`, which the kernel only reads, during the call.
        let result =
            unsafe { libc::setsockopt(self.fd.as_raw_fd(), level, option, ptr::from_ref(value).cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Lets only untagged ARP, TCP, UDP and ICMP frames in that are sent to this interface or to all, and of IPv6 those to groups
    /// and those with extension headers, too: only ingress knows what these are. Without it every frame
    /// on a shared link would be copied to the engine just to be dropped; the kernel hides the tag of a VLAN frame, which
    /// must not pass for an untagged one; and a frame of another protocol that is segmented in a way that the
    /// virtio-net header has no name for would stop the ring (see [`PacketSocket::remove_ring`]).
    fn attach_filter(&self) -> io::Result<()> {
        const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
        const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
        const LOAD_BYTE: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
        /// Behind the Ethernet header.
        const IPV4_PROTOCOL: u32 = 14 + 9;
        const IPV6_NEXT_HEADER: u32 = 14 + 6;
        const JUMP_IF: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
        const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
        let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let ancillary = |what: libc::c_int| (libc::SKF_AD_OFF + what) as u32;
        let mut program = [
            op(LOAD_WORD, 0, 0, ancillary(libc::SKF_AD_VLAN_TAG_PRESENT)),
            op(JUMP_IF, 0, 24, 0),
            op(LOAD_HALF, 0, 0, 12),
            op(JUMP_IF, 8, 0, libc::ETH_P_IPV6 as u32),
            op(LOAD_WORD, 0, 0, ancillary(libc::SKF_AD_PKTTYPE)),
            op(JUMP_IF, 1, 0, PACKET_HOST),
            op(JUMP_IF, 0, 19, PACKET_BROADCAST),
            op(LOAD_HALF, 0, 0, 12),
            op(JUMP_IF, 16, 0, libc::ETH_P_ARP as u32),
            op(JUMP_IF, 0, 16, libc::ETH_P_IP as u32),
            op(LOAD_BYTE, 0, 0, IPV4_PROTOCOL),
            op(JUMP_IF, 13, 11, libc::IPPROTO_TCP as u32),
            op(LOAD_WORD, 0, 0, ancillary(libc::SKF_AD_PKTTYPE)),
            op(JUMP_IF, 1, 0, PACKET_HOST),
            op(JUMP_IF, 0, 11, PACKET_MULTICAST),
            op(LOAD_BYTE, 0, 0, IPV6_NEXT_HEADER),
            op(JUMP_IF, 8, 0, libc::IPPROTO_TCP as u32),
            op(JUMP_IF, 7, 0, libc::IPPROTO_ICMPV6 as u32),
            op(JUMP_IF, 6, 0, libc::IPPROTO_FRAGMENT as u32),
            op(JUMP_IF, 5, 0, libc::IPPROTO_HOPOPTS as u32),
            op(JUMP_IF, 4, 0, libc::IPPROTO_ROUTING as u32),
            op(JUMP_IF, 3, 0, libc::IPPROTO_DSTOPTS as u32),
            op(JUMP_IF, 2, 3, libc::IPPROTO_UDP as u32),
            op(JUMP_IF, 1, 0, libc::IPPROTO_UDP as u32),
            op(JUMP_IF, 0, 1, libc::IPPROTO_ICMP as u32),
            op(RETURN, 0, 0, u32::MAX),
            op(RETURN, 0, 0, 0),
        ];
        let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
        // The kernel copies the program that `filter` points to before the call returns.
        self.set(libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)
    }

    /// Has the interface hand over frames to all groups, for as long as the socket is open.
    pub(super) fn join_groups(&self, index: i32) -> io::Result<()> {
        let wanted = libc::packet_mreq {
            mr_ifindex: index,
            mr_type: libc::PACKET_MR_ALLMULTI as u16,
            mr_alen: 0,
            mr_address: [0; 8],
        };
        self.set(libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &wanted)
    }

    /// Starts receiving from the interface.
    pub(super) fn bind(&self, index: i32) -> io::Result<()> {
        // SAFETY: sockaddr_ll is a C struct of integers, so all zeroes is a valid value.
        let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let len = mem::size_of_val(&address) as libc::socklen_t;
        // SAFETY: the pointer and length describe `address`, which the kernel only reads, during the call.
        let result = unsafe { libc::bind(self.fd.as_raw_fd(), ptr::from_ref(&address).cast(), len) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The error that waits, if any: the link is down or gone.
    pub(super) fn take_error(&self) -> io::Result<()> {
        match rustix::net::sockopt::socket_error(&self.fd)? {
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Frames lost to a full queue since the last time that this was asked.
    pub(super) fn take_drops(&self) -> u64 {
        // `struct tpacket_stats`: packets seen, packets dropped.
        let mut statistics = [0u32; 2];
        let mut len = mem::size_of_val(&statistics) as libc::socklen_t;
        // SAFETY: the pointer and length describe `statistics`; the kernel writes at most that many bytes.
        let result = unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                PACKET_STATISTICS,
                statistics.as_mut_ptr().cast(),
                &mut len,
            )
        };
        if result < 0 { 0 } else { u64::from(statistics[1]) }
    }

    /// Receives the next packet: as much of it as `spare` has room for, then the bytes behind that into these places. How long the packet was.
    pub(super) fn receive_into(
        &self,
        spare: &[Cell<u8>],
        destination: PayloadTarget<'_>,
    ) -> io::Result<usize> {
        let vector = |start: *const u8, len| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: len };
        let mut vectors = [vector(spare.as_ptr().cast(), spare.len()), EMPTY, EMPTY];
        match destination {
            PayloadTarget::Own(cells) => vectors[1] = vector(cells.as_ptr().cast(), cells.len()),
            PayloadTarget::Shared(pieces) => {
                for (slot, piece) in vectors[1..].iter_mut().zip(pieces) {
                    *slot = vector(piece.as_ptr().cast(), piece.len());
                }
            }
        }
        // SAFETY: msghdr is a C struct of integers and pointers, so all zeroes is a valid value.
        let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
        message.msg_iov = vectors.as_mut_ptr();
        message.msg_iovlen = vectors.len() as _;
        // MSG_TRUNC: the length is that of the packet, not of what there was room for.
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: needed because the pieces may be written by another process at the same time, so that no slice of plain bytes may be
        // made of them. The vectors name memory that is borrowed until this returns and may be written through a shared reference
        // (cells and atomics); the message asks for neither name nor control data.
        let received = unsafe { libc::recvmsg(self.fd.as_raw_fd(), &raw mut message, flags) };
        if received < 0 { Err(io::Error::last_os_error()) } else { Ok(received as usize) }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Where a packet's bytes go.
#[derive(Clone, Copy, Debug)]
pub(super) enum PayloadTarget<'a> {
    Own(&'a [Cell<u8>]),
    /// Memory that another process may read and write; two pieces at most.
    Shared(&'a [&'a [AtomicU8]]),
}

/// One received packet: virtio-net header and frame.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    pub(super) bytes: &'a [u8],
    /// The place was too small; the rest is lost.
    pub(super) truncated: bool,
}

/// Places for received packets, and the lists that describe them to the kernel. The lists are written once.
#[derive(Debug)]
pub(super) struct ReceiveBatch {
    /// `RECEIVE_BATCH` buffers of `SLOT` bytes, the first of them at `first`; owned, freed in drop.
    buffers: NonNull<[u8]>,
    first: usize,
    messages: Box<[libc::mmsghdr]>,
    /// Pointed to by `messages` and not touched again. A `Vec`, because a `Box` claims to be the only way to its
    /// contents whenever it moves.
    _vectors: Vec<libc::iovec>,
}

// SAFETY: the raw pointers inside lead only to memory that this value owns (its buffers and its own boxed lists), so
// moving it to another thread moves all of it.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    pub(super) fn new() -> ReceiveBatch {
        // Zeroed memory of this size comes from the kernel page by page when it is first written.
        let buffers = vec![0u8; RECEIVE_BATCH * SLOT + alignment::SLACK].into_boxed_slice();
        let first = alignment::first(&buffers);
        let buffers = Box::into_raw(buffers);
        // SAFETY: a Box's pointer is never null.
        let buffers = unsafe { NonNull::new_unchecked(buffers) };
        let mut vectors: Vec<libc::iovec> = (0..RECEIVE_BATCH)
            .map(|n| libc::iovec {
                iov_base: buffers.as_ptr().cast::<u8>().wrapping_add(first + n * SLOT).cast(),
                iov_len: SLOT,
            })
            .collect();
        let messages = messages_over(&mut vectors);
        ReceiveBatch { buffers, first, messages, _vectors: vectors }
    }

    /// Receives up to `wanted` packets; returns how many came, at least one.
    pub(super) fn fill(&mut self, socket: &PacketSocket, wanted: usize) -> io::Result<usize> {
        let wanted = wanted.min(self.messages.len());
        let fd = socket.fd.as_raw_fd();
        // SAFETY: `messages` holds at least `wanted` entries. Each names one iovec in `_vectors`, and that one a
        // place of SLOT bytes in `buffers`; both live as long as `self`, and no reference to a place exists while
        // `self` is borrowed exclusively. No entry asks for a name or control data.
        let result = unsafe {
            libc::recvmmsg(
                fd,
                self.messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
    }

    /// A frame of this length of which only the head is there, and a place for bytes that nobody wants, in which packets fit.
    pub(super) fn split(&mut self, headers: &[u8], frame_len: usize) -> (&[u8], &[Cell<u8>]) {
        let frame_len = frame_len.clamp(headers.len(), FRAME_MAX);
        let slot = |n: usize| self.buffers.as_ptr().cast::<u8>().wrapping_add(self.first + n * SLOT);
        // SAFETY: needed because the kernel writes to these buffers by way of pointers. Both lie in `buffers`, are no longer than a
        // place, initialised (zeroed at first), apart from each other, and of nobody else's while `self` is borrowed exclusively.
        let (frame, spare) = unsafe {
            (
                slice::from_raw_parts_mut(slot(0), frame_len),
                slice::from_raw_parts(slot(1).cast::<Cell<u8>>().cast_const(), SLOT),
            )
        };
        frame[..headers.len()].copy_from_slice(headers);
        (frame, spare)
    }

    /// The first `count` packets of the last fill.
    pub(super) fn packets(&self, count: usize) -> impl Iterator<Item = Packet<'_>> {
        let first = self.buffers.as_ptr().cast::<u8>().cast_const();
        self.messages.iter().take(count).enumerate().map(move |(n, message)| {
            let len = (message.msg_len as usize).min(SLOT);
            // SAFETY: place `n` is below RECEIVE_BATCH, for `messages` is that long, so its `len` <= SLOT bytes, from
            // `self.first` <= SLACK on, are inside `buffers`; they are initialised (zeroed at first) and nothing writes them while `self` is
            // borrowed.
            let bytes = unsafe { slice::from_raw_parts(first.add(self.first + n * SLOT), len) };
            Packet { bytes, truncated: message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 }
        })
    }
}

impl Drop for ReceiveBatch {
    fn drop(&mut self) {
        // SAFETY: `buffers` came from Box::into_raw in `new` and is freed only here.
        drop(unsafe { Box::from_raw(self.buffers.as_ptr()) });
    }
}

/// The lists that describe packets to be sent.
#[derive(Debug)]
pub(super) struct SendBatch {
    /// Pointed to by `messages`; a `Vec` for the reason that [`ReceiveBatch`] gives.
    vectors: Vec<libc::iovec>,
    messages: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `messages` lead to `vectors`, which this value owns; those in `vectors` are stale outside of
// `Sender::send`, which overwrites them before the kernel sees them.
unsafe impl Send for SendBatch {}

impl SendBatch {
    pub(super) fn new() -> SendBatch {
        let empty = libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 };
        let mut vectors = vec![empty; BATCH_MAX];
        let messages = messages_over(&mut vectors);
        SendBatch { vectors, messages }
    }
}

/// A message header for each vector, with neither name nor control data.
fn messages_over(vectors: &mut [libc::iovec]) -> Box<[libc::mmsghdr]> {
    let first = vectors.as_mut_ptr();
    (0..vectors.len())
        .map(|n| {
            // SAFETY: mmsghdr is a C struct of integers and pointers, so all zeroes is a valid value.
            let mut message: libc::mmsghdr = unsafe { MaybeUninit::zeroed().assume_init() };
            message.msg_hdr.msg_iov = first.wrapping_add(n);
            message.msg_hdr.msg_iovlen = 1;
            message
        })
        .collect()
}

/// Sends a port's gathered packets.
pub(super) struct Sender<'a> {
    pub(super) socket: &'a PacketSocket,
    pub(super) batch: &'a mut SendBatch,
}

impl SendPackets for Sender<'_> {
    fn send(&mut self, packets: &Packets<'_>) -> io::Result<usize> {
        let first = self.batch.messages[0].msg_hdr.msg_iov;
        let mut count = 0;
        for packet in packets.iter().take(self.batch.vectors.len()) {
            let vector = libc::iovec { iov_base: packet.as_ptr().cast_mut().cast(), iov_len: packet.len() };
            // SAFETY: `first` points to `vectors`, which holds more than `count` entries. Written through the pointer
            // that the messages hold, so that it stays the one way in.
            unsafe { first.add(count).write(vector) };
            count += 1;
        }
        let fd = self.socket.fd.as_raw_fd();
        // SAFETY: the first `count` messages name the vectors written above, and those name packets that are borrowed
        // until this returns. The kernel only reads the bytes, although the C type is not const.
        let result = unsafe {
            libc::sendmmsg(
                fd,
                self.batch.messages.as_mut_ptr(),
                count as libc::c_uint,
                libc::MSG_DONTWAIT as _,
            )
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
    }
}

/// Whether the kernel (from 6.2 on) takes and gives datagrams that lie one behind the other in a packet socket's frame. What it does not
/// say is that it does not.
pub(super) fn cuts_datagrams() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-', '\n']).map_while(|number| number.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(2))
}
