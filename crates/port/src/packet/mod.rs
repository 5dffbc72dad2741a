//! A port on an existing Ethernet interface, through an AF_PACKET socket with virtio-net headers: GSO, GRO and
//! checksums as the kernel has them, batches of frames in one system call.
//!
//! The engine uses the interface's own hardware address. The kernel's stack sees the same frames, so the engine must
//! have IPv4 addresses that the kernel does not have, or the kernel answers too.

mod header_split;
mod ring;
mod sys;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use toe_base::limits::SEGMENT_PAYLOAD_MAX;
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

use self::header_split::SplitFrame;
use self::ring::{Next, RxRing};
use crate::batch::{TxQueue, is_link_gone};
use crate::error::OpenError;
use crate::gather;
use crate::netdev::{CARRIER_WAIT, NetDevices};
use crate::port::{EachFrame, Port, PortCounter, PortCounters};
use crate::spec::Driver;
use crate::virtio_net;

/// The socket's share of kernel memory, taken as it is used: it must hold what a thousand peers send at once (their
/// windows together) while the engine is busy elsewhere. What it does not hold is lost until a retransmission time-out.
const RECEIVE_MEMORY: i32 = 128 << 20;
const SEND_MEMORY: i32 = 8 << 20;
/// An empty ring does not say that the link is gone: after so many looks in a row that found nothing the socket is asked.
const EMPTY_LOOKS_MAX: u32 = 64;

#[derive(Debug)]
pub(crate) struct PacketPort {
    name: String,
    mac: MacAddr,
    mtu: u32,
    socket: sys::PacketSocket,
    /// [`Port::receive_groups`] was asked for.
    groups: bool,
    /// The kernel knows datagrams that lie one behind the other.
    cuts_datagrams: bool,
    /// `None`: the kernel had no memory for it; then every packet is received by a call.
    ring: Option<RxRing>,
    empty_looks: u32,
    /// Frames received, and frames lost to a full queue, when the port was last tended.
    at_last_tending: (u64, u64),
    receive: sys::ReceiveBatch,
    send: sys::SendBatch,
    queue: TxQueue,
    counters: PortCounters,
    /// Frames that the kernel's queue had no room for; asking the kernel resets its own count.
    queue_full: Cell<u64>,
}

impl PacketPort {
    pub(crate) fn open(interface: &str) -> Result<PacketPort, OpenError> {
        PacketPort::open_waiting(interface, CARRIER_WAIT)
    }

    fn open_waiting(interface: &str, wait: Duration) -> Result<PacketPort, OpenError> {
        let failed = |doing| move |source| OpenError::from_io(Driver::Packet, interface, doing, source);
        let devices = NetDevices::open().map_err(failed("asking for the properties"))?;
        let index = devices.index(interface).map_err(failed("asking for the index"))?;
        let mac = devices
            .mac(interface)
            .map_err(failed("asking for the hardware address"))?
            .ok_or_else(|| OpenError::NotEthernet { interface: interface.to_owned() })?;
        let mtu = devices.mtu(interface).map_err(failed("asking for the MTU"))?;
        let socket = sys::PacketSocket::open().map_err(failed("opening a packet socket"))?;
        socket.configure(RECEIVE_MEMORY, SEND_MEMORY).map_err(failed("setting up the packet socket"))?;
        let ring = socket.make_ring().ok();
        devices.bring_up(interface, wait).map_err(failed("bringing the interface up"))?;
        socket.bind(index).map_err(failed("binding the packet socket"))?;
        Ok(PacketPort {
            name: interface.to_owned(),
            mac,
            mtu,
            socket,
            groups: false,
            cuts_datagrams: sys::cuts_datagrams(),
            ring,
            empty_looks: 0,
            at_last_tending: (0, 0),
            receive: sys::ReceiveBatch::new(),
            send: sys::SendBatch::new(),
            queue: TxQueue::new(),
            counters: PortCounters::default(),
            queue_full: Cell::new(0),
        })
    }

