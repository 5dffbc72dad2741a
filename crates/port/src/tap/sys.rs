//! The system calls of the TAP port (the kernel's networking/tuntap document): the device, its set-up, one frame in
//! or out a call.

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use toe_wire::MacAddr;

use crate::batch::{Packets, Send as SendPackets};
use crate::netdev::request_for;
use crate::virtio_net;

/// A non-blocking TUN/TAP descriptor.
#[derive(Debug)]
pub(super) struct TapDevice {
    fd: OwnedFd,
}

/// From linux/if_tun.h.
const TUN_FLT_ALLMULTI: u16 = 1;

/// `struct tun_filter` with room for the addresses that a port needs.
#[repr(C)]
struct AddressFilter {
    flags: u16,
    count: u16,
    addresses: [[u8; 6]; 2],
}

const _: () = assert!(mem::size_of::<AddressFilter>() == 16);

impl TapDevice {
    pub(super) fn open() -> io::Result<TapDevice> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(TapDevice { fd: rustix::fs::open("/dev/net/tun", flags, Mode::empty())? })
    }

    /// Makes the interface or takes the existing one.
    pub(super) fn attach(&self, interface: &str) -> io::Result<()> {
        let mut request = request_for(interface)?;
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes one ifreq and keeps no reference to it.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETIFF, &mut request) })
    }

    /// The size of the header before each frame, and what the kernel may hand over: with `offloads` frames larger than
    /// the MTU and without checksums, else only such as go on a wire.
    pub(super) fn configure(&self, offloads: bool) -> io::Result<()> {
        let header_len = virtio_net::HEADER_LEN as libc::c_int;
        // SAFETY: TUNSETVNETHDRSZ reads one int.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &header_len) })?;
        let offloads = if offloads {
            libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6)
        } else {
            0
        };
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETOFFLOAD, offloads) })
    }

    /// Makes the kernel drop frames to other addresses than these before they are queued, and with `groups` lets all
    /// multicast in.
    pub(super) fn receive_only(&self, addresses: &[MacAddr; 2], groups: bool) -> io::Result<()> {
        let flags = if groups { TUN_FLT_ALLMULTI } else { 0 };
        let filter = AddressFilter { flags, count: 2, addresses: addresses.map(|mac| mac.0) };
        // SAFETY: TUNSETTXFILTER reads the fixed part and then `count` addresses, all within `filter`.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETTXFILTER, &filter) })
    }

    /// One packet: virtio-net header and frame.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, buffer)?)
    }
}

impl AsFd for TapDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a port's gathered packets, one a call: TAP has no batches.
pub(super) struct Sender<'a> {
    pub(super) device: &'a TapDevice,
}

impl SendPackets for Sender<'_> {
    fn send(&mut self, packets: &Packets<'_>) -> io::Result<usize> {
        let mut count = 0;
        for packet in packets.iter() {
            match rustix::io::write(&self.device.fd, packet) {
                Ok(_) => count += 1,
                // The error concerns a packet that is not the first now; it comes again when it is.
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(count)
    }
}
