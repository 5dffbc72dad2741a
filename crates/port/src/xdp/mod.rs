//! A port on an interface *and its address*, through AF_XDP: a small program in the kernel steers the engine's frames
//! here ([`steering`]) and leaves all others to the kernel, which goes on using the interface as if nobody else did.
//!
//! A frame is at most what the interface carries (no segmentation, no checksums by the link), and is received and sent
//! in memory that the kernel shares; where the interface's driver can, without a copy.

mod error;
mod program;
mod ring;
mod socket;
mod steering;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use toe_wire::eth;
use toe_wire::link::{FrameSink, LinkCaps, MacAddr, RxOffload, TxOffload};

use self::error::XdpError;
use self::program::{Attached, Program};
use self::socket::{FRAME_MAX, Frames, Sent, Socket};
use self::steering::XdpSteering;
use crate::error::OpenError;
use crate::netdev::NetDevices;
use crate::port::{Port, PortCounter, PortCounters, Steering};
use crate::spec::Driver;

/// Bytes of the largest datagram that a frame's place holds.
pub(crate) const MTU_MAX: u32 = (FRAME_MAX - eth::HEADER_LEN) as u32;
/// How soon to ask the kernel again that had no room.
const RETRY_US: u64 = 100;
/// After so many looks in a row that found nothing the sockets are asked whether the interface is gone.
const EMPTY_LOOKS_MAX: u32 = 64;

#[derive(Debug)]
pub(crate) struct XdpPort {
    name: String,
    mac: MacAddr,
    mtu: u32,
    program: Program,
    steering: XdpSteering,
    /// One for each receive queue; all is sent through the first.
    sockets: Vec<Socket>,
    /// All of them, to wait on.
    epoll: OwnedFd,
    /// The queue that was looked at first in the last look.
    first_queue: usize,
    empty_looks: u32,
    counters: PortCounters,
    /// What the kernel had no room for at sockets that are closed by now.
    dropped_before: Cell<u64>,
}

impl XdpPort {
    pub(crate) fn open(interface: &str) -> Result<XdpPort, OpenError> {
        let failed = |doing| move |source| open_error(interface, doing, source);
        let (mut program, maps) = Program::load().map_err(failed("loading the steering program"))?;
        let link = Link::open(interface, &mut program)?;
        Ok(XdpPort {
            name: interface.to_owned(),
            mac: link.mac,
            mtu: link.mtu,
            program,
            steering: XdpSteering::new(maps),
            sockets: link.sockets,
            epoll: link.epoll,
            first_queue: 0,
            empty_looks: 0,
            counters: PortCounters::default(),
            dropped_before: Cell::new(0),
        })
    }

    fn first(&mut self) -> Option<&mut Socket> {
        self.sockets.first_mut()
    }

    fn dropped(&self) -> u64 {
        self.dropped_before.get() + self.sockets.iter().map(Socket::dropped).sum::<u64>()
    }
}

/// What is made anew for an interface that has appeared again.
struct Link {
    mac: MacAddr,
    mtu: u32,
    sockets: Vec<Socket>,
    epoll: OwnedFd,
}

impl Link {
    fn open(interface: &str, program: &mut Program) -> Result<Link, OpenError> {
        let failed = |doing| move |source| open_error(interface, doing, source);
        let devices = NetDevices::open().map_err(failed("asking for the properties"))?;
        let index = devices.index(interface).map_err(failed("asking for the index"))? as u32;
        let (mac, mtu) = properties(&devices, interface)?;
        if mtu > MTU_MAX {
            return Err(XdpError::MtuTooLarge { interface: interface.to_owned(), mtu, max: MTU_MAX }.into());
        }
        // First: what is the engine's is dropped until a socket is there for it. The kernel would answer it with RST.
        let attached = program.attach(index).map_err(failed("attaching the steering program"))?;
        let max = program.queues_max();
        let mut sockets = Vec::new();
        for queue in 0..=max {
            let frames = if queue == 0 { Frames::FIRST } else { Frames::FURTHER };
            match Socket::open(index, queue, frames) {
                // What comes in by it would be the kernel's, who would reset the engine's connections.
                Ok(_) if queue == max => {
                    return Err(XdpError::TooManyQueues { interface: interface.to_owned(), max }.into());
                }
                Ok(socket) => sockets.push(socket),
                // There are no more queues.
                Err(error) if queue > 0 && error.raw_os_error() == Some(libc::EINVAL) => break,
                Err(error) => return Err(failed("binding an AF_XDP socket")(error)),
            }
        }
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(io::Error::from)
            .map_err(failed("making an epoll"))?;
        for (queue, socket) in sockets.iter().enumerate() {
            epoll::add(&epoll, socket, epoll::EventData::new_u64(queue as u64), epoll::EventFlags::IN)
                .map_err(io::Error::from)
                .and_then(|()| program.serve(queue as u32, socket))
                .map_err(failed("serving the receive queues"))?;
        }
        let is_native = attached == Attached::Native;
        let zero_copy = sockets.first().is_some_and(Socket::is_zero_copy);
        tracing::debug!(interface, queues = sockets.len(), is_native, zero_copy, "steering");
        Ok(Link { mac, mtu, sockets, epoll })
    }
}

