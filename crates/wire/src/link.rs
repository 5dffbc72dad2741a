//! What a link says of itself and of each frame: the contract between ports (which implement it) and the engine
//! (which uses it). The fields are those of the virtio-net header (virtio 1.2 section 5.1.6), less its encoding.

use core::sync::atomic::AtomicU8;

/// Hardware address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    pub const BROADCAST: MacAddr = MacAddr([0xff; 6]);

    /// A group address; broadcast is one. Never the source of a frame, nor the owner of an IPv4 address.
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 != 0
    }
}

impl core::fmt::Display for MacAddr {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// What a link can do for the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkCaps {
    /// The link fills in TCP checksums of frames sent with [`TxOffload::checksum`].
    pub tx_checksum: bool,
    /// Largest TCP payload that the link cuts into segments by itself; 0 when it cannot.
    pub gso_max: u32,
    /// It cuts up datagrams that lie one behind the other, too ([`Cut::Datagrams`]).
    pub cuts_datagrams: bool,
}

/// Where a link is to put a checksum: over the bytes from `start` to the end, stored at `start + offset`. The field
/// already holds the pseudo-header's sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    pub start: u16,
    pub offset: u16,
}

/// What a large frame is cut into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// TCP segments over IPv4.
    TcpV4,
    TcpV6,
    /// Datagrams over either.
    Datagrams,
}

/// How a link is to cut a large frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segmentation {
    /// Bytes of Ethernet, IP and TCP or UDP header, repeated in each segment.
    pub header_len: u16,
    /// Payload bytes of each segment but the last.
    pub mss: u16,
    pub cut: Cut,
}

/// What the link must still do to a frame that is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxOffload {
    pub checksum: Option<PartialChecksum>,
    pub segmentation: Option<Segmentation>,
}

/// What the link says of a frame that arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxOffload {
    /// The transport checksum needs no check: the link checked it, or the frame never left the machine.
    pub checksum_ok: bool,
    /// The frame holds several wire segments of this payload size, joined by the link (GRO, or the sender's GSO).
    pub coalesced_mss: Option<u16>,
}

/// A large frame that arrived, of which only the headers have been read: the bytes behind them are where the link has them until
/// somebody says where they belong.
pub trait FrameTail: core::fmt::Debug {
    /// Puts the frame's bytes from `from` on into these pieces of memory, one after the other. Once: there are none for a second call.
    /// They may be memory that another process reads and writes, so it is for the kernel to write. `false`: that was not to be, and
    /// what is there now has no meaning.
    fn take(&self, from: usize, into: &[&[AtomicU8]]) -> bool;
    /// The same into memory of the caller's own.
    fn read(&self, from: usize, into: &mut [u8]) -> bool;
}

/// Takes frames to be sent; a port's transmit queue.
pub trait FrameSink {
    /// Room for one frame of exactly `len` bytes (contents arbitrary), or `None` when the port takes no more now.
    fn frame(&mut self, len: usize) -> Option<&mut [u8]>;
    /// Hands over the frame that the last [`FrameSink::frame`] gave.
    fn commit(&mut self, offload: TxOffload);
    /// Sends the frame that `head` and then `tail` make, now and behind all that was committed before, without a copy
    /// of `tail` on the way: memory that another process may be writing, so it is for the kernel to read, once.
    /// `false`: it was not sent, because this sink cannot or has no room; [`FrameSink::frame`] takes it, or says so.
    fn gather(&mut self, _head: &[u8], _tail: &[&[AtomicU8]], _offload: TxOffload) -> bool {
        false
    }
}
