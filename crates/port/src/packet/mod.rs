//! A port on an existing Ethernet interface, through an AF_PACKET socket with virtio-net headers: GSO, GRO and
//! checksums as the kernel has them, batches of frames in one system call.
//!
//! The engine uses the interface's own hardware address. The kernel's stack sees the same frames, so the engine must
//! have IPv4 addresses that the kernel does not have, or the kernel answers too.

mod sys;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use toe_base::limits::SEGMENT_PAYLOAD_MAX;
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

use crate::batch::{TxQueue, is_link_gone};
use crate::netdev::NetDevices;
use crate::open::OpenError;
use crate::port::{Port, PortCounter, PortCounters};
use crate::spec::Driver;
use crate::virtio_net;

/// The socket's share of kernel memory, taken as it is used: it must hold what a thousand peers send at once (their
/// windows together) while the engine is busy elsewhere. What it does not hold is lost until a retransmission time-out.
const RECEIVE_MEMORY: i32 = 128 << 20;
const SEND_MEMORY: i32 = 8 << 20;

#[derive(Debug)]
pub(crate) struct PacketPort {
    name: String,
    mac: MacAddr,
    mtu: u32,
    socket: sys::PacketSocket,
    receive: sys::ReceiveBatch,
    send: sys::SendBatch,
    queue: TxQueue,
    counters: PortCounters,
    /// Frames that the kernel's queue had no room for; asking the kernel resets its own count.
    queue_full: Cell<u64>,
}

impl PacketPort {
    pub(crate) fn open(interface: &str) -> Result<PacketPort, OpenError> {
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
        devices.bring_up(interface).map_err(failed("bringing the interface up"))?;
        socket.bind(index).map_err(failed("binding the packet socket"))?;
        Ok(PacketPort {
            name: interface.to_owned(),
            mac,
            mtu,
            socket,
            receive: sys::ReceiveBatch::new(),
            send: sys::SendBatch::new(),
            queue: TxQueue::new(),
            counters: PortCounters::default(),
            queue_full: Cell::new(0),
        })
    }

    /// Hands the first `count` received packets on.
    fn deliver(&mut self, count: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> usize {
        let mut delivered = 0;
        for packet in self.receive.packets(count) {
            let split = packet.octets.split_first_chunk::<{ virtio_net::HEADER_LEN }>();
            let Some((header, frame)) = split else {
                self.counters.add(PortCounter::RxBadHeader, 1);
                continue;
            };
            if packet.truncated {
                self.counters.add(PortCounter::RxTruncated, 1);
                continue;
            }
            let Ok(offload) = virtio_net::decode(header, frame.len()) else {
                self.counters.add(PortCounter::RxBadHeader, 1);
                continue;
            };
            self.counters.received(frame.len());
            each(frame, offload);
            delivered += 1;
        }
        delivered
    }
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
        LinkCaps { tx_checksum: true, gso_max: SEGMENT_PAYLOAD_MAX as u32 }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.queue.next_deadline_us()
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        let mut tried = 0;
        let mut delivered = 0;
        while tried < budget {
            let wanted = (budget - tried).min(sys::RECEIVE_BATCH);
            match self.receive.fill(&self.socket, wanted) {
                Ok(count) => {
                    delivered += self.deliver(count, each);
                    tried += count;
                    if count < wanted {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_link_gone(&error) => return Err(error),
                // The kernel gives up a frame whose segmentation has no virtio-net name, and says so once.
                Err(_) => {
                    self.counters.add(PortCounter::RxRefused, 1);
                    tried += 1;
                }
            }
        }
        Ok(delivered)
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

    fn counters(&self) -> PortCounters {
        self.queue_full.set(self.queue_full.get() + self.socket.take_drops());
        let mut counters = self.counters;
        counters.add(PortCounter::RxQueueFull, self.queue_full.get());
        counters
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
}