    /// Receives up to `wanted` packets by a call and hands them on: how many came, and how many of them were good.
    fn receive_batch(&mut self, wanted: usize, each: &mut EachFrame<'_>) -> io::Result<(usize, usize)> {
        match self.receive.fill(&self.socket, wanted.min(sys::RECEIVE_BATCH)) {
            Ok(count) => {
                let packets = self.receive.packets(count);
                let good = packets.filter(|packet| {
                    let bytes = (!packet.truncated).then_some(packet.bytes);
                    deliver(bytes, &mut self.counters, each)
                });
                Ok((count, good.count()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok((0, 0)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok((0, 0)),
            Err(error) if is_link_gone(&error) => Err(error),
            // The kernel gives up a frame whose segmentation has no virtio-net name, and says so once.
            Err(_) => {
                self.counters.add(PortCounter::RxRefused, 1);
                Ok((1, 0))
            }
        }
    }

    /// The next packets of the ring: how many places they took, none at its end, and how many packets were good.
    fn receive_from_ring(
        &mut self,
        budget: usize,
        (by_split, each): (bool, &mut EachFrame<'_>),
    ) -> io::Result<(usize, usize)> {
        let Some(ring) = &mut self.ring else { return Ok((0, 0)) };
        let good = match ring.next() {
            None => return Ok((0, 0)),
            Some(Next::Frame(packet)) => deliver(Some(packet), &mut self.counters, each),
            Some(Next::Lost) => deliver(None, &mut self.counters, each),
            Some(Next::Queued(packet, frame_len)) => {
                if let Some(split) = SplitFrame::of(packet, frame_len).filter(|_| by_split) {
                    let good = split.deliver(&self.socket, &mut self.receive, &mut self.counters, each)?;
                    ring.release(1);
                    return Ok((1, usize::from(good)));
                }
                let wanted = ring.queued(budget.min(sys::RECEIVE_BATCH));
                let (came, good) = self.receive_batch(wanted, each)?;
                // Each place has its packet in the queue; should the kernel not give one out, the place is free all the
                // same.
                let slots = came.max(1);
                if let Some(ring) = &mut self.ring {
                    ring.release(slots);
                }
                return Ok((slots, good));
            }
        };
        ring.release(1);
        Ok((1, usize::from(good)))
    }

    fn receive_by(&mut self, budget: usize, by_split: bool, each: &mut EachFrame<'_>) -> io::Result<usize> {
        let (mut tried, mut delivered) = (0, 0);
        while tried < budget {
            let left = budget - tried;
            let (taken, good) = match self.ring {
                Some(_) => self.receive_from_ring(left, (by_split, &mut *each))?,
                None => self.receive_batch(left, &mut *each)?,
            };
            if taken == 0 {
                break;
            }
            tried += taken;
            delivered += good;
        }
        if tried > 0 {
            self.empty_looks = 0;
        } else if self.ring.is_some() {
            self.empty_looks += 1;
            if self.empty_looks == EMPTY_LOOKS_MAX {
                self.empty_looks = 0;
                self.socket.take_error()?;
            }
        }
        Ok(delivered)
    }
}

/// Hands a received packet on; `None` when only a part of it came. Whether it was good.
fn deliver(packet: Option<&[u8]>, counters: &mut PortCounters, each: &mut EachFrame<'_>) -> bool {
    let Some(bytes) = packet else {
        counters.add(PortCounter::RxTruncated, 1);
        return false;
    };
    let decoded = bytes
        .split_first_chunk::<{ virtio_net::HEADER_LEN }>()
        .and_then(|(header, frame)| Some((frame, virtio_net::decode(header, frame.len()).ok()?)));
    let Some((frame, offload)) = decoded else {
        counters.add(PortCounter::RxBadHeader, 1);
        return false;
    };
    counters.received(frame.len());
    each(frame, offload, None);
    true
}

impl Port for PacketPort {
    fn name(&self) -> &str {
        &self.name
    }

    fn mac(&self) -> MacAddr {
        self.mac
    }

    fn mtu(&self) -> u32 {
        self.mtu
    }

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            tx_checksum: true,
            gso_max: SEGMENT_PAYLOAD_MAX as u32,
            cuts_datagrams: self.cuts_datagrams,
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.queue.next_deadline_us()
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        self.receive_by(budget, false, &mut |frame, offload, _| each(frame, offload))
    }

    fn receive_split(&mut self, budget: usize, each: &mut EachFrame<'_>) -> io::Result<usize> {
        self.receive_by(budget, true, each)
    }

    fn transmit(&mut self) -> &mut dyn FrameSink {
        self
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let mut out = sys::Sender { socket: &self.socket, batch: &mut self.send };
        self.queue.flush(&mut out, &mut self.counters)
    }

    fn needs_tending(&self) -> bool {
        self.ring.is_some()
    }

    /// Makes a new ring when frames were lost for want of room since the last time, and yet none came: then the old one
    /// stands still ([`sys::PacketSocket::remove_ring`]), and nothing else would ever say so.
    fn tend(&mut self) {
        // Totals: what the kernel counts is reset by whoever asks, also for a report.
        let counters = self.counters();
        let now = (counters.get(PortCounter::RxFrames), counters.get(PortCounter::RxQueueFull));
        let before = std::mem::replace(&mut self.at_last_tending, now);
        let is_empty = self.ring.as_ref().is_some_and(|ring| ring.next().is_none());
        if now.0 == before.0 && now.1 > before.1 && is_empty {
            self.counters.add(PortCounter::RxRestarts, 1);
            self.ring = None;
            self.socket.remove_ring();
            self.ring = self.socket.make_ring().ok();
        }
    }

    fn counters(&self) -> PortCounters {
        self.queue_full.set(self.queue_full.get() + self.socket.take_drops());
        let mut counters = self.counters;
        counters.add(PortCounter::RxQueueFull, self.queue_full.get());
        counters
    }

    fn receive_groups(&mut self) -> io::Result<()> {
        self.groups = true;
        self.socket.join_groups(NetDevices::open()?.index(&self.name)?)
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let counters = self.counters();
        // Others wait for this thread: what is lost before there is a carrier is sent again.
        let (groups, cuts_datagrams) = (self.groups, self.cuts_datagrams);
        *self = PacketPort::open_waiting(&self.name, Duration::ZERO)?;
        self.counters = counters;
        self.cuts_datagrams = cuts_datagrams;
        if groups && let Err(source) = self.receive_groups() {
            return Err(OpenError::from_io(Driver::Packet, &self.name, "asking for multicast", source));
        }
        Ok(())
    }
}

impl FrameSink for PacketPort {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        if !self.queue.has_room(len) {
            // A link that is gone is told by the next flush, which meets the same error.
            let _ = self.flush();
        }
        self.queue.frame(len)
    }

    fn commit(&mut self, offload: TxOffload) {
        self.queue.commit(offload, &mut self.counters);
    }

    fn gather(&mut self, headers: &[u8], tail: &[&[AtomicU8]], offload: TxOffload) -> bool {
        // What waits goes first. An error is met again, and told, by the next flush.
        let _ = self.flush();
        gather::send(self.socket.as_fd(), &self.queue, &mut self.counters, (headers, tail), offload)
    }
}
