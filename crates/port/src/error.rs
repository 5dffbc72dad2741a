//! Why a port cannot be opened, with what to do.

use crate::spec::Driver;
use std::fmt;
use std::io;

/// Why a port was not opened. The text says what to do.
#[derive(Debug)]
pub enum OpenError {
    /// The kernel refuses for want of privilege.
    NotPermitted { driver: Driver, interface: String },
    /// `packet:` was given a name that no interface has.
    NoSuchInterface { interface: String },
    /// The interface is of another kind.
    NotEthernet { interface: String },
    /// `tap:` was given the name of an interface that is not a plain TAP.
    NotATap { interface: String },
    /// Another process has the TAP open.
    InUse { interface: String },
    /// The kernel has no TUN/TAP driver.
    NoTunDriver,
    /// Another XDP program is attached, or another AF_XDP socket has the queue.
    XdpInUse { interface: String },
    /// The kernel lacks AF_XDP or what the steering program needs.
    NoXdp { interface: String },
    /// Frames of the interface can be longer than AF_XDP takes.
    MtuTooLarge { interface: String, mtu: u32, max: u32 },
    /// The interface receives by more queues than can be served.
    TooManyQueues { interface: String, max: u32 },
    /// The kernel may not lock the memory of the frames.
    NoFrameMemory { interface: String },
    /// A cable was given something else than a TAP.
    NotACableEnd { driver: Driver, interface: String },
    /// Something else failed.
    System { doing: &'static str, interface: String, source: io::Error },
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotPermitted { driver, interface } => {
                let capability = match driver {
                    Driver::Tap => "CAP_NET_ADMIN",
                    Driver::Packet => "CAP_NET_RAW and CAP_NET_ADMIN",
                    Driver::Xdp => "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF",
                };
                write!(
                    f,
                    "not permitted to open {}:{interface}: run as root or with {capability}",
                    driver.name()
                )
            }
            OpenError::NoSuchInterface { interface } => {
                write!(f, "there is no interface `{interface}` in this network namespace: see `ip link`")
            }
            OpenError::NotEthernet { interface } => {
                write!(f, "`{interface}` is not an Ethernet interface: use a NIC, a veth, a bridge or a TAP")
            }
            OpenError::NotATap { interface } => write!(
                f,
                "`{interface}` exists and is not a single-queue TAP: use another name, or packet:{interface}"
            ),
            OpenError::InUse { interface } => {
                write!(f, "another process has the TAP `{interface}` open: stop it or use another name")
            }
            OpenError::NoTunDriver => {
                write!(
                    f,
                    "the kernel has no TUN/TAP driver: run `modprobe tun` (in a container: give it /dev/net/tun)"
                )
            }
            OpenError::XdpInUse { interface } => write!(
                f,
                "another XDP program or AF_XDP socket has `{interface}`: see `ip link show {interface}`; stop its owner, \
                 or remove it with `ip link set {interface} xdp off`"
            ),
            OpenError::NoXdp { interface } => write!(
                f,
                "this kernel cannot steer frames of `{interface}` by AF_XDP: use Linux 5.9 or later built with \
                 CONFIG_XDP_SOCKETS and CONFIG_BPF_SYSCALL, or packet:{interface} with an address of its own"
            ),
            OpenError::MtuTooLarge { interface, mtu, max } => write!(
                f,
                "`{interface}` has an MTU of {mtu}, and AF_XDP takes at most {max}: run `ip link set {interface} mtu \
                 {max}` (or less), or use packet:{interface} with an address of its own"
            ),
            OpenError::TooManyQueues { interface, max } => write!(
                f,
                "`{interface}` has more than {max} receive queues: run `ethtool -L {interface} combined {max}` (or rx {max}, \
                 or less)"
            ),
            OpenError::NoFrameMemory { interface } => write!(
                f,
                "no memory for the frames of `{interface}`: raise the limit of locked memory (`ulimit -l`), or run as root \
                 or with CAP_IPC_LOCK"
            ),
            OpenError::NotACableEnd { driver, interface } => write!(
                f,
                "the end of a cable is a TAP: write tap:{interface} instead of {}:{interface}",
                driver.name()
            ),
            OpenError::System { doing, interface, source } => {
                write!(f, "{doing} failed for `{interface}`: {source}")
            }
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::System { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl OpenError {
    /// What an errno means whichever driver met it.
    pub(crate) fn from_io(
        driver: Driver,
        interface: &str,
        doing: &'static str,
        source: io::Error,
    ) -> OpenError {
        let interface = interface.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => OpenError::NotPermitted { driver, interface },
            Some(libc::ENODEV | libc::ENXIO) => OpenError::NoSuchInterface { interface },
            _ => OpenError::System { doing, interface, source },
        }
    }
}
