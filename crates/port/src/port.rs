//! The [`Port`] trait: all that the run loop knows of a link.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::BorrowedFd;

use toe_base::counter::CounterSet;
use toe_base::counters;
use toe_wire::link::{FrameSink, FrameTail, LinkCaps, MacAddr, RxOffload};

use crate::error::OpenError;

/// What a port hands frames to. With a [`FrameTail`] only the headers are there.
pub type EachFrame<'a> = dyn FnMut(&[u8], RxOffload, Option<&dyn FrameTail>) + 'a;

/// A link. The run loop waits on [`Port::poll_fd`], takes frames with [`Port::receive`], puts frames into
/// [`Port::transmit`] and sends them with [`Port::flush`]. Nothing here blocks.
pub trait Port: Send {
    /// The interface's name.
    fn name(&self) -> &str;

    /// The hardware address that the engine uses on this link.
    fn mac(&self) -> MacAddr;

    /// Bytes of the largest IP packet that the link carries in one frame.
    fn mtu(&self) -> u32;

    fn caps(&self) -> LinkCaps;

    /// Frames to groups are wanted, too, from now on and when the link is opened anew: neighbours ask for an address of
    /// IPv6 by its group. Until then a link may keep them back.
    fn receive_groups(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Readable when frames wait. `None`: there is nothing to wait on, only polling helps.
    fn poll_fd(&self) -> Option<BorrowedFd<'_>>;

    /// After this many microseconds, call [`Port::receive`] and [`Port::flush`] although nothing is readable: a
    /// frame is held back, or the kernel had no room for one. `None`: no need.
    fn next_deadline_us(&self) -> Option<u64>;

    /// Whether [`Port::tend`] is to be called once a second, also when the link is quiet.
    fn needs_tending(&self) -> bool {
        false
    }

    /// Looks after what nothing else reports.
    fn tend(&mut self) {}

    /// Hands at most `budget` frames (duplicates made by a wrapper not counted) to `each`; returns how many `each`
    /// saw. An error says that the link is gone or down: worth telling, and calling again is allowed.
    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize>;

    /// Where frames to be sent gather. A frame that was asked for and not committed is not sent.
    fn transmit(&mut self) -> &mut dyn FrameSink;

    /// Sends what has gathered, in one batch. What the kernel has no room for stays and is tried again at the next
    /// flush. An error is as for [`Port::receive`].
    fn flush(&mut self) -> io::Result<()>;

    fn counters(&self) -> PortCounters;

    /// As [`Port::receive`], but of a large segment that need not be checked only the headers may have been read: then the rest of the
    /// slice is of no meaning, and its bytes are to be had from the [`FrameTail`].
    fn receive_split(&mut self, budget: usize, each: &mut EachFrame<'_>) -> io::Result<usize> {
        self.receive(budget, &mut |frame, offload| each(frame, offload, None))
    }

    /// The way to say which frames are the engine's, on a link whose addresses are the kernel's too.
    fn steering(&mut self) -> Option<&mut dyn Steering> {
        None
    }

    /// Opens the interface anew, which has disappeared and appeared again: its hardware address and MTU may be others.
    /// What was counted and what is steered stays. After an error the port carries nothing until this succeeds.
    fn reopen(&mut self) -> Result<(), OpenError>;

    /// The interface is the same, and its hardware address or MTU has changed.
    fn refresh(&mut self) -> Result<(), OpenError> {
        self.reopen()
    }
}

/// Which frames of a shared interface come to the engine; all others are the kernel's. Nothing is, at first. An error
/// says that the kernel refused a change: then the frames stay where they were.
pub trait Steering {
    /// An address of the host on this interface, `on` or no longer.
    fn address(&mut self, addr: Ipv4Addr, on: bool) -> io::Result<()>;

    /// All to this port number is the engine's: the kernel gives the number to nobody else.
    fn reserve(&mut self, port: u16, on: bool) -> io::Result<()>;

    /// What comes to `local` (unspecified: any address) is the engine's, unless the kernel has a connection that it
    /// belongs to.
    fn listen(&mut self, local: SocketAddrV4, on: bool) -> io::Result<()>;

    /// This connection is the engine's.
    fn flow(&mut self, local: SocketAddrV4, remote: SocketAddrV4, on: bool) -> io::Result<()>;

    /// How many ports, listeners and connections are steered.
    fn entries(&self) -> usize;
}

counters! {
    /// What a port counts. A frame is counted once: as received or sent, or under the reason why not.
    pub enum PortCounter {
        /// Frames handed to the engine. One that the link joined from several wire segments is one.
        RxFrames = "rx_frames",
        RxBytes = "rx_bytes",
        TxFrames = "tx_frames",
        TxBytes = "tx_bytes",
        /// The kernel's queue was full: the engine did not read in time.
        RxQueueFull = "rx_queue_full",
        /// Longer than any frame that a port takes.
        RxTruncated = "rx_truncated",
        /// The link's description of the frame contradicts itself.
        RxBadHeader = "rx_bad_header",
        /// The kernel could not describe the frame to us.
        RxRefused = "rx_refused",
        /// The kernel had stopped filling the receive ring, and a new one was made.
        RxRestarts = "rx_restarts",
        /// A flush found the kernel without room; nothing was lost by that.
        TxBusy = "tx_busy",
        /// The kernel had no room for too long.
        TxDroppedBusy = "tx_dropped_busy",
        /// The kernel refused the frame, or the link is down.
        TxDroppedError = "tx_dropped_error",
        /// Ports, listeners and connections that are steered to the engine at present.
        SteerEntries = "steer_entries",
        FaultDropped = "fault_dropped",
        FaultReordered = "fault_reordered",
        FaultDuplicated = "fault_duplicated",
        FaultCorrupted = "fault_corrupted",
        /// The queue in front of a slow link had no room.
        FaultQueueFull = "fault_queue_full",
        /// Marked, because that queue was long.
        FaultMarked = "fault_marked",
    }
}

/// The values of [`PortCounter`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters(CounterSet<{ PortCounter::ALL.len() }>);

impl PortCounters {
    pub fn add(&mut self, counter: PortCounter, n: u64) {
        self.0.add(counter as usize, n);
    }

    pub fn get(&self, counter: PortCounter) -> u64 {
        self.0.get(counter as usize)
    }

    /// Every counter by name.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let values = *self;
        PortCounter::ALL.iter().map(move |counter| (counter.name(), values.get(*counter)))
    }

    /// Both together: a wrapper's own and those of what it wraps.
    #[must_use]
    pub fn plus(mut self, other: PortCounters) -> PortCounters {
        for counter in PortCounter::ALL {
            self.add(*counter, other.get(*counter));
        }
        self
    }

    pub(crate) fn received(&mut self, len: usize) {
        self.add(PortCounter::RxFrames, 1);
        self.add(PortCounter::RxBytes, len as u64);
    }

    pub(crate) fn sent(&mut self, len: usize) {
        self.add(PortCounter::TxFrames, 1);
        self.add(PortCounter::TxBytes, len as u64);
    }
}