/// The interface's hardware address and MTU.
fn properties(devices: &NetDevices, interface: &str) -> Result<(MacAddr, u32), OpenError> {
    let failed = |doing| move |source| open_error(interface, doing, source);
    let mac = devices
        .mac(interface)
        .map_err(failed("asking for the hardware address"))?
        .ok_or_else(|| OpenError::NotEthernet { interface: interface.to_owned() })?;
    Ok((mac, devices.mtu(interface).map_err(failed("asking for the MTU"))?))
}

/// What the errors mean that only this driver meets.
fn open_error(interface: &str, doing: &'static str, source: io::Error) -> OpenError {
    let name = interface.to_owned();
    match source.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => XdpError::InUse { interface: name }.into(),
        Some(libc::EAFNOSUPPORT | libc::ENOPROTOOPT | libc::ENOSYS) => {
            XdpError::NoXdp { interface: name }.into()
        }
        Some(libc::ENOBUFS | libc::ENOMEM) => XdpError::NoFrameMemory { interface: name }.into(),
        _ if source.kind() == io::ErrorKind::Unsupported => XdpError::NoXdp { interface: name }.into(),
        _ => OpenError::from_io(Driver::Xdp, interface, doing, source),
    }
}

impl Port for XdpPort {
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
        LinkCaps { tx_checksum: false, gso_max: 0, ..LinkCaps::default() }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn next_deadline_us(&self) -> Option<u64> {
        self.sockets.first().is_some_and(Socket::is_stalled).then_some(RETRY_US)
    }

    fn receive(&mut self, budget: usize, each: &mut dyn FnMut(&[u8], RxOffload)) -> io::Result<usize> {
        let (mut delivered, counters) = (0, &mut self.counters);
        // Another one first each time: a busy queue must not take all of every budget.
        let first_queue = (self.first_queue + 1).checked_rem(self.sockets.len()).unwrap_or(0);
        self.first_queue = first_queue;
        let (before, from) = self.sockets.split_at_mut(first_queue);
        for socket in from.iter_mut().chain(before) {
            delivered += socket.receive(budget - delivered, &mut |frame| {
                counters.received(frame.len());
                // Nobody has looked at the checksum.
                each(frame, RxOffload::default());
            });
        }
        if delivered > 0 {
            self.empty_looks = 0;
        } else {
            self.empty_looks += 1;
            if self.empty_looks >= EMPTY_LOOKS_MAX {
                self.empty_looks = 0;
                self.sockets.iter().try_for_each(Socket::take_error)?;
            }
        }
        Ok(delivered)
    }

    fn transmit(&mut self) -> &mut dyn FrameSink {
        self
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(socket) = self.first() else { return Ok(()) };
        if socket.flush()? == Sent::Some {
            self.counters.add(PortCounter::TxBusy, 1);
        }
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        let mut counters = self.counters;
        counters.add(PortCounter::RxQueueFull, self.dropped());
        counters.add(PortCounter::SteerEntries, self.steering.entries() as u64);
        counters
    }

    fn steering(&mut self) -> Option<&mut dyn Steering> {
        Some(&mut self.steering)
    }

    fn reopen(&mut self) -> Result<(), OpenError> {
        // The old sockets first: they may hold the queues.
        self.program.detach();
        self.dropped_before.set(self.dropped());
        self.sockets.clear();
        let link = Link::open(&self.name, &mut self.program)?;
        (self.mac, self.mtu, self.sockets, self.epoll) = (link.mac, link.mtu, link.sockets, link.epoll);
        Ok(())
    }

    /// The sockets and the program stay: without the program the kernel would reset the engine's connections.
    fn refresh(&mut self) -> Result<(), OpenError> {
        let devices = NetDevices::open()
            .map_err(|source| open_error(&self.name, "asking for the properties", source))?;
        let (mac, mtu) = properties(&devices, &self.name)?;
        // The engine goes on with what a frame's place holds, and peers are told to send no more.
        (self.mac, self.mtu) = (mac, mtu.min(MTU_MAX));
        Ok(())
    }
}

impl FrameSink for XdpPort {
    fn frame(&mut self, len: usize) -> Option<&mut [u8]> {
        self.first()?.frame(len)
    }

    fn commit(&mut self, _offload: TxOffload) {
        if let Some(len) = self.first().and_then(Socket::commit) {
            self.counters.sent(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_said_with_the_remedy() {
        let text = |errno| open_error("eth1", "doing it", io::Error::from_raw_os_error(errno)).to_string();
        for (errno, remedy) in [
            (libc::EBUSY, "ip link set eth1 xdp off"),
            (libc::EAFNOSUPPORT, "Linux 5.9"),
            (libc::ENOBUFS, "ulimit -l"),
            (libc::EPERM, "CAP_BPF"),
            (libc::ENODEV, "ip link"),
            (libc::EIO, "doing it failed for `eth1`"),
        ] {
            assert!(text(errno).contains(remedy), "{errno}: {}", text(errno));
        }
        let old = open_error("eth1", "doing it", io::ErrorKind::Unsupported.into()).to_string();
        assert!(old.contains("Linux 5.9"), "{old}");
    }
}
