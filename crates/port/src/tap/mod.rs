//! A port on a TAP interface, made if it is not there, with virtio-net headers: the kernel's stack is the engine's
//! neighbour on a link of two. Needs no NIC and no second machine.
//!
//! The interface's own hardware address is the kernel's; the engine has one of its own, the same each time for the
//! same name. A TAP that this port made goes away with it.
//!
//! It can also be the end of a cable: then frames are as they would be on a wire, no larger than the MTU, with their
//! checksums, and to whatever address.

mod error;
mod sys;

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::AtomicU8;
use std::time::Duration;

use toe_base::limits::{FRAME_MAX, SEGMENT_PAYLOAD_MAX};
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

use crate::alignment;
use crate::batch::{TxQueue, is_link_gone};
use crate::error::OpenError;
use crate::gather;
use crate::netdev::{CARRIER_WAIT, NetDevices};
use crate::port::{Port, PortCounter, PortCounters};
use crate::spec::Driver;
use crate::virtio_net;
use error::TapError;

/// One byte more than the largest packet, so that a longer one is noticed.
const BUFFER_LEN: usize = virtio_net::HEADER_LEN + FRAME_MAX + 1;

/// What a TAP is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To be an engine's link to the kernel.
    Link,
    /// To carry the kernel's frames to some other place.
    CableEnd,
}

#[derive(Debug)]
pub(crate) struct TapPort {
    name: String,
    purpose: Purpose,
    mac: MacAddr,
    mtu: u32,
    device: sys::TapDevice,
    /// [`Port::receive_groups`] was asked for.
    groups: bool,
    buffer: Box<[u8]>,
    /// Where in it packets go.
    range: Range<usize>,
    queue: TxQueue,
    counters: PortCounters,
}

impl TapPort {
    pub(crate) fn open(interface: &str) -> Result<TapPort, OpenError> {
        TapPort::open_waiting(interface, Purpose::Link, CARRIER_WAIT)
    }

    /// Opens the TAP as the end of a cable.
    pub(crate) fn open_cable_end(interface: &str) -> Result<TapPort, OpenError> {
        TapPort::open_waiting(interface, Purpose::CableEnd, CARRIER_WAIT)
    }

    fn open_waiting(interface: &str, purpose: Purpose, wait: Duration) -> Result<TapPort, OpenError> {
        let failed = |doing| move |source| OpenError::from_io(Driver::Tap, interface, doing, source);
        let device = sys::TapDevice::open().map_err(|source| match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => TapError::NoTunDriver.into(),
            _ => OpenError::from_io(Driver::Tap, interface, "opening /dev/net/tun", source),
        })?;
        device.attach(interface).map_err(|source| match source.raw_os_error() {
            Some(libc::EBUSY) => TapError::InUse { interface: interface.to_owned() }.into(),
            Some(libc::EINVAL) => TapError::NotATap { interface: interface.to_owned() }.into(),
            _ => OpenError::from_io(Driver::Tap, interface, "making the TAP", source),
        })?;
        device.configure(purpose == Purpose::Link).map_err(failed("setting up the offloads"))?;
        let devices = NetDevices::open().map_err(failed("asking for the properties"))?;
        let kernel_mac = devices
            .mac(interface)
            .map_err(failed("asking for the hardware address"))?
            .ok_or_else(|| OpenError::NotEthernet { interface: interface.to_owned() })?;
        let mtu = devices.mtu(interface).map_err(failed("asking for the MTU"))?;
        let mac = engine_mac(interface, kernel_mac);
        if purpose == Purpose::Link {
            // Saves the engine the kernel's multicast chatter, nothing more: it would drop that itself.
            let _ = device.receive_only(&[mac, MacAddr::BROADCAST], false);
        }
        devices.bring_up(interface, wait).map_err(failed("bringing the interface up"))?;
        let buffer = vec![0; BUFFER_LEN + alignment::SLACK].into_boxed_slice();
        let first = alignment::first(&buffer);
        Ok(TapPort {
            name: interface.to_owned(),
            purpose,
            mac,
            mtu,
            device,
            groups: false,
            range: first..first + BUFFER_LEN,
            buffer,
            queue: TxQueue::new(),
            counters: PortCounters::default(),
        })
    }
}

/// The engine's address on the TAP `name`: locally administered, from a hash (FNV-1a) of the name, and not the
/// kernel's, which may have been set by hand.
fn engine_mac(name: &str, kernel_mac: MacAddr) -> MacAddr {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let [_, _, a, b, c, d, e, f] = hash.to_be_bytes();
    let first = (a & 0xfc) | 0x02;
    let mac = MacAddr([first, b, c, d, e, f]);
    if mac == kernel_mac { MacAddr([first, b, c, d, e, f ^ 1]) } else { mac }
}

impl Port for TapPort {
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
        match self.purpose {
            Purpose::Link => {
                LinkCaps { tx_checksum: true, gso_max: SEGMENT_PAYLOAD_MAX as u32, ..LinkCaps::default() }
            }
            Purpose::CableEnd => LinkCaps::default(),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.device.as_fd())
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.queue.next_deadline_us()
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        let mut delivered = 0;
        for _ in 0..budget {
            let len = match self.device.read(&mut self.buffer[self.range.clone()]) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if is_link_gone(&error) => return Err(error),
                // The kernel gives up a frame whose segmentation has no virtio-net name, and says so once.
                Err(_) => {
                    self.counters.add(PortCounter::RxRefused, 1);
                    continue;
                }
            };
            if len == BUFFER_LEN {
                self.counters.add(PortCounter::RxTruncated, 1);
                continue;
            }
            let offload = self.buffer[self.range.start..][..len]
                .split_first_chunk::<{ virtio_net::HEADER_LEN }>()
                .and_then(|(header, frame)| Some((frame, virtio_net::decode(header, frame.len()).ok()?)));
            let Some((frame, offload)) = offload else {
                self.counters.add(PortCounter::RxBadHeader, 1);
                continue;
            };
            self.counters.received(frame.len());
            each(frame, offload);
            delivered += 1;
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
        self.queue.flush(&mut sys::Sender { device: &self.device }, &mut self.counters)
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn receive_groups(&mut self) -> io::Result<()> {
        self.groups = true;
        self.device.receive_only(&[self.mac, MacAddr::BROADCAST], true)
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        let counters = self.counters();
        // Others wait for this thread: what is lost before there is a carrier is sent again.
        let groups = self.groups;
        *self = TapPort::open_waiting(&self.name, self.purpose, Duration::ZERO)?;
        self.counters = counters;
        if groups && let Err(source) = self.receive_groups() {
            return Err(OpenError::from_io(Driver::Tap, &self.name, "asking for multicast", source));
        }
        Ok(())
    }
}

impl FrameSink for TapPort {
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
        gather::send(self.device.as_fd(), &self.queue, &mut self.counters, (headers, tail), offload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_has_its_own_address_by_name() {
        let kernel = MacAddr([2, 0, 0, 0, 0, 1]);
        let mac = engine_mac("toe0", kernel);
        assert_eq!(mac, engine_mac("toe0", kernel));
        assert_ne!(mac, engine_mac("toe1", kernel));
        assert_eq!(mac.0[0] & 0x03, 0x02, "locally administered, not a group");
        assert_ne!(engine_mac("toe0", mac), mac);
    }
}
