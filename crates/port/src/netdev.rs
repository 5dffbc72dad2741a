//! Questions and requests about a network interface by name (netdevice(7)). Used by the drivers when they open.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use toe_wire::MacAddr;

/// How long opening a port waits for the interface's carrier.
pub(crate) const CARRIER_WAIT: Duration = Duration::from_millis(200);
const CARRIER_POLL: Duration = Duration::from_millis(1);

/// A socket to ask through; it belongs to the network namespace of the thread that made it.
#[derive(Debug)]
pub(crate) struct NetDevices {
    socket: OwnedFd,
}

/// An `ifreq` for the interface `name`, all else zero.
pub(crate) fn request_for(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is a C struct of integers, arrays and a union of such (one member is a pointer, and null is a
    // pointer value), so all zeroes is a valid value; libc gives it no safe constructor.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as libc::c_char;
    }
    Ok(request)
}

impl NetDevices {
    pub(crate) fn open() -> io::Result<NetDevices> {
        // SAFETY: a plain system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call above made this descriptor and nobody else owns it.
        Ok(NetDevices { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    fn ask(&self, request: libc::c_ulong, interface: &mut libc::ifreq) -> io::Result<()> {
        // SAFETY: every request that this file makes takes a pointer to an ifreq, reads and writes only within it,
        // and keeps no reference to it.
        let result = unsafe { libc::ioctl(self.socket.as_raw_fd(), request as _, interface) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    pub(crate) fn index(&self, name: &str) -> io::Result<i32> {
        let mut request = request_for(name)?;
        self.ask(libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: SIOCGIFINDEX filled this member of the union.
        Ok(unsafe { request.ifr_ifru.ifru_ifindex })
    }

    pub(crate) fn mtu(&self, name: &str) -> io::Result<u32> {
        let mut request = request_for(name)?;
        self.ask(libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU filled this member of the union.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu };
        u32::try_from(mtu).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// The hardware address; `None` when the interface is not an Ethernet one.
    pub(crate) fn mac(&self, name: &str) -> io::Result<Option<MacAddr>> {
        let mut request = request_for(name)?;
        self.ask(libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: SIOCGIFHWADDR filled this member of the union.
        let address = unsafe { request.ifr_ifru.ifru_hwaddr };
        if address.sa_family != libc::ARPHRD_ETHER {
            return Ok(None);
        }
        let [a, b, c, d, e, f, ..] = address.sa_data;
        Ok(Some(MacAddr([a, b, c, d, e, f].map(|byte| byte as u8))))
    }

    /// Brings the interface up if it is down, and waits up to `wait` for it to carry frames.
    ///
    /// Between "up" and the kernel's notice of the carrier (a matter of milliseconds, on a work queue of its own) an
    /// interface drops what it is given and calls it sent. Without a carrier there is nothing to wait for, and that
    /// is no error: it may come later.
    pub(crate) fn bring_up(&self, name: &str, wait: Duration) -> io::Result<()> {
        let (up, running) = (libc::IFF_UP as libc::c_short, libc::IFF_RUNNING as libc::c_short);
        let deadline = Instant::now() + wait;
        loop {
            let mut request = request_for(name)?;
            self.ask(libc::SIOCGIFFLAGS, &mut request)?;
            // SAFETY: SIOCGIFFLAGS filled this member of the union.
            let flags = unsafe { request.ifr_ifru.ifru_flags };
            let ready = flags & running != 0;
            // Also when it is up already: the request waits for the lock under which the kernel starts the queues.
            request.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
            match self.ask(libc::SIOCSIFFLAGS, &mut request) {
                // An engine that has given this right up opens a link again: one that is up already will do.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied && flags & up != 0 => {}
                other => other?,
            }
            if ready || Instant::now() >= deadline {
                return Ok(());
            }
            std::thread::sleep(CARRIER_POLL);
        }
    }
}
